"""What a fit makes small, and how far the estimates that it leaves can be trusted.

What counts is not how close an estimate is but which candidate comes first. So the loss has three parts: the regret to be
expected if candidates are picked with probabilities that fall with their estimates (a soft minimum); the squared errors of log
times less their mean over the problem, which say in what order the candidates stand; and, so that estimates stay times, the squared
errors as they are. A candidate's error counts the less, the slower it is: hopeless ones are not picked anyway.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from heuristics.fit_data import Measurements
from heuristics.pairs import Array, Rows

_SOFTNESS: Final = 0.03  # of the soft minimum, in log time
_REGRET: Final = 10.0  # weight of the expected regret, ...
_ORDER: Final = 40.0  # ... of the squared errors within a problem ...
_ERROR: Final = 4.0  # ... and of all of them
_FAR: Final = 2.0  # a candidate's error counts e^-2 less for each time the best that it is slower, ...
_FAR_OFF: Final = 5.0  # ... and e^-5 where it is asked how far to trust a tile
_CAUTION: Final = 2.0  # standard deviations that an estimate is held back by
_PRIOR: Final = 20.0  # times by which a loop's deviation stands for a tile's, or that of all for a loop's
_FEW: Final = 0.005  # variance of a tile's correction that rests on a single time


def by_time(data: Measurements, here: Array) -> Array:
    """The gradient of the loss by the logarithm of each estimate, `here`."""
    owner, problems = data.owner, len(data.best)
    least = np.full(problems, np.inf)
    np.minimum.at(least, owner, here)
    likely = np.exp(-(here - least[owner]) / _SOFTNESS)
    likely /= np.bincount(owner, likely)[owner]
    regret = np.minimum(data.over, 1.0)
    expected = np.bincount(owner, likely * regret)[owner]
    by_regret = -likely * (regret - expected) / _SOFTNESS / problems
    weight, error, within = _errors(data, here, _FAR)
    gradient: Array = _REGRET * by_regret + 2 * weight * (_ERROR * error + _ORDER * within) / weight.sum()
    return gradient


def caution(data: Measurements, here: Array) -> tuple[Array, Array]:
    """Factors on the estimates of tiles, above 1 where they err more than others or rest on few times; and of a loop's other tiles.

    The first of many estimates is likely one that came out too low, so where two promise the same the steadier one is faster.
    """
    weight, _, within = _errors(data, here, _FAR_OFF)
    squares = weight * within**2
    of_all = np.array([squares.sum() / weight.sum()])
    of_loop = _pooled(squares, weight, data.loop, np.broadcast_to(of_all, len(data.loops)))
    loop_of = np.zeros(len(data.tiles), np.intp)
    loop_of[data.tile] = data.loop
    of_tile = _pooled(squares, weight, data.tile, of_loop[loop_of])
    times = np.bincount(data.tile, weight, len(data.tiles))
    known, other = (np.exp(_CAUTION * (np.sqrt(of) - np.sqrt(of_all))) for of in (of_tile + _FEW / (1 + times), of_loop + _FEW))
    return known, other


def _errors(data: Measurements, here: Array, far: float) -> tuple[Array, Array, Array]:
    """Of each estimate its weight, its error in log time, and that less the mean of its problem."""
    weight = np.exp(-far * np.minimum(data.over, 2.0))
    error = here - np.log(data.seen)
    mean = np.bincount(data.owner, weight * error) / np.bincount(data.owner, weight)
    return weight, error, error - mean[data.owner]


def _pooled(squares: Array, weight: Array, group: Rows, prior: Array) -> Array:
    """The variance of each group, drawn towards what is known of others as far as its own times are few."""
    count = len(prior)
    found: Array = (np.bincount(group, squares, count) + _PRIOR * prior) / (np.bincount(group, weight, count) + _PRIOR)
    return found

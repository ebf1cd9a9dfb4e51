"""Sentences that explain a pick, derived from the facts: why it suits the problem, whether its bits hold, what to type next."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Final

from heuristics.footprint import Footprint, last_wave
from heuristics.policy import NET
from heuristics.roof import rate, roof_us
from heuristics.table import problem_key
from heuristics.traits import traits_of
from heuristics.verdicts import amount, slower
from kernel_zoo.spec import ITEMSIZE, VECTOR_BYTES, GemmProblem

if TYPE_CHECKING:
    from heuristics.selection import Selection

_FULL: Final = 0.9  # a use above which tiles are not worth a word
_FIXED: Final = ("launch", "fill and store", "reduction")  # parts that do not grow with K


def because(selection: Selection) -> str:
    """Why the pick suits the problem on the device, in one sentence."""
    p, held = selection.problem, selection.footprint
    if selection.problem.empty:
        return selection.reason
    if p.k == 0:
        return "nothing is multiplied (k is 0 or alpha is 0): only C, bias and activation are written"
    if held is None or selection.tile is None:
        return "; ".join(filter(None, (_no_kernel(selection), _limit(selection))))
    return "; ".join(filter(None, (_copied(selection), _parallelism(selection, held), _waste(held), _limit(selection))))


def _copied(selection: Selection) -> str:
    """That operands are copied first, and what that buys."""
    p = selection.problem
    names = [name for name, operand in (("A", p.a), ("B", p.b)) if operand.line_align < VECTOR_BYTES]
    if not names or not traits_of(selection.variant).copies:
        return ""
    lines = f"lines aligned to {min(p.a.line_align, p.b.line_align)} bytes"
    return f"{' and '.join(names)}, with {lines}, {'are' if len(names) > 1 else 'is'} copied to aligned ones first"


def _no_kernel(selection: Selection) -> str:
    """Why something without a tile serves."""
    if selection.variant != NET or selection.rung != "default":
        return f"{selection.variant} launches by itself: it has no tile to reason about"
    given = {candidate.refusal.given for candidate in selection.refused if candidate.refusal is not None}
    if len(given) == 1:
        return f"no kernel of the zoo can serve: {given.pop()}"
    return f"no kernel of the zoo can serve: the {len(selection.refused)} variants refuse it, each for its reason below"


def _parallelism(selection: Selection, held: Footprint) -> str:
    """How the work spreads over the SMs."""
    tile, sms = selection.tile, selection.arch.sm_count
    assert tile is not None
    side = f"{tile.block_m} x {tile.block_n}"
    if traits_of(selection.variant).vector:
        narrow = min(selection.problem.m, selection.problem.n)
        streamed = f"one side of the result is {narrow}: the larger matrix is streamed once by {held.programs} programs"
        return f"{streamed}, K split {tile.split_k} ways so that more SMs read" if tile.split_k > 1 else streamed
    if tile.split_k > 1:
        split = f"K is split {tile.split_k} ways because {_count(held.tiles, 'tile')} of {side}"
        if held.tiles < sms:
            left = sms - held.busy_sms
            rest = f"{left} of {sms} still idle" if left else "every SM has work"
            return f"{split} would leave {sms - held.tiles} of {sms} SMs idle; as {held.programs} programs {rest}"
        alone = last_wave(held.tiles, held.at_once)
        return f"{split} would fill the last wave to {alone:.0%}; {held.programs} programs fill it to {held.last_wave:.0%}"
    if held.programs < sms:
        idle = f"{_count(held.programs, 'tile')} of {side} leave {sms - held.programs} of {sms} SMs idle"
        return f"{idle}{_unsplit(selection)}"
    if held.waves <= 1:
        return f"all {held.programs} tiles of {side} run at once on {sms} SMs"
    waves = math.ceil(held.waves)
    if held.resident:
        walk = f"{held.at_once} resident programs walk over {held.programs} tiles of {side} in {waves} rounds"
        return f"{walk}, the last {held.last_wave:.0%} full"
    return f"{held.programs} tiles of {side} run in {waves} waves of {held.at_once}, the last {held.last_wave:.0%} full"


def _unsplit(selection: Selection) -> str:
    """Why K is not split although SMs idle, where the model has an answer."""
    for candidate in selection.ranked:
        if candidate.tile is None or candidate.estimate is None or candidate.tile.split_k == 1:
            continue
        ratio = candidate.estimate.time_us / selection.estimate.time_us
        return f", yet splitting K {candidate.tile.split_k} ways is {slower(ratio)} by the model" if ratio > 1 else ""
    return ""


def _count(count: int, word: str) -> str:
    return f"only {count} {word}{'s' if count != 1 else ''}"


def _waste(held: Footprint) -> str:
    if held.tile_use is None or held.tile_use >= _FULL:
        return ""
    return f"{1 - held.tile_use:.0%} of the tiles' work lies outside the matrices"


def _limit(selection: Selection) -> str:
    """What sets the time: fixed costs, or the device's memory or arithmetic."""
    p, arch, estimate = selection.problem, selection.arch, selection.estimate
    roof, bound = roof_us(p, arch)
    fixed = {name: us for name, us in estimate.parts.items() if name in _FIXED and us > 0}
    if estimate.time_us > 0 and sum(fixed.values()) > 0.5 * estimate.time_us:
        most = max(fixed, key=lambda name: fixed[name])
        share = f"{sum(fixed.values()) / estimate.time_us:.0%} of the time is {' + '.join(fixed)}"
        mostly = f", mostly {most}" if len(fixed) > 1 and fixed[most] > 0.6 * sum(fixed.values()) else ""
        return f"too small for its roof to matter: {share}{mostly}"
    if bound == "memory":
        work = f"memory-bound: {amount(p.least_bytes)} at {arch.bandwidth_gbps / 1e3:.3g} TB/s"
    else:
        work = f"compute-bound: {p.flops / 1e9:.3g} GFLOP at {rate(p, arch):.0f} TFLOP/s"
    times = f", and the estimate is {estimate.time_us / roof:.3g} times that" if roof > 0 and estimate.time_us > 0 else ""
    return f"{work} take {roof:.3g} us{times}{_narrow_reads(selection, roof)}"


def _narrow_reads(selection: Selection, roof: float) -> str:
    """That short accesses hold a pick up, where its main loop takes much longer than the roof."""
    align = min(selection.problem.a.line_align, selection.problem.b.line_align)
    if traits_of(selection.variant).copies or align >= VECTOR_BYTES or selection.estimate.parts.get("main loop", 0.0) < 2 * roof:
        return ""
    return f", for lines aligned to {align} bytes are read {align} bytes at a time"


def repeats(selection: Selection) -> str:
    """Why the bits repeat from run to run, or why that is not promised."""
    record, tile = selection.record(selection.variant), selection.tile
    if record is None or not record.deterministic:
        return f"{selection.variant} is not declared to sum in a fixed order"
    if record.recipe is None or tile is None:
        return f"{selection.variant} is declared to repeat; its order of summation is its own"
    if tile.split_k > 1:
        if traits_of(selection.variant).fused:
            return f"{tile.split_k} partial sums of K are added in order by the last program to arrive; atomics only count arrivals"
        return f"{tile.split_k} partial sums of K are added in order by the second launch, without atomics"
    return "one program sums K front to back, without atomics"


def invariance(selection: Selection) -> str:
    """Why a row's bits do or do not depend on M and the batch."""
    p, record, tile = selection.problem, selection.record(selection.variant), selection.tile
    if p.batch_invariant:
        return "one family and one tile for every M and batch, from n, k, dtype and device alone"
    if record is None or record.origin == "user" or tile is None:
        return f"another M or batch may get another {'tile' if tile else 'kernel'}; ask for batch_invariant=True"
    split = f"in {tile.split_k} ranges, each " if tile.split_k > 1 else ""
    order = f"K {split}front to back, {tile.block_k} at a time"
    return f"another M or batch may get a tile that sums in another order than this one ({order}); ask for batch_invariant=True"


def next_command(selection: Selection) -> tuple[str, str]:
    """What to type next, and what for. Nothing where there is nothing to compute."""
    p = selection.problem
    if selection.problem.empty:
        return "", ""
    guessed = selection.rung in ("borrowed", "nearest", "model") or (
        selection.rung == "exact" and selection.entry is not None and selection.entry.source == "modelled"
    )
    if guessed and p.k > 0 and not p.batch_invariant:
        return _with_sizes("tune", p), f"measures it on this kind of GPU ({selection.arch.name}); the next choice is then exact"
    if selection.tile is None and selection.rung == "default":
        return "minblas variants", "lists what each kernel is good for"
    if selection.rung == "forced" or selection.origin == "user" or selection.tile is None:
        return f"minblas check {shlex.quote(selection.variant)}", "compares the variant with float64"
    return _with_sizes("warmup", p), "compiles what it needs before the first call"


def _with_sizes(command: str, problem: GemmProblem) -> str:
    """The command for a problem; as Python where its strides, epilogue or output cannot be said in words."""
    name = "tf32" if problem.precision == "tf32" else problem.dtype
    if not _plain(problem, name):
        return f"python: minblas.{command}([selection.problem])"
    words = [f"minblas {command} {problem.m} {problem.n} {problem.k} --dtype {name}"]
    if problem.layout != "nn":
        words.append(f"--layout {problem.layout}")
    if problem.batch != 1:
        words.append(f"--batch {problem.batch}")
    return " ".join(words)


def _plain(problem: GemmProblem, name: str) -> bool:
    """Whether sizes, dtype and layout say all that a table's row or a binary depends on."""
    if problem.dtype not in ITEMSIZE or set(problem.layout) - set("nt"):
        return False
    same = GemmProblem.of(
        problem.m, problem.n, problem.k, problem.dtype, problem.layout, batch=problem.batch,
        precision="tf32" if name == "tf32" else "",
    )  # fmt: skip
    return problem_key(same) == problem_key(problem) and problem.epilogue.plain

"""Every variant and tile that was ever scored, numbered, as columns of numbers: candidates become an array by a look-up each.

A process meets a few hundred of them. Numbers are given in order of first mention and never change.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heuristics.traits import traits_of
from kernel_zoo.spec import SPLITS, TileConfig

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]

TILED: Final = 0
VECTOR: Final = 1  # a gemv
OPAQUE: Final = 2  # launches by itself: no tile

_ROOM: Final = 256
_KEPT: Final = 1 << 14  # tile objects known by their identity
_SPACES: Final = 1 << 12  # tuples of tiles known by theirs


class Columns(NamedTuple):
    """What is known of each pair from the tile and the variant's name alone, a column each. Flags are 0 or 1."""

    block_m: Array
    block_n: Array
    block_k: Array
    group_m: Array
    split_k: Array
    warps: Array
    stages: Array
    swap: Array
    tma: Array  # loads through descriptors
    resident: Array  # programs stay and walk over tiles
    flatten: Array
    sole: Array  # a program has its SM to itself
    hands: Array  # tiles that a program works on by turns
    copies: Array  # what the copy engine cannot take is copied first
    fused: Array  # partial sums are added up by the last program to arrive
    early: Array  # the longest roof in microseconds of what starts while the launch before it ends
    variant: Array  # the variant's number in `names`


class Pairs:
    """The numbering. Safe to use from several threads: a number is handed out after its row is written."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.pairs: list[tuple[str, TileConfig | None]] = []
        self.tiles: list[str] = []  # as a table corrects them
        self._numbers: dict[tuple[str, TileConfig | None], int] = {}
        self._by_id: dict[
            str, dict[int, int]
        ] = {}  # variant, then the tile object's id: hashing a tile costs as much as scoring it
        self._alive: list[TileConfig] = []  # the objects in _by_id, so that their ids stay theirs
        self._spaces: dict[tuple[str, int], tuple[tuple[TileConfig | None, ...], Rows]] = {}  # alive for the same reason
        self._joined: dict[tuple[tuple[str, int], ...], tuple[object, Rows]] = {}  # the spaces are kept alive beside their rows
        self._rows = np.empty((_ROOM, len(Columns._fields)))
        self._kinds = np.empty(_ROOM, np.int8)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.pairs)

    def numbers(self, variant: str, tiles: Sequence[TileConfig | None]) -> list[int]:
        """The tiles' numbers, with that variant."""
        known = self._by_id.get(variant, {})
        try:
            return [known[id(tile)] for tile in tiles]
        except KeyError:
            return [known[id(tile)] if id(tile) in known else self._number(variant, tile) for tile in tiles]

    def rows(self, variant: str, tiles: Sequence[TileConfig | None]) -> Rows:
        """The same as an array; it is kept beside a tuple, since kernels make their spaces once."""
        if not isinstance(tiles, tuple):
            return np.array(self.numbers(variant, tiles), np.intp)
        found = self._spaces.get((variant, id(tiles)))
        if found is None:
            found = (tiles, np.array(self.numbers(variant, tiles), np.intp))
            if len(self._spaces) >= _SPACES:
                self._spaces = {}
            self._spaces[variant, id(tiles)] = found
        return found[1]

    def joined(self, spaces: Sequence[tuple[str, Sequence[TileConfig | None]]]) -> Rows:
        """The rows of several variants' spaces, one after the other. They are kept beside tuples, as those of one space are."""
        if not spaces:
            return np.empty(0, np.intp)
        key = tuple([(name, id(tiles)) for name, tiles in spaces])
        found = self._joined.get(key)
        if found is None:
            rows = np.concatenate([self.rows(name, tiles) for name, tiles in spaces])
            found = (spaces, rows)
            if not [tiles for _, tiles in spaces if not isinstance(tiles, tuple)]:
                if len(self._joined) >= _SPACES:
                    self._joined = {}
                self._joined[key] = found
        return found[1]

    def among(self, numbers: Rows, some: Rows) -> Flags:
        """Which of the numbers are among some others."""
        listed = np.zeros(len(self.pairs), np.bool_)
        listed[some] = True
        return listed.take(numbers)

    def columns(self, start: int, stop: int) -> Columns:
        """The columns of the pairs from one number up to another."""
        return Columns(*self._rows[start:stop].T)

    def take(self, numbers: Rows) -> Columns:
        """The columns of those pairs."""
        return Columns(*self._rows.take(numbers, axis=0).T)

    def kinds(self, numbers: Rows) -> NDArray[np.int8]:
        """TILED, VECTOR or OPAQUE, of each number."""
        return self._kinds.take(numbers)

    def _number(self, variant: str, tile: TileConfig | None) -> int:
        with self._lock:
            number = self._numbers.get((variant, tile))
            if number is None:
                number = self._add(variant, tile)
                for sibling in _siblings(tile):
                    if (variant, sibling) not in self._numbers:
                        self._add(variant, sibling)
            if tile is not None:
                if len(self._alive) >= _KEPT:
                    self._by_id, self._alive = {}, []
                self._alive.append(tile)
            self._by_id.setdefault(variant, {})[id(tile)] = number
            return number

    def _add(self, variant: str, tile: TileConfig | None) -> int:
        number = len(self.pairs)
        if number == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            self._kinds = np.concatenate([self._kinds, np.empty_like(self._kinds)])
        if variant not in self.names:
            self.names.append(variant)
        self._rows[number] = _row(variant, tile, self.names.index(variant))
        self._kinds[number] = OPAQUE if tile is None else VECTOR if traits_of(variant).vector else TILED
        self.tiles.append(corrected_as(tile) if tile is not None else "")
        self.pairs.append((variant, tile))
        self._numbers[variant, tile] = number
        return number


def _siblings(tile: TileConfig | None) -> list[TileConfig]:
    """The same tile with the other split counts. They are met sooner or later, and each new pair is work for every setting."""
    return [replace(tile, split_k=split) for split in SPLITS] if tile is not None and tile.split_k > 1 else []


def corrected_as(tile: TileConfig) -> str:
    """The tile as a table corrects it: what does not matter to a program's own time left out."""
    sides = f"{tile.block_m}x{tile.block_n}x{tile.block_k} w{tile.num_warps} s{tile.num_stages}"
    return sides + "".join(f" {name}{value}" for name, value in tile.knobs if name in ("flatten", "subtile"))


def _row(variant: str, tile: TileConfig | None, number: int) -> tuple[float, ...]:
    if tile is None:
        return (1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, number)
    knobs, traits = dict(tile.knobs), traits_of(variant, tile)
    return (
        tile.block_m, tile.block_n, tile.block_k, tile.group_m, tile.split_k, tile.num_warps, tile.num_stages,
        bool(knobs.get("swap")), traits.tma, traits.resident, bool(knobs.get("flatten")),
        traits.sole, traits.hands, traits.copies, traits.fused, traits.early_us, number,
    )  # fmt: skip


PAIRS: Final = Pairs()

"""The columns in which `tile_cost` keeps what tiles cost, and `cost` takes them up."""

from __future__ import annotations

from typing import Final, NamedTuple

from heuristics.pairs import Array


class TileCosts(NamedTuple):
    """An element per candidate: its tile and what that costs. Times in microseconds, rates in bytes a microsecond.

    The first fields are of several rows each, which are worked on together.
    """

    spans: Array  # rows and columns of the result that it covers; of K, a program's blocks side by side, and one block
    waits: Array  # a k block's time where nothing but latency decides; what one costs beside its traffic and arithmetic
    alone: Array  # of a program alone on its SM: the rate it draws from L2; the share of its ends that later tiles pay
    shared: Array  # ... and where others ask too, and a neighbour's main loop hides some of the ends
    group_m: Array
    split_k: Array
    swap: Array
    fit: Array  # programs an SM holds
    work: Array  # a k block's arithmetic and shared memory traffic, to the power of `overlap`
    traffic_a: Array  # its bytes of A from L2
    traffic_b: Array
    traffic: Array  # both, where lines have a pitch that costs nothing
    issue: Array  # issuing its loads through pointers
    together: Array  # the rate all SMs draw
    ends: Array  # a program's first block and its store, beside the block's traffic
    filled: Array  # ... and with `traffic`
    memory: Array  # the rate of device memory
    partial: Array  # the rate at which partial sums come from L2
    launch: Array
    begun: Array  # a launch that starts while the one before it ends
    overlap: Array
    inverse: Array  # of overlap
    wait: Array  # the last arriver's for the others' partial sums; a launch ahead that copies nothing
    second: Array  # a second launch that adds up nothing; 0 where there is none
    arrive: Array  # a last arriver's time for the partial sums of a tile, and its result; 0 where there is none
    tail: Array  # what a k block that the matrices end in adds
    hands: Array  # tiles that a program works on by turns; 0 where that is one
    copies: Array  # operands are copied first where the copy engine cannot take them
    early: Array  # the longest roof of what starts while the launch before it ends
    factor: Array  # on the whole time


WIDTH: Final = len(TileCosts._fields) + 6  # rows of all its fields


class StreamCosts(NamedTuple):
    """The same of a gemv, which streams one operand past a few rows of the other."""

    block_n: Array  # lines of the streamed operand that it covers
    range_k: Array
    split_k: Array
    threads: Array
    each: Array  # elements of a block that a thread holds
    held: Array  # programs that an SM has threads for
    work: Array  # a block's arithmetic, for each of the few rows
    traffic: Array  # its time on the way from L2 where one SM asks, to be multiplied by the SMs that ask
    waste: Array  # bytes fetched over bytes used
    tree: Array  # adding up a block's products, for each row
    second: Array  # as a tile's
    early: Array
    factor: Array


def by_field(found: Array) -> TileCosts:
    """The fields of a matrix."""
    return TileCosts(found[:4], found[4:6], found[6:8], found[8:10], *found[10:])

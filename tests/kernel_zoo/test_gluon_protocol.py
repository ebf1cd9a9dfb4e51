"""The barrier protocol of the warp-specialised kernels: their own source, run on a model of barriers, copies and products.

The kernels' functions run as they are, with stand-ins for Gluon: at every barrier, copy and product the thread hands over to a
scheduler that picks, at random, who goes on and which copy lands. A copy into a slot that is still read or still filled, a product
of blocks that are not those of its tile and its place in K, a tile that is missing, and a deadlock all fail.
"""

import random
import threading
from types import FunctionType, SimpleNamespace

import pytest

from kernel_zoo.kernels import _gluon, ping_pong, warp_specialised


class Machine:
    """Tasks that go on one at a time, and copies that land some time after they were asked for."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.back = threading.Semaphore(0)
        self.tasks, self.copies, self.stored, self.error = {}, [], [], None
        self.current = None

    def start(self, name, function, *arguments):
        task = SimpleNamespace(name=name, go=threading.Semaphore(0), ready=lambda: True, done=False, under_way=[])

        def body():
            task.go.acquire()
            try:
                function(*arguments)
                assert not task.under_way, f"{name} ended with products under way"
            except BaseException as error:  # shown by the scheduler's thread
                self.error = self.error or error
            task.done = True
            self.back.release()

        self.tasks[name] = task
        threading.Thread(target=body, daemon=True).start()

    def pause(self, ready=lambda: True):
        task = self.current
        task.ready = ready
        self.back.release()
        task.go.acquire()

    def run(self):
        while self.error is None and not all(task.done for task in self.tasks.values()):
            choices = [task for task in self.tasks.values() if not task.done and task.ready()] + self.copies
            assert choices, f"deadlock: {[task.name for task in self.tasks.values() if not task.done]} wait"
            chosen = self.random.choice(choices)
            if chosen in self.copies:
                self.copies.remove(chosen)
                chosen.land()
                continue
            self.current = chosen
            chosen.go.release()
            self.back.acquire()
        if self.error is not None:
            raise self.error
        assert not self.copies, "copies that nobody waited for"


class Barrier:
    def __init__(self, arrivals):
        self.arrivals = self.missing = arrivals
        self.phase = self.bytes = 0

    def settle(self):
        assert self.missing >= 0, "more arrivals than the barrier has"
        if self.missing == 0 and self.bytes == 0:
            self.missing, self.phase = self.arrivals, self.phase + 1


class Slot:
    def __init__(self):
        self.content, self.filling, self.readers = None, False, 0

    def permute(self, order):
        assert order == (1, 0)
        return self


class Many(list):
    index = list.__getitem__


def stand_ins(machine, program, programs):
    """(gl, hopper) as the kernels' functions use them."""

    def wait(bar, parity):
        machine.pause(lambda: bar.phase & 1 != parity)

    def expect(bar, size):
        bar.bytes += size
        bar.missing -= 1
        bar.settle()
        machine.pause()

    def arrive(bar, count):
        bar.missing -= count
        bar.settle()
        machine.pause()

    def copy(desc, place, bar, slot):
        assert not slot.filling, "two copies into one slot"
        assert not slot.readers, "a slot is overwritten while it is read"
        slot.filling, slot.content = True, None

        def land():
            slot.filling, slot.content = False, (desc.name, *place)
            bar.bytes -= desc.block_type.nbytes
            bar.settle()

        machine.copies.append(SimpleNamespace(land=land))
        machine.pause()

    def multiply(a, b, acc, use_acc, is_async):
        assert is_async
        assert not any(slot.filling for slot in (a, b)), "a slot is read before it has arrived"
        a.readers, b.readers = a.readers + 1, b.readers + 1
        machine.current.under_way.append((a, b))
        started = ([*acc] if use_acc else []) + [(a.content, b.content)]
        machine.pause()
        return started

    def await_products(num_outstanding, deps):
        while len(machine.current.under_way) > num_outstanding:
            for slot in machine.current.under_way.pop(0):
                slot.readers -= 1
        machine.pause()
        return deps[0] if len(deps) == 1 else deps

    mbarrier = SimpleNamespace(wait=wait, expect=expect, arrive=arrive)
    tma = SimpleNamespace(async_copy_global_to_shared=copy, store_wait=lambda pendings: None)
    gl = SimpleNamespace(
        cdiv=lambda x, y: -(-x // y), program_id=lambda axis: program, num_programs=lambda axis: programs, static_range=range,
        float32=None, zeros=lambda shape, dtype, layout: [], NVMMADistributedLayout=lambda *sizes: None,
    )  # fmt: skip
    hopper = SimpleNamespace(
        mbarrier=mbarrier, tma=tma, warpgroup_mma=multiply, warpgroup_mma_wait=await_products, warpgroup_mma_init=lambda acc: acc
    )
    return gl, hopper


def functions(machine, program, programs):
    """The kernels' own functions over the stand-ins; storing a tile notes what it was made of."""
    gl, hopper = stand_ins(machine, program, programs)
    scope = {"gl": gl, "hopper": hopper, "min": min, "range": range, "len": len}
    for module in (_gluon, warp_specialised, ping_pong):
        for name, value in vars(module).items():
            if callable(getattr(value, "is_gluon", None)) and value.is_gluon():
                scope[name] = FunctionType(value.fn.__code__, scope, name)

    def store_tile(sums, matrix, row, col, *rest):
        assert not machine.current.under_way, "a tile is stored before its products are through"
        machine.stored.append((matrix, row, col, sums))
        machine.pause()

    scope["store_tile"] = store_tile
    return scope


def descriptor(name, rows, cols):
    return SimpleNamespace(
        name=name, block_type=SimpleNamespace(nbytes=2 * rows * cols), dtype=SimpleNamespace(primitive_bitwidth=16)
    )


#: How many lines the matrices of a batch lie apart: A's rows, and B's columns, since it is stored transposed.
LINES = (10_000, 100_000)


def ring(count):
    return Many(Slot() for _ in range(count))


def simulate(family, sides, stages, tiles_m, tiles_n, k_blocks, program, programs, seed, batch=1):
    build = family[sides]
    block_m, block_n, block_k = sides
    alternate = build.parts == 1
    rest_n = block_n - build.first_n
    machine = Machine(seed)
    scope = functions(machine, program, programs)
    a, b = descriptor("A", block_m // build.parts, block_k), descriptor("B", block_k, build.first_n)
    b_rest = descriptor("B", block_k, rest_n) if rest_n else None
    a_ring, b_ring, rest_ring = ring(stages * build.parts), ring(stages), ring(stages) if rest_n else None
    full = Many(Barrier(1) for _ in range(stages))
    empty = Many(Barrier(build.parts) for _ in range(stages))
    order = Many(Barrier(1) for _ in range(2))
    sizes = (batch, tiles_m * block_m - 5, tiles_n * block_n - 3, k_blocks * block_k - 1, 2)
    machine.start(
        "producer", scope["produce"], a, b, b_rest, a_ring, b_ring, rest_ring, full, empty, *sizes, *LINES,
        *sides, stages, build.parts, build.first_n, False, True,
    )  # fmt: skip
    common = (*sizes, 0, 0, 0, None, None, *sides, build.first_n, stages)
    epilogue = (64, min(64, rest_n), 2, 1, False, True, True, False, False, "none", "none", False)
    for who in range(build.consumers):
        given = ((None,) * 4, a_ring, b_ring, rest_ring, full, empty)
        if alternate:
            arguments = (*given, order, who, *common, *epilogue)
            machine.start(f"consumer {who}", scope["consume_alternately"], *arguments)
        else:
            machine.start(f"consumer {who}", scope["consume"], *given, who, *common, build.parts, *epilogue)
    machine.run()
    expected = []
    for index in range(program, batch * tiles_m * tiles_n, programs):
        matrix, within = divmod(index, tiles_m * tiles_n)
        first_a, first_b = matrix * LINES[0], matrix * LINES[1]
        tile_m, tile_n = _gluon.grouped_tile.fn(within, tiles_m, tiles_n, 2)
        for part in range(build.parts):
            row, col = tile_m * block_m + part * (block_m // build.parts), tile_n * block_n
            starts = (col, col + build.first_n) if rest_n else (col,)
            ks = [k * block_k for k in range(k_blocks)]
            sums = tuple([(("A", first_a + row, k), ("B", first_b + start, k)) for k in ks] for start in starts)
            expected.append((matrix, row, col, sums))
    assert sorted(machine.stored) == sorted(expected)


CASES = [
    (family, sides, stages)
    for family in (warp_specialised.FAMILY, ping_pong.FAMILY)
    for sides, build in family.items()
    for stages in {*build.stages, 2}
]


@pytest.mark.parametrize(
    ("family", "sides", "stages"), CASES, ids=[f"{'-'.join(map(str, sides))}-p{f[sides].parts}-s{s}" for f, sides, s in CASES]
)
def test_every_tile_gets_its_own_blocks_and_nobody_waits_for_ever(family, sides, stages):
    for seed, (tiles_m, tiles_n, programs) in enumerate(
        [(1, 1, 1), (1, 2, 2), (3, 1, 1), (2, 3, 1), (3, 3, 2), (5, 1, 4), (1, 2, 5)]
    ):
        for k_blocks in (1, 2, stages - 1, stages, stages + 1, 2 * stages + 1):
            program = seed % programs
            simulate(family, sides, stages, tiles_m, tiles_n, max(k_blocks, 1), program, programs, seed)


@pytest.mark.parametrize("seed", range(60))
def test_in_whatever_order_things_happen(seed):
    draw = random.Random(seed)
    family, sides, stages = draw.choice(CASES)
    simulate(
        family,
        sides,
        stages,
        draw.randint(1, 4),
        draw.randint(1, 3),
        draw.randint(1, 9),
        0,
        draw.randint(1, 3),
        seed,
        draw.randint(1, 3),
    )

"""The cut of stream_k, and what programs that share a tile do: device functions in Gluon, beside those of `_gluon`.

Which blocks of which tiles a program computes follows from its number and four sizes by the arithmetic below, which the producer,
every consumer and the tests share. Every function of it is plain Python too.
"""

# mypy: disable-error-code="no-untyped-def,assignment"

from kernel_zoo.kernels._gluon import fetch, parity_of, pieces_of, slot_of, store_pieces, tile_corner
from kernel_zoo.triton_compat import gl, gluon, hopper, tl


@gluon.jit
def range_start(program, programs, streamed_blocks):
    """The first block of a program's range of the line of streamed blocks; also where the range of the one before it ends."""
    return program * streamed_blocks // programs


@gluon.jit
def program_at(block, programs, streamed_blocks):
    """The program whose range holds a block of the line."""
    return ((block + 1) * programs - 1) // streamed_blocks


@gluon.jit
def items_of(program, programs, tiles, k_blocks, whole):
    """How many items a program has: the tiles that its range touches, then one of each whole wave. Every range holds a block."""
    streamed_blocks = (tiles - whole) * k_blocks
    first = range_start(program, programs, streamed_blocks) // k_blocks
    last = (range_start(program + 1, programs, streamed_blocks) - 1) // k_blocks
    return last - first + 1 + whole // programs


@gluon.jit
def item_at(item, program, programs, tiles, k_blocks, whole):
    """(tile, first block of K, one past the last) of a program's item. Streamed tiles are those from `whole` on.

    They come first: partial sums are then written, and added up, beside other programs' products instead of all at the end.
    """
    streamed_blocks = (tiles - whole) * k_blocks
    start = range_start(program, programs, streamed_blocks)
    end = range_start(program + 1, programs, streamed_blocks)
    tile = start // k_blocks + item
    over = item - ((end - 1) // k_blocks - start // k_blocks + 1)  # items beyond the streamed ones
    if over < 0:
        index = whole + tile
        first = max(start - tile * k_blocks, 0)
        last = min(end - tile * k_blocks, k_blocks)
    else:
        index = program + over * programs
        first = index * 0
        last = first + k_blocks
    return index, first, last


@gluon.jit
def sharers_of(tile, programs, tiles, k_blocks, whole):
    """(first, last) program that has blocks of a streamed tile; all between have some too."""
    streamed_blocks = (tiles - whole) * k_blocks
    start = (tile - whole) * k_blocks
    return program_at(start, programs, streamed_blocks), program_at(start + k_blocks - 1, programs, streamed_blocks)


@gluon.jit
def place_of(program, leads):
    """Where a program keeps its partial sums of a tile. It has two places: one for the tile that it leads, whose first block is
    its, and with which its range ends; one for the tile that its range begins in.
    """
    return 2 * program + leads


@gluon.jit
def produce_stream(
    A, B, B_REST, a_ring, b_ring, rest_ring, full, empty, M, N, K, group_m, whole,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    FIRST_N: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The producer: `_gluon.produce` over items."""
    WHOLE_BYTES: gl.constexpr = PARTS * A.block_type.nbytes + B.block_type.nbytes
    SLOT_BYTES: gl.constexpr = WHOLE_BYTES if B_REST is None else (BLOCK_M + BLOCK_N) * BLOCK_K * (A.dtype.primitive_bitwidth // 8)
    program, programs = gl.program_id(0), gl.num_programs(0)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    k_blocks = gl.cdiv(K, BLOCK_K)
    count = 0
    for item in range(items_of(program, programs, tiles, k_blocks, whole)):
        index, first, last = item_at(item, program, programs, tiles, k_blocks, whole)
        row, col = tile_corner(index, M, N, group_m, BLOCK_M, BLOCK_N)
        for block in range(count, count + last - first):
            slot = slot_of(block, STAGES)
            hopper.mbarrier.wait(empty.index(slot), parity_of(block, STAGES) ^ 1)
            bar = full.index(slot)
            hopper.mbarrier.expect(bar, SLOT_BYTES)
            k = (first + block - count) * BLOCK_K
            for part in gl.static_range(PARTS):
                fetch(A, row + part * (BLOCK_M // PARTS), k, bar, a_ring.index(slot * PARTS + part), A_TRANSPOSED)
            fetch(B, k, col, bar, b_ring.index(slot), B_TRANSPOSED)
            if B_REST is not None:
                fetch(B_REST, k, col + FIRST_N, bar, rest_ring.index(slot), B_TRANSPOSED)
        count += last - first


@gluon.jit
def by_thread(piece, COLS: gl.constexpr):
    """A piece of 64 rows with a row for each of the 128 threads: what the thread holds, in the order of its registers."""
    spread = piece.reshape(4, 2, 8, COLS // 8, 4, 2).permute(0, 2, 4, 3, 1, 5).reshape(128, COLS // 2)
    return gl.convert_layout(spread, gl.BlockedLayout([1, COLS // 2], [32, 1], [4, 1], [1, 0]), assert_trivial=True)


@gluon.jit
def from_thread(spread, COLS: gl.constexpr):
    """The piece of `by_thread`."""
    piece = spread.reshape(4, 8, 4, COLS // 8, 2, 2).permute(0, 4, 1, 3, 2, 5).reshape(64, COLS)
    return gl.convert_layout(piece, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16]), assert_trivial=True)


@gluon.jit
def places_in_memory(COLS: gl.constexpr):
    """Where the elements of a piece `by_thread` are kept: 16 bytes of a thread beside those of the next, so that warps write lines."""
    layout: gl.constexpr = gl.BlockedLayout([1, COLS // 2], [32, 1], [4, 1], [1, 0])
    thread = gl.arange(0, 128, gl.SliceLayout(1, layout))
    element = gl.arange(0, COLS // 2, gl.SliceLayout(0, layout))
    return (thread * 4)[:, None] + (element // 4 * 512 + element % 4)[None, :]


@gluon.jit
def all_pieces(sums, COLS: gl.constexpr):
    """The pieces of a consumer's part of a tile, in the order in which they are stored."""
    if len(sums) == 1:
        pieces = pieces_of(sums[0], COLS)
    else:
        pieces = pieces_of(sums[0], COLS) + pieces_of(sums[1], COLS)
    return pieces


@gluon.jit
def keep_partial(sums, kept, COLS: gl.constexpr):
    """Write a consumer's partial sums whole, in fp32, from `kept` on."""
    pieces = all_pieces(sums, COLS)
    places = places_in_memory(COLS)
    for i in gl.static_range(len(pieces)):
        gl.store(kept + i * (64 * COLS) + places, by_thread(pieces[i], COLS))


@gluon.jit
def count_in(counter, ADD: gl.constexpr, SEM: gl.constexpr):
    """How many have arrived before, as all threads of a consumer see it."""
    return gl.atomic_add(counter, ADD, sem=SEM, scope="gpu")


@gluon.jit
def hand_in(sums, WS, counter, program, first, others, part, PARTS: gl.constexpr, SIZE: gl.constexpr, COLS: gl.constexpr):
    """How many others had arrived when this consumer did: where it is all of them, it has to finish the tile. It has kept its own
    partial sums unless that was clear before: whoever leads a tile comes to it last, as a rule, and asks first.

    Why the sum then sees every partial (PTX's memory model): all threads' stores precede the barrier of the consumer's warps, and
    that precedes the count, which one thread makes with atom.acq_rel.gpu. Causality is transitive: the count releases the stores of
    them all. Counts of one word are read-modify-writes, a chain whose last, or the question after it, acquires what all before it
    released. Its value reaches the consumer's other threads through shared memory and a barrier, and only then do they load, past
    L1.
    """
    arrived = others * 0
    if first == 0:
        arrived = count_in(counter, 0, "acquire")
    if arrived != others:
        place = place_of(program, (first == 0).to(gl.int32))
        keep_partial(sums, WS + (place * PARTS + part) * SIZE, COLS)
        tl.debug_barrier()
        arrived = count_in(counter, 1, "acq_rel")
    if arrived == others:
        gl.store(counter, 0)
    return arrived


@gluon.jit
def finish_tile(
    sums, WS, program, leader, end, part, row, col, OUT, staging, scalars, reads, M, N, stride_om, stride_on,
    PARTS: gl.constexpr, SIZE: gl.constexpr, ROWS: gl.constexpr, FIRST_N: gl.constexpr, COLS: gl.constexpr, BUFFERS: gl.constexpr,
    OUT_TMA: gl.constexpr, HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Add up the partial sums of programs leader .. end - 1 in that order, which is K's, a piece at a time; finish and store them.

    The program's own are still in registers, and take their turn from there: the bits do not depend on who finishes. A tile that
    is nobody else's goes the same way. Two partials are on their way at a time.
    """
    pieces = all_pieces(sums, COLS)
    places = places_in_memory(COLS)
    layout: gl.constexpr = gl.BlockedLayout([1, COLS // 2], [32, 1], [4, 1], [1, 0])
    none = gl.full([128, COLS // 2], -0.0, gl.float32, layout)  # plus x is x, whichever zero x may be
    DOWN: gl.constexpr = ROWS // 64
    for i in gl.static_range(len(pieces)):
        own = by_thread(pieces[i], COLS)
        kept = WS + part * SIZE + i * (64 * COLS) + places
        total = gl.full([128, COLS // 2], -0.0, gl.float32, layout)
        for who in range(leader, end, 2):
            one = gl.load(
                kept + place_of(who, (who == leader).to(gl.int32)) * (PARTS * SIZE),
                mask=who != program, other=own, cache_modifier=".cg",
            )  # fmt: skip
            two = gl.load(
                kept + place_of(who + 1, 0) * (PARTS * SIZE), mask=(who + 1 != program) & (who + 1 < end),
                other=gl.where(who + 1 == program, own, none), cache_modifier=".cg",
            )  # fmt: skip
            total = total + one + two
        store_pieces(
            from_thread(total, COLS), row + i % DOWN * 64, col + i // DOWN * COLS, OUT, staging, part * BUFFERS, scalars, reads,
            M, N, stride_om, stride_on, 64, COLS, i, BUFFERS, OUT_TMA, HAS_C, BIAS, ACTIVATION, WIDE,
        )  # fmt: skip

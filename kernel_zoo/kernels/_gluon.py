"""Device functions shared by the warp-specialised kernels, in Gluon: the ring of slots, its producer, the products, the epilogue.

A program is a producer warp and consumers of four warps. The producer asks the copy engine for the blocks of A and B, one slot of
a ring after the other; `full` barriers say that a slot has arrived, `empty` barriers that its consumers are through with it. Every
side counts the blocks it has met since the program began, and a slot and a barrier's parity follow from that count alone
(`slot_of`, `parity_of`): nothing else is carried from block to block. Gluon's front end takes a plain `x = y` for another name of
the same value, so that in a loop `x` would not be carried; a test keeps such assignments out of these files.
"""

# mypy: disable-error-code="no-untyped-def,assignment"

from kernel_zoo.kernels._device import finish
from kernel_zoo.triton_compat import gl, gluon, hopper

#: Registers of a thread: of a consumer beside another, of one of three, of the producer.
PAIR_REGISTERS = gl.constexpr(240)
TRIO_REGISTERS = gl.constexpr(160)
PRODUCER_REGISTERS = gl.constexpr(24)


@gluon.jit
def slot_of(count, STAGES: gl.constexpr):
    """The ring's slot of the count-th block."""
    return count % STAGES


@gluon.jit
def parity_of(count, STAGES: gl.constexpr):
    """The parity of the barrier phase that the count-th block completes: how often the ring went round, odd or even."""
    return (count // STAGES) & 1


@gluon.jit
def grouped_tile(index, tiles_m, tiles_n, group_m):
    """The (row, column) of the index-th tile: `_device.tile_order` with a group that is known at run time only.

    A negative group is walked there and back: every second band of |group_m| tile rows from right to left, so that a band begins
    with the columns of B that the one before it left in L2 (the turn of a Hilbert curve, without its small steps).
    """
    band_rows = max(group_m, -group_m)
    band_size = band_rows * tiles_n
    first = (index // band_size) * band_rows
    rows = min(tiles_m - first, band_rows)
    within = index % band_size
    forth = within // rows
    back = (group_m < 0) & ((index // band_size) % 2 == 1)
    column = forth + back * (tiles_n - 1 - 2 * forth)
    return first + within % rows, column


@gluon.jit
def tile_corner(index, M, N, group_m, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """The index-th tile's matrix in the batch, and its first row and column there. One matrix after the other."""
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    tile_m, tile_n = grouped_tile(index % (tiles_m * tiles_n), tiles_m, tiles_n, group_m)
    return index // (tiles_m * tiles_n), tile_m * BLOCK_M, tile_n * BLOCK_N


@gluon.jit
def ring(desc, SLOTS: gl.constexpr):
    """Shared memory for that many blocks of a descriptor."""
    return gl.allocate_shared_memory(desc.dtype, [SLOTS] + desc.block_type.shape, desc.layout)  # noqa: RUF005


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Barriers whose phases complete after that many arrivals each."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        hopper.mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@gluon.jit
def staging_buffers(OUT, COUNT: gl.constexpr, COLS: gl.constexpr, OUT_TMA: gl.constexpr, OUT_TRANSPOSED: gl.constexpr):
    """Shared memory for pieces of the result, of 64 rows and COLS columns, laid as OUT's descriptor reads them."""
    dtype: gl.constexpr = OUT.dtype if OUT_TMA else OUT.dtype.element_ty
    shape: gl.constexpr = [COLS, 64] if OUT_TRANSPOSED else [64, COLS]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(shape, dtype)
    return gl.allocate_shared_memory(dtype, [COUNT, shape[0], shape[1]], layout)


@gluon.jit
def fetch(desc, row, col, first_line, bar, slot, TRANSPOSED: gl.constexpr):
    """Ask for the block at (row, col) of the matrix whose lines begin at the descriptor's line `first_line`.

    TRANSPOSED: it is stored (cols, rows). What lies outside the descriptor arrives as 0.
    """
    if TRANSPOSED:
        hopper.tma.async_copy_global_to_shared(desc, [col + first_line, row], bar, slot)
    else:
        hopper.tma.async_copy_global_to_shared(desc, [row + first_line, col], bar, slot)


@gluon.jit
def produce(
    A, B, B_REST, a_ring, b_ring, rest_ring, full, empty, batch, M, N, K, group_m, a_lines, b_lines,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    FIRST_N: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The producer: all blocks of all of the program's tiles in the order in which they are consumed.

    A batch's matrices lie a_lines and b_lines lines apart under one descriptor. A's rows come in PARTS boxes, B's columns in one of
    FIRST_N and, where there is B_REST, one of the rest. Every copy that was asked for is waited for by a consumer, so the producer
    may end with copies under way.
    """
    WHOLE_BYTES: gl.constexpr = PARTS * A.block_type.nbytes + B.block_type.nbytes
    SLOT_BYTES: gl.constexpr = WHOLE_BYTES if B_REST is None else (BLOCK_M + BLOCK_N) * BLOCK_K * (A.dtype.primitive_bitwidth // 8)
    tiles = batch * gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    k_blocks = gl.cdiv(K, BLOCK_K)
    count = 0
    for index in range(gl.program_id(0), tiles, gl.num_programs(0)):
        matrix, row, col = tile_corner(index, M, N, group_m, BLOCK_M, BLOCK_N)
        for block in range(count, count + k_blocks):
            slot = slot_of(block, STAGES)
            # A new barrier counts as having completed a phase of odd parity: the first round waits for nothing.
            hopper.mbarrier.wait(empty.index(slot), parity_of(block, STAGES) ^ 1)
            bar = full.index(slot)
            hopper.mbarrier.expect(bar, SLOT_BYTES)
            k = (block - count) * BLOCK_K
            for part in gl.static_range(PARTS):
                a_row = row + part * (BLOCK_M // PARTS)
                fetch(A, a_row, k, matrix * a_lines, bar, a_ring.index(slot * PARTS + part), A_TRANSPOSED)
            fetch(B, k, col, matrix * b_lines, bar, b_ring.index(slot), B_TRANSPOSED)
            if B_REST is not None:
                fetch(B_REST, k, col + FIRST_N, matrix * b_lines, bar, rest_ring.index(slot), B_TRANSPOSED)
        count += k_blocks


@gluon.jit
def block_of(buffers, index, TRANSPOSED: gl.constexpr):
    """A slot's block as the matrix has it; TRANSPOSED: it is stored the other way round."""
    block = buffers.index(index)
    if TRANSPOSED:
        block = block.permute((1, 0))
    return block


@gluon.jit
def multiply_slot(
    a_ring, b_ring, rest_ring, slot, sums, part,
    PARTS: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, ADD: gl.constexpr,
):  # fmt: skip
    """Start a slot's products, a group for each accumulator; ADD: on top of what the accumulators hold."""
    a = block_of(a_ring, slot * PARTS + part, A_TRANSPOSED)
    first = hopper.warpgroup_mma(a, block_of(b_ring, slot, B_TRANSPOSED), sums[0], use_acc=ADD, is_async=True)
    if rest_ring is None:
        started = (first,)
    else:
        rest = hopper.warpgroup_mma(a, block_of(rest_ring, slot, B_TRANSPOSED), sums[1], use_acc=ADD, is_async=True)
        started = (first, rest)
    return started


@gluon.jit
def await_products(sums, UNDER_WAY: gl.constexpr):
    """The accumulators once all but UNDER_WAY groups of products are through."""
    if len(sums) == 1:
        through = (hopper.warpgroup_mma_wait(num_outstanding=UNDER_WAY, deps=(sums[0],)),)
    else:
        through = hopper.warpgroup_mma_wait(num_outstanding=UNDER_WAY, deps=(sums[0], sums[1]))
    return through


@gluon.jit
def zeros_for(ROWS: gl.constexpr, COLS: gl.constexpr):
    """An accumulator that the first products overwrite."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    return hopper.warpgroup_mma_init(gl.zeros((ROWS, COLS), gl.float32, layout))


@gluon.jit
def start_products(
    a_ring, b_ring, rest_ring, full, empty, count, k_blocks, part,
    ROWS: gl.constexpr, FIRST_N: gl.constexpr, REST_N: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Start all products of a tile, whose blocks are those from `count` on; the last block's are under way at the return.

    A slot is handed back once the products that read it are through, while those of the next run.
    """
    if rest_ring is None:
        sums = (zeros_for(ROWS, FIRST_N),)
    else:
        sums = (zeros_for(ROWS, FIRST_N), zeros_for(ROWS, REST_N))
    hopper.mbarrier.wait(full.index(slot_of(count, STAGES)), parity_of(count, STAGES))
    sums = multiply_slot(a_ring, b_ring, rest_ring, slot_of(count, STAGES), sums, part, PARTS, A_TRANSPOSED, B_TRANSPOSED, False)
    for block in range(count + 1, count + k_blocks):
        slot = slot_of(block, STAGES)
        hopper.mbarrier.wait(full.index(slot), parity_of(block, STAGES))
        sums = multiply_slot(a_ring, b_ring, rest_ring, slot, sums, part, PARTS, A_TRANSPOSED, B_TRANSPOSED, True)
        through = await_products(sums, len(sums))
        hopper.mbarrier.arrive(empty.index(slot_of(block - 1, STAGES)), count=1)
        if rest_ring is None:
            sums = (hopper.warpgroup_mma_init(through[0]),)
        else:
            sums = (hopper.warpgroup_mma_init(through[0]), hopper.warpgroup_mma_init(through[1]))
    return sums


@gluon.jit
def finish_products(sums, empty, count, STAGES: gl.constexpr):
    """The finished accumulators; hands back the last slot, that of block `count` - 1."""
    through = await_products(sums, 0)
    hopper.mbarrier.arrive(empty.index(slot_of(count - 1, STAGES)), count=1)
    return through


@gluon.jit
def pieces_of(acc, COLS: gl.constexpr):
    """An accumulator's pieces of 64 rows and COLS columns, a column of pieces after the other. Every element keeps its register."""
    if acc.shape[1] > COLS:
        left, right = acc.reshape(acc.shape[0], 2, acc.shape[1] // 2).permute(0, 2, 1).split()
        pieces = pieces_of(left, COLS) + pieces_of(right, COLS)
    elif acc.shape[0] > 64:
        upper, lower = acc.reshape(2, acc.shape[0] // 2, acc.shape[1]).permute(1, 2, 0).split()
        pieces = pieces_of(upper, COLS) + pieces_of(lower, COLS)
    else:
        pieces = (gl.convert_layout(acc, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16]), assert_trivial=True),)
    return pieces


@gluon.jit
def store_pieces(
    pieces, matrix, row, col, OUT, out_lines, staging, first_buffer, scalars, reads, M, N, stride_om, stride_on,
    ROWS: gl.constexpr, COLS: gl.constexpr, BUFFERS: gl.constexpr, GROUP: gl.constexpr, SINCE: gl.constexpr,
    OUT_TMA: gl.constexpr, OUT_TRANSPOSED: gl.constexpr, HAS_C: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
    WIDE: gl.constexpr,
):  # fmt: skip
    """Finish and store pieces of 64 rows and COLS columns, the first at (row, col), GROUP at a time through a ring of buffers.

    The batch's results lie out_lines lines apart under OUT's descriptor; OUT_TRANSPOSED: those lines are columns. A group's buffers
    are written again once the copy engine has read what they held, SINCE of its later orders left aside; the stores themselves are
    not waited for. Where the output cannot be laid under a descriptor, a buffer turns the accumulator's order into one that writes
    whole stretches of a row.
    """
    C, BIAS_PTR = reads[0], reads[1]
    if HAS_C:
        C += matrix.to(gl.int64) * reads[6]
    if BIAS != "none":
        BIAS_PTR += matrix.to(gl.int64) * reads[7]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    by_rows: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    DOWN: gl.constexpr = ROWS // 64
    for first in gl.static_range(0, len(pieces), GROUP):
        if OUT_TMA:
            hopper.tma.store_wait(BUFFERS - GROUP + SINCE)
        for i in gl.static_range(first, first + GROUP):
            piece_row = row + (i % DOWN) * 64
            piece_col = col + (i // DOWN) * COLS
            rows = piece_row + gl.arange(0, 64, gl.SliceLayout(1, layout))
            cols = piece_col + gl.arange(0, COLS, gl.SliceLayout(0, layout))
            if WIDE:
                rows = rows.to(gl.int64)
                cols = cols.to(gl.int64)
            result = finish(
                pieces[i], scalars[0], scalars[1], C, BIAS_PTR, rows, cols, M, N,
                reads[2], reads[3], reads[4], reads[5], HAS_C, BIAS, ACTIVATION, True,
            ).to(staging.dtype)  # fmt: skip
            buffer = staging.index(first_buffer + i % BUFFERS)
            if OUT_TRANSPOSED:
                buffer.permute((1, 0)).store(result)
            else:
                buffer.store(result)
            if not OUT_TMA:
                # The piece's place is one number; the offsets in it are the same for all pieces, and take few registers.
                down = gl.arange(0, 64, gl.SliceLayout(1, by_rows))
                across = gl.arange(0, COLS, gl.SliceLayout(0, by_rows))
                mask = (down < M - piece_row)[:, None] & (across < N - piece_col)[None, :]
                if WIDE:
                    down = down.to(gl.int64)
                    across = across.to(gl.int64)
                corner = OUT + piece_row.to(gl.int64) * stride_om + piece_col.to(gl.int64) * stride_on
                gl.store(corner + down[:, None] * stride_om + across[None, :] * stride_on, buffer.load(by_rows), mask=mask)
        if OUT_TMA:
            hopper.fence_async_shared()
            for i in gl.static_range(first, first + GROUP):
                buffer = staging.index(first_buffer + i % BUFFERS)
                piece_row = row + (i % DOWN) * 64
                piece_col = col + (i // DOWN) * COLS
                if OUT_TRANSPOSED:
                    hopper.tma.async_copy_shared_to_global(OUT, [piece_col + matrix * out_lines, piece_row], buffer)
                else:
                    hopper.tma.async_copy_shared_to_global(OUT, [piece_row + matrix * out_lines, piece_col], buffer)


@gluon.jit
def store_tile(
    sums, matrix, row, col, result, out_lines, part, scalars, reads, M, N, stride_om, stride_on,
    ROWS: gl.constexpr, FIRST_N: gl.constexpr, COLS: gl.constexpr, REST_COLS: gl.constexpr, BUFFERS: gl.constexpr,
    GROUP: gl.constexpr, OUT_TMA: gl.constexpr, OUT_TRANSPOSED: gl.constexpr, HAS_C: gl.constexpr, BIAS: gl.constexpr,
    ACTIVATION: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Finish and store consumer `part`'s sums: of one accumulator, or of two side by side.

    `result` is where they go: the output, the same for pieces of the second accumulator, and the buffers of both. REST_COLS: the
    columns of that one's pieces. Where they are fewer than COLS these have a descriptor for their shape, and each its own buffer.
    """
    OUT, OUT_REST, staging, rest_staging = result[0], result[1], result[2], result[3]
    pieces = pieces_of(sums[0], COLS)
    if REST_COLS == COLS:
        pieces = pieces + pieces_of(sums[1], COLS)
    store_pieces(
        pieces, matrix, row, col, OUT, out_lines, staging, part * BUFFERS, scalars, reads, M, N, stride_om, stride_on,
        ROWS, COLS, BUFFERS, GROUP, 0, OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
    )  # fmt: skip
    if len(sums) == 2 and REST_COLS != COLS:
        target = OUT_REST if OUT_TMA else OUT
        DOWN: gl.constexpr = ROWS // 64
        store_pieces(
            pieces_of(sums[1], REST_COLS), matrix, row, col + FIRST_N, target, out_lines, rest_staging, part * DOWN, scalars, reads,
            M, N, stride_om, stride_on,
            ROWS, REST_COLS, DOWN, DOWN, len(pieces), OUT_TMA, OUT_TRANSPOSED, HAS_C, BIAS, ACTIVATION, WIDE,
        )  # fmt: skip

"""Device functions shared by the GEMM kernels: tile order, the two main loops, rounding, the epilogue.

Everything here is inlined into the kernels that call it. Row and column numbers are int32 unless a kernel's WIDE constant says that
some operand is reached by offsets past 2^31 - 1.
"""

# mypy: disable-error-code="no-untyped-def"

from kernel_zoo.triton_compat import tl, triton


@triton.jit
def follow_launch(DEPENDENT: tl.constexpr):
    """Comes before a kernel's first access to memory: wait for what the launch before it on the stream wrote and read.

    DEPENDENT: it may have been started while that launch was ending, and lets the next one be started likewise (CUDA's programmatic
    dependent launch, from Hopper on), so that starting programs and setting up barriers costs no time of its own.
    """
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def tile_order(index, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """The (row, column) of the index-th tile: GROUP_M tile rows are walked together, so that they share B's columns in L2."""
    group_size = GROUP_M * tiles_n
    first = (index // group_size) * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    within = index % group_size
    return first + within % rows, within // rows


@triton.jit
def round_to_tf32(x):
    """fp32 rounded to TF32's 10-bit mantissa, to nearest, ties away from zero (cvt.rna); the tensor core would truncate."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x == x, rounded, x)


@triton.jit
def multiply_add(a, b, acc, PRECISION: tl.constexpr):
    """acc + a @ b; PRECISION says how fp32 products are formed and is ignored for narrower inputs."""
    if PRECISION == "tf32":
        a = round_to_tf32(a)
        b = round_to_tf32(b)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def load_tile(pointers, row_mask, col_mask, MASK_ROWS: tl.constexpr, MASK_COLS: tl.constexpr):
    """A 2-D tile; rows and columns outside the matrix read as 0. A mask that is not needed costs nothing."""
    if MASK_ROWS and MASK_COLS:
        tile = tl.load(pointers, mask=row_mask[:, None] & col_mask[None, :], other=0.0)
    elif MASK_ROWS:
        tile = tl.load(pointers, mask=row_mask[:, None], other=0.0)
    elif MASK_COLS:
        tile = tl.load(pointers, mask=col_mask[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def pointer_product(
    a_ptr, b_ptr, rows, cols, M, N, K, first_block, last_block,
    stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The fp32 tile A[rows, k] @ B[k, cols] for k blocks first_block .. last_block - 1, through pointers.

    The loop over whole blocks is unmasked along K; a ragged K adds one masked block, taken by whoever owns the last block.
    """
    ks = tl.arange(0, BLOCK_K)
    if WIDE:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        ks = ks.to(tl.int64)
    row_mask = rows < M
    col_mask = cols < N
    step_a = stride_ak * BLOCK_K
    step_b = stride_bk * BLOCK_K
    if WIDE:
        start_a = tl.cast(first_block, tl.int64) * BLOCK_K * stride_ak
        start_b = tl.cast(first_block, tl.int64) * BLOCK_K * stride_bk
    else:
        start_a = first_block * step_a
        start_b = first_block * step_b
    a_ptrs = a_ptr + start_a + rows[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + start_b + ks[:, None] * stride_bk + cols[None, :] * stride_bn
    acc = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
    whole = min(last_block, K // BLOCK_K)
    for _ in range(first_block, whole):
        a = load_tile(a_ptrs, row_mask, row_mask, not EVEN_M, False)
        b = load_tile(b_ptrs, col_mask, col_mask, False, not EVEN_N)
        acc = multiply_add(a, b, acc, PRECISION)
        a_ptrs += step_a
        b_ptrs += step_b
    if not EVEN_K:
        if whole < last_block:
            k_mask = ks < K - whole * BLOCK_K
            a = load_tile(a_ptrs, row_mask, k_mask, not EVEN_M, True)
            b = load_tile(b_ptrs, k_mask, col_mask, True, not EVEN_N)
            acc = multiply_add(a, b, acc, PRECISION)
    return acc


@triton.jit
def load_block(desc, batch, row, col, ROWS: tl.constexpr, COLS: tl.constexpr, BATCHED: tl.constexpr, TRANSPOSED: tl.constexpr):
    """The (ROWS, COLS) tile at (row, col) of a matrix through its descriptor; TRANSPOSED: the matrix is stored (cols, rows)."""
    if TRANSPOSED and BATCHED:
        tile = desc.load([batch, col, row]).reshape(COLS, ROWS).T
    elif TRANSPOSED:
        tile = desc.load([col, row]).T
    elif BATCHED:
        tile = desc.load([batch, row, col]).reshape(ROWS, COLS)
    else:
        tile = desc.load([row, col])
    return tile


@triton.jit
def descriptor_product(
    a_desc, b_desc, batch, row, col, first_block, last_block,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The fp32 tile at (row, col) over k blocks first_block .. last_block - 1, through TMA: what lies outside reads as 0."""
    acc = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
    for block in range(first_block, last_block):
        k = block * BLOCK_K
        a = load_block(a_desc, batch, row, k, BLOCK_M, BLOCK_K, A_BATCHED, A_TRANSPOSED)
        b = load_block(b_desc, batch, k, col, BLOCK_K, BLOCK_N, B_BATCHED, B_TRANSPOSED)
        acc = multiply_add(a, b, acc, PRECISION)
    return acc


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation in fp32. Comparisons are written so that NaN stays NaN (Triton's maximum would drop it)."""
    if ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "leaky_relu":
        x = tl.where(x < 0.0, 0.01 * x, x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # 0.5 * (1 + tanh(u)) = sigmoid(2 u)
        x = x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "silu":
        x = x * sigmoid(x)
    return x


@triton.jit
def finish(
    acc, alpha, beta, c_ptr, bias_ptr, rows, cols, M, N,
    stride_cm, stride_cn, stride_im, stride_in,
    HAS_C: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """activation(alpha * acc + beta * C + bias) in fp32. C and bias point at the batch's own matrix.

    BIAS is "none", "n" (a row vector), "m" (a column vector) or "mn" (a matrix). C is not read where beta is 0.
    """
    row_mask = rows < M
    col_mask = cols < N
    acc = acc * alpha
    if HAS_C:
        c_ptrs = c_ptr + rows[:, None] * stride_cm + cols[None, :] * stride_cn
        acc += beta * load_tile(c_ptrs, row_mask, col_mask, MASK, MASK).to(tl.float32)
    if BIAS == "n":
        acc += tl.load(bias_ptr + cols * stride_in, mask=col_mask, other=0.0).to(tl.float32)[None, :]
    elif BIAS == "m":
        acc += tl.load(bias_ptr + rows * stride_im, mask=row_mask, other=0.0).to(tl.float32)[:, None]
    elif BIAS == "mn":
        bias_ptrs = bias_ptr + rows[:, None] * stride_im + cols[None, :] * stride_in
        acc += load_tile(bias_ptrs, row_mask, col_mask, MASK, MASK).to(tl.float32)
    return activate(acc, ACTIVATION)


@triton.jit
def store_tile(out_ptr, value, rows, cols, M, N, stride_m, stride_n, MASK: tl.constexpr):
    """Round once, to out's type, and store."""
    pointers = out_ptr + rows[:, None] * stride_m + cols[None, :] * stride_n
    value = value.to(out_ptr.dtype.element_ty)
    if MASK:
        tl.store(pointers, value, mask=(rows < M)[:, None] & (cols < N)[None, :])
    else:
        tl.store(pointers, value)

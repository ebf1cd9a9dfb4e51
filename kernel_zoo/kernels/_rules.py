"""Rules several variants have in common: each says in words why a problem or a tile cannot be taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final, TypeVar

from kernel_zoo.spec import FP32_PRECISIONS, INT32_MAX, VECTOR_BYTES, Arch, GemmProblem, Kind, Operand, Refusal, TileConfig

FLOAT_INPUTS: Final = ("fp16", "bf16", "fp32")
EPILOGUE_REGISTERS: Final = 235
TMA_BOX: Final = 256  # a TMA box has at most 256 elements a side

_KINDS: Final = 1 << 10  # of problems, for which a rule's answers are kept

_Rule = TypeVar("_Rule", bound=Callable[..., Any])
_Answer = TypeVar("_Answer")


def last_answer(rule: _Rule) -> _Rule:
    """The rule with its last answer kept: in the call path a choice asks one variant after the other about the same problem.

    What is asked about is frozen and told by its identity. The answer is exchanged whole: threads at most ask again.
    """
    kept: tuple[Any, Any, Any] = (None, (), None)

    @wraps(rule)
    def asked(about: Any, *more: Any) -> Any:
        nonlocal kept
        known, others, answer = kept
        if known is not about or others != more:
            answer = rule(about, *more)
            kept = (about, more, answer)
        return answer

    return asked  # type: ignore[return-value]


def by_kind(rule: Callable[[GemmProblem, Arch], _Answer]) -> Callable[[GemmProblem, Arch], _Answer]:
    """The rule, which looks at nothing of a problem but its kind, with its answers kept by kind and device."""
    kept: dict[tuple[Kind, Arch], _Answer] = {}

    @wraps(rule)
    def asked(problem: GemmProblem, arch: Arch) -> _Answer:
        kind = Kind.of(problem)
        if kind is None:
            return rule(problem, arch)
        answer = kept.get((kind, arch))
        if answer is None:
            if len(kept) >= _KINDS:
                kept.clear()
            answer = kept[kind, arch] = rule(problem, arch)
        return answer

    return asked


def first(refusals: Iterable[Refusal | None]) -> Refusal | None:
    """The first refusal, if any."""
    for refusal in refusals:
        if refusal is not None:
            return refusal
    return None


@last_answer
def supports_float(problem: GemmProblem, arch: Arch) -> Refusal | None:
    """What every Triton kernel of the zoo asks: floating-point types that it sums in fp32, and an Ampere GPU or newer."""
    if problem.dtype not in FLOAT_INPUTS or problem.b.dtype != problem.dtype:
        return Refusal("dtype", f"inputs are {problem.dtype}", "fp16, bf16 or fp32")
    read = (problem.out, problem.epilogue.c, problem.epilogue.bias)
    if any(operand is not None and operand.dtype not in FLOAT_INPUTS for operand in read):
        name, operand = next(item for item in problem.operands.items() if item[1].dtype not in FLOAT_INPUTS)
        return Refusal("dtype", f"{name.lower()} is {operand.dtype}", "fp16, bf16 or fp32")
    if problem.dtype == "fp32" and problem.precision not in FP32_PRECISIONS:
        return Refusal("precision", f"precision is {problem.precision!r}", " or ".join(FP32_PRECISIONS))
    if arch.cc < 80:
        return Refusal("capability", f"{arch.name} has compute capability {arch.cc / 10}", "8.0 or newer")
    return None


def needs_product(problem: GemmProblem) -> Refusal | None:
    """A kernel that always multiplies cannot serve a call with nothing to multiply."""
    return Refusal("empty", "k is 0 or alpha is 0: nothing is multiplied", "a product to compute") if problem.k == 0 else None


def register_limit(tile: TileConfig) -> Refusal | None:
    """The fp32 accumulator must leave room in a thread's 255 registers."""
    per_thread = tile.block_m * tile.block_n / (32 * tile.num_warps)
    if per_thread > 128:
        return Refusal("registers", f"the accumulator takes {per_thread:.0f} registers a thread", "at most 128")
    return None


def address_limit(problem: GemmProblem, tile: TileConfig, limit: int = 190) -> Refusal | None:
    """Operands that cannot be read 16 bytes at a time take an address an access, and 2-byte accesses pass through registers.

    The weights are fitted to what ptxas allocates on sm_90; past the limit it spills.
    """
    threads = 32 * tile.num_warps
    fma = problem.dtype == "fp32" and problem.precision == "ieee"
    needed = tile.block_m * tile.block_n / threads * (1.5 if fma else 1.0)
    for operand, side in ((problem.a, tile.block_m), (problem.b, tile.block_n)):
        width = max(operand.itemsize, operand.line_align)
        accesses = side * tile.block_k * operand.itemsize / threads / width
        needed += accesses * (4 if width < 4 or (fma and width < VECTOR_BYTES) else 2)
    if needed > limit:
        aligned = min(problem.a.line_align, problem.b.line_align)
        given = f"reading lines aligned to {aligned} bytes takes about {needed:.0f} registers"
        return Refusal("registers", given, f"at most {limit}: a smaller block_k or more warps")
    return None


def full_reads(c: Operand | None, bias: Operand | None) -> list[Operand]:
    """What the epilogue reads element by element: C, even one that is expanded, and a bias that varies along both dimensions."""
    read = [c] if c is not None else []
    return [*read, bias] if bias is not None and min(bias.strides[1:]) > 0 else read


def epilogue_limit(problem: GemmProblem, tile: TileConfig, pieces: int = 1, *, stores_pointers: bool = True) -> Refusal | None:
    """The epilogue works on the accumulator a piece at a time; C, a full bias, gelu's and the store's addresses come on top.

    The weights are fitted to what ptxas allocates on sm_90; past the limit it spills.
    """
    threads = 32 * tile.num_warps
    accumulator = tile.block_m * tile.block_n / threads
    piece = accumulator / pieces
    extra = [piece if problem.epilogue.activation == "gelu" else 0.0]
    for operand in full_reads(problem.epilogue.c, problem.epilogue.bias):
        accesses = piece * operand.itemsize / max(operand.itemsize, operand.line_align)
        extra += [piece * operand.itemsize / 4 + 2 * accesses]
    if stores_pointers:
        extra.append(2 * piece * problem.out.itemsize / max(problem.out.itemsize, problem.out.line_align))
    needed = accumulator + max(extra)
    if needed > EPILOGUE_REGISTERS:
        return Refusal("registers", f"the epilogue takes about {needed:.0f} registers a thread", f"at most {EPILOGUE_REGISTERS}")
    return None


def shared_memory_limit(problem: GemmProblem, tile: TileConfig, arch: Arch, epilogue_bytes: int = 0) -> Refusal | None:
    """The pipeline's buffers, and what the epilogue stages beside them, must fit a block's shared memory."""
    stage = (tile.block_m + tile.block_n) * tile.block_k * problem.a.itemsize
    needed = stage * tile.num_stages + epilogue_bytes
    if needed > arch.smem_per_block:
        return Refusal(
            "shared memory", f"the tile takes {needed:,} bytes of shared memory", f"at most {arch.smem_per_block:,} on {arch.name}"
        )
    return None


def tma_operand(name: str, operand: Operand, arch: Arch) -> Refusal | None:
    """Whether a tensor descriptor can be laid over an operand."""
    rule = _TMA_OPERANDS.get(name)
    return rule(operand, name, arch) if rule is not None else _tma_operand(operand, name, arch)


def _tma_operand(operand: Operand, name: str, arch: Arch) -> Refusal | None:
    if not arch.has_tma:
        return Refusal("capability", f"{arch.name} has compute capability {arch.cc / 10}", "9.0 or newer (TMA)")
    if operand.layout == "s":
        return Refusal("strides", f"{name} has strides {operand.strides[1:]}", "a unit stride in one dimension (TMA)")
    if operand.leading == 0:
        return Refusal("strides", f"{name} is expanded: its lines share one address", "lines of their own (TMA strides are not 0)")
    if operand.line_align < VECTOR_BYTES:
        given = f"{name}'s lines start at multiples of {operand.line_align} bytes (leading dimension {operand.leading})"
        return Refusal("alignment", given, f"multiples of {VECTOR_BYTES} bytes (TMA)")
    if max(operand.rows, operand.cols) > INT32_MAX:
        return Refusal("size", f"{name} is {operand.rows} x {operand.cols}", "dimensions under 2^31 (TMA coordinates are 32-bit)")
    return None


_TMA_OPERANDS: Final = {name: last_answer(_tma_operand) for name in ("a", "b", "out")}


def mma_tile(problem: GemmProblem, tile: TileConfig) -> Refusal | None:
    """Blocks are powers of two that a tensor-core (or FMA) dot accepts."""
    m, n, k = tile.block_m, tile.block_n, tile.block_k
    if m >= 8 and n >= 8 and k >= 16 and not (m & (m - 1) or n & (n - 1) or k & (k - 1)):
        return None
    for name, value, least in (("block_m", tile.block_m, 8), ("block_n", tile.block_n, 8), ("block_k", tile.block_k, 16)):
        if value < least or value & (value - 1):
            return Refusal("tile", f"{name} is {value}", f"a power of two, at least {least}")
    return None


def refuses_ieee_tma(problem: GemmProblem) -> Refusal | None:
    """FMA dots read operands out of descriptors' swizzled tiles at the price of spilled registers."""
    if problem.dtype == "fp32" and problem.precision == "ieee":
        return Refusal(
            "precision", "precision is ieee, formed on FMA units", "a tensor-core precision (TMA tiles feed tensor cores)"
        )
    return None


def tma_box(problem: GemmProblem, tile: TileConfig) -> Refusal | None:
    """A descriptor's box has at most 256 elements a side and 16 bytes along the contiguous one."""
    side = max(tile.block_m, tile.block_n, tile.block_k)
    if side > TMA_BOX:
        return Refusal("tile", f"a side of the tile is {side}", f"at most {TMA_BOX} (TMA box)")
    shortest = min(tile.block_m, tile.block_n, tile.block_k) * problem.a.itemsize
    if shortest < VECTOR_BYTES:
        return Refusal("tile", f"a side of the tile is {shortest} bytes", f"at least {VECTOR_BYTES} (TMA box)")
    return None


def one_pass(problem: GemmProblem, tile: TileConfig, arch: Arch, registers: int = 190) -> Refusal | None:
    """A tile for a pointer kernel that sums all of K in one program."""
    if tile.split_k != 1:
        return Refusal("tile", f"split_k is {tile.split_k}", "1: this variant sums K in one program")
    return first(
        (
            mma_tile(problem, tile),
            register_limit(tile),
            address_limit(problem, tile, registers),
            epilogue_limit(problem, tile),
            shared_memory_limit(problem, tile, arch),
        )
    )

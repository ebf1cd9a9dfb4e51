"""C = alpha * A @ B + beta * C, and everything else one call can do. Runs on a GPU, and on a CPU through Triton's interpreter."""

import torch

import minblas


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 4096 if device == "cuda" else 64  # the interpreter is right, and slow
    torch.manual_seed(0)
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    c = torch.randn(size, size, device=device, dtype=torch.bfloat16)

    # BLAS's own form. alpha and beta are applied in fp32 and the result is rounded once.
    result = minblas.gemm(a, b, alpha=0.5, beta=2.0, c=c)
    expected = 0.5 * (a.double() @ b.double()) + 2.0 * c.double()
    print(f"gemm: largest error {(result.double() - expected).abs().max():.3g} at values up to {expected.abs().max():.3g}")

    # In place, as BLAS has it: C is both read and written.
    minblas.gemm(a, b, alpha=0.5, beta=2.0, c=c, out=c)
    print("in place:", "the same bits" if torch.equal(c, result) else "other bits")

    # Transposes are read off the strides and cost no copy; bias and activation are applied before the one rounding.
    bias = torch.randn(size, device=device, dtype=torch.bfloat16)
    hidden = minblas.gemm(a, b, trans_b=True, bias=bias, activation="gelu")
    print("with bias and gelu:", tuple(hidden.shape), hidden.dtype)

    # What served it, by which rung of the ladder, and what the others were refused for.
    selection = minblas.explain(a, b)
    print(f"explain: {selection.variant}, {selection.tile.describe() if selection.tile else 'no tile'}, {selection.rung}")
    print(f"on an H100 it would be: {minblas.explain(4096, 4096, 4096, dtype='bf16', arch='h100-sxm').variant}")


if __name__ == "__main__":
    main()

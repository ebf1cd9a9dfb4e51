"""What compiled kernels need, as data."""

from __future__ import annotations

from kernel_zoo.spec import Arch, GemmProblem, Refusal, Resources, TileConfig, Variant


class ResourceTable:
    """What the binaries of one compute capability and Triton version were seen to need."""

    def find(self, problem: GemmProblem, variant: Variant, tile: TileConfig) -> Resources | None:
        """The needs of a variant's binary for the problem's class, where known."""
        return None

    def refusal(self, problem: GemmProblem, arch: Arch, variant: Variant, tile: TileConfig) -> Refusal | None:
        """Why the binary may not serve."""
        return None


def known(cc: int, triton: str) -> ResourceTable | None:
    """The data of a capability and Triton version, where there are any."""
    return None

"""Variants that were found wrong: nothing picks them, forced or not, until a check passes.

A quarantined variant stays in the registry as one that refuses every problem, so that explain, the tuner and a forced call all give
the same reason without knowing of quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernel_zoo.spec import Arch, GemmProblem, Refusal, Variant
from minblas import log, registry


@dataclass(frozen=True, slots=True)
class Suspended:
    """The refusal of everything; keeps the variant as it was."""

    original: Variant
    why: str

    def __call__(self, problem: GemmProblem, arch: Arch) -> Refusal:
        """The same sentence whatever is asked."""
        needed = f"a check that passes: correct it, minblas.unregister({self.original.name!r}), register it again"
        return Refusal("quarantine", f"{self.original.name} is quarantined ({self.why})", needed)


def suspend(variant: Variant, why: str) -> None:
    """Keep a registered variant from serving. The zoo's own cannot be taken out; that it is wrong is said loudly."""
    log.get("register").error("%s is wrong and quarantined: %s", variant.name, why)
    if variant.origin == "user":
        registry.exchange(replace(original(variant), supports=Suspended(original(variant), why)))


def reinstate(name: str) -> None:
    """Let a quarantined variant serve again."""
    variant = _find(name)
    if variant is not None and isinstance(variant.supports, Suspended):
        registry.exchange(variant.supports.original)


def reason(name: str) -> str:
    """Why a variant is quarantined; empty where it is not."""
    variant = _find(name)
    return variant.supports.why if variant is not None and isinstance(variant.supports, Suspended) else ""


def original(variant: Variant) -> Variant:
    """The variant as it was registered."""
    return variant.supports.original if isinstance(variant.supports, Suspended) else variant


def _find(name: str) -> Variant | None:
    return next((variant for variant in registry.registry() if variant.name == name), None)

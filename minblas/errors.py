"""Everything minblas raises. Each error says what was given, what is needed, and what to do about it.

    MinblasError (RuntimeError: what torch itself raises for a bad product)
    ├── ArgumentError (ValueError)        a keyword's value
    │   └── UnknownVariantError           a variant's name; suggests the nearest ones
    ├── ShapeError (ValueError)           dimensions that do not match
    ├── DTypeError (TypeError)            element types that do not match, or that no kernel takes
    ├── OperandError (TypeError)          something that is not a plain tensor
    ├── DeviceError (ValueError)          tensors of different devices, or of one that cannot be used
    ├── OutError (ValueError)             an out= that cannot be written
    │   └── OverlapError                  it shares memory with an input or with itself
    ├── GradientError                     a call that cannot be differentiated
    ├── VariantError (ValueError)         a forced variant cannot serve the call; carries the Refusal
    ├── NoVariantError (LookupError)      nothing can serve the call
    ├── PlanMismatch (ValueError)         a plan was called with other operands than it was made for
    ├── ColdCallError                     a call would have to compile where that is not allowed
    ├── LaunchError                       a kernel did not compile, load or launch
    └── SettingsError (ValueError)        an option or environment variable

Leaf: imports the standard library and the kernel vocabulary.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kernel_zoo.spec import Refusal


class MinblasError(RuntimeError):
    """Base of every error of this package.

    Args:
        given: what the caller passed, with names and numbers.
        needed: what would have been right.
        remedy: what to do; a sentence.
    """

    def __init__(self, given: str, needed: str = "", remedy: str = "") -> None:
        self.given = given
        self.needed = needed
        self.remedy = remedy
        # No super().__init__: torch.compile cannot trace it, and would say that instead of what is wrong.

    def __str__(self) -> str:
        needed = f"needed: {self.needed}" if self.needed else ""
        return "; ".join(filter(None, (self.given, needed, self.remedy)))

    def __reduce__(self) -> tuple[type[MinblasError], tuple[str, str, str]]:
        return type(self), (self.given, self.needed, self.remedy)


class ArgumentError(MinblasError, ValueError):
    """A keyword's value cannot be used."""


class UnknownVariantError(ArgumentError):
    """No variant has that name."""


class ShapeError(MinblasError, ValueError):
    """Dimensions do not match."""


class DTypeError(MinblasError, TypeError):
    """Element types do not match, or no kernel takes them."""


class OperandError(MinblasError, TypeError):
    """An operand is not a plain strided tensor."""


class DeviceError(MinblasError, ValueError):
    """Tensors live on different devices, or on one that cannot be used."""


class OutError(MinblasError, ValueError):
    """out= cannot take the result."""


class OverlapError(OutError):
    """out= shares memory with an input, or with itself."""


class GradientError(MinblasError):
    """The call cannot be differentiated."""


class VariantError(MinblasError, ValueError):
    """A forced variant cannot serve the call; `refusal` has the reason as data where there is one."""

    refusal: Refusal | None = None


class NoVariantError(MinblasError, LookupError):
    """No variant is left that can serve the call."""


class PlanMismatch(MinblasError, ValueError):  # noqa: N818  (says what happened)
    """A plan was called with operands it was not made for."""


class ColdCallError(MinblasError):
    """The call would have to compile or load a kernel where that is not allowed."""


class LaunchError(MinblasError):
    """A kernel did not compile, load or launch."""


class SettingsError(MinblasError, ValueError):
    """An option or an environment variable has a value that cannot be used."""


def suggestion(name: object, known: Iterable[str]) -> str:
    """'did you mean ...?' with the nearest of the known names, or the whole list where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names)}"


__all__ = sorted(name for name, value in globals().items() if isinstance(value, type) and issubclass(value, MinblasError))

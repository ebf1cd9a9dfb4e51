"""What the values of gemm's keywords may be, whatever the operands are. Imports no torch: sizes are explained without it."""

from __future__ import annotations

from typing import Final

from kernel_zoo.spec import ACTIVATIONS, FP32_PRECISIONS
from minblas.errors import ArgumentError, DTypeError, suggestion

#: torch's own words for how precise fp32 products must be.
PRECISION_ALIASES: Final = {"highest": "ieee", "high": "tf32", "medium": "tf32"}

_FLOATS: Final = ("fp16", "bf16", "fp32")
_EIGHT_BIT_FLOATS: Final = ("fp8e4m3", "fp8e5m2")

#: Types that a result may be rounded to, by the inputs' type; the others give their own type only.
OUT_DTYPES: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(_FLOATS, _FLOATS),
    **dict.fromkeys(_EIGHT_BIT_FLOATS, ("bf16", "fp16", "fp32", *_EIGHT_BIT_FLOATS)),
    "int8": ("int32", "int8"),
}


def check_out_dtype(source: str, wanted: str, inputs: str) -> str:
    """The result's dtype, where inputs of that type can be rounded to it.

    Raises:
        DTypeError: they cannot.
    """
    allowed = OUT_DTYPES.get(inputs, (inputs,))
    if wanted not in allowed:
        raise DTypeError(
            f"{source} is {wanted} for {inputs} inputs", f"one of {', '.join(allowed)}", "convert the result afterwards"
        )
    return wanted


def check_activation(name: str | None) -> str:
    """The activation's name, "none" where there is none.

    Raises:
        ArgumentError: it is not known.
    """
    if name is None:
        return "none"
    if name not in ACTIVATIONS:
        raise ArgumentError(
            f"activation is {name!r}", "None or one of " + ", ".join(ACTIVATIONS[1:]), suggestion(name, ACTIVATIONS)
        )
    return name


def check_activation_type(name: str, inputs: str) -> None:
    """Refuse an activation that the inputs' type has no meaning for.

    Raises:
        ArgumentError: it has none.
    """
    whole, unordered = inputs.removeprefix("u").startswith("int"), inputs.startswith("complex")
    if (whole and name not in ("none", "relu")) or (unordered and name != "none"):
        needed = "None or 'relu'" if whole else "None"
        raise ArgumentError(
            f"activation is {name!r} for {inputs} inputs", needed, "convert the inputs to a floating-point type first"
        )


def check_precision(name: str) -> str:
    """How fp32 products are formed, torch's words translated.

    Raises:
        ArgumentError: it is not known.
    """
    translated = PRECISION_ALIASES.get(name, name)
    if translated not in FP32_PRECISIONS:
        known = (*FP32_PRECISIONS, *PRECISION_ALIASES)
        raise ArgumentError(f"precision is {name!r}", "one of " + ", ".join(known), suggestion(name, known))
    return translated


def check_flag(name: str, value: object) -> None:
    """Refuse BLAS's letters in a flag's place: "N" would count as True.

    Raises:
        ArgumentError: the value has no truth of its own, as strings and lists have none.
    """
    if not hasattr(type(value), "__bool__"):
        raise ArgumentError(f"{name} is {value!r}", "True or False", "BLAS's 'T' is True and its 'N' is False")

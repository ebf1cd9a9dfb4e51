"""Variants on their way to another process: by name what the zoo has, by reference what a user registered.

A reference is a module and a name that both processes can import. What has none (a lambda, a function inside another, anything
defined in the script that runs) cannot be sent, and the reason says so.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import FunctionType
from typing import Any

from kernel_zoo import catalog
from kernel_zoo.compile_worker import find_kernel
from kernel_zoo.spec import Variant

#: A variant as it travels: its pickle and its source digest.
Parcel = tuple[bytes, str]


class _Pickler(pickle.Pickler):
    """Pickles jitted functions by name, and a variant by what differs from the defaults (one of them is a lambda)."""

    def reducer_override(self, value: Any) -> Any:
        """How values of ours are built again; NotImplemented leaves it to pickle."""
        if isinstance(value, Variant):
            given = {
                entry.name: getattr(value, entry.name)
                for entry in fields(value)
                if entry.default is MISSING or getattr(value, entry.name) is not entry.default
            }
            return _variant, (given,)
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the script that runs: put it into a module of its own")
        inner = getattr(value, "fn", None)
        if isinstance(inner, FunctionType):
            return find_kernel, _reference(value, inner)
        return NotImplemented


def _reference(value: Any, inner: FunctionType) -> tuple[str, str]:
    """The module and name under which a jitted function is found."""
    found: Any = sys.modules.get(inner.__module__)
    for part in inner.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not value or inner.__module__ == "__main__":
        raise pickle.PicklingError(f"the kernel {inner.__qualname__} cannot be imported from {inner.__module__}")
    return inner.__module__, inner.__qualname__


def _variant(given: dict[str, Any]) -> Variant:
    return Variant(**given)


def pack(known: Mapping[str, Variant]) -> tuple[dict[str, Parcel], dict[str, str]]:
    """The registered variants that can be sent, and why the others cannot."""
    parcels: dict[str, Parcel] = {}
    left: dict[str, str] = {}
    for name, variant in known.items():
        if variant.origin == "zoo":
            continue
        buffer = io.BytesIO()
        try:
            _Pickler(buffer).dump(variant)
        except Exception as error:  # pickling runs the user's objects' own code
            left[name] = str(error) or repr(error)
        else:
            parcels[name] = buffer.getvalue(), variant.digest
    return parcels, left


def unpack(parcels: Mapping[str, Parcel]) -> tuple[dict[str, Variant], dict[str, str]]:
    """The zoo's variants and those sent, and why some of these could not be built here."""
    known = {variant.name: variant for variant in catalog.VARIANTS}
    missing: dict[str, str] = {}
    for name, (data, digest) in parcels.items():
        try:
            variant: Variant = pickle.loads(data)
            if variant.digest != digest:
                missing[name] = "its source has changed since it was registered"
                continue
        except Exception as error:  # importing a user's module may fail in any way
            missing[name] = f"{type(error).__name__}: {error}"
        else:
            known[name] = variant
    return known, missing

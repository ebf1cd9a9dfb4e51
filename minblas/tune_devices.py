"""Where a tune runs: one device or several of one kind, in this process or in others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minblas.device import index_of
from minblas.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    import torch


def places_of(
    device: torch.device | str | None, devices: Sequence[torch.device | str | int] | str | None, *, any_device: bool
) -> list[torch.device]:
    """The devices asked for; the current GPU by default.

    Args:
        device: one of them.
        devices: several, by number or name; "all" for every GPU.
        any_device: one that is no GPU will do.

    Raises:
        ArgumentError: both are given, or a device is named twice.
        DeviceError: there is no GPU, or they are not of one kind.
    """
    import torch

    if device is not None and devices is not None:
        raise ArgumentError("both device and devices are given", "one of the two")
    if devices is None:
        named: Sequence[torch.device | str | int] = [device or ("cuda" if torch.cuda.is_available() else "cpu")]
    elif devices == "all":
        named = [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    else:
        named = [devices] if isinstance(devices, str) else list(devices)
    places = [_place(each) for each in named]
    if not places:
        raise ArgumentError("devices is empty", 'devices such as "cuda:0", or "all"')
    for place in places:
        if place.type != "cuda" and not any_device:
            raise DeviceError(
                f"tuning measures time, and the device is {place}",
                "a CUDA GPU",
                "verify_only=True checks the candidates on a CPU; a table tuned elsewhere can be read through MINBLAS_TABLE",
            )
        if place.type == "cuda" and places.count(place) > 1:
            raise ArgumentError(f"{place} is named twice", "each GPU once: two tunes on one GPU disturb each other's times")
    _check_kind(places)
    return places


def _place(name: torch.device | str | int) -> torch.device:
    import torch

    try:
        place = torch.device(f"cuda:{name}" if isinstance(name, int) else name)
    except RuntimeError as error:
        raise ArgumentError(f"a device is {name!r}", 'a name such as "cuda:0"', str(error).splitlines()[0]) from None
    if place.type != "cuda":
        return place
    index, count = index_of(place), torch.cuda.device_count()
    if index >= count:
        needed = f"one of this machine's GPUs, 0 to {count - 1}" if count else "a GPU: here is none"
        raise DeviceError(f"a device is {place}", needed)
    return torch.device("cuda", index)


def _check_kind(places: Sequence[torch.device]) -> None:
    """One table holds rows of one device only."""
    from minblas.environment import environment

    kinds = [f"{env.gpu_name} with {env.sm_count} SMs" for env in map(environment, places)]
    for place, kind in zip(places, kinds, strict=True):
        if kind != kinds[0]:
            given = f"{places[0]} is {kinds[0]} and {place} is {kind}"
            raise DeviceError(given, "GPUs of one kind: a table holds rows of one device", "tune each kind by itself")


def is_isolated(isolate: bool | None, places: Sequence[torch.device], benches: object) -> bool:
    """Whether candidates run in processes of their own: by default on a GPU.

    Raises:
        ArgumentError: what was asked for cannot be done that way.
    """
    made_here = benches is not None and not isinstance(benches, str)
    if isolate and made_here:
        raise ArgumentError("isolate=True and benches is an object", 'the "module:function" that makes it there')
    isolated = isolate if isolate is not None else not made_here and (places[0].type == "cuda" or len(places) > 1)
    if not isolated and len(places) > 1:
        raise ArgumentError(f"isolate=False with {len(places)} devices", "one device: each further one needs a process of its own")
    return isolated

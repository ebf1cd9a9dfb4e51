"""Launches every kind of kernel by every adapter and by triton itself, under the stand-in for the driver, and prints what arrived.

    python -m tests.minblas.stub_launches

One line of JSON per case.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton

from heuristics.archs import ARCHS
from kernel_zoo import build, catalog
from kernel_zoo.reference import make_slots
from kernel_zoo.spec import Descriptor, Epilogue, GemmProblem, KernelCall, Operand, Recipe, TileConfig
from minblas.launch_adapters import DirectLaunch, adapters
from minblas.launch_arguments import as_triton_takes_them, constants_of, values_of
from minblas.launch_cuda import TritonLaunch
from minblas.launch_native import NativeLaunch, native_module
from tests.kernel_zoo import gluon_kernels
from tests.kernel_zoo.counting import WORDS, variant_of
from tests.kernel_zoo.gluon_kernels import copying
from tests.minblas.stub_cuda import STREAM, Stub

H200 = ARCHS["h200"]
SCALARS = (1.2, -0.75)


def problem_for(m: int, n: int, k: int, layout: str = "nt", batch: int = 1, dtype: str = "bf16") -> GemmProblem:
    """With everything that an epilogue reads."""
    epilogue = Epilogue("x", "x", Operand.dense("fp32", m, n, batch=batch), Operand("fp32", m, n, (0, 0, 1)), "gelu")
    return GemmProblem.of(m, n, k, dtype, layout, batch=batch, epilogue=epilogue)


def cases() -> list[tuple[str, GemmProblem, str]]:
    """(name, problem, variant): every variant with a recipe, and the shapes that change what is passed."""
    named = [variant.name for variant in catalog.VARIANTS if variant.recipe is not None]
    sizes = {"gemv": (4, 256, 8192), "repack": (96, 255, 8191)}
    found = [(name, problem_for(*sizes.get(name, (96, 256, 8192))), name) for name in named]
    return [
        *found,
        ("tiled, all strides", problem_for(33, 18, 40, "tt", batch=3, dtype="fp32"), "tiled"),
        ("tma, a batch", problem_for(64, 48, 64, "nn", batch=2), "tma"),
        ("tma, plain", GemmProblem.of(256, 256, 256, "fp16"), "tma"),
    ]


def recipe_of(problem: GemmProblem, name: str) -> Recipe:
    """The launches of the variant's first legal tile of moderate size, with the workspace and counters they take."""
    variant = catalog.get(name)
    tiles = (tile for tile in variant.space(problem, H200) if tile.block_m * tile.block_n <= 64 * 32 * tile.num_warps)
    tile = next(tile for tile in tiles if variant.refusal(problem, H200, tile) is None)
    return variant.plan(problem, tile, H200)


def loaded(stub: Stub, call: KernelCall, changes: dict[str, Any]) -> tuple[Any, int]:
    """A compiled kernel, loaded, and how many parameters it has."""
    spec = build.specialise(call)
    binary = triton.compile(
        spec.source, target=triton.backends.compiler.GPUTarget("cuda", 90, 32), options={**spec.options(90), **changes}
    )
    assert binary.run is not None  # loads it
    return binary, stub.lay_out(binary)


def by_triton(call: KernelCall, binary: Any, slots: dict[str, torch.Tensor]) -> None:
    """Triton's own launch of the same binary."""
    grid = (*call.grid, 1, 1)[:3]
    binary[grid](*as_triton_takes_them(call, slots, *SCALARS), *constants_of(call))


def compare(stub: Stub, name: str, call: KernelCall, slots: dict[str, torch.Tensor], **changes: Any) -> dict[str, Any]:
    """What arrived of one launch, by who made it; direct launches are made twice, the second time from what they kept."""
    binary, parameters = loaded(stub, call, changes)
    arrived = {"triton": stub.launches_of(lambda: by_triton(call, binary, slots))}
    values = values_of(slots, *SCALARS, STREAM)
    encodings = {}
    for adapter in adapters(triton.__version__):
        launch = adapter(call, binary, 0)
        arrived[adapter.__name__] = stub.launches_of(lambda launch=launch: launch.launch(values))
        before = stub.encodings.value
        arrived[f"{adapter.__name__}, again"] = stub.launches_of(lambda launch=launch: launch.launch(values))
        encodings[adapter.__name__] = stub.encodings.value - before
        arrived[f"{adapter.__name__}, hooked"] = stub.launches_of(lambda launch=launch: hooked(launch, slots))
    descriptors = sum(isinstance(arg, Descriptor) for arg in call.args)
    dependent = bool(changes.get("launch_pdl", call.dependent))
    return {
        "case": name,
        "parameters": parameters,
        "descriptors": descriptors,
        "dependent": dependent,
        "encodings": encodings,
        "arrived": arrived,
    }


def hooked(launch: DirectLaunch, slots: dict[str, torch.Tensor]) -> None:
    """With a hook before and one after."""
    told: list[Any] = []
    launch.hooked(slots, *SCALARS, STREAM, told.append, told.append)
    assert len(told) == 2
    assert told[0].get()["name"] == launch._binary.name


def main() -> None:
    """Print a line per launch."""
    with tempfile.TemporaryDirectory() as folder:
        stub = Stub(Path(folder))
        for name, problem, variant in cases():
            recipe = recipe_of(problem, variant)
            slots = dict(make_slots(problem, torch.device("cpu"), 1))
            slots["WS"] = torch.empty(recipe.workspace_bytes, dtype=torch.uint8)
            slots["COUNTERS"] = torch.zeros(recipe.counters, dtype=torch.int32)
            for i, call in enumerate(recipe.calls):
                print(json.dumps(compare(stub, f"{name}, launch {i}", call, slots)))
                if i == 0 and name in ("tiled", "tma"):
                    print(json.dumps(compare(stub, f"{name}, dependent launch", call, slots, launch_pdl=True)))
                    jit = stub.launches_of(lambda call=call: TritonLaunch(call, 90)(slots, *SCALARS))  # noqa: B023  (called at once)
                    print(json.dumps({"case": f"{name}, triton's JIT", "arrived": {"triton": jit}, "grid": call.grid}))
        for name, call, slots in particular():
            print(json.dumps(compare(stub, name, call, slots)))
        for found in (failing(stub), without_context(stub), refused(stub)):
            print(json.dumps(found))


def particular() -> list[tuple[str, KernelCall, dict[str, torch.Tensor]]]:
    """Launches of another kind: of Gluon kernels, from inside a slot, with counters."""
    matrices = {name: torch.zeros(128 * 192 + 256, dtype=torch.bfloat16) for name in ("A", "OUT")}
    (tally,) = variant_of(dependent=True).plan(GemmProblem.of(16, 16, 16), TileConfig(16, 16, 16), H200).calls
    ours = {"WS": torch.empty(512, dtype=torch.uint8), "COUNTERS": torch.zeros(WORDS, dtype=torch.int32)}
    return [
        ("Gluon, a copy", copying(gluon_kernels.copy, 128, 192, offset=256), matrices),
        ("Gluon, warp-specialised", copying(gluon_kernels.handed_copy, 128, 192), matrices),
        ("counters, a dependent launch", tally, {**ours, "OUT": torch.zeros(256, dtype=torch.float16)}),
    ]


def failing(stub: Stub) -> dict[str, Any]:
    """What a driver's error becomes, by adapter."""
    calls = recipe_of(problem_for(96, 256, 8192), "tiled").calls
    binary, _ = loaded(stub, calls[0], {})
    said = {}
    stub.failure.value = 1
    for adapter in adapters(triton.__version__):
        try:
            adapter(calls[0], binary, 0).launch((0,) * 7 + (*SCALARS, STREAM))
        except RuntimeError as error:
            said[adapter.__name__] = str(error)
    stub.failure.value = 0
    return {"case": "a driver's error", "said": said, "arrived": {}}


def without_context(stub: Stub) -> dict[str, Any]:
    """A launch from a thread that has not used a GPU yet, of a kernel on device 5."""
    calls = recipe_of(problem_for(96, 256, 8192), "tiled").calls
    binary, _ = loaded(stub, calls[0], {})
    launch = NativeLaunch(calls[0], binary, 5).launch
    stub.context.value = 0
    before = stub.context.value
    native = stub.launches_of(lambda: launch((0,) * 7 + (*SCALARS, STREAM)))
    after, stub.context.value = stub.context.value, 1
    return {"case": "no context", "contexts": [before, after], "arrived": {"native": native}}


class Unmade(dict):
    """Maps of which none can be made."""

    def __missing__(self, address: int) -> bytes:
        raise ZeroDivisionError


def refused(stub: Stub) -> dict[str, Any]:
    """What the C part says to arguments that do not fit, and whether it keeps what it was given for them."""
    launch_type = native_module().Launch
    stub.set_layout(200, [8, 4, 8, 128])
    places = ((0, 8), (8, 4), (16, 8), (128, 128))
    maps: dict[int, bytes] = {0: bytes(128)}
    gaps = ((0, 0, 0, 0, None), (1, 8, 6, 0, None), (2, 16, 7, 0, None), (3, 128, 1, 0, maps))

    def make(places: Any = places, gaps: Any = gaps, grid: Any = (1, 1, 1), **keywords: Any) -> Any:
        return launch_type(200, 0, grid, 128, 0, False, False, bytes(256), places, gaps, 9, **keywords)

    good = (1 << 40, 0, 0, 0, 0, 0, 1.0, 2, STREAM)
    made = make()

    def with_value(place: int, value: Any) -> Any:
        return lambda: made((*good[:place], value, *good[place + 1 :]))

    tries = {
        "one parameter less": lambda: make(places[:3], gaps[:3]),
        "one parameter more": lambda: make((*places, (0, 8))),
        "too many parameters": lambda: make(places * 65),
        "another size": lambda: make(((0, 4), *places[1:])),
        "outside the buffer": lambda: make(((252, 8), *places[1:])),
        "a gap outside": lambda: make(gaps=((3, 200, 1, 0, maps),)),
        "an empty grid": lambda: make(grid=(1, 0, 1)),
        "keywords": lambda: make(stream=1),
        "no tuple": lambda: made(list(good)),
        "a short tuple": lambda: made(good[1:]),
        "an address that is none": with_value(0, "a"),
        "a negative address": with_value(0, -1),
        "a scalar that is none": with_value(6, "a"),
        "a stream that is none": with_value(8, None),
        "a map that is none": lambda: make(gaps=((3, 128, 1, 0, {0: b"short"}),))(good),
        "a map that cannot be made": lambda: make(gaps=((3, 128, 1, 0, Unmade()),))(good),
    }
    said: dict[str, str] = {}

    def try_all() -> None:
        for name, attempt in tries.items():
            try:
                attempt()
                said[name] = "nothing"
            except Exception as error:
                said[name] = f"{type(error).__name__}: {error}"

    before = sys.getrefcount(maps)
    arrived = stub.launches_of(try_all)
    assert len(stub.launches_of(lambda: made(good))) == 1, "the same with nothing wrong is launched"
    leaked = sys.getrefcount(maps) - before
    return {"case": "refused", "said": said, "arrived": {"native": arrived}, "leaked": leaked}


if __name__ == "__main__":
    main()

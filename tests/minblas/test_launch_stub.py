"""The launch adapters against triton's own launch of the same binary, on the installed triton, under a stand-in for the driver.

What reaches the driver must be the same to the last byte: grid, block, shared memory, stream, function, launch attributes, and
every parameter, tensor maps included. How many parameters there are, and how long they are, is read off the machine code.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kernel_zoo import catalog
from tests.processes import ROOT, environment

DEPENDENT = "6"  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
VARIANTS = [variant.name for variant in catalog.VARIANTS if variant.recipe is not None]
PARTICULAR = ("Gluon", "counters")
WITHOUT_SCALARS = ("split_k, launch 0", "repack, launch 0", "gemv, launch 0")

HEADER = Path(sysconfig.get_paths()["include"]) / "Python.h"

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "gcc")) is None or not HEADER.exists(),
    reason="triton builds its launcher with a C compiler and Python's headers",
)


@pytest.fixture(scope="module")
def arrived():
    """What arrived at the driver, by case."""
    command = [sys.executable, "-m", "tests.minblas.stub_launches"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return {found["case"]: found for found in map(json.loads, done.stdout.splitlines())}


def compared(arrived):
    return {name: found for name, found in arrived.items() if "encodings" in found}


def test_every_adapter_passes_what_triton_passes(arrived):
    names = compared(arrived)
    assert {name.split(",")[0] for name in names} == {*VARIANTS, *PARTICULAR}
    for name, found in names.items():
        (theirs,) = found["arrived"].pop("triton")
        assert len(found["arrived"]) == 9, "three adapters, each once, again, and hooked"
        for how, launches in found["arrived"].items():
            assert launches == [theirs], f"{name}: {how}"


def test_the_comparison_sees_addresses_scalars_and_maps(arrived):
    for name, found in compared(arrived).items():
        ours = found["arrived"][f"{next(iter(found['encodings']))}"][0]
        parameters = bytes.fromhex(ours["parameters"])
        assert len(parameters) >= 128 * found["descriptors"] + 4 * (found["parameters"] - found["descriptors"])
        assert struct.pack("<f", 1.2) in parameters or name in WITHOUT_SCALARS or name.startswith(PARTICULAR)
        assert parameters.endswith(bytes(16)), "no scratch memory, global or of a profile"
        assert min(ours["grid"]) >= 1
        assert ours["stream"] == 4321


def test_a_tensor_map_is_encoded_once_per_address(arrived):
    for name, found in compared(arrived).items():
        native, python, run = found["encodings"].values()
        assert (native, python, run) == (0, 0, found["descriptors"]), name
    assert sum(found["descriptors"] for found in compared(arrived).values()) > 10


def test_a_dependent_launch_follows_the_compiled_kernel(arrived):
    for name, found in compared(arrived).items():
        attributes = found["arrived"]["RunLaunch"][0]["attributes"]
        assert attributes == ({DEPENDENT: 1} if found["dependent"] else {}), name
    assert {found["dependent"] for found in compared(arrived).values()} == {False, True}


def test_tritons_jit_gets_the_same_grid_and_block(arrived):
    for name in ("tiled", "tma"):
        (jit,) = arrived[f"{name}, triton's JIT"]["arrived"]["triton"]
        (direct,) = arrived[f"{name}, launch 0"]["arrived"]["RunLaunch"]
        assert (jit["grid"], jit["block"], jit["stream"]) == (direct["grid"], direct["block"], direct["stream"])


def test_a_warp_specialised_kernel_is_launched_with_all_its_warps(arrived):
    blocks = {name: found["arrived"]["NativeLaunch"][0]["block"][0] for name, found in arrived.items() if "Gluon" in name}
    assert blocks == {"Gluon, a copy": 128, "Gluon, warp-specialised": 256}


def test_a_drivers_error_is_raised(arrived):
    said = arrived["a driver's error"]["said"]
    assert len(said) == 3
    assert all("told to fail" in words for words in said.values())


def test_a_thread_without_a_context_gets_the_devices_own(arrived):
    assert arrived["no context"]["contexts"] == [0, 6], "the stand-in's context of device 5"
    assert len(arrived["no context"]["arrived"]["native"]) == 1


def test_what_the_c_part_refuses(arrived):
    """Nothing of it reaches the driver: neither another layout than the kernel's, nor values that are none."""
    refused = arrived["refused"]
    assert refused["arrived"]["native"] == []
    for name, words in {
        "one parameter less": "LookupError: the kernel has more than",
        "one parameter more": "LookupError: parameter",
        "too many parameters": "LookupError: a kernel has more parameters",
        "another size": "LookupError: parameter 0 has 4 bytes",
        "outside the buffer": "ValueError: a parameter lies outside",
        "a gap outside": "ValueError: a gap lies outside",
        "an empty grid": "ValueError: a launch needs a grid",
        "keywords": "TypeError",
        "no tuple": "TypeError: a launch takes one tuple of 9 values",
        "a short tuple": "TypeError: a launch takes one tuple of 9 values",
        "an address that is none": "TypeError",
        "a negative address": "OverflowError",
        "a scalar that is none": "TypeError",
        "a stream that is none": "TypeError",
        "a map that is none": "TypeError: an encoded tensor map is 128 bytes",
        "a map that cannot be made": "ZeroDivisionError",
    }.items():
        assert refused["said"][name].startswith(words), (name, refused["said"][name])


def test_what_a_launch_keeps_is_let_go(arrived):
    assert arrived["refused"]["leaked"] == 0

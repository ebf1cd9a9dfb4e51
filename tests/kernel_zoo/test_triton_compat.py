"""Gluon kernels and do_not_specialize become binaries on this triton, and describe their launches where there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernel_zoo import build
from kernel_zoo.compile_pool import compile_all, job_of
from kernel_zoo.compile_worker import compile_job
from kernel_zoo.digest import digest, unspecialised
from kernel_zoo.spec import Descriptor, KernelCall, Operand, View
from kernel_zoo.triton_compat import HAVE_GLUON, Undecorated, gl, gluon, is_gluon, stand_in, triton
from tests.kernel_zoo import gluon_kernels
from tests.kernel_zoo.counting import tally
from tests.kernel_zoo.gluon_kernels import BLOCK, copying
from tests.processes import ROOT, environment

NAMED = (frozenset({"ROWS", "COLS"}), frozenset())


def test_a_gluon_kernel_is_known_as_one():
    assert HAVE_GLUON
    assert is_gluon(gluon_kernels.copy)
    assert not is_gluon(tally)
    assert not is_gluon(None)


def test_sizes_that_are_not_specialised_stay_arguments_whatever_they_are():
    specs = {build.specialise(copying(gluon_kernels.copy, 64, cols)) for cols in (64, 65, 128)}
    assert len(specs) == 1, "one binary serves all sizes"
    (spec,) = specs
    assert spec.signature[2:] == ("i32", "i32")
    assert spec.divisors == (0, 0, 0, 0)
    wide = KernelCall(tally, (1,), (None, None, None, 0, 1 << 40), {"CLEAN": True})
    assert build.specialise(wide).signature[3:5] == ("i32", "i64")
    assert [i for i, _ in build.specialise(wide).constants] == [0, 1, 2, 5]


def test_a_pointer_loses_its_alignment_only_where_it_is_named():
    def kernel(x, y, n):
        """Nothing."""

    made = stand_in("triton")(do_not_specialize_on_alignment=["y"], do_not_specialize=[2])(kernel)
    view = View("A", Operand.dense("fp16", 8, 8))
    assert build.specialise(KernelCall(made, (1,), (view, view, 16))).divisors == (16, 0, 0)


@pytest.mark.parametrize(("kernel", "warps"), [(gluon_kernels.copy, 4), (gluon_kernels.handed_copy, 8)], ids=["copy", "handed"])
def test_gluon_compiles_and_is_launched_with_all_its_warps(kernel, warps):
    compiled = build.compile_binary(build.specialise(copying(kernel, 128, 256)), 90)
    assert compiled.metadata.num_warps == warps, "the default partition's four, and those of the others, in whole warpgroups"
    assert compiled.packed_metadata[0] == warps
    assert f".reqntid {32 * warps}" in compiled.asm["ptx"]
    assert [described["block_size"] for described in compiled.metadata.tensordesc_meta] == [list(BLOCK)] * 2
    assert "tma" in build.resources(compiled).instructions


def test_a_descriptors_type_is_the_one_that_tritons_jit_makes():
    torch = pytest.importorskip("torch")
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")):
        for block in ((64, 64), (128, 32), (8, 16)):
            described = Descriptor(View("A", Operand.dense(name, 256, 256)), (256, 256), (256, 1), block)
            layout = build.block_layout(block, name)
            theirs = TensorDescriptor(torch.empty(256, 256, dtype=dtype), [256, 256], [256, 1], list(block), layout)
            kind, _ = native_specialize_impl(CUDABackend, theirs, False, True, True)
            assert build.tensordesc(described, True).replace(" ", "") == kind.replace(" ", "")


def test_a_worker_process_compiles_gluon_and_dependent_launches():
    call = copying(gluon_kernels.copy, 128, 128)
    spec = build.specialise(KernelCall(call.kernel, call.grid, call.args, {}, 4, 2, dependent=True))
    job = job_of(spec, 90)
    assert job is not None
    assert compile_job(job).status == "ok"
    other = build.specialise(copying(gluon_kernels.handed_copy, 128, 128))
    assert {answer.status for answer in compile_all([(spec, 90), (other, 90)], 1).values()} == {"ok"}


def test_a_dependent_launch_is_another_binary_from_hopper_on():
    call = copying(gluon_kernels.copy, 128, 128)
    plain, dependent = (
        build.specialise(KernelCall(call.kernel, call.grid, call.args, {}, dependent=each)) for each in (False, True)
    )
    assert plain != dependent
    assert dependent.options(90) == {**plain.options(90), "launch_pdl": True}
    assert dependent.options(100) == dependent.options(90)
    assert dependent.options(89) == plain.options(89) == plain.options(90)
    assert build.compile_binary(dependent, 90).metadata.launch_pdl
    assert not build.compile_binary(plain, 90).metadata.launch_pdl


def test_what_is_not_specialised_is_part_of_the_digest():
    def kernel(x, n):
        """Nothing."""

    jit = stand_in("triton")
    digests = [
        digest([made])
        for made in (
            jit(kernel), jit(noinline=True)(kernel), jit(do_not_specialize=["n"])(kernel), jit(do_not_specialize=[1])(kernel),
            jit(do_not_specialize=["x"])(kernel), jit(do_not_specialize_on_alignment=["x"])(kernel),
        )
    ]  # fmt: skip
    assert digests[0] == digests[1], "as it was before anything was named"
    assert digests[2] == digests[3], "by name or by place"
    assert len(set(digests)) == 4


def test_the_stand_in_is_used_bare_and_with_keywords():
    def kernel(x, ROWS, COLS):
        """Nothing."""

    for made in (stand_in("gluon")(kernel), stand_in("gluon")(do_not_specialize=["ROWS", 2], noinline=False)(kernel)):
        assert isinstance(made, Undecorated)
        assert made.arg_names == ["x", "ROWS", "COLS"]
        assert is_gluon(made)
    assert unspecialised(made) == NAMED
    assert unspecialised(gluon_kernels.copy) == NAMED
    assert not is_gluon(stand_in("triton")(kernel))


WITHOUT = """
import sys
sys.modules["triton"] = None
from kernel_zoo import catalog, triton_compat
from kernel_zoo.digest import digest, unspecialised
from tests.kernel_zoo import gluon_kernels
assert not triton_compat.HAVE_TRITON and not triton_compat.HAVE_GLUON
assert triton_compat.is_gluon(gluon_kernels.copy)
assert triton_compat.gl.constexpr(3).value == triton_compat.tl.constexpr(3).value == 3
assert gluon_kernels.copying(gluon_kernels.copy, 64, 64).grid == (1, 1)
print(digest([gluon_kernels.handed_copy]), *[variant.digest for variant in catalog.VARIANTS])
"""


def test_without_triton_kernels_have_the_same_digests():
    from kernel_zoo import catalog

    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [digest([gluon_kernels.handed_copy]), *[variant.digest for variant in catalog.VARIANTS]]


def test_without_gluon_the_message_names_it(monkeypatch):
    build.block_layout.cache_clear()
    monkeypatch.setattr(build, "HAVE_GLUON", False)
    with pytest.raises(ImportError, match="needs a triton that has Gluon"):
        build.specialise(copying(gluon_kernels.copy, 64, 64))


def test_the_exports_are_tritons_own():
    from triton.experimental.gluon._runtime import GluonJITFunction

    assert isinstance(gluon_kernels.copy, GluonJITFunction)
    assert gluon.jit.__module__.startswith("triton.")
    assert gl.NVMMASharedLayout
    assert triton.__version__ != "absent"

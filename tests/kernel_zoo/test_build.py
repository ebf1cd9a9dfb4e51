"""From a launch as data to a binary."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernel_zoo import build, catalog
from kernel_zoo.kernels import _rules
from kernel_zoo.spec import ALPHA, INT32_MAX, Descriptor, Epilogue, GemmProblem, KernelCall, Operand, TileConfig, View
from tests.kernel_zoo.cases import H200


class Kernel(SimpleNamespace):
    """What specialising needs of a jitted function."""

    __hash__ = object.__hash__


KERNEL = Kernel(arg_names=["x", "size", "stride", "BLOCK"], __name__="kernel")


def call(*args, kernel=KERNEL, **constants):
    return KernelCall(kernel, (1,), args, constants or {"BLOCK": 16})


def pointer(align=16, dtype="bf16"):
    return View("A", Operand(dtype, 4, 4, (0, 4, 1), align))


def test_ones_and_zeros_become_constants_and_other_numbers_do_not():
    spec = build.specialise(call(pointer(), 0, 1))
    assert spec.signature == ("*bf16", "constexpr", "constexpr", "constexpr")
    assert spec.constants == ((1, 0), (2, 1), (3, 16))
    assert build.specialise(call(pointer(), 2, 5)).signature == ("*bf16", "i32", "i32", "constexpr")


@pytest.mark.parametrize(("value", "divisor"), [(2, 2), (3, 0), (4, 4), (6, 2), (8, 8), (12, 4), (16, 16), (4096, 16), (17, 0)])
def test_integers_carry_the_power_of_two_that_divides_them(value, divisor):
    assert build.specialise(call(pointer(), value, 7)).divisors == (16, divisor, 0, 0)


@pytest.mark.parametrize(("align", "divisor"), [(16, 16), (8, 8), (4, 4), (2, 2), (1, 0)])
def test_pointers_carry_their_alignment(align, divisor):
    assert build.specialise(call(pointer(align), 5, 7)).divisors[0] == divisor


def test_integers_are_as_wide_as_they_need():
    spec = build.specialise(call(pointer(), INT32_MAX, INT32_MAX + 1))
    assert spec.signature[1:3] == ("i32", "i64")
    assert build.specialise(call(pointer(), -INT32_MAX - 1, 3)).signature[1] == "i64"


def test_absent_operands_scalars_flags_and_descriptors():
    kernel = Kernel(arg_names=["a", "c", "alpha", "flag"], __name__="kernel")
    desc = Descriptor(pointer(), (4, 4), (4, 1), (16, 32))
    spec = build.specialise(KernelCall(kernel, (1,), (desc, None, ALPHA, True)))
    assert spec.signature == ("tensordesc<bf16[16, 32]>", "constexpr", "fp32", "constexpr")
    assert spec.constants == ((1, None), (3, True))
    assert spec.divisors == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("args", "constants", "message"),
    [
        ((pointer(), 3), {"BLOCK": 16}, r"missing constants: \['stride'\]"),
        ((pointer(), 3, 4), {"BLOCK": 16, "GROUP": 8}, r"unknown constants: \['GROUP'\]"),
        ((pointer(), 3, 4), {"BLOCK": 16, "size": 8}, r"unknown constants: \['size'\]"),
        ((pointer(), 3, 4, 5, 6), {}, "takes 4 parameters and got 5 positional"),
    ],
)
def test_arguments_that_do_not_match_the_kernel_are_an_error(args, constants, message):
    with pytest.raises(TypeError, match=message):
        build.specialise(KernelCall(KERNEL, (1,), args, constants))


def test_equal_launches_share_a_specialisation_and_the_grid_is_no_part_of_it():
    first, second = (
        KernelCall(KERNEL, (1,), (pointer(), 3, 5), {"BLOCK": 16}),
        KernelCall(KERNEL, (9,), (pointer(), 7, 9), {"BLOCK": 16}),
    )
    assert build.specialise(first) == build.specialise(second)
    assert len({build.specialise(first), build.specialise(second), build.specialise(call(pointer(), 3, 8))}) == 2


def test_sizes_within_a_divisibility_class_cost_one_binary():
    """Growing batch sizes must not compile one kernel each."""
    tiled = catalog.get("tiled")
    tile = TileConfig(16, 64, 32)
    recipes = [tiled.plan(GemmProblem.of(m, 4096, 4096, "bf16", "nt"), tile, H200) for m in range(1, 513)]
    assert len({build.specialise(recipe.calls[0]) for recipe in recipes}) <= 8


@pytest.mark.parametrize("variant", [v for v in catalog.VARIANTS if v.recipe], ids=lambda v: v.name)
def test_every_recipe_matches_its_kernels_parameters(variant):
    for m, n, k in ((4, 4096, 4096), (96, 128, 8192), (1024, 1024, 1024)):
        problem = GemmProblem.of(m, n, k)
        for tile in variant.space(problem, H200):
            if variant.refusal(problem, H200, tile) is None:
                specs = [build.specialise(c) for c in variant.plan(problem, tile, H200).calls]
                assert all(hash(spec) for spec in specs)
                assert all(c.kernel in variant.kernels for c in variant.plan(problem, tile, H200).calls)


def test_a_binary_is_compiled_and_read_without_a_gpu():
    recipe = catalog.get("tiled").plan(GemmProblem.of(256, 256, 256), TileConfig(64, 64, 64, num_stages=3), H200)
    compiled = build.compile_binary(build.specialise(recipe.calls[0]), 90)
    found = build.resources(compiled)
    assert 0 < found.registers <= 255
    assert 2 * 64 * 64 * 2 * 2 <= found.shared_bytes <= H200.smem_per_block
    assert found.spills == 0
    assert "wgmma" in found.instructions
    assert "cp.async" in found.instructions


@pytest.mark.parametrize("strides", [(0, 8, 1), (0, 0, 1), (0, 1, 0)], ids=["whole", "expanded row", "expanded column"])
def test_a_c_that_is_expanded_takes_as_much_shared_memory_as_any(strides):
    """Found on an H200: a flattened loop keeps its loads of C in flight in shared memory, one row of it or all."""
    variant = catalog.get("tma")
    plain = GemmProblem.of(333, 8, 8, "bf16")
    problem = replace(plain, epilogue=Epilogue("x", "x", Operand("fp32", 333, 8, strides, 4)))
    assert _rules.full_reads(problem.epilogue.c, None) == [problem.epilogue.c]
    flat = TileConfig(128, 128, 128, num_warps=8, knobs=(("flatten", 1), ("persistent", 1), ("subtile", 1)))
    assert variant.refusal(plain, H200, flat) is None
    assert variant.refusal(problem, H200, flat).rule in ("registers", "shared memory")
    needed = build.resources(build.compile_binary(build.specialise(variant.plan(problem, flat, H200).calls[0]), 90)).shared_bytes
    assert needed > H200.smem_per_block


def test_without_triton_the_message_names_it(monkeypatch):
    monkeypatch.setattr(build, "HAVE_TRITON", False)
    with pytest.raises(ImportError, match="needs triton"):
        build.compile_binary(None, 90)

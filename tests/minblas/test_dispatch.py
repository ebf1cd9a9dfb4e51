"""Choosing and falling back: forced picks, quarantine, on_cold, exclusions, the CPU's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import minblas
from heuristics.archs import ARCHS
from kernel_zoo import catalog
from kernel_zoo.spec import GemmProblem, TileConfig
from minblas import dispatch, errors, launch
from minblas.cache import CACHE
from tests.minblas.oracle import close

CPU = torch.device("cpu")


class OutOfResources(Exception):  # noqa: N818  (triton's name)
    """As triton's: derives from nothing a dispatcher would think of."""


pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture
def failing(monkeypatch):
    """Make launch.prepare fail for the named variants."""
    real, failures = launch.prepare, {}

    def prepare(variant, *arguments, **keywords):
        if variant.name in failures:
            raise failures[variant.name]
        return real(variant, *arguments, **keywords)

    monkeypatch.setattr(launch, "prepare", prepare)
    return failures


def operands():
    return torch.randn(32, 48), torch.randn(48, 24)


@pytest.mark.parametrize(
    "error", [OutOfResources("shared memory"), RuntimeError("PTX JIT"), ValueError("compilation"), AssertionError()]
)
def test_a_pick_that_fails_is_passed_over_and_remembered(failing, error):
    a, b = operands()
    first = minblas.explain(a, b).variant
    failing[first] = error
    close(minblas.gemm(a, b), a, b)
    counted = minblas.stats()
    assert first not in counted.calls
    assert any(type(error).__name__ in why for why in counted.quarantined.values())
    close(minblas.gemm(a, b, bias=torch.zeros(24)), a, b)


def test_when_all_kernels_fail_aten_serves_and_says_why(failing):
    failing.update({variant.name: RuntimeError("no") for variant in catalog.VARIANTS if variant.name != "aten"})
    a, b = operands()
    close(minblas.gemm(a, b), a, b)
    assert minblas.stats().aten_reasons == {"every pick before it failed": 1}


def test_without_aten_the_failure_is_an_error(failing):
    failing.update({variant.name: RuntimeError("no") for variant in catalog.VARIANTS})
    a, b = operands()
    out = torch.full((32, 24), 7.0)
    with minblas.options(exclude="aten"), pytest.raises(errors.LaunchError, match="every variant failed"):
        minblas.gemm(a, b, out=out)
    assert out.eq(7).all()


def test_a_forced_pick_that_fails_is_an_error(failing):
    failing["tiled"] = OutOfResources("shared memory")
    a, b = operands()
    with pytest.raises(errors.LaunchError, match=r"tiled .* failed on 32 x 24 x 48.*OutOfResources") as caught:
        minblas.gemm(a, b, variant="tiled")
    assert isinstance(caught.value.__cause__, OutOfResources)
    with minblas.options(variant="tiled"), pytest.raises(errors.LaunchError):
        minblas.gemm(a, b)
    del failing["tiled"]
    close(minblas.gemm(a, b, variant="tiled"), a, b)


def test_batch_invariant_never_falls_to_another_family(failing):
    a, b = operands()
    failing[minblas.explain(a, b, batch_invariant=True).variant] = RuntimeError("no")
    with pytest.raises(errors.LaunchError):
        minblas.gemm(a, b, batch_invariant=True)


def failing_launch(error):
    def run(problem, slots, alpha, beta):
        slots["OUT"].fill_(-1)
        raise error

    return run


def test_a_launch_that_fails_is_passed_over(monkeypatch):
    a, b = operands()
    real = launch.Interpreted.__call__
    broken = []

    def call(self, slots, alpha, beta):
        if self.variant not in broken:
            broken.append(self.variant)
        if self.variant == broken[0]:
            slots["OUT"].fill_(-1)
            raise OutOfResources("at launch")
        real(self, slots, alpha, beta)

    monkeypatch.setattr(launch.Interpreted, "__call__", call)
    close(minblas.gemm(a, b), a, b)
    assert minblas.stats().quarantined
    c = torch.randn(32, 24)
    dispatch.QUARANTINE.forgive()
    with pytest.raises(errors.LaunchError, match="OutOfResources"):
        minblas.gemm(a, b, 1.0, 1.0, c, out=c)  # c may be overwritten: nothing left to try again with


def test_forced_tiles():
    a, b = operands()
    tile = TileConfig(32, 32, 32, num_stages=2)
    close(minblas.gemm(a, b, variant="tiled", tile=tile), a, b)
    assert minblas.plan(a, b, variant="tiled", tile=tile).tile == tile
    with pytest.raises(errors.VariantError, match="power of two"):
        minblas.gemm(a, b, variant="tiled", tile=TileConfig(33, 32, 32))


def test_options_reach_the_choice():
    a, b = operands()
    chosen = minblas.explain(a, b).variant
    with minblas.options(exclude=chosen):
        assert minblas.explain(a, b).variant != chosen
    with minblas.options(variant="persistent"):
        assert minblas.explain(a, b).rung == "forced"
        assert minblas.plan(a, b).variant == "persistent"
    with minblas.options(exclude="tild"), pytest.raises(errors.UnknownVariantError, match="did you mean 'tiled'"):
        minblas.gemm(a, b)
    with minblas.options(arch="a100"):
        assert minblas.explain(a, b).arch.name == "a100"
    with pytest.raises(errors.SettingsError, match="h200"):
        minblas.options(arch="h20")


def test_a_product_over_the_cap_goes_to_aten_on_a_cpu(caplog):
    a, b = operands()
    with minblas.options(interpret_cap=100):
        close(minblas.gemm(a, b), a, b)
        close(minblas.gemm(a, b, variant="tiled"), a, b)  # forced: interpreted whatever it costs
    counted = minblas.stats()
    assert counted.calls == {"aten": 1, "tiled": 1}
    assert list(counted.aten_reasons) == ["CPU: a product over the interpreter's cap (100 multiply-adds, 512 programs)"]


def test_emulated_precisions_are_not_interpreted():
    a, b = operands()
    close(minblas.gemm(a, b, precision="bf16x3"), a, b)
    assert "CPU: bf16x3 cannot be interpreted" in minblas.stats().aten_reasons or minblas.stats().calls.keys() == {"aten"}


def test_types_without_kernels_fall_to_aten_with_the_reason():
    a, b = operands()
    minblas.gemm(a.double(), b.double())
    minblas.gemm(a.to(torch.complex64), b.to(torch.complex64))
    counted = minblas.stats()
    assert counted.calls == {"aten": 2}
    assert sum(counted.aten_reasons.values()) == 2
    assert all(counted.aten_reasons)


@pytest.fixture
def cold_gpu(monkeypatch):
    """A machine on which no kernel is loaded, without a GPU: everything is prepared as on a CPU."""
    state = {"ready": False, "capturing": False}
    monkeypatch.setattr(launch, "is_ready", lambda variant, *rest: state["ready"] or variant.recipe is None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["capturing"])
    monkeypatch.setattr(torch.cuda, "device", lambda device: minblas.options())
    return state


def test_on_cold(cold_gpu):
    a, b = operands()
    out = torch.full((32, 24), 7.0)
    with minblas.options(on_cold="raise"), pytest.raises(errors.ColdCallError, match=r"minblas.warmup"):
        minblas.gemm(a, b, out=out)
    assert out.eq(7).all()
    with minblas.options(on_cold="aten"):
        close(minblas.gemm(a, b), a, b)
        assert minblas.stats().calls == {"aten": 1}
        assert CACHE.plans()[0].provisional
        CACHE.drop_provisional()  # what loading a kernel does
        cold_gpu["ready"] = True
        close(minblas.gemm(a, b), a, b)
        assert minblas.stats().calls.keys() != {"aten"}
    cold_gpu["ready"] = False
    close(minblas.gemm(a + 1, b), a + 1, b)


def test_a_cold_call_during_capture_is_refused_by_name(cold_gpu):
    a, b = operands()
    cold_gpu["capturing"] = True
    out = torch.full((32, 24), 7.0)
    with pytest.raises(errors.ColdCallError, match=r"captured.*minblas.warmup"):
        minblas.gemm(a, b, out=out)
    assert out.eq(7).all()
    cold_gpu["ready"] = True
    close(minblas.gemm(a, b, out=out), a, b)


def test_registry():
    like_tiled = replace(catalog.get("tiled"), name="test.mine", origin="user")
    with pytest.raises(errors.ArgumentError, match="'tiled' exists"):
        dispatch.register(replace(like_tiled, name="tiled"))
    dispatch.register(like_tiled)
    try:
        assert dispatch.registry()[-1].name == "test.mine"
        assert dispatch.get("test.mine") is like_tiled
        assert minblas.explain(512, 512, 512).variant != "test.mine"
        assert dispatch.select(GemmProblem.of(64, 64, 64), ARCHS["h200"], "test.mine").variant == "test.mine"
    finally:
        minblas.unregister("test.mine")
    with pytest.raises(errors.UnknownVariantError):
        minblas.unregister("test.mine")
    with pytest.raises(errors.UnknownVariantError, match="no registered variant is named 'tiled'"):
        minblas.unregister("tiled")


def test_an_opaque_variant_of_the_users_own():
    def run(problem, slots, alpha, beta):
        torch.mm(slots["A"], slots["B"], out=slots["OUT"])

    variant = replace(catalog.get("aten"), name="test.opaque", launch=run, origin="user")
    dispatch.register(variant)
    try:
        a, b = operands()
        close(minblas.gemm(a, b, variant="test.opaque"), a, b)
        minblas.unregister("test.opaque")
        dispatch.register(replace(variant, interpretable=False))
        close(minblas.gemm(a, b, variant="test.opaque"), a, b)
        assert any("needs a GPU" in reason for reason in minblas.stats().aten_reasons)
    finally:
        minblas.unregister("test.opaque")


def test_a_cpu_is_served_by_what_it_can_interpret(monkeypatch):
    """A kernel for GPUs alone is passed over where the operands are a CPU's, and chosen as ever where sizes are asked about."""
    a, b = operands()
    served = minblas.plan(a, b).variant
    gpu_only = replace(dispatch.get(served), interpretable=False)
    monkeypatch.setattr(catalog, "VARIANTS", tuple(gpu_only if v.name == served else v for v in catalog.VARIANTS))
    dispatch.forget_plans()
    try:
        plan = minblas.plan(a, b)
        assert plan.variant not in (served, "aten")
        close(minblas.gemm(a, b), a, b)
        problem = plan.problem
        assert dispatch.select(problem, ARCHS["h200"]).variant == served
        assert dispatch.select(problem, ARCHS["h200"], served).rung == "forced"
        with pytest.raises(errors.VariantError) as caught:
            minblas.gemm(a, b, variant=served)
        for words in (f"{served} is forced and the operands are on a CPU", "CUDA tensors", "leave variant= away"):
            assert words in str(caught.value)
        with minblas.options(variant=served), pytest.raises(errors.VariantError, match="on a CPU"):
            minblas.gemm(a, b)
        assert dispatch.select(problem, ARCHS["h200"], tile=plan.tile, interpreted=True).variant != served
    finally:
        dispatch.forget_plans()


def test_a_gpu_is_described_by_its_driver(monkeypatch):
    from types import SimpleNamespace

    from minblas import device

    def properties(name, sms, capability=(9, 0)):
        return SimpleNamespace(
            name=name, major=capability[0], minor=capability[1], multi_processor_count=sms, L2_cache_size=60 << 20
        )

    for found, name in (
        (properties("NVIDIA H200", 132), "h200"),
        (properties("NVIDIA H200 MIG 1g.18gb", 16), None),
        (properties("NVIDIA H200", 78), "h200-78sm"),
        (properties("NVIDIA RTX A9999", 84, (8, 6)), "rtx-a9999"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index, found=found: found)
        arch = device._measure(0)
        assert name is None or arch.name == name
        assert (arch.capability, arch.sm_count, arch.l2_bytes) == (
            (found.major, found.minor),
            found.multi_processor_count,
            60 << 20,
        )
        assert arch.tflops["bf16"] > 0

"""accelerate(): what it puts in place, for whom and until when; what it says of itself."""

from __future__ import annotations

import functools
import gc
import json
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest
import torch

import minblas
from minblas import accelerate_switch, dispatch, errors
from minblas.accelerate_kernels import OVERLOADS
from tests.minblas.accelerating import covered, served, tables
from tests.minblas.oracle import close

pytestmark = pytest.mark.usefixtures("nothing_remembered")

X, W = torch.randn(5, 6), torch.randn(6, 7)
PLAIN_OPS = {"mm", "mm.out", "addmm", "addmm.out", "addmm_", "bmm", "bmm.out", "baddbmm", "baddbmm.out", "baddbmm_"}


@pytest.fixture(autouse=True)
def untouched():
    """Whatever a test does, torch's kernels are back where they were, to the letter."""

    def known():
        return {key for key in torch.library._impls if key.split("/")[0] == "aten" and key.split("/")[1] in OVERLOADS}

    before = tables(), known()
    yield
    assert minblas.accelerate.devices() == ()
    assert (tables(), known()) == before


def cpu():
    return minblas.accelerate(devices="cpu")


def test_products_are_ours_inside_and_torchs_outside():
    torch.mm(X, W)
    assert served() == 0
    with cpu():
        close(torch.mm(X, W), X, W)
        assert covered() >= PLAIN_OPS | {"addmv", "addmv.out", "addmv_"}
        assert minblas.accelerate.devices() == ("cpu",)
    assert served() == 1
    torch.mm(X, W)
    assert served() == 1


@pytest.mark.parametrize("devices", ["cpu:0", torch.device("cpu", 0), [torch.device("cpu")]])
def test_a_device_stands_for_all_of_its_kind(devices):
    with minblas.accelerate(devices):
        assert minblas.accelerate.devices() == ("cpu",)


@pytest.mark.parametrize("device", ["cpu:first", "cup", "meta", 0])
def test_what_is_no_device_of_ours_is_refused_as_it_was_written(device):
    with pytest.raises(errors.ArgumentError, match=f"devices has '{device}'; needed: 'cuda' or 'cpu'"):
        minblas.accelerate([device])


@pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")
def test_every_overload_is_covered_on_cuda():
    with minblas.accelerate(devices=["cuda"]):
        assert covered("cuda") == set(OVERLOADS)
        assert covered("cpu") == set()


def test_an_exception_passes_and_restores():
    with pytest.raises(RuntimeError, match="cannot be multiplied"), cpu():
        torch.mm(X, X)
    assert covered() == set()


def test_blocks_nest_and_the_same_object_may_be_entered_again():
    again = cpu()
    with again:
        with again, cpu():
            torch.mm(X, W)
        assert covered() >= PLAIN_OPS
        torch.mm(X, W)
    assert served() == 2


def test_blocks_may_overlap_without_nesting():
    one, other = cpu(), cpu()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert covered() >= PLAIN_OPS
    other.__exit__(None, None, None)
    assert covered() == set()


def test_a_failure_to_enter_changes_nothing(monkeypatch):
    class Library(torch.library.Library):
        def impl(self, name, *args, **keywords):
            if name == "bmm.out":
                raise RuntimeError("no more")
            super().impl(name, *args, **keywords)

    monkeypatch.setattr(accelerate_switch.torch.library, "Library", Library)
    before = tables()
    with pytest.raises(RuntimeError, match="no more"), cpu():
        pass
    assert tables() == before
    monkeypatch.undo()
    with cpu():
        torch.mm(X, W)
    assert served() == 1


def test_for_the_process():
    minblas.accelerate.enable("cpu")
    minblas.accelerate.enable(devices=["cpu"])
    torch.mm(X, W)
    with cpu():
        minblas.accelerate.disable()
        torch.mm(X, W)
        assert covered() >= PLAIN_OPS
    assert covered() == set()
    minblas.accelerate.disable()
    torch.mm(X, W)
    assert served() == 2


# decorators


def test_a_decorated_function_keeps_its_name_and_its_value():
    @cpu()
    def double(x, *, times=2):
        """Twice."""
        assert covered() >= PLAIN_OPS
        return torch.mm(x * times, W)

    close(double(X, times=3), X * 3, W)
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert covered() == set()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        double(W)
    assert covered() == set()


def test_a_decorated_function_may_call_itself_and_run_in_several_threads():
    @cpu()
    def down(n):
        return torch.mm(X, W) if n == 0 else down(n - 1)

    down(3)
    threads = [threading.Thread(target=down, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert served() == 5
    assert covered() == set()


def test_methods_modules_and_partials_are_functions_too():
    linear = torch.nn.Linear(6, 7)
    for function in (linear, linear.forward, functools.partial(torch.mm, mat2=W), lambda x: torch.mm(x, W)):
        assert cpu()(function)(X).shape == (5, 7)
    assert served() == 4


def generator():
    yield torch.mm(X, W)


async def coroutine():
    return torch.mm(X, W)


async def asynchronous():
    yield torch.mm(X, W)


class Callable:
    def __call__(self):
        yield torch.mm(X, W)


@pytest.mark.parametrize(
    "function",
    [generator, coroutine, asynchronous, Callable, Callable(), functools.partial(generator), 3],
    ids=["generator", "coroutine", "asynchronous generator", "class", "object", "partial", "number"],
)
def test_what_does_not_run_when_called_is_not_decorated(function):
    with pytest.raises(errors.ArgumentError, match=r"needed: a function whose body runs.*with minblas.accelerate"):
        cpu()(function)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (generator, r"@minblas.accelerate\(\)"),
        (7, "is given a int"),
        ("gpu", "'gpu'; needed: 'cuda' or 'cpu'"),
        (["cpu", "meta"], "'meta'"),
        ((), "is empty"),
    ],
)
def test_devices_that_are_none(devices, message):
    with pytest.raises(errors.ArgumentError, match=message):
        minblas.accelerate(devices)
    with pytest.raises(errors.ArgumentError, match=message):
        minblas.accelerate.enable(devices)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: it is the default")
def test_without_a_gpu_the_cpu_is_the_default():
    with minblas.accelerate():
        assert minblas.accelerate.devices() == ("cpu",)
        torch.mm(X, W)
    assert served() == 1


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built with CUDA")
def test_cuda_without_a_torch_that_has_it():
    with pytest.raises(errors.ArgumentError, match="a torch that is built for CUDA"):
        minblas.accelerate("cuda")


def test_a_device_may_be_torchs_own_object():
    with minblas.accelerate(torch.device("cpu")):
        assert minblas.accelerate.devices() == ("cpu",)


# others at the same ops


def test_what_another_library_covers_before_is_what_is_left_to():
    calls = []
    original = torch.library.get_kernel("aten::mm", "CPU")

    def other(keyset, self, mat2):
        calls.append(self.dtype)
        return original.call_boxed(keyset, self, mat2)

    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", other, "CPU", with_keyset=True, allow_override=True)
    try:
        with cpu():
            torch.mm(X, W)
            torch.mm(X.double(), W.double())
        assert calls == [torch.float64]
        torch.mm(X, W)
        assert calls == [torch.float64, torch.float32]
    finally:
        library._destroy()


def test_what_another_library_covers_inside_stays_covered():
    calls = []
    library = torch.library.Library("aten", "IMPL")
    with cpu():
        ours = torch.library.get_kernel("aten::bmm", "CPU")

        def other(keyset, self, mat2):
            calls.append(1)
            return self.new_zeros(())

        library.impl("mm", other, "CPU", with_keyset=True, allow_override=True)
        torch.mm(X, W)
    try:
        torch.mm(X, W)
        assert len(calls) == 2
        with pytest.raises(RuntimeError, match="invalidated"):
            ours.call_boxed(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), X[None], W[None])
    finally:
        library._destroy()


# the way to torch's own kernel


def test_minblas_own_use_of_torch_reaches_torch():
    with cpu():
        forced, wide = minblas.gemm(X, W, variant="aten"), minblas.gemm(X.double(), W.double())
    close(forced, X, W)
    close(wide, X.double(), W.double())
    stats = minblas.stats()
    assert stats.calls == {"aten": 2}
    assert (stats.accelerated, stats.left_to_torch) == ({}, {})


@pytest.fixture
def opaque():
    """A variant that launches by itself, and does so through torch: the list grows with its calls."""
    launches = []

    def launch(a, b, out, *, alpha=1.0, beta=0.0, c=None, bias=None):
        launches.append(served())
        torch.mm(a, b, out=out)
        torch.addmm(out, a, b, beta=0, out=out)

    minblas.register_variant("test.opaque", launch=launch, dtypes=["fp32"], layouts=["nn"], interpretable=True, verify=False)
    yield launches
    minblas.unregister("test.opaque")


def test_a_variant_that_launches_through_torch_does_not_come_back_to_itself(opaque):
    with minblas.options(variant="test.opaque"), cpu():
        products = [torch.mm(X, W) for _ in range(2)]
        minblas.gemm(X, W)
    assert len(opaque) == 3
    close(products[0], X, W)
    close(products[1], X, W)
    assert minblas.stats().accelerated == {"mm": {"test.opaque": 2}}


def test_a_check_judges_by_torch_and_not_by_itself(opaque):
    with cpu():
        assert minblas.check("test.opaque", quick=True).ok
    assert len(opaque) > 1
    assert (minblas.stats().accelerated, minblas.stats().left_to_torch) == ({}, {})


def test_suspended():
    with cpu():
        with minblas.accelerate.suspended():
            torch.mm(X, W)
            thread = threading.Thread(target=torch.mm, args=(X, W))
            thread.start()
            thread.join()
        assert served() == 1
        torch.mm(X, W)
        assert served() == 2


def test_a_kernel_that_does_not_launch_leaves_the_call_to_torch(monkeypatch):
    from minblas.plan import LaunchPlan

    def broken(*args):
        raise OSError("no driver")

    monkeypatch.setattr(LaunchPlan, "run", broken)
    c = torch.randn(5, 7)
    with cpu():
        product, total = torch.mm(X, W), torch.addmm(c, X, W)
    close(product, X, W)
    close(total, X, W, 1.0, 1.0, c)
    stats = minblas.stats()
    dispatch.QUARANTINE.forgive()
    dispatch.forget_plans()
    with cpu():
        with pytest.raises(errors.LaunchError, match="no driver"):  # c may be spoiled
            c.addmm_(X, W)
        c.addmm_(X, W, beta=0)
    close(c, X, W)
    assert stats.accelerated == {}
    assert stats.left_to_torch["mm"] == {"its kernel did not compile or launch": 1}
    assert any("no driver" in why for why in stats.quarantined.values())


def test_no_memory_for_a_workspace_leaves_the_call_to_torch(monkeypatch):
    from minblas.plan import LaunchPlan

    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(LaunchPlan, "run", full)
    with cpu():
        product = torch.mm(X, W)
    close(product, X, W)
    assert minblas.stats().left_to_torch == {"mm": {"no memory for a kernel or its workspace": 1}}
    assert not minblas.stats().quarantined


# options


def test_options_around_hold_in_other_threads_unless_they_have_their_own():
    def elsewhere(options=None):
        def run():
            if options is None:
                torch.mm(X, W)
            else:
                with minblas.options(**options):
                    torch.mm(X, W)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    with minblas.options(variant="persistent"), cpu():
        elsewhere()
        assert minblas.stats(reset=True).accelerated == {"mm": {"persistent": 1}}
        elsewhere({"variant": "tiled"})
        assert minblas.stats(reset=True).accelerated == {"mm": {"tiled": 1}}
        with minblas.options(variant="tiled"), cpu():
            elsewhere()
            assert minblas.stats(reset=True).accelerated == {"mm": {"tiled": 1}}
        elsewhere()
        assert minblas.stats(reset=True).accelerated == {"mm": {"persistent": 1}}
    with cpu():
        elsewhere()
        assert "persistent" not in minblas.stats().accelerated["mm"]


def test_options_that_forbid_a_kernel_leave_the_call_to_torch():
    with cpu(), minblas.options(variant="gemv"):
        product = torch.mm(X, W)
    close(product, X, W)
    assert minblas.stats().left_to_torch == {"mm": {"the variant that is forced cannot serve it": 1}}


def test_options_that_misspell_a_variant_are_told_of():
    with cpu(), minblas.options(exclude={"tild"}):
        torch.mm(X, W)
    assert minblas.stats().left_to_torch == {"mm": {"the options name a variant that there is not": 1}}


# what is said


def test_stats_by_op_and_variant_and_what_was_left_and_why():
    with cpu():
        for _ in range(3):
            torch.mm(X, W)
            torch.nn.functional.linear(X, W.T, torch.zeros(7))
            torch.mm(X.double(), W.double())
        torch.mm(X[:0], W)
        torch.mm(X, W, out=torch.empty(0))
    stats = minblas.stats()
    assert stats.accelerated == {"mm": {"tiled": 3}, "addmm": {"tiled": 3}}
    assert stats.left_to_torch == {
        "mm": {"no kernel of the zoo can serve this problem": 3, "nothing to compute, or nothing to sum": 1},
        "mm.out": {"out= has another shape, which torch resizes or refuses": 1},
    }
    assert stats.calls == {"tiled": 6}
    assert (stats.warm_calls, stats.cold_calls) == (4, 2)
    assert "accelerate served mm: 3 tiled" in str(stats)
    assert "accelerate left mm to torch: 3 no kernel of the zoo can serve this problem; 1 nothing to compute" in str(stats)
    assert json.loads(json.dumps(stats.as_dict()))["accelerated"]["addmm"] == {"tiled": 3}
    assert minblas.stats(reset=True) == stats
    assert (minblas.stats().accelerated, minblas.stats().left_to_torch) == ({}, {})
    with cpu():
        torch.mm(X, W)
    assert minblas.stats().accelerated == {"mm": {"tiled": 1}}


def test_stats_say_what_they_cannot_see():
    from torch._inductor import config

    with cpu():  # where everything goes past it, nothing was served
        pass
    assert minblas.stats().notes == ()
    with config.patch(cpp_wrapper=True):
        assert "past the dispatcher" in str(minblas.stats())


def test_entering_again_keeps_no_tensor_and_few_kernels():
    x = torch.randn(5, 6)
    gone = weakref.ref(x)
    with cpu():
        torch.mm(x, W)
    del x
    gc.collect()
    assert gone() is None
    for _ in range(5):
        with cpu():
            pass
    assert len(accelerate_switch.SWITCH._removed) <= accelerate_switch._MOST_KEPT


def test_a_process_may_end_inside():
    code = """
        import torch, minblas
        minblas.accelerate.enable("cpu")
        block = minblas.accelerate("cpu")
        block.__enter__()
        torch.mm(torch.ones(4, 4), torch.ones(4, 4))
        assert minblas.stats().accelerated, minblas.stats()
        print("end")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr

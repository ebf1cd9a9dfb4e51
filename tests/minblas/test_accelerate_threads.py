"""accelerate() and threads: it is the process's; entering and leaving while others compute; autograd's threads."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch

import minblas
from minblas import accelerate_product, accelerate_switch
from tests.minblas.accelerating import covered, served, tables
from tests.minblas.oracle import close

pytestmark = pytest.mark.usefixtures("nothing_remembered")


def cpu():
    return minblas.accelerate(devices="cpu")


def test_all_threads_are_inside():
    a, b = torch.randn(5, 6), torch.randn(6, 7)
    results = []
    with cpu():
        threads = [threading.Thread(target=lambda: results.append(torch.mm(a, b))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert served() == 4
    for result in results:
        close(result, a, b)


def test_blocks_of_several_threads_overlap():
    """The last to leave puts torch's kernels back, whoever it is."""
    before = tables()
    inside, leave = threading.Barrier(4), [threading.Event() for _ in range(3)]
    left = [threading.Event() for _ in range(3)]

    def block(i):
        with cpu():
            inside.wait(10)
            leave[i].wait(10)
        left[i].set()

    threads = [threading.Thread(target=block, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    for i in (1, 0, 2):
        assert covered()
        leave[i].set()
        assert left[i].wait(10)
    assert tables() == before
    for thread in threads:
        thread.join()


def test_two_threads_in_one_object_take_their_own_options_out():
    """The first to come is the first to leave, with options that the other does not have."""
    shared, taken = cpu(), accelerate_product._taken
    second_is_in, first_is_out = threading.Event(), threading.Event()

    def second():
        with minblas.options(variant="tiled"), shared:
            second_is_in.set()
            first_is_out.wait(10)

    thread = threading.Thread(target=second)
    with minblas.options(exclude={"gemv"}), shared:
        thread.start()
        assert second_is_in.wait(10)
    assert [options.variant for options in accelerate_product._taken[len(taken) :]] == ["tiled"]
    first_is_out.set()
    thread.join()
    assert accelerate_product._taken == taken
    assert covered() == set()


HAMMER = """
    import sys, threading, time
    import torch
    import minblas
    from minblas import accelerate_switch

    accelerate_switch._MOST_KEPT = int(sys.argv[1])
    x = torch.ones(4, 4, dtype=torch.int32)  # torch's own: as many calls as can be
    end, wrong, calls = time.monotonic() + float(sys.argv[2]), [], [0] * 3

    def hammer(i):
        try:
            while time.monotonic() < end and not wrong:
                assert torch.mm(x, x)[0, 0] == 4
                calls[i] += 1
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=hammer, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end and not wrong:
        with minblas.accelerate("cpu"):
            pass
    for thread in threads:
        thread.join()
    print(len(wrong), min(calls) > 0)
"""


def test_entering_and_leaving_while_others_compute():
    """torch frees a kernel that is taken out, even where another thread has just looked it up: ours live on for that thread."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HAMMER), str(accelerate_switch._MOST_KEPT), "4"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "0 True\n"), done.stdout + done.stderr


def test_what_was_taken_out_is_kept_for_a_while_and_then_freed(monkeypatch):
    switch = accelerate_switch.Switch()
    switch.add(["cpu"])
    switch.remove(["cpu"])
    assert len(switch._removed) == 1
    monkeypatch.setattr(accelerate_switch, "_KEPT_S", 0.0)
    time.sleep(0.01)
    switch.add(["cpu"])
    switch.remove(["cpu"])
    assert len(switch._removed) == 1  # the first is gone


def test_a_backward_pass_begun_in_another_thread():
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    with minblas.options(variant="persistent"), cpu():
        loss = torch.mm(x, w).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    close(x.grad, torch.ones(3, 5), w.T)
    assert minblas.stats().accelerated == {"mm": {"persistent": 2}}


def test_counts_add_up_over_threads():
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with cpu():
        torch.mm(a, b)
        threads = [threading.Thread(target=lambda: [torch.mm(a.int(), b.int()) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert minblas.stats().left_to_torch == {"mm": {"integers, complex numbers and floats of 8 bits": 800}}

"""The plan cache: bounded, fair to what is used, right under threads, never stale."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pytest
import torch

import minblas
from heuristics import store
from heuristics.archs import ARCHS
from kernel_zoo import catalog
from minblas import dispatch, registry, settings
from minblas.cache import CACHE, PlanCache
from minblas.errors import SettingsError


@dataclass
class Plan:
    used: bool = False
    calls: int = 0
    provisional: bool = False
    variant: str = "tiled"
    reason: str = ""


def test_bounded_with_second_chances():
    cache = PlanCache(3)
    for key in range(3):
        cache.put(key, Plan(used=key == 0), cache.generation)
    cache.put(3, Plan(), cache.generation)
    assert [cache.get(key) is not None for key in range(4)] == [True, False, True, True]
    for key in range(10, 1000):
        cache.put(key, Plan(used=True), cache.generation)
        assert len(cache) <= 3


def test_a_stale_plan_is_not_kept():
    cache = PlanCache(3)
    generation = cache.generation
    cache.clear()
    cache.put("key", Plan(), generation)
    assert len(cache) == 0


def test_provisional_plans_are_dropped():
    cache = PlanCache(3)
    cache.put("stands in", Plan(provisional=True), cache.generation)
    cache.put("stays", Plan(), cache.generation)
    cache.drop_provisional()
    assert cache.get("stands in") is None
    assert cache.get("stays") is not None


def test_its_size_is_a_setting(monkeypatch):
    monkeypatch.setenv("MINBLAS_PLAN_CACHE", "7")
    assert settings.plan_cache_size() == 7
    for bad in ("0", "many", "-1"):
        monkeypatch.setenv("MINBLAS_PLAN_CACHE", bad)
        with pytest.raises(SettingsError, match=bad):
            settings.plan_cache_size()


SHAPES = [(m, n, 16) for m in (1, 2, 3) for n in (4, 5, 6)]


def hammer(threads: int, rounds: int, meanwhile) -> list[object]:
    """Many threads over the same shapes from a cold start; returns what went wrong."""
    wrong: list[object] = []
    start = threading.Barrier(threads)

    def work() -> None:
        try:
            start.wait()
            for _ in range(rounds):
                for m, n, k in SHAPES:
                    a, b = torch.full((m, k), 2.0), torch.full((k, n), 3.0)
                    if not minblas.gemm(a, b, variant="aten").eq(6.0 * k).all():
                        wrong.append((m, n))
        except Exception as error:  # a thread's failure must reach the test
            wrong.append(error)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    meanwhile()
    for thread in running:
        thread.join()
    return wrong


def test_many_threads_many_shapes_cold():
    dispatch.forget_plans()
    minblas.stats(reset=True)
    assert not hammer(8, 20, lambda: None)
    assert sum(minblas.stats().calls.values()) == 8 * 20 * len(SHAPES)
    assert len(CACHE) == len(SHAPES)


def test_threads_while_variants_come_and_go():
    def register_and_forget() -> None:
        for i in range(20):
            dispatch.forget_plans()
            if i % 5 == 0:
                dispatch.register(like_aten(f"test.thread{i}"))
        for i in range(0, 20, 5):
            dispatch.unregister(f"test.thread{i}")

    assert not hammer(6, 10, register_and_forget)


def like_aten(name: str):
    return replace(catalog.get("aten"), name=name, origin="user")


def test_threads_in_the_interpreter():
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(minblas.gemm(a, b, variant="tiled"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(torch.allclose(result, a @ b, atol=1e-5) for result in results)


def test_a_registration_is_seen_by_warm_calls():
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    minblas.gemm(a, b, variant="aten")
    assert len(CACHE) > 0
    dispatch.register(like_aten("test.late"))
    try:
        assert len(CACHE) == 0
        minblas.gemm(a, b, variant="test.late")
        assert minblas.stats().calls["test.late"] == 1
    finally:
        dispatch.unregister("test.late")
    with pytest.raises(minblas.errors.UnknownVariantError):
        minblas.gemm(a, b, variant="test.late")


def test_tables_read_before_a_change_are_not_kept_after_it(monkeypatch):
    reads: list[str] = []
    changes: list[threading.Thread] = []

    def slow_read(arch):
        reads.append(arch.name)
        if len(reads) == 1:  # another thread saves a table while this one reads
            changes.append(threading.Thread(target=dispatch.forget_plans))
            changes[0].start()
            changes[0].join(0.2)
        return ()

    dispatch.forget_plans()
    monkeypatch.setattr(store, "user_tables", slow_read)
    dispatch.tables(ARCHS["h200"])
    changes[0].join()
    dispatch.tables(ARCHS["h200"])
    monkeypatch.undo()
    dispatch.forget_plans()
    assert reads == ["h200", "h200"]


def test_a_record_is_exchanged_in_its_place():
    for name in ("test.first", "test.second"):
        dispatch.register(like_aten(name))
    try:
        registry.exchange(replace(like_aten("test.first"), summary="another"))
        registry.exchange(like_aten("test.unknown"))
        assert [variant.name for variant in dispatch.registry()][-2:] == ["test.first", "test.second"]
        assert dispatch.get("test.first").summary == "another"
    finally:
        dispatch.unregister("test.first")
        dispatch.unregister("test.second")

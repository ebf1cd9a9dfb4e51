"""What several tests of the runtime start from."""

import pytest

import minblas
from minblas import dispatch, log
from tests.minblas.fake_gpu import gpu
from tests.minblas.warming import served

__all__ = ["gpu", "nothing_remembered", "served"]


@pytest.fixture
def nothing_remembered(monkeypatch):
    """No plans, no failures and no counts, before and after; nothing was said before."""
    monkeypatch.setattr(log, "_SAID", set())
    dispatch.forget_plans()
    dispatch.QUARANTINE.forgive()
    minblas.stats(reset=True)
    yield
    dispatch.QUARANTINE.forgive()
    dispatch.forget_plans()

import pytest

from heuristics import notices, store


@pytest.fixture(autouse=True)
def _nothing_said_yet():
    """Warnings are said once per process: each test starts a new one."""
    notices.forget()
    yield
    notices.forget()


@pytest.fixture
def home(monkeypatch, tmp_path):
    """An empty user directory and empty packaged tables."""
    user, packaged = tmp_path / "user", tmp_path / "packaged"
    user.mkdir()
    packaged.mkdir()
    monkeypatch.setattr(store, "user_dir", lambda: user)
    monkeypatch.setattr(store, "PACKAGED", packaged)
    monkeypatch.delenv("MINBLAS_TABLE", raising=False)
    return tmp_path

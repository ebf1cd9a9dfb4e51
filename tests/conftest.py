"""What every test may count on: no tuned tables or settings of the person who runs them, and markers and options that exist."""

from __future__ import annotations

import importlib.util
import os
import tempfile

import pytest

# Before anything of ours is imported: user tables and settings are found through these.
_HOME = tempfile.TemporaryDirectory(prefix="minblas-tests-")
for _name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
    os.environ[_name] = _HOME.name
for _name in [name for name in os.environ if name.startswith("MINBLAS_")]:
    del os.environ[_name]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The project's `timeout` setting is pytest-timeout's; without that plugin it must not be an unknown one."""
    if importlib.util.find_spec("pytest_timeout") is None:
        parser.addini("timeout", "seconds a test may take (needs pytest-timeout)")


def pytest_configure(config: pytest.Config) -> None:
    """Markers, here too so that a part of the suite runs without the project's file."""
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
    config.addinivalue_line("markers", "slow: left out by -m 'not slow' while editing")

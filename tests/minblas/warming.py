"""What the tests of warm calls share."""

from __future__ import annotations

import pytest
import torch

from minblas import warm


@pytest.fixture
def served(monkeypatch):
    """The routes that served a call, in order."""
    found: list[warm.Route] = []
    for kind in (warm.Route, warm.DirectRoute):
        real = kind.serve

        def serve(self, *arguments, real=real):
            result = real(self, *arguments)
            if result is not None:
                found.append(self)
            return result

        monkeypatch.setattr(kind, "serve", serve)
    return found


def a_and_b(m=8, k=24, n=16, dtype=torch.float32):
    return torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)


def thrice(call):
    """A call made cold, by its whole key, and by a route."""
    return [call() for _ in range(3)]

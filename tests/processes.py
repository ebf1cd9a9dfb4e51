"""Other processes that are to import what the tests do."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(**variables: str) -> dict[str, str]:
    """This process's, with the tree first on the path and what else is on it behind."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **variables}

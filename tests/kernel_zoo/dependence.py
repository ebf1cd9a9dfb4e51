"""Where a kernel's machine code, as PTX, waits for the launch before it."""

from __future__ import annotations

import re

_MEMORY = r"\b(?:ld|st|atom|red|cp|prefetch|prefetchu|discard|applypriority)\b[.:\w]*(?:global|const)|cp\.async\.bulk|multimem"


def assert_follows_the_launch_before(ptx: str) -> None:
    """It lets the next launch be started, waits for the one before it, and only then comes to memory that other launches know."""
    found = re.findall(rf"griddepcontrol\.\w+|{_MEMORY}", ptx)
    assert found[:2] == ["griddepcontrol.launch_dependents", "griddepcontrol.wait"], found[:4]
    assert len(found) > 2, "no access to memory was recognised"
    assert not any(step.startswith("griddepcontrol") for step in found[2:]), "more than once"

"""show_versions: what a bug report needs."""

from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path
from typing import Any, Final

_PACKAGES: Final = ("minblas", "torch", "triton", "numpy", "pydantic", "rich", "typer")


def versions() -> dict[str, Any]:
    """Versions, devices and settings as data. Asks torch about its GPUs, which wakes them."""
    from minblas.environment import version  # imports heuristics, which `shadowed` has yet to look at when this file is imported

    found: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        found[package] = version(package) or ("from source" if package == "minblas" else "absent")
    import torch

    found["cuda"] = torch.version.cuda or "none"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found["gpus"] = [
        f"{torch.cuda.get_device_name(i)}, sm_{''.join(map(str, torch.cuda.get_device_capability(i)))}" for i in range(count)
    ]
    from minblas import dispatch, settings
    from minblas.device import arch_of

    options = settings.current()
    arch = arch_of(torch.device("cuda", 0) if count else torch.device("cpu"))
    found["chooses for"] = arch.name
    found["tables"] = [f"{table.name} ({len(table.entries)} rows)" for table in dispatch.tables(arch)]
    found["variants"] = [variant.name for variant in dispatch.registry()]
    found["options"] = {name: getattr(options, name) for name in sorted(type(options).__slots__) if name != "token"}
    shadow = shadowed("bench")
    if shadow:
        found["bench"] = f"another package's, at {shadow}: the command line is not reachable from here"
    return found


def show_versions() -> None:
    """Print versions, devices and settings."""
    facts = versions()
    width = max(map(len, facts))
    for name, value in facts.items():
        lines = (
            value if isinstance(value, list) else [f"{k}={v!r}" for k, v in value.items()] if isinstance(value, dict) else [value]
        )
        sys.stdout.write(f"{name:<{width}}  {', '.join(map(str, lines)) or 'none'}\n")


def shadowed(package: str) -> str:
    """Where a package of ours is found if that is not beside this one; "" where all is well or it is not installed."""
    home = Path(__file__).resolve().parent.parent
    module = sys.modules.get(package)
    spec = getattr(module, "__spec__", None) or importlib.util.find_spec(package)
    origin = getattr(spec, "origin", None) or next(iter(getattr(spec, "submodule_search_locations", None) or ()), None)
    if spec is None or origin is None:
        return ""
    path = Path(origin).resolve()
    beside = path.parent.parent if path.name == "__init__.py" else path.parent
    return "" if beside == home else str(path)

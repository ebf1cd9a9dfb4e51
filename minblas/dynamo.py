"""Keeping torch.compile's tracer out of host code that is to run as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def unseen_by_dynamo(functions: Iterable[Callable[..., Any]], reason: str) -> None:
    """Let functions, and all that they call, run untraced, and end a graph where one is called while it is traced.

    A kernel that the dispatcher calls from a frame which dynamo left to Python would otherwise be traced, and guarded and compiled
    anew for every shape. Costs nothing at the call, and imports nothing of torch's compiler.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for function in functions:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        frames.set_code_exec_strategy(function.__code__, skip)

"""The identity of a kernel: a hash of its source and of every device function it reaches.

Comments, docstrings and formatting are left out (the syntax tree is hashed), so that a table row survives an edit that cannot
change what runs. What a decorator names in do_not_specialize does. Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterable
from typing import Any


def digest(functions: Iterable[Any]) -> str:
    """Twelve hexadecimal digits over the transitive closure of jitted functions (objects with `.fn`) or plain functions."""
    trees: dict[str, str] = {}
    queue = [function for function in functions if function is not None]
    while queue:
        function = queue.pop()
        plain = getattr(function, "fn", function)
        name = f"{getattr(plain, '__module__', '')}.{getattr(plain, '__qualname__', repr(plain))}"
        if name in trees:
            continue
        tree = _tree(plain)
        trees[name] = (_dump(tree) if tree is not None else name) + _unspecialised(function)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tree is not None else set()
        reachable = getattr(plain, "__globals__", {})
        queue.extend(reachable[name] for name in sorted(names) if _is_own_device_function(reachable.get(name)))
    text = "\n".join(f"{name}: {trees[name]}" for name in sorted(trees))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def unspecialised(kernel: Any) -> tuple[frozenset[str], frozenset[str]]:
    """The parameters that a jitted function's decorator names in do_not_specialize, and in do_not_specialize_on_alignment."""
    parameters = getattr(kernel, "params", ())
    return (
        frozenset(each.name for each in parameters if each.do_not_specialize),
        frozenset(each.name for each in parameters if each.do_not_specialize_on_alignment),
    )


def _unspecialised(function: Any) -> str:
    """What a decorator says of parameters that a binary is not made for, which changes the code; empty where it names none."""
    named = [sorted(names) for names in unspecialised(function)]
    return f" {named}" if any(named) else ""


def _dump(node: Any) -> str:
    """A syntax tree as text that is the same in every Python version: empty fields, which versions add and drop, are left out."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
        return f"{type(node).__name__}({', '.join(f'{name}={_dump(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    return repr(node)


def _is_own_device_function(value: Any) -> bool:
    return callable(getattr(value, "fn", None)) and not getattr(value.fn, "__module__", "").startswith("triton.")


def _tree(function: Any) -> ast.Module | None:
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
            if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return tree

"""What Gluon's front end makes of Python other than Python does, and what no GPU is needed to see."""

import ast
import inspect
import textwrap
from itertools import product

import pytest

from kernel_zoo.kernels import _device, _gluon, ping_pong, warp_specialised

MODULES = (_gluon, warp_specialised, ping_pong)


def kernels():
    found = {}
    for module in MODULES:
        for value in vars(module).values():
            if callable(getattr(value, "is_gluon", None)) and value.is_gluon():
                found[value.fn.__qualname__] = value.fn
    return found


def other_names(function_source):
    """Lines in loops that give a value one more name: `x = y`, also as a part of `x, z = y, 1`."""
    found = []
    for loop in ast.walk(ast.parse(textwrap.dedent(function_source))):
        if not isinstance(loop, ast.For | ast.While):
            continue
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                values = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value]
                for value in values:
                    arms = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                    if any(isinstance(arm, ast.Name) for arm in arms) and not isinstance(node.value, ast.Call):
                        found.append(ast.unparse(node))
    return found


def test_every_device_function_is_looked_at():
    assert {"produce", "start_products", "consume", "consume_alternately", "warp_specialised_kernel"} <= set(kernels())


@pytest.mark.parametrize("name", sorted(kernels()))
def test_no_value_gets_a_second_name_in_a_loop(name):
    assert other_names(inspect.getsource(kernels()[name])) == []


@pytest.mark.parametrize("line", ["before = slot", "a, before = (1, slot)", "before: int = slot", "before = slot if x else 0"])
def test_such_a_name_is_found(line):
    assert other_names(
        f"def f(slot, x):\n    for i in range(3):\n        if x:\n            {line}\n        slot = slot + 1\n"
    ) == [line]


def test_tiles_are_walked_in_the_order_of_the_other_kernels():
    for tiles_m, tiles_n, group in product((1, 3, 8, 20), (1, 5, 7), (1, 4, 8, 64)):
        walk = [_gluon.grouped_tile.fn(i, tiles_m, tiles_n, group) for i in range(tiles_m * tiles_n)]
        assert walk == [_device.tile_order.fn(i, tiles_m, tiles_n, group) for i in range(tiles_m * tiles_n)]
        assert sorted(walk) == list(product(range(tiles_m), range(tiles_n)))

"""A kernel's digest: changes with what runs, not with what is said about it."""

import importlib.util

import pytest

from kernel_zoo import catalog
from kernel_zoo.digest import digest

SOURCE = '''
from kernel_zoo.triton_compat import tl, triton


@triton.jit
def helper(x):
    """Adds one."""
    return x + 1


@triton.jit
def unused(x):
    return x


@triton.jit
def kernel(X, N: tl.constexpr):
    """Doc."""
    # why
    x = tl.load(X + tl.arange(0, N))
    tl.store(X + tl.arange(0, N), helper(x))


def plain(x):
    return x
'''


@pytest.fixture
def load(tmp_path):
    count = iter(range(100))

    def load(source):
        path = tmp_path / f"module{next(count)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("digested", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# why", "# another reason"),
        ('"""Doc."""', '"""Other."""'),
        ('"""Adds one."""', ""),
        ("x + 1", "(x  +  1)"),
        ("    return x\n\n\n@", "    return 2 * x\n\n\n@"),
    ],
    ids=["comment", "docstring", "helper's docstring", "spaces", "unreached function"],
)
def test_the_digest_stays(load, old, new):
    assert old in SOURCE
    assert digest([load(SOURCE).kernel]) == digest([load(SOURCE.replace(old, new)).kernel])


@pytest.mark.parametrize(
    ("old", "new"),
    [("X + tl.arange(0, N), helper", "X + 1 + tl.arange(0, N), helper"), ("x + 1", "x + 2"), ("N: tl.constexpr", "N")],
    ids=["kernel", "helper", "signature"],
)
def test_the_digest_changes(load, old, new):
    assert old in SOURCE
    assert digest([load(SOURCE).kernel]) != digest([load(SOURCE.replace(old, new)).kernel])


def test_plain_functions_and_order(load):
    module = load(SOURCE)
    assert digest([module.plain]) == digest([module.plain, None])
    assert digest([module.kernel, module.unused]) == digest([module.unused, module.kernel])
    assert digest([module.kernel]) != digest([module.kernel, module.unused])


def test_every_variant_has_its_own_digest_of_twelve_digits():
    digests = [variant.digest for variant in catalog.VARIANTS]
    assert len(set(digests)) == len(digests)
    assert all(len(text) == 12 and int(text, 16) >= 0 for text in digests)


def test_shared_device_code_is_part_of_every_digest(monkeypatch):
    from kernel_zoo.kernels import _device, tiled

    before = digest([tiled.tiled_kernel])
    monkeypatch.setitem(tiled.tiled_kernel.fn.__globals__, "finish", _device.store_tile)
    assert digest([tiled.tiled_kernel]) != before


def test_the_digest_is_the_same_in_every_python():
    """A table is measured on one machine and read on others: syntax trees gain and lose empty fields between Python versions."""

    def sample(a, b=1, *, c: int = 2):
        """Left out."""
        return [x for x in (a, b, c) if x > -1]

    assert digest((sample,)) == "6a54897bd2e6"

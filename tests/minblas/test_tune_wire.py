"""Variants on their way to another process, without one: what can be sent arrives as it was."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial

import pytest

import minblas
from kernel_zoo.catalog import VARIANTS
from kernel_zoo.spec import GemmProblem
from minblas.settings import named_arch
from minblas.tune_wire import pack, unpack
from tests.minblas import user_kernels


@pytest.fixture
def made():
    names = []

    def register(recipe, **options):
        names.append(f"me.v{len(names)}")
        given = {"dtypes": ["bf16"], "layouts": ["nn"], "verify": False, **options}
        given |= {} if "launch" in options else {"candidates": user_kernels.TILES}
        return minblas.register_variant(names[-1], recipe, **given)

    yield register
    for name in names:
        minblas.unregister(name)


def sent(variant):
    return pack({variant.name: variant})


def test_a_recipe_arrives_as_it_was(made):
    variant = made(user_kernels.plain_recipe, summary="mine")
    parcels, left = sent(variant)
    assert left == {}
    known, missing = unpack(parcels)
    assert missing == {}
    arrived = known[variant.name]
    assert (arrived.name, arrived.summary, arrived.digest, arrived.origin) == (variant.name, "mine", variant.digest, "user")
    problem, arch = GemmProblem.of(64, 64, 64), named_arch("h200")
    assert arrived.plan(problem, user_kernels.TILES[0], arch) == variant.plan(problem, user_kernels.TILES[0], arch)
    assert arrived.refusal(GemmProblem.of(64, 64, 64, "fp64"), arch) == variant.refusal(GemmProblem.of(64, 64, 64, "fp64"), arch)


def test_a_launcher_arrives(made):
    variant = made(None, launch=user_kernels.torch_launch)
    known, missing = unpack(sent(variant)[0])
    assert (known[variant.name].launch, missing) == (variant.launch, {})


def test_a_partial_of_something_importable_arrives(made):
    variant = made(partial(user_kernels.plain_recipe))
    assert variant.name in unpack(sent(variant)[0])[0]


def test_the_zoo_goes_by_name():
    known = {variant.name: variant for variant in VARIANTS}
    assert pack(known) == ({}, {})
    assert unpack({})[0] == known


def _in_a_script(call, tile):
    return user_kernels.plain_recipe(call, tile)


@pytest.mark.parametrize("recipe", [user_kernels.recipe_with(""), lambda call, tile: user_kernels.recipe(call, tile)])
def test_what_has_no_name_to_import_is_left_with_a_reason(made, recipe):
    variant = made(recipe)
    parcels, left = sent(variant)
    assert parcels == {}
    assert "<locals>" in left[variant.name] or "<lambda>" in left[variant.name]


def test_what_the_running_script_defines_is_left_with_a_remedy(made, monkeypatch):
    monkeypatch.setattr(_in_a_script, "__module__", "__main__")
    variant = made(_in_a_script)
    assert "put it into a module of its own" in sent(variant)[1][variant.name]


def test_a_kernel_that_cannot_be_imported_is_left(made, monkeypatch):
    variant = made(user_kernels.plain_recipe)
    monkeypatch.setattr(user_kernels, "tutorial_kernel", None)
    assert "tutorial_kernel cannot be imported" in sent(variant)[1][variant.name]


def test_one_whose_source_changed_or_that_cannot_be_built_is_missing(made):
    variant = made(user_kernels.plain_recipe)
    parcels, _ = sent(variant)
    data, digest = parcels[variant.name]
    known, missing = unpack({"me.old": (data, "0" * len(digest)), "me.broken": (data[:-3], digest)})
    assert "source has changed" in missing["me.old"]
    assert set(missing) == {"me.old", "me.broken"}
    assert not {"me.old", "me.broken"} & set(known)


def test_what_is_not_a_default_is_sent():
    variant = replace(VARIANTS[0], origin="user", name="me.copy")
    data, _ = sent(variant)[0]["me.copy"]
    assert pickle.loads(data) == variant

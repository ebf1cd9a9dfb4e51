"""Options: scoped, process-wide, from the environment; wrong ones are refused in words."""

from __future__ import annotations

import contextvars
import logging
import threading

import pytest

from heuristics import archs
from minblas import log, settings
from minblas.errors import SettingsError
from minblas.settings import from_environment, options


def test_a_block_overrides_and_restores():
    before = settings.current()
    with options(variant="tiled", exclude="tma") as inside:
        assert settings.current() is inside
        assert inside.variant == "tiled"
        assert inside.exclude == {"tma"}
        with options(on_cold="raise"):
            assert settings.current().variant == "tiled"
            assert settings.current().on_cold == "raise"
        assert settings.current() is inside
    assert settings.current() is before


def test_a_block_is_restored_after_an_error():
    before = settings.current()
    with pytest.raises(ZeroDivisionError), options(variant="tiled"):
        raise ZeroDivisionError
    assert settings.current() is before


def test_equal_options_share_a_token_and_others_do_not():
    with options(exclude=["a", "b"]) as one:
        pass
    with options(exclude=("b", "a")) as two:
        pass
    with options(exclude=["a"]) as three:
        pass
    assert one.token == two.token != three.token
    assert one.token != settings.current().token


def test_tokens_are_bounded_and_never_reused(monkeypatch):
    monkeypatch.setattr(settings, "_MOST_TOKENS", 8)
    seen = set()
    for limit in range(50):
        with options(workspace_limit=limit) as made:
            assert made.token not in seen
            seen.add(made.token)
    assert len(settings._TOKENS) <= 8


def test_as_a_decorator():
    @options(variant="tiled")
    def inside():
        return settings.current().variant

    assert inside() == "tiled" == inside()
    assert settings.current().variant is None


def test_a_decorator_without_parentheses_and_options_without_names_are_refused():
    with pytest.raises(SettingsError, match=r"a decorator is written @minblas\.options\("):

        @options
        def inside():
            pass

    with pytest.raises(SettingsError, match=r"options is given 'tiled'; needed: options by their names"):
        options("tiled")


def test_blocks_do_not_leak_into_other_threads_and_set_does():
    seen: dict[str, object] = {}

    def look(name: str) -> None:
        seen[name] = settings.current().on_cold

    with options(on_cold="aten"):
        thread = threading.Thread(target=look, args=("plain",))
        copied = contextvars.copy_context()
        thread.start()
        thread.join()
    thread = threading.Thread(target=copied.run, args=(look, "copied"))
    thread.start()
    thread.join()
    before = options.set(on_cold="raise")
    try:
        thread = threading.Thread(target=look, args=("set",))
        thread.start()
        thread.join()
        assert options.get().on_cold == "raise"
    finally:
        options.restore(before)
    assert seen == {"plain": "compile", "copied": "aten", "set": "raise"}
    assert settings.current().on_cold == "compile"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"on_cold": "explode"}, "'compile' or 'aten' or 'raise'"),
        ({"prefer": "fastst"}, "did you mean 'fastest'"),
        ({"varant": "tiled"}, "did you mean 'variant'"),
        ({"token": 3}, "not known"),
        ({"sm_count": 0}, "SMs as a whole number, at least 1"),
        ({"sm_count": True}, "SMs as a whole number, at least 1"),
        ({"sm_count": 66.0}, "SMs as a whole number, at least 1"),
        ({"workspace_limit": -1}, "at least 0"),
        ({"arch": "h2000"}, "arch is 'h2000'; needed: a device the project knows; did you mean 'h200'"),
        ({"arch": "zz"}, "known: a100, .*, sm_90"),
    ],
)
def test_wrong_options(changes, words):
    with pytest.raises(SettingsError, match=words):
        options(**changes)


def test_the_environment():
    made = from_environment(
        {
            "MINBLAS_VARIANT": "tiled", "MINBLAS_EXCLUDE": "tma, split_k", "MINBLAS_PREFER": "fastest", "MINBLAS_ON_COLD": "aten",
            "MINBLAS_DETERMINISTIC": "1", "MINBLAS_BATCH_INVARIANT": "off", "MINBLAS_WORKSPACE_LIMIT": "1024",
            "MINBLAS_ARCH": "a100", "MINBLAS_SM_COUNT": "54",
            "MINBLAS_INTERPRET_CAP": "99", "MINBLAS_LOGS": "+all", "MINBLAS_TABLE": "x.json", "HOME": "/", "MINBLAS_ON_COLD_": "",
        }
    )  # fmt: skip
    expected = settings.Options("tiled", "fastest", frozenset({"tma", "split_k"}), "aten", True, False, 1024, "a100", 99, 54)
    assert made == expected
    assert made.token == expected.token


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MINBLAS_DETERMINISTIC", "maybe"),
        ("MINBLAS_WORKSPACE_LIMIT", "1MB"),
        ("MINBLAS_ON_COLD", "burn"),
        ("MINBLAS_PREFER", "slow"),
        ("MINBLAS_SM_COUNT", "0"),
        ("MINBLAS_SM_COUNT", "half"),
    ],
)
def test_a_wrong_value_in_the_environment(name, value):
    with pytest.raises(SettingsError, match=value):
        from_environment({name: value})


def test_an_unknown_variable_is_said_once(caplog):
    with caplog.at_level(logging.WARNING, logger="minblas"):
        from_environment({"MINBLAS_VARAINT": "tiled"})
        from_environment({"MINBLAS_VARAINT": "tiled"})
    (record,) = caplog.records
    assert record.message.startswith("MINBLAS_VARAINT is not a setting and is ignored; did you mean 'MINBLAS_VARIANT'")


def test_log_grammar():
    assert log.parse("") == {}
    assert log.parse("dispatch,+tune,-plan") == {"dispatch": logging.INFO, "tune": logging.DEBUG, "plan": logging.ERROR}
    assert log.parse("+all,-tune")["tune"] == logging.ERROR
    assert set(log.parse("all")) == set(log.CHANNELS)
    with pytest.raises(SettingsError, match="did you mean 'dispatch'"):
        log.parse("dispach")


def test_quiet_by_default_and_audible_when_asked(capsys):
    log.get("dispatch").warning("unheard")
    assert capsys.readouterr().err == ""
    root = logging.getLogger("minblas")
    handlers, propagate = list(root.handlers), root.propagate
    try:
        log.configure("+dispatch")
        log.get("dispatch").debug("heard")
        log.get("launch").debug("unheard")
        assert "minblas.dispatch D: heard" in capsys.readouterr().err
    finally:
        root.handlers[:], root.propagate = handlers, propagate
        log.get("dispatch").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    "changes",
    [
        {"workspace_limit": "1GB"},
        {"workspace_limit": -1},
        {"interpret_cap": "many"},
        {"interpret_cap": None},
        {"deterministic": "yes"},
        {"batch_invariant": 1},
        {"arch": None},
        {"variant": 3},
    ],
)
def test_values_of_the_wrong_type_are_refused_at_once(changes):
    (name,) = changes
    with pytest.raises(SettingsError, match=f"{name} is .*needed: "):
        options(**changes)


def test_a_wrong_choice_in_the_environment_names_the_variable():
    with pytest.raises(SettingsError, match=r"MINBLAS_ON_COLD is 'rais'.*compile, aten or raise"):
        from_environment({"MINBLAS_ON_COLD": "rais"})
    with pytest.raises(SettingsError, match="MINBLAS_WORKSPACE_LIMIT is '-1'"):
        from_environment({"MINBLAS_WORKSPACE_LIMIT": "-1"})


def test_a_device_is_any_that_is_known_and_others_are_refused_by_the_variables_name():
    for name in (*archs.names(), " H200"):
        assert options(arch=name)
        assert from_environment({"MINBLAS_ARCH": name}).arch == name.strip()
    with pytest.raises(SettingsError, match="MINBLAS_ARCH is 'h2000'; needed: a device the project knows; did you mean 'h200'"):
        from_environment({"MINBLAS_ARCH": "h2000"})


def test_tuning_on_first_use_is_opt_in_and_has_a_budget():
    assert (settings.Options().tune, settings.Options().tune_budget) == ("never", 10.0)
    made = from_environment({"MINBLAS_TUNE": "first_use", "MINBLAS_TUNE_BUDGET": "2.5", "MINBLAS_RECORD": "met.jsonl"})
    assert (made.tune, made.tune_budget) == ("first_use", 2.5)
    assert options(tune="first_use", tune_budget=3)
    for wrong in ({"tune": "always"}, {"tune_budget": -1.0}, {"tune_budget": True}, {"tune_budget": "3"}, {"tune_budget": None}):
        with pytest.raises(SettingsError):
            options(**wrong)

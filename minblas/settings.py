"""Settings: process-wide defaults from the environment, and `options`, which overrides them for a block of code.

    MINBLAS_VARIANT=tiled            force a variant                MINBLAS_PREFER=zoo|fastest     may a table row name aten?
    MINBLAS_EXCLUDE=tma,split_k      never pick these               MINBLAS_ON_COLD=compile|aten|raise
    MINBLAS_DETERMINISTIC=1          MINBLAS_BATCH_INVARIANT=1      MINBLAS_WORKSPACE_LIMIT=bytes
    MINBLAS_ARCH=h200                the device that CPU tensors stand for
    MINBLAS_SM_COUNT=66              choose as for a device with so many SMs: the others are someone else's
    MINBLAS_INTERPRET_CAP=16777216   multiply-adds up to which CPU tensors run in Triton's interpreter
    MINBLAS_TUNE=never|first_use     tune what no row of a table covers when it is first met?
    MINBLAS_TUNE_BUDGET=10           seconds that this may take in all
    MINBLAS_PLAN_CACHE=4096          plans kept
    MINBLAS_LAUNCH=native|python|triton   launch kernels from C, from Python, or through triton's JIT; the first of them that works
    MINBLAS_RECORD=file              append the problems that calls meet, for minblas tune --recorded

Imports neither torch nor triton.
"""

from __future__ import annotations

import contextvars
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import Any, Final, Literal

from heuristics import archs
from kernel_zoo.spec import Arch
from minblas import log
from minblas.errors import SettingsError, suggestion

OnCold = Literal["compile", "aten", "raise"]
Prefer = Literal["zoo", "fastest"]
Tune = Literal["never", "first_use"]

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "on_cold": ("compile", "aten", "raise"),
    "prefer": ("zoo", "fastest"),
    "tune": ("never", "first_use"),
}
#: Types of the other options, and the words for them.
_KINDS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "variant": ((str, type(None)), "a variant's name or None"),
    "deterministic": ((bool, type(None)), "True, False or None"),
    "batch_invariant": ((bool, type(None)), "True, False or None"),
    "workspace_limit": ((int, type(None)), "bytes as a whole number, at least 0, or None"),
    "arch": ((str,), "a device's name"),
    "interpret_cap": ((int,), "multiply-adds as a whole number, at least 0"),
    "tune_budget": ((int, float), "seconds as a number, at least 0"),
    "sm_count": ((int, type(None)), "SMs as a whole number, at least 1, or None for the whole device"),
}
_FLAGS: Final = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


@dataclass(frozen=True, slots=True)
class Options:
    """What a call does where its arguments leave it open. None means: as torch or the choice says."""

    variant: str | None = None
    prefer: Prefer = "zoo"
    exclude: frozenset[str] = frozenset()
    on_cold: OnCold = "compile"
    deterministic: bool | None = None
    batch_invariant: bool | None = None
    workspace_limit: int | None = None
    arch: str = "h200"
    interpret_cap: int = 2**24
    sm_count: int | None = None
    tune: Tune = "never"
    tune_budget: float = 10.0
    #: Stands for the whole of these options in a plan's key; equal options have equal tokens.
    token: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise SettingsError(f"{name} is {value!r}", " or ".join(map(repr, allowed)), suggestion(value, allowed))
        for name, (kinds, needed) in _KINDS.items():
            given: Any = getattr(self, name)
            if not _is_of(given, kinds, least=1 if name == "sm_count" else 0):
                raise SettingsError(f"{name} is {given!r}", needed, "pass one of these, or leave the option away")
        named_arch(self.arch)
        object.__setattr__(self, "token", _token(self))


def named_arch(name: str) -> Arch:
    """The device of that name ("h200", "sm_90").

    Raises:
        SettingsError: it is not known.
    """
    try:
        return archs.get_arch(name)
    except ValueError:
        raise SettingsError(f"arch is {name!r}", "a device the project knows", suggestion(name, archs.names())) from None


def _is_of(given: Any, kinds: tuple[type, ...], least: int) -> bool:
    """Whether a value is of one of the types; a number must not be a truth value and not be under the least."""
    if int in kinds and type(given) in kinds and given is not None:
        return bool(given >= least)
    return isinstance(given, kinds) and (int not in kinds or given is None)


_TOKENS: Final[dict[Options, int]] = {}
_COUNTER: Final = itertools.count(1)
_LOCK: Final = threading.RLock()
_MOST_TOKENS: Final = 4096


def _token(options: Options) -> int:
    with _LOCK:
        if len(_TOKENS) >= _MOST_TOKENS:
            _TOKENS.clear()  # tokens are never used twice, so forgetting one only costs a cold call
        token = _TOKENS.get(options)
        if token is None:
            token = _TOKENS[options] = next(_COUNTER)
        return token


def _flag(text: str) -> bool:
    return _FLAGS[text.lower()]


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, (part.strip() for part in text.split(","))))


_PARSERS: Final[dict[str, tuple[str, Callable[[str], Any], str]]] = {
    "MINBLAS_VARIANT": ("variant", str, "a variant's name"),
    "MINBLAS_PREFER": ("prefer", str, "zoo or fastest"),
    "MINBLAS_EXCLUDE": ("exclude", _names, "variant names with commas between"),
    "MINBLAS_ON_COLD": ("on_cold", str, "compile, aten or raise"),
    "MINBLAS_DETERMINISTIC": ("deterministic", _flag, "0 or 1"),
    "MINBLAS_BATCH_INVARIANT": ("batch_invariant", _flag, "0 or 1"),
    "MINBLAS_WORKSPACE_LIMIT": ("workspace_limit", int, "bytes, a whole number"),
    "MINBLAS_ARCH": ("arch", str, "a device the project knows"),
    "MINBLAS_INTERPRET_CAP": ("interpret_cap", int, "a number of multiply-adds"),
    "MINBLAS_TUNE": ("tune", str, "never or first_use"),
    "MINBLAS_TUNE_BUDGET": ("tune_budget", float, "a number of seconds"),
    "MINBLAS_SM_COUNT": ("sm_count", int, "a number of SMs, at least 1"),
}
_ELSEWHERE: Final = ("MINBLAS_LOGS", "MINBLAS_TABLE", "MINBLAS_PLAN_CACHE", "MINBLAS_COMMIT", "MINBLAS_RECORD", "MINBLAS_LAUNCH")
_LAUNCHES: Final = ("native", "python", "triton")


def from_environment(environment: Mapping[str, str]) -> Options:
    """Options from MINBLAS_* variables; an unknown one is said once.

    Raises:
        SettingsError: a variable has a value that cannot be used.
    """
    values: dict[str, Any] = {}
    for name in sorted(environment):
        if not name.startswith("MINBLAS_") or name in _ELSEWHERE or not environment[name].strip():
            continue
        if name not in _PARSERS:
            log.once("settings", "%s is not a setting and is ignored; %s", name, suggestion(name, (*_PARSERS, *_ELSEWHERE)))
            continue
        key, parse, needed = _PARSERS[name]
        try:
            values[key] = parse(environment[name].strip())
            Options(**{key: values[key]})  # refused here, the message names the variable
        except (ValueError, KeyError):
            known = archs.names() if key == "arch" else _CHOICES.get(key)
            remedy = suggestion(environment[name].strip(), known) if known else "set it so or unset it"
            raise SettingsError(f"{name} is {environment[name]!r}", needed, remedy) from None
    launch(environment)  # refused here: where kernels are made ready, an error passes for a kernel's
    return Options(**values)


def plan_cache_size() -> int:
    """How many plans are kept (MINBLAS_PLAN_CACHE)."""
    text = os.environ.get("MINBLAS_PLAN_CACHE", "4096")
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"MINBLAS_PLAN_CACHE is {text!r}", "a whole number, at least 1", "set it so or unset it")
    return int(text)


def launch(environment: Mapping[str, str] = os.environ) -> str:
    """How kernels are launched (MINBLAS_LAUNCH): "native", "python" or "triton"."""
    text = environment.get("MINBLAS_LAUNCH", "").strip() or "native"
    if text not in _LAUNCHES:
        raise SettingsError(f"MINBLAS_LAUNCH is {text!r}", " or ".join(_LAUNCHES), suggestion(text, _LAUNCHES))
    return text


_process: Options | None = None
_LOCAL: Final[contextvars.ContextVar[Options | None]] = contextvars.ContextVar("minblas_options", default=None)


def current() -> Options:
    """The options in force here: the innermost `options` block's, else the process's."""
    return _LOCAL.get() or _process or _defaults()


def local() -> Options | None:
    """The options of the innermost block that is open here; None where the process's hold."""
    return _LOCAL.get()


def _defaults() -> Options:
    global _process
    with _LOCK:
        if _process is None:
            _process = from_environment(os.environ)
        return _process


def _with(base: Options, changes: dict[str, Any]) -> Options:
    known = {entry.name for entry in fields(Options)} - {"token"}
    for name in changes:
        if name not in known:
            raise SettingsError(f"option {name!r} is not known", "one of the options", suggestion(name, known))
    if "exclude" in changes:
        given = changes["exclude"]
        changes["exclude"] = frozenset((given,) if isinstance(given, str) else given or ())
    return replace(base, **changes)


class options(ContextDecorator):  # noqa: N801  (read as a verb: with minblas.options(...))
    """Options for a block of code, or, through `options.set`, for the process.

    >>> with options(exclude={"split_k"}, on_cold="raise"):
    ...     current().on_cold
    'raise'

    A block reaches the threads and tasks that copy its context, as context variables do; a backward pass keeps the options that its
    forward pass ran under. Names: variant, prefer, exclude, on_cold, deterministic, batch_invariant, workspace_limit, arch,
    interpret_cap, sm_count, tune, tune_budget.
    """

    def __init__(self, *unnamed: Any, **changes: Any) -> None:
        if unnamed:
            needed = "options by their names, as in options(variant='tiled')"
            raise SettingsError(f"options is given {unnamed[0]!r}", needed, "a decorator is written @minblas.options(...)")
        _with(Options(), dict(changes))  # a wrong name or value is an error here, not at entry
        self._changes = changes
        self._tokens: list[contextvars.Token[Options | None]] = []

    def __enter__(self) -> Options:
        made = _with(current(), dict(self._changes))
        self._tokens.append(_LOCAL.set(made))
        return made

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _LOCAL.reset(self._tokens.pop())

    def _recreate_cm(self) -> options:
        return options(**self._changes)  # a decorated function may be entered from many threads at once

    @staticmethod
    def set(**changes: Any) -> Options:
        """Change the process's options; blocks that are open keep theirs. Returns what was in force before, for `restore`."""
        global _process
        before = _defaults()
        made = _with(before, changes)
        with _LOCK:
            _process = made
        return before

    @staticmethod
    def restore(before: Options) -> None:
        """Put back the process's options that `set` returned."""
        global _process
        with _LOCK:
            _process = before

    @staticmethod
    def get() -> Options:
        """The options in force here."""
        return current()


@contextmanager
def under(taken: Options) -> Iterator[None]:
    """Run a block under options taken elsewhere (a backward pass under its forward pass's)."""
    token = _LOCAL.set(taken)
    try:
        yield
    finally:
        _LOCAL.reset(token)

"""The options of a measurement as keywords: read, checked, and made into the settings of one measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import product
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from erfscope.errors import ErfscopeError, unknown
from erfscope.geometry.input_size import Size, is_size
from erfscope.geometry.input_size import input_sizes as sizes
from erfscope.geometry.layout import NAMES as LAYOUTS
from erfscope.options.settings import Building, Options, Settings

__all__ = [
    "DEFAULTS",
    "MODEL",
    "SETTINGS",
    "SEVERAL",
    "Building",
    "Options",
    "Size",
    "alphas",
    "check",
    "combinations",
    "is_size",
    "settings_of",
    "sizes",
    "values_of",
    "words",
]


#: Options that say how a model is built.
MODEL = ("checkpoint", "unsafe_load", "in_chans", "mean", "std", "model_kwargs", "transform", "layout", "prefix_tokens")
#: Options that are settings of the measurement itself.
SETTINGS = tuple(Settings.__dataclass_fields__)


#: Types of options that have one value: what is taken for them, numpy's included, and how they are called.
PLAIN: dict[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    bool: ((bool, np.bool_), "True or False"),
    NoneType: (NoneType, "None"),
}
#: Other names of options -> their own.
ALIASES = {"image": "images"}
#: Options that are called otherwise now, and say the opposite.
FORMER = {"cone": "plain"}


def rename(options: Options | Building) -> None:
    """Give options that are called by another name their own, in place.

    Raises:
        ErfscopeError: an option by both of its names.
    """
    given = cast("dict[str, Any]", options)
    for other, name in ALIASES.items():
        if other in given:
            if given.get(name) is not None and given[other] is not None:
                raise ErfscopeError(f"give either {name} or {other}, not both: they are two names of one option")
            value = given.pop(other)
            given[name] = given.get(name) if value is None else value


def check(options: Options | Building) -> None:
    """Refuse what needs no model to be refused: a keyword that is no option, a value that is no value. See
    :func:`rename` for names.

    Raises:
        ErfscopeError: unknown option or value, an option by both of its names, or both images and a synthetic kind.
    """
    rename(options)
    known = list(Options.__annotations__)
    for name in options:
        if name in FORMER:
            raise ErfscopeError(f"{FORMER[name]}=True stands in the place of {name}=False; leave {name} out")
        if name not in known:
            raise unknown("option", name, known, limit=len(known))
    _refuse_types(options)
    if options.get("images") is not None and options.get("synthetic") is not None:
        raise ErfscopeError("give either images or a synthetic kind, not both")
    if (layout := options.get("layout")) is not None and layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    if (prefix := options.get("prefix_tokens")) is not None and (
        isinstance(prefix, bool) or not isinstance(prefix, int) or prefix < 0
    ):
        raise ErfscopeError(f"prefix_tokens is how many tokens come before those of the map: 0 or more, not {prefix!r}")
    if prefix is not None and layout != "NLC":
        raise ErfscopeError(
            "prefix-tokens says how many tokens come before those of the layout NLC; add --layout NLC, or leave it out"
        )
    if (channels := options.get("in_chans")) is not None and channels < 1:
        raise ErfscopeError(f"in-chans must be at least 1, not {channels}")
    for name in ("mean", "std"):
        given: Any = options.get(name)
        numbers = () if given is None else given if isinstance(given, Sequence) else (given,)
        if not all(math.isfinite(number) for number in numbers):
            raise ErfscopeError(f"{name} must be finite, not {given}; give one number or one per channel")
    sizes(options.get("input_size"))
    if options.get("alpha") is not None and not options.get("insert"):
        raise ErfscopeError("alpha scales inserted blocks, and none is inserted; add --insert BLOCK@LAYER")
    alphas(options.get("alpha"))
    for name in ("layer", "weights", "convention", "wrt"):
        words(options.get(name), name)
    for convention in words(options.get("convention", "jacobian")):
        settings_of({**options}, convention=convention)


def _refuse_types(options: Options | Building) -> None:
    """Refuse a value of another type than its option has, where that is a number, text, a truth value or one of some
    words."""
    for name, value in options.items():
        hint = _hints()[name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if not all(kind in PLAIN or get_origin(kind) is Literal for kind in kinds):
            continue
        if not any(isinstance(value, PLAIN[kind][0]) if kind in PLAIN else value in get_args(kind) for kind in kinds):
            named = [PLAIN[kind][1] if kind in PLAIN else " or ".join(map(repr, get_args(kind))) for kind in kinds]
            raise ErfscopeError(f"{name} is {' or '.join(named)}, not {value!r}")


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Options)


def settings_of(options: Options, **replaced: Any) -> Settings:
    """The settings among the options, some of them replaced."""
    chosen = {name: value for name, value in options.items() if name in SETTINGS}
    for name in ("layer", "wrt"):
        if isinstance(chosen.get(name), list | tuple):
            chosen.pop(name)
    return Settings(**{**chosen, **replaced})


def alphas(value: Any) -> list[float | None]:
    """Shares of what inserted blocks add: ``0.5``, ``"0,0.5,1"`` or a list; [None] where none is given.

    Raises:
        ErfscopeError: not a number, or not a finite one.
    """
    found: list[float | None] = []
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple) and not value:
        raise ErfscopeError("alpha is empty; give a number, or several, or leave it out")
    for part in words(value, "alpha"):
        for item in part if isinstance(part, list | tuple) else (part,):
            try:
                number = None if item is None else float(item)
            except (TypeError, ValueError):
                raise ErfscopeError(f"cannot read the alpha {item!r}; write numbers such as 0,0.25,0.5,1") from None
            if number is not None and not math.isfinite(number):
                raise ErfscopeError(f"alpha must be finite, not {number}")
            found.append(number)
    return found


def words(value: object, name: str = "option") -> list[Any]:
    """A comma list, or a sequence, as a list; [None] for None, and anything else alone.

    Raises:
        ErfscopeError: text without a word in it.
    """
    if value is None:
        return [None]
    if isinstance(value, str):
        found = [part.strip() for part in value.split(",") if part.strip()]
        if not found:
            raise ErfscopeError(f"{name} is empty; give one, or several separated by commas, or leave it out")
        return found
    return (
        list(value) if isinstance(value, list | tuple) and value and all(isinstance(v, str) for v in value) else [value]
    )


#: Options of which all models are measured under several values, the outermost first: how the values are read.
SEVERAL: dict[str, Callable[[Any], list[Any]]] = {
    "input_size": sizes,
    "weights": words,
    "convention": words,
    "wrt": words,
}
#: What options are where nothing else is asked for.
DEFAULTS: dict[str, Any] = {"input_size": None, "weights": "auto"} | {
    each.name: each.default for each in fields(Settings)
}


def values_of(options: Mapping[str, Any], name: str) -> list[Any]:
    """The values that one of :data:`SEVERAL` asks for, or its default alone."""
    return SEVERAL[name](options.get(name, DEFAULTS[name]))


def combinations(options: Mapping[str, Any], *names: str) -> list[tuple[Any, ...]]:
    """Every combination of the values of some of :data:`SEVERAL`, those of the last name beside each other."""
    return list(product(*(values_of(options, name) for name in names)))

"""The keywords of a Python function: renamed, checked, and made into the settings of one measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from erfscope.errors import ErfscopeError, unknown
from erfscope.geometry.input_size import Size, is_size
from erfscope.geometry.input_size import input_sizes as sizes
from erfscope.options.option import Building
from erfscope.options.settings import OPTIONS, Options, Settings
from erfscope.options.values import alphas, words

__all__ = [
    "DEFAULTS",
    "MODEL",
    "SEVERAL",
    "WORDS",
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

#: Options with which a model is opened.
MODEL = {*Building.__annotations__} - {"input_size", "insert", "alpha", "label"}
#: Types of options that have one value: what is taken for them, numpy's included, and how they are called.
PLAIN: dict[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    bool: ((bool, np.bool_), "True or False"),
    NoneType: (NoneType, "None"),
}
#: The types of all options, as the functions take them.
TYPES = get_type_hints(Options)
#: Other names of options -> their own.
ALIASES = {"image": "images"}
#: Options that are called otherwise now, and say the opposite.
FORMER = {"cone": "plain"}
#: Options of which all models are measured under several values, the outermost first: how the values are read.
SEVERAL: dict[str, Callable[[Any], list[Any]]] = {
    "input_size": sizes,
    "weights": words,
    "convention": words,
    "wrt": words,
}
#: Options whose values are words, of which there may be several.
WORDS = ("layer", "weights", "convention", "wrt")
#: What options are where nothing else is asked for.
DEFAULTS: dict[str, Any] = {name: each.default for name, each in OPTIONS.items()}


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
    for name, value in options.items():
        if name in FORMER:
            raise ErfscopeError(f"{FORMER[name]}=True stands in the place of {name}=False; leave {name} out")
        if name not in OPTIONS:
            raise unknown("option", name, OPTIONS, limit=len(OPTIONS))
        _refuse_type(name, value)
        OPTIONS[name].option.refuse(name, value)
    if options.get("images") is not None and options.get("synthetic") is not None:
        raise ErfscopeError("give either images or a synthetic kind, not both")
    if options.get("prefix_tokens") is not None and options.get("layout") != "NLC":
        raise ErfscopeError(
            "prefix-tokens says how many tokens come before those of the layout NLC; add --layout NLC, or leave it out"
        )
    for name in ("mean", "std"):
        given: Any = options.get(name)
        numbers = () if given is None else given if isinstance(given, Sequence) else (given,)
        if not all(math.isfinite(number) for number in numbers):
            raise ErfscopeError(f"{name} must be finite, not {given}; give one number or one per channel")
    sizes(options.get("input_size"))
    if options.get("alpha") is not None and not options.get("insert"):
        raise ErfscopeError("alpha scales inserted blocks, and none is inserted; add --insert BLOCK@LAYER")
    alphas(options.get("alpha"))
    for name in WORDS:
        words(options.get(name), name)
    for convention in words(options.get("convention", "jacobian")):
        settings_of({**options}, convention=convention)


def _refuse_type(name: str, value: object) -> None:
    """Refuse a value of another type than its option has, where that is a number, text, a truth value or one of some
    words."""
    kinds = get_args(TYPES[name]) if get_origin(TYPES[name]) in (Union, UnionType) else (TYPES[name],)
    if not all(kind in PLAIN or get_origin(kind) is Literal for kind in kinds):
        return
    if not any(isinstance(value, PLAIN[kind][0]) if kind in PLAIN else value in get_args(kind) for kind in kinds):
        named = [PLAIN[kind][1] if kind in PLAIN else " or ".join(map(repr, get_args(kind))) for kind in kinds]
        raise ErfscopeError(f"{name} is {' or '.join(named)}, not {value!r}")


def settings_of(options: Options, **replaced: Any) -> Settings:
    """The settings among the options, some of them replaced."""
    chosen = {name: value for name, value in options.items() if name in Settings.__dataclass_fields__}
    for name in ("layer", "wrt"):
        if isinstance(chosen.get(name), list | tuple):
            chosen.pop(name)
    return Settings(**{**chosen, **replaced})


def values_of(options: Mapping[str, Any], name: str) -> list[Any]:
    """The values that one of :data:`SEVERAL` asks for, or its default alone."""
    return SEVERAL[name](options.get(name, DEFAULTS[name]))


def combinations(options: Mapping[str, Any], *names: str) -> list[tuple[Any, ...]]:
    """Every combination of the values of some of :data:`SEVERAL`, those of the last name beside each other."""
    return list(product(*(values_of(options, name) for name in names)))

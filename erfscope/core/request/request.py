"""The options of one call, parsed and checked once, at the door of each public function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, Unpack, get_args, get_origin, get_type_hints

import numpy as np

from erfscope.core.request.option import OF_EACH, Building
from erfscope.core.request.settings import OPTIONS, Options, Settings
from erfscope.core.request.values import alphas, words
from erfscope.core.system.progress import Progress, no_progress, progress_of
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.input_size import input_sizes, is_auto

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
#: Options with which a model is built or wrapped, beside its size and its blocks.
MODEL = {*Building.__annotations__} - {"input_size", "insert", "alpha", "label"}
#: Options of one value, or of no setting, that a request has as they are; their defaults are those of its fields.
AS_GIVEN = ("images", "synthetic", "insert", "label", "resume", "keep_in", "stop", "tell")


#: Options that take a mapping for one model.
MAPPINGS = ("images", "transform", "mean", "std", "model_kwargs", "insert")
#: The name that stands for all stages of a model.
STAGES = "stages"


def is_several(layer: str | None) -> bool:
    """Whether the name of a layer stands for several: all stages, or those that a pattern names."""
    return layer is not None and (layer == STAGES or any(mark in layer for mark in "*?"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of one call of a public function, as values."""

    #: The keywords as they were given, by their own names.
    given: Mapping[str, Any]
    #: What is measured, under the first of the conventions and references, at the model's default layer.
    settings: Settings
    #: All values of the options that may have several; None for the model's own layer or size, and for no alpha.
    layers: tuple[str | None, ...]
    weights: tuple[str, ...]
    conventions: tuple[Any, ...]
    references: tuple[str, ...]
    sizes: tuple[tuple[int, ...] | None, ...]
    alphas: tuple[float | None, ...]
    #: Whether the input size is found by measuring.
    is_growing: bool
    #: Keywords with which the model is built or wrapped.
    building: Mapping[str, Any]
    images: Any = None
    synthetic: str | None = None
    insert: Any = None
    label: str | None = None
    #: The report, or its folder, that the run continues.
    resume: Any = None
    keep_in: str | Path | None = None
    stop: Callable[[], bool] = lambda: False
    tell: Callable[[str], None] = lambda _line: None
    #: Whether a model that fails raises, rather than to have a row that says so.
    raises: bool = False
    progress: Progress = no_progress

    @classmethod
    def parse(cls, options: Mapping[str, Any], *, may_grow: bool = False, of_each: bool = False) -> Self:
        """Read the keywords of a public function, and refuse what needs no model to be refused.

        Args:
            options: As for :func:`erfscope.analyze`.
            may_grow: Whether the function finds the input size by measuring where that is "auto".
            of_each: Whether the function takes several models, of which each may have its own :data:`OF_EACH`.

        Raises:
            ErfscopeError: an unknown option or value, an option by both of its names, or options that exclude each
                other.
        """
        given = _renamed(options)
        by_label = {name for name in OF_EACH if isinstance(given.get(name), Mapping)}
        for name, value in given.items():
            _refuse_value(name, value)
            if isinstance(value, Mapping) and name not in (*MAPPINGS, *(OF_EACH if of_each else ())):
                hint = "; by the labels of several models it is for erfscope.compare" if name in by_label else ""
                raise ErfscopeError(f"{name} takes no mapping{hint}")
        _refuse_combinations(given)
        is_growing = may_grow and is_auto(given.get("input_size"))
        sizes = [None] if is_growing else input_sizes(given.get("input_size"))
        if given.get("alpha") is not None and not given.get("insert"):
            raise ErfscopeError(
                "alpha scales inserted blocks, and none is inserted; add insert='BLOCK@LAYER' (--insert BLOCK@LAYER)"
            )
        shares = alphas(given.get("alpha"))
        several = {
            name: (OPTIONS[name].default,)
            if given.get(name) is None or name in by_label
            else tuple(words(given[name], name))
            for name in ("layer", "weights", "convention", "wrt")
        }
        named = {name: given[name] for name in given if name in Settings.__dataclass_fields__ and name not in several}
        # Every combination is checked, and the first one stands for all.
        first, *_ = [
            Settings(**named, convention=convention, wrt=wrt)
            for convention, wrt in product(several["convention"], several["wrt"])
        ]
        return cls(
            given=given,
            settings=first,
            layers=several["layer"],
            weights=several["weights"],
            conventions=several["convention"],
            references=several["wrt"],
            sizes=tuple(sizes),
            alphas=tuple(shares),
            is_growing=is_growing,
            building={name: value for name, value in given.items() if name in MODEL - by_label and value is not False},
            **{name: given[name] for name in AS_GIVEN if given.get(name) is not None},
            progress=progress_of(given.get("progress")),
        )

    def questions(self, layers: Iterable[str]) -> Iterator[Settings]:
        """The settings of each measurement of one model at some of its layers, in the order of the rows."""
        for convention, layer, wrt in product(self.conventions, layers, self.references):
            yield replace(self.settings, convention=convention, layer=layer, wrt=wrt)

    def refuse_weights(self, model: object) -> None:
        """Refuse weights by name for a model that is no spec.

        Raises:
            ErfscopeError: the model is there already, with its weights.
        """
        if not isinstance(model, str) and self.weights != ("auto",):
            raise ErfscopeError(
                "weights is for models that erfscope builds; a live module or an adapter has its weights already"
            )

    def with_options(self, **options: Unpack[Options]) -> Self:
        """The request with other values of some options, as :func:`erfscope.analyze` takes them.

        Raises:
            ErfscopeError: as for :meth:`parse`.
        """
        of_each = any(isinstance(self.given.get(name), Mapping) for name in OF_EACH)
        found = self.parse({**self.given, **options}, may_grow=self.is_growing, of_each=of_each)
        kept = {name: getattr(self, name) for name in (*AS_GIVEN, "progress") if name not in _renamed(options)}
        return replace(found, raises=self.raises, **kept)

    def opening(self) -> dict[str, Any]:
        """What decides how a model is opened, by the names of options."""
        settings = {name: getattr(self.settings, name) for name in ("seed", "device", "dtype", "squash")}
        own = {"input_size": self.sizes, "weights": self.weights, "insert": self.insert, "alpha": self.alphas}
        return {**self.building, **settings, **own}

    def of_model(self, label: str | None) -> Self:
        """The request of one of several models: with its own values of the options that it has in a mapping."""
        own = {name: self.given[name].get(label) for name in OF_EACH if isinstance(self.given.get(name), Mapping)}
        if not own:
            return self
        layers = tuple(words(own["layer"], "layer")) if "layer" in own else self.layers
        file = {"checkpoint": own["checkpoint"]} if own.get("checkpoint") is not None else {}
        return replace(self, layers=layers, given={**self.given, **own}, building={**self.building, **file})

    def several(self) -> list[str]:
        """The options that ask for several results."""
        layers = self.given.get("layer")
        layers = [words(each, "layer") for each in layers.values()] if isinstance(layers, Mapping) else [self.layers]
        values: dict[str, Sequence[Any]] = {
            "layer": max(layers, key=lambda each: len(each) + is_several(each[0])),
            "weights": self.weights,
            "convention": self.conventions,
            "wrt": self.references,
            "input_size": self.sizes,
            "alpha": self.alphas,
        }
        return [name for name, asked in values.items() if len(asked) > 1 or (name == "layer" and is_several(asked[0]))]


def _renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, those that are called by another name by their own."""
    given = dict(options)
    for other, name in ALIASES.items():
        if other in given:
            value = given.pop(other)
            if given.get(name) is not None and value is not None:
                raise ErfscopeError(f"give either {name} or {other}, not both: they are two names of one option")
            given[name] = given.get(name) if value is None else value
    return given


def _refuse_value(name: str, value: object) -> None:
    """Refuse an option that does not exist, and a value of another type than it has, where that is a number, text, a
    truth value or one of some words, or outside its limits."""
    if name not in OPTIONS:
        raise unknown("option", name, OPTIONS, limit=len(OPTIONS))
    OPTIONS[name].option.refuse(name, value)
    kinds = get_args(TYPES[name]) if get_origin(TYPES[name]) in (Union, UnionType) else (TYPES[name],)
    is_plain = all(kind in PLAIN or get_origin(kind) is Literal for kind in kinds)
    if is_plain and not any(
        isinstance(value, PLAIN[kind][0]) if kind in PLAIN else value in get_args(kind) for kind in kinds
    ):
        called = [PLAIN[kind][1] if kind in PLAIN else " or ".join(map(repr, get_args(kind))) for kind in kinds]
        raise ErfscopeError(f"{name} is {' or '.join(called)}, not {value!r}")


def _refuse_combinations(given: Mapping[str, Any]) -> None:
    """Refuse options that exclude or need each other, and normalisations that are not finite."""
    if given.get("images") is not None and given.get("synthetic") is not None:
        raise ErfscopeError("give either images or a synthetic kind, not both")
    kinds, kind = OPTIONS["synthetic"].option.words, given.get("synthetic")
    if kind is not None and kind not in kinds:
        raise unknown("synthetic stimulus", str(kind), kinds)
    if given.get("prefix_tokens") is not None and given.get("layout") != "NLC":
        raise ErfscopeError(
            "prefix_tokens= (--prefix-tokens) says how many tokens come before those of the layout NLC; add"
            " layout='NLC' (--layout NLC), or leave it out"
        )
    for name in ("mean", "std"):
        value = given.get(name)
        numbers = () if value is None else value if isinstance(value, Sequence) else (value,)
        if not all(math.isfinite(number) for number in numbers):
            raise ErfscopeError(f"{name} must be finite, not {value}; give one number or one per channel")

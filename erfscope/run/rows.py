"""What is measured: the rows that the options of a call ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from erfscope.options.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model under one setting; its layers, its units and its variants with blocks are measured together."""

    #: What the model is called; "" for what it calls itself.
    label: str
    #: A spec, an adapter, a live module, or a checkpoint of a spec.
    model: Any
    #: None for the model's own.
    size: tuple[int, ...] | None
    weights: str
    convention: Any
    references: tuple[str, ...]

    @property
    def opening(self) -> tuple[tuple[int, ...] | None, str]:
        """What it shares with the rows for which models are opened together."""
        return self.size, self.weights

    @property
    def setting(self) -> tuple[object, ...]:
        """What it shares with the rows of other models that it is compared with."""
        return self.size, self.weights, self.convention, self.references


def rows(entries: Sequence[tuple[str, Any]], request: Request, *, by_reference: bool) -> list[Row]:
    """The rows of some models, those of one setting after each other.

    Args:
        entries: (label, model).
        request: Its sizes, weights, conventions and references are the settings, the first varying slowest.
        by_reference: Whether each reference is a setting of its own.
    """
    references = [(wrt,) for wrt in request.references] if by_reference else [request.references]
    settings = product(request.sizes, request.weights, request.conventions, references)
    return [
        Row(label=label, model=model, size=size, weights=weights, convention=convention, references=each)
        for size, weights, convention, each in settings
        for label, model in entries
    ]


def by(key: Callable[[Row], object], asked: Sequence[Row]) -> list[list[Row]]:
    """Rows that have a key in common, in the order of the first of each."""
    groups: dict[object, list[Row]] = {}
    for row in asked:
        groups.setdefault(key(row), []).append(row)
    return [*groups.values()]

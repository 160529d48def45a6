"""What is measured: the rows that the options of a call ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from erfscope.core.request.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model under one setting; its layers, its units and its variants with blocks are measured together."""

    #: What the model is called; "" for what it calls itself.
    label: str
    #: A spec, an adapter, a live module, a checkpoint of a spec, or an open model.
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
    def setting(self) -> tuple[Any, ...]:
        """What it shares with the rows that stand beside each other in a table."""
        return *self.opening, self.convention, self.references


def rows(models: Mapping[str, Any], request: Request, *, by_reference: bool = False) -> list[Row]:
    """What a request asks for of some models, setting by setting.

    Args:
        models: Specs, adapters, live modules or open models, by their labels; "" for what one calls itself.
        request: Its sizes, weights, conventions and references are the settings, the first varying slowest.
        by_reference: Whether each reference is a setting of its own.
    """
    references = [(wrt,) for wrt in request.references] if by_reference else [request.references]
    settings = product(request.sizes, request.weights, request.conventions, references)
    return [
        Row(label=label, model=model, size=size, weights=weights, convention=convention, references=each)
        for size, weights, convention, each in settings
        for label, model in models.items()
    ]


def by_setting(asked: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows that follow each other under one setting; of each model one."""
    same: list[Row] = []
    for row in asked:
        if same and (row.setting != same[0].setting or any(row.label == other.label for other in same)):
            yield same
            same = []
        same.append(row)
    if same:
        yield same

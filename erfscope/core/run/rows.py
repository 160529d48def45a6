"""What is measured: the rows that the options of a call ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from erfscope.core.request.request import Request


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


def rows(entries: Sequence[tuple[str, Any]], request: Request, *, by_reference: bool) -> list[list[Row]]:
    """The rows of some models, one list for each setting.

    Args:
        entries: (label, model).
        request: Its sizes, weights, conventions and references are the settings, the first varying slowest.
        by_reference: Whether each reference is a setting of its own.
    """
    references = [(wrt,) for wrt in request.references] if by_reference else [request.references]
    settings = product(request.sizes, request.weights, request.conventions, references)
    return [
        [
            Row(label=label, model=model, size=size, weights=weights, convention=convention, references=each)
            for label, model in entries
        ]
        for size, weights, convention, each in settings
    ]

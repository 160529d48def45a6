"""Advice on one model: its structure, where its field stops growing, and what would widen or narrow it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch

from erfscope import sweep
from erfscope.apps.advise.outcome import Search
from erfscope.apps.advise.search import SearchRun
from erfscope.apps.advise.shown import advice_json, advice_parts
from erfscope.apps.advise.shown_search import search_figure
from erfscope.apps.advise.structure import NetStructure, structure_of
from erfscope.apps.advise.target import parse_budget, parse_target
from erfscope.core import (
    OUTPUT,
    ErfscopeError,
    LayerRow,
    Model,
    OpenModel,
    Options,
    Report,
    Request,
    layer_table,
    open_model,
    sharing_recordings,
)
from erfscope.show import Note, Shown, Table


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Advice(Shown):
    """Advice on a model at one input size. It prints as ``erfscope advise`` does."""

    structure: NetStructure
    #: One result for each stage and block on the same images; None where nothing was measured.
    depth: Report | None = None
    search: Search | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return advice_json(self.structure, self.depth, self.search)

    def parts(self, *, everything: bool = False) -> Iterator[Table | Note]:
        """What is printed: lines of text and tables.

        Args:
            everything: Whether every layer and every candidate has a row.
        """
        return advice_parts(self.structure, self.depth, self.search, everything=everything)

    def figure(self) -> Any:
        """The candidates of the search: the measure against the cost, as a matplotlib figure.

        Raises:
            ErfscopeError: nothing was searched.
        """
        if self.search is None:
            raise ErfscopeError("nothing was searched: give a target")
        return search_figure(self.search)

    def __repr__(self) -> str:
        return f"<advice on {self.structure.model}>"


@torch.inference_mode(False)
def advise(
    model: Model,
    *,
    measure: bool = False,
    target: str | None = None,
    budget: str | Sequence[str] = (),
    time: float = 600.0,
    **options: Unpack[Options],
) -> Advice:
    """Which layers of a model are wasted at an input size, where its field stops growing, and which edits would reach a
    target at the least cost.

    Args:
        model: As for :func:`erfscope.analyze`; handed back as found.
        measure: Whether to measure the effective receptive field of every stage and block too.
        target: What a search is to reach, such as ``"r50>=120"`` or ``"halo<=64"``; no search if None.
        budget: What it may cost, such as ``"gmacs<=+10%"``, one or several.
        time: Seconds that the search may take, from when the model is read; how many edits it tries depends on it.
        **options: As for :func:`erfscope.analyze`; those of building for the structure, the others for what is
            measured. A search keeps what it measured in the folder ``keep_in``, and goes on with that in ``resume``.

    Returns:
        The advice. Of a model that erfscope builds, a search draws random weights anew for every draw, which describe
        the architecture only; a live module is searched on its own weights.

    Raises:
        ErfscopeError: unknown names, a target or a budget that cannot be read, or a model of several inputs.
        MeasurementError: the model fails.
    """
    if not isinstance(time, int | float) or time <= 0:
        raise ErfscopeError(f"time is a number of seconds above 0, not {time!r}")
    goal = None if target is None else parse_target(target)
    bounds = tuple(map(parse_budget, [budget] if isinstance(budget, str) else budget))
    if bounds and goal is None:
        raise ErfscopeError("a budget bounds a search, and none is asked for: add a target, such as r50>=120")
    kept = {name: options.pop(name, None) for name in ("keep_in", "resume")}  # type: ignore[misc]
    request = Request.parse(options)
    with sharing_recordings(), open_model(model, request, with_numbers=False) as loaded:
        advice = Advice(structure=structure_of(loaded))
        if measure:
            advice = replace(advice, depth=_depth(model, loaded, options, advice.structure))
        if goal is not None:
            search = SearchRun(model, loaded, request, options, goal=goal, budget=bounds, kept=kept, seconds=time)
            advice = replace(advice, search=search.run(advice.structure))
    return advice


def _depth(model: Model, loaded: OpenModel, options: Mapping[str, Any], structure: NetStructure) -> Report:
    """The stages, blocks and layers of a model that can widen the field, on the same images."""
    rows = layer_table(loaded).overview()
    found = zip(rows, [None, *rows], strict=False)
    names = [row.name for row, before in found if not _adds_nothing(row, before, structure)]
    return sweep(model, **{**options, "layer": list(dict.fromkeys(names))})


def _adds_nothing(row: LayerRow, before: LayerRow | None, structure: NetStructure) -> bool:
    """Whether a row is what the one before is: a stage whose last block that is, or an element-wise module behind it,
    which has the same shape and TRF, and none of the layers with weights that mix."""
    if before is None or (row.shape, row.trf) != (before.shape, before.trf):
        return False
    has_layers = any(f"{each.name}.".startswith(f"{row.name}.") for each in structure.layers)
    return not has_layers or before.name.startswith(f"{row.name}.") or row.name == OUTPUT

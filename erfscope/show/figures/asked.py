"""Whether a run measures what its figure needs, asked before it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from erfscope.core.answer.report import Report
from erfscope.core.request.request import Request
from erfscope.core.values.unit import UnitWord, is_every_unit, resolve_units
from erfscope.core.values.unit_kind import kind_of

#: Side of the map that units are looked up in before a model is built: larger than a layer's, so that those of a grid
#: lie apart.
SIDE = 1 << 16


def check_figure(
    models: Mapping[str, Any] | Sequence[Any],
    *,
    kind: str | None,
    width: str | None,
    of: str | None = None,
    **options: Any,
) -> None:
    """Refuse a figure of which these options ask for too few values; called before anything is measured.

    What only measuring shows, and what stored results have, is seen when the figure is drawn.

    Args:
        models: As for :func:`erfscope.compare`.
        kind: Of the figure; the default one if None.
        width: As for :meth:`Report.figure`.
        of: As for :func:`erfscope.compare`.
        **options: Likewise.

    Raises:
        ErfscopeError: the kind needs several values of an option, or a wider sheet.
    """
    from erfscope.core.run.entries import named_models
    from erfscope.show.figures.kinds import refuse_unasked

    entries, named = ([], options) if of is not None else named_models(models, options)
    if any(isinstance(model, Report) for _, model in entries):
        return
    request = Request.parse(named, may_grow=True, of_each=True)
    several, unit = request.several(), request.settings.unit
    is_every = is_every_unit(unit)
    found = {
        "layer": "layer" in several,
        "input_size": request.is_growing or "input_size" in several,
        "unit": not is_every and _names_several(unit),
        "every unit": is_every,
        # The model without its blocks is one more.
        "alpha": bool(request.insert) and request.alphas != (None,),
        "checkpoint": of is not None,
    }
    refuse_unasked(kind or ("positions" if is_every else "panel"), found, width=width)


def _names_several(unit: UnitWord) -> bool:
    """Whether a word means several units of a layer."""
    kind, names = kind_of(unit)
    if kind:
        return len(names) > 1
    return len(resolve_units(unit, (SIDE, SIDE), (SIDE // 2, SIDE // 2), nearest=_cells)) > 1


def _cells(place: Sequence[float]) -> tuple[int, ...]:
    return tuple(map(int, place))

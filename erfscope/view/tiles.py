"""Words of plans of tiles, for the terminal and for figures, and plans as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from erfscope.results.result import Halo
from erfscope.view.words import square_text

if TYPE_CHECKING:
    from erfscope.tiling import HaloBudget, TileCost, TilePlan

AXES = {1: ("cells",), 2: ("rows", "columns"), 3: ("planes", "rows", "columns")}


def halo_text(halo: Sequence[tuple[int, int]]) -> str:
    """What tiles need beyond their own, before and after them, along each axis."""
    before, after = zip(*halo, strict=True)
    return f"{square_text(before)} px before, {square_text(after)} px after"


def halo_cell(halo: Halo) -> str:
    """A result's halo as a cell: ``94``, ``49, 42`` before and after a tile, or ``no tiles``."""
    sides = dict.fromkeys(map(square_text, zip(*halo.px, strict=True)))
    return "no tiles" if halo.blockers else ", ".join(sides)


def plan_json(
    plan: TilePlan, costs: Sequence[TileCost], *, budget: HaloBudget | None, tolerance: float | None
) -> dict[str, Any]:
    """The plan as JSON values; sizes are in input cells, one entry per axis."""
    names = ("halo", "halo_any_phase", "alignment", "remainder", "scale", "offset", "lost", "tile", "step", "crop")
    document: dict[str, Any] = {"schema": "erfscope-tile-1"}
    document |= {name: getattr(plan, name) for name in ("model", "layer", "possible", "blockers", "memory")}
    document |= {name: getattr(plan, name) for name in names}
    fields = ("names", "tile", "step", "crop", "memory", "tiles", "wasted")
    document["tiles"] = [{name: getattr(each, name) for name in fields} for each in costs]
    if budget is not None and tolerance is not None:
        se = [[[None if each != each else each for each in side] for side in axis] for axis in budget.se.tolist()]
        shorter = {"tolerance": tolerance, "halo": budget.shortest(plan, tolerance)}
        document["budget"] = shorter | {"share": budget.share.tolist(), "se": se, "seam": budget.seam.tolist()}
    return document

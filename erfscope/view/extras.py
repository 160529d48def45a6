"""Numbers that some results have beside their sizes: for all units of a layer, noise, removed nodes, hops on a graph,
frames, and published tools."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from erfscope.geometry.unit import size_text
from erfscope.results.json_values import fields
from erfscope.results.positions import MEASURED, Positions
from erfscope.results.result import Halo, Result, SamplingPoints
from erfscope.view.cells import Cell, plain_cell
from erfscope.view.tiles import AXES
from erfscope.view.trust import trust_text
from erfscope.view.words import lengths_text, square_text

#: Shares of a list that are shown one by one; the further ones are added up.
LISTED = 16
#: The statistics of all units of a layer, by their names in the JSON.
OF_UNITS = {
    "min": "min",
    "median": "median",
    "max": "max",
    "inside": "median where the TRF lies inside the input",
    "clipped": "median where the border clips it",
    "clipped_to_inside": "ratio of these two",
    "edge_to_centre": "outermost units / middle half",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Numbers that some maps have beside their sizes, under one head."""

    head: str
    items: tuple[tuple[str, Cell], ...] = ()


def extras(result: Result, index: int) -> Iterator[Extra]:
    """The numbers beside the sizes of a result.

    Args:
        result: The result.
        index: Its position in the report.
    """
    where = f"/results/{index}"
    if result.positions is not None:
        yield from _positions(result, result.positions, f"{where}/positions")
    if result.halo is not None:
        yield from _halo(result.halo, f"{where}/halo")
    if result.sampling_points is not None:
        yield from _sampling_points(result, result.sampling_points, where)
    if text := trust_text(result):
        yield Extra(head=text)
    if result.rank_correlation is not None:
        number = plain_cell(result.rank_correlation, f"{where}/rank_correlation")
        yield Extra(head="rank correlation with the gradient's map of the same images", items=(("", number),))
    if result.hops is not None:
        hops, at = result.hops, f"{where}/hops"
        items = [
            ("mean hop", plain_cell(hops.mean_hop, f"{at}/mean_hop")),
            *_shares(hops.mass.tolist(), f"{at}/mass", "hop"),
        ]
        lost = [("out of reach", plain_cell(hops.unreachable, f"{at}/unreachable", percent=True))]
        yield Extra(head="share of the map by hops along the graph", items=(*items, *lost))
    if result.frame_mass is not None:
        items = list(_shares(result.frame_mass, f"{where}/frame_mass", "frame"))
        yield Extra(head="share of the map in each frame", items=tuple(items))
    if result.published is not None:
        head = f"as published tools count: {result.published.get('rule', '')} ({result.published.get('note', '')})"
        yield Extra(head=head, items=tuple(_leaves(result.published, f"{where}/published")))


def _positions(result: Result, found: Positions, where: str) -> Iterator[Extra]:
    """The sizes of all units, and how they change towards the border."""
    shape, word = size_text(found.r50.shape), lengths_text(result)
    clipped = int((~found.inside).sum())
    about = f"the border clips the TRF of {clipped} of {found.units}"
    about += f", {found.without_gradient} without a gradient" if found.without_gradient else ""
    for name in MEASURED:
        values = fields(found.border_effect(name))
        items = ((text, plain_cell(values[key], f"{where}/{name}/{key}")) for key, text in OF_UNITS.items())
        shown = tuple((text, cell) for text, cell in items if cell.value is not None)
        yield Extra(head=f"{name} of all {shape} units of {result.layer} ({word}; {about})", items=shown)
    if found.alone:
        yield Extra(head=f"one backward pass per unit, since {found.alone}")


def _halo(halo: Halo, where: str) -> Iterator[Extra]:
    """What makes tiles impossible, and the halo along each axis."""
    yield from (Extra(head=f"no tiles: {blocker}") for blocker in halo.blockers)
    names = AXES.get(len(halo.px), ()) if len(set(halo.px)) > 1 else ("",)
    items = tuple(
        (f"{name} {side}".lstrip(), Cell(text=str(px), value=px, pointer=f"{where}/px/{axis}/{number}"))
        for axis, (name, sides) in enumerate(zip(names, halo.px, strict=False))
        for number, (side, px) in enumerate(zip(("before", "after"), sides, strict=True))
    )
    if items:
        but = "but for that, " * bool(halo.blockers)
        head = f"{but}halo (px) of tiles that begin at multiples of {square_text(halo.alignment_px)}"
        yield Extra(head=head, items=items)


def _sampling_points(result: Result, found: Sequence[SamplingPoints], where: str) -> Iterator[Extra]:
    """How many points each operation reads, and how far from the unit's centre the furthest is."""
    if not found:
        yield Extra(head="no sampling points: no recorded operation of which the unit needs few cells has any")
    for place, each in enumerate(found):
        center = () if result.unit is None else result.unit.center_px
        furthest = max(math.dist(point, center) for point in each.points_px)
        head = f"{each.operation} reads the first image at {len(each.points_px)} points for the unit"
        at = f"{where}/sampling_points/{place}"
        yield Extra(head=head, items=(("furthest from the unit's centre (px)", plain_cell(furthest, at)),))


def _shares(shares: Sequence[float], where: str, name: str) -> Iterator[tuple[str, Cell]]:
    for place, share in enumerate(shares[:LISTED]):
        yield f"{name} {place}", plain_cell(share, f"{where}/{place}", percent=True)
    if len(shares) > LISTED:
        yield "further", plain_cell(sum(shares[LISTED:]), "", percent=True)


def _leaves(value: Any, where: str, name: str = "") -> Iterator[tuple[str, Cell]]:
    """Every number below a place of the JSON, with its name."""
    if isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            escaped = str(key).replace("~", "~0").replace("/", "~1")
            yield from _leaves(item, f"{where}/{escaped}", f"{name} {key}".strip())
    elif not isinstance(value, str):
        yield name, plain_cell(value, where)

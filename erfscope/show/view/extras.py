"""Numbers that some results have beside their sizes: for all units of a layer, noise, removed nodes, hops on a graph,
frames, and published tools."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erfscope.core.answer.json_values import fields
from erfscope.core.answer.maps.hops import HopProfile
from erfscope.core.answer.maps.trust import LINEAR_WITHIN, Trust
from erfscope.core.answer.positions import MEASURED, Positions
from erfscope.core.answer.result import Halo, InputRecord, Result, SamplingPoints
from erfscope.core.answer.timing import Timing
from erfscope.core.values.axes import DEPTH, FRAMES, PX, TIME, Axes
from erfscope.core.values.names import IMAGE
from erfscope.core.values.printable import brief, number, with_error
from erfscope.core.values.unit import size_text
from erfscope.show.view.cells import measure_cell, plain_cell
from erfscope.show.view.table import Cell
from erfscope.show.view.words import lengths_text, sides_text, square_text


def trust_text(result: Result) -> str:
    """The agreement of forward passes with noise and the gradient, in one line; "" where no passes were made."""
    trust = result.trust
    if trust is None:
        return ""
    passes = f"{trust.passes} passes with noise{', some in float64' if trust.is_in_double else ''}"
    parts = [_gradient(trust), *_regions(trust), *_hidden(trust), *_linear(trust, result.wrt)]
    return f"Trust, by {passes}: {'; '.join(parts)}"


def trust_sentence(results: Sequence[Result]) -> str:
    """The agreement of forward passes with noise and the gradients, for a paper; "" unless all were compared."""
    trusts = [result.trust for result in results if result.trust is not None and result.trust.ratio is not None]
    if not trusts or len(trusts) < len(results):
        return ""
    ratios = [trust.ratio.value for trust in trusts if trust.ratio is not None]
    found = f"{min(ratios):.3f}" if len(ratios) == 1 else f"{min(ratios):.3f} to {max(ratios):.3f}"
    passes = sum(trust.passes for trust in trusts)
    return (
        f"Gradients were compared with forward passes with Gaussian noise ({passes} passes), which found {found} of"
        " their energy."
    )


def _gradient(trust: Trust) -> str:
    if trust.silent_because:
        return trust.silent_because
    if trust.ratio is None:
        if trust.moved_without_gradient:
            return "the gradient disagrees, since it is zero"
        return "no input has a gradient, and noise moves the unit in none"
    word = "disagrees" if trust.disagrees else "agrees"
    return f"the gradient {word}, noise finds {with_error(*trust.ratio)} of its energy"


def _regions(trust: Trust) -> Iterator[str]:
    found = [
        f"{region.name} {with_error(100 * region.probe.energy.value, 100 * region.probe.energy.se)} %"
        f" ({100 * region.probe.share:.1f} % by gradient)"
        for region in trust.regions
    ]
    if found:
        yield f"of that {', '.join(found)}"


def _hidden(trust: Trust) -> Iterator[str]:
    # Where it is the reason of doubt, the first words say so.
    if trust.hidden is not None and (trust.is_within or not trust.silent_because):
        yield f"forward passes leave {trust.hidden} possible"


def _linear(trust: Trust, wrt: str) -> Iterator[str]:
    if not trust.ladder:
        return
    whole, sigma, first = "input" if wrt == IMAGE else "reference", trust.linear_to, trust.ladder[0].sigma
    last = trust.ladder[-1].sigma
    grey = "" if trust.grey_levels is None else f", {number((sigma or last) * trust.grey_levels)} of 255 grey levels"
    if sigma is None:
        reach = f"beyond noise of {number(last)}"
    else:
        reach = f"up to noise of {number(sigma)}" if sigma > first else f"not up to noise of {number(first)}"
    tenth = "" if trust.at_tenth is None else f"; energy at a tenth {with_error(*trust.at_tenth)}"
    yield f"linear within {100 * LINEAR_WITHIN:g} % {reach} standard deviations of the {whole}{grey}{tenth}"


def halo_text(halo: Sequence[tuple[int, int]], axes: Axes | None = None) -> str:
    """What tiles need beyond their own, before and after them, along each axis of the input."""
    axes = axes or Axes.of_rank(len(halo))
    before, after = (sides_text(axes, sides, square=True) for sides in zip(*halo, strict=True))
    return f"{before} before, {after} after"


def halo_cell(halo: Halo) -> str:
    """A result's halo as a cell: ``94``, ``49, 42`` before and after a tile, or ``no tiles``."""
    sides = dict.fromkeys(map(square_text, zip(*halo.px, strict=True)))
    return "no tiles" if halo.blockers else ", ".join(sides)


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
    for name, lines in EXTRAS.items():
        if (found := getattr(result, name)) is not None:
            yield from lines(result, found, f"/results/{index}/{name}")


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


def _halo(result: Result, halo: Halo, where: str) -> Iterator[Extra]:
    """What makes tiles impossible, and the halo along each axis."""
    yield from (Extra(head=f"no tiles: {blocker}") for blocker in halo.blockers)
    axes = result.input_axes
    names = axes.names if len(set(halo.px)) > 1 else ("",)
    items = tuple(
        (f"{name} {side}".lstrip(), Cell(text=str(px), value=px, pointer=f"{where}/px/{axis}/{number}"))
        for axis, (name, sides) in enumerate(zip(names, halo.px, strict=False))
        for number, (side, px) in enumerate(zip(("before", "after"), sides, strict=True))
    )
    if items:
        but = "but for that, " * bool(halo.blockers)
        head = f"{but}halo ({axes.cells}) of tiles that begin at multiples of {square_text(halo.alignment_px)}"
        yield Extra(head=head, items=items)


def _sampling_points(result: Result, found: Sequence[SamplingPoints], where: str) -> Iterator[Extra]:
    """How many points each operation reads, and how far from the unit's centre the furthest is."""
    if not found:
        yield Extra(head="no sampling points: no recorded operation of which the unit needs few cells has any")
    for place, each in enumerate(found):
        head = f"{each.operation} reads the first {result.input.noun} at {len(each.points_px)} points for the unit"
        if result.unit is None or not result.unit.center_px:
            yield Extra(head=head)
            continue
        furthest = max(math.dist(point, result.unit.center_px) for point in each.points_px)
        furthest_cell = plain_cell(furthest, f"{where}/{place}")
        yield Extra(head=head, items=((f"furthest from the unit's centre ({result.axes.cells})", furthest_cell),))


def _trust(result: Result, _found: Trust, _where: str) -> Iterator[Extra]:
    yield Extra(head=trust_text(result))


def _rank_correlation(result: Result, found: float, where: str) -> Iterator[Extra]:
    number = plain_cell(found, where)
    yield Extra(
        head=f"rank correlation with the gradient's map of the same {result.input.noun}s", items=(("", number),)
    )


def _hops(_result: Result, hops: HopProfile, where: str) -> Iterator[Extra]:
    items = [
        ("mean hop", plain_cell(hops.mean_hop, f"{where}/mean_hop")),
        *_shares(hops.mass.tolist(), f"{where}/mass", "hop"),
        ("out of reach", plain_cell(hops.unreachable, f"{where}/unreachable", percent=True)),
    ]
    yield Extra(head="share of the map by hops along the graph", items=tuple(items))


def _frame_mass(result: Result, shares: Sequence[float], where: str) -> Iterator[Extra]:
    """The shares of the frames around the unit, and those before and after them together."""
    has_place = result.unit is not None and result.unit.center_px
    middle = round(result.unit.center_px[0]) if result.unit and has_place else shares.index(max(shares))
    first = max(0, min(middle - LISTED // 2, len(shares) - LISTED))
    last = min(first + LISTED, len(shares))
    items = [(f"frame {at}", plain_cell(shares[at], f"{where}/{at}", percent=True)) for at in range(first, last)]
    for name, beyond, place in (("frames before", shares[:first], 0), ("frames after", shares[last:], len(items) + 1)):
        if beyond:
            items.insert(place, (name, plain_cell(sum(beyond), "", percent=True)))
    yield Extra(head="share of the map in each frame", items=tuple(items))


def _timing(result: Result, timing: Timing, where: str) -> Iterator[Extra]:
    """The shares before, in and after the unit's step, what it waits for, and how far back it looks."""
    axes, measures = result.axes, result.measures
    axis = axes.names.index(TIME)
    unit, step = axes.units[axis], axes.spacing[axis]
    shares = [(name, measure_cell(result, f"{name}_share")) for name in ("past", "present", "future")]
    items = [(name, cell) for name, cell in shares if not cell.is_missing]
    for name in ("look_ahead", "latency"):
        cells = getattr(timing, name)
        if cells is not None:
            items.append((f"{name.replace('_', '-')} ({unit})", plain_cell(cells * step, f"{where}/{name}")))
    known = {"by its TRF": timing.causal_by_trf, "in the map": timing.causal_by_map}
    said = [f"{'causal' if holds else 'not causal'} {by}" for by, holds in known.items() if holds is not None]
    first, last = map(brief, timing.step)
    own = f"{axes.cell if axes.cell != PX else FRAMES} {first} to {last}" if first != last else f"its own, {first}"
    for name in ("extent50_time", "extent90_time", "lookback90"):
        if name in measures and not (cell := measure_cell(result, name)).is_missing:
            items.append((f"{name} ({unit})", cell))
    head = f"time: the unit's step is {own}; {', '.join(said) or 'whether it is causal is not known'}"
    yield Extra(head=head, items=tuple(items))


def _extents(result: Result, _input: InputRecord, _where: str) -> Iterator[Extra]:
    """Along each axis of a volume, the length that holds half of the map."""
    axes = result.axes
    cells = [(name, measure_cell(result, f"extent50_{name}")) for name in axes.names]
    items = tuple((name, cell) for name, cell in cells if not cell.is_missing)
    if DEPTH in axes.names and items:
        yield Extra(
            head=f"length around the unit that holds half of the ERF, along each axis ({axes.unit})", items=items
        )


def _published(_result: Result, found: Mapping[str, Any], where: str) -> Iterator[Extra]:
    head = f"as published tools count: {found.get('rule', '')} ({found.get('note', '')})"
    yield Extra(head=head, items=tuple(_leaves(found, where)))


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


#: Field of a result -> the lines of what it holds, by its place in the JSON; in the order in which they are shown.
EXTRAS: dict[str, Callable[[Result, Any, str], Iterator[Extra]]] = {
    "positions": _positions,
    "halo": _halo,
    "sampling_points": _sampling_points,
    "trust": _trust,
    "rank_correlation": _rank_correlation,
    "hops": _hops,
    "frame_mass": _frame_mass,
    "timing": _timing,
    "input": _extents,
    "published": _published,
}

"""A card per result: its map, its profile, its sizes and what must be said about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erfscope.geometry.box import size_text
from erfscope.geometry.names import IMAGE
from erfscope.measures import MEASURES
from erfscope.measures.profile import RadialProfile
from erfscope.page.charts import Profile, profile, profile_of
from erfscope.page.numbers import Number, Reading, number_at, reading_at
from erfscope.page.pictures import View
from erfscope.page.rows import about, chosen_measures, partner_of, unit_text
from erfscope.page.words import identity
from erfscope.results.positions import MEASURED
from erfscope.results.report import Report
from erfscope.results.result import Computed, Result
from erfscope.tables.columns import cells_text, field_text, plane_note, sides_text, weights_text
from erfscope.tables.meanings import MEANING
from erfscope.tables.trust_text import trust_line

#: How many hops along a graph, and frames of a film, are listed.
LISTED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One measure of a result."""

    name: str
    about: str
    meaning: str
    unit: str
    reading: Reading
    of_input: Number
    of_trf: Number
    #: The size in image pixels, where the reference is an inner map.
    image_px: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A short list of numbers under one head."""

    head: str
    items: tuple[tuple[str, Number], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustLine:
    """What forward passes with noise say of the gradient, and by region its share of energy and the one that noise
    finds."""

    text: str
    bars: tuple[tuple[str, tuple[float, float]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Everything that is shown of one result."""

    index: int
    label: str
    result: Result
    identity: tuple[str, ...]
    field: str
    cells: str
    view: View | None
    profile: Profile | None
    #: What the percentages beside the sizes are of.
    ratios: str
    #: That sizes are in-plane; "" where they are not.
    in_plane: str
    #: Whom the grey curve of the profile belongs to.
    other: str
    sizes: tuple[Size, ...]
    more: tuple[Size, ...]
    shares: tuple[Shares, ...]
    trust: TrustLine | None
    facts: tuple[tuple[str, str], ...]


def cards(
    document: Mapping[str, Any], report: Report, labels: Sequence[str], views: Sequence[View | None]
) -> list[Card]:
    """A card for every result.

    Args:
        document: The report's JSON: every number is taken from there.
        report: The report.
        labels: What each result is called.
        views: What is drawn of each.
    """
    curves = [profile_of(result) for result in report]
    return [_card(document, report, index, labels, views[index], curves) for index in range(len(report))]


def _card(
    document: Mapping[str, Any],
    report: Report,
    index: int,
    labels: Sequence[str],
    view: View | None,
    curves: Sequence[RadialProfile | None],
) -> Card:
    result, first = report[index], chosen_measures(report.results)
    partner = partner_of(report, index)
    same = partner is not None and report[partner].wrt == result.wrt and report[partner].input.size == result.input.size
    curve, grey = curves[index], curves[partner] if partner is not None and same else None
    names = [name for name in first if name in result.measures]
    rest = [name for name in result.measures if name not in names]
    return Card(
        index=index,
        label=labels[index],
        result=result,
        identity=tuple(identity(result)),
        field=field_text(result),
        cells=cells_text(result),
        view=view,
        profile=None if curve is None else profile(result, curve, grey),
        ratios=_ratios(result),
        in_plane=plane_note([result]),
        other="" if partner is None or grey is None else labels[partner],
        sizes=tuple(_size(document, index, name) for name in names),
        more=tuple(_size(document, index, name) for name in rest),
        shares=tuple(_shares(document, index, result)),
        trust=_trust(result),
        facts=tuple(_facts(result)),
    )


def _ratios(result: Result) -> str:
    """What the percentages beside the sizes are, in one sentence; "" where there are none."""
    side, field = sides_text(result)
    if not any(measure.of_input is not None for measure in result.measures.values()):
        return ""
    word, whole = cells_text(result), "the input" if result.wrt == IMAGE else "the reference"
    text = f"Of {whole}: the number divided by its side, {side} {word}"
    text += f"; of field: by that of the whole TRF, {field} {word}" if field else ""
    return f"{text}. Areas by the area."


def _size(document: Mapping[str, Any], index: int, name: str) -> Size:
    where = ("results", index, "measures", name)
    entry = document["results"][index]["measures"][name]
    return Size(
        name=name,
        about=about(name) if name in MEASURES else "",
        meaning=MEANING.get(name, ""),
        unit=unit_text(entry["in"], flat=document["results"][index]["in_plane"]),
        reading=reading_at(document, *where),
        of_input=number_at(document, *where, "of_input", form="percent"),
        of_trf=number_at(document, *where, "of_trf", form="percent"),
        image_px=number_at(document, *where, "image_px") if "image_px" in entry else None,
    )


def _shares(document: Mapping[str, Any], index: int, result: Result) -> Iterator[Shares]:
    """What stands beside the sizes of some maps: hops along a graph, frames of a film, other tools' numbers."""
    where = ("results", index)
    if result.rank_correlation is not None:
        number = number_at(document, *where, "rank_correlation")
        yield Shares(head="Rank correlation with the gradient's map of the same images", items=(("", number),))
    if result.hops is not None:
        hops = [
            (f"hop {hop}", number_at(document, *where, "hops", "mass", hop))
            for hop in range(min(LISTED, len(result.hops.mass)))
        ]
        lost = [("out of reach", number_at(document, *where, "hops", "unreachable"))]
        mean = [("mean hop", number_at(document, *where, "hops", "mean_hop"))]
        yield Shares(head="Share of the map by hops along the graph", items=(*mean, *hops, *lost))
    if result.frame_mass is not None:
        frames = range(min(LISTED, len(result.frame_mass)))
        items = ((f"frame {frame}", number_at(document, *where, "frame_mass", frame)) for frame in frames)
        yield Shares(head="Share of the map in each frame", items=tuple(items))
    if result.positions is not None:
        for name in MEASURED:
            head = f"{name} of all {size_text(result.positions.r50.shape)} units of the layer ({cells_text(result)})"
            yield Shares(head=head, items=tuple(_leaves(document, (*where, "positions", name))))
    if result.published is not None:
        head = f"As published tools count: {result.published.get('rule', '')} ({result.published.get('note', '')})"
        yield Shares(head=head, items=tuple(_leaves(document, (*where, "published"))))


def _trust(result: Result) -> TrustLine | None:
    if result.trust is None:
        return None
    bars = ((region.name, (region.probe.share, region.probe.energy.value)) for region in result.trust.regions)
    return TrustLine(text=trust_line(result) or "", bars=tuple(bars))


def _leaves(document: Mapping[str, Any], where: tuple[str | int, ...], name: str = "") -> Iterator[tuple[str, Number]]:
    """Every number below a place of the document, with its name."""
    value: Any = document
    for part in where:
        value = value[part]
    if isinstance(value, dict | list):
        for key, _ in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(document, (*where, key), f"{name} {key}".strip())
    elif not isinstance(value, str):
        yield name, number_at(document, *where)


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    """Where the numbers come from, as (name, text)."""
    weights, shown = result.weights, result.input
    yield "model", result.model
    origin = "" if weights.origin is None else f", {weights.origin}"
    seed = "" if weights.seed is None else f", seed {weights.seed}"
    yield (
        "weights",
        f"{weights_text(result)}{origin}{seed}"
        + (f", {weights.reactivated} branches switched on" if weights.reactivated else ""),
    )
    if weights.sha256:
        yield "weights sha256", weights.sha256
    yield "images", shown.text or f"{shown.n_images} {shown.source}"
    if shown.sha256:
        yield "images sha256", shown.sha256
    if shown.dead:
        yield (
            "unusable images",
            ", ".join(shown.dead[:8]) + (f" and {len(shown.dead) - 8} more" if len(shown.dead) > 8 else ""),
        )
    yield "transform", shown.transform
    yield "draws per image", str(shown.n_draws)
    yield "seed", str(result.seed)
    yield (
        "computed in",
        f"{result.dtype}{'' if result.amp_dtype is None else f' under {result.amp_dtype} autocast'} on {result.device}",
    )
    if result.trf is not None:
        yield (
            "theoretical receptive field (TRF)",
            (
                f"{size_text(result.trf.size_px)}, box"
                f" {_box(result.trf.box_px)}{'' if result.trf.exact else ', an upper bound'}"
            ),
        )
    if result.computed is not None:
        yield "computed", _computed(result.computed)
    yield "map file", f"{result.id}.npz"


def _computed(computed: Computed) -> str:
    """Which way, and how much."""
    if computed.path == "plain":
        return f"by the model itself, whole up to the layer: {computed.because}"
    return f"by its graph, {computed.share:.1%} of the multiply-adds up to the layer"


def _box(box: Sequence[tuple[int, int]]) -> str:
    return " × ".join(f"{first}..{last}" for first, last in box)

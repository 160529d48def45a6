"""The words for results in every output: conditions, sizes, what they mean, and the sentences below them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from erfscope.core.answer.comparability import RANDOM
from erfscope.core.answer.measures.values import MeasureValue
from erfscope.core.answer.result import Result
from erfscope.core.images import KINDS
from erfscope.core.values.axes import CELLS, COL, DEPTH, FRAMES, ROW, TIME, Axes
from erfscope.core.values.model_facts import Weights
from erfscope.core.values.names import IMAGE, is_input
from erfscope.core.values.printable import brief, listed_up_to
from erfscope.core.values.unit import NUMBER, PX, Trf, size_text

#: The radii that every output shows first, and figures draw.
RADII = ("r50", "r90")
#: The same where a unit has no place, around the centroid of its map.
CENTROID_RADII = ("centroid_r50", "centroid_r90")
#: Meanings of columns, in at most eight words; measures in the order in which a result shows them.
GLOSS = {
    "input_share": "share of all inputs' contributions",
    "r50": "radius that holds half of the ERF",
    "context_r50": "r50 without the unit's own cell",
    "r90": "radius that holds nine tenths of the ERF",
    "far_mass": "share of the ERF beyond a quarter diagonal",
    "center_share": "share of the ERF in the unit's cell",
    "erf_trf": "ERF width / TRF width",
    "stride": "distance between neighbouring units of the layer",
    "TRF": "side of the theoretical receptive field",
    "halo": "input beyond an aligned tile, before and after",
    "params": "parameters of the model",
    "GMACs": "multiply-adds of one forward pass, in 10^9",
}
#: The same of the measures that units without a place have in their stead.
GLOSS_WITHOUT_PLACE = {
    "centroid_r50": "radius around the centroid: half of the ERF",
    "centroid_r90": "radius around the centroid: nine tenths",
    "entropy_area": "effective number of cells",
}
#: Columns that a table explains in a line below it.
UNCLEAR = ("input_share", "context_r50", "far_mass", "halo")
#: How a measure changes with a larger ERF, by its ``wider``.
WIDER = {1: "grows with the ERF", -1: "shrinks as the ERF grows", None: "says nothing of size"}
#: Sizes on references with three axes (clips, volumes) carry this word.
IN_PLANE = "in-plane"
IN_PLANE_MEANS = "distances over rows and columns, on the map summed over time"
#: What the errors of sizes are.
JACKKNIFE = "delete-one-group jackknife error (variance and bias)"
#: What the places of a unit's index are along each axis.
PLACES = {TIME: "frame", DEPTH: "plane", ROW: "row", COL: "column"}


# --- Conditions -----------------------------------------------------------------------------------


class ConditionText(NamedTuple):
    """One condition of a measurement."""

    #: As the cell of a table has it, below its name; "" where the result has none of that name.
    text: str
    #: As it reads without its name above it: ``random weights``, ``layer layer4``.
    alone: str


def conditions(result: Result) -> dict[str, ConditionText]:
    """The conditions under which a result holds, by name."""
    size, images = size_text(result.input.size), images_text(result)
    layer = result.layer if is_input(result.wrt) else f"{result.layer} wrt {result.wrt}"
    is_one_input = is_input(result.wrt) and result.wrt != IMAGE
    return {
        "weights": weights_condition(result),
        **({"reference": ConditionText(result.wrt, f"wrt {result.wrt}")} if is_one_input else {}),
        "input": ConditionText(size, f"input {sides_text(result.input_axes, result.input.size)}"),
        **_named("layer", layer),
        "unit": ConditionText(index_text(result), unit_text(result)),
        **_named("convention", convention_text(result)),
        **_named("method", "" if result.method == "gradient" else result.method),
        **option_values(result),
        **_named("sizes", IN_PLANE if result.is_in_plane and result.measures else ""),
        "images": ConditionText(images, images),
        **_named("seed", str(result.seed)),
    }


def _named(name: str, text: str) -> dict[str, ConditionText]:
    return {name: ConditionText(text, f"{name} {text}")}


def shared(results: Sequence[Result]) -> dict[str, ConditionText]:
    """The conditions that all usable results share, by name; of all where none can be used."""
    first, *others = [conditions(result) for result in usable(results)]
    return {name: each for name, each in first.items() if each.text and all(row.get(name) == each for row in others)}


def usable(results: Sequence[Result]) -> list[Result]:
    """The results that can be used; all where none can."""
    return [result for result in results if result.ok] or list(results)


def names(results: Sequence[Result]) -> list[str]:
    """A name for every result: its label, and in what it differs from the others of that label."""
    return [
        " · ".join([result.label, *differences.values()])
        for result, differences in zip(results, distinctions(results), strict=True)
    ]


def distinctions(results: Sequence[Result]) -> list[dict[str, str]]:
    """The conditions, by name, in which each result differs from others of its label."""
    alike: dict[str, list[dict[str, ConditionText]]] = {}
    rows = [conditions(result) for result in results]
    for result, row in zip(results, rows, strict=True):
        alike.setdefault(result.label, []).append(row)
    return [dict(_distinguishing(row, alike[result.label])) for result, row in zip(results, rows, strict=True)]


def _distinguishing(
    row: dict[str, ConditionText], alike: Sequence[dict[str, ConditionText]]
) -> Iterator[tuple[str, str]]:
    same_layer = [other for other in alike if other["layer"] == row["layer"]]
    if len(same_layer) < len(alike):
        yield "layer", row["layer"].text
    # Units of different layers and input sizes have different indices wherever they are.
    if any(other["unit"] != row["unit"] and other["input"] == row["input"] for other in same_layer):
        yield "unit", row["unit"].alone
    for name, condition in row.items():
        if name not in ("layer", "unit") and any(other.get(name) != condition for other in alike):
            yield name, condition.alone


class HasWeights(Protocol):
    """A result, or an open model."""

    @property
    def weights(self) -> Weights:
        """Where the numbers of the model come from."""
        ...


def weights_condition(result: HasWeights) -> ConditionText:
    """The source of the weights; of a checkpoint with its file's name, in its folder, and whether they are averaged."""
    weights = result.weights
    found = weights_words(weights.source, fallback=weights.fallback)
    # The label of a step of training names its file.
    if weights.source != "checkpoint" or not weights.origin or getattr(result, "step", None) is not None:
        return found
    # As :mod:`erfscope.adapters.weights.checkpoint` writes it; the whole path is private.
    path, averaged = re.split(r"(?=, entry |, keys |$)", weights.origin, maxsplit=1)
    name = "/".join(Path(path).parts[-2:]) + (" (EMA)" if averaged else "")
    return ConditionText(f"{found.text} {name}", f"{found.alone} {name}")


#: Sources of weights that are no word before "weights": in a cell of a table, and alone.
AS_MADE = {
    "factory": ConditionText("as made, no checkpoint", "weights as the factory made them; no checkpoint was given"),
    "given": ConditionText("as provided", "weights as provided"),
    "exported": ConditionText("as exported", "weights as exported"),
}


def weights_words(source: str, *, fallback: bool = False) -> ConditionText:
    """How weights of a source, see :class:`erfscope.core.values.model_facts.Weights`, are called in every output."""
    why = " (fallback)" if fallback else ""
    return AS_MADE.get(source) or ConditionText(f"{source}{why}", f"{source} weights{why}")


def convention_text(result: Result) -> str:
    """The convention and the scale of its map, once where both are one word: ``jacobian (amplitude)``, ``signed``."""
    return result.convention if result.scale == result.convention else f"{result.convention} ({result.scale})"


def index_text(result: Result) -> str:
    """The unit's index, e.g. ``3,3`` or ``token 0``; "" where there is none."""
    if result.unit is None:
        return ""
    return " ".join(filter(None, (result.unit.kind, ",".join(map(str, result.unit.index)))))


def place_text(result: Result) -> str:
    """The unit's index in words, e.g. ``row 3, column 3``; "" where there is none."""
    if result.unit is None:
        return ""
    index = result.unit.index
    if result.unit.kind:
        return index_text(result)
    axes = result.axes if len(result.axes.names) == len(index) else Axes.of_rank(len(index))
    names = ("index",) if len(index) == 1 else [PLACES[name] for name in axes.names]
    return ", ".join(f"{name} {place}" for name, place in zip(names, index, strict=True))


def unit_text(result: Result) -> str:
    """E.g. ``unit 3,3`` or ``token 0``; "" where there is none."""
    return index_text(result) if result.unit is None or result.unit.kind else f"unit {index_text(result)}"


def option_values(result: Result) -> dict[str, ConditionText]:
    """The other options that are not the default, by name."""
    found: dict[str, ConditionText] = {}
    for name, value in result.options.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        found |= _named(name.replace("_", " "), text)
    return found


def images_text(result: Result) -> str:
    """The number and kind of the images, of how many where some are unusable."""
    n, lost = result.input.n_images, result.input.n_dead
    used = f"{n - lost} of {n}" if lost else str(n)
    kind = KINDS.get(result.input.source)
    return f"{used}{'' if kind is None else ' synthetic'} {result.input.noun}{'' if n == 1 else 's'}" + (
        "" if kind is None else f" ({kind.words})"
    )


def over_text(results: Sequence[Result], over: str) -> str:
    """What errors are over, of :attr:`Result.se_over`: ``images``, or draws without other images."""
    return nouns(results) if over == "images" else f"random draws (other {nouns(results)} are not in it)"


def nouns(results: Sequence[Result]) -> str:
    """What the inputs of several results are called: ``images``, ``volumes``; ``inputs`` where they differ."""
    found = {result.input.noun for result in results}
    return f"{found.pop() if len(found) == 1 else 'input'}s"


# --- Sizes ----------------------------------------------------------------------------------------


def square_text(sides: Sequence[float]) -> str:
    """One number for a square, e.g. ``32``, and both sides of any other rectangle, e.g. ``32x16``."""
    texts = [brief(side) if isinstance(side, float) else str(side) for side in sides]
    return texts[0] if len(set(texts)) == 1 else "x".join(texts)


def sides_text(axes: Axes, sides: Sequence[float], *, square: bool = False) -> str:
    """Sides with what they are in: ``16x24x24 voxels``; of a clip ``9 frames x 32x32 px``.

    Args:
        axes: What ``sides`` are along.
        sides: Of an input, or a field on it.
        square: Whether equal sides are written once.
    """
    before = f"{_counted(sides[:1], FRAMES, square=square)} x " if axes.has_frames and len(sides) > 1 else ""
    return before + _counted(sides[bool(before) :], axes.cell, square=square)


def _counted(sides: Sequence[float], cells: str, *, square: bool) -> str:
    text = square_text(sides) if square else size_text([brief(side) for side in sides])
    return f"{text} {cells.removesuffix('s') if text == '1' else cells}"


def whole_text(wrt: str) -> str:
    """All of what a result is measured in: of the image, or of the map that ``wrt`` names."""
    return "the whole input" if is_input(wrt) else f"the whole of {wrt}"


def cells_text(result: Result) -> str:
    """The unit of places: ``px`` of an image, ``voxels``, ``samples``, or ``cells`` of the reference."""
    return result.axes.cell


def lengths_text(result: Result) -> str:
    """The unit of lengths: that of places, with ``in-plane`` where one axis of the reference is left out."""
    return result.axes.unit + (f" {IN_PLANE}" if result.is_in_plane else "")


def cells(results: Sequence[Result]) -> str:
    """The unit of places of several results."""
    return " or ".join(sorted({cells_text(result) for result in results}, reverse=True))


def lengths(results: Sequence[Result]) -> str:
    """The unit of lengths of several results."""
    units = " or ".join(sorted({result.axes.unit for result in results}, reverse=True))
    return units + (f", {IN_PLANE}" if all(result.is_in_plane for result in results) else "")


def radii(result: Result, names: Sequence[str] = RADII) -> dict[str, MeasureValue]:
    """The radii :data:`RADII`, or others, as far as a result has them."""
    found = {name: result.measures.get(name) for name in names}
    return {name: radius for name, radius in found.items() if radius is not None and isinstance(radius.value, float)}


def has_place(result: Result) -> bool:
    """Whether the unit of a result has a place on the reference."""
    return result.unit is None or not result.unit.kind


def gloss(name: str, result: Result) -> str:
    """The meaning of a size of a result; "" where it stands behind others."""
    return GLOSS.get(name, "") if has_place(result) else GLOSS_WITHOUT_PLACE.get(name, "")


def main_radii(result: Result) -> dict[str, MeasureValue]:
    """The radii that every output gives first: around the centroid where the unit has no place."""
    return radii(result, RADII if has_place(result) else CENTROID_RADII)


def field_text(result: Result) -> str:
    """The theoretical receptive field (TRF), as half a sentence."""
    trf, axes = result.trf, result.axes
    name = "the theoretical receptive field (TRF)"
    if trf is None:
        return f"{name} is unknown"
    if trf.is_global:
        local = f"; {sides_text(axes, trf.local_size_px)} without it" if trf.local_size_px != trf.size_px else ""
        return f"{name} covers {whole_text(result.wrt)} (global operation: {trf.global_by}{local})"
    return f"{name} is {'' if trf.exact else 'at most '}{sides_text(axes, trf.size_px, square=True)} across"


def field_cell(trf: Trf) -> str:
    """The TRF as a cell: ``435``, ``≤435`` for a bound, ``all (435)`` where it covers the whole reference by global
    operations only."""
    bound = "" if trf.exact else "≤"
    size, local = (bound + square_text(sides) for sides in (trf.size_px, trf.local_size_px))
    if not trf.is_global:
        return size
    return "all" if local == size else f"all ({local})"


def field_lines(result: Result) -> list[str]:
    """The TRF under a figure; nothing where it is not known."""
    trf = result.trf
    if trf is None:
        return []
    if trf.is_global:
        local = "" if trf.local_size_px == trf.size_px else f" (local {size_text(trf.local_size_px)})"
        return [f"TRF {'whole input' if is_input(result.wrt) else f'whole of {result.wrt}'}{local}"]
    covers = all(low <= 0 and high >= size - 1 for (low, high), size in zip(trf.box_px, trf.reference_px, strict=True))
    bound = "" if trf.exact else "at most "
    whole = "the input" if is_input(result.wrt) else result.wrt
    beyond = f", {'as large as' if trf.size_px == trf.reference_px else 'larger than'} {whole}" if covers else ""
    return [f"TRF {bound}{sides_text(result.axes, trf.size_px, square=True)}{beyond}"]


def ratio_sides(result: Result) -> tuple[str, str]:
    """The two sides that sizes are compared with, as printed beside their ratios: of the reference, and of the TRF or
    "".

    One number each, in cells of the reference: of a rectangle H x W that of the square as large, sqrt(H W).
    """
    if result.trf is None:
        return "", ""
    sides = result.sides
    return brief(sides.reference), "" if sides.field is None else brief(sides.field)


def ratios_note(result: Result) -> str:
    """The divisors of the percentages beside sizes, in two sentences; "" where there are none."""
    side, field = ratio_sides(result)
    if not any(measure.of_input is not None for measure in result.measures.values()):
        return ""
    word, whole = result.axes.unit, "the input" if is_input(result.wrt) else "the reference"
    text = f"Of {whole}: the size divided by its side, {side} {word}"
    text += f"; of field: by the side of the whole TRF, {field} {word}" if field else ""
    return f"{text}. Areas are divided by areas."


# --- Sentences below results ----------------------------------------------------------------------


def random_weights(result: HasWeights) -> str:
    """The warning that a result, or a model, is that of an untrained network, or may be so; "" where it is not."""
    weights = result.weights
    if weights.source == "factory":
        made = weights_words("factory").alone
        return f"{made}: unless the factory loads trained ones, this describes the architecture only"
    if weights.source not in RANDOM:
        return ""
    why = weights.reason if weights.fallback else f"{weights.source}, seed {weights.seed}"
    hint = "; --weights pretrained requires trained ones" if weights.fallback else ""
    return f"RANDOM WEIGHTS ({why}): this describes the architecture only, not a trained model{hint}"


def plane_note(results: Sequence[Result]) -> str:
    """The sentence that names and explains in-plane sizes; "" where there are none."""
    flat = [result for result in results if result.is_in_plane and result.measures]
    if not flat:
        return ""
    every = len(flat) == sum(bool(result.measures) for result in results)
    whose = "" if every else f" of {', '.join(dict.fromkeys(result.label for result in flat))}"
    return f"Sizes{whose} are {IN_PLANE}: {IN_PLANE_MEANS}."


def pixel_note(results: Sequence[Result], unit: object) -> str:
    """Where the units stand that were asked for by one pixel; "" where all stand on it, or ``unit`` is another word."""
    if not isinstance(unit, str) or not re.fullmatch(rf"{PX}{NUMBER}(\s*,\s*{NUMBER})*", unit.strip().lower()):
        return ""
    pixel = [float(text) for text in re.findall(NUMBER, unit)]
    places = [(r, r.unit.center_px) for r in results if r.unit is not None and is_input(r.wrt)]
    apart = {
        f"{result.label} {result.layer} at {','.join(f'{c:.4g}' for c in center)} ({distance:.3g} px away)": distance
        for result, center in places
        if len(center) == len(pixel)
        for distance in [math.dist(center, pixel)]
    }
    asked = ",".join(f"{place:.4g}" for place in pixel)
    return f"units nearest to pixel {asked} stand elsewhere: {', '.join(apart)}" if any(apart.values()) else ""


def cells_note(results: Sequence[Result]) -> str:
    """The sentence that names sizes in cells; "" where there are none."""
    in_cells = {result.axes.cell == CELLS for result in results}
    whose = " with respect to a feature map" if len(in_cells) > 1 else ""
    return f"Sizes{whose} are in cells of the map." if True in in_cells else ""


def global_note(results: Sequence[Result]) -> tuple[str, str] | None:
    """The text of cells of the column TRF such as ``all (n)``, and what it means; None where no cell has it."""
    fields = [(result.trf, result.wrt) for result in results if result.trf is not None and result.trf.is_global]
    if not fields:
        return None
    wholes = {whole_text(wrt) for _, wrt in fields}
    whole = wholes.pop() if len(wholes) == 1 else "the whole reference"
    by = listed_up_to(3, list(dict.fromkeys(trf.global_by or "" for trf, _ in fields)))
    meaning = f"the TRF covers {whole} (global operation: {by})"
    if all(trf.local_size_px == trf.size_px for trf, _ in fields):
        return "TRF all", meaning
    return "TRF all (n)", f"{meaning}; n without such operations"


def gloss_of(columns: Iterable[str]) -> str:
    """The meanings of columns with unclear names, in one line; "" where all names are clear."""
    known = set(columns)
    return " · ".join(f"{name}: {GLOSS[name]}" for name in UNCLEAR if name in known)


def checkpoints_of_one(results: Sequence[Result]) -> int | None:
    """The number of checkpoints of one model; None unless these are of several."""
    files = {result.weights.origin for result in results if result.weights.source == "checkpoint"}
    one_model = len({(result.model, result.weights.source) for result in results}) == 1
    return len(files) if len(files) > 1 and one_model else None


def steps_of_one(results: Sequence[Result]) -> int | None:
    """The number of training steps of one model; None unless these are several steps of one model."""
    steps = {result.step for result in results}
    one_model = len({result.model for result in results}) == 1
    return len(steps) if len(steps) > 1 and None not in steps and one_model else None

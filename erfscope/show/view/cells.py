"""Cells of tables: numbers as text, each with its error, its unit and its place in the JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from erfscope.core.answer.measures import INPUT_SHARE, MEASURES
from erfscope.core.answer.result import Result, image_cell
from erfscope.core.values.axes import unit_sign
from erfscope.core.values.names import IMAGE
from erfscope.core.values.printable import brief, listed_up_to, number, rounded
from erfscope.core.values.unit import size_text
from erfscope.show.view import words
from erfscope.show.view.table import MISSING, Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCells:
    """One measure of one result, also as a share of the input and of the TRF."""

    name: str
    gloss: str
    unit: str
    cell: Cell
    of_input: Cell
    of_trf: Cell
    #: In image pixels, where the reference is an inner map.
    image_px: Cell | None


def measure_cell(result: Result, name: str, index: int = 0) -> Cell:
    """One measure of a result with its error."""
    measure = result.measures.get(name)
    if measure is None:
        return MISSING
    return number_cell(measure.value, measure.se, f"/results/{index}/measures/{name}")


def share_text(result: Result) -> str:
    """The share that one of several inputs has, in a few words; "" where there is none."""
    share = measure_cell(result, INPUT_SHARE)
    return "" if share.is_missing else f"input share {share}"


def number_cell(value: Any, se: float | None, pointer: str) -> Cell:
    """A number and its error at a place of the JSON that has ``value`` and ``se``."""
    text, error = rounded(value, se)
    return Cell(
        text=text,
        value=value,
        pointer=f"{pointer}/value",
        error=None if error is None else Cell(text=error, value=se, pointer=f"{pointer}/se"),
    )


def plain_cell(value: Any, pointer: str, *, percent: bool = False, digits: int = 3) -> Cell:
    """A number without an error, of ``digits`` significant digits."""
    percent = percent and value is not None
    text = number(100 * value if percent else value, digits=digits) + " %" * percent
    return Cell(text=text, value=value, pointer=pointer)


def unit_of(name: str, result: Result) -> str:
    """The unit of a measure as people write it."""
    measure = MEASURES.get(name)
    if measure is None:
        return ""
    flat = f" {words.IN_PLANE}" if result.is_in_plane and measure.unit in ("px", "px2") and not measure.axis else ""
    return unit_sign(result.axes.unit_of(measure.unit, measure.axis)) + flat


def size_of(result: Result, name: str, index: int) -> SizeCells:
    """One measure of a result, also as a share of the input and of the TRF.

    Args:
        result: The result.
        name: The measure.
        index: Position of the result in its report.
    """
    measure, pointer = result.measures[name], f"/results/{index}/measures/{name}"
    pixel, power = image_cell(result), {"px": 1, "px2": 2}.get(MEASURES[name].unit if name in MEASURES else "", 0)
    has_pixels = pixel is not None and power and isinstance(measure.value, float)
    return SizeCells(
        name=name,
        gloss=words.gloss(name, result),
        unit=unit_of(name, result),
        cell=measure_cell(result, name, index),
        of_input=plain_cell(measure.of_input, f"{pointer}/of_input", percent=True, digits=2),
        of_trf=plain_cell(measure.of_trf, f"{pointer}/of_trf", percent=True, digits=2),
        image_px=plain_cell(float(measure) * (pixel or 0) ** power, f"{pointer}/image_px") if has_pixels else None,
    )


def identity(result: Result) -> list[str]:
    """Layer, unit, input and options of a result, in a few words each."""
    texts = []
    if result.layer:
        texts.append(f"{result.layer} (chosen)" if result.layer_chosen else result.layer)
    if result.wrt != IMAGE:
        texts.append(
            f"with respect to {result.wrt}" + ("" if result.trf is None else f" {size_text(result.trf.reference_px)}")
        )
    if result.unit is not None:
        about = "" if result.unit.center_exact else "about "
        center, axes = result.unit.center_px, result.axes
        of_frame = f"frame {brief(center[0])}, " if center and axes.has_frames else ""
        place = ",".join(map(brief, center[bool(of_frame) :]))
        at = f" at {about}{of_frame}({place}) {axes.cell}" if place else ""
        texts.append(f"{'' if result.unit.kind else 'unit '}{words.place_text(result)}{at}")
    # The warning of weights that are not trained names them.
    texts += [] if words.random_weights(result) else [words.weights_condition(result).alone]
    texts += [size_text(result.input.size), words.images_text(result), words.convention_text(result)]
    texts += [] if result.method == "gradient" else [result.method]
    by = {"graph": "computed by its graph", "plain": "computed by the whole model"}
    texts += [] if result.computed is None else [by[result.computed.path]]
    texts += [option.alone for option in words.option_values(result).values()]
    if result.insert is not None:
        texts.append(f"with {result.insert}" + ("" if result.alpha is None else f", alpha {result.alpha:g}"))
    return texts


def provenance(result: Result, *, in_folder: bool) -> Iterator[tuple[str, str]]:
    """The origin of a result's numbers, as (name, text); a folder has the file of its map, too."""
    weights, shown = result.weights, result.input
    yield "model", result.model
    parts = [
        words.weights_words(weights.source, fallback=weights.fallback).text,
        weights.origin,
        None if weights.seed is None else f"seed {weights.seed}",
    ]
    parts.append(f"{weights.reactivated} branches switched on" if weights.reactivated else None)
    yield "weights", ", ".join(filter(None, parts))
    if weights.sha256:
        yield "weights sha256", weights.sha256
    noun = shown.noun
    yield f"{noun}s", shown.text or f"{shown.n_images} {shown.source}"
    if shown.sha256:
        yield f"{noun}s sha256", shown.sha256
    if shown.dead:
        yield f"unusable {noun}s", listed_up_to(8, shown.dead)
    yield "transform", shown.transform
    yield f"draws per {noun}", str(shown.n_draws)
    yield "seed", str(result.seed)
    autocast = "" if result.amp_dtype is None else f" under {result.amp_dtype} autocast"
    yield "computed in", f"{result.dtype}{autocast} on {result.device}"
    if result.trf is not None:
        box = " × ".join(f"{first}..{last}" for first, last in result.trf.box_px)
        bound = "" if result.trf.exact else ", an upper bound"
        yield "theoretical receptive field (TRF)", f"{size_text(result.trf.size_px)}, box {box}{bound}"
    if result.computed is not None and result.computed.path == "plain":
        yield "computed", f"by the model itself, whole up to the layer: {result.computed.because}"
    elif result.computed is not None:
        yield "computed", f"by its graph, {result.computed.share:.1%} of the multiply-adds up to the layer"
    if in_folder and result.map is not None:
        yield "map file", f"{result.id}.npz"

"""The identity of a result: model, layer, unit and settings, and the origin of its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from erfscope.geometry.names import IMAGE
from erfscope.geometry.unit import size_text
from erfscope.results.result import Result
from erfscope.view import words


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
        place = ",".join(f"{c:g}" for c in result.unit.center_px)
        texts.append(f"unit ({words.index_text(result)}) at {about}({place}) {words.cells_text(result)}")
    texts += [size_text(result.input.size), words.images_text(result), words.convention_text(result)]
    texts += [] if result.method == "gradient" else [result.method]
    texts += [] if result.computed is None else [f"path {result.computed.path}"]
    texts += [option.alone for option in words.option_values(result).values()]
    if result.insert is not None:
        texts.append(f"with {result.insert}" + ("" if result.alpha is None else f", alpha {result.alpha:g}"))
    return texts


def provenance(result: Result, *, in_folder: bool) -> Iterator[tuple[str, str]]:
    """The origin of a result's numbers, as (name, text); a folder has the file of its map, too."""
    weights, shown = result.weights, result.input
    yield "model", result.model
    parts = [
        words.weights_condition(result).text,
        weights.origin,
        None if weights.seed is None else f"seed {weights.seed}",
    ]
    parts.append(f"{weights.reactivated} branches switched on" if weights.reactivated else None)
    yield "weights", ", ".join(filter(None, parts))
    if weights.sha256:
        yield "weights sha256", weights.sha256
    yield "images", shown.text or f"{shown.n_images} {shown.source}"
    if shown.sha256:
        yield "images sha256", shown.sha256
    if shown.dead:
        yield "unusable images", words.listed_up_to(8, shown.dead)
    yield "transform", shown.transform
    yield "draws per image", str(shown.n_draws)
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

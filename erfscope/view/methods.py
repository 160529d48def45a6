"""The methods section of a paper: a paragraph for each group of results with the same settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erfscope.adapter import Weights
from erfscope.attribution.captum_parameters import IG_STEPS, NOISE_SAMPLES, NOISE_STDEV, PATCHES
from erfscope.attribution.convention import CONVENTIONS, Convention
from erfscope.geometry.names import IMAGE
from erfscope.geometry.unit import CENTRE
from erfscope.results.comparability import Use, values
from erfscope.results.result import Result
from erfscope.view.extras import trust_sentence
from erfscope.view.words import IN_PLANE, IN_PLANE_MEANS, JACKKNIFE, listed, option_values

if TYPE_CHECKING:
    from erfscope.results.report import Report

#: Packages whose version a reader needs, by the name they are known under.
PACKAGES = {"torch": "PyTorch", "timm": "timm"}
#: The parameters of Captum's methods.
METHODS = {
    "integrated_gradients": f" (Captum; {IG_STEPS} steps from a baseline of zeros)",
    "smoothgrad": f" (Captum; {NOISE_SAMPLES} samples with Gaussian noise of {NOISE_STDEV:.0%} of the input's range)",
    "input_x_gradient": " (Captum)",
    "guided_backprop": " (Captum)",
    "occlusion": f" (Captum; square patches set to zero, {PATCHES} along the longer side)",
}
#: Words of --unit that mean one unit of any map.
UNITS = {
    CENTRE: "the central unit",
    "center": "the central unit",
    "corner": "the corner unit (0, 0)",
    "edge": "the middle unit of the first row",
}


def methods_sentence(report: Report) -> str:
    """The paragraphs of :func:`methods_paragraphs`, separated by an empty line; "" for a report without results."""
    return "\n\n".join(methods_paragraphs(report))


def methods_paragraphs(report: Report) -> list[str]:
    """The methods section of a paper, in plain text: one paragraph per group of results with the same settings.

    Args:
        report: Any report. Results that cannot be used are named with their reason in the last paragraph.

    Returns:
        Paragraphs; none for a report without results. Each names software and versions, unit, layer, model and
        weights, reference, convention with its source, input size, images, draws, seed, dtype and what the errors are.
    """
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in report:
        if result.ok:
            groups.setdefault(_shared(result), []).append(result)
    paragraphs = [_paragraph(report, group) for group in groups.values()]
    lost = [f"{result.label} ({result.error or result.status})" for result in report if not result.ok]
    if lost:
        paragraphs.append(f"Not measured: {'; '.join(lost)}.")
    return paragraphs


def _shared(result: Result) -> tuple[object, ...]:
    """The settings that the results of one paragraph share."""
    shown = result.input
    versions = tuple(sorted((name, str(version)) for name, version in (result.versions or {}).items()))
    return (
        *values(result, Use.COMPARE),
        *(shown.source, shown.text, shown.transform, shown.n_dead),
        *(versions, result.wrt, result.is_in_plane, _error_text(result)),
    )


def _paragraph(report: Report, group: Sequence[Result]) -> str:
    first = group[0]
    measured = (
        f"Effective receptive fields were measured with {_software(report, first)} for {_units(report, group)}"
        f" of {_models(group)}, with respect to {_reference(first)}, at an input size of"
        f" {' x '.join(str(side) for side in first.input.size)} pixels."
    )
    sentences = [measured, _convention(first), _pictures(first), _error_text(first), trust_sentence(group)]
    return " ".join(filter(None, (*sentences, f"Sizes are {IN_PLANE}: {IN_PLANE_MEANS}." * first.is_in_plane)))


def _software(report: Report, result: Result) -> str:
    versions = result.versions or report.environment.get("versions") or {}
    names = dict(PACKAGES) if result.method == "gradient" else {**PACKAGES, "captum": "Captum"}
    others = [f"{name} {versions[package]}" for package, name in names.items() if versions.get(package)]
    return f"erfscope {versions.get('erfscope') or '(unknown version)'}" + (f" ({', '.join(others)})" if others else "")


def _units(report: Report, group: Sequence[Result]) -> str:
    """The unit by its name where ``--unit`` has one that holds for every map, such as the centre; else by its index."""
    word = report.settings.get("unit")
    if isinstance(word, str) and word.strip().lower() in UNITS:
        return UNITS[word.strip().lower()]
    indices = dict.fromkeys(
        "(" + ", ".join(str(i) for i in result.unit.index) + ")" for result in group if result.unit is not None
    )
    return f"the unit{'s' * (len(indices) != 1)} {listed(indices)}"


def _models(group: Sequence[Result]) -> str:
    """Every model once, with its layers and where its numbers come from."""
    layers: dict[str, dict[str, None]] = {}
    for result in group:
        layers.setdefault(_model(result), {})[result.layer] = None
    found = [f"{'layers ' * (len(names) > 1)}{listed(names)} of {model}" for model, names in layers.items()]
    return found[0] if len(found) == 1 else "; ".join(found[:-1]) + f"; and {found[-1]}"


def _model(result: Result) -> str:
    about = [] if result.model == result.label or result.insert else [result.model]
    if result.insert:
        share = "" if result.alpha is None else f" at alpha {result.alpha:g}"
        about.append(f"{result.model} with {result.insert} inserted{share}")
    return f"{result.label} ({'; '.join([*about, _weights(result.weights)])})"


def _weights(weights: Weights) -> str:
    count = weights.reactivated
    switched = (
        f", {count} residual branch{'es that start' if count != 1 else ' that starts'} at zero switched on"
        if count
        else ""
    )
    # The path of a checkpoint is private; its name identifies it.
    origin = (
        "" if not weights.origin else f" {weights.origin if '://' in weights.origin else Path(weights.origin).name}"
    )
    texts = {
        "pretrained": f"pretrained weights{origin}",
        "checkpoint": f"weights of the checkpoint{origin}",
        "random": f"random weights, seed {weights.seed}{switched}",
        "random-raw": f"random weights as initialised, seed {weights.seed}",
        "factory": "weights as its factory makes them",
        "exported": "weights as exported",
        "given": "weights as provided",
    }
    text = texts.get(weights.source, "weights of its own")
    if weights.fallback:
        text += ", since pretrained ones could not be had"
    return text + (f", sha256 {weights.sha256[:12]}" if weights.sha256 else "")


def _reference(result: Result) -> str:
    if result.wrt == IMAGE:
        return "the image"
    cells = "" if result.trf is None else f" ({' x '.join(str(side) for side in result.trf.reference_px)} cells)"
    return (f"the input of {result.wrt[:-3]}" if result.wrt.endswith(":in") else f"the output of {result.wrt}") + cells


def _convention(result: Result) -> str:
    convention = CONVENTIONS.get(result.convention)
    if convention is None:
        how = "" if result.method == "gradient" else f", by the attribution method {result.method}"
        return f"The maps follow a custom convention{how} ({result.scale})."
    if result.method != "gradient":
        # Of the convention these maps depend on the readout and the averaging alone.
        removal = result.method == "occlusion" and result.wrt != IMAGE
        about = " (each node of the reference set to zero in turn)" if removal else METHODS.get(result.method, "")
        readout = f"the readout {convention.readout_text} of the {convention.name} convention"
        contribution = f"contribution {convention.contribution_text}, g being the attribution"
        return (
            f"The maps are attributions by {result.method}{about} of {readout} ({contribution});"
            f" {_averaged(convention)}."
        )
    exact = convention.random and result.input.n_draws == "all"
    texts = [f"readout {convention.readout_text}", f"contribution {convention.contribution_text}", convention.source]
    if exact:
        summed = "the sum of g_s^2 over all channels s of the reference and all channels of the unit"
        texts = [summed, convention.exact_source or convention.source]
    scale = "signed influence" if result.scale == "signed" else result.scale
    return (
        f"The maps follow the {convention.name} convention ({'; '.join(texts)}) and show {scale};"
        f" {_averaged(convention)}."
    )


def _averaged(convention: Convention) -> str:
    divided = "each image's contributions are divided by their total before images are averaged"
    return divided if convention.per_image else "contributions are averaged over images as they are"


def _pictures(result: Result) -> str:
    shown, convention = result.input, CONVENTIONS.get(result.convention)
    several = shown.n_images != 1
    texts = {"file": f"1 image ({Path(shown.text).name})", "tensor": f"{shown.n_images} ready input{'s' * several}"}
    text = texts.get(shown.text_kind, shown.text)
    parts = [f"They were averaged over {text}" if several else f"They were computed on {text}"]
    if several and shown.resize:
        parts[0] += f", preprocessed as: {', '.join(text for text in (shown.resize, shown.scale) if text)}"
    if shown.n_dead:
        parts.append(
            f"of which {shown.n_dead} without a usable gradient {'was' if shown.n_dead == 1 else 'were'} left out"
        )
    if convention is not None and convention.random:
        every = " per image" if several else ""
        draws = f"{shown.n_draws} draw{'s' * (shown.n_draws != 1)} of random signs{every} (seed {result.seed})"
        parts.append("summed exactly over all channels" if shown.n_draws == "all" else f"with {draws}")
    parts += [f"with {option.alone}" for option in option_values(result).values()]
    autocast = f" under autocast to {result.amp_dtype}" if result.amp_dtype else ""
    return f"{', '.join(parts)}, in {result.dtype}{autocast}."


def _error_text(result: Result) -> str:
    groups = {len(m.leave_one_out) for m in result.measures.values() if m.se is not None}
    if not groups:
        return "No standard errors are given, since there are fewer than four groups of images."
    what = "draws of random signs" if result.se_over == "draws" else "groups of images"
    return f"Errors are {JACKKNIFE}s over {max(groups)} {what}."

"""Sentences about a report: the head of a page, results in one line, the methods section of a paper, and what numbers
mean."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten

from erfscope.core.answer.comparability import Use, differing, values
from erfscope.core.answer.convention import CONVENTIONS, Convention
from erfscope.core.answer.findings import OWN_CELL
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result
from erfscope.core.run.attribution.captum_parameters import IG_STEPS, NOISE_SAMPLES, NOISE_STDEV, PATCHES
from erfscope.core.values.model_facts import Weights
from erfscope.core.values.names import IMAGE, input_name, is_input
from erfscope.core.values.printable import listed, listed_up_to, one_line
from erfscope.core.values.unit import CENTRE
from erfscope.show.view.cells import measure_cell
from erfscope.show.view.error_bars import errors_over
from erfscope.show.view.extras import trust_sentence
from erfscope.show.view.report_view import ReportRow, ReportView
from erfscope.show.view.words import (
    IN_PLANE,
    IN_PLANE_MEANS,
    JACKKNIFE,
    checkpoints_of_one,
    images_text,
    lengths_text,
    main_radii,
    option_values,
    steps_of_one,
    unit_text,
    weights_condition,
    weights_words,
)

# --- The head of a page: its title, the smallest and the largest ERF, and whether these can be compared ---


def title(view: ReportView) -> str:
    """The title of the page."""
    results = view.results
    if not view.is_usable:
        return "Nothing could be measured"
    models = list(dict.fromkeys(result.label for result in results))
    if len(models) == 1:
        return f"How far {models[0]} looks"
    if steps := steps_of_one(results):
        return f"How far {results[0].model} looks, at {steps} steps of its training"
    if files := checkpoints_of_one(results):
        return f"How far {results[0].model} looks, with {files} checkpoints"
    return f"How far {len(models)} models look"


def summary(view: ReportView) -> str:
    """The report in plain text, for the page's description."""
    if not view.is_usable:
        return f"{title(view)}: a report of erfscope without a usable result"
    return f"{title(view)}: effective receptive fields measured with erfscope, {' · '.join(view.texts())}"


def extremes(view: ReportView) -> list[ReportRow]:
    """The result with the smallest r50 and that with the largest, one where there is only one."""
    ranked = _ranked(view)
    return list(dict.fromkeys((ranked[0], ranked[-1]))) if ranked else []


def _ranked(view: ReportView) -> list[ReportRow]:
    """Results on the image, or on one inner map where there are no others, by r50."""
    rows = [row for row in view.rows if row.result.ok and "r50" in row.result.measures]
    references = list(dict.fromkeys(row.result.wrt for row in rows))
    reference = IMAGE if IMAGE in references else next(iter(references), "")
    rows = [row for row in rows if row.result.wrt == reference and isinstance(row.result["r50"].value, float)]
    return sorted(rows, key=lambda row: float(row.result["r50"]))


def unranked(view: ReportView) -> Iterator[str]:
    """Reasons why r50 does not rank the results, as half sentences; none where it does.

    These are the cases in which r50 must not be compared: maps that are mostly the unit's own cell, fields that the
    input cuts off, different settings, and differences within their errors.
    """
    rows = _ranked(view)
    own = [row.name for row in rows if _is_above(row.result, "center_share", OWN_CELL, "own_cell_dominated")]
    cut = [row.name for row in rows if any(finding.code == "clipped" for finding in row.result.findings)]
    unlike = list(dict.fromkeys(text for row in rows for text in differing(rows[0].result, row.result)))
    if own:
        yield f"the unit’s own cell holds over {OWN_CELL:.0%} of {listed_up_to(3, own)} and sets r50"
    if cut:
        yield f"the input cuts off the ERF of {listed_up_to(3, cut)}"
    if unlike:
        yield f"they differ in {listed_up_to(3, unlike)}"
    if len(rows) > 1 and not (own or cut or unlike):
        least, most = (rows[place].result["r50"] for place in (0, -1))
        noise = 2 * math.hypot(least.se or math.nan, most.se or math.nan)
        if float(most) - float(least) <= noise:
            yield "their difference is within twice its standard error"


def _is_above(result: Result, measure: str, limit: float, code: str) -> bool:
    """Check that a share is above its limit, or that the result has the finding ``code``."""
    share = result.measures.get(measure)
    above = share is not None and isinstance(share.value, float) and share.value > limit
    return above or any(finding.code == code for finding in result.findings)


#: Characters of an error, and labels of a report, that are shown.
LONGEST_ERROR, MOST_LABELS = 100, 4


def result_line(result: Result) -> str:
    """E.g. ``<Result resnet18 layer4 unit 3,3: ok, r50 62.0 ± 0.6 px>``."""
    error = [] if result.error is None else [shorten(result.error, LONGEST_ERROR, placeholder="...")]
    return one_line(f"<Result {_line(result, error)}>")


def quiet_line(result: Result) -> str:
    """E.g. ``resnet18 layer4 unit 3,3: ok, r50 62.0 ± 0.6 px (± over 20 images), random weights (fallback:
    HF_HUB_OFFLINE is set)``; errors in full."""
    words = [] if result.error is None else [result.error]
    has_error = any(radius.se is not None for radius in list(main_radii(result).values())[:1])
    reason = f" (fallback: {result.weights.reason})" if result.weights.fallback else ""
    weights = weights_words(result.weights.source) if reason else weights_condition(result)
    words.append(weights.alone + reason)
    words += [images_text(result)] if result.input.n_dead else []
    return one_line(_line(result, words, f" ({errors_over(result)})" * has_error))


def _line(result: Result, words: Sequence[str], about_error: str = "") -> str:
    """Name, status and first size of a result, what its error is over, and further ``words``."""
    sizes = [f"{name} {measure_cell(result, name)} {lengths_text(result)}{about_error}" for name in main_radii(result)]
    wrt = f"wrt {result.wrt}" if input_name(result.wrt) else ""
    named = filter(None, (result.label, result.layer, wrt, unit_text(result)))
    return f"{' '.join(named)}: {', '.join([result.status, *sizes[:1], *words])}"


def report_line(report: Report) -> str:
    """E.g. ``<Report of 2 results (1 ok, 1 error): resnet18; swin_base>``."""
    if len(report) == 1:
        return one_line(f"<Report of 1 result: {result_line(report[0])[1:-1]}>")
    statuses = Counter(result.status for result in report)
    counts = f" ({', '.join(f'{count} {status}' for status, count in statuses.items())})" if statuses else ""
    labels = list(dict.fromkeys(result.label for result in report))
    shown = "; ".join([*labels[:MOST_LABELS], *(["..."] if len(labels) > MOST_LABELS else [])])
    return one_line(f"<Report of {len(report)} results{counts}{': ' if shown else ''}{shown}>")


# --- The methods section of a paper: a paragraph for each group of results with the same settings -

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
        f" of {_models(group)}, with respect to {_reference(first)}, at an input size of {_input_size(first)}."
    )
    sentences = [measured, _convention(first), _pictures(first), _error_text(first), trust_sentence(group)]
    return " ".join(filter(None, (*sentences, f"Sizes are {IN_PLANE}: {IN_PLANE_MEANS}." * first.is_in_plane)))


def _input_size(result: Result) -> str:
    """``16 x 24 x 24 voxels``; of a clip ``9 frames of 32 x 32 pixels``."""
    axes, sides = result.input_axes, [str(side) for side in result.input.size]
    frames = f"{sides.pop(0)} frames of " if axes.has_frames else ""
    return f"{frames}{' x '.join(sides)} {axes.one_cell}s"


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
        about.append(f"{result.model} with {result.insert}{share}")
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
    }
    text = texts.get(weights.source) or weights_words(weights.source).alone
    if weights.fallback:
        text += ", since pretrained ones could not be had"
    return text + (f", sha256 {weights.sha256[:12]}" if weights.sha256 else "")


def _reference(result: Result) -> str:
    if result.wrt == IMAGE:
        return f"the {result.input.noun}"
    if is_input(result.wrt):
        return f"the input {input_name(result.wrt)}"
    cells = "" if result.trf is None else f" ({' x '.join(str(side) for side in result.trf.reference_px)} cells)"
    return (f"the input of {result.wrt[:-3]}" if result.wrt.endswith(":in") else f"the output of {result.wrt}") + cells


def _convention(result: Result) -> str:
    noun = result.input.noun
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
            f" {_averaged(convention, noun)}."
        )
    exact = convention.random and result.input.n_draws == "all"
    texts = [f"readout {convention.readout_text}", f"contribution {convention.contribution_text}", convention.source]
    if exact:
        summed = "the sum of g_s^2 over all channels s of the reference and all channels of the unit"
        texts = [summed, convention.exact_source or convention.source]
    scale = "signed influence" if result.scale == "signed" else result.scale
    return (
        f"The maps follow the {convention.name} convention ({'; '.join(texts)}) and show {scale};"
        f" {_averaged(convention, noun)}."
    )


def _averaged(convention: Convention, noun: str) -> str:
    divided = f"each {noun}'s contributions are divided by their total before {noun}s are averaged"
    return divided if convention.per_image else f"contributions are averaged over {noun}s as they are"


def _pictures(result: Result) -> str:
    shown, convention = result.input, CONVENTIONS.get(result.convention)
    several = shown.n_images != 1
    texts = {
        "file": f"1 {shown.noun} ({Path(shown.text).name})",
        "tensor": f"{shown.n_images} ready input{'s' * several}",
    }
    text = texts.get(shown.text_kind, shown.text)
    parts = [f"They were averaged over {text}" if several else f"They were computed on {text}"]
    if several and shown.resize:
        parts[0] += f", preprocessed as: {', '.join(text for text in (shown.resize, shown.scale) if text)}"
    if shown.n_dead:
        parts.append(
            f"of which {shown.n_dead} without a usable gradient {'was' if shown.n_dead == 1 else 'were'} left out"
        )
    if convention is not None and convention.random:
        every = f" per {shown.noun}" if several else ""
        draws = f"{shown.n_draws} draw{'s' * (shown.n_draws != 1)} of random signs{every} (seed {result.seed})"
        parts.append("summed exactly over all channels" if shown.n_draws == "all" else f"with {draws}")
    parts += [f"with {option.alone}" for option in option_values(result).values()]
    autocast = f" under autocast to {result.amp_dtype}" if result.amp_dtype else ""
    return f"{', '.join(parts)}, in {result.dtype}{autocast}."


def _error_text(result: Result) -> str:
    noun = result.input.noun
    groups = {len(m.leave_one_out) for m in result.measures.values() if m.se is not None}
    if not groups:
        return f"No standard errors are given, since there are fewer than four groups of {noun}s."
    what = "draws of random signs" if result.se_over == "draws" else f"groups of {noun}s"
    return f"± is the {JACKKNIFE} over {max(groups)} {what}."


# --- What numbers mean ----------------------------------------------------------------------------

WHAT = (
    "An effective receptive field (ERF) says how strongly each pixel (voxel, sample) moves one unit of a feature map:"
    " the gradient of a readout of that unit with respect to the input, averaged over inputs. It is not a quality"
    " score: a larger one is not better, and a smaller one not worse. It shows influence, not what the model looks"
    " for, and unlike a class activation map it belongs to a location, not to a class."
)
SYMBOLS = (
    "p is the map divided by its sum (of absolute values where it is signed), never its logarithm. d is the distance to"
    " the unit's own centre; H and W are the sides of the reference. y_c is channel c of the unit, e_c a random sign,"
    " and g_s the gradient of the readout with respect to channel s of the reference. Sizes are in px of the image"
    " (voxels, samples), or in cells of the map that --wrt names."
)
THREE_AXES = (
    f"Of a volume distances are over all three axes; of a clip sizes and shares are {IN_PLANE}: {IN_PLANE_MEANS}. They"
    " are in the unit of --spacing, --fps or --sample-rate, if there is one."
)
RATIOS = (
    "A percentage beside a size is the size divided by the side of the reference (of_input) or of the whole theoretical"
    " receptive field (TRF; of_trf), the part outside the input included; both sides are printed. The side of H x W"
    " cells is sqrt(H W), and an area is divided by H W. A radius is half a width: a radius of 50 % of the side reaches"
    " from the middle to the borders."
)
ERRORS = (
    f"± is the {JACKKNIFE} over at most ten groups of inputs, or of draws for up to three inputs: q √(v + b²), with"
    " the variance v = (g - 1) / g sum (x_i - mean x)² and the bias b = (g - 1) (mean x - x) of a value x, x_i without"
    " group i of g; q is Student's 95 % quantile over the normal's, 1.11 for ten groups. One error holds the value of"
    " infinitely many inputs in about 70 of 100 runs, two in 95. Fewer than four groups give no errors. Differences are"
    " paired: they are taken over the same inputs, group by group."
)
GUIDE = (
    ("to compare models", "--convention jacobian; context_r50 and far_mass, which leave the unit's own cell out"),
    ("to compare with RepLKNet's tables", "--convention replknet; the `published` block of the JSON"),
    ("to compare with OpenERF", "--convention kim; the `published` block of the JSON"),
    ("for Luo's closed forms", "--convention energy; sigma_row and sigma_col"),
    ("for theorems on signed influence", "--convention signed, 16 images or more"),
    ("in continuous integration", "erfscope check, which compares with a stored baseline"),
)

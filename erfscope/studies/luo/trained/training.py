"""``luo-training``: the ERF before and after training, which the paper found to grow.

A classifier of 17 residual blocks and a segmentation net of 16, as deep as the paper's and much narrower, are trained
on shapes rendered here, for some hundred steps; with ``--data`` on CIFAR-10 and CamVid. The ERF is that of the middle
unit of the last map, in the paper's own convention, over images that the net was not trained on.

What "before" means decides the answer. As it is built, a net's normalisations have the running statistics 0 and 1, its
branches are weak against its skips, and its ERF is small. Once they have been set on images, the same untrained net
normalises as it will in training, and its ERF is wide. The paper does not say which of the two it shows, so both stand
here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.restore import seed_generators
from erfscope.results.result import Result
from erfscope.studies.luo.residual import Classifier, Segmenter
from erfscope.studies.luo.rows import failures, with_error
from erfscope.studies.luo.trained.tasks import VOID, Task, classification, segmentation
from erfscope.studies.study import VERDICT, Column, StudyFindings, StudyOptions
from erfscope.studies.training import descend, fit

BATCH, RATE = 32, 3e-3
#: Images of an ERF, and those on which a net is scored.
SHOWN, SCORED = 20, 256
#: A trained net must be better than chance by this, or the run fails.
BETTER = 0.05
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
    """One net and how it is trained."""

    name: str
    net: nn.Module
    task: Task
    epochs: int
    steps: int
    batch: int
    #: The paper's result.
    published: str
    published_trf_px: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One net: its ERF before and after training."""

    name: str
    data: str
    steps: int
    #: Mean over classes of the share of right answers, on images that the net was not trained on; and by chance.
    accuracy: float
    chance: float
    trf_px: int
    published_trf_px: int
    #: The paper's size, that at 4.55 % of the unit's value: of the net as it is built, once its statistics are set, and
    #: trained.
    size_built_px: float
    size_before_px: float
    size_after_px: float
    published: str
    r50_built_px: float
    r50_before_px: float
    r50_before_se_px: float | None
    r50_after_px: float
    r50_after_se_px: float | None
    #: Whether that size has grown by training: from the net as built, and from the one whose statistics are set.
    held_from_built: bool
    held: bool
    #: Whether the net has learned, without which the other fields mean nothing.
    passed: bool


def study(asked: StudyOptions) -> StudyFindings:
    """Train two nets, and measure before, after, and after every epoch."""
    epochs = asked.pick(full=12, quick=4, smoke=1)
    asked.tell("luo-training", 0, 2 * epochs)
    found = [_train_and_measure(asked, lesson) for lesson in _lessons(asked, epochs)]
    rows = tuple(row for row, *_ in found)
    charts = tuple(
        Chart(
            title=row.name,
            x="epoch",
            y="px",
            curves=tuple(Curve(label=name, x=range(epochs + 1), y=sizes[name]) for name in SIZES),
        )
        for row, _, sizes in found
    )
    maps = tuple(
        tuple(
            Shown(title=f"{row.name}, {when}", values=values, log=True)
            for when, values in zip(STATES, three, strict=True)
        )
        for row, three, _ in found
    )
    picture = Picture(title="ERFs before and after training", rows=(*maps, charts), note=NOTE)
    return StudyFindings(columns=COLUMNS, rows=rows, conclusion=_conclusion(rows), picture=picture)


def _lessons(asked: StudyOptions, epochs: int) -> list[Lesson]:
    whole = asked.effort != "smoke"
    single = classification(asked, asked.pick(full=32, quick=24, smoke=24))
    scene = segmentation(asked, 128 if whole else 64)
    with seed_generators(asked.seed):
        classifier = Classifier(8, single.classes, 17 if whole else 3)
        segmenter = Segmenter(8, scene.classes, 4 if whole else 1)
    return [
        Lesson(
            name="classifier",
            net=classifier,
            task=single,
            epochs=epochs,
            steps=asked.pick(full=50, quick=20, smoke=30),
            batch=BATCH,
            published="grows",
            published_trf_px=74,
        ),
        Lesson(
            name="segmentation",
            net=segmenter,
            task=scene,
            epochs=epochs,
            steps=asked.pick(full=50, quick=20, smoke=30),
            batch=BATCH // 2,
            published="100 to 150",
            published_trf_px=505,
        ),
    ]


def _train_and_measure(
    asked: StudyOptions, lesson: Lesson
) -> tuple[Row, tuple[FloatArray, ...], dict[str, list[float]]]:
    """One net's row, its three maps, and its sizes after every epoch, the first being before all."""
    net, task = lesson.net, lesson.task
    pictures, _ = task.shown(asked.pick(full=SHOWN, quick=8, smoke=4), _stream(asked, lesson, ERF))
    built = _erf(net, pictures)
    _set_statistics(net, task.train(4 * lesson.batch, _stream(asked, lesson, STATISTICS))[0])
    before = _erf(net, pictures)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)

    def epoch(number: int) -> dict[str, float]:
        loss = _epoch(lesson, optimizer, _stream(asked, lesson, EPOCHS + number))
        result = _erf(net, pictures)
        return {"loss": loss, **{name: float(result[name]) for name in SIZES}}

    about = {"data": task.data, "side": task.side, "steps": lesson.steps, "batch": lesson.batch, "rate": RATE}
    history = fit(asked, f"luo-{lesson.name}", net, optimizer, lesson.epochs, epoch, **about)
    after = _erf(net, pictures)
    accuracy = _accuracy(
        net,
        *task.test(asked.pick(full=SCORED, quick=SCORED, smoke=SCORED // 4), _stream(asked, lesson, SCORE)),
        classes=task.classes,
    )
    sizes = {name: [float(before[name]), *(entry[name] for entry in history)] for name in SIZES}
    maps = tuple(result.map.values for result in (built, before, after) if result.map is not None)
    return _row(lesson, built, before, after, accuracy), maps, sizes


def _stream(asked: StudyOptions, lesson: Lesson, number: int) -> np.random.Generator:
    return np.random.default_rng([asked.seed, len(lesson.name), number])


def _set_statistics(net: nn.Module, pictures: Tensor) -> None:
    """Give the normalisations the mean and variance that these images (B, 3, H, W) have in the untrained net."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    net.train()
    with torch.no_grad():
        net(pictures)
    net.eval()
    for norm in norms:
        norm.momentum = 0.1


def _epoch(lesson: Lesson, optimizer: torch.optim.Optimizer, generator: np.random.Generator) -> float:
    """Train for one epoch; the mean loss."""
    losses = []
    for _ in range(lesson.steps):
        pictures, classes = lesson.task.train(lesson.batch, generator)
        scores = lesson.net(pictures)
        loss = F.cross_entropy(
            scores, _targets(scores, classes), weight=_balance(_targets(scores, classes), lesson.task.classes)
        )
        losses.append(descend(optimizer, loss))
    return float(np.mean(losses))


def _targets(scores: Tensor, classes: Tensor) -> Tensor:
    """The classes that the scores are about: of the images, or of the pixels that the units have their centres at."""
    if scores.dim() == 2:
        return classes
    return classes[:, :: classes.shape[1] // scores.shape[2], :: classes.shape[2] // scores.shape[3]]


def _balance(targets: Tensor, classes: int) -> Tensor:
    """Weights that make the classes of a batch count alike: a background would outweigh all shapes."""
    counts = torch.bincount(targets[targets != VOID].flatten(), minlength=classes).clamp(min=1)
    return 1 / counts


def _accuracy(net: nn.Module, pictures: Tensor, classes_of: Tensor, *, classes: int) -> float:
    """Mean over classes of the share that is right."""
    with torch.no_grad():
        scores = torch.cat([net(part) for part in torch.split(pictures, 32)])
    targets = _targets(scores, classes_of)
    right = scores.argmax(1) == targets
    shares = [float(right[targets == kind].float().mean()) for kind in range(classes) if bool((targets == kind).any())]
    return float(np.mean(shares))


def _erf(net: nn.Module, pictures: Tensor) -> Result:
    """ERF of the middle unit of the last map.

    Raises:
        MeasurementError: no image gives a gradient.
    """
    was = net.training
    adapter = erfscope.wrap(net.eval(), input_size=pictures.shape[2:])
    result = erfscope.analyze(adapter, images=pictures, layer="body", convention="luo", measures=SIZES)
    net.train(was)
    if result.status != "ok":
        raise erfscope.MeasurementError(f"the ERF could not be measured: {result.error or result.status}")
    return result


def _row(lesson: Lesson, built: Result, before: Result, after: Result, accuracy: float) -> Row:
    chance = 1 / lesson.task.classes
    assert after.trf is not None
    return Row(
        name=lesson.name,
        data=lesson.task.data,
        steps=lesson.epochs * lesson.steps,
        accuracy=accuracy,
        chance=chance,
        trf_px=after.trf.size_px[0],
        published_trf_px=lesson.published_trf_px,
        size_built_px=float(built["luo_size"]),
        size_before_px=float(before["luo_size"]),
        size_after_px=float(after["luo_size"]),
        published=lesson.published,
        r50_built_px=float(built["r50"]),
        r50_before_px=float(before["r50"]),
        r50_before_se_px=before["r50"].se,
        r50_after_px=float(after["r50"]),
        r50_after_se_px=after["r50"].se,
        held_from_built=float(after["luo_size"]) > float(built["luo_size"]),
        held=float(after["luo_size"]) > float(before["luo_size"]),
        passed=accuracy > chance + BETTER,
    )


def _sentence(row: Row) -> str:
    grew, shrank = "grew", "did not grow"
    return (
        f"In {row.steps} steps on {row.data} (accuracy {row.accuracy:.0%}, chance {row.chance:.0%}) the ERF of the"
        f" {row.name} net {grew if row.held_from_built else shrank} from that of the net as built,"
        f" {row.size_built_px:.1f} to {row.size_after_px:.1f} px, and {grew if row.held else shrank} from that of the"
        f" untrained net with its statistics set, {row.size_before_px:.1f} px; r50 {row.r50_built_px:.1f}, then"
        f" {with_error(row.r50_before_px, row.r50_before_se_px, 1)}, then"
        f" {with_error(row.r50_after_px, row.r50_after_se_px, 1)} px. Published: {row.published}."
    )


def _conclusion(rows: tuple[Row, ...]) -> str:
    return " ".join(map(_sentence, rows)) + failures(rows)


def _yes(held: bool) -> str:
    return "yes" if held else "no"


COLUMNS = (
    Column(title="net", text=lambda row: row.name, numeric=False),
    Column(title="data", text=lambda row: row.data, numeric=False, optional=True),
    Column(title="accuracy", text=lambda row: f"{row.accuracy:.0%}"),
    Column(title="TRF", text=lambda row: str(row.trf_px)),
    Column(title="paper", text=lambda row: str(row.published_trf_px), optional=True),
    Column(title="as built", text=lambda row: f"{row.size_built_px:.1f}"),
    Column(title="untrained", text=lambda row: f"{row.size_before_px:.1f}"),
    Column(title="trained", text=lambda row: f"{row.size_after_px:.1f}"),
    Column(title="paper", text=lambda row: row.published, optional=True),
    Column(title="held", text=lambda row: f"{_yes(row.held_from_built)} / {_yes(row.held)}", numeric=False),
    VERDICT,
)

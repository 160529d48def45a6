"""``luo-training``: the ERF before and after training, which the paper found to grow.

A classifier of 17 residual blocks and a segmentation net of 16, as deep as the paper's and much narrower, are trained
on shapes rendered here, for some hundred steps; with ``--data`` on CIFAR-10 and CamVid. The ERF is that of the middle
unit of the last map, in the paper's own convention, over images that the net was not trained on.

What "before" means decides the answer. As it is built, a net's normalisations have the running statistics 0 and 1, its
branches are weak against its skips, and its ERF is small. Once they have been set on images, the same untrained net
normalises as it will in training, and its ERF is wide. The paper does not say which of the two it shows, so both stand
here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import erfscope
from erfscope.apps.lab.studies.luo.lessons import PAPER, Lesson, lessons, targets_of
from erfscope.apps.lab.studies.study import (
    VERDICT,
    Claim,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyRow,
    claim,
    result_with_map,
    with_error,
)
from erfscope.apps.lab.studies.training import is_flat, set_statistics, train
from erfscope.show import Chart, ChartMap, Curve, Picture

RATE = 3e-3
#: A trained net must be better than chance by this, or the run fails.
BETTER = 0.05
#: How many times as large an ERF must become: those of segmentation nets as published, the other one clearly.
GROWTH = {"classifier": 1.05, "segmentation": 1.5}
STATES = ("as built", "untrained", "trained")
#: A long training ends where the validation loss has not fallen for so many epochs.
PATIENCE = 10
NOTE = (
    "As built: with the running statistics of a new net. Untrained: with those of images. Size: root of the pixels"
    " above 4.55 %."
)
SIZES = ("luo_size", "r50", "r90")
#: Streams of random numbers: images of ERFs, for running statistics, for scores, for the validation loss; epochs come
#: after them.
ERF, STATISTICS, SCORE, VALIDATION, EPOCHS = 0, 1, 2, 3, 10


def study(asked: StudyOptions) -> StudyFindings:
    """Train two nets, and measure before, after, and after every epoch; long also changes one thing after another."""
    rows = [_taught(asked, lesson) for lesson in lessons(asked)]
    main = [row for row in rows if row.section == PAPER]
    maps = tuple(
        tuple(ChartMap(title=f"{row.name}, {state}", values=row.maps[state], log=True) for state in STATES)
        for row in main
    )
    charts = [
        Chart(title=row.name, x="epoch", y="px", curves=tuple(_over_epochs(row, name, name) for name in SIZES))
        for row in main
    ]
    changed = tuple(_over_epochs(row, "r50", row.name) for row in rows if row is not main[0])
    if len(changed) > 1:
        charts.append(Chart(title="segmentation, one change each", x="epoch", y="r50 (px)", curves=changed))
    picture = Picture(title="ERFs before and after training", rows=(*maps, tuple(charts)), note=NOTE)
    claims = [each for row in rows if row.published for each in _claims(row)]
    return StudyFindings(columns=COLUMNS, section="section", rows=rows, claims=claims, picture=picture)


def _over_epochs(row: StudyRow, size: str, label: str) -> Curve:
    """A size after every epoch, the first being before all, and its standard error."""
    y, error = zip(*row.sizes[size], strict=True)
    return Curve(label=label, x=range(len(y)), y=y, error=error)


def _taught(asked: StudyOptions, lesson: Lesson) -> StudyRow:
    """Train one net."""
    net, task, steps = lesson.net, lesson.task, asked.pick(full=50, quick=20, smoke=30)
    pictures, _ = task.shown(asked.pick(full=20, quick=8, smoke=4), lesson.stream(asked, ERF))
    built = _erf(net, pictures)
    set_statistics(net, task.train(4 * lesson.batch, lesson.stream(asked, STATISTICS))[0])
    before = _erf(net, pictures)
    validation = task.test(asked.pick(full=64, quick=16, smoke=8), lesson.stream(asked, VALIDATION))

    def losses(epoch: int) -> Iterator[Tensor]:
        generator = lesson.stream(asked, EPOCHS + epoch)
        for _ in range(steps):
            yield lesson.loss(*task.train(lesson.batch, generator))

    def measured() -> dict[str, float]:
        result = _erf(net.eval(), pictures)
        sizes = {name: float(result[name]) for name in SIZES} | {f"{name}_se": result[name].se for name in SIZES}
        with torch.no_grad():
            return {**sizes, "validation_loss": float(lesson.loss(*validation))}

    optimizer, epochs = torch.optim.Adam(net.parameters(), lr=RATE), asked.pick(long=40, full=12, quick=4, smoke=1)
    about = {"data": task.data, "side": task.side, "steps": steps, "batch": lesson.batch, "rate": RATE}
    patience = PATIENCE if asked.effort == "long" else None
    name = f"luo-{lesson.name}".replace(" ", "-")
    history = train(asked, name, net, optimizer, epochs, losses, measured=measured, patience=patience, **about)
    after = _erf(net, pictures)
    scored = task.test(asked.pick(full=256, quick=256, smoke=64), lesson.stream(asked, SCORE))
    accuracy = _accuracy(net, *scored, classes=task.classes)
    return _row(lesson, history, steps, (built, before, after), accuracy)


def _accuracy(net: nn.Module, pictures: Tensor, classes_of: Tensor, *, classes: int) -> float:
    """Mean over classes of the share that is right."""
    with torch.no_grad():
        scores = torch.cat([net(part) for part in torch.split(pictures, 32)])
    targets = targets_of(scores, classes_of)
    right = scores.argmax(1) == targets
    shares = [float(right[targets == kind].float().mean()) for kind in range(classes) if bool((targets == kind).any())]
    return float(np.mean(shares))


def _erf(net: nn.Module, pictures: Tensor) -> Any:
    """ERF of the middle unit of the last map."""
    adapter = erfscope.wrap(net, input_size=pictures.shape[2:])
    return result_with_map(adapter, images=pictures, layer="body", convention="luo", measures=SIZES)


def _row(
    lesson: Lesson, history: Sequence[dict[str, float]], steps: int, results: tuple[Any, Any, Any], accuracy: float
) -> StudyRow:
    built, before, after = results
    chance = 1 / lesson.task.classes
    sizes = [float(result["luo_size"]) for result in results]
    return StudyRow(
        name=lesson.name,
        section=lesson.section,
        data=lesson.task.data,
        steps=steps * len(history),
        # Mean loss on other images after each epoch, and whether it was flat at the end.
        validation_loss=tuple(entry["validation_loss"] for entry in history),
        is_flat=is_flat([entry["validation_loss"] for entry in history], PATIENCE),
        # Sizes and their standard errors with the statistics set, and after each epoch.
        sizes={
            name: tuple(
                [(float(before[name]), before[name].se or 0.0)]
                + [(entry[name], entry[f"{name}_se"] or 0.0) for entry in history]
            )
            for name in SIZES
        },
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


def _claims(row: StudyRow) -> list[Claim]:
    net = f"{row.name} net" if row.section == PAPER else f"segmentation net, {row.name},"
    text = f"the ERF of the {net} grows by training"
    before = with_error(row.r50_before_px, row.r50_before_se_px, 1)
    after = with_error(row.r50_after_px, row.r50_after_se_px, 1)
    from_built = f"{row.size_built_px:.1f} to {row.size_after_px:.1f} px"
    from_set = f"{row.size_before_px:.1f} to {row.size_after_px:.1f} px, r50 {before} to {after} px"
    claims = []
    for word, ours, size, grew in (
        ("as built", from_built, row.size_built_px, row.held_from_built),
        ("with its statistics set", from_set, row.size_before_px, row.held),
    ):
        is_reproduced = row.passed and row.size_after_px >= GROWTH.get(row.name, GROWTH["segmentation"]) * size
        claims.append(
            claim(f"{text}, from the net {word}", row.published, ours, is_reproduced, has_mechanism=row.passed and grew)
        )
    return claims


COLUMNS = (
    StudyColumn("net", "{name}", numeric=False, folds=True),
    StudyColumn("data", "{data}", numeric=False, folds=True, optional=True),
    StudyColumn("steps", lambda row: f"{row.steps:,}{', flat' if row.is_flat else ''}", optional=True),
    StudyColumn("accuracy", "{accuracy:.0%}"),
    StudyColumn("TRF", "{trf_px}"),
    StudyColumn("TRF publ.", "{published_trf_px}", optional=True, none="-"),
    StudyColumn("as built", "{size_built_px:.1f}"),
    StudyColumn("untrained", "{size_before_px:.1f}"),
    StudyColumn("trained", "{size_after_px:.1f}"),
    StudyColumn("publ.", "{published}", optional=True, none="-"),
    StudyColumn(
        "grew",
        lambda row: " / ".join("yes" if held else "no" for held in (row.held_from_built, row.held)),
        numeric=False,
    ),
    VERDICT,
)

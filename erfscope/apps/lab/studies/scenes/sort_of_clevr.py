"""``sort-of-clevr``: nets with a wider ERF answer more questions about relations of objects (Nicolicioiu & Duta, Table
1).

Two convolutions (Conv-S), two more with other strides (Conv-L), or a layer of self-attention behind the two. The paper
gives no sizes and no net for the questions. Here every cell of the map votes, and a question weighs the votes: their
mean over cells relates no cell to another, so that what relates objects is the net and its ERF. With a readout that
relates cells itself (attention by the question over the map), Conv-S answers as much as the others. Sizes, readout and
rate are those that did best on images that no number here is about."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from erfscope import adapters
from erfscope.apps.lab.studies.study import (
    Claim,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyRow,
    claim,
    error_of_mean,
    percent,
    points,
    result_with_map,
    with_error,
)
from erfscope.apps.lab.studies.training import batches, one_cycle, seeded, train
from erfscope.core import FloatArray
from erfscope.show import Chart, ChartMap, Curve, Picture

SIDE, RADIUS = 75, 5
#: Red, green, blue, orange, grey, yellow.
COLOURS = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 156, 0), (128, 128, 128), (255, 255, 0)]) / 255
OBJECTS = len(COLOURS)
#: yes, no, square, circle, 1 to 6.
ANSWERS = 10
YES, NO, SQUARE, CIRCLE, ONE = range(5)
#: Which object, which of two groups, which of three questions.
QUESTION = OBJECTS + 2 + 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenes:
    """Images with twenty questions each."""

    #: (B, 3, 75, 75), 0 to 1 less a half.
    pictures: Tensor
    #: (B, 20, 11): ten that are about one object, then ten that are relational.
    questions: Tensor
    #: (B, 20)
    answers: Tensor


def scenes(count: int, generator: np.random.Generator) -> Scenes:
    """Random scenes.

    Args:
        count: How many.
        generator: Source of randomness.
    """
    made = [_scene(generator) for _ in range(count)]
    pictures, questions, answers = (np.stack(part) for part in zip(*made, strict=True))
    return Scenes(
        pictures=torch.from_numpy(pictures).float(),
        questions=torch.from_numpy(questions).float(),
        answers=torch.from_numpy(answers),
    )


def _scene(generator: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    centres = _centres(generator)
    round_ = generator.integers(0, 2, OBJECTS).astype(bool)
    asked = [
        (int(generator.integers(OBJECTS)), relational, int(generator.integers(3)))
        for relational in (False,) * 10 + (True,) * 10
    ]
    questions = np.zeros((len(asked), QUESTION))
    for row, (which, relational, kind) in zip(questions, asked, strict=True):
        row[[which, OBJECTS + relational, OBJECTS + 2 + kind]] = 1
    answers = [_related(*one[::2], centres, round_) if one[1] else _alone(*one[::2], centres, round_) for one in asked]
    return drawn(centres, round_), questions, np.array(answers)


def _centres(generator: np.random.Generator) -> NDArray[np.int64]:
    """Places for all objects that do not overlap, (6, 2)."""
    found: list[NDArray[np.int64]] = []
    while len(found) < OBJECTS:
        place = generator.integers(RADIUS, SIDE - RADIUS, 2)
        if all(np.hypot(*(place - other)) > 2 * RADIUS * 2**0.5 for other in found):
            found.append(place)
    return np.stack(found)


def drawn(centres: NDArray[np.int64], round_: NDArray[np.bool_]) -> NDArray[np.float64]:
    """An image (3, 75, 75) of circles and squares on white, less a half.

    Args:
        centres: (6, 2), row and column.
        round_: Which are circles, (6,).
    """
    picture = np.ones((3, SIDE, SIDE))
    rows, cols = np.indices((SIDE, SIDE))
    for (row, col), circle, colour in zip(centres, round_, COLOURS, strict=True):
        down, across = abs(rows - row), abs(cols - col)
        inside = down**2 + across**2 <= RADIUS**2 if circle else np.maximum(down, across) <= RADIUS
        picture[:, inside] = colour[:, None]
    return picture - 0.5


def _alone(which: int, kind: int, centres: NDArray[np.int64], round_: NDArray[np.bool_]) -> int:
    """Is it round? Is it on the left? Is it in the upper half?"""
    if kind == 0:
        return CIRCLE if round_[which] else SQUARE
    row, col = centres[which]
    return YES if (col if kind == 1 else row) < SIDE / 2 else NO


def _related(which: int, kind: int, centres: NDArray[np.int64], round_: NDArray[np.bool_]) -> int:
    """What shape has the nearest? The furthest? How many have its shape, itself among them?"""
    if kind == 2:
        return ONE + int((round_ == round_[which]).sum()) - 1
    distance = np.hypot(*(centres - centres[which]).T)
    other = (
        int(np.where(np.arange(OBJECTS) == which, np.inf, distance).argmin()) if kind == 0 else int(distance.argmax())
    )
    return CIRCLE if round_[other] else SQUARE


#: Channels of the convolutions, of the votes, and of queries, keys and values with their heads.
WIDTH, VOTES, ATTENTION, HEADS = 32, 128, 128, 8
#: Sines and cosines of rows and of columns that tell a cell where it is.
OCTAVES = 4
#: Images in a batch, and the largest learning rate.
BATCH, RATE = 32, 2e-3
#: A mean over cells is small where few of them vote; with this factor nets learn faster.
LOUDER = 16
#: Random numbers of images: for training, for scores, for ERFs, for learning curves. Those of stream 1 chose the sizes
#: and the readout, and nothing is scored on them.
STREAMS = (0, 4, 2, 3)
#: Relational accuracy, in percent.
PUBLISHED = {"Conv-S": 54.4, "Conv-L": 73.3, "Self-Attention": 81.8}
#: How far an accuracy may be from the published one, in percent.
NEAR = 8


class PositionChannels(nn.Module):
    """Sines and cosines of a cell's row and column beside its channels (Vaswani et al. 2017, in two dimensions)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, c, h, w) -> (B, c + 4 * OCTAVES, h, w)."""
        rows, columns = (torch.linspace(-1, 1, size, dtype=x.dtype, device=x.device) for size in x.shape[2:])
        angles = (
            torch.pi
            / 2
            * torch.stack(
                [
                    2**octave * place
                    for place in torch.meshgrid(rows, columns, indexing="ij")
                    for octave in range(OCTAVES)
                ]
            )
        )
        return torch.cat([x, torch.cat([angles.sin(), angles.cos()]).expand(len(x), -1, -1, -1)], 1)


class Responder(nn.Module):
    """A net on the image, every cell of whose map votes, and a question that weighs the votes.

    Args:
        name: One of :data:`PUBLISHED`.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        placed = WIDTH + 4 * OCTAVES
        further, channels = [], placed
        if name == "Conv-L":
            further, channels = [*_conv(placed, WIDTH, 2), *_conv(WIDTH, WIDTH, 1)], WIDTH
        if name == "Self-Attention":
            attention = adapters.blocks.SelfAttention(placed, ATTENTION, heads=HEADS, key_channels=ATTENTION)
            further, channels = [attention], ATTENTION
        self.net = nn.Sequential(*_conv(3, WIDTH, 3), *_conv(WIDTH, WIDTH, 2), PositionChannels(), *further)
        self.votes = nn.Sequential(nn.Conv2d(channels, VOTES, 1), nn.ReLU(), nn.Conv2d(VOTES, VOTES, 1), nn.ReLU())
        self.weights = nn.Sequential(nn.Linear(QUESTION, VOTES), nn.ReLU(), nn.Linear(VOTES, VOTES))
        self.answer = nn.Linear(VOTES, ANSWERS)

    def forward(self, pictures: Tensor, questions: Tensor) -> Tensor:
        """(B, 3, 75, 75) and (B, Q, 11) -> logits (B, Q, 10)."""
        votes = LOUDER * self.votes(self.net(pictures)).mean((2, 3))
        logits: Tensor = self.answer(votes[:, None] * self.weights(questions))
        return logits


def _conv(in_channels: int, out_channels: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1), nn.BatchNorm2d(out_channels), nn.ReLU()


def study(asked: StudyOptions) -> StudyFindings:
    """Measure the three nets, train them, and measure again."""
    counts = asked.pick(
        long=(10_000, 1000, 16, 500), full=(2500, 500, 16, 200), quick=(300, 200, 16, 50), smoke=(64, 50, 16, 50)
    )
    learned, asked_of, shown, checked = (
        scenes(n, np.random.default_rng([asked.seed, part])) for part, n in zip(STREAMS, counts, strict=True)
    )
    rows = []
    for name in PUBLISHED:
        taught = []
        for number in range(asked.pick(long=3, full=1, quick=1, smoke=1)):
            with seeded(asked.seed + number):
                net = Responder(name)
            before = _erf(net, shown, asked.seed)
            history = _train(f"{name}-{number + 1}", net, learned, checked, asked)
            taught.append((net, before, _erf(net, shown, asked.seed), history))
        rows.append(_row(name, taught, learned, asked_of))
    return StudyFindings(columns=COLUMNS, rows=rows, claims=_claims(rows), picture=_picture(rows))


def _erf(net: Responder, shown: Scenes, seed: int) -> Any:
    return result_with_map(net.net, images=shown.pictures, measures=["r90"], seed=seed)


def _row(
    name: str, taught: Sequence[tuple[Responder, Any, Any, Sequence[float]]], learned: Scenes, asked_of: Scenes
) -> StudyRow:
    """The row of nets of one kind: each with its ERFs before and after training, and its accuracy after each epoch."""
    nets, before, after, histories = zip(*taught, strict=True)
    right = np.stack([_right(net, asked_of) for net in nets])
    sizes, sizes_before = ([float(result["r90"]) for result in results] for results in (after, before))
    return StudyRow(
        name=name,
        parameters=sum(parameter.numel() for parameter in nets[0].parameters()),
        # Side of the theoretical receptive field, in pixels; None if it is the whole image.
        trf=None if after[0].trf.global_by else after[0].trf.size_px[0],
        # Radius in pixels that holds 90 % of the ERF of the middle unit, before and after training: means over nets;
        # and the standard error, over nets or over images.
        r90_before=float(np.mean(sizes_before)),
        r90=float(np.mean(sizes)),
        r90_se=max(after[0]["r90"].se or 0.0, float(np.std(sizes, ddof=1)) / len(sizes) ** 0.5 if sizes[1:] else 0.0),
        # Share of right answers to relational questions, of all nets, its standard error, and of each net; to the
        # others; and to relational ones without the image.
        relational=float(right[..., 10:].mean()),
        relational_se=error_of_mean(right[..., 10:].mean(2)),
        of_each=tuple(right[..., 10:].mean((1, 2)).tolist()),
        alone=float(right[..., :10].mean()),
        blind=blind(learned, asked_of),
        published=PUBLISHED[name],
        # Share of relational questions about further images answered right after each epoch, a mean over nets; and how
        # many images a net has seen by then.
        history=tuple(np.mean(histories, 0).tolist()),
        seen=tuple(len(learned.pictures) * (epoch + 1) for epoch in range(len(histories[0]))),
        passed=all(result.ok for result in (*before, *after)) and float(right.mean()) > 1 / ANSWERS,
        maps={"trained": after[0].map.values},
    )


def _right(net: Responder, asked_of: Scenes) -> FloatArray:
    """Return which answers are right, (B, 20), 0 or 1."""
    with torch.no_grad():
        answers = [
            net(*some).argmax(2)
            for some in zip(torch.split(asked_of.pictures, 50), torch.split(asked_of.questions, 50), strict=True)
        ]
    return np.asarray((torch.cat(answers) == asked_of.answers).double().numpy())


def blind(learned: Scenes, asked_of: Scenes) -> float:
    """Return the accuracy, on relational questions, of the most frequent answer to the same question in training."""
    counts = torch.zeros(2**QUESTION, ANSWERS)
    code = 2.0 ** torch.arange(QUESTION)
    counts.index_put_(((learned.questions @ code).long(), learned.answers), torch.ones(()), accumulate=True)
    guesses = counts[(asked_of.questions[:, 10:] @ code).long()].argmax(2)
    return float((guesses == asked_of.answers[:, 10:]).float().mean())


def _train(name: str, net: Responder, learned: Scenes, checked: Scenes, asked: StudyOptions) -> list[float]:
    """Train a net, and return its accuracy on relational questions after each epoch."""
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    epochs = asked.pick(long=30, full=10, quick=4, smoke=1)
    count = len(learned.pictures)

    def losses(epoch: int) -> Iterator[Tensor]:
        parts = batches(count, BATCH, epoch)
        for number, some in enumerate(parts):
            one_cycle(optimizer, RATE, (epoch + number / len(parts)) / epochs)
            logits = net(learned.pictures[some], learned.questions[some])
            yield F.cross_entropy(logits.flatten(0, 1), learned.answers[some].flatten())

    def measured() -> dict[str, float]:
        return {"relational": float(_right(net.eval(), checked)[:, 10:].mean())}

    history = train(asked, f"sort-of-clevr-{name}", net, optimizer, epochs, losses, measured=measured, pictures=count)
    return [entry["relational"] for entry in history]


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    ranked = all(a.r90 < b.r90 and a.r90_before < b.r90_before for a, b in itertools.pairwise(rows))
    places = {row.name: sorted(rows, key=lambda each: each.relational).index(row) for row in rows}
    sizes = " < ".join(
        f"{row.name} {with_error(row.r90, row.r90_se, 0)}" for row in sorted(rows, key=lambda row: row.r90)
    )
    return [
        claim("ERF sizes, before and after training", " < ".join(PUBLISHED), f"{sizes} px", ranked),
        *(
            claim(
                f"answers to relational questions, {row.name}",
                f"{row.published:g} % ({100 * row.blind:.1f} % without looking)",
                percent(row.relational, row.relational_se) + _of_each(row),
                abs(100 * row.relational - row.published) <= NEAR and places[row.name] == place,
                has_mechanism=places[row.name] == place,
            )
            for place, row in enumerate(rows)
        ),
    ]


def _of_each(row: StudyRow) -> str:
    """The accuracies of several nets, in words."""
    return f" (nets: {', '.join(f'{100 * each:.1f}' for each in row.of_each)})" if len(row.of_each) > 1 else ""


def _picture(rows: Sequence[StudyRow]) -> Picture:
    names = tuple(row.name.removeprefix("Self-") for row in rows)
    answered = (
        points("relational", rows, "relational", scale=100, error="relational_se"),
        points("relational, published", rows, "published"),
        points("about one object", rows, "alone", scale=100),
    )
    sizes = (points("before training", rows, "r90_before"), points("after", rows, "r90", error="r90_se"))
    marks = (("relational, without looking", 100 * rows[0].blind),)
    learning = tuple(
        Curve(label=name, x=[count / 1000 for count in row.seen], y=[100 * each for each in row.history])
        for name, row in zip(names, rows, strict=True)
    )
    charts = (
        Chart(
            title="Learning relations", x="images seen (thousands)", y="% of other images", curves=learning, marks=marks
        ),
        Chart(title="Right answers", x="", y="%", curves=answered, names=names, marks=marks),
        Chart(title="ERF size", x="", y="r90 (px)", curves=sizes, names=names),
    )
    shown = tuple(ChartMap(title=f"{row.name}, trained", values=row.maps["trained"], log=True) for row in rows)
    note = "Learning: a mean over nets, on validation images. Right answers: on images that chose nothing."
    return Picture(title="Sort-of-CLEVR: how far nets look, and what they answer", rows=(charts, shown), note=note)


COLUMNS = (
    StudyColumn("net", "{name}", numeric=False),
    StudyColumn("TRF px", "{trf}", none="all"),
    StudyColumn("r90 px", "{r90_before:.1f}"),
    StudyColumn("trained", lambda row: with_error(row.r90, row.r90_se, 1)),
    StudyColumn("relational", "{relational:.1%}"),
    StudyColumn("publ.", "{published:g}%"),
    StudyColumn("blind", "{blind:.1%}", optional=True),
    StudyColumn("one object", "{alone:.1%}"),
    StudyColumn("parameters", "{parameters:,}", optional=True),
)

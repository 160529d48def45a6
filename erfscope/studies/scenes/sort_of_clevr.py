"""``sort-of-clevr``: nets with a wider ERF answer more questions about relations of objects (Nicolicioiu & Duta, Table
1).

Two convolutions (Conv-S), two more with other strides (Conv-L), or a layer of self-attention behind the two. The paper
gives no channels and no net for the questions; those here are small enough for two cores, and see far fewer questions
than the paper's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope.adapters.blocks import SelfAttention
from erfscope.figures.chart_data import Chart, Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.restore import seed_generators
from erfscope.studies.scenes.clevr_scenes import ANSWERS, QUESTION, Scenes, scenes
from erfscope.studies.study import (
    Claim,
    Column,
    Row,
    StudyFindings,
    StudyOptions,
    claim,
    measure,
    points,
    share_with_error,
    with_error,
)
from erfscope.studies.training import batches, train

#: Channels of the nets, and of what reads cells and questions.
WIDTH, HIDDEN = 24, 64
#: Relational accuracy, in percent.
PUBLISHED = {"Conv-S": 54.4, "Conv-L": 73.3, "Self-Attention": 81.8}
#: How far an accuracy may be from the published one, in percent.
NEAR = 8


class Responder(nn.Module):
    """A net on the image, and a perceptron on its map and the question.

    Args:
        name: One of :data:`PUBLISHED`.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        further: list[nn.Module] = []
        if name == "Conv-L":
            further = [*_conv(WIDTH, WIDTH, 2), *_conv(WIDTH, WIDTH, 1)]
        if name == "Self-Attention":
            further = [SelfAttention(WIDTH, WIDTH)]
        self.net = nn.Sequential(*_conv(3, WIDTH, 3), *_conv(WIDTH, WIDTH, 2), *further)
        self.cell, self.question = nn.Conv2d(WIDTH, HIDDEN, 1), nn.Linear(QUESTION, HIDDEN)
        self.read = nn.Sequential(nn.ReLU(), nn.Conv2d(HIDDEN, HIDDEN, 1), nn.ReLU())
        self.answer = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, ANSWERS))

    def forward(self, pictures: Tensor, questions: Tensor) -> Tensor:
        """(B, 3, 75, 75) and (B, Q, 11) -> logits (B, Q, 10)."""
        # A linear layer of cell and question side by side is the sum of one of each.
        together = self.cell(self.net(pictures))[:, None] + self.question(questions)[..., None, None]
        logits: Tensor = self.answer(self.read(together.flatten(0, 1)).mean((2, 3)))
        return torch.unflatten(logits, 0, questions.shape[:2])


def _conv(in_channels: int, out_channels: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1), nn.BatchNorm2d(out_channels), nn.ReLU()


def responders(seed: int) -> dict[str, Responder]:
    """The three nets at random weights."""
    with seed_generators(seed):
        return {name: Responder(name) for name in PUBLISHED}


def study(asked: StudyOptions) -> StudyFindings:
    """Measure the three nets, train them, and measure again."""
    counts = asked.pick(long=(10_000, 1000, 16), full=(2500, 500, 16), quick=(300, 200, 16), smoke=(64, 50, 16))
    learned, asked_of, shown = (scenes(n, np.random.default_rng([asked.seed, part])) for part, n in enumerate(counts))
    rows = []
    for name, net in responders(asked.seed).items():
        before = _erf(net, shown, asked.seed)
        _train(name, net, learned, asked)
        after = _erf(net, shown, asked.seed)
        rows.append(_row(name, net, before, after, learned, asked_of))
    ranked = all(a.r90 < b.r90 and a.r90_before < b.r90_before for a, b in itertools.pairwise(rows))
    claims = _claims(rows, ranked, 10 * counts[1])
    return StudyFindings(columns=COLUMNS, rows=rows, claims=claims, picture=_picture(rows), holds_overall=ranked)


def _erf(net: Responder, shown: Scenes, seed: int) -> Any:
    return measure(net.net, images=shown.pictures, measures=["r50", "r90"], seed=seed)


def _row(name: str, net: Responder, before: Any, after: Any, learned: Scenes, asked_of: Scenes) -> Row:
    right = _right(net, asked_of)
    return Row(
        name=name,
        parameters=sum(parameter.numel() for parameter in net.parameters()),
        # Side of the theoretical receptive field, in pixels; None if it is the whole image.
        trf=None if after.trf.global_by else after.trf.size_px[0],
        # Radius in pixels that holds 90 % of the ERF of the middle unit, before and after training, and its standard
        # error.
        r90_before=float(before["r90"]),
        r90=float(after["r90"]),
        r90_se=after["r90"].se,
        # Share of right answers to relational questions, to the others, and to relational ones without the image.
        relational=float(right[:, 10:].mean()),
        alone=float(right[:, :10].mean()),
        blind=blind(learned, asked_of),
        published=PUBLISHED[name],
        passed=after.ok and before.ok and float(right.mean()) > 1 / ANSWERS,
        maps={"trained": after.map.values},
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


def _train(name: str, net: Responder, learned: Scenes, asked: StudyOptions) -> None:
    count, optimizer = len(learned.pictures), torch.optim.Adam(net.parameters(), lr=2e-3)

    def losses(epoch: int) -> Iterator[Tensor]:
        for some in batches(count, 32, epoch):
            logits = net(learned.pictures[some], learned.questions[some])
            yield F.cross_entropy(logits.flatten(0, 1), learned.answers[some].flatten())

    epochs = asked.pick(long=40, full=10, quick=4, smoke=1)
    train(asked, f"sort-of-clevr-{name}", net, optimizer, epochs, losses, pictures=count)


def _claims(rows: Sequence[Row], ranked: bool, questions: int) -> list[Claim]:
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
                share_with_error(row.relational, questions),
                abs(100 * row.relational - row.published) <= NEAR and places[row.name] == place,
                has_mechanism=places[row.name] == place,
            )
            for place, row in enumerate(rows)
        ),
    ]


def _picture(rows: Sequence[Row]) -> Picture:
    names = tuple(row.name.removeprefix("Self-") for row in rows)
    answered = (
        points("relational", rows, "relational", scale=100),
        points("relational, published", rows, "published"),
        points("about one object", rows, "alone", scale=100),
    )
    sizes = (points("before training", rows, "r90_before"), points("after", rows, "r90", error="r90_se"))
    marks = (("relational, without looking", 100 * rows[0].blind),)
    charts = (
        Chart(title="Right answers", x="", y="%", curves=answered, names=names, marks=marks),
        Chart(title="ERF size", x="", y="r90 (px)", curves=sizes, names=names),
    )
    shown = tuple(Shown(title=f"{row.name}, trained", values=row.maps["trained"], log=True) for row in rows)
    return Picture(title="Sort-of-CLEVR: how far nets look, and what they answer", rows=(charts, shown))


COLUMNS = (
    Column("net", "{name}", numeric=False),
    Column("TRF px", "{trf}", none="all"),
    Column("r90 px", "{r90_before:.1f}"),
    Column("trained", lambda row: with_error(row.r90, row.r90_se, 1)),
    Column("relational", "{relational:.1%}"),
    Column("publ.", "{published:g}%"),
    Column("blind", "{blind:.1%}", optional=True),
    Column("one object", "{alone:.1%}"),
    Column("parameters", "{parameters:,}", optional=True),
)

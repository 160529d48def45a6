"""``sort-of-clevr``: nets with a wider ERF answer more questions about relations of objects (Nicolicioiu & Duta, Table
1).

Two convolutions (Conv-S), two more with other strides (Conv-L), or a layer of self-attention behind the two. The paper
gives no channels and no net for the questions; those here are small enough for two cores, and see far fewer questions
than the paper's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope
from erfscope.adapters.blocks import SelfAttention
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.restore import seed_generators
from erfscope.studies.scenes.clevr_scenes import ANSWERS, QUESTION, Scenes, scenes
from erfscope.studies.study import Column, StudyFindings, StudyOptions
from erfscope.studies.training import batches, descend, fit

#: Channels of the nets, and of what reads cells and questions.
WIDTH, HIDDEN = 24, 64
#: Relational accuracy, in percent.
PUBLISHED = {"Conv-S": 54.4, "Conv-L": 73.3, "Self-Attention": 81.8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One net."""

    name: str
    parameters: int
    #: Side of the theoretical receptive field, in pixels; None if it is the whole image.
    trf: int | None
    #: Radius in pixels that holds 90 % of the ERF of the middle unit, before and after training, and its standard
    #: error.
    r90_before: float
    r90: float
    r90_se: float | None
    #: Share of right answers to relational questions, and to the others.
    relational: float
    alone: float
    #: Share of right answers to relational questions without the image.
    blind: float
    published: float
    passed: bool


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
    train, test, shown = (
        scenes(count, np.random.default_rng([asked.seed, part]))
        for part, count in enumerate(
            (asked.pick(full=2500, quick=300, smoke=64), asked.pick(full=500, quick=200, smoke=50), 16)
        )
    )
    rows, maps = [], {}
    for name, net in responders(asked.seed).items():
        before = _erf(net, shown, asked.seed)
        _train(name, net, train, asked)
        after = _erf(net, shown, asked.seed)
        assert after.map is not None
        maps[name] = after.map.values
        rows.append(_row(name, net, (before, after), train, test))
    ranked = all(a.r90 < b.r90 and a.r90_before < b.r90_before for a, b in itertools.pairwise(rows))
    return StudyFindings(
        columns=COLUMNS,
        rows=tuple(rows),
        conclusion=_conclusion(rows, ranked),
        picture=_picture(rows, maps),
        holds_overall=ranked,
    )


def _erf(net: Responder, shown: Scenes, seed: int) -> erfscope.Result:
    return erfscope.analyze(net.net, images=shown.pictures, measures=["r50", "r90"], seed=seed)


def _row(name: str, net: Responder, erfs: tuple[erfscope.Result, erfscope.Result], train: Scenes, test: Scenes) -> Row:
    before, after = erfs
    right = _right(net, test)
    assert after.trf is not None
    return Row(
        name=name,
        parameters=sum(parameter.numel() for parameter in net.parameters()),
        trf=None if after.trf.global_by else after.trf.size_px[0],
        r90_before=float(before["r90"]),
        r90=float(after["r90"]),
        r90_se=after["r90"].se,
        relational=float(right[:, 10:].mean()),
        alone=float(right[:, :10].mean()),
        blind=blind(train, test),
        published=PUBLISHED[name],
        passed=after.ok and before.ok and float(right.mean()) > 1 / ANSWERS,
    )


def _right(net: Responder, test: Scenes) -> FloatArray:
    """Return which answers are right, (B, 20), 0 or 1."""
    with torch.no_grad():
        answers = [
            net(*some).argmax(2)
            for some in zip(torch.split(test.pictures, 50), torch.split(test.questions, 50), strict=True)
        ]
    return np.asarray((torch.cat(answers) == test.answers).double().numpy())


def blind(train: Scenes, test: Scenes) -> float:
    """Return the accuracy, on relational questions, of the most frequent answer to the same question in training."""
    counts = torch.zeros(2**QUESTION, ANSWERS)
    code = 2.0 ** torch.arange(QUESTION)
    counts.index_put_(((train.questions @ code).long(), train.answers), torch.ones(()), accumulate=True)
    guesses = counts[(test.questions[:, 10:] @ code).long()].argmax(2)
    return float((guesses == test.answers[:, 10:]).float().mean())


def _train(name: str, net: Responder, train: Scenes, asked: StudyOptions) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    count = len(train.pictures)

    def epoch(number: int) -> dict[str, float]:
        total = 0.0
        for some in batches(count, 32, number):
            logits = net(train.pictures[some], train.questions[some])
            total += len(some) * descend(
                optimizer, F.cross_entropy(logits.flatten(0, 1), train.answers[some].flatten())
            )
        return {"loss": total / count}

    fit(asked, f"sort-of-clevr-{name}", net, optimizer, asked.pick(full=10, quick=4, smoke=1), epoch, pictures=count)


def _conclusion(rows: Sequence[Row], ranked: bool) -> str:
    sizes = " < ".join(f"{row.name} {row.r90:.0f}" for row in rows)
    accuracies = ", ".join(f"{row.name} {row.relational:.1%}" for row in rows)
    same = all(a.relational < b.relational for a, b in itertools.pairwise(rows))
    ranking = "rank alike" if same else "do not rank so after a training this short"
    published = ", ".join(f"{row.published:g}" for row in rows)
    return (
        f"ERFs {'rank' if ranked else 'do not rank'} as the paper says, before and after training (r90 in pixels:"
        f" {sizes}); relational accuracies {ranking} ({accuracies}; {rows[0].blind:.1%} without looking; published"
        f" {published} %)."
    )


def _picture(rows: Sequence[Row], maps: dict[str, FloatArray]) -> Picture:
    places = range(len(rows))
    curves = (
        Curve(label="relational", x=places, y=[100 * row.relational for row in rows], points=True),
        Curve(label="relational, published", x=places, y=[row.published for row in rows], points=True),
        Curve(label="about one object", x=places, y=[100 * row.alone for row in rows], points=True),
    )
    chart = Chart(
        title="Right answers",
        x="",
        y="%",
        curves=curves,
        names=tuple(row.name.removeprefix("Self-") for row in rows),
        marks=(("relational, without looking", 100 * rows[0].blind),),
    )
    radii = Chart(
        title="ERF size",
        x="",
        y="r90 (px)",
        curves=(
            Curve(label="before training", x=places, y=[row.r90_before for row in rows], points=True),
            Curve(
                label="after",
                x=places,
                y=[row.r90 for row in rows],
                error=[row.r90_se or 0.0 for row in rows],
                points=True,
            ),
        ),
        names=tuple(row.name.removeprefix("Self-") for row in rows),
    )
    shown = tuple(Shown(title=f"{name}, trained", values=values, log=True) for name, values in maps.items())
    return Picture(title="Sort-of-CLEVR: how far nets look, and what they answer", rows=((chart, radii), shown))


COLUMNS = (
    Column(title="net", text=lambda row: row.name, numeric=False),
    Column(title="TRF px", text=lambda row: "all" if row.trf is None else f"{row.trf}"),
    Column(title="r90 px", text=lambda row: f"{row.r90_before:.1f}"),
    Column(title="trained", text=lambda row: f"{row.r90:.1f}{'' if row.r90_se is None else f' ± {row.r90_se:.1f}'}"),
    Column(title="relational", text=lambda row: f"{row.relational:.1%}"),
    Column(title="publ.", text=lambda row: f"{row.published:g}%"),
    Column(title="blind", text=lambda row: f"{row.blind:.1%}", optional=True),
    Column(title="one object", text=lambda row: f"{row.alone:.1%}"),
    Column(title="parameters", text=lambda row: f"{row.parameters:,}", optional=True),
)

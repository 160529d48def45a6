"""``syncmnist``: which two of five moving digits are in step? How far video nets look, with graph and attention layers and without.

The ERF of the middle of the middle frame, with respect to the frames and to what the inserted layers receive (Nicolicioiu & Duta, section
4.2), and accuracy against the digits' distance. Nets and videos are of the paper's size where ERFs at random weights are measured. Those
that are trained are a quarter as wide, on videos half as large with three digits: four classes, where the paper has 46.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope
from erfscope.erfmap import FloatArray
from erfscope.studies.moving_digits import Scale, moving_digits
from erfscope.studies.picture import Chart, Curve, Picture, Shown
from erfscope.studies.study import Asked, Column, Findings
from erfscope.studies.training import fit
from erfscope.studies.video_nets import PARAMETERS, VIDEO_NETS, video_net

#: The paper's largest distances, in pixels; half of these in the smaller videos.
DISTANCES = (20, 60, 80, 100)
PAPER, SMALL = Scale(), Scale(frames=6, side=64, zoom=1, digits=3, symbols=3)
NARROW = (16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One net."""

    name: str
    #: In millions.
    parameters: float
    parameters_published: float | None
    #: With respect to the frames, before training: radius in pixels of 90 % of the ERF on videos of any kind, and on those that all
    #: move alike, and its share beyond a quarter of the diagonal.
    r90: float
    r90_same: float | None
    far_mass: float
    #: With respect to what the inserted layers receive: share in other frames, share on the unit itself, and the spread (standard
    #: deviation / mean) over all other cells of the frame, before and after training.
    other_frames: float | None
    own: float | None
    spread: float | None
    spread_trained: float | None
    #: Accuracy at each largest distance, and whether their mean is above chance by two standard errors; None where it was not trained.
    accuracies: tuple[float, ...] | None
    learned: bool | None
    passed: bool


def study(asked: Asked) -> Findings:
    """Measure all nets, train some, and see what they answer."""
    scale, widths = asked.pick(full=(PAPER, (64, 128, 256)), quick=(PAPER, (64, 128, 256)), smoke=(SMALL, NARROW))
    trained = asked.pick(full=tuple(VIDEO_NETS), quick=("I3D-S + SA",), smoke=("I3D-S + SA",))
    videos = [
        moving_digits(asked.pick(full=4, quick=1, smoke=1), 60 * scale.side / PAPER.side, scale, _numbers(asked, part), same=same)[0]
        for part, same in enumerate(asked.pick(full=(False, True), quick=(False,), smoke=(False,)))
    ]
    rows, maps = [], {}
    names = [name for name in VIDEO_NETS if name != "I3D-L" or asked.effort != "smoke"]
    for number, name in enumerate(names):
        asked.tell("syncmnist", number, len(names))
        net = video_net(name, scale.classes, widths=widths, seed=asked.seed).eval()
        narrow = _trained(name, asked) if name in trained else None
        row, shown = _row(name, net, videos, narrow, asked)
        rows.append(row)
        maps[name] = shown
    return Findings(
        columns=COLUMNS,
        rows=tuple(rows),
        conclusion=_conclusion(rows),
        passed=all(row.passed for row in rows),
        picture=_picture(rows, maps),
    )


def _numbers(asked: Asked, part: int) -> np.random.Generator:
    return np.random.default_rng([asked.seed, part])


def _row(
    name: str, net: nn.Sequential, videos: Sequence[Tensor], narrow: nn.Sequential | None, asked: Asked
) -> tuple[Row, list[tuple[str, FloatArray]]]:
    frames = [_erf(net, x, asked, layer="stage3") for x in videos]
    shown = [("frames", frames[0].map.plane.values)]
    block: dict[str, float | None] = {"other_frames": None, "own": None, "spread": None, "spread_trained": None}
    if "+" in name:
        found = _erf(net, videos[0], asked, layer="block", wrt="block:in")
        block = {**of_block(found), "spread_trained": None}
        if narrow is not None:
            x = moving_digits(4, 30, SMALL, _numbers(asked, 2))[0]
            after = _erf(narrow, x, asked, layer="block", wrt="block:in")
            block["spread_trained"] = of_block(after)["spread"]
            shown.append(("block, trained", _without_unit(after)))
        else:
            shown.append(("block", _without_unit(found)))
    uniform = "GCN" not in name or (block["spread"] or 0.0) < 1e-6
    accuracies = None if narrow is None else _accuracies(narrow, asked)
    row = Row(
        name=name,
        parameters=sum(parameter.numel() for parameter in net.parameters()) / 1e6,
        parameters_published=PARAMETERS[name] / 1e6 if name in PARAMETERS else None,
        r90=float(frames[0]["r90"]),
        r90_same=float(frames[1]["r90"]) if len(frames) > 1 else None,
        far_mass=float(frames[0]["far_mass"]),
        **block,
        accuracies=accuracies,
        learned=None if accuracies is None else _above_chance(accuracies, asked),
        passed=all(result.ok for result in frames) and not block["other_frames"] and uniform,
    )
    return row, shown


def _erf(net: nn.Module, x: Tensor, asked: Asked, **where: str) -> Any:
    draws = asked.pick(full=2, quick=2, smoke=1)
    return erfscope.analyze(net, images=x, draws=draws, seed=asked.seed, measures=["r50", "r90", "far_mass"], **where)  # type: ignore[arg-type]


def of_block(result: erfscope.Result) -> dict[str, float | None]:
    """Where in (T, H, W) the ERF of inserted layers lies: in other frames, on the unit, and how unevenly over the rest of its frame."""
    assert result.map is not None
    assert result.unit is not None
    values, (frame, row, col) = result.map.values, result.unit.index
    rest = np.delete(values[frame].ravel(), row * values.shape[2] + col)
    return {
        "other_frames": float(np.delete(values, frame, 0).sum()),
        "own": float(values[frame, row, col]),
        "spread": float(rest.std() / rest.mean()),
    }


def _without_unit(result: erfscope.Result) -> FloatArray:
    assert result.map is not None
    assert result.unit is not None
    frame = np.array(result.map.values[result.unit.index[0]])
    frame[result.unit.index[1:]] = 0
    return frame


def _trained(name: str, asked: Asked) -> nn.Sequential:
    """A narrow net, trained on small videos of all distances."""
    net = video_net(name, SMALL.classes, widths=NARROW, seed=asked.seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    count = asked.pick(full=384, quick=128, smoke=32)

    def epoch(number: int) -> dict[str, float]:
        parts = [_small(count // len(DISTANCES), distance, asked, 100 + number) for distance in DISTANCES]
        videos, classes = (torch.cat(part) for part in zip(*parts, strict=True))
        total = 0.0
        for some in torch.split(torch.randperm(len(videos), generator=torch.Generator().manual_seed(number)), 32):
            loss = F.cross_entropy(net(videos[some]), classes[some])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(some)
        return {"loss": total / len(videos)}

    fit(asked, f"syncmnist-{name.replace(' + ', '-')}", net, optimizer, asked.pick(full=24, quick=4, smoke=1), epoch, videos=count)
    return net


def _small(count: int, distance: float, asked: Asked, part: int) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng([asked.seed, part, round(distance)])
    return moving_digits(count, distance * SMALL.side / PAPER.side, SMALL, generator)


def _above_chance(accuracies: Sequence[float], asked: Asked) -> bool:
    chance = 1 / SMALL.classes
    error = math.sqrt(chance * (1 - chance) / (len(accuracies) * _tests(asked)))
    return float(np.mean(accuracies)) > chance + 2 * error


def _tests(asked: Asked) -> int:
    return asked.pick(full=400, quick=100, smoke=20)


def _accuracies(net: nn.Sequential, asked: Asked) -> tuple[float, ...]:
    found = []
    with torch.no_grad():
        for distance in DISTANCES:
            videos, classes = _small(_tests(asked), distance, asked, 10)
            answers = torch.cat([net(some).argmax(1) for some in torch.split(videos, 50)])
            found.append(float((answers == classes).float().mean()))
    return tuple(found)


def _conclusion(rows: Sequence[Row]) -> str:
    by_name = {row.name: row for row in rows}
    gcn, attention = by_name["I3D-S + GCN"], by_name["I3D-S + SA"]
    after = "" if attention.spread_trained is None else f", {attention.spread_trained:.0e} after training"
    said = "; ".join(
        f"{row.name} {', '.join(f'{each:.0%}' for each in row.accuracies)}{'' if row.learned else ', no better than chance'}"
        for row in rows
        if row.accuracies is not None
    )
    return (
        f"What the inserted layers receive moves their middle unit from its own frame alone; the fully connected GCN looks at every other "
        f"cell alike (spread {gcn.spread:.0e}, as Theorem 1 says), self-attention by what is there (spread {attention.spread:.0e} before"
        f"{after}). Accuracy of the small nets at distances {', '.join(map(str, DISTANCES))} (four classes, chance 25%): {said}."
    )


def _picture(rows: Sequence[Row], maps: dict[str, list[tuple[str, FloatArray]]]) -> Picture:
    curves = tuple(Curve(label=row.name, x=DISTANCES, y=[100 * each for each in row.accuracies]) for row in rows if row.accuracies)
    chart = Chart(title="Accuracy, small nets", x="largest distance (px)", y="%", curves=curves, marks=(("chance", 25.0),))
    frames = tuple(Shown(title=name.replace("I3D-S +", "+"), values=shown[0][1], log=True) for name, shown in maps.items())
    blocks = tuple(
        Shown(title=f"{name.replace('I3D-S +', '+')}, {what}", values=values) for name, shown in maps.items() for what, values in shown[1:]
    )
    note = "Maps: ERF of the middle unit at random weights on the frames, summed over time; and on the inserted layers' input, no unit."
    return Picture(title="SyncMNIST: how far video nets look", rows=(frames, (chart, *blocks)), note=note)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _accuracy_at(place: int) -> Callable[[Row], str]:
    return lambda row: _share(None if row.accuracies is None else row.accuracies[place])


def _spread(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}"


COLUMNS = (
    Column(title="net", text=lambda row: row.name, numeric=False),
    Column(title="M par.", text=lambda row: f"{row.parameters:.2f}"),
    Column(title="publ.", text=lambda row: "-" if row.parameters_published is None else f"{row.parameters_published:.1f}"),
    Column(title="r90 px", text=lambda row: f"{row.r90:.1f}"),
    Column(title="alike", text=lambda row: "-" if row.r90_same is None else f"{row.r90_same:.1f}", optional=True),
    Column(title="other fr.", text=lambda row: _share(row.other_frames), optional=True),
    Column(title="own cell", text=lambda row: _share(row.own), optional=True),
    Column(title="spread", text=lambda row: _spread(row.spread)),
    Column(title="trained", text=lambda row: _spread(row.spread_trained), optional=True),
    *(Column(title=f"≤{distance} px", text=_accuracy_at(place)) for place, distance in enumerate(DISTANCES)),
)

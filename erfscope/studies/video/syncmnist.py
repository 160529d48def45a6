"""``syncmnist``: which two of five moving digits are in step? How far video nets look, with graph and attention layers
and without.

The ERF of the middle of the middle frame, with respect to the frames and to what the inserted layers receive
(Nicolicioiu & Duta, section 4.2), and accuracy against the digits' distance. Nets and videos are of the paper's size
where ERFs at random weights are measured. Those that are trained are a quarter as wide, on videos half as large with
three digits: four classes, where the paper has 46."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

import erfscope
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.studies.study import Column, StudyFindings, StudyOptions, cell
from erfscope.studies.video.in_step import DISTANCES, NARROW, PAPER, SMALL, above_chance, accuracies_of, scored, trained
from erfscope.studies.video.moving_digits import moving_digits
from erfscope.studies.video.video_nets import PARAMETERS, VIDEO_NETS, video_net

#: The least ratio of r90 of a wider ERF, and the largest spread over cells of an ERF that is uniform over them.
WIDER, UNIFORM = 1.1, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One net."""

    name: str
    #: In millions.
    parameters: float
    parameters_published: float | None
    #: With respect to the frames, before training: radius in pixels of 90 % of the ERF on videos of any kind, and on
    #: those that all move alike, and its share beyond a quarter of the diagonal.
    r90: float
    r90_same: float | None
    far_mass: float
    #: With respect to the inserted layers' input: share in other frames, share on the unit itself, and the spread
    #: (standard deviation / mean) over all other cells of the frame, before and after training.
    other_frames: float | None
    own: float | None
    spread: float | None
    spread_trained: float | None
    #: Accuracy at each largest distance, and its binomial standard error; None where it was not trained.
    accuracies: tuple[float, ...] | None
    errors: tuple[float, ...] | None
    #: Whether their mean is above chance by two standard errors.
    learned: bool | None
    passed: bool


def study(asked: StudyOptions) -> StudyFindings:
    """Measure all nets, train some, and see what they answer."""
    scale, widths = asked.pick(full=(PAPER, (64, 128, 256)), quick=(PAPER, (64, 128, 256)), smoke=(SMALL, NARROW))
    learning = asked.pick(full=tuple(VIDEO_NETS), quick=("I3D-S + SA",), smoke=("I3D-S + SA",))
    videos = [
        moving_digits(
            asked.pick(full=4, quick=1, smoke=1), 60 * scale.side / PAPER.side, scale, _numbers(asked, part), same=same
        )[0]
        for part, same in enumerate(asked.pick(full=(False, True), quick=(False,), smoke=(False,)))
    ]
    rows, maps = [], {}
    names = [name for name in VIDEO_NETS if name != "I3D-L" or asked.effort != "smoke"]
    for name in asked.each("syncmnist", names):
        net = video_net(name, scale.classes, widths=widths, seed=asked.seed).eval()
        narrow = trained(name, asked) if name in learning else None
        row, shown = _row(name, net, videos, narrow, asked)
        rows.append(row)
        maps[name] = shown
    return StudyFindings(
        columns=COLUMNS, rows=tuple(rows), conclusion=_conclusion(rows, asked), picture=_picture(rows, maps)
    )


def _numbers(asked: StudyOptions, part: int) -> np.random.Generator:
    return np.random.default_rng([asked.seed, part])


def _row(
    name: str, net: nn.Sequential, videos: Sequence[Tensor], narrow: nn.Sequential | None, asked: StudyOptions
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
    uniform = "GCN" not in name or (block["spread"] or 0.0) < UNIFORM
    accuracies = None if narrow is None else accuracies_of(narrow, asked)
    row = Row(
        name=name,
        parameters=sum(parameter.numel() for parameter in net.parameters()) / 1e6,
        parameters_published=PARAMETERS[name] / 1e6 if name in PARAMETERS else None,
        r90=float(frames[0]["r90"]),
        r90_same=float(frames[1]["r90"]) if len(frames) > 1 else None,
        far_mass=float(frames[0]["far_mass"]),
        **block,
        accuracies=accuracies,
        errors=(
            None if accuracies is None else tuple(math.sqrt(each * (1 - each) / scored(asked)) for each in accuracies)
        ),
        learned=None if accuracies is None else above_chance(accuracies, asked),
        passed=all(result.ok for result in frames) and not block["other_frames"] and uniform,
    )
    return row, shown


def _erf(net: nn.Module, x: Tensor, asked: StudyOptions, **where: str) -> Any:
    draws = asked.pick(full=2, quick=2, smoke=1)
    return erfscope.analyze(net, images=x, draws=draws, seed=asked.seed, measures=["r50", "r90", "far_mass"], **where)  # type: ignore[arg-type]


def of_block(result: erfscope.Result) -> dict[str, float | None]:
    """Return the shares of the ERF of inserted layers, (T, H, W), in other frames and on the unit, and its spread over
    the rest of the unit's frame."""
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


def _conclusion(rows: Sequence[Row], asked: StudyOptions) -> str:
    return f"{_on_frames(rows)} {_on_block(rows)} {_answered(rows, asked)}"


def _on_frames(rows: Sequence[Row]) -> str:
    """Say how much further nets with inserted layers look, before training."""
    plain, *others = (row for row in rows if row.name != "I3D-L")
    wider = ", ".join(f"{row.name} {row.r90:.1f} ({row.r90 / plain.r90 - 1:+.1%})" for row in others)
    widened = [row.name for row in others if row.r90 > WIDER * plain.r90]
    seen = f"seen with {' and '.join(widened)}" if widened else "not seen"
    return (
        f"That inserted layers widen the ERF on the frames is {seen} at random weights: r90 is {plain.r90:.1f} px for"
        f" {plain.name}, {wider}, where {WIDER - 1:.0%} would count."
    )


def _on_block(rows: Sequence[Row]) -> str:
    """Say where the unit of the inserted layers looks."""
    gcn, attention = (next(row for row in rows if row.name == f"I3D-S + {kind}") for kind in ("GCN", "SA"))
    outside = max(row.other_frames or 0.0 for row in (gcn, attention))
    frames = "on its own frame alone" if outside == 0 else f"{outside:.0e} of it on other frames"
    alike = "alike" if (gcn.spread or 0.0) < UNIFORM else "not alike"
    after = "" if attention.spread_trained is None else f", {attention.spread_trained:.0e} after training"
    return (
        f"With respect to what these layers receive the middle unit's ERF is {frames}; the fully connected GCN looks at"
        f" every other cell {alike} (spread {gcn.spread:.0e}; Theorem 1 has 0), self-attention by what is there (spread"
        f" {attention.spread:.0e} before{after})."
    )


def _answered(rows: Sequence[Row], asked: StudyOptions) -> str:
    """Say the accuracy at every distance, and how the nets were trained."""
    scored_rows = [row for row in rows if row.accuracies is not None and row.errors is not None]
    accuracies = "; ".join(
        f"{row.name}"
        f" {', '.join(f'{each:.0%}' for each in row.accuracies or ())}"
        f"{'' if row.learned else ', no better than chance'}"
        for row in scored_rows
    )
    error = max(each for row in scored_rows for each in row.errors or ())
    return (
        f"Accuracy of the small nets at distances {', '.join(map(str, DISTANCES))} ({SMALL.classes} classes where the"
        f" paper has {PAPER.classes}, {SMALL.digits} digits of {PAPER.digits}, {SMALL.frames} frames of {PAPER.frames},"
        f" {SMALL.side} px of {PAPER.side}; chance {1 / SMALL.classes:.0%}, {scored(asked)} videos each, standard"
        f" errors to {error:.0%}): {accuracies}.{_furthest(scored_rows)}"
    )


def _furthest(rows: Sequence[Row]) -> str:
    """Say whether inserted layers help at the largest distance, by two standard errors of the difference."""
    ends = {row.name: (row.accuracies[-1], row.errors[-1]) for row in rows if row.accuracies and row.errors}
    if "I3D-S" not in ends:
        return ""
    plain, error = ends["I3D-S"]
    better = [name for name, (found, own) in ends.items() if "+" in name and found - plain > 2 * math.hypot(error, own)]
    return (
        f" At {DISTANCES[-1]} px {' and '.join(better) or 'neither graph nor attention layers'} do better than I3D-S"
        " alone."
    )


def _picture(rows: Sequence[Row], maps: dict[str, list[tuple[str, FloatArray]]]) -> Picture:
    curves = tuple(
        Curve(
            label=row.name,
            x=DISTANCES,
            y=[100 * each for each in row.accuracies],
            error=[100 * each for each in row.errors],
        )
        for row in rows
        if row.accuracies and row.errors
    )
    chart = Chart(
        title="Accuracy, small nets", x="largest distance (px)", y="%", curves=curves, marks=(("chance", 25.0),)
    )
    frames = tuple(
        Shown(title=name.replace("I3D-S +", "+"), values=shown[0][1], log=True) for name, shown in maps.items()
    )
    blocks = tuple(
        Shown(title=f"{name.replace('I3D-S +', '+')}, {what}", values=values)
        for name, shown in maps.items()
        for what, values in shown[1:]
    )
    note = (
        "Maps: ERF of the middle unit at random weights on the frames, summed over time; and on the inserted layers'"
        " input, no unit."
    )
    return Picture(title="SyncMNIST: how far video nets look", rows=(frames, (chart, *blocks)), note=note)


def _accuracy_at(place: int) -> Callable[[Row], str]:
    return lambda row: (
        "-"
        if not row.accuracies or not row.errors
        else f"{100 * row.accuracies[place]:.0f}±{100 * row.errors[place]:.0f}"
    )


COLUMNS = (
    Column(title="net", text=lambda row: row.name, numeric=False),
    Column(title="M par.", text=lambda row: f"{row.parameters:.2f}"),
    Column(title="publ.", text=lambda row: cell(row.parameters_published, ".1f", "-")),
    Column(title="r90 px", text=lambda row: f"{row.r90:.1f}"),
    Column(title="alike", text=lambda row: cell(row.r90_same, ".1f", "-"), optional=True),
    Column(title="others", text=lambda row: cell(row.other_frames, ".0%", "-"), optional=True),
    Column(title="own", text=lambda row: cell(row.own, ".0%", "-"), optional=True),
    Column(title="spread", text=lambda row: cell(row.spread, ".0e", "-")),
    Column(title="after", text=lambda row: cell(row.spread_trained, ".0e", "-"), optional=True),
    *(Column(title=f"% ≤{distance}", text=_accuracy_at(place)) for place, distance in enumerate(DISTANCES)),
)

"""``syncmnist``: which two of five moving digits are in step? How far video nets look, with graph and attention layers
and without.

The ERF of the middle of the middle frame, with respect to the frames and to what the inserted layers receive
(Nicolicioiu & Duta, section 4.2), and accuracy against the digits' distance. Nets and videos are of the paper's size
where ERFs at random weights are measured. Those that are trained are a quarter as wide, on videos half as large with
three digits: four classes, where the paper has 46."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.studies.study import (
    Claim,
    Column,
    Row,
    StudyFindings,
    StudyOptions,
    claim,
    error_of_mean,
    measure,
    percent,
)
from erfscope.studies.video.moving_digits import moving_digits
from erfscope.studies.video.video_nets import (
    DISTANCES,
    NARROW,
    PAPER,
    PARAMETERS,
    SMALL,
    VIDEO_NETS,
    right_answers,
    trained,
    video_net,
)

#: The numbers of what trained nets answer, where none was trained.
UNTRAINED = dict.fromkeys(("accuracies", "errors", "gains", "gain_se", "seen", "history", "learned"))
#: The least ratio of r90 of a wider ERF, and the largest spread over cells of an ERF that is uniform over them.
WIDER, UNIFORM = 1.1, 1e-6


def study(asked: StudyOptions) -> StudyFindings:
    """Measure all nets, train some, and see what they answer."""
    scale, widths = (SMALL, NARROW) if asked.effort == "smoke" else (PAPER, (64, 128, 256))
    learning = asked.pick(
        long=("I3D-S", "I3D-S + GCN", "I3D-S + SA"),
        full=tuple(VIDEO_NETS),
        quick=("I3D-S + SA",),
        smoke=("I3D-S + SA",),
    )
    count, kinds = asked.pick(full=(4, (False, True)), quick=(1, (False,)), smoke=(1, (False,)))
    videos = [
        moving_digits(count, 60 * scale.side / PAPER.side, scale, _numbers(asked, part), same=same)[0]
        for part, same in enumerate(kinds)
    ]
    rows, plain = [], None
    for name in asked.each("syncmnist", [name for name in VIDEO_NETS if name != "I3D-L" or asked.effort != "smoke"]):
        net = video_net(name, scale.classes, widths=widths, seed=asked.seed).eval()
        first, answered, right = _answers(name, asked, plain) if name in learning else (None, UNTRAINED, None)
        plain = right if name == "I3D-S" else plain
        rows.append(_row(name, net, videos, first, answered, asked))
    return StudyFindings(columns=COLUMNS, rows=rows, claims=_claims(rows), picture=_picture(rows))


def _answers(
    name: str, asked: StudyOptions, plain: FloatArray | None
) -> tuple[nn.Sequential, dict[str, Any], FloatArray]:
    """Train nets of one kind, of several seeds if long.

    Args:
        name: One of :data:`VIDEO_NETS`.
        asked: Effort.
        plain: Which answers of the plain nets are right; None if it is not trained, or this is it.

    Returns:
        The first net, the numbers of their row, and which answers are right, 0 or 1, (nets, 4 distances, videos).
    """
    nets, histories = zip(
        *(trained(name, asked, number) for number in range(asked.pick(long=3, full=1, quick=1, smoke=1))), strict=True
    )
    right = np.stack([right_answers(net, asked) for net in nets])
    more = None if plain is None else right[:, -1] - plain[:, -1]
    chance = 1 / SMALL.classes
    sure = chance + 2 * math.sqrt(chance * (1 - chance) / right.size)
    numbers = (
        # Accuracy at each largest distance, a mean over nets, and its standard error.
        tuple(right.mean((0, 2)).tolist()),
        tuple(error_of_mean(right[:, place]) for place in range(len(DISTANCES))),
        # How much more often each net is right at the largest distance than the plain net, and the mean's error.
        None if more is None else tuple(more.mean(1).tolist()),
        None if more is None else error_of_mean(more),
        # Videos seen after each epoch, and the accuracy at the largest distance, a mean over nets, on other videos.
        tuple(histories[0]),
        tuple(np.mean([list(each.values()) for each in histories], 0).tolist()),
        # Whether the mean accuracy is above chance by two standard errors.
        bool(right.mean() > sure),
    )
    return nets[0], dict(zip(UNTRAINED, numbers, strict=True)), right


def _numbers(asked: StudyOptions, part: int) -> np.random.Generator:
    return np.random.default_rng([asked.seed, part])


def _row(
    name: str,
    net: nn.Sequential,
    videos: Sequence[Tensor],
    taught: nn.Sequential | None,
    answered: dict[str, Any],
    asked: StudyOptions,
) -> Row:
    frames = [_erf(net, x, asked, layer="stage3") for x in videos]
    maps = {"frames": frames[0].map.plane.values}
    block: dict[str, float | None] = {"other_frames": None, "own": None, "spread": None}
    small, spread_after, word = moving_digits(4, 30, SMALL, _numbers(asked, 2))[0], None, "block"
    if "+" in name:
        found = _erf(net, videos[0], asked, layer="block", wrt="block:in")
        block = of_block(found)
        if taught is not None:
            found, word = _erf(taught, small, asked, layer="block", wrt="block:in"), "block, trained"
            spread_after = of_block(found)["spread"]
        frame, *cell = found.unit.index
        maps[word] = np.array(found.map.values[frame])
        maps[word][tuple(cell)] = 0
    return Row(
        name=name,
        # In millions.
        parameters=sum(parameter.numel() for parameter in net.parameters()) / 1e6,
        parameters_published=PARAMETERS[name] / 1e6 if name in PARAMETERS else None,
        # With respect to the frames, before training: radius in pixels of 90 % of the ERF on videos of any kind, and on
        # those that all move alike.
        r90=float(frames[0]["r90"]),
        r90_same=float(frames[1]["r90"]) if len(frames) > 1 else None,
        # The same after training, on small videos; None where none was trained.
        r90_trained=None if taught is None else float(_erf(taught, small, asked, layer="stage3")["r90"]),
        # With respect to the inserted layers' input: share in other frames, share on the unit itself, and the spread
        # (standard deviation / mean) over all other cells of the frame, before and after training.
        **block,
        spread_trained=spread_after,
        # What trained nets of this kind answer; None where none was trained.
        **answered,
        passed=all(result.ok for result in frames)
        and not block["other_frames"]
        and ("GCN" not in name or (block["spread"] or 0.0) < UNIFORM),
        maps=maps,
    )


def _erf(net: nn.Module, x: Tensor, asked: StudyOptions, **where: str) -> Any:
    draws = asked.pick(full=2, quick=2, smoke=1)
    return measure(net, images=x, draws=draws, seed=asked.seed, measures=["r90"], **where)


def of_block(result: Any) -> dict[str, float | None]:
    """Return the shares of the ERF of inserted layers, (T, H, W), in other frames and on the unit, and its spread over
    the rest of the unit's frame."""
    values, (frame, row, col) = result.map.values, result.unit.index
    rest = np.delete(values[frame].ravel(), row * values.shape[2] + col)
    others = float(np.delete(values, frame, 0).sum())
    return {"other_frames": others, "own": float(values[frame, row, col]), "spread": float(rest.std() / rest.mean())}


def _claims(rows: Sequence[Row]) -> list[Claim]:
    by_name = {row.name: row for row in rows}
    plain, gcn, attention = (by_name[f"I3D-S{more}"] for more in ("", " + GCN", " + SA"))
    scale = f"{SMALL.classes} classes of {PAPER.classes}, chance {1 / SMALL.classes:.0%}"
    claims = []
    for row in (gcn, attention):
        wider = f"{row.r90:.1f} px of {plain.r90:.1f} ({row.r90 / plain.r90 - 1:+.1%})"
        text = f"{row.name} has a wider ERF on the frames than I3D-S, random weights"
        claims.append(claim(text, "wider", wider, row.r90 > WIDER * plain.r90, has_mechanism=row.r90 > plain.r90))
        outside = row.other_frames or 0.0
        claims.append(claim(f"{row.name} looks at its own frame alone", "0 elsewhere", f"{outside:.0e}", outside == 0))
    after = "" if attention.spread_trained is None else f", {attention.spread_trained:.0e} after training"
    looks = f"{attention.spread:.0e}{after}"
    claims += [
        claim("the GCN looks at every other cell alike: spread", "0 (Theorem 1)", f"{gcn.spread:.0e}", gcn.passed),
        claim("self-attention looks by what is there: spread", "above 0", looks, (attention.spread or 0.0) > UNIFORM),
    ]
    for row in (row for row in rows if row.accuracies is not None):
        near, far = (percent(row.accuracies[end], row.errors[end]) for end in (0, -1))
        fell, error = row.accuracies[0] - row.accuracies[-1], math.hypot(row.errors[0], row.errors[-1])
        text = f"{row.name} answers less often the further digits are apart, {DISTANCES[0]} and {DISTANCES[-1]} px"
        claims.append(claim(text, "falls", f"{near}, {far} ({scale})", row.learned and fell > 2 * error))
        if "+" in row.name and row.gains is not None:
            gain, each = float(np.mean(row.gains)), ", ".join(f"{100 * one:+.1f}" for one in row.gains)
            text = f"{row.name} answers more often than I3D-S at {DISTANCES[-1]} px, same videos"
            ours = f"{100 * gain:+.1f} ± {100 * row.gain_se:.1f} points" + (
                f" (nets: {each})" if len(row.gains) > 1 else ""
            )
            claims.append(claim(text, "more often", ours, gain > 2 * row.gain_se))
    return claims


def _picture(rows: Sequence[Row]) -> Picture:
    curves = tuple(
        Curve(
            label=row.name,
            x=DISTANCES,
            y=[100 * each for each in row.accuracies],
            error=[100 * each for each in row.errors],
        )
        for row in rows
        if row.accuracies
    )
    title, chance = "Accuracy, small nets", (("chance", 25.0),)
    chart = Chart(title=title, x="largest distance (px)", y="%", curves=curves, marks=chance)
    learning = tuple(
        Curve(label=row.name, x=[count / 1000 for count in row.seen], y=[100 * each for each in row.history])
        for row in rows
        if row.history
    )
    title = f"Learning, {DISTANCES[-1]} px"
    curve = Chart(title=title, x="videos seen (thousands)", y="% of other videos", curves=learning, marks=chance)
    names = {row.name: row.name.replace("I3D-S +", "+") for row in rows}
    frames = tuple(Shown(title=names[row.name], values=row.maps["frames"], log=True) for row in rows)
    blocks = tuple(
        Shown(title=f"{names[row.name]}, {what}", values=values)
        for row in rows
        for what, values in row.maps.items()
        if what != "frames"
    )
    note = (
        "Maps: ERF of the middle unit at random weights on the frames, summed over time; and on the inserted layers'"
        " input, no unit."
    )
    return Picture(title="SyncMNIST: how far video nets look", rows=(frames, (chart, curve, *blocks)), note=note)


def _accuracy(row: Row, place: int) -> str:
    return "-" if not row.accuracies else f"{100 * row.accuracies[place]:.0f}±{100 * row.errors[place]:.0f}"


COLUMNS = (
    Column("net", "{name}", numeric=False),
    Column("M par.", "{parameters:.2f}"),
    Column("publ.", "{parameters_published:.1f}", none="-"),
    Column("r90 px", "{r90:.1f}"),
    Column("alike", "{r90_same:.1f}", optional=True, none="-"),
    Column("trained", "{r90_trained:.1f}", optional=True, none="-"),
    Column("others", "{other_frames:.0%}", optional=True, none="-"),
    Column("own", "{own:.0%}", optional=True, none="-"),
    Column("spread", "{spread:.0e}", none="-"),
    Column("after", "{spread_trained:.0e}", optional=True, none="-"),
    *(Column(f"% ≤{distance}", partial(_accuracy, place=place)) for place, distance in enumerate(DISTANCES)),
)

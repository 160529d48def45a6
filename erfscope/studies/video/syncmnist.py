"""``syncmnist``: which two of five moving digits are in step? How far video nets look, with graph and attention layers
and without.

The ERF of the middle of the middle frame, with respect to the frames and to what the inserted layers receive
(Nicolicioiu & Duta, section 4.2), and accuracy against the digits' distance. Nets and videos are of the paper's size
where ERFs at random weights are measured. Those that are trained are a quarter as wide, on videos half as large with
three digits: four classes, where the paper has 46."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    measure,
    share_with_error,
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
        taught = _taught(name, asked, plain) if name in learning else None
        plain = taught.right if taught and plain is None else plain
        rows.append(_row(name, net, videos, taught, asked))
    return StudyFindings(columns=COLUMNS, rows=rows, claims=_claims(rows), picture=_picture(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taught:
    """Nets of one kind that were trained, and what they answer."""

    first: nn.Sequential
    #: Which answers are right, 0 or 1, (nets, 4 distances, videos).
    right: FloatArray
    #: Accuracy at the largest distance after each epoch, a mean over nets.
    history: tuple[float, ...]
    #: How much more often each net answers right at the largest distance than the plain net of its number; None for it.
    gains: tuple[float, ...] | None = None
    #: Standard error of their mean: over nets or over videos, whichever is larger.
    gain_se: float | None = None


def _taught(name: str, asked: StudyOptions, plain: FloatArray | None) -> _Taught:
    """Train nets of one kind, of several seeds if long."""
    nets, histories = zip(
        *(
            trained(name, asked, number)
            for number in asked.pick(long=range(3), full=range(1), quick=range(1), smoke=range(1))
        ),
        strict=True,
    )
    right = np.stack([right_answers(net, asked) for net in nets])
    found = _Taught(first=nets[0], right=right, history=tuple(np.mean(histories, 0).tolist()))
    if plain is None:
        return found
    more = right[:, -1] - plain[:, -1]
    errors = [more.mean(0).std(ddof=1) / math.sqrt(more.shape[1])]
    errors += [more.mean(1).std(ddof=1) / math.sqrt(len(more))] if len(more) > 1 else []
    return replace(found, gains=tuple(more.mean(1).tolist()), gain_se=float(max(errors)))


def _numbers(asked: StudyOptions, part: int) -> np.random.Generator:
    return np.random.default_rng([asked.seed, part])


def _row(name: str, net: nn.Sequential, videos: Sequence[Tensor], taught: _Taught | None, asked: StudyOptions) -> Row:
    frames = [_erf(net, x, asked, layer="stage3") for x in videos]
    maps = {"frames": frames[0].map.plane.values}
    block: dict[str, float | None] = {"other_frames": None, "own": None, "spread": None}
    spread_after, word = None, "block"
    if "+" in name:
        found = _erf(net, videos[0], asked, layer="block", wrt="block:in")
        block = of_block(found)
        if taught:
            x = moving_digits(4, 30, SMALL, _numbers(asked, 2))[0]
            found, word = _erf(taught.first, x, asked, layer="block", wrt="block:in"), "block, trained"
            spread_after = of_block(found)["spread"]
        frame, *cell = found.unit.index
        maps[word] = np.array(found.map.values[frame])
        maps[word][tuple(cell)] = 0
    accuracies = tuple(taught.right.mean((0, 2)).tolist()) if taught else None
    answers, chance = taught.right.size // len(DISTANCES) if taught else 0, 1 / SMALL.classes
    return Row(
        name=name,
        # In millions.
        parameters=sum(parameter.numel() for parameter in net.parameters()) / 1e6,
        parameters_published=PARAMETERS[name] / 1e6 if name in PARAMETERS else None,
        # With respect to the frames, before training: radius in pixels of 90 % of the ERF on videos of any kind, and on
        # those that all move alike, and its share beyond a quarter of the diagonal.
        r90=float(frames[0]["r90"]),
        r90_same=float(frames[1]["r90"]) if len(frames) > 1 else None,
        far_mass=float(frames[0]["far_mass"]),
        # With respect to the inserted layers' input: share in other frames, share on the unit itself, and the spread
        # (standard deviation / mean) over all other cells of the frame, before and after training.
        **block,
        spread_trained=spread_after,
        # Accuracy at each largest distance, a mean over nets, and its binomial standard error; None where none was
        # trained.
        accuracies=accuracies,
        errors=accuracies and tuple(math.sqrt(each * (1 - each) / answers) for each in accuracies),
        answers=answers,
        # How much more often each net is right at the largest distance than the plain net, and the mean's error.
        gains=taught and taught.gains,
        gain_se=taught and taught.gain_se,
        # Accuracy at the largest distance after each epoch, a mean over nets, on other videos.
        history=taught and taught.history,
        # Whether their mean is above chance by two standard errors.
        learned=accuracies
        and float(np.mean(accuracies)) > chance + 2 * math.sqrt(chance * (1 - chance) / (len(DISTANCES) * answers)),
        passed=all(result.ok for result in frames)
        and not block["other_frames"]
        and ("GCN" not in name or (block["spread"] or 0.0) < UNIFORM),
        maps=maps,
    )


def _erf(net: nn.Module, x: Tensor, asked: StudyOptions, **where: str) -> Any:
    draws = asked.pick(full=2, quick=2, smoke=1)
    return measure(net, images=x, draws=draws, seed=asked.seed, measures=["r50", "r90", "far_mass"], **where)


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
        near, far = (share_with_error(row.accuracies[end], row.answers) for end in (0, -1))
        text = f"{row.name} answers less often the further digits are apart, {DISTANCES[0]} and {DISTANCES[-1]} px"
        falls = row.learned and row.accuracies[0] > row.accuracies[-1]
        claims.append(claim(text, "falls", f"{near}, {far} ({scale})", falls))
        if "+" in row.name and row.gains is not None:
            gain, each = float(np.mean(row.gains)), ", ".join(f"{100 * one:+.1f}" for one in row.gains)
            text = f"{row.name} answers more often than I3D-S at {DISTANCES[-1]} px, same videos"
            ours = f"{100 * gain:+.1f} ± {100 * row.gain_se:.1f} points" + (
                f" (nets: {each})" if len(row.gains) > 1 else ""
            )
            claims.append(claim(text, "more often", ours, gain > 2 * row.gain_se, has_mechanism=gain > 0))
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
        Curve(label=row.name, x=range(1, len(row.history) + 1), y=[100 * each for each in row.history])
        for row in rows
        if row.history
    )
    title = f"Learning, at {DISTANCES[-1]} px"
    curve = Chart(title=title, x="epoch", y="%", curves=learning, marks=chance)
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
    Column("others", "{other_frames:.0%}", optional=True, none="-"),
    Column("own", "{own:.0%}", optional=True, none="-"),
    Column("spread", "{spread:.0e}", none="-"),
    Column("after", "{spread_trained:.0e}", optional=True, none="-"),
    *(Column(f"% ≤{distance}", partial(_accuracy, place=place)) for place, distance in enumerate(DISTANCES)),
)

"""SyncMNIST: moving digits, two of them in step. The class is which two, or that no two are.

Source: Duta & Nicolicioiu 2019, arXiv:1904.05582, and Nicolicioiu & Duta, section 4.2; a font of 5 x 7 pixels stands in
for MNIST."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
    result_with_map,
)
from erfscope.apps.lab.studies.training import batches, one_cycle, seeded, train
from erfscope.core import FloatArray
from erfscope.show import Chart, ChartMap, Curve, Picture

#: Rows of 0 to 9, five pixels each, as bits.
GLYPHS = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large videos are."""

    frames: int = 10
    side: int = 128
    #: A digit is this many times 7 pixels high and wide.
    zoom: int = 2
    #: Digits in a video, all different, out of this many.
    digits: int = 5
    symbols: int = 10

    @property
    def classes(self) -> int:
        """Pairs of digits, and none."""
        return self.symbols * (self.symbols - 1) // 2 + 1


def moving_digits(
    count: int, distance: float, scale: Scale, generator: np.random.Generator, *, same: bool = False
) -> tuple[Tensor, Tensor]:
    """Videos (count, 1, T, H, W) of 0 and 1, and their classes (count,); the last class is that of none in step.

    Args:
        count: How many.
        distance: The largest distance in pixels between the two digits in step.
        scale: How large videos are.
        generator: Source of randomness.
        same: Whether digits stand and move alike in all videos, the first pair in step, so that only what they are
            differs.
    """
    pairs = list(itertools.combinations(range(scale.symbols), 2))
    videos, classes = (
        np.zeros((count, 1, scale.frames, scale.side, scale.side), dtype=np.float32),
        np.zeros(count, dtype=np.int64),
    )
    paths = _paths(True, distance, scale, generator)
    for number in range(count):
        chosen = generator.permutation(scale.symbols)[: scale.digits]
        # The paper's classes are equally frequent.
        in_step = same or int(generator.integers(scale.classes)) < len(pairs)
        if not same:
            paths = _paths(in_step, distance, scale, generator)
        for path, digit in zip(paths, chosen, strict=True):
            _draw(videos[number, 0], glyph(int(digit), scale.zoom), path)
        pair = (int(min(chosen[:2])), int(max(chosen[:2])))
        classes[number] = pairs.index(pair) if in_step else len(pairs)
    return torch.from_numpy(videos), torch.from_numpy(classes)


def glyph(digit: int, zoom: int) -> NDArray[np.float32]:
    """A digit in a square of 7 * zoom pixels, 0 and 1."""
    bits = np.array([[0, *(row >> bit & 1 for bit in range(4, -1, -1)), 0] for row in GLYPHS[digit]])
    return np.kron(bits, np.ones((zoom, zoom))).astype(np.float32)


def _paths(in_step: bool, distance: float, scale: Scale, generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """Where the digits' corners are, (T, 2) each; the first two move alike where they are in step."""
    paths = [_walk(scale, generator) for _ in range(scale.digits)]
    size = 7 * scale.zoom
    while in_step:
        # The second starts within the distance of the first, in whole pixels, and takes the same steps; another draw
        # where that leaves the frame.
        angle, length = generator.uniform(0, 2 * np.pi), generator.uniform(min(size, distance), distance)
        paths[0] = _walk(scale, generator)
        apart = np.rint([length * np.sin(angle), length * np.cos(angle)]).astype(np.int64)
        paths[1] = paths[0] + apart
        if np.hypot(*apart) <= distance and paths[1].min() >= 0 and paths[1].max() <= scale.side - size:
            break
    return paths


def _walk(scale: Scale, generator: np.random.Generator) -> NDArray[np.int64]:
    """A random walk that stays inside the frame."""
    reach, room = max(scale.side // 20, 1), scale.side - 7 * scale.zoom
    while True:
        steps = generator.integers(-reach, reach + 1, (scale.frames, 2))
        path: NDArray[np.int64] = generator.integers(0, room + 1, 2) + steps.cumsum(0)
        if path.min() >= 0 and path.max() <= room:
            return path


def _draw(video: NDArray[np.float32], digit: NDArray[np.float32], path: NDArray[np.int64]) -> None:
    size = len(digit)
    for frame, (row, col) in zip(video, path, strict=True):
        patch = frame[row : row + size, col : col + size]
        np.maximum(patch, digit, out=patch)


#: Name -> blocks per stage, and the layers behind the second stage.
VIDEO_NETS = {"I3D-S": (2, None), "I3D-L": (3, None), "I3D-S + GCN": (2, "gcn"), "I3D-S + SA": (2, "attention")}
PARAMETERS = {"I3D-S": 4.1e6, "I3D-L": 6.1e6}
#: The paper's largest distances, in pixels; half of these in the smaller videos.
DISTANCES = (20, 60, 80, 100)
#: The paper's videos, and those that nets are trained on at a scale that fits two cores; channels of those nets.
PAPER, SMALL = Scale(), Scale(frames=6, side=64, zoom=1, digits=3, symbols=3)
NARROW = (16, 32, 64)
#: Largest learning rate.
RATE = 2e-3


class Residual(nn.Module):
    """ReLU(x + two times (3 x 3 in space, 3 in time)); a strided 1 x 1 x 1 convolution beside it where the shape
    changes.

    Args:
        in_channels: c of the input.
        out_channels: c of the output.
        stride: In time, rows and columns.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: tuple[int, int, int] = (1, 1, 1)) -> None:
        super().__init__()
        self.first = _separated(in_channels, out_channels, stride)
        self.second = _separated(out_channels, out_channels, (1, 1, 1))
        same = in_channels == out_channels and stride == (1, 1, 1)
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv3d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm3d(out_channels)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, c, T, H, W) -> (B, c', T', H', W')."""
        y: Tensor = self.second(torch.relu(self.first(x)))
        return torch.relu(self.skip(x) + y)


def video_net(name: str, classes: int, *, widths: Sequence[int] = (64, 128, 256), seed: int = 0) -> nn.Sequential:
    """One of :data:`VIDEO_NETS` at random weights, videos (B, 1, T, H, W) -> logits.

    Args:
        name: Which.
        classes: How many logits.
        widths: Channels of the three stages.
        seed: Of the weights.
    """
    blocks, kind = VIDEO_NETS[name]
    with seeded(seed):
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            stem=nn.Sequential(
                nn.Conv3d(1, widths[0], (1, 5, 5), stride=(1, 2, 2), padding=(0, 2, 2), bias=False),
                nn.BatchNorm3d(widths[0]),
                nn.ReLU(),
                nn.MaxPool3d((1, 2, 2)),
            ),
            stage1=_stage(widths[0], widths[0], blocks, (1, 1, 1)),
            stage2=_stage(widths[0], widths[1], blocks, (2, 2, 2)),
        )
        if kind == "gcn":
            parts["block"] = adapters.blocks.Pipeline(
                widths[1], lambda c: adapters.blocks.GCN(c, c, 1, graph="full"), inner=32, layers=2, act="relu"
            )
        if kind == "attention":
            parts["block"] = adapters.blocks.Pipeline(
                widths[1], lambda c: adapters.blocks.SelfAttention(c), inner=32, layers=2
            )
        parts["stage3"] = _stage(widths[1], widths[2], blocks, (1, 2, 2))
        parts.update(pool=nn.AdaptiveAvgPool3d(1), flat=nn.Flatten(), head=nn.Linear(widths[2], classes))
    return nn.Sequential(parts)


def _stage(in_channels: int, out_channels: int, blocks: int, stride: tuple[int, int, int]) -> nn.Sequential:
    first = Residual(in_channels, out_channels, stride)
    return nn.Sequential(first, *(Residual(out_channels, out_channels) for _ in range(blocks - 1)))


def _separated(in_channels: int, out_channels: int, stride: tuple[int, int, int]) -> nn.Sequential:
    time, down, across = stride
    return nn.Sequential(
        nn.Conv3d(in_channels, out_channels, (1, 3, 3), stride=(1, down, across), padding=(0, 1, 1), bias=False),
        nn.BatchNorm3d(out_channels),
        nn.ReLU(),
        nn.Conv3d(out_channels, out_channels, (3, 1, 1), stride=(time, 1, 1), padding=(1, 0, 0), bias=False),
        nn.BatchNorm3d(out_channels),
    )


def trained(name: str, asked: StudyOptions, number: int = 0) -> tuple[nn.Sequential, dict[int, float]]:
    """A narrow net, trained on small videos of all distances, and its accuracy at the largest one by the videos seen.

    Args:
        name: One of :data:`VIDEO_NETS`.
        asked: Effort of the training, and the folder where nets are kept.
        number: Nets of one number and of different names start from the same seed, and see the same videos.
    """
    net = video_net(name, SMALL.classes, widths=NARROW, seed=asked.seed + number)
    count, epochs = asked.pick(long=(4800, 50), full=(384, 24), quick=(128, 4), smoke=(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)

    def losses(epoch: int) -> Iterator[Tensor]:
        made = [small_videos(count // len(DISTANCES), distance, asked, 100 + epoch, number) for distance in DISTANCES]
        videos, classes = (torch.cat(part) for part in zip(*made, strict=True))
        videos = videos.to(memory_format=torch.channels_last_3d)  # 1.3 times as fast
        parts = batches(len(videos), 32, epoch)
        for done, some in enumerate(parts):
            one_cycle(optimizer, RATE, (epoch + (done + 0.5) / len(parts)) / epochs)
            yield F.cross_entropy(net(videos[some]), classes[some])

    checked = small_videos(asked.pick(long=400, full=100, quick=50, smoke=20), DISTANCES[-1], asked, 20)

    def measured() -> dict[str, float]:
        return {"far": float(_right(net.eval(), *checked).mean())}

    kept = f"syncmnist-{name.replace(' + ', '-')}-{number + 1}"
    history = train(asked, kept, net, optimizer, epochs, losses, measured=measured, videos=count)
    return net, {count * (epoch + 1): entry["far"] for epoch, entry in enumerate(history)}


def small_videos(count: int, distance: float, asked: StudyOptions, part: int, number: int = 0) -> tuple[Tensor, Tensor]:
    """Videos and their classes, at one of :data:`DISTANCES`; parts and numbers differ in their random numbers."""
    generator = np.random.default_rng([asked.seed, part, round(distance), *([number] if number else [])])
    return moving_digits(count, distance * SMALL.side / PAPER.side, SMALL, generator)


def right_answers(net: nn.Sequential, asked: StudyOptions) -> FloatArray:
    """Return which videos' classes are right at each of :data:`DISTANCES`, 0 or 1, (4, videos)."""
    count = asked.pick(long=1000, full=400, quick=100, smoke=20)
    return np.stack([_right(net, *small_videos(count, distance, asked, 10)) for distance in DISTANCES])


def _right(net: nn.Sequential, videos: Tensor, classes: Tensor) -> FloatArray:
    with torch.no_grad():
        answers = torch.cat([net(some).argmax(1) for some in torch.split(videos, 50)])
    return np.asarray((answers == classes).double().numpy())


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
) -> StudyRow:
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
    return StudyRow(
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
    return result_with_map(net, images=x, draws=draws, seed=asked.seed, measures=["r90"], **where)


def of_block(result: Any) -> dict[str, float | None]:
    """Return the shares of the ERF of inserted layers, (T, H, W), in other frames and on the unit, and its spread over
    the rest of the unit's frame."""
    values, (frame, row, col) = result.map.values, result.unit.index
    rest = np.delete(values[frame].ravel(), row * values.shape[2] + col)
    others = float(np.delete(values, frame, 0).sum())
    return {"other_frames": others, "own": float(values[frame, row, col]), "spread": float(rest.std() / rest.mean())}


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
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


def _picture(rows: Sequence[StudyRow]) -> Picture:
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
    frames = tuple(ChartMap(title=names[row.name], values=row.maps["frames"], log=True) for row in rows)
    blocks = tuple(
        ChartMap(title=f"{names[row.name]}, {what}", values=values)
        for row in rows
        for what, values in row.maps.items()
        if what != "frames"
    )
    note = (
        "Maps: ERF of the middle unit at random weights on the frames, summed over time; and on the inserted layers'"
        " input, no unit."
    )
    return Picture(title="SyncMNIST: how far video nets look", rows=(frames, (chart, curve, *blocks)), note=note)


def _accuracy(row: StudyRow, place: int) -> str:
    return "-" if not row.accuracies else f"{100 * row.accuracies[place]:.0f}±{100 * row.errors[place]:.0f}"


COLUMNS = (
    StudyColumn("net", "{name}", numeric=False),
    StudyColumn("M par.", "{parameters:.2f}"),
    StudyColumn("publ.", "{parameters_published:.1f}", none="-"),
    StudyColumn("r90 px", "{r90:.1f}"),
    StudyColumn("alike", "{r90_same:.1f}", optional=True, none="-"),
    StudyColumn("trained", "{r90_trained:.1f}", optional=True, none="-"),
    StudyColumn("others", "{other_frames:.0%}", optional=True, none="-"),
    StudyColumn("own", "{own:.0%}", optional=True, none="-"),
    StudyColumn("spread", "{spread:.0e}", none="-"),
    StudyColumn("after", "{spread_trained:.0e}", optional=True, none="-"),
    *(StudyColumn(f"% ≤{distance}", partial(_accuracy, place=place)) for place, distance in enumerate(DISTANCES)),
)

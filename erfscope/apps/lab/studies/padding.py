"""Images of a red and a green box: red is left of green in the upper half, or green left of red in the lower half.

Swapping the halves tells whether a net reads the order or the position. Source: Kayhan & van Gemert 2020,
arXiv:2003.07064, section 4.2, with their sizes in pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope
from erfscope.apps.lab.studies.study import (
    Claim,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyRow,
    claim,
    points,
    share_with_error,
)
from erfscope.apps.lab.studies.training import batches, seeded, train
from erfscope.show import Chart, ChartMap, Curve, Picture

#: Side of an image of boxes, side of a box, first row of the boxes of either class, to which -4 ... 3 is added.
PICTURE, BOX, OFFSETS, SPREAD = 32, 4, (7, 23), 4
#: The left box begins in one of so many columns, the right one anywhere behind it.
LEFTS = 10


def red_green(count: int, generator: torch.Generator, *, swapped: bool = False) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 32, 32) of 0 and 1, and their classes: 0 for red left of green.

    Args:
        count: How many.
        generator: Source of randomness.
        swapped: Whether each class is in the half of the other.
    """
    classes = torch.arange(count) % 2
    tops = torch.tensor(OFFSETS)[1 - classes if swapped else classes]
    left, gap = torch.randint(0, LEFTS, (count,), generator=generator), BOX + 1
    right = left + gap + (torch.rand(count, generator=generator) * (PICTURE - BOX - gap - left)).long()
    rows = tops + torch.randint(-SPREAD, SPREAD, (2, count), generator=generator)
    cells, pictures = torch.arange(PICTURE), torch.zeros(count, 3, PICTURE, PICTURE)
    for colour, column, row in ((classes, left, rows[0]), (1 - classes, right, rows[1])):
        down = ((cells >= row[:, None]) & (cells < row[:, None] + BOX))[:, :, None]
        across = ((cells >= column[:, None]) & (cells < column[:, None] + BOX))[:, None]
        pictures[torch.arange(count), colour] += (down & across).float()
    return pictures, classes


def circular_limit() -> float:
    """Return the largest accuracy that a net with circular padding can have, whose strides multiply to 8.

    What it answers does not change when an image is shifted around by 8 px. So all that tells the class is how far the
    green box is right of the red one, modulo the image's side, and where the red one is modulo 8: a net that knows how
    often each pair occurs in either class takes the more frequent class.
    """
    often = np.zeros((2, 8, PICTURE))
    for left in range(LEFTS):
        rights = np.arange(left + BOX + 1, PICTURE - BOX)
        for right in rights:
            often[0, left % 8, right - left] += 1 / len(rights)
            often[1, right % 8, left - right] += 1 / len(rights)
    return float(often.max(0).sum() / often.sum())


PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
#: Padding -> PyTorch's name of it, how wide it is for a kernel of 3, the boundary-bias indices of the kernels [1, 1, 1]
#: and [1, 1, 0], and the report's accuracy with the two classes swapped, in percent.
PADDINGS: dict[str, tuple[PaddingMode, int, float, float, float]] = {
    "replicate": ("replicate", 1, 0.0, 1 / 2, 93.8),
    "full": ("zeros", 2, 0.0, 0.0, 88.9),
    "circular": ("circular", 1, 0.0, 0.0, 82.6),
    "zero": ("zeros", 1, 1 / 3, 1 / 2, 6.4),
    "valid": ("zeros", 0, 2 / 3, 1.0, 0.1),
    "reflect": ("reflect", 1, 1 / 3, 1 / 2, 0.0),
}
#: Layers of the stack whose ERFs are shown, and the side of its input, which is odd to have a middle.
DEPTH, SIDE = 4, 21
#: Two units that no border reaches, counted in the map of a layer of the input's size.
INTERIOR = ((8, 8), (10, 11))
#: How far a closed form may be off.
EXACT = 1e-12
PLACES = ("centre", "edge", "corner")
#: Images that Net1 is scored on.
SCORED = 500


def padded(in_channels: int, out_channels: int, mode: str, *, stride: int = 1) -> nn.Conv2d:
    """A convolution of 3 x 3 without a bias, padded in one of the modes of :data:`PADDINGS`."""
    name, width, *_ = PADDINGS[mode]
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=width, padding_mode=name, bias=False)


def net1(mode: str) -> nn.Sequential:
    """Four convolutions, the largest response anywhere, and a linear layer: logits of the two classes."""
    return nn.Sequential(
        *(padded(3, 32, mode), nn.ReLU()),
        *(padded(32, 32, mode, stride=2), nn.ReLU()),
        *(padded(32, 64, mode, stride=2), nn.ReLU()),
        *(padded(64, 64, mode, stride=2), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 2)),
    )


def study(asked: StudyOptions) -> StudyFindings:
    """Measure all modes, one row each."""
    trained = asked.pick(full=tuple(PADDINGS), quick=("full", "valid"), smoke=("valid",))
    rows = [
        _row(mode, asked.seed, _accuracies(mode, asked) if mode in trained else (None, None))
        for mode in asked.each("padding", PADDINGS)
    ]
    return StudyFindings(columns=COLUMNS, rows=rows, claims=_claims(rows), picture=_picture(rows))


def _row(mode: str, seed: int, accuracies: tuple[float | None, float | None]) -> StudyRow:
    *_, index, skewed, published = PADDINGS[mode]
    totals, bias = line_totals(mode)
    bias_skewed = line_totals(mode, (1, 1, 0))[1]
    uniform = _erfs(_stack(mode, seed, uniform=True), ",".join(PLACES))
    shift, symmetric, other = (
        _shift_error(mode, seed),
        *(turn_error(mode, seed, symmetric=each) for each in (True, False)),
    )
    exact = max(abs(bias - index), abs(bias_skewed - skewed), shift) < EXACT and symmetric < 1e-9 < 1e-2 < other
    accuracy, swapped = accuracies
    return StudyRow(
        name=mode,
        # T(i) of nine inputs in a line under a kernel [1, 1, 1], and the index max |T / T_interior - 1|.
        totals=totals,
        bias=bias,
        bias_published=index,
        # The index of a kernel [1, 1, 0], which is not symmetric.
        bias_skewed=bias_skewed,
        bias_skewed_published=skewed,
        # Half of the ERF of a uniform stack lies within this distance, in pixels, of the unit in the middle, on an
        # edge, in a corner.
        **{f"r50_{place}": float(result["r50"]) for place, result in zip(PLACES, uniform, strict=True)},
        # Largest difference between ERFs of two units that no border reaches, one shifted onto the other.
        shift_error=shift,
        # Relative L1 difference between the ERF turned by 90 degrees and the ERF of the turned image: for kernels that
        # a quarter turn does not change, and for others.
        turn_symmetric=symmetric,
        turn_other=other,
        # Accuracy of Net1 with classes where they were in training, and with the two swapped; None if not trained.
        accuracy=accuracy,
        accuracy_swapped=swapped,
        published=published,
        # Whether Net1 does as the totals predict: it reads the order if they are uniform for any kernel, and the
        # position if not.
        held=None if swapped is None else (swapped > 0.5) == (index == skewed == 0),
        passed=exact and (accuracy is None or accuracy > 0.6),
        maps={place: result.map.values for place, result in zip(PLACES, uniform, strict=True)},
    )


def line_totals(mode: str, kernel: tuple[float, ...] = (1, 1, 1)) -> tuple[tuple[float, ...], float]:
    """Return T(i) of a line of nine inputs under a kernel, and its boundary-bias index."""
    name, width, *_ = PADDINGS[mode]
    line = nn.Conv1d(1, 1, 3, padding=width, padding_mode=name, bias=False).double()
    line.weight.data[:] = torch.tensor(kernel)
    nodes = torch.ones(9, 1, dtype=torch.float64)
    found: Any = erfscope.influence(lambda x: line(x.T).T, nodes, "signed").marginals(interior=range(3, 6))
    return tuple(found.per_input.tolist()), found.boundary_bias


def _stack(mode: str, seed: int, *, uniform: bool = False, relu: bool = False) -> nn.Sequential:
    """Four padded convolutions in float64: uniform ones, or eight channels at random weights."""
    channels = 1 if uniform else 8
    with seeded(seed):
        layers = [padded(1 if depth == 0 else channels, channels, mode) for depth in range(DEPTH)]
    for layer in layers if uniform else ():
        nn.init.constant_(layer.weight, 1 / 9)
    parts = [part for layer in layers for part in ((layer, nn.ReLU()) if relu else (layer,))]
    return nn.Sequential(*(parts[:-1] if relu else parts)).double()


def _erfs(net: nn.Sequential, unit: Any, x: Tensor | None = None) -> Sequence[Any]:
    given = torch.ones(1, 1, SIDE, SIDE, dtype=torch.float64) if x is None else x
    layer = str(len(net) - 1)
    return erfscope.sweep(net, images=given, layer=layer, unit=unit, convention="signed", measures=["r50"]).results


def _shift_error(mode: str, seed: int) -> float:
    """Units further from the border than the theoretical receptive field reaches have the same ERF, shifted."""
    net = _stack(mode, seed)
    grown = net(torch.zeros(1, 1, SIDE, SIDE, dtype=torch.float64)).shape[2] - SIDE
    units = ",".join("x".join(str(index + grown // 2) for index in unit) for unit in INTERIOR)
    one, other = (result.map.values for result in _erfs(net, units))
    moved = np.roll(one, [b - a for a, b in zip(*INTERIOR, strict=True)], (0, 1))
    return float(np.abs(moved - other).max())


def turn_error(mode: str, seed: int, *, symmetric: bool) -> float:
    """How far the ERF of an image that was turned by 90 degrees is from the turned ERF, in relative L1."""
    net = _stack(mode, seed, relu=True)
    for layer in net[::2] if symmetric else ():
        weight = layer.get_parameter("weight").data
        weight.copy_(torch.stack([weight.rot90(turn, (2, 3)) for turn in range(4)]).mean(0))
    x = torch.randn(1, 1, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    straight, turned = (_erfs(net, "centre", picture)[0].map.values for picture in (x, x.rot90(1, (2, 3))))
    return float(np.abs(np.rot90(straight) - turned).sum() / np.abs(turned).sum())


def _accuracies(mode: str, asked: StudyOptions) -> tuple[float, float]:
    """Return the accuracy of Net1 with the classes in their places, and swapped."""
    count = asked.pick(full=1000, quick=400, smoke=200)
    epochs = asked.pick(full=15, quick=10 if mode == "full" else 4, smoke=4)
    generators = [torch.Generator().manual_seed(3 * asked.seed + offset) for offset in range(3)]
    pictures, classes = red_green(count, generators[0])
    with seeded(asked.seed):
        net = net1(mode)

    def losses(epoch: int) -> Iterator[Tensor]:
        for some in batches(count, 50, epoch):
            yield F.cross_entropy(net(pictures[some]), classes[some])

    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0, rho=0.9, weight_decay=5e-5)  # as the authors'
    train(asked, f"padding-{mode}", net, optimizer, epochs, losses, pictures=count)
    tests = (red_green(SCORED, generators[1]), red_green(SCORED, generators[2], swapped=True))
    with torch.no_grad():
        accuracy, swapped = (float((net(x).argmax(1) == y).float().mean()) for x, y in tests)
    return accuracy, swapped


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    trained = [row for row in rows if row.held is not None]
    turn, limit = max(row.turn_symmetric for row in rows), circular_limit()
    return [
        *(
            claim(
                f"influence at the border, {row.name} padding: index",
                f"{row.bias_published:.3f} (derived)",
                f"{row.bias:.3f}",
                abs(row.bias - row.bias_published) < EXACT,
            )
            for row in rows
        ),
        *(
            claim(
                f"influence at the border, {row.name} padding, kernel [1, 1, 0]: index",
                f"{row.bias_skewed_published:.3f} (derived)",
                f"{row.bias_skewed:.3f}",
                abs(row.bias_skewed - row.bias_skewed_published) < EXACT,
            )
            for row in rows
            if row.bias == 0
        ),
        claim(
            "turning an image turns its ERF, kernels that a quarter turn keeps",
            "exactly",
            f"to {turn:.0e}",
            turn < 1e-9,
        ),
        *(
            claim(
                f"Net1 with the classes swapped, {row.name} padding",
                f"{row.published:g} %",
                share_with_error(row.accuracy_swapped, SCORED),
                abs(100 * row.accuracy_swapped - row.published) <= 8,
                has_mechanism=(row.accuracy_swapped > 0.5) == (row.published > 50),
            )
            for row in trained
        ),
        claim(
            "Net1 reads the order where the totals of any kernel are uniform, and the position elsewhere",
            "where those of a symmetric kernel are",
            f"{sum(row.held for row in trained)} of {len(trained)} paddings",
            all(row.held for row in trained),
        ),
        *(
            claim(
                "Net1 with circular padding, whose answer a shift by 8 px around the image does not change",
                f"at most {100 * limit:.1f} % (derived)",
                share_with_error((row.accuracy + row.accuracy_swapped) / 2, 2 * SCORED),
                (row.accuracy + row.accuracy_swapped) / 2 <= limit + 2 * (limit * (1 - limit) / (2 * SCORED)) ** 0.5,
            )
            for row in trained
            if row.name == "circular"
        ),
    ]


def _picture(rows: Sequence[StudyRow]) -> Picture:
    lines = tuple(Curve(label=row.name, x=range(len(row.totals)), y=row.totals) for row in rows)
    totals = Chart(title="Total influence of an input", x="input", y="T", curves=lines)
    trained = [row for row in rows if row.accuracy is not None]
    bars = (
        points("in place", trained, "accuracy", scale=100),
        points("swapped", trained, "accuracy_swapped", scale=100),
        points("swapped, published", trained, "published"),
    )
    accuracy = Chart(title="Net1", x="", y="accuracy (%)", curves=bars, names=tuple(row.name for row in trained))
    shown = [tuple(ChartMap(title=f"{row.name}, {place}", values=row.maps[place]) for row in rows) for place in PLACES]
    return Picture(
        title="Padding: influence, ERFs of four uniform layers, and what a net reads", rows=((totals, accuracy), *shown)
    )


COLUMNS = (
    StudyColumn("padding", "{name}", numeric=False),
    StudyColumn("T(i)", lambda row: " ".join(f"{total:g}" for total in row.totals), numeric=False, optional=True),
    StudyColumn("bias", "{bias:.3f}"),
    StudyColumn("r50 mid", "{r50_centre:.2f}"),
    StudyColumn("edge", "{r50_edge:.2f}"),
    StudyColumn("corner", "{r50_corner:.2f}"),
    StudyColumn("shift", "{shift_error:.0e}", optional=True),
    StudyColumn("turn", "{turn_symmetric:.0e}/{turn_other:.2f}", optional=True),
    StudyColumn("acc. %", lambda row: "-" if row.accuracy is None else f"{100 * row.accuracy:.1f}"),
    StudyColumn("swapped", lambda row: "-" if row.accuracy is None else f"{100 * row.accuracy_swapped:.1f}"),
    StudyColumn("publ.", "{published:g}"),
    StudyColumn("as totals", lambda row: "-" if row.held is None else "yes" if row.held else "no", numeric=False),
)

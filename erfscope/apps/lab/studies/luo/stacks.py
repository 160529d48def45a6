"""Stacks of convolutions as Luo et al. analyse them, many drawn at once, and what is measured of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope
from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.study import VERDICT, StudyColumn, StudyOptions, StudyRow, result_with_map, with_error
from erfscope.core import FloatArray
from erfscope.show import Curve

Activation = Literal["linear", "relu", "tanh", "sigmoid"]
Weights = Literal["uniform", "random"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "linear": lambda h: h,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
#: Channels between the layers: of random nets with one, single runs outweigh all others.
WIDTHS: dict[Weights, int] = {"uniform": 1, "random": 8}
#: Headings of rows, which say what sigma is the spread of.
SECTIONS: dict[Weights, str] = {"uniform": "uniform: sigma of g", "random": "random: sigma of g²"}
#: Closed forms of uniform weights hold to rounding; sampled sizes must lie within this many standard errors.
EXACT, Z_LIMIT = 1e-9, 4.0
#: The least R2 of a fit by a Gaussian to an ERF that "is a Gaussian": binomials and their roots have 0.998, a box 0.78
#: and a Laplacian 0.93.
GAUSSIAN_R2 = 0.95
#: The variance image of Luo et al.: the mean over runs of the squared gradient, not divided by each run's total, which
#: would bias it; and its root.
VARIANCE = erfscope.Convention(
    name="variance",
    readout=lambda y, _: y.sum(1),
    contribution=lambda g: g.square().sum(1),
    scale="energy",
    readout_text="sum_c y_c",
    contribution_text="sum_s g_s^2, mean over runs",
    source="Luo et al. 2016, arXiv:1701.04128, section 3",
)
RMS = replace(VARIANCE, name="rms", scale="amplitude", root=True)
#: Runs that are computed together.
AT_ONCE = 25
MEASURES = ("sigma_row", "sigma_col", "gaussian_r2", "kurtosis_row", "luo_size", "erf_trf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A kind of net: 3 x 3 convolutions without padding or biases, so that the one unit of the last layer sees all of
    the input."""

    layers: int
    #: One per layer; () for 1 in every layer.
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    #: Channels of the input and between the layers; the last layer has one, or as many if there are skip
    #: connections.
    width: int = 1
    #: Taps of 1 / 9, or independent normal ones with the variance that keeps the energy of a linear net's gradient.
    weights: Weights = "uniform"
    #: Shares of the taps along one axis, which shape the weights (uniform) or their variances (random).
    profile: tuple[float, ...] = (1 / 3, 1 / 3, 1 / 3)
    activation: Activation = "linear"
    #: Whether each layer is x + conv(x).
    skip: bool = False
    #: The chance that dropout, before every layer, keeps a value; it divides the kept ones.
    keep: float = 1.0

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(stride, dilation) of every layer."""
        ones = (1,) * self.layers
        return list(zip(self.strides or ones, self.dilations or ones, strict=True))

    @property
    def side(self) -> int:
        """Side of the theoretical receptive field, and so of the input."""
        return theory.strided_dilated_stack([3] * self.layers, *zip(*self.steps, strict=True)).trf_px

    @property
    def channels(self) -> list[int]:
        """Channels of the input, between the layers, and of the output."""
        return [self.width] * self.layers + [self.width if self.skip else 1]


class Nets(nn.Module):
    """Nets of one design, side by side; the number in the last channel of an image selects the net that sees it.

    So each image of a measurement is a run with other weights: the error bars are over runs, and a net without a
    gradient counts as a dead image.

    Args:
        design: Their common design.
        runs: Their number.
        generator: Source of weights and dropout masks.
    """

    def __init__(self, design: Design, runs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.design, self.runs = design, runs
        self.kernels = nn.ParameterList([_kernels(design, runs, a, b, generator) for a, b in pairwise(design.channels)])
        self.masks = nn.ParameterList(_masks(design, runs, generator))
        self.requires_grad_(False)
        #: The measured layer: its map is one unit.
        self.unit = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """One unit per image.

        Args:
            x: (B, channels + 1, side, side).

        Returns:
            (B, channels, 1, 1).
        """
        run, h = x[:, -1, 0, 0].long(), x[:, :-1]
        for number, (kernels, (stride, dilation)) in enumerate(zip(self.kernels, self.design.steps, strict=True)):
            h = h * self.masks[number][run] if len(self.masks) else h
            # Every image goes through its own kernels: images side by side are groups of channels.
            grouped = h.reshape(1, -1, *h.shape[2:])
            after = F.conv2d(grouped, kernels[run].flatten(0, 1), stride=stride, dilation=dilation, groups=len(h))
            after = after.view(len(h), -1, *after.shape[2:])
            if self.design.skip:
                after = after + h[:, :, dilation:-dilation, dilation:-dilation]
            h = ACTIVATIONS[self.design.activation](after) if number < self.design.layers - 1 else after
        out: Tensor = self.unit(h)
        return out

    def pictures(self, generator: torch.Generator) -> Tensor:
        """Gaussian noise for every net, with its number: (runs, channels + 1, side, side), float64."""
        side, channels = self.design.side, self.design.channels[0]
        noise = torch.randn(self.runs, channels, side, side, dtype=torch.float64, generator=generator)
        number = torch.arange(self.runs, dtype=torch.float64).view(-1, 1, 1, 1).expand(-1, 1, side, side)
        return torch.cat([noise, number], dim=1)


def _kernels(design: Design, runs: int, before: int, after: int, generator: torch.Generator) -> Tensor:
    """Return the kernels of one layer of every net, (runs, after, before, 3, 3)."""
    shares = torch.tensor(design.profile, dtype=torch.float64)
    shares = torch.outer(shares, shares) / shares.sum() ** 2
    if design.weights == "uniform":
        return (shares / before).expand(runs, after, before, 3, 3).clone()
    return torch.randn(runs, after, before, 3, 3, dtype=torch.float64, generator=generator) * (shares / before).sqrt()


def _masks(design: Design, runs: int, generator: torch.Generator) -> list[Tensor]:
    """Return the factors of dropout for the input of every layer, (runs, channels, side, side) each."""
    masks: list[Tensor] = []
    if design.keep < 1:
        for number, channels in enumerate(design.channels[:-1]):
            side = design.side - 2 * number
            kept = torch.rand(runs, channels, side, side, dtype=torch.float64, generator=generator) < design.keep
            masks.append(kept / design.keep)
    return masks


def draw_nets(asked: StudyOptions, name: str, design: Design, runs: int) -> tuple[Nets, Tensor]:
    """Return nets and their pictures; the random numbers of a name do not depend on other names."""
    key = np.random.SeedSequence([asked.seed, *name.encode()]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(key) >> 1)
    nets = Nets(design, runs, generator)
    return nets, nets.pictures(generator)


def measure_nets(nets: Nets, pictures: Tensor, convention: Any) -> Any:
    """Measure the ERF of one design over all its runs.

    Raises:
        MeasurementError: no run has a gradient.
    """
    channels, *size = pictures.shape[1:]
    adapter = erfscope.wrap(nets, input_size=size, in_chans=channels, mean=(0.0,), std=(1.0,), name="stack")
    # The unit sees all of its input, so that there is nothing to crop.
    how = {"convention": convention, "measures": MEASURES, "batch_size": AT_ONCE, "plain": True}
    return result_with_map(adapter, images=pictures, layer="unit", **how)


def measure_design(
    asked: StudyOptions,
    name: str,
    design: Design,
    runs: int,
    *,
    section: str = "",
    sigma: float | None = None,
    also: Callable[[StudyRow], bool] = lambda _: True,
) -> StudyRow:
    """Measure one design. Its row fails if sigma differs from the theory, or if ``also`` does not hold.

    Args:
        asked: Has the seed.
        name: Name of the row.
        design: Design of the nets.
        runs: Number of nets.
        section: Heading of the row; "" for that of its weights.
        sigma: Sigma by the theory; None if there is no closed form.
        also: Another condition that must hold.
    """
    nets, pictures = draw_nets(asked, name, design, runs)
    absolute = measure_nets(nets, pictures, "luo")
    compared = absolute if design.weights == "uniform" else measure_nets(nets, pictures, VARIANCE)
    spread = compared["sigma_row"]
    limit = None if sigma is None else EXACT * sigma + Z_LIMIT * (spread.se or 0.0)
    row = StudyRow(
        name=name,
        section=section or SECTIONS[design.weights],
        layers=design.layers,
        runs=runs,
        # Share of the runs without any gradient; they are in no map.
        dead=absolute.input.n_dead / runs,
        trf_px=absolute.trf.size_px[0],
        # Sigma along rows, of the image of the closed forms: the gradient for uniform weights, its mean square for
        # random ones.
        sigma_px=float(spread),
        sigma_se_px=spread.se,
        theory_px=sigma,
        # Of the mean |gradient|, the image that Luo et al. show: sigma along rows, the size at 4.55 % of the centre,
        # the fit by a Gaussian.
        abs_sigma_px=float(absolute["sigma_row"]),
        luo_size_px=_number(absolute["luo_size"].value),
        gaussian_r2=_number(absolute["gaussian_r2"].value),
        kurtosis=_number(absolute["kurtosis_row"].value),
        limit_px=limit,
        passed=limit is None or abs(float(spread) - (sigma or 0.0)) <= limit,
        maps={"|g|": absolute.map.values},
    )
    row.passed = row.passed and also(row)
    return row


def _number(value: object) -> float | None:
    return value if isinstance(value, float) else None


def rms_sigma(n: int, k: int = 3) -> float:
    """Return sigma of the root of the variance image of n random layers of k taps; it tends to sqrt(2) times sigma of
    the variance image."""
    amplitude = np.sqrt(theory.uniform_stack(n, k).kernel)
    at = np.arange(len(amplitude)) - (len(amplitude) - 1) / 2
    return math.sqrt(float(amplitude @ at**2 / amplitude.sum()))


def columns(first: str, *, shape: bool = True) -> tuple[StudyColumn, ...]:
    """Return the columns of the rows of :func:`measure_design`.

    Args:
        first: Title of the first one.
        shape: Whether to show the fit by a Gaussian.
    """
    fit = (StudyColumn("R2", "{gaussian_r2:.3f}"), StudyColumn("kurtosis", "{kurtosis:.2f}", optional=True))
    return (
        StudyColumn(first, "{name}", numeric=False),
        StudyColumn("runs", "{runs}", optional=True),
        StudyColumn("dead", "{dead:.0%}", optional=True),
        StudyColumn("TRF", "{trf_px}"),
        StudyColumn("sigma", lambda row: with_error(row.sigma_px, row.sigma_se_px)),
        StudyColumn("theory", "{theory_px:.3f}"),
        StudyColumn("of |g|", "{abs_sigma_px:.2f}"),
        StudyColumn("size", "{luo_size_px:.1f}"),
        *(fit if shape else ()),
        VERDICT,
    )


def along_row(label: str, values: FloatArray, *, points: bool = False) -> Curve:
    """Return the sums of a map's columns, over the distance to its middle in pixels."""
    line = values.sum(0)
    return Curve(label=label, x=[at - (len(line) - 1) / 2 for at in range(len(line))], y=list(line), points=points)

"""Conventions: how a map of C channels becomes one scalar, and how its gradient becomes a map.

Shapes: ``y`` is (B, C), the unit's channels; ``signs`` is (B, C) of random +1 and -1; the gradient ``g`` is (B, C_X,
*space)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from erfscope.core.answer.maps.accumulator import Averaging
from erfscope.core.answer.maps.erf_map import Scale, refuse_scale
from erfscope.core.values.errors import ErfscopeError, unknown

Readout = Callable[[Tensor, Tensor | None], Tensor]
ContributionRule = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention(Averaging):
    """A readout and a contribution that belong together, and how images are averaged."""

    name: str
    #: (y (B, C), signs (B, C) or None) -> (B,)
    readout: Readout
    #: g (B, C_X, *space) -> (B, *space)
    contribution: ContributionRule
    scale: Scale
    readout_text: str = "custom"
    contribution_text: str = "custom"
    source: str = ""
    #: What remains of the source where the sum over channels is exact and nothing is drawn; all of it where this is "".
    exact_source: str = ""
    #: What its maps must not be used for; reads on from "not for".
    not_for: str = ""

    def __post_init__(self) -> None:
        refuse_scale(self.scale)


def _signed_sum(y: Tensor, signs: Tensor | None) -> Tensor:
    return (y if signs is None else y * signs).sum(1)


def _energy(g: Tensor) -> Tensor:
    return g.square().sum(1)


#: Every convention by its name.
CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention(
            name="jacobian",
            readout=_signed_sum,
            contribution=_energy,
            scale="amplitude",
            random=True,
            per_image=True,
            root=True,
            readout_text="sum_c e_c y_c, e = random signs",
            contribution_text="sum_s g_s^2, root of the mean",
            source="the Frobenius norm of the unit's Jacobian block; Hutchinson's estimator",
            exact_source="the Frobenius norm of the unit's Jacobian block",
            not_for="published ERF tables and Luo's closed forms, which take another readout, or squares",
        ),
        Convention(
            name="energy",
            readout=_signed_sum,
            contribution=_energy,
            scale="energy",
            random=True,
            per_image=True,
            readout_text="sum_c e_c y_c, e = random signs",
            contribution_text="sum_s g_s^2",
            source="the variance image of Luo et al. 2016; sigma^2 adds over layers",
            exact_source="the variance image of Luo et al. 2016",
            not_for=(
                "a comparison with amplitude maps: squares weigh the centre more, so that r50 and r90 of one model are"
                " smaller"
            ),
        ),
        Convention(
            name="luo",
            readout=lambda y, _: y.sum(1),
            contribution=lambda g: g.abs().sum(1),
            scale="amplitude",
            readout_text="sum_c y_c",
            contribution_text="sum_s |g_s|",
            source="Luo et al. 2016, arXiv:1701.04128",
            not_for=(
                "layers after a LayerNorm, whose channel sum has no gradient, and models whose channels cancel each"
                " other in the sum"
            ),
        ),
        Convention(
            name="signed",
            readout=lambda y, _: y.sum(1),
            contribution=lambda g: g.sum(1),
            scale="signed",
            readout_text="sum_c y_c",
            contribution_text="sum_s g_s, signed",
            source="Nicolicioiu & Duta, Effective Receptive Field of Graph Neural Networks, Eq. 1",
            not_for=(
                "sizes from few images: signs cancel in the mean, and what is left has a noise floor of about 1 /"
                " sqrt(n)"
            ),
        ),
        Convention(
            name="replknet",
            readout=lambda y, _: y.relu().sum(1),
            contribution=lambda g: g.relu().sum(1),
            scale="amplitude",
            readout_text="sum_c relu(y_c)",
            contribution_text="sum_s relu(g_s)",
            source="Ding et al. 2022, arXiv:2203.06717",
            not_for=(
                "inhibition, and layers with mostly negative outputs: relu drops both, and large activations outweigh"
                " all others"
            ),
        ),
        Convention(
            name="kim",
            readout=lambda y, _: y.mean(1),
            contribution=lambda g: g.mean(1).relu(),
            scale="amplitude",
            readout_text="mean_c y_c",
            contribution_text="relu(mean_s g_s)",
            source="Kim et al. 2023; the openerf package",
            not_for=(
                "the strength of influence: input channels of opposite signs cancel, and negative influence is dropped"
            ),
        ),
    )
}


def convention_of(given: str | Convention | tuple[Readout, ContributionRule]) -> Convention:
    """The convention that a name, a convention or a (readout, contribution) pair means.

    Args:
        given: A name of :data:`CONVENTIONS`, a :class:`Convention`, or two callables with the shapes given in this
            module's docstring. A pair's contribution must not be negative, or the convention must be given whole with
            ``scale="signed"``.

    Returns:
        The convention.

    Raises:
        ErfscopeError: unknown name.
    """
    if isinstance(given, Convention):
        return given
    if isinstance(given, tuple) and len(given) == 2 and all(callable(part) for part in given):
        return Convention(name="custom", readout=given[0], contribution=given[1], scale="amplitude")
    if not isinstance(given, str):
        raise ErfscopeError(
            f"a convention is a name, a Convention or a pair (readout, contribution), not {type(given).__name__}"
        )
    if given not in CONVENTIONS:
        raise unknown("convention", given, CONVENTIONS)
    return CONVENTIONS[given]


def random_signs(channels: int, *, seed: int, image: int, draw: int) -> Tensor:
    """Signs +1 and -1, (C,), float64, on the CPU.

    Keyed by seed, global image index and draw alone, so that batch size, rank and order of work change nothing.
    """
    key, counter = np.array([seed, 0x5167], dtype=np.uint64), np.array([0, 0, image, draw], dtype=np.uint64)
    # The highest bit of every 32, as NumPy's generator takes it, which is slow to make.
    words = np.random.Philox(key=key, counter=counter).random_raw((channels + 1) // 2).astype("<u8").view("<u4")
    return torch.from_numpy((words[:channels] >> 31) * 2.0 - 1)

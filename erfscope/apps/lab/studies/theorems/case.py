"""One statement of the theory, checked: a closed form to rounding, an expectation by its z-score, or a property."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from erfscope.apps.lab import theory
from erfscope.apps.lab.influence_matrix import RULES, Influence, influence
from erfscope.apps.lab.influence_matrix.compute import NodeMap
from erfscope.core import FloatArray

Kind = Literal["closed form", "expectation", "property"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: The largest error of a closed form in float64, relative to the largest number of the closed form.
LIMIT = 1e-10
#: The largest z-score of an expectation.
Z_LIMIT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOutcome:
    """Result of a check: an error or a z-score."""

    error: float | None = None
    limit: float = LIMIT
    z: float | None = None
    samples: int | None = None

    @property
    def passed(self) -> bool:
        """Whether error and z-score are within their limits; False for NaN."""
        within = self.error is None or self.error <= self.limit
        return within and (self.z is None or abs(self.z) < Z_LIMIT) and (self.error is not None or self.z is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Random numbers of one case, fixed by the study's seed and the case's name; float64."""

    generator: torch.Generator
    #: Smaller cases and fewer samples.
    quick: bool

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers between 0 and 1."""
        return torch.rand(*shape, dtype=torch.float64, generator=self.generator)

    def samples(self, n: int) -> int:
        """Return the number of samples: n, or n / 8 for a quick run."""
        return n // 8 if self.quick else n

    def graph(self, n: int, density: float = 0.4) -> Tensor:
        """A directed graph without self-loops, 0 and 1, in which every node receives at least from the next."""
        links = (self.uniform(n, n) < density).double().fill_diagonal_(0)
        links[torch.arange(n), torch.arange(1, n + 1) % n] = 1
        return links

    def fill(self, module: nn.Module) -> Any:
        """Return the module in float64 and evaluation mode, with random parameters and running statistics; variances
        are positive."""
        module.double().eval()
        with torch.no_grad():
            for name, values in [*module.named_parameters(), *module.named_buffers()]:
                if values.is_floating_point() and "running" in name:
                    values.copy_(0.5 + self.uniform(*values.shape))
                elif isinstance(values, nn.Parameter):
                    values.copy_(0.6 * self.normal(*values.shape))
        return module


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table before it is run."""

    name: str
    #: Paper and theorem or equation, with what was corrected.
    source: str
    kind: Kind
    run: Callable[[Draws], CaseOutcome]


def array(tensor: Tensor) -> FloatArray:
    """Return a tensor as an array for the theory."""
    values: FloatArray = tensor.detach().numpy()
    return values


def follows(fn: NodeMap, x: Tensor, jacobian: ArrayLike, outputs: Sequence[int] | None = None) -> CaseOutcome:
    """Compare the engine's influence in every convention with that of a closed form of the Jacobian (m, c', n, c).

    Raises:
        ValueError: the closed form is zero everywhere, so that nothing is checked.
    """
    if not np.any(jacobian):
        raise ValueError("the closed form is zero everywhere, so that nothing is checked")
    rows = slice(None) if outputs is None else list(outputs)
    errors = []
    for name in RULES:
        measured = influence(fn, x, name, outputs)
        errors.append(theory.agreement(measured, theory.influence_of(jacobian, name)[rows]).max_relative)
    return CaseOutcome(error=max(errors))


def equals(measured: ArrayLike, closed_form: ArrayLike, *, limit: float = LIMIT) -> CaseOutcome:
    """Compare numbers with those of a closed form."""
    return CaseOutcome(error=theory.agreement(np.asarray(measured), np.asarray(closed_form)).max_relative, limit=limit)


def worst(*outcomes: CaseOutcome) -> CaseOutcome:
    """Return the worst of several checks of one statement."""
    return max(
        outcomes,
        key=lambda outcome: (not outcome.passed, abs(outcome.z if outcome.z is not None else outcome.error or 0.0)),
    )


def expects(measured: Influence, expected: ArrayLike, *, each: int = 1) -> CaseOutcome:
    """Compare the mean over samples with its expectation: the entry that is furthest off, in standard errors.

    Args:
        measured: The mean and its standard error.
        expected: The expectation by the theory.
        each: Number of samples that :func:`grouped` put into one.
    """
    if measured.se is None:
        raise ValueError("an expectation needs at least two samples")
    off = measured.values - np.asarray(expected)
    sure = measured.se == 0
    z = np.divide(off, measured.se, out=np.where(off == 0, 0.0, np.copysign(math.inf, off)), where=~sure)
    return CaseOutcome(z=float(z.flat[np.abs(z).argmax()]), samples=each * measured.n_samples)


def grouped(fn: NodeMap, x: Tensor, each: int) -> tuple[NodeMap, Tensor]:
    """Put samples side by side into the channels, so that one backward pass gives their mean signed influence.

    Args:
        fn: (B, n, c) -> (B, n, c').
        x: (N, n, c).
        each: Number of samples in a group; it divides N.

    Returns:
        A map (n, each * c) -> (n, each * c'), whose ``signed`` influence is the mean of fn's, and its inputs (N / each,
        n, each * c).
    """
    channels = x.shape[2]

    def together(nodes: Tensor) -> Tensor:
        return fn(nodes.view(len(nodes), each, channels).movedim(1, 0)).movedim(0, 1).flatten(1) / each

    return together, x.view(-1, each, *x.shape[1:]).movedim(1, 2).flatten(2)

"""The influence matrix of a map of node features, from vector-Jacobian products with exact channels."""

from __future__ import annotations

import operator
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from erfscope import ErfWarning
from erfscope.apps.lab.influence_matrix.result import Influence
from erfscope.core import ErfscopeError, FloatArray, MeasurementError, sound_gradients, unknown
from erfscope.show import number

#: Products that are taken together at most. More leave the processor's caches and are no faster.
TOGETHER = 32
#: What PyTorch says where it takes products one by one behind the scenes.
NOT_BATCHED = "There is a performance drop because we have not yet implemented the batching rule"


@dataclass(slots=True, eq=False)
class Products:
    """The products v^T J of one forward pass, J = dy/dx; product number j has its own v.

    Where channels are exact, v is one channel of one output: ``len(outputs) * c'`` products, the channels of an output
        in a row. Else v is
    one on all channels of one output: ``len(outputs)`` products.
    """

    #: The input, (n, c), a leaf.
    x: Tensor
    #: The output, (m, c'), computed from it.
    y: Tensor
    outputs: Sequence[int]
    exact: bool

    def __len__(self) -> int:
        return len(self.outputs) * (self.y.shape[1] if self.exact else 1)

    def owners(self, numbers: range) -> Tensor:
        """Position in ``outputs`` of the output that each product belongs to."""
        return torch.arange(numbers.start, numbers.stop) // (self.y.shape[1] if self.exact else 1)

    def looped(self, numbers: range) -> Tensor:
        """Products one by one, (k, n, c)."""
        return torch.cat([self._gradient(self._seeds(range(j, j + 1))[0])[None] for j in numbers])

    def together(self, numbers: range) -> Tensor:
        """The same products from one batched backward pass.

        Raises:
            Exception: of any kind, where the backward pass of some operation cannot be batched.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NOT_BATCHED)
            return self._gradient(self._seeds(numbers), batched=True)

    def _gradient(self, seeds: Tensor, *, batched: bool = False) -> Tensor:
        g = torch.autograd.grad(self.y, self.x, seeds, retain_graph=True, allow_unused=True, is_grads_batched=batched)[
            0
        ]
        return self.x.new_zeros((*seeds.shape[:-2], *self.x.shape)) if g is None else g.detach()

    def _seeds(self, numbers: range) -> Tensor:
        """The vectors v, (k, m, c')."""
        seeds = torch.zeros((len(numbers), *self.y.shape), dtype=self.y.dtype, device=self.y.device)
        channels = self.y.shape[1]
        for row, j in enumerate(numbers):
            if self.exact:
                seeds[row, self.outputs[j // channels], j % channels] = 1
            else:
                seeds[row, self.outputs[j]] = 1
        return seeds


@dataclass(slots=True)
class Groups:
    """How many products are taken together: decided at the first forward pass, and fewer once memory has run out."""

    #: 1 means one by one; 0, not known yet.
    size: int = 0

    def run(self, products: Products) -> Iterator[tuple[Tensor, Tensor]]:
        """All products, group by group: (owners (k,), products (k, n, c))."""
        self.size = self.size or (TOGETHER if can_be_taken_together(products) else 1)
        done = 0
        while done < len(products):
            numbers = range(done, min(done + self.size, len(products)))
            try:
                found = products.together(numbers) if self.size > 1 else products.looped(numbers)
            except Exception:  # fewer at a time need less memory; one by one, another error is raised again
                if self.size == 1:
                    raise
                self.size //= 2
                continue
            yield products.owners(numbers), found
            done = numbers.stop


def can_be_taken_together(products: Products) -> bool:
    """Whether two products are the same from one batched backward pass as one by one: that of some operations cannot be
    batched, or gives other numbers then."""
    pair = range(min(2, len(products)))
    one_by_one = products.looped(pair)
    try:
        return len(pair) == 2 and _alike(one_by_one, products.together(pair))
    except Exception:  # the loop has just shown that the function itself can be differentiated: only batching it fails
        return False


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two ways of computing the same products agree up to rounding; products that are not finite are left to
    the loop."""
    tolerance = 1e4 * torch.finfo(one.dtype).eps * float(one.abs().max())
    return bool(((one - other).abs() <= tolerance).all())


NodeMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How the block dY_p / dX_i, of shape (c', c), becomes one number."""

    #: One product per channel of the output; else one for the sum of its channels.
    exact: bool
    #: Products (k, n, c) -> (k, n), added up over an output's products.
    contribution: Callable[[Tensor], Tensor]
    #: Take the root of the sum.
    root: bool = False


#: The first four are the conventions of maps of those names (:data:`erfscope.CONVENTIONS`), with ``draws="all"`` where
#: those have draws.
RULES: dict[str, Rule] = {
    "jacobian": Rule(exact=True, contribution=lambda g: g.square().sum(2), root=True),
    "energy": Rule(exact=True, contribution=lambda g: g.square().sum(2)),
    "luo": Rule(exact=False, contribution=lambda g: g.abs().sum(2)),
    "signed": Rule(exact=False, contribution=lambda g: g.sum(2)),
    "abs": Rule(exact=True, contribution=lambda g: g.abs().sum(2)),
}


def influence(fn: NodeMap, x: Tensor, convention: str = "jacobian", outputs: Sequence[int] | None = None) -> Influence:
    """How much every input node moves every output node of ``fn``.

    With J[p, r, i, s] = dY_pr / dX_is, entry (p, i) is, by convention: ``jacobian`` the Frobenius norm of the block,
    sqrt(sum_rs J^2); ``energy`` its square; ``luo`` sum_s |sum_r J|; ``signed`` sum_rs J; ``abs`` sum_rs |J|. They are
    not interchangeable, and the signs matter. Under ``signed`` and ``luo`` channels cancel, after a LayerNorm so
    exactly that only rounding noise is left. But only the mean of ``signed`` over samples shows Theorem 3
    (self-attention's ERF follows the covariance of its input): means of ``jacobian`` and ``abs`` are not zero where
    there is no correlation, and drown it.

    Derivatives are computed in the dtype of ``x`` and added up in float64, over all channels, without random signs: c'
    backward passes per output for ``jacobian``, ``energy`` and ``abs``, one for ``luo`` and ``signed``. They are taken
    together where that was measured to be faster on this function.

    Args:
        fn: Any differentiable map of node features (n, c) -> (m, c'), such as ``lambda x: layer(x, edge_index)``. It is
            called once per sample. Modules in it keep their mode: batch norms in training mode mix all nodes and move
            their running statistics.
        x: Node features (n, c), or N samples of them (N, n, c); ``fn`` always sees (n, c). Left as it is; any device.
        convention: How a block of the Jacobian becomes one number, see above.
        outputs: Output nodes wanted, counted from the end where negative; all of them if None.

    Returns:
        The matrix (m, n), or (len(outputs), n): row = output, column = input. With samples it is the mean of their
        matrices, with its standard error; memory does not grow with N. Outputs that do not depend on ``x`` have rows of
        zeros; an :class:`erfscope.ErfWarning` says so where none does, and another one where ``fn`` draws from
        PyTorch's, NumPy's or Python's own generator of random numbers, since each sample is then computed in one draw
        only.

    Raises:
        ErfscopeError: unknown convention, ``x`` of another shape or not floating point, an output that does not exist.
        MeasurementError: ``fn`` gives anything but a finite (m, c') floating-point tensor, a derivative is not finite,
            or the matrix does not fit into memory.

    Source: signed: Nicolicioiu & Duta, Effective Receptive Field of Graph Neural Networks, Eq. 1; luo: Luo et al. 2016,
    arXiv:1701.04128; docs/theory.md, A2."""
    if convention not in RULES:
        raise unknown("convention", str(convention), RULES, where="influence matrices")
    samples = _samples(x)
    run = _InfluenceRun(fn=fn, rule=RULES[convention], asked=outputs, samples=len(samples))
    mean = _Mean()
    for index, sample in enumerate(samples):
        mean.add(run.matrix(sample, f" of sample {index}" if x.dim() == 3 else ""))
    return Influence(
        values=mean.values,
        se=mean.se(),
        convention=convention,
        outputs=tuple(run.rows),
        n_outputs=run.outputs,
        n_samples=len(samples),
    )


@dataclass(slots=True, eq=False, kw_only=True)
class _InfluenceRun:
    """One function, applied to sample after sample."""

    fn: NodeMap
    rule: Rule
    asked: Sequence[int] | None
    samples: int
    groups: Groups = field(default_factory=Groups)
    #: How many outputs there are; 0 before the first sample.
    outputs: int = 0
    #: Which of them are rows of the matrix.
    rows: list[int] = field(default_factory=list)

    def matrix(self, sample: Tensor, place: str) -> FloatArray:
        """The matrix of one sample (n, c), as it is called in errors."""
        before = _random_states()
        with sound_gradients(sample.device):
            x = sample.clone().requires_grad_(True)
            # A copy, so that fn may begin with an in-place operation.
            y = self.fn(x.clone())
            if drawn := [name for name, state in _random_states().items() if state != before.get(name)]:
                text = (
                    f"fn draws random numbers ({' and '.join(drawn)}), and this is the influence in one draw of each"
                    " sample, unless another thread of this program drew them; if that is dropout in training mode,"
                    " call eval() on its module first"
                )
                warnings.warn(text, ErfWarning, stacklevel=3)
            self._count(_checked(y, place), len(x), place)
            total = torch.zeros((len(self.rows), len(x)), dtype=torch.float64)
            if y.requires_grad:
                for owners, g in self.groups.run(Products(x=x, y=y, outputs=self.rows, exact=self.rule.exact)):
                    total.index_add_(0, owners, self.rule.contribution(g.to("cpu", torch.float64)))
            else:
                text = (
                    "no output of fn depends on x as far as autograd can tell; if fn detaches, or runs without"
                    " gradients, take that out"
                )
                warnings.warn(text, ErfWarning, stacklevel=3)
        if not torch.isfinite(total).all():
            p, i = torch.nonzero(~torch.isfinite(total))[0].tolist()
            raise MeasurementError(
                f"the derivative of output {self.rows[p]}{place} with respect to input {i} is not finite"
            )
        return (total.sqrt() if self.rule.root else total).numpy()

    def _count(self, y: Tensor, n: int, place: str) -> None:
        """Set the rows from the first sample, for which there must be memory; later ones must have as many outputs."""
        if self.outputs and len(y) != self.outputs:
            raise MeasurementError(
                f"fn gives {len(y)} outputs{place}, and {self.outputs} of the first; it must give the same for all"
            )
        if not self.outputs:
            self.outputs, self.rows = len(y), _rows(self.asked, len(y))
            # The matrix, a mask and its root; with samples, their mean, spread and differences too.
            needed, free = 8 * len(self.rows) * n * (6 if self.samples > 1 else 3), psutil.virtual_memory().available
            if needed > free:
                raise MeasurementError(
                    f"a matrix of {len(self.rows)} x {n} needs about {number(needed / 2**30)} GiB of memory, but there"
                    f" are {number(free / 2**30)} GiB; ask for fewer outputs"
                )


@dataclass(slots=True, eq=False)
class _Mean:
    """Mean and spread of matrices that come one by one.

    Source: Welford 1962, Technometrics 4 (3).
    """

    n: int = 0
    values: FloatArray = field(default_factory=lambda: np.zeros(()))
    #: Sum of squared differences from the mean.
    squares: FloatArray = field(default_factory=lambda: np.zeros(()))

    def add(self, matrix: FloatArray) -> None:
        self.n += 1
        if self.n == 1:
            self.values, self.squares = matrix, np.zeros_like(matrix)
            return
        before = matrix - self.values
        self.values += before / self.n
        self.squares += before * (matrix - self.values)

    def se(self) -> FloatArray | None:
        """Standard error of the mean, from two samples on."""
        return np.sqrt(self.squares / (self.n - 1) / self.n) if self.n > 1 else None


def _random_states() -> dict[str, Any]:
    """The states of the global generators, by the library that has them."""
    legacy: Any = np.random.get_state()  # noqa: NPY002
    states: dict[str, Any] = {
        "PyTorch's": bytes(torch.get_rng_state().numpy()),
        "NumPy's": (bytes(legacy[1]), *legacy[2:]),
        "Python's": random.getstate(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["CUDA's"] = [bytes(state.numpy()) for state in torch.cuda.get_rng_state_all()]
    return states


def _samples(x: Tensor) -> Tensor:
    """``x`` as (N, n, c)."""
    if not isinstance(x, Tensor):
        raise ErfscopeError(f"x is a {type(x).__name__}; influence takes a torch.Tensor of node features (n, c)")
    if x.dim() not in (2, 3) or not x.numel():
        hint = "; a map (C, H, W) has the nodes x.flatten(1).T" if x.dim() == 4 else ""
        raise ErfscopeError(
            f"x has shape {tuple(x.shape)}; influence takes node features (n, c), or samples of them (N, n, c){hint}"
        )
    if not x.is_floating_point():
        raise ErfscopeError(
            f"x is {str(x.dtype).removeprefix('torch.')}, which has no derivative; convert it with x.double()"
        )
    if not torch.isfinite(x).all():
        raise ErfscopeError("x holds numbers that are not finite")
    return x.detach() if x.dim() == 3 else x.detach()[None]


def _checked(y: object, place: str) -> Tensor:
    """The result of fn, checked to be (m, c') finite numbers."""
    if not isinstance(y, Tensor):
        raise MeasurementError(f"fn gives a {type(y).__name__}; it must give a tensor (m, c')")
    if y.dim() != 2 or not y.numel() or y.layout is not torch.strided:
        raise MeasurementError(
            f"fn gives a tensor of shape {tuple(y.shape)} and layout {y.layout}; it must give a dense one, (m, c')"
        )
    if not y.is_floating_point():
        raise MeasurementError(
            f"fn gives {str(y.dtype).removeprefix('torch.')}, which has no derivative; it must give floating point"
        )
    if not torch.isfinite(y).all():
        p, r = torch.nonzero(~torch.isfinite(y))[0].tolist()
        raise MeasurementError(f"output {p}{place} of fn is not finite, in channel {r}")
    return y


def _rows(outputs: Sequence[int] | None, m: int) -> list[int]:
    """The outputs asked for, counted from the start."""
    if outputs is None:
        return list(range(m))
    try:
        asked = [operator.index(output) for output in outputs]
    except TypeError:
        raise ErfscopeError(
            f"outputs is {outputs!r}; it must be a list of numbers of output nodes, or None for all"
        ) from None
    if not asked:
        raise ErfscopeError("outputs is empty; leave it out for all of them")
    outside = [output for output in asked if not -m <= output < m]
    if outside:
        raise ErfscopeError(f"there is no output {outside[0]}; fn gives {m}, numbers 0 to {m - 1}")
    return [output % m for output in asked]

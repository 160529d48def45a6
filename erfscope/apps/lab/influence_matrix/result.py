"""The result of an influence matrix: totals per input and output, the bias of boundaries, and how far along a graph it
reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from erfscope.apps.lab.influence_matrix.hops import hop_profiles
from erfscope.core import ErfscopeError, FloatArray, HopProfile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marginals:
    """Totals of an influence matrix. Signed entries are added with their signs."""

    #: Influence of all inputs on each output: sums of rows, one per output asked for.
    per_output: FloatArray
    #: Influence of each input on all outputs asked for: sums of columns, (n,).
    per_input: FloatArray
    #: Mean of ``per_input`` over the interior; None if no interior was named.
    interior: float | None = None
    #: Largest |per_input / interior - 1| over all inputs: 0 where no input counts for more or less than those of the
    #: interior.
    boundary_bias: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Influence:
    """How much every input node moves every output node: row = output, column = input. Arrays are read-only; numpy
    takes it as one."""

    #: (number of rows, n), float64; the mean over samples where there are samples.
    values: FloatArray
    #: Standard error of the mean over samples, of the same shape; None for fewer than two.
    se: FloatArray | None = None
    #: How the block of the Jacobian became one number: "jacobian", "energy", "luo", "signed" or "abs".
    convention: str
    #: Which output each row is.
    outputs: tuple[int, ...]
    #: How many outputs the map has.
    n_outputs: int
    n_samples: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _frozen(self.values))
        if self.se is not None:
            object.__setattr__(self, "se", _frozen(self.se))

    def marginals(self, interior: ArrayLike | None = None) -> Marginals:
        """Totals per output and per input and, where an interior is named, how much the boundary differs from it.

        The total of input i is T(i) = sum_p J_pi; padding that is fair to all positions makes it the same everywhere,
        zeros around the border make it smaller there. Which inputs are far enough from the border depends on the
        kernels, so that only the caller knows.

        Args:
            interior: The inputs that no border can touch: a mask of n truth values, of any shape (n nodes row by row),
                or their numbers.

        Returns:
            The totals; with an interior also their mean T_int over it, and the boundary-bias index max_i |T(i) / T_int
            - 1|.

        Raises:
            ErfscopeError: the interior is empty or does not fit, its total is zero, or not all outputs were asked for.

        Source: the course report, Table 1 (docs/theory.md, C11): uniform for circular and full padding, and for
            replicate padding of symmetric kernels.
        """
        per_output, per_input = _frozen(self.values.sum(1)), _frozen(self.values.sum(0))
        if interior is None:
            return Marginals(per_output=per_output, per_input=per_input)
        if sorted(self.outputs) != list(range(self.n_outputs)):
            raise ErfscopeError(
                "a boundary bias needs the influence on all outputs; leave `outputs` out of the influence"
            )
        middle = float(per_input[_chosen(interior, len(per_input))].mean())
        if middle == 0:
            raise ErfscopeError(
                "the interior inputs have no influence in total, so that nothing can be compared with it"
            )
        bias = float(np.abs(per_input / middle - 1).max())
        return Marginals(per_output=per_output, per_input=per_input, interior=middle, boundary_bias=bias)

    def hops(self, adjacency: Any, sources: Sequence[int] | None = None) -> tuple[HopProfile, ...]:
        """How far along a graph each output's influence lies, in hops. Signed values count by their absolute value.

        Args:
            adjacency: (n, n), dense or a scipy sparse array; entry (p, i) is not zero where p receives from i.
            sources: The node that each row's distances are counted from; by default output p is node p.

        Returns:
            One profile per row.

        Raises:
            ErfscopeError: the adjacency is not (n, n) or not finite, or a source is none of its nodes.
        """
        return hop_profiles(self.values, adjacency, self.outputs if sources is None else sources)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        # NumPy 1 has no copy=None.
        return np.asarray(self.values, dtype) if copy is None else np.array(self.values, dtype, copy=copy)

    def __repr__(self) -> str:
        rows, n = self.values.shape
        which = "" if rows == self.n_outputs else f" of {self.n_outputs}"
        over = "" if self.n_samples == 1 else f", mean of {self.n_samples} samples"
        return f"<Influence {self.convention}: {rows}{which} outputs x {n} inputs{over}>"


def _frozen(values: FloatArray) -> FloatArray:
    """A read-only copy of an array."""
    kept = np.array(values, dtype=np.float64)
    kept.flags.writeable = False
    return kept


def _chosen(interior: ArrayLike, n: int) -> NDArray[Any]:
    """The interior as a mask or as numbers of inputs."""
    given = np.asarray(interior)
    chosen = given.ravel()
    if given.dtype == bool and given.size == n and given.any():
        return chosen
    if np.issubdtype(given.dtype, np.integer) and given.size and chosen.min() >= -n and chosen.max() < n:
        return chosen
    wanted = f"a mask of {n} truth values, not all false, or numbers from 0 to {n - 1}"
    raise ErfscopeError(f"interior is an array of {given.dtype} of shape {given.shape}; it must be {wanted}")

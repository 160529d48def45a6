"""How much of a mass over the nodes of a graph lies how many hops from one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from erfscope.core.answer.maps.erf_map import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HopProfile:
    """A mass over the nodes of a graph, by the number of hops from one node."""

    #: Share of the mass at 0, 1, 2, ... hops, as far as the graph reaches; read-only. With ``unreachable`` it sums to
    #: 1, or to 0 where there is no mass at all.
    mass: FloatArray
    #: Share of the mass on nodes that no path leads to.
    unreachable: float
    #: The mass itself, before it was divided.
    total: float

    @property
    def mean_hop(self) -> float | None:
        """Mean number of hops over the mass that can be reached; None if there is none."""
        reached = float(self.mass.sum())
        return float(self.mass @ np.arange(len(self.mass))) / reached if reached > 0 else None

    @classmethod
    def of(cls, mass: ArrayLike, hops: ArrayLike) -> Self:
        """Shares of a mass by the hops to its nodes.

        Args:
            mass: n numbers, of any shape and scale; negative ones count by their absolute value.
            hops: Hops to each node, of the same shape; infinite where no path leads.

        Returns:
            The profile; all shares are zero where the mass is.
        """
        mass, hops = np.abs(np.asarray(mass, dtype=np.float64)).ravel(), np.asarray(hops, dtype=np.float64).ravel()
        reached = np.isfinite(hops)
        total = float(mass.sum())
        shares = mass / total if total > 0 else mass
        by_hop: FloatArray = np.bincount(hops[reached].astype(np.intp), weights=shares[reached]).astype(np.float64)
        by_hop.flags.writeable = False
        return cls(mass=by_hop, unreachable=float(shares[~reached].sum()), total=total)

"""The plan of tiles as the public functions give it: it prints, and draws itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from erfscope.apps.tile.budget import HaloBudget, Seam
from erfscope.apps.tile.costs import TileCost
from erfscope.apps.tile.shown import tile_headline, tile_parts
from erfscope.core import Tiling
from erfscope.show import Note, Shown, Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TilePlan(Shown, Tiling):
    """How a model is run on tiles of an image, so that the output is that of the whole image.

    Sizes are in cells of the input, one entry per axis. A plan holds for images whose sides leave the ``remainder``
    when they are divided by the ``alignment``: models pad and round others differently. It prints as ``erfscope tile``
    does.
    """

    @classmethod
    def of(cls, tiling: Tiling) -> Self:
        """The plan of these numbers."""
        return cls(**{each.name: getattr(tiling, each.name) for each in fields(tiling)})

    def __repr__(self) -> str:
        return f"<{tile_headline(self)}>"

    def parts(
        self,
        costs: Sequence[TileCost] = (),
        image_size: str | None = None,
        *,
        budget: HaloBudget | None = None,
        tolerance: float | None = None,
    ) -> Iterator[Table | Note]:
        """The plan, what its tiles cost, and halos that are shorter: lines of text and tables.

        Args:
            costs: Of :func:`erfscope.apps.tile.costs.tile_costs`.
            image_size: The size of the image that the tiles were counted for.
            budget: From :func:`erfscope.halo_budget`.
            tolerance: The share of the ERF that may be cut off.
        """
        return tile_parts(self, costs, image_size, budget=budget, tolerance=tolerance)

    def figure(
        self, budget: HaloBudget | None = None, tolerance: float | None = None, seams: Sequence[Seam] = ()
    ) -> Any:
        """Draw one tile as a matplotlib figure.

        Args:
            budget: From :func:`erfscope.halo_budget`: the ERF of the unit at the tile's corner and, beside the tile,
                what shorter halos cut off.
            tolerance: The share that is allowed.
            seams: From :func:`erfscope.seams`: the error at seams, beside the one that the budget predicts.

        Raises:
            ErfscopeError: the plan has no halo.
        """
        from erfscope.apps.tile.figure import tile_figure

        return tile_figure(self, budget, tolerance, seams)

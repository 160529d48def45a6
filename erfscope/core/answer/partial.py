"""The sums of a run, or of one shard of it, for one unit: enough to make the result, alone or together with the other
shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.values.shard import Shard

if TYPE_CHECKING:
    from erfscope.core.answer.maps.accumulator import MapAccumulator


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialSums:
    """The sums over the images that were seen, and which of those were lost."""

    average: MapAccumulator
    #: Images of the whole run, and how many of them were seen here.
    n_all: int
    seen: int
    #: Global indices of the images that could not be read.
    unreadable: tuple[int, ...] = ()
    #: Names of the lost images, by index.
    names: Mapping[int, str] = field(default_factory=dict)
    #: Why gradients are not finite and what to do, if no image has a finite one.
    nan_cause: str | None = None
    #: Why the gradients of all images are zero, where an operation says so.
    zero_cause: str | None = None
    #: Gradient norm over that of a random-sign draw, from the first image that has one.
    ratio: float | None = None
    #: The text for the images of the whole run.
    text: str = ""
    #: The measures asked for.
    measures: tuple[str, ...] = ()
    #: Where the reference is the input of a block on a graph: hops from the node nearest the unit, (*space).
    hops: FloatArray | None = None
    #: Which of the run's shards this is; None for a whole run.
    shard: Shard | None = None
    #: Whether the run was stopped before the last image.
    stopped: bool = False
    #: The relative standard error of r50 that was asked for, if fewer images than all reached it.
    enough: float | None = None

    @property
    def wanted(self) -> int:
        """How many images were to be seen here."""
        return self.n_all if self.shard is None else len(self.shard.indices(self.n_all))

    @property
    def is_whole(self) -> bool:
        """Whether the sums are complete: of no shard, and of no stopped run."""
        return self.shard is None and not self.stopped

    @property
    def lost(self) -> list[int]:
        """Images that are not in the map, ascending."""
        return sorted({*self.average.zero_gradient_images, *self.average.nan_images, *self.unreadable})


def concatenate(parts: Sequence[PartialSums]) -> PartialSums:
    """The sums of a whole run from those of all its shards, in ascending order."""
    first = parts[0]
    average = first.average.copy()
    for part in parts[1:]:
        average.merge(part.average)
    return PartialSums(
        average=average,
        n_all=first.n_all,
        seen=sum(part.seen for part in parts),
        unreadable=tuple(sorted(index for part in parts for index in part.unreadable)),
        names={index: name for part in parts for index, name in part.names.items()},
        nan_cause=next((part.nan_cause for part in parts if part.nan_cause is not None), None),
        zero_cause=next((part.zero_cause for part in parts if part.zero_cause is not None), None),
        ratio=next((part.ratio for part in parts if part.ratio is not None), None),
        text=first.text,
        measures=first.measures,
        hops=first.hops,
    )

"""The sums of a run, or of one shard of it, for one unit: enough to make the result, alone or together with the other
shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from erfscope.maps.erf_map import FloatArray
from erfscope.maps.jackknife import GROUPS
from erfscope.parallel.shard import Shard

if TYPE_CHECKING:
    from erfscope.maps.accumulator import MapAccumulator


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


def refuse_disagreement(part: PartialSums) -> None:
    """Refuse counts that contradict each other: the images seen and lost decide how many each group counts.

    Args:
        part: The sums of a run, or of a shard.

    Raises:
        ValueError: an image is lost twice, or was not seen; or a group counts other images than are left.
    """
    average = part.average
    lost = [*average.zero_gradient_images, *average.nan_images, *part.unreadable]
    if len(set(lost)) < len(lost):
        twice = next(index for index in lost if lost.count(index) > 1)
        raise ValueError(f"image {twice} is named more than once among those without use")
    indices = range(part.n_all) if part.shard is None else part.shard.indices(part.n_all)
    seen = indices[: part.seen]
    if len(seen) < part.seen or (part.shard is not None and not part.stopped and len(seen) < len(indices)):
        raise ValueError(f"{part.seen} images were seen, and there are {len(indices)} to be seen")
    if strangers := sorted(set(lost) - set(seen)):
        raise ValueError(f"image {strangers[0]} is named as one without use, and was not among those seen")
    used = [index for index in seen if index not in set(lost)]
    if average.n_images != len(used):
        raise ValueError(f"{average.n_images} images were used, and {len(used)} of {part.seen} were seen and of use")
    counts = {group: count for group, (_, count) in average.sums.items()}
    if average.over == "images":
        expected = Counter(index % min(GROUPS, part.n_all) for index in used)
        if counts != expected:
            group = next(group for group in sorted({*counts, *expected}) if counts.get(group) != expected.get(group))
            raise ValueError(
                f"group {group} counts {counts.get(group, 0):g} images, and {expected.get(group, 0)} of it were used"
            )
    elif bool(counts) != bool(used):
        raise ValueError(f"{sum(counts.values()):g} draws are counted of {len(used)} images")


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
        ratio=next((part.ratio for part in parts if part.ratio is not None), None),
        text=first.text,
        measures=first.measures,
        hops=first.hops,
    )

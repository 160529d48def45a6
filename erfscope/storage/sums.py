"""The sums of a shard, or of a stopped run: as JSON values with arrays beside them, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from erfscope.maps.accumulator import GroupSums
from erfscope.maps.erf_map import FloatArray
from erfscope.parallel.process_group import Shard
from erfscope.results.partial import PartialSums
from erfscope.storage.documents import StoredSums

#: Fields of a part that are stored as they are.
SAME = ("n_all", "seen", "unreadable", "names", "nan_cause", "zero_cause", "ratio", "text", "measures", "stopped")


def sums_of_part(part: PartialSums) -> StoredSums:
    """The stored part of a run without its arrays, see :func:`part_arrays`."""
    average, sums = part.average, part.average.sums
    return StoredSums(
        number=None if part.shard is None else part.shard.number,
        of=None if part.shard is None else part.shard.of,
        dead=tuple(average.zero_gradient_images),
        nan=tuple(average.nan_images),
        n_used=average.n_images,
        leaked=average.outside_trf,
        box=tuple((side.start, side.stop - 1) for side in sums.box or ()),
        groups={group: count for group, (_, count) in sums.items()},
        **{name: getattr(part, name) for name in SAME},
    )


def part_arrays(part: PartialSums) -> dict[str, FloatArray]:
    """The sums by group, (groups, *box), and the hops."""
    sums = [total for _, (total, _) in part.average.sums.items()]
    found = {"sums": np.stack(sums)} if sums else {}
    return found if part.hops is None else {**found, "hops": part.hops}


def part_from_sums(
    stored: StoredSums | None, arrays: Mapping[str, FloatArray], *, convention: str, space: Sequence[int]
) -> PartialSums | None:
    """A stored part of a run; None for a whole run, and if its sums are missing.

    Args:
        stored: See :func:`sums_of_part`.
        arrays: See :func:`part_arrays`.
        convention: Name of the convention.
        space: Spatial size of the reference.

    Raises:
        ValueError: there are not as many sums as groups.
    """
    if stored is None or (stored.groups and "sums" not in arrays):
        return None
    # Late, because they load torch, which reading a whole run's report does not need.
    from erfscope.attribution.convention import CONVENTIONS
    from erfscope.maps.accumulator import MapAccumulator

    average = MapAccumulator(CONVENTIONS[convention], stored.n_all, space, None)
    sums = _group_sums(stored, arrays)
    lost = {"zero_gradient_images": stored.dead, "nan_images": stored.nan}
    average.restore(sums, n_images=stored.n_used, outside_trf=stored.leaked, **lost)
    return PartialSums(
        average=average,
        hops=arrays.get("hops"),
        shard=None if stored.number is None or stored.of is None else Shard(number=stored.number, of=stored.of),
        **{name: getattr(stored, name) for name in SAME},
    )


def _group_sums(stored: StoredSums, arrays: Mapping[str, FloatArray]) -> GroupSums:
    box = tuple(slice(first, last + 1) for first, last in stored.box)
    sums = GroupSums(shape=tuple(side.stop - side.start for side in box), box=box)
    for group, total in zip(sorted(stored.groups), arrays["sums"] if stored.groups else (), strict=True):
        sums.add(group, total, stored.groups[group])
    return sums

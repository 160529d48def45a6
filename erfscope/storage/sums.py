"""The sums of a shard, or of a stopped run: as JSON values with arrays beside them, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from erfscope.maps.erf_map import FloatArray
from erfscope.maps.jackknife import GROUPS, GroupSums
from erfscope.parallel.shard import Shard
from erfscope.results.partial import PartialSums, refuse_disagreement
from erfscope.storage.documents import StoredSums

#: Fields of a part that are stored as they are.
SAME = ("n_all", "seen", "unreadable", "names", "nan_cause", "ratio", "text", "measures", "stopped")


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
        KeyError, ValueError: the numbers do not go together.
    """
    if stored is None or (stored.groups and "sums" not in arrays):
        return None
    # Late, because they load torch, which reading a whole run's report does not need.
    from erfscope.attribution.convention import CONVENTIONS
    from erfscope.maps.accumulator import MapAccumulator

    average = MapAccumulator(CONVENTIONS[convention], stored.n_all, space, None)
    sums = _group_sums(stored, arrays, space)
    lost = {"zero_gradient_images": stored.dead, "nan_images": stored.nan}
    average.restore(sums, n_images=stored.n_used, outside_trf=stored.leaked, **lost)
    part = PartialSums(
        average=average,
        hops=arrays.get("hops"),
        shard=None if stored.number is None or stored.of is None else Shard(number=stored.number, of=stored.of),
        **{name: getattr(stored, name) for name in SAME},
    )
    _refuse_unsound(part, space)
    return part


def _group_sums(stored: StoredSums, arrays: Mapping[str, FloatArray], space: Sequence[int]) -> GroupSums:
    box = tuple(slice(first, last + 1) for first, last in stored.box)
    shape = tuple(side.stop - side.start for side in box)
    if len(box) != len(space) or any(
        side.start < 0 or side.stop > whole for side, whole in zip(box, space, strict=True)
    ):
        raise ValueError(f"the box {stored.box} does not lie in {tuple(space)}")
    totals = arrays["sums"] if stored.groups else np.zeros((0, *shape))
    if totals.shape != (len(stored.groups), *shape) or not np.isfinite(totals).all():
        raise ValueError(f"sums of shape {totals.shape} are not those of {len(stored.groups)} groups on {shape}")
    sums = GroupSums(shape=shape, box=box)
    for group, total in zip(sorted(stored.groups), totals, strict=True):
        if not 0 <= group < GROUPS:
            raise ValueError(f"there is no group {group}")
        sums.add(group, total, stored.groups[group])
    return sums


def _refuse_unsound(part: PartialSums, space: Sequence[int]) -> None:
    """Refuse a stored part whose numbers do not go together."""
    average, shard = part.average, part.shard
    if part.is_whole:
        # A finished run keeps no sums: these would pass for the whole of it.
        raise ValueError("sums of a run that is neither a shard nor stopped")
    if not average.n_images <= part.seen <= part.n_all or (shard is not None and shard.number > shard.of):
        raise ValueError(f"{average.n_images} of {part.seen} of {part.n_all} images in shard {shard} cannot be")
    if any(index >= part.n_all or index not in part.names for index in part.lost):
        raise ValueError("lost images have no name, or do not exist")
    refuse_disagreement(part)
    if part.ratio is not None and part.ratio < 0:
        raise ValueError(f"the gradient is {part.ratio} times that of a random draw")
    if part.hops is not None and part.hops.shape != tuple(space):
        raise ValueError(f"hops of shape {part.hops.shape} are not those of {tuple(space)}")

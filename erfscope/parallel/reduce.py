"""The sums of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from erfscope.maps.accumulator import MapAccumulator
from erfscope.maps.jackknife import GROUPS, GroupSums
from erfscope.parallel.process_group import ProcessGroup

if TYPE_CHECKING:
    import torch


def all_reduce_sums(average: MapAccumulator, process_group: ProcessGroup, device: torch.device) -> MapAccumulator:
    """The sums of all ranks together, on every rank; the sums of each rank stay as they are, so that it can go on.

    Args:
        average: This rank's sums.
        process_group: Who takes part; all of them call this.
        device: Where the ranks compute.

    Raises:
        RankGone: a rank has died.
    """
    whole = average.copy()
    outside_trf = any(process_group.all_gather(lambda: whole.outside_trf))
    if outside_trf and not whole.outside_trf:
        whole.drop_box()
    shape, box = whole.sums.shape, whole.sums.box
    assert shape is not None
    dense = np.zeros((GROUPS, *shape))
    for group, (total, _) in whole.sums.items():
        dense[group] = total
    dense = process_group.sum(dense, device)
    gathered = process_group.all_gather(
        lambda: (whole.sums.counts, whole.n_images, whole.zero_gradient_images, whole.nan_images)
    )
    sums = GroupSums(shape=shape, box=box)
    for group in range(GROUPS):
        count = sum(counts.get(group, 0.0) for counts, *_ in gathered)
        if count:
            sums.add(group, dense[group], weight=count)
    whole.restore(
        sums,
        n_images=sum(images for _, images, _, _ in gathered),
        zero_gradient_images=sorted(index for _, _, zero_gradient, _ in gathered for index in zero_gradient),
        nan_images=sorted(index for *_, nan in gathered for index in nan),
        outside_trf=outside_trf,
    )
    return whole

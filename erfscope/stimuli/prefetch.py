"""Inputs of a model, read when a batch needs them, or earlier by worker processes."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.geometry.box import Box
from erfscope.stimuli.feed import Feed

Read = tuple[int, Tensor | str]


class Prefetcher:
    """Images of a feed that worker processes make before they are needed.

    Args:
        feed: Makes them.
        indices: Which, in the order in which they will be needed.
        box: The part of each that is needed.
        workers: How many processes.
        keep: How many that were handed out may be needed again: a batch that did not fit is tried in parts.
    """

    def __init__(self, feed: Feed, indices: Sequence[int], box: Box | None, *, workers: int, keep: int) -> None:
        self._feed, self._box, self._keep = feed, box, keep
        self._kept: OrderedDict[int, Tensor | str] = OrderedDict()
        # Where processes can be forked, nothing has to be pickled, a user's own transform least of all.
        fork = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
        with warnings.catch_warnings():
            # More workers than cores: right for images on slow disks.
            warnings.simplefilter("ignore", UserWarning)
            loader = DataLoader(
                _Pictures(feed, indices, box),
                batch_size=None,
                num_workers=workers,
                worker_init_fn=_use_one_thread,
                multiprocessing_context=fork,
            )
            self._coming: Iterator[Read] | None = iter(loader)
        self._last = -1

    def __call__(self, index: int) -> Tensor:
        """One image, (1, C_in, *space).

        Raises:
            ErfscopeError: it cannot be read.
            MeasurementError: a worker has died.
        """
        if index not in self._kept and index <= self._last:
            return self._feed.batch([index], self._box)
        while index not in self._kept:
            self._next()
        found = self._kept[index]
        if isinstance(found, str):
            raise ErfscopeError(found)
        return found

    def _next(self) -> None:
        assert self._coming is not None
        try:
            index, found = next(self._coming)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0][:120]
            raise MeasurementError(f"a worker that reads images has died ({reason}); use fewer --workers") from error
        self._kept[index], self._last = found, index
        while len(self._kept) > self._keep:
            self._kept.popitem(last=False)

    def close(self) -> None:
        """End the workers."""
        # They end when their iterator goes.
        self._coming = None


class _Pictures(Dataset[Read]):
    """Images by their place in an order; the reason in place of one that cannot be read: an exception would end the
    worker."""

    def __init__(self, feed: Feed, indices: Sequence[int], box: Box | None) -> None:
        self._feed, self._indices, self._box = feed, indices, box

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> Read:
        index = self._indices[place]
        try:
            return index, self._feed.batch([index], self._box)
        except ErfscopeError as error:
            return index, str(error)


def _use_one_thread(_: int) -> None:
    """OpenCV's threads do not survive a fork, and a worker has one core."""
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)

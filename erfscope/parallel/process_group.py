"""The processes that share a run, and what they exchange."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.maps.erf_map import FloatArray

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup as Control

T = TypeVar("T")


class RankGone(MeasurementError):
    """Another process of the run has died, so that the run cannot be finished."""


class Gathered:
    """A value of this rank, and afterwards those of all ranks."""

    own: Any = None
    all: list[Any]


class ProcessGroup:
    """The group of a run in one process."""

    rank = 0
    size = 1

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's items of a list: every ``size``-th, from its own number on."""
        return items[self.rank :: self.size]

    def all_gather(self, work: Callable[[], T]) -> list[T]:
        """Call a function on every rank, and return the results of all, in the order of the ranks.

        Raises:
            ErfscopeError: the first rank's that has one, the same on every rank, so that none waits for another.
            RankGone: a rank has died.
        """
        with self.agreeing() as gathered:
            gathered.own = work()
        return gathered.all

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[Gathered]:
        """The same for a block, which sets ``own``; ``all`` holds the results of all ranks afterwards."""
        gathered = Gathered()
        yield gathered
        gathered.all = [gathered.own]

    def sum(self, values: FloatArray, device: torch.device) -> FloatArray:
        """The sum of the ranks' arrays, which are of one shape, on every rank.

        Args:
            values: Of this rank.
            device: Where the ranks compute; graphics processors add among themselves.

        Raises:
            RankGone: a rank has died.
        """
        return values


class TorchProcessGroup(ProcessGroup):
    """The ranks of a ``torch.distributed`` process group.

    Args:
        control: A gloo group of all ranks, for messages.
    """

    def __init__(self, control: Control) -> None:
        import torch.distributed as dist

        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._control = control

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[Gathered]:
        """Gather the values of all ranks; where one has failed, all fail."""
        import torch.distributed as dist

        gathered = Gathered()
        own: ErfscopeError | None = None
        try:
            yield gathered
        except RankGone:
            raise
        except ErfscopeError as error:
            own = error
        found: list[Any] = [None] * self.size
        _together(lambda: dist.all_gather_object(found, (gathered.own, own), group=self._control))
        failure = own or next((error for _, error in found if error is not None), None)
        if failure is not None:
            raise failure
        gathered.all = [each for each, _ in found]

    def sum(self, values: FloatArray, device: torch.device) -> FloatArray:
        """All-reduce by gloo, or by NCCL where the ranks compute on CUDA."""
        import torch
        import torch.distributed as dist

        on_cuda = device.type == "cuda"
        tensor = torch.from_numpy(np.ascontiguousarray(values)).to(device if on_cuda else "cpu")
        _together(lambda: dist.all_reduce(tensor, group=None if on_cuda else self._control))
        return np.asarray(tensor.cpu().numpy())


def _together(call: Callable[[], object]) -> None:
    try:
        call()
    except RuntimeError as error:
        raise RankGone("another rank of this run has died; read its output, and start again") from error


SINGLE = ProcessGroup()
PROCESS_GROUP: ContextVar[ProcessGroup] = ContextVar("process_group", default=SINGLE)


def current() -> ProcessGroup:
    """The process group that the running code belongs to; :data:`SINGLE` outside of
    :func:`erfscope.parallel.distributed`."""
    return PROCESS_GROUP.get()


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Inside, this rank measures alone."""
    reset = PROCESS_GROUP.set(SINGLE)
    try:
        yield
    finally:
        PROCESS_GROUP.reset(reset)

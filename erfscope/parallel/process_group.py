"""Who shares a run, and how they speak with each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from erfscope.errors import EnvironmentFailure, ErfscopeError
from erfscope.maps.erf_map import FloatArray
from erfscope.model_errors import ENVIRONMENT, cause_of

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup as Control

T = TypeVar("T")


class RankGone(EnvironmentFailure):
    """Another process of the run has died, so that nothing can be finished."""


class Gathered:
    """What ranks have got: this one's, and afterwards everybody's."""

    own: Any = None
    all: list[Any]


class ProcessGroup:
    """A process that has a run for itself."""

    rank = 0
    size = 1

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """What of a list is this rank's: one of every so many as there are ranks."""
        return items[self.rank :: self.size]

    def all_gather(self, work: Callable[[], T]) -> list[T]:
        """Do something on every rank, and give every rank what each of them has got, in the order of the ranks.

        Raises:
            ErfscopeError: the first rank's that has one, the same on every rank, so that none waits for another.
            RankGone: a rank has died.
        """
        with self.agreeing() as gathered:
            gathered.own = work()
        return gathered.all

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[Gathered]:
        """The same for what is done inside, which sets ``own``; ``all`` is there afterwards."""
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
        """Gather what every rank has got."""
        import torch.distributed as dist

        gathered = Gathered()
        own: ErfscopeError | None = None
        try:
            yield gathered
        except RankGone:
            raise
        except ErfscopeError as error:
            own = error
            own.of_environment = cause_of(error) == ENVIRONMENT  # what it was raised from does not travel
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
        raise RankGone("another rank of this run has died; look at that one's output, and start again") from error


SINGLE = ProcessGroup()
PROCESS_GROUP: ContextVar[ProcessGroup] = ContextVar("process_group", default=SINGLE)


def current() -> ProcessGroup:
    """The process group that the running code belongs to; :data:`SINGLE` outside of
    :func:`erfscope.parallel.distributed`."""
    return PROCESS_GROUP.get()


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Inside, this rank has what it measures for itself."""
    reset = PROCESS_GROUP.set(SINGLE)
    try:
        yield
    finally:
        PROCESS_GROUP.reset(reset)

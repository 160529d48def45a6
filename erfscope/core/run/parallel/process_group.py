"""The processes that share a run: which images each measures, how sums are put together, and shards, which are runs of
their own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from erfscope.core.answer.maps.accumulator import GROUPS, GroupSums, MapAccumulator, added
from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.values.errors import ErfscopeError, MeasurementError

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
    :func:`erfscope.core.run.parallel.distributed`."""
    return PROCESS_GROUP.get()


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Inside, this rank measures alone."""
    reset = PROCESS_GROUP.set(SINGLE)
    try:
        yield
    finally:
        PROCESS_GROUP.reset(reset)


#: What torchrun sets for every process it starts.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: Within this time all ranks must have started.
START = timedelta(seconds=60)
#: How long a rank waits for one that still computes; one that has died closes its connections, which is seen at once.
PATIENCE = timedelta(days=1)


@contextlib.contextmanager
def distributed() -> Iterator[ProcessGroup]:
    """Share what is measured inside with the other ranks of a run that ``torchrun`` has started.

    Every rank must do the same inside; images, or the models of a comparison, are dealt to the ranks, and every rank
    gets the whole result. A process group that exists already is used. Without ``torchrun`` nothing changes.

    Yields:
        The process group; its ``rank`` 0 should report.

    Raises:
        ErfscopeError: the other ranks did not start within a minute.
    """
    if not is_member():
        yield SINGLE
        return
    import torch.distributed as dist
    from torch.distributed import ProcessGroup

    with contextlib.ExitStack() as stack:
        if not dist.is_initialized():
            _join()
            stack.callback(dist.destroy_process_group)
        control = dist.new_group(backend="gloo", timeout=PATIENCE)
        assert isinstance(control, ProcessGroup)  # every rank is a member
        reset = PROCESS_GROUP.set(TorchProcessGroup(control))
        stack.callback(lambda: PROCESS_GROUP.reset(reset))
        yield PROCESS_GROUP.get()


def is_member() -> bool:
    """Whether this process is one of several that were started together."""
    if all(os.environ.get(name) for name in VARIABLES):
        return os.environ["WORLD_SIZE"].isdecimal() and int(os.environ["WORLD_SIZE"]) > 1
    return False


def _join() -> None:
    """Make the process group: gloo, and NCCL beside it where there are graphics processors."""
    import torch
    import torch.distributed as dist

    on_cuda = torch.cuda.is_available() and dist.is_nccl_available()
    if on_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo", timeout=START)
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0][:120]
        asked = ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES)
        raise ErfscopeError(
            f"the ranks of {asked} have not met ({reason}); start all of them with torchrun, or unset WORLD_SIZE to"
            " measure alone"
        ) from error


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
        lambda: (whole.sums.counts, whole.masses, whole.n_images, whole.zero_gradient_images, whole.nan_images)
    )
    sums = GroupSums(shape=shape, box=box)
    for group in range(GROUPS):
        count = sum(counts.get(group, 0.0) for counts, *_ in gathered)
        if count:
            sums.add(group, dense[group], weight=count)
    whole.restore(
        sums,
        n_images=sum(images for _, _, images, _, _ in gathered),
        zero_gradient_images=sorted(index for *_, zero_gradient, _ in gathered for index in zero_gradient),
        nan_images=sorted(index for *_, nan in gathered for index in nan),
        outside_trf=outside_trf,
        masses=None if whole.masses is None else added(*(masses or {} for _, masses, *_ in gathered)),
    )
    return whole

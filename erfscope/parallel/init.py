"""Joining the process group that ``torchrun`` has prepared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from erfscope.errors import ErfscopeError
from erfscope.parallel.process_group import PROCESS_GROUP, SINGLE, ProcessGroup, TorchProcessGroup

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

#: What torchrun sets for every process it starts.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: Seconds within which all ranks must have started.
START = 60
#: How long a collective may wait: one rank's share may take as long as it likes, and dead ranks are noticed by
#: :mod:`erfscope.parallel.heartbeat`.
PATIENCE = timedelta(days=7)


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
            stack.enter_context(_group())
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


@contextlib.contextmanager
def _group() -> Iterator[None]:
    """A process group for the time of a run: gloo, and NCCL beside it where there are graphics processors."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    from erfscope.parallel.heartbeat import heartbeat

    on_cuda = torch.cuda.is_available() and dist.is_nccl_available()
    if on_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    store, rank, size = _meet()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        store=PrefixStore("erfscope", store),
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
    )
    try:
        with heartbeat(PrefixStore("erfscope-watch", store), rank, size):
            yield
    finally:
        dist.destroy_process_group()


def _meet() -> tuple[Store, int, int]:
    """The store that all ranks share, this rank, and how many there are."""
    from torch.distributed.rendezvous import rendezvous

    given = {name: os.environ[name] for name in VARIABLES}
    port, rank_text, size_text = given["MASTER_PORT"], given["RANK"], given["WORLD_SIZE"]
    if not (port.isdecimal() and 0 < int(port) < 2**16 and rank_text.isdecimal() and int(rank_text) < int(size_text)):
        variables = ", ".join(f"{name}={value}" for name, value in given.items())
        raise ErfscopeError(
            f"{variables} are no ranks that could meet; start all of them with torchrun, or unset WORLD_SIZE to measure"
            " alone"
        )
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=START)))
        store.set(f"here/{rank}", "yes")
        store.wait([f"here/{other}" for other in range(size)], timedelta(seconds=START))
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0][:120]
        place = f"{given['MASTER_ADDR']}:{port}"
        raise ErfscopeError(
            f"rank {rank_text} has not met the other {int(size_text) - 1} at {place} ({reason}); "
            "start all of them with torchrun, or unset WORLD_SIZE to measure alone"
        ) from error
    return store, rank, size

"""Joining the process group that ``torchrun`` has prepared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

from erfscope.errors import ErfscopeError
from erfscope.parallel.process_group import PROCESS_GROUP, SINGLE, ProcessGroup, TorchProcessGroup

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

"""What the numbers were measured with, and the memory that there is."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import torch


#: What helps where cv2 cannot be imported: opencv-python needs libraries that slim images lack.
OPENCV_FIX = "apt install libgl1 libxcb1 libglib2.0-0, or replace opencv-python by opencv-python-headless"

#: How PyTorch's CPU allocator begins to say that there is no memory (c10/core/impl/alloc_cpu.cpp): on Windows and
#: elsewhere.
ALLOCATOR = ("DefaultCPUAllocator: not enough memory", "DefaultCPUAllocator: can't allocate memory")
#: All that oneDNN and the C++ library say then.
TERSE = ("could not create a primitive", "could not execute a primitive", "could not create a memory", "std::bad_alloc")

PACKAGES = ("erfscope", "torch", "torchvision", "timm", "captum", "numpy", "scipy", "opencv-python", "pillow")


@cache
def versions() -> dict[str, str | None]:
    """Installed version of every package that can change a number; None where it is not installed."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def environment() -> dict[str, Any]:
    """Versions, system and threads."""
    import torch

    system = f"{platform.system()} {platform.machine()}"
    return {
        "versions": versions(),
        "python": platform.python_version(),
        "system": system,
        "threads": torch.get_num_threads(),
    }


def ran_out(error: BaseException) -> bool:
    """Whether an exception means that an allocation failed: PyTorch's on any device, oneDNN's or numpy's."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (text in TERSE or any(words in text for words in ALLOCATOR))


def available_bytes(device: torch.device | None = None, *, cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that can still be used: on the CPU the smallest of what the machine has, and what the limits of the
    container and of the process leave.

    Args:
        device: Where the model runs; None is the CPU. On a GPU it is what the driver has free and what PyTorch holds
            unused.
        cgroup: Folder of the container's own control group, version 2; another one only in tests.

    Returns:
        Bytes; None where it is not known, as on Apple's GPUs.
    """
    if device is not None and device.type == "cuda":
        import torch

        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device is not None and device.type != "cpu":
        return None
    machine = int(psutil.virtual_memory().available)
    return max(0, min([machine, *_container(cgroup), *_process()]))


def _container(cgroup: Path) -> Iterator[int]:
    """What the limit of the container leaves; pages of files that nobody has used lately count as free."""
    limit = cgroup / "memory.max"
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        yield int(most) - int((cgroup / "memory.current").read_text()) + int(stat["inactive_file"])


def _process() -> Iterator[int]:
    """What ``ulimit -d`` and ``-v`` leave of this process's data and addresses; Linux alone keeps to such limits."""
    if psutil.LINUX:
        process = psutil.Process()
        used = process.memory_info()
        for limit, taken in ((psutil.RLIMIT_DATA, used.data), (psutil.RLIMIT_AS, used.vms)):
            most = process.rlimit(limit)[0]
            if most != psutil.RLIM_INFINITY:
                yield most - taken

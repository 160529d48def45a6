"""Versions of packages, the machine, and its available memory."""

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


#: Command that helps if cv2 cannot be imported: opencv-python needs libraries that slim images lack.
OPENCV_FIX = "apt install libgl1 libxcb1 libglib2.0-0, or replace opencv-python by opencv-python-headless"

#: Beginning of the message of PyTorch's CPU allocator when there is no memory (c10/core/impl/alloc_cpu.cpp), on Windows
#: and on other systems.
ALLOCATOR = ("DefaultCPUAllocator: not enough memory", "DefaultCPUAllocator: can't allocate memory")
#: The messages of oneDNN and the C++ library in that case.
TERSE = ("could not create a primitive", "could not execute a primitive", "could not create a memory", "std::bad_alloc")

PACKAGES = ("erfscope", "torch", "torchvision", "timm", "captum", "numpy", "scipy", "opencv-python", "pillow")
#: The packages of sources of models that need not be installed.
OPTIONAL_PACKAGES = ("transformers",)


@cache
def versions() -> dict[str, str | None]:
    """Return the installed version of every package that can change a number; None if it is not installed. An optional
    package that is not installed is left out."""
    found: dict[str, str | None] = {}
    for package in (*PACKAGES, *OPTIONAL_PACKAGES):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if package in PACKAGES:
                found[package] = None
    return found


def environment() -> dict[str, Any]:
    """Return what numbers may depend on: ``versions`` of packages by name, ``python``, ``system``, and ``threads``."""
    import torch

    system = f"{platform.system()} {platform.machine()}"
    return {
        "versions": versions(),
        "python": platform.python_version(),
        "system": system,
        "threads": torch.get_num_threads(),
    }


def ran_out(error: BaseException) -> bool:
    """Return whether an exception means that an allocation failed, of PyTorch on any device, oneDNN or numpy."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (text in TERSE or any(words in text for words in ALLOCATOR))


def available_bytes(device: torch.device | None = None, *, cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the available memory: on the CPU the smallest of the machine's free memory and what the limits of the
    container and of the process leave.

    Args:
        device: Where the model runs; None is the CPU. On a GPU the available memory is what the driver has free, and
            what PyTorch holds unused.
        cgroup: Folder of the container's own control group, version 2; tests use another.

    Returns:
        Bytes; None if they are not known, as on Apple's GPUs.
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
    """Yield the bytes that the limit of the container leaves; inactive pages of files count as free."""
    limit = cgroup / "memory.max"
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        yield int(most) - int((cgroup / "memory.current").read_text()) + int(stat["inactive_file"])


def _process() -> Iterator[int]:
    """Yield the bytes that ``ulimit -d`` and ``-v`` leave this process; only Linux enforces these limits."""
    if psutil.LINUX:
        import resource

        for limit, taken in ((resource.RLIMIT_DATA, "data"), (resource.RLIMIT_AS, "vms")):
            most, _ = resource.getrlimit(limit)
            if most != resource.RLIM_INFINITY:
                yield most - getattr(psutil.Process().memory_info(), taken)

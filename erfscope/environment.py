"""What the numbers were measured with, and the memory that there is."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

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


def available_bytes(device: torch.device | None = None, *, root: Path = Path("/")) -> int | None:
    """Memory that can still be used: on the CPU the smallest of what the machine has, and what limits of container and
    process leave.

    Args:
        device: Where the model runs; None is the CPU. On a GPU it is what the driver has free and what PyTorch holds
            unused.
        root: Folder that holds ``proc`` and ``sys``; another one only in tests.

    Returns:
        Bytes; None where it is not known, as on macOS.

    Source: MemAvailable of ``/proc/meminfo``; control groups of either version; RLIMIT_DATA and RLIMIT_AS (``ulimit
    -d``, ``-v``). Pages of files that nobody has used lately count as free, as they do in MemAvailable."""
    if device is not None and device.type == "cuda":
        import torch

        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device is not None and device.type != "cpu":
        return None
    found = [*_machine(root), *_containers(root), *_process(root)]
    return max(0, min(found)) if found else None


def _machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _containers(root: Path) -> Iterator[int]:
    """What the limit of each control group around this process leaves."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, name = line.split(":", 2)
        if number == "0":
            top, limit, usage, idle = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, usage, idle = (
                root / "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        # A container may see its own group as the top one while its name is the machine's: every folder that is there
        # is asked.
        group = PurePosixPath(name.lstrip("/"))
        for folder in (group, *group.parents):
            at = top / folder
            most, used = (next(iter(_lines(at / file)), "") for file in (limit, usage))
            if most.isdigit() and used.isdigit():
                reclaimable = [
                    int(entry.split()[1]) for entry in _lines(at / "memory.stat") if entry.startswith(f"{idle} ")
                ]
                yield int(most) - int(used) + sum(reclaimable)


def _process(root: Path) -> Iterator[int]:
    """What the limits of this process itself leave, of its data and of its addresses."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    used = {
        name: line.split()[0]
        for name, _, line in (line.partition(":") for line in _lines(root / "proc/self/status"))
        if line.split()
    }
    for name, limit in (("VmData", resource.RLIMIT_DATA), ("VmSize", resource.RLIMIT_AS)):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY and used.get(name, "").isdigit():
            yield most - int(used[name]) * 1024


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

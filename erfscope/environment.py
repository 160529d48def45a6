"""What the numbers were measured with."""

from __future__ import annotations

import importlib.metadata
import platform
from functools import cache
from typing import Any

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
    return {"versions": versions(), "python": platform.python_version(), "system": system, "threads": torch.get_num_threads()}

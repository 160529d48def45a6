"""TorchScript, which holds a model as a program of its own: no hook sees its layers."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import nn

from erfscope.errors import ErfscopeError

_INSTEAD = "give the nn.Module that it was made of, or torch.export it and name the .pt2 file"


def refuse_torchscript(module: nn.Module, spec: str) -> None:
    """Refuse a module that is TorchScript, or has a part that is.

    Raises:
        ErfscopeError: it is, or has.
    """
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            which = f"has a TorchScript module, {name!r}" if name else "is a TorchScript module"
            raise ErfscopeError(f"{which}: its layers cannot be seen while it runs; {_INSTEAD}", model=spec)


def is_torchscript(path: Path) -> bool:
    """Whether a file is what ``torch.jit.save`` writes."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def refuse_torchscript_file(path: Path) -> None:
    """Refuse a TorchScript archive that is named as a model.

    Raises:
        ErfscopeError: it is one.
    """
    if is_torchscript(path):
        raise ErfscopeError(
            f"{str(path)!r} is a TorchScript archive: the layers of such a model cannot be seen while it runs;"
            f" {_INSTEAD}"
        )

"""Specs, weights, layers and blocks of models; the one door to timm, torchvision and transformers.

May import: ``core/request``, ``core/adapter``, ``core/graph``, ``core/system``, ``core/values``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erfscope.adapters import blocks as blocks
    from erfscope.adapters.insertion import insert
    from erfscope.adapters.module import ModuleAdapter
    from erfscope.adapters.opening import load, wrap
    from erfscope.adapters.sources.catalogue import model_names
    from erfscope.adapters.sources.sources import split_label
    from erfscope.adapters.timm_model import TimmAdapter
    from erfscope.core.values.names import IMAGE

__all__ = ["IMAGE", "ModuleAdapter", "TimmAdapter", "insert", "load", "model_names", "split_label", "wrap"]

#: Name -> its module. A name is loaded when it is first used, so that the command line knows the sources without torch.
_HOMES = {
    "IMAGE": "erfscope.core.values.names",
    "ModuleAdapter": "erfscope.adapters.module",
    "TimmAdapter": "erfscope.adapters.timm_model",
    "insert": "erfscope.adapters.insertion",
    "load": "erfscope.adapters.opening",
    "model_names": "erfscope.adapters.sources.catalogue",
    "split_label": "erfscope.adapters.sources.sources",
    "wrap": "erfscope.adapters.opening",
}


def __getattr__(name: str) -> Any:
    if name in ("blocks", "reactivate"):
        return importlib.import_module(f"erfscope.adapters.{'weights.' * (name == 'reactivate')}{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

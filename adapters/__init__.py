"""Specs, weights, layers and blocks of models; the one door to timm, torchvision and transformers.

May import: ``options``, ``attribution.batch_norm``, ``copies``, ``restore``, ``model_errors``, ``adapter``,
``geometry`` and ``errors``, ``environment``, ``finding``, ``printable``."""

from __future__ import annotations

from typing import Any

from erfscope.adapters.insertion.insertion import insert
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.opening import load, wrap
from erfscope.adapters.sources.sources import split_label
from erfscope.adapters.timm_model import TimmAdapter
from erfscope.geometry.names import IMAGE

__all__ = ["IMAGE", "ModuleAdapter", "TimmAdapter", "insert", "load", "split_label", "wrap"]


def __getattr__(name: str) -> Any:
    # Loaded when they are first used: they bring timm.
    if name == "blocks":
        import erfscope.adapters.blocks as blocks

        return blocks
    if name == "reactivate":
        from erfscope.adapters.weights import reactivate

        return reactivate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

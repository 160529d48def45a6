"""Names of models that can be analysed."""

from __future__ import annotations

from erfscope.adapters.libraries import import_library
from erfscope.adapters.preprocess import input_config


def model_names(pattern: str | None = None, *, pretrained: bool = False) -> list[str]:
    """List timm's model names that match a glob pattern; a bare word matches anywhere in a name.

    Args:
        pattern: E.g. ``"*next*tiny*"``; all names if None.
        pretrained: Only names with pretrained weights, with their tags.
    """
    found = pattern if pattern is None or any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    names: list[str] = import_library("timm").list_models(found or "", pretrained=pretrained)
    return names


def declared_size(spec: str) -> tuple[int, ...] | None:
    """Look up the input size that timm declares for a model; None for models that timm does not know by name."""
    timm = import_library("timm")
    if not timm.is_model(spec.partition(".")[0]):
        return None
    cfg = timm.get_pretrained_cfg(spec, allow_unregistered=True)
    return input_config(cfg.to_dict(), size=None).size if cfg else None

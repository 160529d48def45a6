"""Names of models that can be analysed."""

from __future__ import annotations

from erfscope.adapters.sources import import_timm


def model_names(pattern: str | None = None, *, pretrained: bool = False) -> list[str]:
    """timm's model names that match a glob pattern; a bare word is looked for anywhere in the name.

    Args:
        pattern: E.g. ``"*next*tiny*"``; all names if None.
        pretrained: Only names with pretrained weights, with their tags.
    """
    found = pattern if pattern is None or any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    names: list[str] = import_timm().list_models(found or "", pretrained=pretrained)
    return names

"""Names that a model has for units without a place: its register tokens and its classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from erfscope.core.values.unit_kind import CLASS, TOKEN


def unit_names(module: nn.Module, kind: str) -> Mapping[str, Sequence[int]]:
    """Indices of tokens or classes by name, as far as timm's and transformers' models tell.

    Register tokens come last of those before the map in both libraries. Classes are those of transformers'
    configuration, or those that timm knows for the data that a model was trained on."""
    config: Any = getattr(module, "config", None)
    if kind == TOKEN:
        count = getattr(module, "num_reg_tokens", getattr(config, "num_register_tokens", 0)) or 0
        first = getattr(module, "num_prefix_tokens", count + 1) - count
        return {"registers": range(first, first + count)} if isinstance(count, int) and count > 0 else {}
    if kind != CLASS:
        return {}
    labels = getattr(config, "id2label", None)
    if isinstance(labels, dict):
        return {str(name): (int(index),) for index, name in labels.items()}
    return _timm_classes(module)


def _timm_classes(module: nn.Module) -> dict[str, Sequence[int]]:
    """The classes of a timm model by each of their names, ``"golden retriever"``."""
    if getattr(module, "pretrained_cfg", None) is None:
        return {}
    try:
        from timm import data

        info: Any = data.ImageNetInfo(data.infer_imagenet_subset(module) or "")  # type: ignore[attr-defined]
    except (ImportError, AttributeError, AssertionError):
        return {}
    names: dict[str, Sequence[int]] = {}
    for index in range(info.num_classes()):
        for name in re.split(r",\s*", info.index_to_description(index, detailed=False)):
            names.setdefault(name, (index,))
    return names

"""Adapter of timm's models: stages come from ``forward_intermediates``."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from torch import Tensor, nn

from erfscope.adapters.module import ModuleAdapter


class TimmAdapter(ModuleAdapter):
    """A timm model that has ``forward_intermediates``.

    A stage is named by the module that timm's ``feature_info`` gives for it and read as NCHW from
    ``forward_intermediates``, which knows how each architecture folds its tokens; the forward pass stops there. Every
    other module is read by a hook."""

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """The modules that timm counts as stages, in order of execution."""
        entries = getattr(self.module, "feature_info", None) or []
        names = [entry["module"] for entry in (entries if isinstance(entries, list) else entries.info)]
        return tuple(names) if len(set(names)) == len(names) else tuple(f"stage{i}" for i in range(len(names)))

    def outputs(self, module: nn.Module, x: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Run all of the model, with its stages; see :class:`ModuleAdapter`."""
        model: Any = module
        final, maps = model.forward_intermediates(x, norm=False, output_fmt="NCHW")
        return model.forward_head(final), dict(zip(self.stages, maps, strict=True))

    def _stage(self, x: Tensor, layer: str) -> Tensor:
        model: Any = self.module
        indices = [self.stages.index(layer)]
        found: Tensor = model.forward_intermediates(
            x, indices=indices, norm=False, stop_early=True, output_fmt="NCHW", intermediates_only=True
        )[0]
        return found

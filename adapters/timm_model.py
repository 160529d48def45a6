"""Adapter of timm's models: stages come from ``forward_intermediates``, token grids from the patch embedding."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from torch import Tensor, nn

from erfscope.adapters.module import ModuleAdapter
from erfscope.errors import MeasurementError
from erfscope.geometry.layout import Layout, recognise


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

    def _run(self, x: Tensor, layer: str) -> Any:
        if not self._is_stage(layer):
            return super()._run(x, layer)
        model: Any = self.module
        indices = [self.stages.index(layer)]
        return model.forward_intermediates(
            x, indices=indices, norm=False, stop_early=True, output_fmt="NCHW", intermediates_only=True
        )[0]

    def _map(self, output: Any, layer: str, tap: Any) -> Tensor:
        if not self._is_stage(layer):
            return super()._map(output, layer, tap)
        if not isinstance(output, Tensor) or output.ndim != 4:
            raise MeasurementError(f"stage {layer!r} of {self.spec} gives no (B, C, h, w) map; choose another layer")
        return output

    def outputs(self, module: nn.Module, x: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Run all of the model, with its stages; see :class:`ModuleAdapter`."""
        model: Any = module
        final, maps = model.forward_intermediates(x, norm=False, output_fmt="NCHW")
        return model.forward_head(final), dict(zip(self.stages, maps, strict=True))

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        if self.prefix_tokens is None:
            self.prefix_tokens = getattr(module, "num_prefix_tokens", 0) or 0

    def _guess(self, shape: tuple[int, ...], space: tuple[int, ...]) -> Layout | None:
        if len(shape) == 3 and hasattr(self.module, "unroll"):
            # Hiera keeps its tokens in the order of its mask units, not row by row; only its stages are folded back.
            return None
        prefer_last = getattr(self.module, "output_fmt", None) == "NHWC"
        return recognise(shape, space, prefix=self.prefix_tokens or 0, grid=self._grid(space), prefer_last=prefer_last)

    def _grid(self, space: tuple[int, ...]) -> tuple[int, ...]:
        return _token_grid(self.module, space)


def _token_grid(module: nn.Module, space: tuple[int, ...]) -> tuple[int, ...]:
    """The grid that the model's patch embedding makes of an input of this size; () if it does not say."""
    embedding: Any = getattr(module, "patch_embed", None)
    if hasattr(embedding, "dynamic_feat_size"):
        size: tuple[int, ...] = tuple(embedding.dynamic_feat_size(space))
        return size
    grid = getattr(embedding, "grid_size", None)
    return tuple(grid) if isinstance(grid, tuple | list) else ()

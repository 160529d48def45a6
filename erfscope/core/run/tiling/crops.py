"""How a model is run on the crops of an image, and which tensor of its pass a plan is of."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapters.layer_name import parse, pick
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.state import evaluation_mode, hooked
from erfscope.adapters.weights.weights import sha256
from erfscope.core.run.tiling.plan import Tiling
from erfscope.core.system.containers import parts_of
from erfscope.core.system.environment import ran_out
from erfscope.core.system.model_errors import contain_exits, first_line
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.names import OUTPUT
from erfscope.core.values.unit import size_text


class CropModel:
    """A model as a function of crops (B, C, *space) that gives the map of a plan, inside :meth:`ready`.

    Args:
        model: A function or a module of crops, or the adapter of a module that is called in another way.
        plan: What it is run for: a layer, or one of the tensors that the model returns.
    """

    def __init__(self, model: Callable[[Tensor], Any] | ModuleAdapter, plan: Tiling) -> None:
        self.model, self.plan = model, plan
        self.module = model.module if isinstance(model, ModuleAdapter) else model

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Put the module of an adapter into evaluation mode for the time of the block, as it is measured.

        Raises:
            ErfscopeError: a module in training mode is given.
        """
        if isinstance(self.model, ModuleAdapter):
            with evaluation_mode(self.model.module):
                yield
            return
        for name, part in self.module.named_modules() if isinstance(self.module, nn.Module) else ():
            if getattr(part, "training", False):  # a frozen scripted one has no such flag
                what = name or "the model"
                text = f"{what} is in training mode, where tiles see other statistics; call model.eval() first"
                raise ErfscopeError(text)
        yield

    @property
    def fingerprint(self) -> list[str | None]:
        """The digests of the types of a module's parts and of its weights (None where these have no plain numbers); of
        a function its name."""
        if not isinstance(self.module, nn.Module):
            return [getattr(self.module, "__qualname__", type(self.module).__qualname__)]
        types = " ".join(type(module).__qualname__ for module in self.module.modules())
        return [hashlib.sha256(types.encode()).hexdigest(), sha256(self.module)]

    def __call__(self, crops: Tensor) -> Tensor:
        """Run the model, on its device and in its dtype: the map of the plan's layer, or of what the model returns,
        channels first, (B, C, *space).

        Raises:
            ErfscopeError: there is no such map.
            MeasurementError: the model fails.
        """
        crops = crops.to(*self._place())
        output = self._of_layer(crops) if self.plan.layer else self._returned(crops)
        if not isinstance(output, Tensor):
            text = f"the plan's output is a tensor, and the model returned {type(output).__name__}"
            raise ErfscopeError(f"{text}; run what the plan was made of, the adapter of erfscope.wrap, say")
        space = self.plan.output_size(tuple(crops.shape[2:]))
        if (
            output.shape[-len(space) :] != space == output.shape[1:-1]
        ):  # timm's Swin has its channels last; its stages have them first
            output = output.movedim(-1, 1)
        if output.shape[-len(space) :] != space:
            raise ErfscopeError(f"the plan is for a map (B, C, *{space}), and the model gave {tuple(output.shape)}")
        return output

    def _place(self) -> tuple[torch.device, torch.dtype] | tuple[()]:
        """Device and dtype of a module; nothing for a function, which takes crops as they are."""
        if isinstance(self.model, ModuleAdapter):
            return self.model.device, self.model.dtype
        for parameter in self.module.parameters() if isinstance(self.module, nn.Module) else ():
            if parameter.is_floating_point():
                return parameter.device, parameter.dtype
        return ()

    def _returned(self, crops: Tensor) -> Any:
        output, _ = self._run(crops)
        for key in self.plan.path:
            output = parts_of(output)[key]
        return output

    def _of_layer(self, crops: Tensor) -> Any:
        """The map of a layer: a stage, or what a hook on its module sees."""
        layer, seen = parse(self.plan.layer), dict[str, Any]()
        modules = self.module.named_modules() if isinstance(self.module, nn.Module) else ()
        part = {name or OUTPUT: each for name, each in modules}.get(layer.module)
        if part is None and self.plan.layer not in getattr(self.model, "stages", ()):
            raise ErfscopeError(
                f"the plan is for layer {self.plan.layer!r}, and the model has no such module; plan for what it returns"
            )
        hooks = [] if part is None else [part.register_forward_hook(lambda _module, _args, out: seen.update(map=out))]
        with hooked(hooks):
            output, stages = self._run(crops)
        if self.plan.layer in stages:
            return stages[self.plan.layer]
        return pick(output if layer.module == OUTPUT else seen.get("map"), layer, self.plan.layer)

    def _run(self, crops: Tensor) -> tuple[Any, Mapping[str, Tensor]]:
        """What the model returns, and the stages of an adapter's."""
        try:
            with contain_exits():
                if isinstance(self.model, ModuleAdapter):
                    return self.model.outputs(self.model.module, crops)
                return self.model(crops), {}
        except Exception as error:  # anything a model may raise
            hint = "give smaller tiles" if ran_out(error) else "give images, such as (C, H, W), as the model takes them"
            size = size_text(tuple(crops.shape[2:]))
            text = f"{self.plan.model} fails on a crop of {crops.shape[1]} channels at {size}"
            raise MeasurementError(f"{text}: {first_line(error)}; {hint}") from error

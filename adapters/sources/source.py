"""The model that a spec names, and the options that it is built with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.preprocess import InputConfig, Numbers, module_config
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.model_facts import Weights

#: Most layers, blocks or stages that a configuration may ask for: a hundred times those of the deepest public model.
MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The model that a spec names."""

    module: nn.Module
    #: The spec without its label.
    spec: str
    weights: Weights
    #: What it expects of an image; None where its own adapter or its example inputs say so.
    config: InputConfig | None = None
    #: Sentences about the model for the report.
    notes: tuple[str, ...] = ()
    #: Makes its adapter; None where that follows from the module.
    adapter: Callable[..., ModuleAdapter] | None = None
    #: Arguments of a model that takes several, by position, or in a mapping by keyword; None for one image.
    example_inputs: Any = None
    #: How it is called on them, (module, *arguments), by parameters with names; None for ``module(*arguments)``.
    forward: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options that a model is built with; None stands for the model's own value."""

    #: "auto", "pretrained", "random" or "random-raw". Factories and exported programs ignore it: they bring their
    #: weights.
    weights: str = "auto"
    #: Of random weights, and of the generators while a factory runs.
    seed: int = 0
    #: Spatial size, one to three numbers. Models of a fixed size are built for it.
    input_size: tuple[int, ...] | None = None
    in_chans: int | None = None
    #: Of the normalisation, one number or one per channel; ImageNet's where the model has none of its own.
    mean: Numbers = None
    std: Numbers = None
    #: Keywords for the function that builds the model.
    model_kwargs: Mapping[str, object] = field(default_factory=dict)
    #: Also read files that may run code: pickled weights, exported programs.
    unsafe_load: bool = False

    def input_config(self, module: nn.Module, spec: str) -> InputConfig:
        """What the model expects of an image, as :func:`module_config` finds it, with these options."""
        return module_config(
            module, spec, input_size=self.input_size, in_chans=self.in_chans, mean=self.mean, std=self.std
        )


def refuse_deep(config: Mapping[str, Any], spec: str) -> None:
    """Refuse a configuration that asks for more layers than any model has: libraries make lists of them before they
    build a module.

    Raises:
        ErfscopeError: it does.
    """
    for name, value in config.items():
        numbers = value if isinstance(value, list | tuple) else [value]
        if re.search("depth|layer|block|repeat|stage", str(name)):
            for number in numbers:
                if isinstance(number, int | float) and number > MOST_LAYERS:
                    raise ErfscopeError(f"the configuration of {spec!r} asks for {name}={str(number)[:20]}; correct it")

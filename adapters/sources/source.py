"""What a spec names, and what was asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from erfscope.adapter import Weights
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.preprocess import InputConfig, Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model that a spec named."""

    module: nn.Module
    #: Without the label.
    spec: str
    weights: Weights
    config: InputConfig
    #: What a reader of the results has to know.
    notes: tuple[str, ...] = ()
    #: Makes its adapter; None where that follows from the module.
    adapter: Callable[..., ModuleAdapter] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What was asked of a model besides its name; its own is taken for what is None."""

    #: "auto", "pretrained", "random" or "random-raw"; a factory and an exported program have weights of their own,
    #: whatever is asked.
    weights: str = "auto"
    #: Of random weights, and of the generators while a factory runs.
    seed: int = 0
    #: Spatial size, one to three numbers. Models of a fixed size are built for it.
    input_size: tuple[int, ...] | None = None
    in_chans: int | None = None
    #: Of the normalisation, one number or one per channel; ImageNet's where the model has none of its own.
    mean: Numbers = None
    std: Numbers = None
    #: Passed to whatever builds the model.
    model_kwargs: Mapping[str, object] = field(default_factory=dict)
    #: Also read files that may run code: pickled weights, exported programs.
    unsafe_load: bool = False

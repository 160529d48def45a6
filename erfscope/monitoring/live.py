"""A live model that is measured again and again: its structure is recorded once, its weights are hashed each time."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import nn

from erfscope.adapters import ModuleAdapter
from erfscope.adapters.weights.weights import sha256
from erfscope.api.models import feed_of, load_model
from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError
from erfscope.options.keywords import Options, sizes
from erfscope.stimuli.feed import Feed

Live = nn.Module | ModuleAdapter


def module_of(model: Live) -> nn.Module:
    """The module itself.

    Raises:
        ErfscopeError: something else, such as a spec.
    """
    if not isinstance(model, nn.Module | ModuleAdapter):
        raise ErfscopeError(
            f"a monitor follows a live nn.Module, not {type(model).__name__}; erfscope.analyze takes a spec"
        )
    return model.module if isinstance(model, ModuleAdapter) else model


def part_of(model: nn.Module, part: str | None) -> nn.Module:
    """The network of that name inside a model; the model itself where ``part`` is None.

    Raises:
        ErfscopeError: there is no such part.
    """
    try:
        return model if part is None else model.get_submodule(part)
    except AttributeError as error:
        raise ErfscopeError(f"{type(model).__name__} has no part {part!r}: {error}") from error


def opened(model: Live, options: Options) -> tuple[LoadedModel, Feed]:
    """A live model at the input size asked for, and the images that the options name."""
    # The record of its weights is replaced later on; a caller's own adapter stays as it is.
    own = copy.copy(model) if isinstance(model, ModuleAdapter) else model
    loaded = load_model(own, options, size=sizes(options.get("input_size"))[0], weights="auto")
    return loaded, feed_of(options, loaded.adapter.preprocess)


def hash_weights(loaded: LoadedModel) -> None:
    """Record the hash of the model's present weights."""
    adapter = loaded.adapter
    adapter.weights = replace(adapter.weights, sha256=sha256(adapter.module))

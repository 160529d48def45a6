"""Where a block can be inserted into a model: modules that run once and return a map."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from erfscope.adapters.module import ModuleAdapter
from erfscope.errors import ErfscopeError, unknown
from erfscope.geometry.layout import Layout
from erfscope.geometry.names import OUTPUT

_STAGE = re.compile(r"stages\[(-?\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A module whose output a block can take."""

    layout: Layout
    channels: int
    space: tuple[int, ...]


def places(adapter: ModuleAdapter) -> dict[str, Place]:
    """Every module whose output a block can take: it runs once per forward pass and returns a map of more than one
    position.

    Args:
        adapter: The model, at its input size.

    Returns:
        By name, in the order of execution; maps may be (B, C, h, w), (B, h, w, C) or tokens, and clips likewise.
    """
    return {name: found for name, found in _outputs(adapter).items() if isinstance(found, Place)}


def place_called(adapter: ModuleAdapter, text: str) -> tuple[str, Place]:
    """Find a place by name.

    Args:
        adapter: The model, at its input size.
        text: Name of a module, or ``stages[-2]``.

    Raises:
        ErfscopeError: no such place, or one that cannot take a block; the message says why, and names others.
    """
    at = _name(adapter, text)
    outputs = _outputs(adapter)
    good = [name for name, found in outputs.items() if isinstance(found, Place)]
    found = outputs.get(at)
    if isinstance(found, Place):
        return at, found
    if at not in dict(adapter.module.named_modules()) or at == "":
        raise unknown(
            "insertion point", at, [*(s for s in adapter.stages if s in good), *good], where=adapter.spec, limit=12
        )
    reason = found or "does not run in a forward pass"
    near = [*(s for s in adapter.stages if s in good), *good][:12]
    raise ErfscopeError(
        f"no block can be inserted at {at!r} of {adapter.spec}: it {reason}; choose one of: {', '.join(near) or 'none'}"
    )


def _name(adapter: ModuleAdapter, text: str) -> str:
    """A place's name, with ``stages[-2]`` resolved."""
    match = _STAGE.fullmatch(text)
    if match is None or text in dict(adapter.module.named_modules()):
        return text
    try:
        return adapter.stages[int(match[1])]
    except IndexError:
        found = (
            f"has {len(adapter.stages)} stages: {', '.join(adapter.stages)}" if adapter.stages else "declares no stages"
        )
        raise ErfscopeError(f"there is no {text}: {adapter.spec} {found}") from None


def _outputs(adapter: ModuleAdapter) -> dict[str, Place | str]:
    """Find for every module that runs its place for a block, or why a block cannot take its output."""
    recording = adapter.recording
    found: dict[str, Place | str] = {}
    for name, seen in recording.modules.items():
        if name.endswith(":in") or name == OUTPUT:
            continue
        module, bracket, _ = name.partition("[")
        if bracket:
            found[module] = "returns a container of tensors"
        elif seen.calls > 1:
            found[name] = f"runs {seen.calls} times per forward pass, so that the block would too"
        else:
            layout = recording.reading_of(seen).layout
            space = () if layout is None else layout.space(seen.shape)
            is_map = layout is not None and max(space) > 1
            found[name] = (
                Place(layout=layout, channels=layout.map_shape(seen.shape)[1], space=space)
                if layout is not None and is_map
                else f"returns {tuple(seen.shape)}, which is no map of several positions"
            )
    for name, module in adapter.module.named_modules():
        if isinstance(module, nn.Sequential) and not len(module) and name in found:
            found[name] = "is empty"
    return found

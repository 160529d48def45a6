"""Blocks inserted into a model, and the model without them measured beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erfscope.adapters import ModuleAdapter
from erfscope.adapters.insertion import BlockRequest, inserted, parse
from erfscope.adapters.layer_name import parse as parse_layer
from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError
from erfscope.geometry.names import IMAGE
from erfscope.options.keywords import Building, alphas
from erfscope.options.settings import SEED_LIMIT


def parse_blocks(given: Any) -> list[BlockRequest]:
    """The blocks that the option ``insert`` names; [] for none.

    Args:
        given: ``"BLOCK@LAYER:k=v"``, a pair (block, layer), or several of these.

    Raises:
        ErfscopeError: one of them is neither.
    """
    if given is None:
        return []
    if isinstance(given, str) or (
        isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], str | tuple)
    ):
        given = [given]
    found = []
    for each in given:
        if isinstance(each, str):
            found.append(parse(each))
        elif isinstance(each, Sequence) and len(each) == 2 and isinstance(each[1], str):
            found.append(BlockRequest(block=each[0], at=each[1]))
        else:
            raise ErfscopeError(f"insert takes 'BLOCK@LAYER:k=v' or (block, layer), one or several, not {each!r}")
    return found


def with_blocks(loaded: LoadedModel, options: Building) -> list[LoadedModel]:
    """The model with all blocks that the options insert, one for each alpha; [] where they insert none.

    Raises:
        ErfscopeError: an unknown block, option or place.
    """
    blocks = parse_blocks(options.get("insert"))
    if not blocks:
        return []
    found = []
    for alpha in alphas(options.get("alpha")):
        adapter: Any = loaded.adapter
        for number, block in enumerate(blocks):
            wake = None if adapter.weights.source != "random-raw" else False
            seed: Any = options.get("seed", 0)
            # Two blocks of one kind are not one and the same.
            adapter = inserted(adapter, block, alpha=alpha, seed=(seed + number) % SEED_LIMIT, wake=wake)
        label = f"{loaded.label} + {' + '.join(adapter.inserted)}" + ("" if alpha is None else f", alpha {alpha:g}")
        text = ", ".join(block.text for block in blocks)
        # Findings on the blocks themselves stand among the adapter's remarks.
        found.append(
            LoadedModel(
                adapter=adapter, label=label, insert=text, alpha=alpha, weights_findings=loaded.weights_findings
            )
        )
    return found


def host_reference(loaded: LoadedModel, variants: Sequence[LoadedModel], layer: str, wrt: str) -> str | None:
    """What to differentiate the host with respect to, beside its variants' ``wrt``; None where the layer or the
    reference is a block's own.

    A block's input is what the host's module at that place returns.
    """
    adapter: Any = loaded.adapter
    places = variants[0].adapter.inserted if isinstance(variants[0].adapter, ModuleAdapter) else {}
    modules = {*adapter.layer_names, IMAGE, ""}
    if layer and parse_layer(layer).module not in modules:
        return None
    if wrt == IMAGE:
        return wrt
    name = parse_layer(wrt)
    if name.is_input and name.module in places:
        return places[name.module]
    return wrt if name.module in modules else None

"""Blocks inserted into a model, and edits of it, and the model without them measured beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erfscope.adapters import ModuleAdapter
from erfscope.adapters.edits import EditRequest, edited_adapter, parse_edits
from erfscope.adapters.insertion import BlockRequest
from erfscope.adapters.layer_name import parse as parse_layer
from erfscope.core.request.request import Request
from erfscope.core.request.settings import Settings
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.names import IMAGE


def parse_blocks(given: Any) -> list[BlockRequest | EditRequest]:
    """The blocks and edits that the option ``insert`` names.

    Args:
        given: ``"BLOCK@LAYER:k=v"``, ``"LAYER: dilation=2"``, a pair (block, layer), or several of these.

    Raises:
        ErfscopeError: one of them is none of these.
    """
    if isinstance(given, str) or (
        isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], str | tuple)
    ):
        given = [given]
    found: list[BlockRequest | EditRequest] = []
    for each in given:
        if isinstance(each, str):
            found += parse_edits(each)
        elif isinstance(each, Sequence) and len(each) == 2 and isinstance(each[1], str):
            found.append(BlockRequest(block=each[0], at=each[1]))
        else:
            raise ErfscopeError(
                f"insert takes 'BLOCK@LAYER:k=v', 'LAYER: dilation=2' or (block, layer), one or several, not {each!r}"
            )
    return found


def with_blocks(loaded: OpenModel, request: Request) -> list[OpenModel]:
    """The model with all blocks and edits that the request names, one for each alpha; [] where it names none.

    Raises:
        ErfscopeError: an unknown block, option, place or edit, or an alpha of an edit.
    """
    if request.insert is None:
        return []
    blocks, found = parse_blocks(request.insert), []
    edits = [block.text for block in blocks if isinstance(block, EditRequest)]
    if edits and request.alphas != (None,):
        raise ErfscopeError(f"alpha scales what blocks add, and the edit {edits[0]!r} adds nothing; leave alpha out")
    for alpha in request.alphas if blocks else ():
        given: Any = loaded.adapter
        wake = None if given.weights.source != "random-raw" else False
        adapter = edited_adapter(given, blocks, alpha=alpha, seed=request.settings.seed, wake=wake)
        names = " + ".join([*edits, *adapter.inserted])
        # Findings on the blocks themselves stand among the adapter's remarks.
        found.append(
            OpenModel(
                adapter=adapter,
                label=f"{loaded.label} + {names}" + ("" if alpha is None else f", alpha {alpha:g}"),
                insert=", ".join(block.text for block in blocks),
                alpha=alpha,
                weights_findings=loaded.weights_findings,
                progress=loaded.progress,
            )
        )
    return found


def variant_of(loaded: OpenModel, request: Request) -> OpenModel:
    """The model with the blocks that the request inserts, under the first alpha; itself where it inserts none."""
    return next(iter(with_blocks(loaded, request)), loaded)


def host_reference(loaded: OpenModel, variants: Sequence[OpenModel], settings: Settings) -> str | None:
    """What to differentiate the host with respect to, beside its variants' reference; None where the layer or the
    reference is a block's own.

    A block's input is what the host's module at that place returns.
    """
    adapter: Any = loaded.adapter
    layer, wrt = settings.layer or "", settings.wrt
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

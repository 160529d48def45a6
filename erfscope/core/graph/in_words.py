"""The operations of a recorded pass in words, by the modules that run them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from erfscope.core.graph.graph import RecordedGraph, arguments, name_of, shape_of
from erfscope.core.system.torch_internals import schema_arguments

#: Arguments that change nothing of what is computed, and sizes, which follow from operations before.
_LEFT_OUT = (
    *("device", "layout", "pin_memory", "non_blocking", "memory_format", "momentum", "cudnn_enabled"),
    *("size", "shape"),
)


def operations_in_words(graph: RecordedGraph, node: fx.Node) -> dict[str, tuple[str, ...]]:
    """See :meth:`erfscope.core.graph.site.Site.operations_in_words`."""
    stack, needed = [node], set[fx.Node]()
    while stack:
        if (here := stack.pop()) not in needed:
            needed.add(here)
            stack += here.all_input_nodes
    found: dict[str, list[str]] = {}
    nodes = [each for each in graph.nodes if each in needed and each.op == "call_function"]
    modules = [str(each.meta.get("module", "")) for each in nodes]
    read: dict[fx.Node, str] = {}  # the last module on the way to each node
    for place, (each, module) in enumerate(zip(nodes, modules, strict=True)):
        read[each] = module or next(filter(None, (read.get(node, "") for node in each.all_input_nodes)), "")
        following = "" if read[each] else next(filter(None, modules[place:]), "")
        where = module or (f"behind {read[each]}" if read[each] else f"before {following}" if following else "")
        if each.target is not operator.getitem:
            found.setdefault(where, []).append(_in_words(graph, each))
    return {module: tuple(texts) for module, texts in found.items()}


def _in_words(graph: RecordedGraph, node: fx.Node) -> str:
    """One operation; numbers and words that are the default are left out."""
    usual = {each.name: each.default_value for each in schema_arguments(node.target) if each.has_default_value()}
    settings = [name_of(node)]
    for name, value in arguments(node).items():
        text = _value_in_words(graph, value)
        is_usual = name in usual and value == usual[name] and not isinstance(value, list)
        if name not in _LEFT_OUT and text and not is_usual:
            settings.append(f"{name}={text}")
    return " ".join(settings)


def _value_in_words(graph: RecordedGraph, value: Any) -> str:
    """A setting, the shape of a weight or the number that a constant is; "" for what another operation computes."""
    if isinstance(value, fx.Node):
        constant: Tensor | None = graph.constants.get(value)
        if constant is not None and constant.numel() == 1 and not constant.is_meta:
            return f"{constant.item():.6g}"
        return _value_in_words(graph, [*shape_of(value)]) if value in graph.held else ""
    if isinstance(value, list | tuple):
        return "x".join(filter(None, (_value_in_words(graph, each) for each in value)))
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).removeprefix("torch.") if isinstance(value, bool | int | str | torch.dtype) else ""

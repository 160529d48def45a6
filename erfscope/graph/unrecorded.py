"""The graph of a pass that cannot be recorded: names and shapes alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx, nn

from erfscope.containers import Path, tensors_in
from erfscope.graph.graph import Graph, Mark, by_name
from erfscope.graph.record import Forward
from erfscope.graph.rules.reading import rule


class _ForwardPass:
    """The operation that makes every tensor of such a pass, with what is read of operations of PyTorch."""

    __name__ = "forward_pass"
    tags = ()

    def __str__(self) -> str:
        return "forward pass"

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError("a pass that cannot be recorded cannot be run by its graph")


FORWARD_PASS = _ForwardPass()
rule(str(FORWARD_PASS), normalises=True)(lambda call: None)  # nothing is known of it
#: How such a graph was made.
UNRECORDED = "shapes of a pass"


def unrecorded(module: nn.Module, inputs: tuple[Tensor, ...], forward: Forward) -> Graph:
    """Run a module, and note what its parts take and give.

    Args:
        module: The module; it is run itself.
        inputs: Its arguments, with numbers.
        forward: How it is called.

    Returns:
        A graph in which every tensor is made from the inputs by one operation without a rule, so that all of them may
        be read for it.
    """
    graph, turns, marks = fx.Graph(), itertools.count(), list[Mark]()
    takes = [_with_shape(graph.placeholder(f"input_{i}"), tensor) for i, tensor in enumerate(inputs)]

    def nodes(tensors: Any) -> Mapping[Path, fx.Node]:
        found = tensors_in(tensors)
        return {p: _with_shape(graph.call_function(FORWARD_PASS, tuple(takes)), tensor) for p, tensor in found}

    with ExitStack() as stack, torch.no_grad():
        for name, part in module.named_modules():

            def after(_module: nn.Module, args: Any, output: Any, name: str = name) -> None:
                marks.append(Mark(nodes(dict(enumerate(args))), nodes(output), name, next(turns)))

            stack.callback(part.register_forward_hook(after).remove)
        returned = nodes(forward(module, *inputs))
    every = tuple(graph.nodes)
    return Graph(
        nodes=every,
        inputs=tuple(takes),
        live=frozenset(every),
        held={},
        constants={},
        marks=by_name(marks),
        returned=returned,
        by=UNRECORDED,
        calls_before_numbers=0,
        unfaithful={},
    )


def _with_shape(node: fx.Node, tensor: Tensor) -> fx.Node:
    node.meta.update(val=torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), no_grad=False)
    return node

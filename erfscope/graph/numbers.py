"""The numbers of tensors that do not depend on the input: indices, tables, masks."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, fx

from erfscope.graph.graph import Graph, evaluate, shape_of, value

#: Elements of the largest tensor that rules read.
LARGEST = 1 << 24


class Numbers:
    """Looks up, or computes from constants, what a node holds; None where it is large, or made of what has no numbers.

    Args:
        graph: The graph.
        tensors: The module's own tensors by name; those on the meta device have no numbers.
        is_complete: Whether large ones, and those on the meta device, are given too.
    """

    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor], *, is_complete: bool = False) -> None:
        self._graph, self._tensors, self._is_complete = graph, tensors, is_complete
        self._found: dict[fx.Node, Tensor | None] = {}

    def __call__(self, node: fx.Node) -> Tensor | None:
        """The numbers of a node."""
        if node not in self._found:
            is_large = math.prod(shape_of(node)) > LARGEST and not self._is_complete
            self._found[node] = None if is_large or node in self._graph.live else self._compute(node)
        return self._found[node]

    def _compute(self, node: fx.Node) -> Tensor | None:
        if node.op == "placeholder":
            found = self._graph.constants.get(node)
            found = self._tensors.get(self._graph.held.get(node, "")) if found is None else found
            return None if found is None or (found.is_meta and not self._is_complete) else found.detach()
        given = {each: self(each) for each in node.all_input_nodes}
        if not callable(node.target) or any(tensor is None for tensor in given.values()):
            return None
        with torch.no_grad():
            made = evaluate(node, given.__getitem__)
        # The default dtype may be another than where it was recorded.
        return made.to(value(node).dtype) if isinstance(made, Tensor) else made

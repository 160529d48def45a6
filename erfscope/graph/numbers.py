"""The numbers of tensors that do not depend on the input: indices, tables, masks."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, fx

from erfscope.graph.graph import Graph, evaluate, shape_of

#: Tensors of more elements count as unknown.
LARGEST = 1 << 24


class Numbers:
    """Looks up, or computes from constants, what a node holds; None where it is large, or made of what has no numbers.

    Args:
        graph: The graph.
        tensors: The module's own tensors by name; those on the meta device have no numbers.
    """

    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor]) -> None:
        self._graph, self._tensors = graph, tensors
        self._found: dict[fx.Node, Tensor | None] = {}

    def __call__(self, node: fx.Node) -> Tensor | None:
        """The numbers of a node."""
        if node not in self._found:
            self._found[node] = (
                None if math.prod(shape_of(node)) > LARGEST or node in self._graph.live else self._compute(node)
            )
        return self._found[node]

    def _compute(self, node: fx.Node) -> Tensor | None:
        if node.op == "placeholder":
            found = self._graph.constants.get(node)
            found = self._tensors.get(self._graph.held.get(node, "")) if found is None else found
            return None if found is None or found.is_meta else found.detach()
        given = {each: self(each) for each in node.all_input_nodes}
        if not callable(node.target) or any(tensor is None for tensor in given.values()):
            return None
        return evaluate(node, given.__getitem__)  # type: ignore[no-any-return]

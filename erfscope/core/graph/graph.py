"""A recorded forward pass: operations in order, what they read, and where modules' inputs and outputs are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx

from erfscope.core.system.containers import Path
from erfscope.core.system.torch_internals import schema_arguments


@dataclass(frozen=True, slots=True)
class Mark:
    """One call of a module: the nodes of the tensors that it took and gave, as its hooks saw them."""

    inputs: Mapping[Path, fx.Node]
    outputs: Mapping[Path, fx.Node]
    #: Name of the module, "" for the whole model, and the turn of this call among all calls, by when they end.
    module: str
    order: int


class Unfaithful(NamedTuple):
    """Something that a module does and the recorded operations do not show."""

    #: What it changes: "random" what the pass gives, "backward" the way of gradients back, "forward" neither of these.
    kind: Literal["random", "backward", "forward"]
    #: The module; "" for the model itself.
    module: str
    does: str

    @property
    def text(self) -> str:
        """One sentence, without its end."""
        return f"{self.module or 'the model'} {self.does}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedGraph:
    """One recorded forward pass, on inputs of one shape, the batch included."""

    #: Placeholders, then operations in order: functional ones of aten as autograd sees them, and ``operator.getitem``.
    #: ``meta["val"]`` is a tensor on the meta device (a tuple of them where a node gives several), ``meta["no_grad"]``
    #: whether it ran without gradients. What autocast casts is cast by operations: the graph is run without autocast.
    nodes: tuple[fx.Node, ...]
    #: Placeholders of the tensors among the model's arguments, in order.
    inputs: tuple[fx.Node, ...]
    #: Nodes whose value depends on an input.
    live: frozenset[fx.Node]
    #: Placeholders of the module's own tensors -> name in :func:`erfscope.core.system.containers.tensors_of`; weights
    #: may change.
    held: Mapping[fx.Node, str]
    #: Placeholders of tensors that the module does not hold -> the tensor.
    constants: Mapping[fx.Node, Tensor]
    #: Every call of a module that ended: "layer1.0"; "c@0", "c@1" for a module that is called twice. One
    #: that gives what it takes (``nn.Identity``, a dropout that is off) has one node for both.
    marks: Mapping[str, Mark]
    #: What the forward pass itself returned.
    returned: Mapping[Path, fx.Node]
    #: "shapes" where the recording needed no numbers; "path taken": right for inputs that take the same path;
    #: "shapes of a pass" where nothing but these could be noted.
    by: str
    #: Calls of modules that ended before the pass asked for numbers: these are the same on every path.
    calls_before_numbers: int
    #: Why autograd on these operations may differ from autograd on the module; empty where it does not.
    unfaithful: tuple[Unfaithful, ...]


def by_name(calls: Iterable[Mark]) -> dict[str, Mark]:
    """The calls of modules, in the order of their turns, under the names that :attr:`RecordedGraph.marks` has."""
    every: dict[str, list[Mark]] = {}
    for mark in calls:
        every.setdefault(mark.module, []).append(mark)
    return {
        f"{module}@{number}" if len(found) > 1 else module: mark
        for module, found in every.items()
        for number, mark in enumerate(found)
    }


def arguments(node: fx.Node) -> dict[str, Any]:
    """Arguments of an operation by the names of its schema, defaults included."""
    schema = schema_arguments(node.target)
    found = {each.name: each.default_value if each.has_default_value() else None for each in schema}
    return found | {each.name: given for each, given in zip(schema, node.args, strict=False)} | dict(node.kwargs)


def name_of(node: fx.Node) -> str:
    """Name of an operation without its overload: ``conv2d``."""
    return (
        str(node.target).split(".")[1] if node.op == "call_function" and "." in str(node.target) else str(node.target)
    )


def evaluate(node: fx.Node, value_of: Callable[[fx.Node], Any]) -> Any:
    """The result of an operation, given the values of its arguments."""
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value_of)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def value(node: fx.Node) -> Any:
    """The result of a node as it was recorded: tensors without numbers."""
    return node.meta["val"]


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Shape of what a node gives; () where that is no tensor."""
    return tuple(getattr(node.meta["val"], "shape", ()))


#: Elements of the largest tensor that rules read.
LARGEST = 1 << 24


class Numbers:
    """Looks up, or computes from constants, what a node holds; None where it is large, or made of what has no numbers.

    Args:
        graph: The graph.
        tensors: The module's own tensors by name; those on the meta device have no numbers.
        is_complete: Whether large ones, and those on the meta device, are given too.
    """

    def __init__(self, graph: RecordedGraph, tensors: Mapping[str, Tensor], *, is_complete: bool = False) -> None:
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

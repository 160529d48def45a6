"""A recorded pass by the names of its tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, fx

from erfscope.core.graph.graph import Numbers, RecordedGraph, shape_of
from erfscope.core.graph.rules.reading import Shape
from erfscope.core.graph.run import Crop
from erfscope.core.system.containers import Path
from erfscope.core.values.names import IMAGE, INPUT, OUTPUT
from erfscope.core.values.unit_kind import split_kind

#: Paths in what a recorded pass returns: of the model's own output, which the call gave, of the stages, and of several
#: inputs.
RETURNED, STAGES, INPUTS = "output", "stages", "inputs"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NamedTensor:
    """A tensor of the pass that can be asked for."""

    node: fx.Node
    shape: Shape
    #: Whether it is one of the model's stages, which the library declares to be (B, C, *space).
    stage: bool
    order: int
    #: How often the module ran; the tensor is that of the last call.
    calls: int


class Pass:
    """One recorded forward pass by names.

    Args:
        graph: The pass, of the images (B, C_in, *space) alone; it returns the stages under :data:`STAGES`, and several
            inputs, which are parts of the images, under :data:`INPUTS`.
        tensors: The module's own tensors by name.
    """

    def __init__(self, graph: RecordedGraph, tensors: Mapping[str, Tensor]) -> None:
        self.graph = graph
        #: How many images the pass was recorded with.
        self.images = shape_of(graph.inputs[0])[0]
        self.numbers = Numbers(graph, tensors)
        #: The inputs by name.
        self.inputs = {str(path[1]): node for path, node in graph.returned.items() if path[:1] == (INPUTS,)} or {
            IMAGE: graph.inputs[0]
        }
        #: What modules gave and got, by name, in the order of execution, and the stages.
        self.modules = _modules(graph)
        self.stages = _stages(graph, self.modules)
        #: What was cropped of it.
        self.crops: dict[object, Crop | None] = {}

    def find(self, name: str) -> NamedTensor | None:
        """The tensor that a name means, that of one call of a module, ``NAME@1``, among them; None for none. Units
        without a place are of the module's own tensor, not of the stage."""
        name, kind = split_kind(name)
        found = (None if kind else self.stages.get(name)) or self.modules.get(name)
        mark = self.graph.marks.get(name.removesuffix(INPUT))
        node = None if mark is None else mark.inputs.get((0,)) if name.endswith(INPUT) else mark.outputs.get(())
        if found is not None or mark is None or node is None:
            return found
        return NamedTensor(node=node, shape=shape_of(node), stage=False, order=mark.order, calls=1)

    def is_call(self, name: str) -> bool:
        """Whether a name means one of several calls of a module."""
        mark = self.graph.marks.get(call := split_kind(name)[0].removesuffix(INPUT))
        return mark is not None and mark.module != call


def _modules(graph: RecordedGraph) -> dict[str, NamedTensor]:
    """The tensors that modules took and gave, in the order of execution."""
    found: dict[str, NamedTensor] = {}
    marks = sorted(graph.marks.values(), key=lambda mark: mark.order)
    returned = {path[1:]: node for path, node in graph.returned.items() if path[:1] == (RETURNED,)}
    # A library's stages may come from another method than its output does.
    is_called = any(path[:1] == (STAGES,) for path in graph.returned)
    for module, calls in itertools.groupby(sorted(marks, key=lambda mark: mark.module), lambda mark: mark.module):
        every = list(calls)
        name, last = module or OUTPUT, every[-1]
        named = {name + _items(path): node for path, node in last.outputs.items() if name != OUTPUT or is_called}
        if (taken := last.inputs.get((0,))) is not None:
            named[name + INPUT] = taken
        for each, node in named.items():
            found[each] = NamedTensor(node=node, shape=shape_of(node), stage=False, order=last.order, calls=len(every))
    for path, node in returned.items():
        # What the caller gets: a function around the module may go on after it.
        found[OUTPUT + _items(path)] = NamedTensor(
            node=node, shape=shape_of(node), stage=False, order=len(marks), calls=1
        )
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def _stages(graph: RecordedGraph, modules: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    """The stages, which come when their modules do."""
    found = [(str(path[1]), node) for path, node in graph.returned.items() if path[:1] == (STAGES,)]
    return {
        name: NamedTensor(
            node=node,
            shape=shape_of(node),
            stage=True,
            order=modules[name].order if name in modules else len(graph.marks) + number,
            calls=1,
        )
        for number, (name, node) in enumerate(found)
    }


def _items(path: Path) -> str:
    return "".join(f"[{each}]" for each in path)

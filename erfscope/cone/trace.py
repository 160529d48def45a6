"""One forward pass up to a layer, without numbers, recorded operation by operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapter import Adapter
from erfscope.cone.cone import CellwiseCrop, InputCrop, cropped
from erfscope.cone.gradients import hooks_on, unnoticed_functions, watched_gradients
from erfscope.cone.memory import LargestOperations, pass_bytes
from erfscope.geometry.layout import Layout
from erfscope.trf.graph import Node
from erfscope.trf.record import record_on
from erfscope.trf.tapes.tape import Tape


@dataclass(slots=True)
class Trace:
    """What was seen. After a pass that failed half-way, what was seen until then."""

    tape: Tape = field(default_factory=lambda: _GradientTape())
    #: The tensor that each module got and the one that it gave, for modules that ran once with one tensor and nothing
    #: else.
    inputs: dict[str, Node] = field(default_factory=dict)
    outputs: dict[str, Node] = field(default_factory=dict)
    #: Memory that the pass and one backward pass take; see :func:`erfscope.cone.memory.pass_bytes`.
    bytes: int = 0
    #: Operations counted in each of them.
    flops: dict[str, int] = field(default_factory=dict)
    #: The nodes that crops of a module made, on entering and on leaving it: the first one, and the one after the last.
    made: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    #: The layer's map, read as (B, C, *space); None if it does not depend on the image.
    map: Node | None = None
    #: The tensor that the unit is differentiated with respect to, as the model holds it.
    reference: Node | None = None
    layout: Layout = field(default_factory=lambda: Layout(order="channels_first"))
    #: What may do anything to gradients, in words; "" where only the operations make them.
    changed_by: str = ""
    #: What may mix the gradients of a batch beside the operations, in words; "" where only the operations make them.
    mixed_by: str = ""


class _GradientTape(Tape):
    """A tape that also keeps whether an operation was part of the autograd graph."""

    def add(self, *made: Any, **options: Any) -> Node:
        node = super().add(*made, **options)
        node.arguments = (torch.is_grad_enabled(), *node.arguments)
        return node


def trace(
    adapter: Adapter,
    x: Tensor,
    layer: str,
    wrt: str,
    *,
    known: Mapping[str, Layout],
    input_crops: Sequence[InputCrop] = (),
    cellwise_crops: Sequence[CellwiseCrop] = (),
    into: Trace | None = None,
) -> Trace:
    """Run ``adapter.features`` with crops and note every operation.

    Args:
        adapter: A model on the meta device.
        x: Inputs (B, C_in, *space) on the meta device.
        layer: Layer name.
        wrt: Reference.
        known: Layouts of the layer and the reference.
        input_crops: Modules whose input is cropped.
        cellwise_crops: Modules that are run on a part of their input.
        into: Where to note; of use to the caller if the pass fails.

    Raises:
        ErfscopeError: what ``adapter.features`` raises.
        RecordingError: the model fails, or cannot run on the meta device.
    """
    found = into if into is not None else Trace()
    x = x.detach().requires_grad_(True)
    # With gradients, as when it is measured: a forward pass may look at whether they are recorded.
    with record_on(found.tape), torch.enable_grad(), watched_gradients(found.tape) as gradients:
        found.tape.start(x, range(2, x.dim()))
        try:
            with _watched(adapter.module, found, input_crops, cellwise_crops), LargestOperations() as operations:
                features = adapter.features(x, layer, wrt, known=known)
            gradients.changed_by = gradients.changed_by or unnoticed_functions(features.map, gradients.noticed)
        finally:
            found.changed_by = gradients.changed_by or hooks_on(adapter.module)
            found.mixed_by = found.changed_by or gradients.written_by
        found.map = found.tape.value(features.map)
        found.reference = gradients.node_of(features.reference.edge, found.tape)
        found.layout = features.reference.layout
    found.bytes = pass_bytes(features, x, adapter.module, operations)
    return found


@contextmanager
def _watched(
    module: nn.Module, found: Trace, input_crops: Sequence[InputCrop], cellwise_crops: Sequence[CellwiseCrop]
) -> Iterator[None]:
    """Keep the running modules, their inputs and outputs, and apply the crops between two looks."""
    tape, calls = found.tape, Counter[str]()
    cropped_ones = {crop.module for crop in input_crops} | {crop.module for crop in cellwise_crops}
    begun: dict[str, int] = {}

    def single(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node | None:
        alone = len(args) == 1 and isinstance(args[0], Tensor) and not kwargs
        return tape.value(args[0]) if alone else None

    def entering(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tape.modules.append(name)
        begun[name] = tape.flops
        if name in cropped_ones:
            single(args, kwargs)
            found.made.setdefault(name, []).append((len(tape.nodes), len(tape.nodes)))

    def entered(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[name] += 1
        node = single(args, kwargs)
        if name in cropped_ones:
            found.made[name][-1] = (found.made[name][-1][0], len(tape.nodes))
        if node is not None and calls[name] == 1:
            found.inputs[name] = node
        elif calls[name] > 1:
            found.inputs.pop(name, None)
            found.outputs.pop(name, None)

    def leaving(name: str, output: Any) -> None:
        if name in cropped_ones and isinstance(output, Tensor):
            tape.value(output)
            found.made[name].append((len(tape.nodes), len(tape.nodes)))

    def left(name: str, output: Any) -> None:
        node = tape.value(output) if isinstance(output, Tensor) else None
        if name in cropped_ones and isinstance(output, Tensor):
            found.made[name][-1] = (found.made[name][-1][0], len(tape.nodes))
        if node is not None and calls[name] == 1:
            found.outputs[name] = node
            found.flops[name] = tape.flops - begun[name]
        del tape.modules[tape.modules.index(name) :]

    named = [(name, m) for name, m in module.named_modules() if name]
    with ExitStack() as stack:
        for name, m in named:
            stack.callback(
                m.register_forward_pre_hook(lambda _m, a, k, name=name: entering(name, a, k), with_kwargs=True).remove
            )
            stack.callback(m.register_forward_hook(lambda _m, _a, out, name=name: leaving(name, out)).remove)
        stack.enter_context(cropped(module, input_crops, cellwise_crops))
        for name, m in named:
            stack.callback(
                m.register_forward_pre_hook(lambda _m, a, k, name=name: entered(name, a, k), with_kwargs=True).remove
            )
            stack.callback(m.register_forward_hook(lambda _m, _a, out, name=name: left(name, out)).remove)
        yield

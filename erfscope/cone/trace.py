"""One forward pass up to a layer, without numbers, recorded operation by operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from erfscope.adapter import Adapter
from erfscope.cone.cone import Cut, cropped
from erfscope.layout import Layout
from erfscope.trf.graph import Node
from erfscope.trf.recorder import Tape
from erfscope.trf.recording import taped


@dataclass(slots=True)
class Trace:
    """What was seen. After a pass that failed half-way, what was seen until then."""

    tape: Tape = field(default_factory=Tape)
    #: The first tensor that each module got, for modules that ran once.
    inputs: dict[str, Node] = field(default_factory=dict)
    #: The nodes that each cut made: the first one, and the one after the last.
    made: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: The layer's map, read as (B, C, *space); None if it does not depend on the image.
    map: Node | None = None
    #: The tensor that the unit is differentiated with respect to, as the model holds it.
    reference: Node | None = None
    layout: Layout = field(default_factory=lambda: Layout(order="channels_first"))


def trace(
    adapter: Adapter,
    x: Tensor,
    layer: str,
    wrt: str,
    *,
    known: Mapping[str, Layout],
    cuts: Sequence[Cut] = (),
    into: Trace | None = None,
) -> Trace:
    """Run ``adapter.features`` with cuts and note every operation.

    Args:
        adapter: A model on the meta device.
        x: Input (1, C_in, *space) on the meta device.
        layer: Layer name.
        wrt: Reference.
        known: Layouts of the layer and the reference.
        cuts: Modules whose input is cropped.
        into: Where to note; of use to the caller if the pass fails.

    Raises:
        ErfscopeError: what ``adapter.features`` raises.
        RecordingError: the model fails, or cannot run without numbers.
    """
    found = into if into is not None else Trace()
    with taped(found.tape):
        found.tape.start(x, range(2, x.dim()))
        with _watched(adapter.module, found, cuts):
            features = adapter.features(x, layer, wrt, known=known)
        found.map = found.tape.value(features.map)
        reference = features.reference.edge
        # Without gradients the reference is the tensor itself.
        found.reference = found.tape.value(reference) if isinstance(reference, Tensor) else None
        found.layout = features.reference.layout
    return found


@contextmanager
def _watched(module: nn.Module, found: Trace, cuts: Sequence[Cut]) -> Iterator[None]:
    """Keep the running modules and their inputs, and apply the cuts between the two looks."""
    tape, calls = found.tape, Counter[str]()

    def before(name: str, args: tuple[Any, ...]) -> None:
        tape.modules.append(name)
        if args and isinstance(args[0], Tensor):
            tape.value(args[0])
        found.made[name] = (len(tape.nodes), len(tape.nodes))

    def after(name: str, args: tuple[Any, ...]) -> None:
        calls[name] += 1
        node = tape.value(args[0]) if args and isinstance(args[0], Tensor) else None
        found.made[name] = (found.made[name][0], len(tape.nodes))
        if node is not None and calls[name] == 1:
            found.inputs[name] = node
        elif calls[name] > 1:
            found.inputs.pop(name, None)

    def left(name: str) -> None:
        del tape.modules[tape.modules.index(name) :]

    named = [(name, m) for name, m in module.named_modules() if name]
    with ExitStack() as stack:
        for name, m in named:
            stack.callback(m.register_forward_pre_hook(lambda _m, args, name=name: before(name, args)).remove)
        stack.enter_context(cropped(module, tuple(cuts)))
        for name, m in named:
            stack.callback(m.register_forward_pre_hook(lambda _m, args, name=name: after(name, args)).remove)
            stack.callback(m.register_forward_hook(lambda _m, _args, _out, name=name: left(name)).remove)
        yield

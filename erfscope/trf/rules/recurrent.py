"""Operations that PyTorch takes apart before they can be recorded: recurrent layers, and attention with a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from erfscope.trf.axes.place import other, renormalise
from erfscope.trf.graph import Edge, Node
from erfscope.trf.relate import related
from erfscope.trf.rules.mixing import doubted, up_to
from erfscope.trf.rules.registry import Answer, Call, RuleOutput, depends_on_all, rule

if TYPE_CHECKING:
    from erfscope.trf.tapes.tape import Tape

LAYERS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


class Composites(TorchFunctionMode):
    """Within it a recurrent layer is noted on every tape as one operation, and attention with a mask as such."""

    def __init__(self, *tapes: Tape) -> None:
        super().__init__()
        self.tapes = tapes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        # The other form, for packed sequences, takes the sizes of the batches second.
        if name in LAYERS and not kwargs and isinstance(args[2], (list, tuple)):
            return self._layer(name, func, args)
        out = func(*args, **kwargs)
        if name == "scaled_dot_product_attention" and _is_masked(*args, **kwargs):
            for tape in self.tapes:
                node = tape.value(out)
                if node is not None and tape.spatial:
                    tape.track(out).node = tape.add("attention mask", node.shape, RuleOutput(node.place, (doubted(Edge(node, None)),)))
        return out

    def _layer(self, name: str, func: Any, args: Any) -> Any:
        with _disable_current_modes():
            out = _hollow(args) if args[0].is_meta else func(*args)
        overload = getattr(torch.ops.aten, name).input
        for tape in self.tapes:
            tape.record(overload, dict(zip((a.name for a in overload._schema.arguments), args, strict=True)), {}, out)
        return out


def _is_masked(*args: Any, attn_mask: Tensor | None = None, is_causal: bool = False, **_: Any) -> bool:
    """Whether attention is told to close some gates; a mask of numbers may as well be a bias."""
    mask = args[3] if len(args) > 3 else attn_mask
    return is_causal or (len(args) > 5 and bool(args[5])) or (mask is not None and mask.dtype == torch.bool)


def _hollow(args: Any) -> tuple[Tensor, ...]:
    """The outputs without numbers: those of the last layer, (L, B, D H), and the last states, (layers D, B, H)."""
    x, given, both = args[0], args[1], args[7]
    states = tuple(torch.empty_like(state) for state in ([given] if isinstance(given, Tensor) else given))
    return x.new_empty(*x.shape[:-1], states[0].shape[-1] * (2 if both else 1)), *states


@rule(*LAYERS)
def recurrent(call: Call) -> Answer:
    """A recurrent layer over (L, B, C), or (B, L, C): an output reads what lies before it, or all where both directions are read."""
    node = call.node("input")
    if node is None or len(call.live) > 1 or len(node.shape) != 3:
        return [depends_on_all(call, i) for i in range(len(call.shapes))]
    along, across = (1, 0) if call.args["batch_first"] else (0, 1)
    words = f"{LAYERS[call.name]} over positions"
    made = None if call.args["bidirectional"] else up_to(node, along, words)
    pairs = [None if i == along else i for i in range(2)]
    place = renormalise(node.place.axes, (*node.place.dims[:2], other(call.shape[2])))
    edge = related(place, node, [*pairs, None], stays=True)
    if made is not None and edge.steps is not None and made.edges[0].steps is not None:
        number = node.place.full_axis(along)
        running = made.edges[0].steps
        edge = edge._replace(steps=tuple(running[i] if i == number else step for i, step in enumerate(edge.steps)))
    return [RuleOutput(place, (edge,), words), *(_last(call, node, across, i, words) for i in range(1, len(call.shapes)))]


def _last(call: Call, node: Node, across: int, output: int, words: str) -> RuleOutput:
    """The state after the last step: (layers, B, C)."""
    count, _, width = call.shapes[output]
    place = renormalise(node.place.axes, (other(count), node.place.dims[across], other(width)))
    return RuleOutput(place, (related(place, node, [1 if i == across else None for i in range(3)]),), words)

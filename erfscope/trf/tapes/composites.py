"""Operations that PyTorch takes apart before they can be recorded: recurrent layers, and attention with a mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from erfscope.trf.graph import Edge, RuleOutput
from erfscope.trf.rules.mixing import with_unknown_reads
from erfscope.trf.rules.recurrent import LAYERS
from erfscope.trf.tapes.tape import Tape


class CompositeMode(TorchFunctionMode):
    """Record a recurrent layer as one operation on every tape, and note which attention has a mask."""

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
                    tape.state_of(out).node = tape.add(
                        "attention mask", node.shape, RuleOutput(node.layout, (with_unknown_reads(Edge(node, None)),))
                    )
        return out

    def _layer(self, name: str, func: Any, args: Any) -> Any:
        with _disable_current_modes():
            out = _empty_outputs(args) if args[0].is_meta else func(*args)
        overload = getattr(torch.ops.aten, name).input
        for tape in self.tapes:
            tape.record(overload, dict(zip((a.name for a in overload._schema.arguments), args, strict=True)), {}, out)
        return out


def _is_masked(*args: Any, attn_mask: Tensor | None = None, is_causal: bool = False, **_: Any) -> bool:
    """Whether attention is told to close some gates; a mask of numbers may as well be a bias."""
    mask = args[3] if len(args) > 3 else attn_mask
    return is_causal or (len(args) > 5 and bool(args[5])) or (mask is not None and mask.dtype == torch.bool)


def _empty_outputs(args: Any) -> tuple[Tensor, ...]:
    """The outputs without numbers: those of the last layer, (L, B, D H), and the last states, (layers D, B, H)."""
    x, given, both = args[0], args[1], args[7]
    states = tuple(torch.empty_like(state) for state in ([given] if isinstance(given, Tensor) else given))
    return x.new_empty(*x.shape[:-1], states[0].shape[-1] * (2 if both else 1)), *states

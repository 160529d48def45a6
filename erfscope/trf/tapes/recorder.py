"""Runs a forward pass and notes every operation on tapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from erfscope.copies import empty_on_meta
from erfscope.trf.rules.registry import tensors
from erfscope.trf.tapes.signature import Signature, signature_of
from erfscope.trf.tapes.tape import Tape


def _normalised(
    func: torch._ops.OpOverload, signature: Signature, args: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor] | None:
    """What batch normalisation in eval mode returns on the meta device, where PyTorch takes it apart, slowly; None for
    anything else."""
    fixed = signature.name == "_native_batch_norm_legit_no_training" or (
        signature.name == "native_batch_norm" and args["training"] is False
    )
    x = args["input"] if fixed and func.namespace == "aten" else None
    return None if x is None or not x.is_meta else (empty_on_meta(x), x.new_empty(0), x.new_empty(0))


class RuleFault(AssertionError):
    """A rule failed. It is erfscope's fault, and must not pass for one of the model."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it every operation is noted on every tape; the first one counts the operations."""

    def __init__(self, *tapes: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tapes = tapes
        for tape in tapes:
            tape.constants = tapes[0].constants

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not isinstance(func, torch._ops.OpOverload):  # a higher-order operator: nothing is known of it
            out = func(*args, **(kwargs or {}))
            for tape in self.tapes:
                tape.unknown(str(func), args, kwargs or {}, out)
            return out
        signature = signature_of(func)
        given = dict(zip(signature.defaults, args, strict=False)) | (kwargs or {})
        filled = {name: given.get(name, default) for name, default in signature.defaults.items()}
        shapes = (
            {id(t): tuple(t.shape) for value in given.values() for t in tensors(value)} if signature.is_mutable else {}
        )
        out = _normalised(func, signature, filled) or func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.tapes[0].flops += count(*args, **(kwargs or {}), out_val=out)
        # What is written to is no constant any more, whatever is written.
        if signature.is_mutable or not any(
            self.tapes[0].value(t) is not None for value in given.values() for t in tensors(value)
        ):
            self.tapes[0].constants.follow(func, args, kwargs or {}, out)
        try:
            for tape in self.tapes:
                tape.record(func, filled, shapes, out)
        except Exception as error:
            raise RuleFault(
                f"the rule of {func} failed on {[tuple(t.shape) for t in tensors(list(filled.values()))]}"
            ) from error
        return out

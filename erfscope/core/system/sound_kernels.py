"""Kernels of PyTorch whose gradients are right in any order of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from erfscope.core.system.precision import without_cudnn

#: Norms by the statistics of a batch, which take other routes to the same kernels.
BY_STATISTICS = (
    functional.batch_norm,
    functional.instance_norm,
    torch.batch_norm,
    torch.instance_norm,
    torch.native_batch_norm,
)

#: Recurrent layers.
RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class SoundKernels(TorchFunctionMode):
    """Within it a frozen batch norm is computed as the affine map that it is, which also keeps its input out of the
    graph.

    Norms by statistics get their gradient in the order of memory that their kernels take. Recurrent layers are computed
    without cuDNN.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        words = kwargs or {}
        if func is functional.batch_norm and len(args) > 2 and args[1] is not None and not words.get("training"):
            return affine(args[0], args[1], args[2], words.get("weight"), words.get("bias"), words.get("eps", 1e-5))
        if func in RECURRENT:
            with without_cudnn():
                return func(*args, **words)
        out = func(*args, **words)
        if func in BY_STATISTICS:
            normed = out[0] if isinstance(out, tuple) else out
            if normed.requires_grad:
                normed.register_hook(Tensor.contiguous)
        return out


def affine(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """A frozen batch norm of (B, C, ...)."""
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    shape = (1, -1, *(1,) * (x.dim() - 2))
    return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(x.dtype)

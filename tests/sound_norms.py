"""Plain autograd without the fault of PyTorch's norms, for the oracles of tests."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Norms of which PyTorch 2.14's gradient is wrong on the CPU.
NORMS = (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm)


class sound_norms(TorchFunctionMode):
    """Within it the norms of a forward pass get their gradient in the order of memory in which they are right.

    PyTorch 2.14 mixes up channels and positions where a batch norm or an instance norm of one image (1, C, H, W), or
    (1, C, D, H, W), frozen or not, gets a gradient whose channels lie side by side in memory, as behind
    ``flatten(2).transpose(1, 2)``: it takes the gradient for one in the order of its input. Two images it computes
    rightly.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in NORMS and isinstance(out, Tensor) and out.requires_grad:
            out.register_hook(Tensor.contiguous)
        return out

"""Frozen BatchNorm folded into the convolution before it: the same numbers to rounding, with less to compute and to
keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from erfscope.attribution.batch_norm import ExactBatchNorm
from erfscope.cone.cone import FoldedBatchNorm

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


class _Folded(NamedTuple):
    weight: Tensor
    bias: Tensor
    #: The norm's running mean, by which its call is known.
    mean: Tensor


class Folding(ExactBatchNorm):
    """Within it convolutions carry the norm that follows them, and those norms do nothing. The model itself is not
    touched.

    Args:
        module: The model, in evaluation mode whenever it runs within.
        folds: Pairs of a convolution and the norm that alone reads its output, each of which runs once per forward
            pass.
    """

    def __init__(self, module: nn.Module, folds: Sequence[FoldedBatchNorm]) -> None:
        super().__init__()
        uses = Counter(id(p) for m in module.modules() for p in m._parameters.values() if p is not None)
        #: By the identity of the convolution's weight.
        self._folded: dict[int, _Folded] = {}
        #: Means of norms whose convolution has run and that have not yet.
        self._due: set[int] = set()
        for fold in folds:
            convolution, norm = module.get_submodule(fold.convolution), module.get_submodule(fold.norm)
            weight = convolution._parameters.get("weight")
            mean, variance = norm._buffers.get("running_mean"), norm._buffers.get("running_var")
            if weight is not None and mean is not None and variance is not None and uses[id(weight)] == 1:
                self._folded[id(weight)] = _fold(weight, convolution._parameters.get("bias"), norm, mean, variance)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        words = kwargs or {}
        if func in CONVOLUTIONS and len(args) > 1 and (found := self._folded.get(id(args[1]))) is not None:
            self._due.add(id(found.mean))
            if _is_channels_last(args[0]) and not _is_channels_last(found.weight):
                # Else the convolution puts its weight in the order of its input in every pass, forward and backward.
                found = found._replace(weight=found.weight.contiguous(memory_format=torch.channels_last))
                self._folded[id(args[1])] = found
            return func(args[0], found.weight, found.bias, *args[3:], **{k: v for k, v in words.items() if k != "bias"})
        if func is batch_norm and len(args) > 1 and id(args[1]) in self._due:
            self._due.discard(id(args[1]))
            return args[0]
        return super().__torch_function__(func, types, args, words)


def _is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _fold(weight: Tensor, bias: Tensor | None, norm: nn.Module, mean: Tensor, variance: Tensor) -> _Folded:
    """Weights of a convolution that does the norm's work too; the norm's scale and offset are computed in float64."""
    with torch.no_grad():
        scale = torch.rsqrt(variance.double() + float(norm.eps))  # type: ignore[arg-type]
        gain, shift = norm._parameters.get("weight"), norm._parameters.get("bias")
        if gain is not None:
            scale = scale * gain.double()
        offset = -mean.double() * scale
        if bias is not None:
            offset = offset + bias.double() * scale
        if shift is not None:
            offset = offset + shift.double()
        rows = scale.view(-1, *(1,) * (weight.dim() - 1))
        return _Folded(weight * rows.to(weight.dtype), offset.to(weight.dtype), mean)

"""Whether a forward pass may run with its channels last in memory, which convolutions are faster with: read off the
recorded pass."""

from __future__ import annotations

import torch
from torch import Tensor

from erfscope.cone.constants import is_pointwise
from erfscope.cone.trace import Trace
from erfscope.trf.graph import ancestors

#: Operations whose kernels take either order of memory and keep the one they are given, beside those that work on every
#: number alone. A view, or code outside PyTorch, may depend on the order.
_EITHER_ORDER = frozenset(
    (
        *(
            "image",
            "convolution",
            "native_batch_norm",
            "_native_batch_norm_legit_no_training",
            "cat",
            "split",
            "slice",
            "alias",
            "clone",
        ),
        *("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "mean", "constant_pad_nd", "hardswish"),
        *("upsample_nearest2d", "upsample_bilinear2d"),
    )
)
#: Pixels of a batch from which channels last is faster: two images of 224 x 224. Measured on two cores in float32,
#: forward and backward, times faster for 1, 2 and 10 such images and one of 640 x 640: resnet18 0.80, 1.00, 1.06, 1.15;
#: resnet50 1.03, 1.11, 1.25, 1.29; densenet121 1.15, 1.13, 1.15, 1.26; mobilenetv3_large 1.17, 1.19, 1.12, 1.23.
CHANNELS_LAST_PAYS = 2 * 224 * 224


def keeps_memory_order(trace: Trace) -> bool:
    """Return whether every operation from the image (B, C, H, W) to the map takes its input in any order of memory and
    keeps that order."""
    if trace.map is None or trace.changed_by or trace.tape.exposed or len(trace.tape.nodes[0].shape) != 4:
        return False
    names = [node.name for node in ancestors(trace.map)]
    return "convolution" in names and all(name in _EITHER_ORDER or is_pointwise(name) for name in names)


def faster_order(x: Tensor, images: int) -> torch.memory_format:
    """Return the order of memory in which convolutions of so many inputs like (1, C, H, W) are faster: channels last
    for many pixels."""
    pays = x.device.type == "cpu" and images * x.shape[2] * x.shape[3] >= CHANNELS_LAST_PAYS
    return torch.channels_last if pays else torch.preserve_format

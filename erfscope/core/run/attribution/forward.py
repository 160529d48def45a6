"""The forward pass of a batch, by the model itself or by the recorded operations, and what is asked of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from erfscope.core.adapter import Adapter, Features, Reference, cut_place
from erfscope.core.answer.convention import Convention
from erfscope.core.graph.run import Forward
from erfscope.core.graph.site import Site
from erfscope.core.run.attribution.readout import as_leaf
from erfscope.core.system.precision import float32_precision
from erfscope.core.system.sound_kernels import SoundKernels
from erfscope.core.values.errors import MeasurementError
from erfscope.core.values.layout import Layout
from erfscope.core.values.names import is_input
from erfscope.core.values.unit import Unit, around, box_at, inside

#: Pixels of a batch from which channels last is faster on a CPU: two images of 224 x 224. Measured on two cores in
#: float32, forward and backward, times faster for 1, 2 and 10 such images: resnet18 0.80, 1.00, 1.06; resnet50 1.03,
#: 1.11, 1.25; densenet121 1.15, 1.13, 1.15; mobilenetv3_large 1.17, 1.19, 1.12.
CHANNELS_LAST_PAYS = 2 * 224 * 224
#: How many random draws per image, or "all" for the exact sum over channels.
Draws = int | Literal["all"]
#: Takes the reference as a map (B, C_X, *space) and gives what is added to it.
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a model: the units of a layer, the reference they are differentiated with respect to, and how
    they are read."""

    site: Site
    #: Where the reference is one of several inputs: its place in the channels and cells of the tensor of all.
    place: tuple[slice, ...] | None = None
    #: Units of the layer's map.
    units: Sequence[Unit]
    convention: Convention
    #: Seed of the random signs.
    seed: int = 0
    #: Random draws per image; a convention without random signs needs and gets one.
    draws: Draws = 1


class ForwardPass(Protocol):
    """Inputs (B, C_in, *space), or the part of them that is needed -> each layer's map and its reference."""

    def __call__(self, x: Tensor, change: Change | None = None, *, with_gradients: bool = True) -> list[Features]:
        """Run the pass, in one graph of autograd (if ``with_gradients``), with ``change`` added to the reference.

        Whatever the caller's own mode is, gradients are as asked, and inference mode is off.
        """


@dataclass(frozen=True, slots=True)
class ModelForward:
    """The forward pass of the whole model, as far as layer and reference.

    Args:
        adapter: The model.
        question: What is asked of it.
        amp_dtype: Autocast dtype.
    """

    adapter: Adapter
    question: Question
    amp_dtype: torch.dtype | None = None

    def __call__(self, x: Tensor, change: Change | None = None, *, with_gradients: bool = True) -> list[Features]:
        """See :class:`ForwardPass`."""
        site = self.question.site
        with guarded(x.device, self.amp_dtype), torch.set_grad_enabled(with_gradients), self._changed(change):
            leaf = as_leaf(changed(x, change, self.question.place) if change is not None and is_input(site.wrt) else x)
            return [self.adapter.features(leaf, site)]

    def _changed(self, change: Change | None) -> contextlib.AbstractContextManager[None]:
        """Within it a module's tensor is changed as it is asked for."""
        wrt, hooks = self.question.site.wrt, self.question.site.hooks
        if change is None or is_input(wrt):
            return contextlib.nullcontext()
        if hooks is None:
            raise MeasurementError(
                f"how {wrt!r} of {self.adapter.spec} holds its map is not known, so that no noise can be put on it"
            )
        return self.adapter.shifted(wrt, partial(_plus, change, hooks[wrt]))


def changed(x: Tensor, change: Change, place: Sequence[slice] | None) -> Tensor:
    """Inputs with a change, of one of several the part at a place."""
    if place is None:
        return x + change(x)
    own, x = (slice(None), *place), x.clone()
    x[own] += change(x[own])
    return x


def _plus(change: Change, layout: Layout, tensor: Tensor) -> Tensor:
    """A tensor with a change of the map that it holds, and none beside it."""
    return tensor + layout.from_map(change(layout.to_map(tensor)), torch.zeros_like(tensor))


@dataclass(frozen=True, slots=True)
class GraphForward:
    """The forward pass by the operations that some units need; see :mod:`erfscope.core.graph.run`.

    Args:
        operations: With the weights that the module has.
        first: Where the part of the inputs that it is given begins, one pixel per axis.
        places: Of the reference of each target of the operations, as of a :class:`Question`.
    """

    operations: Forward
    first: Sequence[int]
    places: Sequence[tuple[slice, ...] | None] = (None,)

    def __call__(self, x: Tensor, change: Change | None = None, *, with_gradients: bool = True) -> list[Features]:
        """See :class:`ForwardPass`.

        Raises:
            MeasurementError: the operations need more of the inputs than is given.
        """
        plan, given = self.operations.plan, box_at(self.first, x.shape[2:])
        if around([plan.image, given]) != given:
            text = "a batch needs more of its images than one image alone"
            raise MeasurementError(f"{text}; use --batch-size 1 or --plain (batch_size=1, plain=True)")
        with guarded(x.device, whole_model=False), torch.set_grad_enabled(with_gradients):
            image = x[inside(plan.image, self.first)]
            if change is not None:
                (place,) = self.places
                image = changed(image, change, place and cut_place(place, [low for low, _ in plan.image]))
            if plan.is_of_image:
                image = as_leaf(image, faster_order(image))
            made = self.operations(image)
        features = list[Features]()
        for (found, edge), target, place in zip(made, plan.targets, self.places, strict=True):
            reference = Reference(
                edge=edge,
                layout=target.reference.layout,
                shape=tuple(edge.shape),
                origin=tuple(low for low, _ in plan.image) if edge is image else None,
                place=place,
            )
            features.append(Features(map=found, reference=reference))
        return features


@contextlib.contextmanager
def guarded(device: torch.device, amp_dtype: torch.dtype | None = None, *, whole_model: bool = True) -> Iterator[None]:
    """Gradients on and sound, inference mode off, and autocast only if asked for; whatever the caller's own mode is.

    Norms and recurrent layers of a model are computed as :class:`SoundKernels` does it; its graph (not ``whole_model``)
    does so by itself.
    """
    changes = torch.amp.is_autocast_available(device.type) and (
        amp_dtype is not None or torch.is_autocast_enabled(device.type)
    )
    autocast = (
        torch.autocast(device.type, dtype=amp_dtype, enabled=amp_dtype is not None)
        if changes
        else contextlib.nullcontext()
    )
    kernels = SoundKernels() if whole_model else contextlib.nullcontext()
    with torch.inference_mode(False), torch.enable_grad(), kernels, autocast:
        yield


@contextlib.contextmanager
def sound_gradients(device: torch.device) -> Iterator[None]:
    """PyTorch as erfscope differentiates a function: gradients on and sound, inference mode and autocast off, float32
    in full precision; whatever the caller's own modes and switches are, which are put back.

    Args:
        device: Where the function's tensors lie.
    """
    with float32_precision(tf32=False), guarded(device):
        yield


def faster_order(x: Tensor) -> torch.memory_format:
    """The order of memory in which convolutions of images (B, C, H, W) are faster."""
    pays = x.dim() == 4 and len(x) > 1 and x.device.type == "cpu" and x[:, 0].numel() >= CHANNELS_LAST_PAYS
    return torch.channels_last if pays else torch.preserve_format

"""What of a model's forward pass is computed for one unit: a plain result, and how it is applied."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from erfscope.geometry.box import Box, inside
from erfscope.geometry.layout import Layout
from erfscope.geometry.unit import Unit


@dataclass(frozen=True, slots=True)
class InputCrop:
    """A module whose input is cropped."""

    module: str
    #: First and last + 1 index along each dimension of the input as it arrives there, that is after the crops before;
    #: None for all.
    part: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class CellwiseCrop:
    """A module that is run on a part of its input; its output is put back in its place, among cells that nobody
    reads."""

    module: str
    #: First and last + 1 index along each dimension of the input that is used, None for all.
    part: tuple[tuple[int, int] | None, ...]
    #: Where along each dimension of the output the result belongs, None for all, and the output's whole shape.
    output_part: tuple[tuple[int, int] | None, ...]
    output_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoldedBatchNorm:
    """A convolution whose output a frozen BatchNorm, and nothing else, reads."""

    convolution: str
    norm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cone:
    """The part of one forward pass that one unit depends on."""

    layer: str
    wrt: str
    #: The unit in the layer's whole map.
    whole_unit: Unit
    #: The same unit in the map of the cropped pass.
    unit: Unit
    #: The part of the image that goes in.
    image: Box
    #: Modules whose input is cropped once more, in the order of execution.
    input_crops: tuple[InputCrop, ...] = ()
    #: Modules that are run on a part of their input.
    cellwise_crops: tuple[CellwiseCrop, ...] = ()
    #: Norms that may be folded into the convolution before them.
    folds: tuple[FoldedBatchNorm, ...] = ()
    #: Where the reference of the cropped pass lies in the whole one: the first cell along each axis.
    origin: tuple[int, ...]
    #: How the layer and the reference hold their maps, where that was recognised.
    layouts: Mapping[str, Layout]
    #: Whether the pass may run with its channels last in memory.
    keeps_memory_order: bool = False
    #: Multiply-adds of the forward pass up to the layer, in 10^9: of the whole image and of the cone.
    whole_gmacs: float
    gmacs: float
    #: Memory that one image takes, with its gradient, in bytes.
    bytes: int
    #: "operations" where the recorded operations show a crop to be exact; "" where nothing is cropped.
    shown_by: Literal["", "operations"] = ""
    #: Why nothing is cropped, or not more.
    reason: str = ""

    @property
    def share(self) -> float:
        """Share of the multiply-adds that is left."""
        return self.gmacs / self.whole_gmacs if self.whole_gmacs > 0 else 1.0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cropped."""
        return not self.shown_by

    def crops_like(self, other: Cone) -> bool:
        """Whether two cones need the same forward pass."""
        return (self.image, self.input_crops, self.cellwise_crops) == (
            other.image,
            other.input_crops,
            other.cellwise_crops,
        )

    def of_image(self, x: Tensor, first: Sequence[int] | None = None) -> Tensor:
        """The part of inputs (B, C_in, *space) that goes in; ``x`` may itself be the part that begins at ``first``."""
        part: Tensor = x[inside(self.image, first)]
        return part


@contextlib.contextmanager
def cropped(
    module: nn.Module, input_crops: Sequence[InputCrop], cellwise_crops: Sequence[CellwiseCrop] = ()
) -> Iterator[None]:
    """Crop the inputs of modules, and put the outputs of cellwise ones back, for the time of the block."""
    crops: list[InputCrop | CellwiseCrop] = [*input_crops, *cellwise_crops]
    handles = [module.get_submodule(crop.module).register_forward_pre_hook(_cropping(crop.part)) for crop in crops]
    handles += [module.get_submodule(crop.module).register_forward_hook(_putting_back(crop)) for crop in cellwise_crops]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cropping(part: Sequence[tuple[int, int] | None]) -> Any:
    index = tuple(slice(*(side or (None,))) for side in part)

    def crop(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # Contiguous, since every operation after it would otherwise make its own copy.
        return (args[0][index].contiguous(memory_format=_order_of(args[0])), *args[1:])

    return crop


def _putting_back(crop: CellwiseCrop) -> Any:
    here = tuple(slice(*(side or (None,))) for side in crop.output_part)
    one = tuple(slice(None) if side is None else slice(0, 1) for side in crop.output_part)

    def put_back(_module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        # One of the module's own cells stands in for those that nobody reads: zeros may have no finite derivative, and
        # 0 * inf is no 0.
        shape = [
            n if side is None else size
            for n, side, size in zip(output.shape, crop.output_part, crop.output_shape, strict=True)
        ]
        whole = output[one].detach().expand(shape).clone(memory_format=_order_of(output))
        whole[here] = output
        return whole

    return put_back


def _order_of(x: Tensor) -> torch.memory_format:
    """In which order a tensor lies in memory."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format

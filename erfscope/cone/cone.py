"""What of a model's forward pass is computed for one unit: a plain result, and how it is applied."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from erfscope.box import Box, inside
from erfscope.layout import Layout
from erfscope.unit import Unit


@dataclass(frozen=True, slots=True)
class Cut:
    """A module whose input is cropped."""

    module: str
    #: First and last + 1 index along each dimension of the input as it arrives there, that is after the cuts before; None for all.
    part: tuple[tuple[int, int] | None, ...]


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
    cuts: tuple[Cut, ...] = ()
    #: Where the reference of the cropped pass lies in the whole one: the first cell along each axis.
    origin: tuple[int, ...]
    #: How the layer and the reference hold their maps, where that was recognised.
    layouts: Mapping[str, Layout]
    #: Multiply-adds of the forward pass up to the layer, in 10^9: of the whole image and of the cone.
    whole_gmacs: float
    gmacs: float
    #: How it is known to be exact: the recorded operations show it, or a comparison in float64; "" where nothing is cropped.
    shown_by: Literal["", "operations", "comparison"] = ""
    #: Why nothing is cropped, or not more.
    reason: str = ""
    #: Whether a comparison in float64 was needed and spoke against a crop.
    refuted: bool = False

    @property
    def share(self) -> float:
        """Share of the multiply-adds that is left."""
        return self.gmacs / self.whole_gmacs if self.whole_gmacs > 0 else 1.0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cropped."""
        return not self.shown_by

    def of_image(self, x: Tensor, first: Sequence[int] | None = None) -> Tensor:
        """The part of inputs (B, C_in, *space) that goes in; ``x`` may itself be the part that begins at ``first``."""
        part: Tensor = x[inside(self.image, first)]
        return part


@contextlib.contextmanager
def cropped(module: nn.Module, cuts: tuple[Cut, ...]) -> Iterator[None]:
    """Crop the inputs of modules for the time of the block."""
    handles = [module.get_submodule(cut.module).register_forward_pre_hook(_cropping(cut)) for cut in cuts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cropping(cut: Cut) -> Any:
    index = tuple(slice(*(side or (None,))) for side in cut.part)

    def crop(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # Contiguous, since every operation after it would otherwise make its own copy.
        return (args[0][index].contiguous(), *args[1:])

    return crop

"""The seam between the core and the models: what the engine asks of a model, whatever kind of model it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from erfscope.core.values.layout import Layout
from erfscope.core.values.model_facts import Preprocess, Weights
from erfscope.core.values.names import IMAGE

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.autograd.graph import GradientEdge

    from erfscope.core.graph.named import Pass
    from erfscope.core.graph.recording import Recording
    from erfscope.core.graph.site import Site
    from erfscope.core.values.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The tensor X that a unit is differentiated with respect to."""

    #: What ``torch.autograd.grad`` takes as its input. An edge of the graph rather than the tensor: after an in-place
    #: operation the tensor object itself stands for something else.
    edge: Tensor | GradientEdge
    layout: Layout
    #: Shape of the tensor as the model holds it.
    shape: tuple[int, ...]
    #: The first cell of it along each axis of the map, where it is a part of the image; None if it is whole.
    origin: tuple[int, ...] | None = None
    #: Where one of several inputs lies in the channels and cells of the whole; None if it is all of it.
    place: tuple[slice, ...] | None = None

    def part(self, values: Tensor) -> Tensor:
        """What belongs to the input in maps (B, C, *space) of the reference."""
        if self.place is None:
            return values
        return values[:, *cut_place(self.place, self.origin)]

    @property
    def space(self) -> tuple[int, ...]:
        """Spatial size, one to three axes."""
        return self.layout.space(self.shape)


def cut_place(place: tuple[slice, ...], origin: Sequence[int] | None) -> tuple[slice, ...]:
    """Where an input lies in the part of the whole that begins at ``origin``."""
    channels, *sides = place
    first = origin or (0,) * len(sides)
    return channels, *(slice(0, max(side.stop - low, 0)) for side, low in zip(sides, first, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The map of a layer and the reference it was computed from, in one autograd graph."""

    #: (B, C, *space)
    map: Tensor
    reference: Reference


class Adapter(Protocol):
    """A model that the engine can measure. ``erfscope.adapters.load`` and ``erfscope.wrap`` make one."""

    module: nn.Module
    spec: str
    weights: Weights
    preprocess: Preprocess
    #: What the report should say about the model.
    notes: tuple[str, ...]
    #: The same, for findings of a code of their own.
    remarks: tuple[Finding, ...]
    #: Most images that one pass takes, as for an exported program of a fixed batch; None for any number.
    most_images: int | None
    #: Arguments that images do not take the place of, by name, and what each is.
    passed: Mapping[str, str]

    @property
    def device(self) -> torch.device:
        """Where inputs must lie."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that inputs must have."""

    @property
    def recording(self) -> Recording:
        """One recorded pass of the whole model, kept as long as the adapter (docs/graph.md, rule 4).

        Raises:
            MeasurementError: the model cannot run on an input of its size.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the module holds now, by the names that a recorded pass has for them."""

    def recorded_pass(self, images: int, *, exactly: bool = False) -> Pass:
        """A recorded pass of so many images, or (not ``exactly``) of more.

        Raises:
            RecordingError: the model does not take so many images.
        """

    @property
    def declared_layer(self) -> str | None:
        """The layer that is measured unless another is named, where the model's library says; None where the recorded
        pass must tell."""

    @property
    def default_layer(self) -> str:
        """The layer that is measured unless another is named."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The layers that the model's authors count as its stages, first to last."""

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Every name that can be asked for: the stages, then the modules; items of containers are written NAME[2] or
        NAME[key]."""

    def site(self, layer: str, wrt: str = IMAGE, *, shape: Sequence[int] | None = None) -> Site:
        """A layer and a reference in a recorded pass: of inputs of a shape (C, *space), the adapter's own by default.

        Raises:
            ErfscopeError: unknown layer or reference, one without a map, or a layer that does not depend on it.
        """

    def features(self, x: Tensor, site: Site) -> Features:
        """Run the model on ``x`` (B, C_in, *space), of the shape that the site was found for, as far as its layer.

        ``x`` is a leaf that requires grad where the reference is the image. Leaves the module as found, exceptions
        included. The forward pass ends as soon as layer and reference have been seen, where each runs once.

        Raises:
            MeasurementError: the layer was called more than once per forward.
        """

    def maps(self, x: Tensor, layers: Sequence[str], known: Mapping[str, Layout]) -> dict[str, Tensor]:
        """Run all of the model on ``x`` (B, C_in, *space), and return the map (B, C, *space) of each layer.

        ``known`` says how modules' tensors hold their maps, as :attr:`erfscope.core.graph.site.Site.hooks`. Leaves the
        module as found, exceptions included.

        Raises:
            ErfscopeError: unknown layer.
            MeasurementError: a layer has no spatial map, or was called more than once.
        """

    def shifted(self, reference: str, by: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
        """Within it the tensor that ``reference`` names, no image, is replaced by what ``by`` makes of it, before it is
        read."""

    def at_size(self, space: Sequence[int], *, wrt: str = IMAGE) -> Self:
        """The adapter for inputs of another size, of the same module; of several inputs that is the size of one, and
        the others grow with it."""

    def unit_names(self, kind: str) -> Mapping[str, Sequence[int]]:
        """Names of units without a place, ``"registers"`` or a class, with their indices."""

    def run(self, x: Tensor) -> None:
        """Run all of the model on ``x`` (B, C_in, *space)."""

    def examine(self, first: Callable[[], Tensor]) -> tuple[str, ...]:
        """Sentences on what a forward pass shows that a reader of results must know: parts that get no gradient.

        ``first`` gives the input (1, C_in, *space), and is called only where there is something to look at.
        """

    def hops(self, reference: str, space: tuple[int, ...], node: tuple[int, ...]) -> NDArray[np.float64] | None:
        """Hops from a node to all nodes, (*space), along the graph of the block whose input the reference is.

        None where that is no block on a graph, where the graph is the plain grid, and where it depends on the features.
        """

"""Which layers add no new pixels at an input size, from the recorded operations alone.

A layer is unproductive where its input already sees more than the image, also along the path that sees least: what it
combines are no new pixels (Richter et al. 2021, arXiv:2106.12307; 2022, arXiv:2211.14487)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from erfscope.core import Axes, ErfscopeError, OpenModel, Operation, to_json

#: A field that covers every input.
ALL = float("inf")
Sides = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetStructure:
    """The layers with weights of one model at one input size, in order of execution, and what each of them sees."""

    model: str
    input_size: tuple[int, ...]
    axes: Axes
    layers: tuple[Operation, ...]
    #: Of the whole model.
    params: int
    gmacs: float

    @property
    def in_place(self) -> tuple[Operation, ...]:
        """The layers of maps: a classifier, and what stands behind an operation that mixes all positions with no way
        around it, see everything at any size."""
        return tuple(each for each in self.layers if not each.is_head and ALL not in each.shortest_in)

    @property
    def classifies(self) -> bool:
        """Whether a classifier of the whole input follows."""
        return any(each.is_head for each in self.layers)

    def unproductive(self) -> tuple[Operation, ...]:
        """The layers whose input sees more than the image along every axis, also on the path that sees least."""
        return tuple(each for each in self.in_place if self._exceeds(each.shortest_in, all))

    def partly(self) -> tuple[Operation, ...]:
        """Those whose input does so along some axes only."""
        found = [each for each in self.in_place if self._exceeds(each.shortest_in, any)]
        return tuple(each for each in found if not self._exceeds(each.shortest_in, all))

    def critical(self) -> tuple[Operation, ...]:
        """The layers that go beyond the image themselves, and whose input does not: they see little that is new."""
        wasted = {*self.unproductive(), *self.partly()}
        found = (each for each in self.in_place if each not in wasted and ALL not in each.shortest)
        return tuple(each for each in found if self._exceeds(each.shortest, all))

    def border(self) -> Operation | None:
        """The first layer whose theoretical receptive field exceeds the image along every axis; None for none."""
        found = (each for each in self.in_place if ALL not in each.local)
        return next((each for each in found if self._exceeds(each.local, all)), None)

    def smallest(self) -> Sides:
        """The smallest input without unproductive layers."""
        return self._largest("shortest_in", self.in_place)

    def largest(self) -> Sides:
        """The largest input that some layer sees whole without an operation that mixes all positions."""
        return self._largest("local", self.in_place)

    def mixer(self) -> Operation | None:
        """The first layer that sees everything by an operation that mixes all positions, and yet works on positions."""
        return next((each for each in self.in_place if ALL in each.longest), None)

    def _exceeds(self, sides: Sides, how: Any) -> bool:
        return bool(how(side > whole for side, whole in zip(sides, self.input_size, strict=True)))

    def _largest(self, name: str, layers: Sequence[Operation]) -> Sides:
        found = [
            [side for side in each if side < ALL] for each in zip(*(getattr(x, name) for x in layers), strict=True)
        ]
        return tuple(max(sides, default=1.0) for sides in found)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; a field that covers every input is null."""
        names = {name: [each.name for each in getattr(self, name)()] for name in ("unproductive", "partly", "critical")}
        border = self.border()
        document: dict[str, Any] = to_json(
            {
                "model": self.model,
                "input_size": self.input_size,
                "params": self.params,
                "gmacs": self.gmacs,
                "border_layer": border.name if border else None,
                **names,
                "smallest_input": self.smallest(),
                "largest_input": self.largest(),
                "layers": self.layers,
            }
        )
        return document


def structure_of(model: OpenModel) -> NetStructure:
    """The layers with weights of a model and their fields, from its recorded pass.

    Raises:
        ErfscopeError: it takes several inputs, or its operations cannot be recorded.
        MeasurementError: it cannot run on an input of its size.
    """
    if len(model.inputs) > 1:
        raise ErfscopeError(f"{model.label} takes several inputs; advice is given on models of one")
    if not model.operations:
        raise ErfscopeError(
            f"no operation with weights of {model.label} could be recorded: there is nothing to advise on"
        )
    return NetStructure(
        model=model.label,
        input_size=model.input_size,
        axes=model.axes,
        layers=model.operations,
        params=model.cost.parameters,
        gmacs=model.cost.gmacs or 0.0,
    )

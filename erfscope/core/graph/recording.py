"""A model's recorded pass by the names of its layers: how each holds its map, and what its units can see at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, fx

from erfscope.core.graph.field import Fields
from erfscope.core.graph.graph import RecordedGraph
from erfscope.core.graph.layouts import Reading, varying_dim
from erfscope.core.graph.named import NamedTensor, Pass
from erfscope.core.graph.positions import GraphPositions
from erfscope.core.graph.rules.reading import Shape, call_of
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.layout import Layout
from erfscope.core.values.names import INPUT, OUTPUT
from erfscope.core.values.unit_kind import read_kind, split_kind

FIRST = Layout()
#: What a user can do about positions that are not known, besides naming another layer.
OR_SAY = (
    "say how this one is held with --layout (and --prefix-tokens for tokens beside the map), or take a unit without a"
    " place: --unit token:N, query:N, class:N or vector"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """A layer that holds a map."""

    name: str
    #: Shape of its output read as a map (1, C, *space).
    shape: Shape
    #: Whether the model's authors count it as a stage.
    stage: bool
    #: Position in the order of execution.
    order: int


class Recording(Pass):
    """A recorded pass with the places and the receptive fields of its tensors.

    Args:
        graph: As for :class:`Pass`.
        tensors: As for :class:`Pass`.
        guess: How a tensor of a shape would be read by it alone, and whether the user said so.
        needed_numbers: Why it could not be recorded without numbers; "" where it could.
    """

    def __init__(
        self,
        graph: RecordedGraph,
        tensors: Mapping[str, Tensor],
        guess: Callable[[Shape], tuple[Layout | None, bool]],
        needed_numbers: str = "",
    ) -> None:
        super().__init__(graph, tensors)
        self.needed_numbers, self._guess = needed_numbers, guess
        #: Whether the model was recorded with one image since it does not take two.
        self.takes_one_image = self.images == 1
        self.positions = GraphPositions(graph, self.numbers)
        self._readings: dict[NamedTensor, Reading] = {}
        self._fields: dict[fx.Node, Fields] = {}

    @cached_property
    def layers(self) -> tuple[LayerRecord, ...]:
        """Every layer whose output holds a map, in the order of execution."""
        found = [
            self._record(name, seen) for name, seen in (self.modules | self.stages).items() if not name.endswith(INPUT)
        ]
        return tuple(sorted(filter(None, found), key=lambda layer: layer.order))

    def layer(self, name: str) -> LayerRecord | None:
        """A layer that holds a map, one call of a module that runs several times among them; None for none."""
        found = next((each for each in self.layers if each.name == name), None)
        if found is not None or not (self.is_call(name) or split_kind(name)[1]) or (seen := self.find(name)) is None:
            return found
        return self._record(name, seen)

    def _record(self, name: str, seen: NamedTensor) -> LayerRecord | None:
        layout = self.reading_of_tensor(seen, split_kind(name)[1]).layout
        if layout is None:
            return None
        return LayerRecord(
            name=name,
            shape=(1, *layout.map_shape(seen.shape)[1:]),
            stage=name in self.stages,
            order=seen.order,
        )

    def known(self, name: str) -> NamedTensor:
        """The tensor that a layer name means.

        Raises:
            ErfscopeError: there is none.
        """
        if (seen := self.find(name)) is None:
            raise self._not_found("layer", split_kind(name)[0], [layer.name for layer in self.layers])
        return seen

    def _not_found(self, kind: str, name: str, known: Sequence[str]) -> ErfscopeError:
        """The error for a name that means no tensor: a module that gives several, or none at all."""
        items = [each for each in self.modules if each.startswith(f"{name}[")]
        if items:
            return ErfscopeError(f"{kind} {name!r} gives several tensors; name one of them: {', '.join(items[:8])}")
        return unknown(kind, name, dict.fromkeys(known))

    def reading(self, name: str) -> Reading:
        """How the tensor that a layer name means holds its map, or why it holds none, in words that follow its name.

        Raises:
            ErfscopeError: unknown layer.
        """
        return self.reading_of_tensor(self.known(name), split_kind(name)[1])

    def reading_of_tensor(self, seen: NamedTensor, kind: str = "") -> Reading:
        """The same of a tensor, by its units of a kind that have no place if one is given."""
        if kind:
            places, layout = self.positions.places(seen.node), self.reading_of_tensor(seen).layout
            second = not places or (places[-1].exists and (places[-1].dim == 1 or self.images == 1))
            return Reading(*read_kind(kind, seen.shape, self.images, layout, varying_dim(places), may_be_second=second))
        if seen not in self._readings:
            self._readings[seen] = self._read(seen)
        return self._readings[seen]

    def _read(self, seen: NamedTensor) -> Reading:
        """As the user or the library says, else as the operations say, else by its shape, which is noted."""
        # Two images may have been recorded; a reader thinks of one.
        shape = (1, *seen.shape[1:]) if seen.shape[:1] == (self.images,) else seen.shape
        guess, is_declared = (FIRST, False) if seen.stage else self._guess(seen.shape)
        if seen.node not in self.graph.live or seen.stage:
            return Reading(guess, "" if guess is not None else f"holds no spatial map: its output has shape {shape}")
        found = self.positions.reading(seen.node)
        if is_declared and guess is not None and found.layout != guess:
            return Reading(guess, "it is read as was asked for, which the operations do not confirm")
        if found.layout is not None:
            return found
        tokens = shape[varying_dim(self.positions.places(seen.node)) or 1] if len(shape) == 3 else None
        held = f"its output has shape {shape}" + (f", {tokens} tokens" if tokens else "")
        if guess is not None and found.is_open and seen.shape[:1] == (self.images,):
            return Reading(guess, f"{found.reason}, so that the positions are assumed from the shape {shape} alone")
        if found.is_open:
            return Reading(None, f"has no known positions: {held}, and {found.reason}; {self._way_out(seen)}")
        if guess is not None and self._is_plane(seen):
            return Reading(guess, f"{found.reason}, so that units are taken to stand in their order")
        return Reading(None, f"holds no spatial map: {held}, {found.reason}; {self._way_out(seen)}")

    def _way_out(self, seen: NamedTensor) -> str:
        """What to do about a layer that is no map: the innermost module around it that gives one, if any does."""
        parts = next((name.split(".") for name, each in self.modules.items() if each is seen), [])
        around = [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)] + [OUTPUT] * (parts != [OUTPUT])
        found = next((each for each in around if each in self.modules and self.reading(each).layout is not None), None)
        return f"name {'another layer' if found is None else f'the layer around it, {found!r},'} with --layer, {OR_SAY}"

    def _is_plane(self, seen: NamedTensor) -> bool:
        """Whether a tensor without a grid on the image is (B, C, *space) all the same: one that operations on planes
        make, or that the model returns."""
        is_one = len(seen.shape) == 2 + len(self.positions.space) and seen.shape[0] == self.images
        made = seen.node in self.graph.returned.values() or call_of(seen.node).operation.dense
        is_one &= len(self.positions.space) > 1  # (B, N, C) may be tokens
        return is_one and made and math.prod(seen.shape[2:]) > 1

    def calls(self, name: str) -> int:
        """How often a module ran."""
        return self.modules[module].calls if (module := split_kind(name)[0]) in self.modules else 0

    def inputs_of(self, seen: NamedTensor) -> list[str]:
        """Those of several inputs that a tensor depends on, in their order."""
        above = self.positions.ancestors(seen.node)
        return [name for name, node in self.inputs.items() if node in above]

    def needs_numbers(self, layer: str) -> str:
        """Why a layer could not be recorded without numbers, so that another path may lead to it; "" where it could."""
        seen = self.known(layer)
        is_known = self.graph.by == "shapes" or (seen.order < self.graph.calls_before_numbers and not seen.stage)
        return "" if is_known else self.needed_numbers

    def batch_mixing(self, layer: str) -> str:
        """The operation by which the images of a batch see each other on their way to a layer; "" if they do not."""
        node = self.known(layer).node
        return "" if self.takes_one_image or node not in self.graph.live else self._batch.mixes_batch(node)

    @property
    def draws_random_numbers(self) -> bool:
        """Whether the forward pass draws random numbers."""
        return any(each.kind == "random" for each in self.graph.unfaithful)

    @property
    def mixed_gradients(self) -> str:
        """What may carry the gradient of one image of a batch to another where no operation does; "" if nothing
        can."""
        return next((each.text for each in self.graph.unfaithful if each.kind == "backward"), "")

    @cached_property
    def _batch(self) -> Fields:
        return Fields(self.positions, self.positions.image, FIRST, axes=(len(self.positions.space),))

    def references_called(self, wrt: str) -> list[tuple[NamedTensor, Layout]]:
        """The tensors with a map that the name of a reference may mean: the module's own, and the stage's.

        Raises:
            ErfscopeError: there is none.
        """
        call = self.find(wrt) if self.is_call(wrt) else None
        candidates = [seen for seen in (self.modules.get(wrt), self.stages.get(wrt), call) if seen is not None]
        if not candidates:
            names = [*self.stages, *(name for name in self.modules if not name.endswith(INPUT))]
            raise self._not_found("reference", wrt, [*self.inputs, *names])
        maps = [(seen, layout) for seen in candidates if (layout := self.reading_of_tensor(seen).layout) is not None]
        if not maps:
            raise ErfscopeError(f"reference {wrt!r} {self.reading_of_tensor(candidates[0]).reason}")
        return maps

    def fields(self, node: fx.Node, layout: Layout, name: str) -> Fields:
        """The fields of all tensors with respect to one, computed once."""
        if node not in self._fields:
            # Of one of several inputs its own pixels count.
            is_whole = name not in self.inputs or node is self.positions.image
            self._fields[node] = Fields(
                self.positions if is_whole else GraphPositions(self.graph, self.numbers, node), node, layout, name=name
            )
        return self._fields[node]

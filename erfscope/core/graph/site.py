"""A layer and a reference of one recorded pass, found once by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from torch import fx

from erfscope.core.graph.field import Fields
from erfscope.core.graph.in_words import operations_in_words
from erfscope.core.graph.named import NamedTensor, Pass
from erfscope.core.graph.paths import PathShares, path_shares
from erfscope.core.graph.record import UNRECORDED
from erfscope.core.graph.recording import FIRST, Recording
from erfscope.core.graph.run import Crop, Wanted, crop
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.layout import Layout, has_lost_an_axis
from erfscope.core.values.names import IMAGE, is_input
from erfscope.core.values.unit import Trf, Unit, UnitWord, resolve_units
from erfscope.core.values.unit_kind import kind_of, resolve_kind, split_kind

#: Crops of a pass that are kept at most. One of resnet50 takes 0.8 MB.
MOST_CROPS = 64


class Site:
    """The tensor of a layer, how it holds its units, and the reference that these are differentiated with respect to.

    Args:
        recording: The recorded pass.
        layer: Name of a layer, with the kind of its units where these have no place.
        wrt: The reference: "image", one of several inputs ("input:NAME"), a layer's output ("NAME") or input
            ("NAME:in").
        unit_names: Kind of units without a place -> the names that these have in the model, with their indices.

    Raises:
        ErfscopeError: unknown layer or reference, a reference without a map, or one that the layer does not depend on.
        MeasurementError: the layer holds no units of that kind.
    """

    def __init__(
        self,
        recording: Recording,
        layer: str,
        wrt: str = IMAGE,
        *,
        unit_names: Callable[[str], Mapping[str, Sequence[int]]] = lambda _kind: {},
    ) -> None:
        self.recording, self.layer, self.wrt, self._unit_names = recording, layer, wrt, unit_names
        seen, reading = recording.known(layer), recording.reading(layer)
        if reading.layout is None:
            raise MeasurementError(f"layer {self.name!r} {reading.reason}")
        if seen.node not in recording.graph.live:
            raise ErfscopeError(f"layer {self.name!r} does not depend on the image, so it has no receptive field")
        #: The layer's tensor, how it holds its map, and that map's shape (1, C, *space).
        self.tensor, self.layout = seen, reading.layout
        self.shape: tuple[int, ...] = (1, *reading.layout.map_shape(seen.shape)[1:])
        #: The reference's tensor; None of an input.
        self.reference, self.reference_layout = self._find_reference()
        #: The receptive fields of all tensors with respect to the reference.
        self.fields = self._fields()

    @property
    def name(self) -> str:
        """The layer's name without the kind of its units."""
        return split_kind(self.layer)[0]

    @property
    def space(self) -> tuple[int, ...]:
        """Units along each axis."""
        return self.shape[2:]

    @property
    def reference_space(self) -> tuple[int, ...]:
        """Cells of the reference along each axis."""
        return tuple(self.fields.sizes)

    def _find_reference(self) -> tuple[NamedTensor | None, Layout]:
        """The module's own tensor if the layer was computed from it, else the stage's."""
        recording, wrt, layer = self.recording, self.wrt, self.layer
        if wrt == IMAGE or wrt in recording.inputs:
            return None, FIRST
        maps = recording.references_called(wrt)
        for seen, layout in maps:
            if seen.node in recording.graph.live and self.tensor.node in recording.fields(seen.node, layout, wrt):
                return seen, layout
        text = f"layer {layer!r} does not depend on {wrt!r}: no path leads from one to the other"
        if all(each.stage for each, _ in maps):
            text = (
                f"layer {layer!r} is not computed from the map of the stage {wrt!r}, which is a view that the model"
                " may make beside its own tensors; name a module as the reference"
            )
        raise ErfscopeError(text)

    def _fields(self) -> Fields:
        recording, reference = self.recording, self.reference
        if reference is not None:
            return recording.fields(reference.node, self.reference_layout, self.wrt)
        fields = recording.fields(
            recording.inputs.get(self.wrt, recording.positions.image), self.reference_layout, self.wrt
        )
        if self.tensor.node not in fields:
            raise ErfscopeError(
                f"layer {self.layer!r} does not depend on {self.wrt!r}: no path leads from one to the other"
            )
        return fields

    def units(self, word: UnitWord) -> list[Unit]:
        """The units of the layer that a word means, as ``analyze`` takes it; not all units. Of several inputs places
        are counted in the first that the layer depends on, so that all have the same units.

        Raises:
            ErfscopeError: no such unit.
        """
        name, kind = split_kind(self.layer)
        if kind:
            return resolve_kind(kind, kind_of(word)[1], self.space, layer=name, known=self._unit_names(kind))
        place = self
        if self.wrt in self.recording.inputs and (first := self.recording.inputs_of(self.tensor)[0]) != self.wrt:
            place = Site(self.recording, self.layer, first)
        return resolve_units(word, place.space, place.nearest_unit(), layer=self.layer, nearest=place.nearest_unit)

    def trf(self, unit: Unit | Sequence[int]) -> Trf:
        """The theoretical receptive field of one unit, or of the unit with an index in the layer's map.

        Returns:
            The TRF, in cells of the reference. The centre is not exact where the pass needed numbers: with others, the
            path or what is picked may be another.

        Raises:
            ErfscopeError: the unit lies outside the map, or no path leads to it.
        """
        index = unit.index if isinstance(unit, Unit) else tuple(unit)
        if len(index) != len(self.space) or not all(0 <= u < s for u, s in zip(index, self.space, strict=True)):
            raise ErfscopeError(
                f"unit {index} lies outside the map of {self.layer}, which has {'x'.join(map(str, self.space))} units"
            )
        found = self.fields.trf(self.tensor.node, self.layout, index)
        if not self.needs_numbers or not found.center_exact or not found.center_px:
            return found
        return replace(
            found,
            center_exact=False,
            center_inexact_reason="it was recorded with random numbers, and may be elsewhere with others",
        )

    def sees(self, unit: Unit) -> bool:
        """Whether any path leads from the reference to a unit."""
        try:
            return bool(self.trf(unit))
        except ErfscopeError:
            return False

    def path_shares(self, unit: tuple[int, ...]) -> list[PathShares | None]:
        """Where the paths from a unit end along each axis of the reference; None where that is not known."""
        axes = range(len(self.fields.sizes))
        return [path_shares(self.fields, self.tensor.node, self.layout, unit, axis) for axis in axes]

    def nearest_unit(self, at: Sequence[float] | None = None) -> tuple[int, ...]:
        """The unit whose true centre is nearest to the reference's centre, (S - 1) / 2 along each axis, or to another
        place; of two, the one with larger index.

        Raises:
            ErfscopeError: a place outside the reference.
        """
        return self.fields.nearest_unit(self.tensor.node, self.layout, at)

    def crop(self, units: Sequence[tuple[int, ...]], images: int, of: Pass | None = None) -> Crop | None:
        """The operations that some units need.

        Args:
            units: Indices in its map; none for all of it.
            images: How many go through together.
            of: The pass that is cropped, of as many images or more; the recorded one by default.

        Returns:
            The crop; None where the pass must be one of exactly so many images.
        """
        there = of or self.recording
        target = there.find(self.layer)
        if target is None:
            return None
        if len(target.shape) != len(self.tensor.shape):
            raise has_lost_an_axis(len(self.tensor.shape), target.shape)
        goal, wrt = there.graph.inputs[0], self.wrt
        if self.reference is not None:
            found = there.stages.get(wrt) if self.reference.stage else there.modules.get(wrt) or there.find(wrt)
            if found is None:
                return None
            goal = found.node
        asked = (target.node, goal, tuple(units), images)
        if asked not in there.crops:
            wanted = Wanted(target.node, self.layout), Wanted(goal, self.reference_layout)
            there.crops[asked] = crop(there.graph, there.numbers, *wanted, units, images)
            if len(there.crops) > MOST_CROPS:
                del there.crops[next(iter(there.crops))]
        return there.crops[asked]

    @cached_property
    def operations(self) -> list[fx.Node]:
        """The operations from the reference to the layer, in the order of execution."""
        fields, positions = self.fields, self.recording.positions
        found = positions.ancestors(self.tensor.node) & fields.every_end.keys() - {fields.reference, positions.image}
        return sorted(found, key=positions.order.__getitem__)

    def operations_in_words(self) -> dict[str, tuple[str, ...]]:
        """Every operation that the layer is computed by, with its settings and the shapes of its weights, by the name
        of the module that runs it, in order: ``conv2d weight=8x3x3x3 bias=8 stride=2x2 padding=1x1``.

        Those of the model itself are by their place: ``behind pool``, whose result they read, ``before conv1``, or ""
        where no module runs."""
        return operations_in_words(self.recording.graph, self.tensor.node)

    @property
    def is_from_bare_stage(self) -> bool:
        """Whether the reference is the map of a stage, which no hook on a module shows."""
        return self.reference is not None and self.reference.stage

    @property
    def needs_numbers(self) -> str:
        """Why the layer could not be recorded without numbers; see :meth:`Recording.needs_numbers`."""
        return self.recording.needs_numbers(self.layer)

    @property
    def batch_mixing(self) -> str:
        """The operation by which the images of a batch see each other on their way to the layer; "" if they do not."""
        return self.recording.batch_mixing(self.layer)

    @cached_property
    def hooks(self) -> Mapping[str, Layout] | None:
        """How the tensors that hooks read for layer and reference hold their maps; a stage and an input need no hook.

        None if one of the modules runs more than once per forward pass, so that its name does not mean one tensor.
        """
        recording = self.recording
        names = {self.layer} - recording.stages.keys() | ({self.wrt} if not is_input(self.wrt) else set())
        found = {name: seen for name in names if (seen := recording.modules.get(split_kind(name)[0]))}
        if not all(seen.calls == 1 for seen in found.values()):
            return None
        layouts = {name: recording.reading_of_tensor(seen, split_kind(name)[1]).layout for name, seen in found.items()}
        return {name: layout for name, layout in layouts.items() if layout is not None}

    @property
    def takes_batches(self) -> bool:
        """Whether several images may go through together: they do not see each other, and the path is theirs all."""
        alone = self.recording.takes_one_image or self.needs_numbers or self.batch_mixing
        return not (alone or self.recording.draws_random_numbers or self.recording.mixed_gradients)

    @property
    def plain_reason(self) -> str | None:
        """Why the model itself is run up to the layer, and not its graph; None where the graph is."""
        graph = self.recording.graph
        if self.needs_numbers:
            return "it cannot be recorded" + " without numbers" * (graph.by != UNRECORDED)
        return next((each.text for each in graph.unfaithful), None)

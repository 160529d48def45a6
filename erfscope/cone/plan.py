"""From a model and a unit to its cone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from erfscope.adapter import IMAGE, Adapter
from erfscope.cone.bn_pairs import folds
from erfscope.cone.cellwise_crops import disagreement, find_cellwise_crops
from erfscope.cone.cone import Cone, InputCrop
from erfscope.cone.crops import CropPlan, candidates, input_crops_of, plan_crops
from erfscope.cone.equivalence import EquivalenceCheck, Mismatch, Offset
from erfscope.cone.gradients import doubts
from erfscope.cone.memory_order import keeps_memory_order
from erfscope.cone.trace import Trace, trace
from erfscope.errors import ErfscopeError
from erfscope.geometry.box import sides
from erfscope.geometry.layout import Layout
from erfscope.geometry.unit import Unit
from erfscope.model_errors import first_line
from erfscope.trf.graph import Node, computed_from, depends_on
from erfscope.trf.map_axes import map_axes, unit_region
from erfscope.trf.record import Recording, RecordingError, pause_collection

MAP = Layout(order="channels_first")
#: How often crops are given up for a doubt before all are.
ATTEMPTS = 8
#: Images in a recorded pass: with one alone, a dimension that holds windows of all images would look like one of
#: windows.
BATCH = 2
#: Above this share of the multiply-adds a cone saves nothing.
WORTHWHILE = 0.97


class Planner:
    """Plans the cones of one model at one input size; the whole pass is recorded once per layer and reference.

    Args:
        adapter: The model on the meta device.
        recording: Its recorded forward pass.
        dtype: Of its inputs.
    """

    def __init__(self, adapter: Adapter, recording: Recording, dtype: torch.dtype) -> None:
        self._meta = adapter
        self._recording = recording
        self._dtype = dtype
        self._space = adapter.preprocess.size
        self._traces: dict[tuple[str, str], Trace] = {}
        self._wholes: dict[tuple[str, str], Cone] = {}
        self._plans: dict[tuple[str, Unit, str], Cone] = {}

    def whole(self, layer: str, unit: Unit, wrt: str = IMAGE) -> Cone:
        """Everything: nothing is cropped, but the forward pass ends at the layer.

        Raises:
            ErfscopeError: what ``adapter.features`` raises.
            RecordingError: the model cannot run on the meta device.
        """
        if (layer, wrt) in self._wholes:
            return replace(self._wholes[layer, wrt], whole_unit=unit, unit=unit)
        found = self._whole(layer, wrt)
        space = self._space if wrt == IMAGE or found.reference is None else found.layout.space(found.reference.shape)
        whole = self._wholes[layer, wrt] = Cone(
            layer=layer,
            wrt=wrt,
            whole_unit=unit,
            unit=unit,
            image=tuple((0, side) for side in self._space),
            origin=(0,) * len(space),
            layouts=self._known(layer, wrt),
            folds=folds(found, self._meta.module),
            keeps_memory_order=keeps_memory_order(found),
            whole_gmacs=found.tape.flops / (2e9 * BATCH),
            gmacs=found.tape.flops / (2e9 * BATCH),
            bytes=found.bytes // BATCH,
        )
        return whole

    def whole_bytes(self, layer: str, wrt: str = IMAGE) -> int:
        """Return the memory that one image takes if nothing is cropped, in bytes.

        Raises:
            ErfscopeError: what ``adapter.features`` raises.
            RecordingError: the model cannot run on the meta device.
        """
        return self._whole(layer, wrt).bytes // BATCH

    def mixed_by(self, layer: str, wrt: str = IMAGE) -> str:
        """What may mix the gradients of a batch beside the operations, in words; "" for nothing.

        Raises:
            ErfscopeError: what ``adapter.features`` raises.
            RecordingError: the model cannot run on the meta device.
        """
        return self._whole(layer, wrt).mixed_by

    def gradient_doubts(self, layer: str, wrt: str = IMAGE) -> list[str]:
        """What may make a gradient another than the model's derivative, in words: see
        :func:`erfscope.cone.gradients.doubts`, and hooks.

        Raises:
            ErfscopeError, RecordingError: as :meth:`mixed_by`.
        """
        whole = self._whole(layer, wrt)
        if whole.map is None or whole.reference is None:
            return [whole.mixed_by] if whole.mixed_by else []
        between = depends_on(whole.tape.nodes, whole.reference).intersection(computed_from(whole.map))
        return [*doubts(between, notes_gradients=True), *([whole.mixed_by] if whole.mixed_by else [])]

    def plan(self, layer: str, unit: Unit, wrt: str = IMAGE) -> Cone:
        """The cone of one unit.

        Args:
            layer: Layer name.
            unit: The unit in the layer's map.
            wrt: Reference of the gradient.

        Returns:
            A cone that is exact, or the whole pass with the reason; planned once.

        Raises:
            ErfscopeError: what ``adapter.features`` raises.
            RecordingError: the model cannot run on the meta device.
        """
        asked = (layer, unit, wrt)
        if asked not in self._plans:
            self._plans[asked] = self._plan(layer, unit, wrt)
        return self._plans[asked]

    def _plan(self, layer: str, unit: Unit, wrt: str) -> Cone:
        whole, nothing = self._whole(layer, wrt), self.whole(layer, unit, wrt)
        if whole.map is None or whole.reference is None:
            return nothing
        if whole.changed_by:
            return replace(nothing, reason=f"{whole.changed_by}, which may do anything to a gradient")
        names = candidates(whole, whole.map)
        root = whole.tape.nodes[0]
        region = unit_region(whole.map, MAP, unit.index)
        allowed, image = dict(names), True
        # Before this operation crops begin where the image does, since a table that the model indexes from its first
        # cell is the same then.
        anchor, anchors = -1, True
        held: Mismatch | None = None
        for _ in range(ATTEMPTS):
            choice = plan_crops(whole.map, region, root, allowed, image=image, anchor=anchor)
            crops = bool(choice.boxes) or choice.image != tuple((0, side) for side in self._space)
            cone, part, doubt = self._attempt(nothing, whole, choice, names) if crops else (None, whole, None)
            pays = cone is not None and cone.share <= WORTHWHILE
            if not pays and (cone is not None or doubt is None):
                if held is None:
                    break
                doubt = held  # to begin with the image saves nothing
            if cone is not None and pays and doubt is None:
                return self._crop_cellwise(cone, part)
            assert doubt is not None
            nothing = replace(nothing, reason=doubt.text)
            if anchors and doubt.kind == "undecided" and doubt is not held and doubt.index > anchor:
                anchor, held = doubt.index, doubt
                continue
            # Whatever is cropped before that operation changes it; what is cropped after it does not.
            image, anchor, anchors, held = False, -1, anchors and held is None, None
            allowed = {node: name for node, name in allowed.items() if node.index >= doubt.index}
        return self._crop_cellwise(
            replace(nothing, reason=nothing.reason or "the unit sees everything, or nearly so"), whole
        )

    @pause_collection()
    def _crop_cellwise(self, cone: Cone, plain: Trace) -> Cone:
        """The cone with modules that work cell by cell run on the cells that are needed only."""
        assert plain.map is not None
        left_out: list[str] = []
        for _ in range(ATTEMPTS):
            made = find_cellwise_crops(plain, unit_region(plain.map, MAP, cone.unit.index), cone.wrt, left_out)
            if not made:
                break
            part = Trace()
            try:
                trace(
                    self._meta,
                    self._input(sides(cone.image)),
                    cone.layer,
                    cone.wrt,
                    known=cone.layouts,
                    input_crops=cone.input_crops,
                    cellwise_crops=made,
                    into=part,
                )
                wrong = "" if part.changed_by else disagreement(plain, part, made)
            except ErfscopeError:
                wrong = next((crop.module for crop in reversed(made) if crop.module in part.inputs), "")
            if wrong is None:
                cost = {"gmacs": part.tape.flops / (2e9 * BATCH), "bytes": part.bytes // BATCH}
                return replace(cone, cellwise_crops=made, shown_by=cone.shown_by or "operations", reason="", **cost)  # type: ignore[arg-type]
            if not wrong:
                break
            left_out.append(wrong)
        return cone

    @pause_collection()
    def _whole(self, layer: str, wrt: str) -> Trace:
        if (layer, wrt) not in self._traces:
            self._traces[layer, wrt] = trace(
                self._meta, self._input(self._space), layer, wrt, known=self._known(layer, wrt)
            )
        return self._traces[layer, wrt]

    def _known(self, layer: str, wrt: str) -> dict[str, Layout]:
        found = self._recording.layouts(layer, wrt)
        if found is None:
            raise RecordingError(f"{layer!r} or {wrt!r} runs more than once per forward pass")
        return found

    def _input(self, space: Sequence[int]) -> Tensor:
        return torch.empty((BATCH, self._meta.preprocess.channels, *space), device="meta", dtype=self._dtype)

    @pause_collection()
    def _attempt(
        self, nothing: Cone, whole: Trace, choice: CropPlan, names: Mapping[Node, str]
    ) -> tuple[Cone | None, Trace, Mismatch | None]:
        """The cone of a choice, its pass, and what speaks against it; no cone where it cannot be."""
        root = whole.tape.nodes[0]
        input_crops = input_crops_of(choice, names, root)
        part = Trace()
        x = self._input(sides(choice.image))
        try:
            trace(self._meta, x, nothing.layer, nothing.wrt, input_crops=input_crops, known=nothing.layouts, into=part)
        except ErfscopeError as error:
            text = f"the model does not take the crop: {first_line(error.__cause__ or error)}"
            return None, part, Mismatch(_stopped_at(part, input_crops), "different", text)
        if part.changed_by:
            return None, part, Mismatch(len(whole.tape.nodes), "different", f"on the crop {part.changed_by}")
        proof = EquivalenceCheck(whole, part, choice, {names[node]: node for node in choice.boxes})
        doubt = proof.run()
        if doubt is not None and doubt.kind == "different":
            return None, part, doubt
        assert whole.map is not None
        assert part.map is not None
        unit = _moved(whole.map, MAP, proof.offsets[part.map])
        origin = tuple(first for first, _ in choice.image) if nothing.wrt == IMAGE else _origin(whole, part, proof)
        if unit is None or origin is None:
            return None, part, Mismatch(whole.map.index, "different", "the map's place in the image is not known")
        found = replace(
            nothing,
            unit=replace(
                nothing.whole_unit,
                index=tuple(u - first for u, first in zip(nothing.whole_unit.index, unit, strict=True)),
            ),
            image=choice.image,
            input_crops=input_crops,
            origin=origin,
            gmacs=part.tape.flops / (2e9 * BATCH),
            bytes=part.bytes // BATCH,
            shown_by="operations",
        )
        return found, part, doubt


def _stopped_at(part: Trace, input_crops: Sequence[InputCrop]) -> int:
    """Position in the whole recording where a cropped pass failed."""
    return len(part.tape.nodes) - sum(
        stop - first for crop in input_crops for first, stop in part.made.get(crop.module, ())
    )


def _moved(node: Node, layout: Layout, offset: Offset) -> tuple[int, ...] | None:
    """First index along each axis of a map that lies at this offset; None where an axis is not known."""
    found = []
    for axis in map_axes(node, layout):
        if axis is None or offset[axis.axis] % axis.step:
            return None
        found.append(offset[axis.axis] // axis.step)
    return tuple(found)


def _origin(whole: Trace, part: Trace, proof: EquivalenceCheck) -> tuple[int, ...] | None:
    """Where the reference of a cropped pass lies; None where that is not known."""
    assert part.reference is not None
    try:
        node, offset = proof.origin_of(part.reference)
    except KeyError:
        return None
    if not any(offset) and node.shape == part.reference.shape:
        return (0,) * len(whole.layout.space(node.shape))
    return _moved(node, whole.layout, offset) if whole.layout.order != "tokens" else None

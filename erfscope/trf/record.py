"""The public part: record a model once, then ask for the theoretical receptive field of any unit of any layer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from erfscope.adapter import IMAGE, Visitor
from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.geometry.layout import Layout
from erfscope.geometry.receptive_field import Trf
from erfscope.model_errors import first_line
from erfscope.trf.field_of_unit import field_of
from erfscope.trf.graph import Kind, Node, computed_from, depends_on, has_path_around, skip_pointwise
from erfscope.trf.positions import InferredLayout, TapedTensor, VisitedTensor, batch_mixing, infer_layout
from erfscope.trf.tapes.composites import CompositeMode
from erfscope.trf.tapes.outside import EscapeMode
from erfscope.trf.tapes.recorder import Recorder, RuleFault
from erfscope.trf.tapes.tape import Tape
from erfscope.trf.unit_geometry import Reference, UnitGeometry
from erfscope.trf.walk import Tails

INPUT = ":in"
#: Images in a pass that costs nothing: a prime that hardly any operation deals in, so that they are not taken for cells
#: or channels.
IMAGES = 7


@contextmanager
def pause_collection() -> Iterator[None]:
    """Collect no garbage inside the block: a recording makes many objects, and each collection goes through all that
    PyTorch is made of."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class RecordingError(MeasurementError):
    """The model cannot be run on the meta device: its forward asks for values, or uses an operation that has no meta
    kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """A layer that was seen during the recorded forward."""

    name: str
    #: Shape of its output read as a map (B, C, *space).
    shape: tuple[int, ...]
    #: Whether the model's authors count it as a stage.
    stage: bool
    #: Position in the order of execution.
    order: int


class Recording:
    """One recorded forward pass. Made by :func:`record`."""

    def __init__(
        self,
        root: TapedTensor,
        nodes: list[Node],
        modules: dict[str, VisitedTensor],
        stages: dict[str, VisitedTensor],
    ) -> None:
        self._root = root
        self._nodes = nodes
        self._modules = modules
        self._stages = stages
        self._below: dict[Node, set[Node]] = {}
        #: What walks to each reference have found.
        self._tails: dict[Node, dict[frozenset[Kind], Tails]] = {}
        self._readings: dict[VisitedTensor, InferredLayout] = {}
        self._fields: dict[tuple[int, Layout, tuple[int, ...], str], Trf] = {}

    @property
    def modules(self) -> dict[str, VisitedTensor]:
        """What the modules got and gave, by name, in the order of execution."""
        return self._modules

    def reading(self, name: str) -> InferredLayout:
        """How the tensor that a layer name means holds its map, or why it holds none.

        Raises:
            ErfscopeError: unknown layer.
        """
        seen = self._stages.get(name) or self._modules.get(name)
        if seen is None:
            raise unknown("layer", name, [layer.name for layer in self.layers])
        return self._read(seen)

    def module_reading(self, name: str) -> InferredLayout:
        """The same of what the module itself returns, where the library reads the stage of its name in another way."""
        return self._read(self._modules[name])

    def _read(self, seen: VisitedTensor) -> InferredLayout:
        if seen not in self._readings:
            self._readings[seen] = infer_layout(seen, self._root)
        return self._readings[seen]

    def calls(self, name: str) -> int:
        """How often a module ran."""
        return self._modules[name].calls if name in self._modules else 0

    def batch_mixing(self, layer: str) -> str:
        """The operation by which the images of a batch see each other on their way to a layer; "" if they do not.

        A pass that was recorded with one image says nothing of it, and its model is one that takes one image at a time.
        """
        seen = self._stages.get(layer) or self._modules[layer]
        return batch_mixing(seen.tensor, self._root) if seen.tensor is not None else ""

    def own_resizing(self, layer: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The sizes between which a model resizes its input itself on every way to a layer; None where it does not."""
        seen = self._stages.get(layer) or self._modules[layer]
        root = self._nodes[0]
        if seen.tensor is None:
            return None
        for node in self._nodes:
            if "upsample" in node.name and _keeps_pixels(node.edges[0].source, root):
                before, after = ([axis.size for axis in n.layout.axes if axis is not None] for n in (root, node))
                if before != after and len(before) == len(after) and not has_path_around(seen.tensor.node, node, root):
                    return tuple(before), tuple(after)
        return None

    @property
    def keeps_images(self) -> bool:
        """Whether the images of the batch, where it was recorded with several, are told apart in what any module
        gives."""
        given = (seen.tensor for name, seen in self._modules.items() if name != IMAGE and not name.endswith(INPUT))
        return self.takes_one_image or any(
            tensor is not None and tensor.batch is not None and tensor.batch.layout.axes[0] is not None
            for tensor in given
        )

    @property
    def takes_one_image(self) -> bool:
        """Whether the model was recorded with one image since it does not take two."""
        return self._root.batch is None

    @property
    def layers(self) -> tuple[LayerRecord, ...]:
        """Every layer whose output holds a map, in the order of execution."""
        found = [
            LayerRecord(
                name=name,
                shape=(1, *layout.map_shape(seen.shape)[1:]),
                stage=name in self._stages,
                # Stages are shown when all have run; the module of that name tells when its turn was.
                order=self._modules.get(name, seen).order,
            )
            for name, seen in (self._modules | self._stages).items()
            if name != IMAGE and not name.endswith(INPUT) and (layout := self._read(seen).layout) is not None
        ]
        return tuple(sorted(found, key=lambda layer: layer.order))

    def layouts(self, layer: str, wrt: str = IMAGE) -> dict[str, Layout] | None:
        """How the tensors that hooks read for ``layer`` and ``wrt`` hold their maps; a stage and the image need no
        hook.

        None if one of the modules runs more than once per forward pass, so that its name does not mean one tensor.
        """
        names = {
            name
            for name in (layer, wrt)
            if name in self._modules and name != IMAGE and (name == wrt or name not in self._stages)
        }
        if not all(self._modules[name].calls == 1 for name in names):
            return None
        return {name: layout for name in names if (layout := self._read(self._modules[name]).layout) is not None}

    def trf(self, layer: str, unit: Sequence[int], wrt: str = IMAGE) -> Trf:
        """Theoretical receptive field of one unit.

        Args:
            layer: Name of a layer.
            unit: Index of the unit in the layer's map, one number per axis.
            wrt: The reference: "image", a layer's name (its output) or "NAME:in" (its input).

        Returns:
            The TRF, in cells of the reference.

        Raises:
            ErfscopeError: unknown layer or reference, one without a map, a unit outside the map, or a reference that
                the layer does not depend on.
        """
        seen, layout = self._layer(layer)
        space = layout.space(seen.shape)
        if len(unit) != len(space) or not all(0 <= u < s for u, s in zip(unit, space, strict=True)):
            raise ErfscopeError(
                f"unit {tuple(unit)} lies outside the map of {layer}, which has {'x'.join(map(str, space))} units"
            )
        node = self._node(layer, seen)
        # An activation, a norm or the module around them has the TRF of what it is applied to.
        start = skip_pointwise(node) if wrt == IMAGE else node
        asked = (start.index, layout, tuple(unit), wrt)
        if asked not in self._fields:
            reference = self._reference(layer, node, wrt)
            self._fields[asked] = field_of(start, layout, tuple(unit), reference, self._nodes[0])
        return self._fields[asked]

    def default_unit(self, layer: str, wrt: str = IMAGE) -> tuple[int, ...]:
        """The unit whose true centre is nearest to the reference's centre, (S - 1) / 2 along each axis; of two, the one
        with larger index.

        Raises:
            ErfscopeError: as :meth:`trf`.
        """
        seen, layout = self._layer(layer)
        node = self._node(layer, seen)
        start = skip_pointwise(node) if wrt == IMAGE else node
        nearest = UnitGeometry(start, layout, self._reference(layer, node, wrt)).nearest_unit()
        self.trf(layer, nearest, wrt)  # where nothing of the reference reaches it, that is said
        return nearest

    def way_to(self, layer: str, wrt: str = IMAGE) -> set[Node]:
        """The values on the way from the reference to a layer.

        Raises:
            ErfscopeError: as :meth:`trf`.
        """
        seen, _ = self._layer(layer)
        if seen.tensor is None:
            return set()
        below = self._reference(layer, seen.tensor.node, wrt).below
        found = set(computed_from(seen.tensor.node))
        return found if below is None else found & below

    def _layer(self, name: str) -> tuple[VisitedTensor, Layout]:
        reading = self.reading(name)
        if reading.layout is None:
            raise MeasurementError(f"layer {name!r} {reading.refusal}")
        return self._stages.get(name) or self._modules[name], reading.layout

    def _node(self, layer: str, seen: VisitedTensor) -> Node:
        if seen.tensor is None:
            raise ErfscopeError(f"layer {layer!r} does not depend on the image, so it has no receptive field")
        return seen.tensor.node

    def _reference(self, layer: str, start: Node, wrt: str) -> Reference:
        """The reference's node: the module's own tensor if the layer was computed from it, else the stage's."""
        candidates = [seen for seen in (self._modules.get(wrt), self._stages.get(wrt)) if seen is not None]
        if not candidates:
            raise unknown(
                "reference", wrt, dict.fromkeys([IMAGE, *(name for name in self._modules if not name.endswith(INPUT))])
            )
        maps = [(seen, layout) for seen in candidates if (layout := self._read(seen).layout) is not None]
        if not maps:
            raise ErfscopeError(f"reference {wrt!r} {self._read(candidates[0]).refusal}")
        for seen, layout in maps:
            if seen.tensor is None:
                continue
            root = seen.tensor.node
            while root.view_of is not None:
                root = root.view_of
            below = self._descendants(root)
            if below is None or start in below:
                tails = self._tails.setdefault(root, {})
                return Reference(name=wrt, node=root, view=seen.tensor.node, layout=layout, below=below, tails=tails)
        raise ErfscopeError(f"layer {layer!r} does not depend on {wrt!r}: no path leads from one to the other")

    def _descendants(self, node: Node) -> set[Node] | None:
        """Every node computed from ``node``; None, for all, if that is the image."""
        if node.index == 0:
            return None
        if node not in self._below:
            self._below[node] = depends_on(self._nodes, node)
        return self._below[node]


def record(visit: Callable[[Tensor, Visitor], None], x: Tensor) -> Recording:
    """Run a model once and note what every operation does to positions, and to the images of the batch.

    Args:
        visit: ``Adapter.visit`` of an adapter on the meta device: runs the model and calls the visitor with the image
            first, then with every module's input ("NAME:in") and output and every stage. Nothing is computed.
        x: Image batch (B, C_in, *space) on the device of the adapter; its numbers do not matter. With two images or
            more it is followed too where each image goes.

    Returns:
        The recording, from which any unit's TRF can be had without running the model again.

    Raises:
        RecordingError: the forward needs values, or fails in another way.
        ErfscopeError: what ``visit`` itself raises.
    """
    tape = Tape(images=IMAGES if x.shape[0] == IMAGES else 0)
    batch = Tape(spatial=False) if x.shape[0] > 1 else None
    modules, stages = dict[str, VisitedTensor](), dict[str, VisitedTensor]()

    def visitor(
        name: str, tensor: Tensor, layout: Layout | None, /, *, stage: bool = False, declared: bool = False
    ) -> None:
        if name == IMAGE and not tape.nodes:
            tape.start(tensor, range(2, tensor.dim()))
            if batch is not None:
                batch.start(tensor, [0])
        if not tape.nodes:
            raise RecordingError(f"{name!r} was shown before the image")
        _follow(tape.modules, name, stage)
        seen = stages if stage else modules
        node = tape.read(tensor)
        seen[name] = VisitedTensor(
            tensor=None if node is None else TapedTensor(node, None if batch is None else batch.read(tensor)),
            shape=tuple(tensor.shape),
            guess=layout,
            declared=declared,
            stage=stage,
            order=len(modules) + len(stages),
            calls=seen[name].calls + 1 if name in seen else 1,
        )

    if batch is not None:
        batch.modules = tape.modules
    with record_on(*filter(None, (tape, batch))):
        visit((x.clone() if x.is_inference() else x).detach().requires_grad_(True), visitor)
    if not tape.nodes:
        raise RecordingError("the adapter showed no image")
    root = TapedTensor(tape.nodes[0], None if batch is None else batch.nodes[0])
    return Recording(root, tape.nodes, modules, stages)


@contextmanager
def record_on(*tapes: Tape) -> Iterator[None]:
    """Note every operation inside the block on every tape.

    Raises:
        RecordingError: whatever a forward pass raises for want of numbers.
    """
    try:
        # In inference mode composite operations, attention and padding among them, would not be taken apart. PyTorch's
        # own transformer modules leave their fused path, which hides what they do, wherever a mode for functions such
        # as CompositeMode is on.
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            Recorder(*tapes),
            CompositeMode(*tapes),
            EscapeMode(*tapes),
        ):
            yield
    except (ErfscopeError, RuleFault):
        raise
    except Exception as error:  # a model may fail in any way
        raise RecordingError(f"the forward cannot be recorded on the meta device: {first_line(error)}") from error


def _keeps_pixels(node: Node, root: Node) -> bool:
    """Whether a tensor is the image, normalised or reshaped at most."""
    while node is not root:
        if (
            len(node.edges) != 1
            or node.name in ("convolution", "mm", "addmm", "bmm")
            or node.layout.axes != root.layout.axes
        ):
            return False
        node = node.edges[0].source
    return True


def _follow(running: list[str], name: str, stage: bool) -> None:
    """Keep the list of running modules: a module's input opens it, its output, or the first tensor of several, closes
    it."""
    if name.endswith(INPUT):
        running.append(name.removesuffix(INPUT))
    elif not stage and (module := name.partition("[")[0]) in running:
        del running[running.index(module) :]

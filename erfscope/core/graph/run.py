"""The part of a graph that some units need, run under plain autograd: every operation on the part of its output that is
needed."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from erfscope.core.graph.graph import Numbers, RecordedGraph, shape_of
from erfscope.core.graph.places import describe
from erfscope.core.graph.rules.mixing import scale_and_shift
from erfscope.core.graph.rules.parts import Part, PartStep, PartValues, contains, cut, plan_step, union, whole
from erfscope.core.values.errors import MeasurementError
from erfscope.core.values.layout import Layout
from erfscope.core.values.unit import Box

#: Elements of a convolution's output for each of its weights from which its norm is folded into it: below, the copy of
#: the weights takes more memory and time than the norm. resnet50 on ten images: 475 MiB in place of 543.
FOLDING_PAYS = 1


class Wanted(NamedTuple):
    """A tensor of the pass and how it holds a map."""

    node: fx.Node
    layout: Layout


#: A layer, and indices in its map.
LayerUnits = tuple[Wanted, tuple[tuple[int, ...], ...]]


class Target(NamedTuple):
    """Units of a layer, and what they are differentiated with respect to."""

    layer: Wanted
    reference: Wanted
    #: One per unit: its index in the layer's map; none where all of the layer is wanted.
    units: tuple[tuple[int, ...], ...]
    #: The part of the layer that each is, or all of the layer.
    boxes: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Crop:
    """The part of a recorded pass that some units need. Made by :func:`crop`."""

    graph: RecordedGraph
    #: What is read: one, or more of a crop that was joined by :meth:`with_other`.
    targets: tuple[Target, ...]
    #: How many images go through together.
    images: int
    #: Operations in order; the image and constants are none.
    steps: tuple[PartStep, ...]
    #: The part of every tensor that depends on the image.
    parts: Mapping[fx.Node, Part]
    #: The part that is asked for, where an operation makes more.
    asked: Mapping[fx.Node, Part]

    @property
    def image(self) -> Box:
        """The part of the image that goes in; empty where none is needed."""
        part = self.parts.get(self.graph.inputs[0])
        if part is None:
            return ((0, 1),) * (len(shape_of(self.graph.inputs[0])) - 2)
        return tuple([(int(each[0]), int(each[-1]) + 1) for each in part[2:]])

    @property
    def is_of_image(self) -> bool:
        """Whether a reference is the image."""
        return self.graph.inputs[0] in self.references

    @cached_property
    def references(self) -> frozenset[fx.Node]:
        """The tensors that are differentiated with respect to."""
        return frozenset(target.reference.node for target in self.targets)

    @cached_property
    def layers(self) -> frozenset[fx.Node]:
        """The tensors that units are read of."""
        return frozenset(target.layer.node for target in self.targets)

    def with_other(self, other: Crop) -> Crop | None:
        """These operations, and those that only another crop of the pass needs; None where of a tensor that both need,
        or of the image, this one lacks what the other needs."""
        common = [node for node in other.parts if node in self.parts]
        if self.graph.inputs[0] not in common or not all(
            contains(self.parts[node], other.parts[node]) for node in common
        ):
            return None
        steps = {step.node: step for step in (*other.steps, *self.steps)}
        return replace(
            self,
            targets=(*self.targets, *other.targets),
            steps=tuple(steps[node] for node in self.graph.nodes if node in steps),
            parts={**other.parts, **self.parts},
        )

    @cached_property
    def norms(self) -> list[tuple[PartStep, PartStep | None]]:
        """Frozen batch norms, each with the convolution before it that does its work too; None where that does not
        pay."""
        readers = Counter(source for step in self.steps for source in step.needed)
        by_node = {step.node: step for step in self.steps}
        found = list[tuple[PartStep, PartStep | None]]()
        for step in self.steps:
            if step.call.name != "batch_norm" or step.call.args.get("training") or not self._is_given(step):
                continue
            before, folds = by_node.get(step.call.tensor()), False
            if before is not None and before.call.name in ("conv1d", "conv2d", "conv3d"):
                weights = math.prod(shape_of(before.call.args["weight"]))
                pays = math.prod(map(len, before.part)) >= FOLDING_PAYS * weights and self._is_given(before)
                folds = pays and readers[before.node] == 1 and before.node not in self.references | self.layers
            found.append((step, before if folds else None))
        return found

    def _is_given(self, step: PartStep) -> bool:
        """Whether all but the first input of an operation are the same for every image."""
        return self.graph.live.isdisjoint(step.node.all_input_nodes[1:])

    @cached_property
    def _done(self) -> list[list[fx.Node]]:
        """Tensors that no operation after a step reads."""
        last = {source: number for number, step in enumerate(self.steps) for source in step.needed}
        found: list[list[fx.Node]] = [[] for _ in self.steps]
        for source, number in last.items():
            found[number].append(source)
        return found


class Forward:
    """A crop with the weights that a module has now: what is derived from them is derived when it is made.

    Args:
        plan: The crop.
        tensors: The module's own tensors by name, see :func:`erfscope.core.system.containers.tensors_of`.
    """

    def __init__(self, plan: Crop, tensors: Mapping[str, Tensor]) -> None:
        self.plan = plan
        #: Whether folded weights have their channels last.
        self._is_last = False
        self._numbers = Numbers(plan.graph, tensors, is_complete=True)
        self._folded = {norm.node for norm, convolution in plan.norms if convolution is not None}
        with torch.no_grad():
            self._derived = dict(self._derive(*pair) for pair in plan.norms)

    def _derive(self, norm: PartStep, convolution: PartStep | None) -> tuple[fx.Node, tuple[Tensor, Tensor]]:
        """Scale and shift of the channels that a frozen norm makes, or weight and bias of the convolution that does its
        work too."""
        scale, shift = scale_and_shift(norm.call, self.constant)
        if convolution is None:
            channels = whole(tuple(scale.shape)), (norm.part[1],)
            return norm.node, (cut(scale, *channels), cut(shift, *channels))
        weight, bias = (convolution.call.args[name] for name in ("weight", "bias"))
        own = self.constant(weight)
        scale, shift = scale.to(own.dtype), shift.to(own.dtype)
        offset = shift if bias is None else shift + self.constant(bias) * scale
        return convolution.node, (own * scale.view(-1, *(1,) * (own.dim() - 1)), offset)

    def constant(self, node: fx.Node) -> Tensor:
        """The value of a node that does not depend on the input."""
        found = self._numbers(node)
        if found is None:
            raise MeasurementError(
                f"the module has changed: it does not hold what {describe(node)} is made of any more"
            )
        return found

    def __call__(self, image: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Run the pass.

        Args:
            image: (B, C_in, *space of ``plan.image``), a leaf that requires grad where a reference is the image.

        Returns:
            For each target the units' channels (B, C, units), or the layer's map (B, C, *space), one tensor for targets
            of the same units; and its reference: the image, or a tensor of which only what the units need has its
            numbers.
        """
        plan, found = self.plan, dict[fx.Node, Tensor]()
        is_last = image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)
        if is_last and not image.is_contiguous() and not self._is_last:
            # Else each pass would put the weights into the order of its images, and keep them.
            self._is_last = True
            last = {"memory_format": torch.channels_last}
            self._derived = {k: (w.contiguous(**last) if w.dim() == 4 else w, b) for k, (w, b) in self._derived.items()}
        self._device = image.device
        source = plan.graph.inputs[0]
        references, read = {source: image}, dict[LayerUnits, Tensor]()
        if source in plan.parts:
            hull = (*(np.arange(side) for side in image.shape[:2]), *(np.arange(*side) for side in plan.image))
            found[source] = cut(image, hull, (np.arange(len(image)), *plan.parts[source][1:]))
            if source in plan.layers:
                read |= self._read(source, found[source])
        for step, done in zip(plan.steps, plan._done, strict=True):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not step.node.meta["no_grad"]):
                out = self._make(step, found)
            if out.shape != tuple(map(len, step.part)):
                # Another part would be taken for this one.
                raise MeasurementError(
                    f"{describe(step.node)} makes {'x'.join(map(str, out.shape))} of a part; use --plain (plain=True)"
                )
            for each in done:
                found.pop(each, None)
            if step.node in plan.references:
                references[step.node] = all_of_it = self._whole(step.node, out, step.part)
                out = cut(all_of_it, whole(tuple(all_of_it.shape)), step.part)
            found[step.node] = out
            if step.node in plan.layers:
                read |= self._read(step.node, out)
        return [(read[each.layer, each.units], references.get(each.reference.node, image)) for each in plan.targets]

    def _read(self, node: fx.Node, have: Tensor) -> dict[LayerUnits, Tensor]:
        """The channels of the units of one layer; of several targets once."""
        found = dict[LayerUnits, Tensor]()
        for layer, _, units, boxes in self.plan.targets:
            if layer.node is not node or (layer, units) in found:
                continue
            if not units:
                found[layer, units] = layer.layout.to_map(have)
                continue
            values, part, batch = have, self.plan.parts[node], layer.layout.batch_dim
            if batch is None:
                values, part = have[None], (np.arange(1), *part)
                boxes = tuple((np.arange(1), *box) for box in boxes)
            rows = [cut(values, part, box).movedim(batch or 0, 0).flatten(1) for box in boxes]
            found[layer, units] = torch.stack(rows, 2)
        return found

    def _make(self, step: PartStep, found: Mapping[fx.Node, Tensor]) -> Tensor:
        """The part of an operation's output."""
        if step.node in self._folded:
            source = step.call.tensor()
            return cut(found[source], self.plan.parts[source], step.needed[source])

        def tensor(node: fx.Node) -> Tensor:
            have = found.get(node)
            if have is None:
                have, at = self.constant(node), whole(shape_of(node))
            else:
                at = self.plan.parts[node]
            return have if (wanted := step.needed.get(node)) is None else cut(have, at, wanted)

        return step.run(step, PartValues(tensor, self._device, self._derived.get(step.node)))

    def _whole(self, node: fx.Node, out: Tensor, part: Part) -> Tensor:
        """The whole of a reference, of which only a part has its numbers; a leaf where nothing before it is
        differentiated."""
        layout = next(target.reference.layout for target in self.plan.targets if target.reference.node is node)
        found = out.new_zeros(
            [self.plan.images if dim == layout.batch_dim else side for dim, side in enumerate(shape_of(node))]
        )
        found[np.ix_(*part)] = out
        return found if found.requires_grad else found.requires_grad_(torch.is_grad_enabled())


def crop(
    graph: RecordedGraph,
    numbers: Callable[[fx.Node], Tensor | None],
    layer: Wanted,
    reference: Wanted,
    units: Sequence[tuple[int, ...]],
    images: int,
) -> Crop | None:
    """Find the operations that some units need, and the part of each.

    Args:
        graph: A pass of as many images or more.
        numbers: Numbers of its constants.
        layer: Of the units.
        reference: What is differentiated with respect to.
        units: Indices in the layer's map; none for all of it.
        images: How many go through together.

    Returns:
        The crop; None where the operations need more images of the batch than there are.
    """
    shape = shape_of(layer.node)
    batch = layer.layout.batch_dim
    boxes = [layer.layout.unit_box(shape, unit) for unit in units] or [whole(shape)]
    boxes = [tuple(each[:images] if dim == batch else each for dim, each in enumerate(box)) for box in boxes]
    parts: dict[fx.Node, Part] = {layer.node: functools.reduce(union, boxes)}
    steps: list[PartStep] = []
    asked: dict[fx.Node, Part] = {}
    for node in reversed(graph.nodes):
        if node not in parts or node.op == "placeholder" or node not in graph.live:
            continue
        asked[node] = parts[node]
        steps.append(step := plan_step(node, parts[node], numbers))
        parts[node] = step.part
        for source, part in step.needed.items():
            if source in graph.live:
                parts[source] = union(parts.get(source), part)
    found = parts.get(graph.inputs[0])
    if found is not None and len(found[0]) and int(found[0][-1]) >= images:
        return None
    return Crop(
        graph=graph,
        targets=(Target(layer, reference, tuple(units), tuple(boxes)),),
        images=images,
        steps=tuple(reversed(steps)),
        parts=parts,
        asked=asked,
    )

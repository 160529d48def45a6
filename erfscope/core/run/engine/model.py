"""A model with its recorded pass at one input size, ready to be measured."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from threading import get_ident
from typing import Any, Self

import torch
from torch import Tensor, nn

from erfscope.core.adapter import Adapter
from erfscope.core.answer.result import Cost
from erfscope.core.graph.default_layer import default_layer
from erfscope.core.graph.record import UNRECORDED, RecordingError
from erfscope.core.graph.recording import LayerRecord, Recording
from erfscope.core.graph.run import Crop, Forward
from erfscope.core.graph.site import Site
from erfscope.core.request.request import STAGES, Request, is_several
from erfscope.core.run.engine.cost import cropped_giga_multiply_adds, forward_bytes, giga_multiply_adds
from erfscope.core.run.engine.operations import Operation, operations_of, passed_by
from erfscope.core.system.progress import Progress, no_progress, stage
from erfscope.core.system.restore import restored, restoring_module
from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import ErfscopeError, MeasurementError, unknown
from erfscope.core.values.finding import Finding
from erfscope.core.values.model_facts import Weights
from erfscope.core.values.names import IMAGE, OUTPUT
from erfscope.core.values.unit import CENTRE, Box, UnitWord, inside, sides
from erfscope.core.values.unit_kind import TOKEN, by_kind, kind_of, split_kind

#: Units that are planned one by one at most, to see whether that is less than all of them together.
FEW = 16


@dataclass(frozen=True)
class OpenModel:
    """A model, what to call it, and what one recorded forward pass says about it."""

    adapter: Adapter
    label: str
    #: Description of the blocks inserted into it, and the share of what they add.
    insert: str | None = None
    alpha: float | None = None
    #: Findings about its weights as they are at that moment, as a model may be trained between two measurements.
    weights_findings: Callable[[], Iterable[Finding]] = lambda: ()
    #: Called when it is recorded.
    progress: Progress = no_progress
    #: Modules of the caller's, which are handed back as found.
    lent: tuple[nn.Module, ...] = ()
    #: The options that it was opened with; None of one that is opened by measuring.
    request: Request | None = None
    #: Whether its weights are those that were asked for, and not only their shapes.
    has_numbers: bool = True
    #: The open ``with`` blocks of each thread.
    _blocks: dict[int, list[ExitStack]] = field(
        default_factory=lambda: defaultdict(list), init=False, repr=False, compare=False
    )

    def __enter__(self) -> Self:
        block = ExitStack()
        block.enter_context(torch.inference_mode(False))
        block.enter_context(restored(*self.lent))
        for module in self.lent:
            block.enter_context(restoring_module(module)).keep_state(module)
        self._blocks[get_ident()].append(block)
        return self

    def __exit__(self, *error: Any) -> None:
        self._blocks[get_ident()].pop().__exit__(*error)

    @cached_property
    def recording(self) -> Recording:
        """Every operation of one forward pass.

        Raises:
            MeasurementError: the model cannot run on an input of this size.
        """
        try:
            with stage(self.progress, f"recording {self.label}"):
                return self.adapter.recording
        except ErfscopeError as error:
            if str(error) == error.reason:
                raise
            raise type(error)(error.reason, model=self.label) from error.__cause__

    def needed_numbers(self, site: Site | None = None) -> str | None:
        """The sentence on a model, or on one layer of it, that could not be recorded without numbers; None where it
        could."""
        why = self.recording.needed_numbers if site is None else site.needs_numbers
        if not why:
            return None
        if self.recording.graph.by == UNRECORDED:
            return (
                f"the operations of {self.label} cannot be recorded ({why}): where its units stand is assumed from"
                " shapes, and what they can see at all is not known"
            )
        return (
            f"{self.label} has data-dependent control flow; recorded once with random input ({why}): its theoretical"
            " receptive fields (TRFs) hold for the path it took"
        )

    @property
    def module(self) -> nn.Module:
        """The model's ``nn.Module``."""
        return self.adapter.module

    @property
    def inputs(self) -> tuple[str, ...]:
        """The references that stand for inputs: "image", or "input:NAME" of each of several."""
        return (*self.adapter.preprocess.parts,) or (IMAGE,)

    @property
    def input_size(self) -> tuple[int, ...]:
        """Cells of the input along each axis; of several inputs those of the first."""
        return self.adapter.preprocess.size

    @property
    def axes(self) -> Axes:
        """The axes of the input."""
        return self.adapter.preprocess.axes

    @property
    def weights(self) -> Weights:
        """Where its weights come from."""
        return self.adapter.weights

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The stages; of a model that declares none the outermost modules with weights that give a map, in the order of
        execution. A module that is the only one stands for what is in it.

        Raises:
            MeasurementError: the model cannot run on an input of this size.
        """
        if self.adapter.stages:
            return self.adapter.stages
        orders = {each.name: each.order for each in self.recording.layers if math.prod(each.shape[2:]) > 1}
        found = [*_outermost(self.adapter.module, orders)]
        while len(found) == 1 and (inside := [*_outermost(self.adapter.module, orders, found[0])]):
            found = inside
        return tuple(sorted(found, key=lambda name: orders[name]))

    def asked_layers(self, request: Request) -> list[str]:
        """The layers that a request names, or the default one; '' if the model has none, which measuring then reports.

        Raises:
            ErfscopeError: stages of a model that has none, or a pattern that names none.
        """
        found: list[str] = []
        try:
            for layer in request.layers:
                if layer is None:
                    found.append(self.default_layer_of(kind_of(request.settings.unit)[0]))
                elif is_several(layer):
                    if layer == STAGES and not self.parts:
                        text = "has no stages: no module of it gives a map; `erfscope layers` lists its layers"
                        raise ErfscopeError(f"{self.label} {text}")
                    names = self.parts if layer == STAGES else self.layers_like(layer)
                    found += [each for name in names for each in self.calls_of(name)]
                else:
                    found.append(layer)
        except MeasurementError:
            return [""]
        return list(dict.fromkeys(found))

    def layers_like(self, pattern: str) -> list[str]:
        """The layers with a map of more than one position that a pattern names, such as ``dec*`` or ``enc*.0``: ``*``
        and ``?`` stand for letters of one module's own name.

        Raises:
            ErfscopeError: there is none.
        """

        def fits(name: str) -> bool:
            own, wanted = name.split("."), pattern.replace("[", "[[]").split(".")
            return len(own) == len(wanted) and all(map(fnmatchcase, own, wanted))

        names = [each.name for each in self.recording.layers if math.prod(each.shape[2:]) > 1]
        if not (found := [*filter(fits, names)]):
            raise unknown("layer", pattern, names, where=self.label)
        return found

    def calls_of(self, layer: str) -> list[str]:
        """The names under which a layer is measured: its own, or those of its calls where it runs several times."""
        count = self.recording.calls(layer)
        return [layer] if count < 2 else [f"{layer}@{call}" for call in range(count)]

    @cached_property
    def default_layer(self) -> str:
        """The layer that is measured unless another is named.

        Raises:
            MeasurementError: no layer has a spatial map, or the model fails on an input of this size.
        """
        return self.adapter.declared_layer or default_layer(self.recording, self.label)

    def default_layer_of(self, kind: str) -> str:
        """The layer whose units of a kind are measured unless another is named: of tokens and of units of a map the
        default layer, of others the tensor that the model returns, of several the first of logits.

        Raises:
            MeasurementError: as for :attr:`default_layer`, or the model returns no such tensor, or several.
        """
        if kind in ("", TOKEN):
            return self.default_layer
        returned = [name for name in self.recording.modules if name == OUTPUT or name.startswith(f"{OUTPUT}[")]
        found = [name for name in returned if self.recording.reading(by_kind(name, kind)).layout is not None]
        scores = [name for name in found if "logits" in name] or found
        if not found or (len(scores) > 1 and scores is found):
            several = f"several tensors with units {kind!r}, {', '.join(found[:8])}" if found else None
            text = f"returns {several or f'no tensor with units {kind!r}'}; name a layer with --layer"
            raise MeasurementError(text, model=self.label)
        return scores[0]

    def layer(self, name: str) -> LayerRecord:
        """The record of one layer.

        Raises:
            ErfscopeError: unknown layer, or one without a spatial map.
        """
        found = self.recording.layer(name)
        if found is not None:
            return found
        if split_kind(name)[0].partition("[")[0] in self.adapter.layer_names:
            Site(self.recording, name)
        names = [*self.adapter.stages, *(layer.name for layer in self.recording.layers)]
        raise unknown("layer", name, dict.fromkeys(names), where=self.label)

    def site(self, layer: str, wrt: str = IMAGE) -> Site:
        """A layer, by the kind of its units where these have no place, and a reference, found once.

        Raises:
            ErfscopeError: unknown layer or reference, one without a map, or a layer that does not depend on it.
        """
        self.layer(layer)
        return Site(self.recording, layer, wrt, unit_names=self.adapter.unit_names)

    def sites(self, layer: str | None, wrt: str = IMAGE, *, unit: UnitWord = CENTRE) -> list[Site]:
        """A layer with each reference that one stands for: of several inputs those that it depends on.

        Args:
            layer: The layer; the one whose units are measured by default if None.
            wrt: The reference.
            unit: What is asked for of it, which says the kind of its units.

        Raises:
            ErfscopeError: as for :meth:`site`.
            MeasurementError: as for :meth:`default_layer_of`.
        """
        kind, _ = kind_of(unit)
        name = by_kind(layer or self.default_layer_of(kind), kind)
        return [self.site(name, each) for each in self.references(name, wrt)]

    def references(self, layer: str, wrt: str = IMAGE) -> list[str]:
        """The references that one stands for: of the image of a model that takes several inputs, those that a layer
        depends on.

        Raises:
            ErfscopeError: an input that has no gradient, or of which the layer has none.
        """
        adapter = self.adapter
        if wrt in adapter.passed:
            known, what = ", ".join(self.recording.inputs), f"{wrt!r} of {self.label} is passed through"
            raise ErfscopeError(f"{what}, {adapter.passed[wrt]}: there is no map of it; name {known}")
        if not adapter.preprocess.parts or wrt != IMAGE:
            return [wrt]
        self.layer(layer)
        recording = self.recording
        if (seen := recording.find(layer)) is None or seen.node not in recording.graph.live:
            raise ErfscopeError(f"layer {layer!r} of {self.label} depends on none of its inputs")
        return recording.inputs_of(seen)

    def crops(
        self,
        site: Site,
        units: Sequence[tuple[int, ...]],
        *,
        images: int = 1,
        most: int = 1,
        adapter: Adapter | None = None,
    ) -> list[Crop]:
        """The operations that units need: one crop for each, or one for all of them where that is less.

        Args:
            site: Their layer, and the reference of the gradient.
            units: Indices in its map, in order.
            images: How many go through together.
            most: How many ever will: one recorded pass serves for fewer.
            adapter: A copy of the model in another precision that is run.

        Raises:
            RecordingError: the model cannot be recorded with so many images.
        """
        together = [tuple(units)]
        apart = [(unit,) for unit in units]
        groups = together if len(units) == 1 or len(units) > FEW else apart
        if groups is apart:
            *each, all_of_them = (
                cropped_giga_multiply_adds(self._crop(site, group, 1, 1, self.adapter))[0]
                for group in (*apart, *together)
            )
            groups = apart if sum(each) < all_of_them else together
        return [self._crop(site, group, images, max(images, most), adapter or self.adapter) for group in groups]

    def _crop(self, site: Site, units: tuple[tuple[int, ...], ...], images: int, most: int, adapter: Adapter) -> Crop:
        for number, exactly in ((images if images <= self.recording.images else most, False), (images, True)):
            there = adapter.recorded_pass(number, exactly=exactly)
            if (found := site.crop(units, images, there)) is not None:
                return found
        raise RecordingError(f"{site.layer!r} is not found in a pass of {images} images")

    def part_pass(self, site: Site, part: Box, images: int) -> Callable[[Tensor], Tensor]:
        """A forward pass of so many images that gives a part of a layer's map: inputs (B, C_in, *space) -> (B, C,
        *part), by the operations that the part needs where the model's pass can be cut, else by the whole model.

        Args:
            site: The layer, with respect to the image.
            part: Its first cell and last + 1 along each axis.
            images: How many go through together.

        Raises:
            RecordingError: the model cannot be recorded with so many images.
        """
        if site.plain_reason is not None or site.layout.grid or site.layout.batch_dim is None:
            return lambda x: self.adapter.features(x, site).map[inside(part)]
        # Of a tensor that units read, all rows and columns with one of them are computed: of a diagonal the whole box.
        steps = range(max(sides(part)))
        diagonal = tuple(tuple([min(first + step, stop - 1) for first, stop in part]) for step in steps)
        crop = self._crop(site, diagonal, images, images, self.adapter)
        (target,) = crop.targets
        needed = replace(crop, targets=(target._replace(units=()),))
        forward = Forward(needed, self.adapter.tensors())
        return lambda x: forward(x[inside(needed.image)])[0][0]

    def whole(self, site: Site, images: int | None = None) -> Crop:
        """All operations up to a layer, whole, for so many images, or as many as were recorded."""
        count = images or self.recording.images
        return self._crop(site, (), count, count, self.adapter)

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The operations with weights of a model of one input, in order of execution, and what each sees of the input.

        Raises:
            MeasurementError: the model cannot run on an input of this size.
        """
        last: str | None = None
        with contextlib.suppress(ErfscopeError):
            last = self.default_layer
        return operations_of(self.recording, self.parts, last)

    def passed_by(self, layer: str, parts: Sequence[str]) -> tuple[str, ...]:
        """Those modules that skip connections pass by: the layer still sees the image without them."""
        return passed_by(self.recording, layer, parts)

    @property
    def forward_bytes(self) -> int:
        """Bytes of one image's tensors alive at once, at the worst moment of a forward pass without gradients."""
        return forward_bytes(self.recording.graph)

    @cached_property
    def cost(self) -> Cost:
        """Parameters, and multiply-adds of one forward pass."""
        parameters, gmacs = sum(p.numel() for p in self.adapter.module.parameters()), None
        with contextlib.suppress(ErfscopeError):  # a model that does not run
            if not self.recording.needed_numbers:
                gmacs = giga_multiply_adds(self.recording.graph)
        return Cost(parameters=parameters, gmacs=gmacs)


def _outermost(module: nn.Module, names: Collection[str], inside: str = "") -> Iterator[str]:
    """The outermost modules with weights, other than norms, that are among these names, inside one of them."""
    for child, part in module.get_submodule(inside).named_children():
        path = f"{inside}.{child}".lstrip(".")
        if path in names and any(weight.ndim > 1 for weight in part.parameters()):
            yield path
        else:
            yield from _outermost(module, names, path)

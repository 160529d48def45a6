"""A model with its recorded structure at one input size, ready to be measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from erfscope.adapter import IMAGE, Adapter
from erfscope.cone.cone import Cone
from erfscope.cone.gradients import doubts, hooks_on
from erfscope.engine.recorded import RecordedModel, recorded_model
from erfscope.errors import ErfscopeError, unknown
from erfscope.finding import Finding
from erfscope.geometry.receptive_field import Trf
from erfscope.geometry.unit import Unit
from erfscope.results.result import Cost
from erfscope.trf.default_layer import default_layer
from erfscope.trf.record import LayerRecord, Recording, RecordingError


@dataclass(frozen=True)
class LoadedModel:
    """A model, what to call it, and what one recorded forward pass says about it."""

    adapter: Adapter
    label: str
    #: Blocks inserted into it, in words, and the share of what they add.
    insert: str | None = None
    alpha: float | None = None
    #: What is to be said of its weights as they are at that moment, as a model may be trained between two measurements;
    #: takes what makes an input, or None where there is none.
    weights_findings: Callable[[Callable[[], Tensor] | None], Iterable[Finding]] = lambda _first: ()

    @cached_property
    def recorded(self) -> RecordedModel:
        """What recorded passes say of it.

        Raises:
            MeasurementError: the model cannot run on an input of this size.
        """
        return recorded_model(self.adapter, self.label)

    @property
    def recording(self) -> Recording:
        """Every operation of one forward pass, on the meta device where the model can run there."""
        return self.recorded.recording

    @property
    def meta_failure(self) -> str | None:
        """What to say where the model could not run on the meta device; None where it did."""
        return self.recorded.meta_failure

    def pass_bytes(self, layer: str, wrt: str = IMAGE) -> int | None:
        """Return the memory that one whole image takes; see :meth:`RecordedModel.pass_bytes`."""
        return self.recorded.pass_bytes(layer, wrt)

    @cached_property
    def default_layer(self) -> str:
        """The layer that is measured unless another is named.

        Raises:
            MeasurementError: no layer has a spatial map, or the model fails on an input of this size.
        """
        return self.adapter.declared_layer or default_layer(self.recording, self.label)

    def layer(self, name: str) -> LayerRecord:
        """What is known about one layer.

        Raises:
            ErfscopeError: unknown layer, or one without a spatial map.
        """
        found = {entry.name: entry for entry in self.recording.layers}
        if name in found:
            return found[name]
        if name.partition("[")[0] in self.adapter.layer_names:
            self.recording.default_unit(name)
        raise unknown("layer", name, dict.fromkeys([*self.adapter.stages, *found]), where=self.label)

    def sees_batch(self, layer: str) -> bool:
        """Whether a layer must be measured one image at a time, since the images of a batch may see each other or are
        not taken."""
        return self.recording.takes_one_image or bool(self.recording.batch_mixing(layer))

    def mixes_gradients(self, layer: str, wrt: str = IMAGE) -> str:
        """What may carry the gradient of one image of a batch to another where no operation does, in words; "" for
        nothing."""
        try:
            return "" if self.sees_batch(layer) else self.recorded.planner.mixed_by(layer, wrt)
        except RecordingError:  # a model that needs numbers takes one image at a time anyway
            return ""

    def gradient_doubts(self, layer: str, wrt: str = IMAGE) -> list[str]:
        """What may make the gradient another than the model's derivative, in words."""
        if self.meta_failure is None:
            # A model that takes one image, or needs numbers, has the recorded pass alone.
            with contextlib.suppress(ErfscopeError):
                return self.recorded.planner.gradient_doubts(layer, wrt)
        return doubts(self.recording.way_to(layer, wrt), notes_gradients=False)

    def trf(self, layer: str, unit: tuple[int, ...], wrt: str = IMAGE) -> Trf:
        """The theoretical receptive field of one unit.

        The centre is not exact where the recorded pass needed numbers: with others, the path or what is picked may be
        another."""
        found = self.recording.trf(layer, unit, wrt)
        if self.meta_failure is None or not found.center_exact:
            return found
        return replace(
            found,
            center_exact=False,
            center_doubt="it was recorded with random numbers, and may be elsewhere with others",
        )

    def cones(self, layer: str, units: Sequence[Unit], wrt: str = IMAGE, *, crop: bool = True) -> list[Cone] | None:
        """What of the forward pass is computed for each unit.

        Args:
            layer: Layer name.
            units: Units of its map.
            wrt: Reference of the gradient.
            crop: False to crop and fold nothing.

        Returns:
            One cone per unit; all of them whole where that is cheaper than one crop after the other. None for a model
            that cannot be run on the meta device, or takes one image only.
        """
        if self.recording.takes_one_image or self.meta_failure is not None:
            return None
        try:
            whole = [self.recorded.planner.whole(layer, unit, wrt) for unit in units]
            if not crop:
                return [replace(cone, folds=()) for cone in whole]
            if hooks := hooks_on(self.adapter.module):
                return [
                    replace(cone, folds=(), reason=f"{hooks}, which may do anything to a gradient") for cone in whole
                ]
            found = [self.recorded.planner.plan(layer, unit, wrt) for unit in units]
        except RecordingError:
            return None
        if sum(cone.share for cone in found) < 1 or len(found) == 1:
            return found
        return [replace(cone, reason="the units together see everything") for cone in whole]

    @cached_property
    def cost(self) -> Cost:
        """Parameters, and multiply-adds of one forward pass counted by PyTorch."""
        from torch.utils.flop_counter import FlopCounterMode

        parameters = sum(p.numel() for p in self.adapter.module.parameters())
        counter = FlopCounterMode(display=False)
        try:
            if self.meta_failure is not None:
                return Cost(parameters=parameters, gmacs=None)
            meta: Any = self.adapter.on_meta()
            with counter, torch.no_grad():
                meta.visit(self.recorded.input("meta"), lambda *_, **__: None)
        except Exception:  # a data-dependent model cannot run on the meta device, and may fail in any way
            return Cost(parameters=parameters, gmacs=None)
        return Cost(parameters=parameters, gmacs=counter.get_total_flops() / 2e9)


def loaded_model(adapter: Adapter, label: str) -> LoadedModel:
    """Return a model with its recorded pass, for adapters that must know of it; see
    :func:`erfscope.adapter.loaded_model`."""
    return LoadedModel(adapter=adapter, label=label)

"""A model with its recorded structure at one input size, ready to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from erfscope.adapter import IMAGE, Adapter
from erfscope.cone.check import TOLERANCE, ComparisonError, difference
from erfscope.cone.cone import Cone
from erfscope.cone.gradients import hooks_on
from erfscope.cone.plan import Planner
from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.memory import OVERHEAD, available_bytes, ran_out, sample_bytes
from erfscope.result import Cost
from erfscope.trf.field import Trf
from erfscope.trf.recording import LayerRecord, Recording, RecordingError, record
from erfscope.unit import Unit


@dataclass(frozen=True)
class Subject:
    """A model, what to call it, and what one recorded forward pass says about it."""

    adapter: Adapter
    label: str
    #: Blocks inserted into it, in words, and the share of what they add.
    insert: str | None = None
    alpha: float | None = None

    @property
    def recording(self) -> Recording:
        """Every operation of one forward pass, on the meta device where the model can run there.

        Raises:
            MeasurementError: the model cannot run on an input of this size.
        """
        return self._recorded[0]

    @property
    def needed_numbers(self) -> str | None:
        """What to say where the model could not run on the meta device; None where it did."""
        return self._recorded[1]

    @cached_property
    def _recorded(self) -> tuple[Recording, str | None]:
        try:
            return record(self.adapter.on_meta().visit, self._input("meta")), None
        except Exception as error:  # a model may fail in any way
            if isinstance(error, ErfscopeError) and not isinstance(error, RecordingError):
                raise
            first = error.__cause__ or error
        # A data-dependent model cannot run without numbers.
        parameter = next(self.adapter.module.parameters(), None)
        device = "cpu" if parameter is None else str(parameter.device)
        if device == "meta":
            raise model_failed(self.label, self.adapter, first) from first
        text = (
            f"{self.label} cannot run without numbers ({_line(first)[:100]}): its fields come from one forward pass on {device} "
            "with random pixels, and hold for the path it took"
        )
        try:
            return record(self.adapter.visit, self._input(device).normal_(generator=torch.Generator(device).manual_seed(0))), text
        except Exception as error:
            if isinstance(error, ErfscopeError) and not isinstance(error, RecordingError):
                raise
            raise model_failed(self.label, self.adapter, error.__cause__ or error) from error

    @cached_property
    def default_layer(self) -> str:
        """The layer that is measured unless another is named.

        Raises:
            MeasurementError: no layer has a spatial map, or the model fails on an input of this size.
        """
        try:
            return self.adapter.default_layer
        except ErfscopeError:
            raise
        except Exception as error:  # a bare module is run to find its layers, and may fail in any way
            raise model_failed(self.label, self.adapter, error) from error

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

    def _input(self, device: str) -> Tensor:
        """An input (1, C_in, *space) without numbers, in the model's dtype."""
        parameter = next((p for p in self.adapter.module.parameters() if p.is_floating_point()), None)
        shape = (1, self.adapter.preprocess.channels, *self.adapter.preprocess.size)
        return torch.empty(shape, device=device, dtype=torch.float32 if parameter is None else parameter.dtype)

    def trf(self, layer: str, unit: tuple[int, ...], wrt: str = IMAGE) -> Trf:
        """The theoretical receptive field of one unit."""
        return self.recording.trf(layer, unit, wrt)

    def cones(self, layer: str, units: Sequence[Unit], wrt: str = IMAGE, *, crop: bool = True, compare: bool = False) -> list[Cone] | None:
        """What of the forward pass is computed for each unit.

        Args:
            layer: Layer name.
            units: Units of its map.
            wrt: Reference of the gradient.
            crop: False to crop and fold nothing.
            compare: Where the recorded operations leave it open whether a crop is exact, compare it with the whole pass on noise instead of
                computing everything.

        Returns:
            One cone per unit; all of them whole where that is cheaper than one crop after the other. None for a model that cannot be run
            without numbers.
        """
        try:
            whole = [self._planner.whole(layer, unit, wrt) for unit in units]
            if not crop:
                return [replace(cone, folds=()) for cone in whole]
            if hooks := hooks_on(self.adapter.module):
                return [replace(cone, folds=(), reason=f"{hooks}, which may do anything to a gradient") for cone in whole]
            check = self._objection if compare else None
            found = [self._planner.plan(layer, unit, wrt, check=check) for unit in units]
        except RecordingError:
            return None
        if sum(cone.share for cone in found) < 1 or len(found) == 1:
            return found
        return [replace(cone, reason="the units together see everything") for cone in whole]

    def _objection(self, cone: Cone) -> str:
        """What a comparison with the whole pass on noise of the input's size has against a cone, in words; "" for nothing.

        On something smaller, numbers that follow the position could agree near the crop and differ elsewhere.
        """
        x = self._input("meta")
        device = next((p.device for p in self.adapter.module.parameters()), torch.device("cpu"))
        there = available_bytes(device)
        each = self.sample_bytes(cone.layer, cone.wrt, device=device, dtype=x.dtype, amp_dtype=None)
        if there is not None and (each is None or OVERHEAD * each * 8 / x.element_size() > there / 2):
            return "there is no memory to compare it in float64"
        noise = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
        try:
            off = difference(self.adapter, cone, noise.to(device))
        except ComparisonError as error:
            return str(error)
        return "" if off <= TOLERANCE else f"a comparison in float64 did not agree ({off:.1e} on noise)"

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self.adapter, self.recording, self._input("meta").dtype)

    def sample_bytes(
        self, layer: str, wrt: str, *, device: torch.device, dtype: torch.dtype, amp_dtype: torch.dtype | None, cone: Cone | None = None
    ) -> int | None:
        """Memory that one picture takes, counted once for each question; see :func:`erfscope.memory.sample_bytes`."""
        asked = (layer, wrt, str(device), dtype, amp_dtype, None if cone is None else (cone.image, cone.cuts, cone.patches))
        if asked not in self._sample_bytes:
            self._sample_bytes[asked] = sample_bytes(self.adapter, layer, wrt, device=device, dtype=dtype, amp_dtype=amp_dtype, cone=cone)
        return self._sample_bytes[asked]

    @cached_property
    def _sample_bytes(self) -> dict[tuple[object, ...], int | None]:
        return {}

    @cached_property
    def cost(self) -> Cost:
        """Parameters, and multiply-adds of one forward pass counted by PyTorch."""
        from torch.utils.flop_counter import FlopCounterMode

        parameters = sum(p.numel() for p in self.adapter.module.parameters())
        meta: Any = self.adapter.on_meta()
        counter = FlopCounterMode(display=False)
        try:
            with counter, torch.no_grad():
                meta.visit(self._input("meta"), lambda *_, **__: None)
        except Exception:  # a data-dependent model cannot run without numbers, and may fail in any way
            return Cost(parameters=parameters, gmacs=None)
        return Cost(parameters=parameters, gmacs=counter.get_total_flops() / 2e9)


def model_failed(label: str, adapter: Adapter, error: BaseException) -> MeasurementError:
    """One line for a model whose forward pass fails."""
    size = "x".join(str(side) for side in adapter.preprocess.size)
    if ran_out(error):
        return MeasurementError(
            f"{label} does not fit into memory with one picture of {size}: {_line(error)[:200]}; use a smaller --input-size"
        )
    devices = sorted({str(parameter.device) for parameter in adapter.module.parameters()})
    hint = "try another --input-size or --in-chans" if len(devices) < 2 else f"it lies on {', '.join(devices)}: move it to one device"
    return MeasurementError(f"{label} fails on an input of {adapter.preprocess.channels} channels at {size}: {_line(error)[:200]}; {hint}")


def _line(error: BaseException) -> str:
    """The first line of what an exception says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]

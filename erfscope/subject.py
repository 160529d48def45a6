"""A model with its recorded structure at one input size, ready to be measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from erfscope.adapter import IMAGE, Adapter
from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.result import Cost
from erfscope.trf.recording import LayerRecord, Recording, record
from erfscope.trf.field import Trf


@dataclass(frozen=True)
class Subject:
    """A model, what to call it, and what one recorded forward pass says about it."""

    adapter: Adapter
    label: str

    @cached_property
    def recording(self) -> Recording:
        """Every operation of one forward pass, on the meta device where the model can run there.

        Raises:
            MeasurementError: the model cannot run on an input of this size.
        """
        shape = (1, self.adapter.preprocess.channels, *self.adapter.preprocess.size)
        parameter = next((p for p in self.adapter.module.parameters() if p.is_floating_point()), None)
        dtype = torch.float32 if parameter is None else parameter.dtype
        try:
            return record(self.adapter.on_meta().visit, torch.empty(shape, device="meta", dtype=dtype))
        except ErfscopeError:
            raise
        except Exception:  # a data-dependent model cannot run without numbers, and may fail in any way
            device = torch.device("cpu") if parameter is None else parameter.device
            x = torch.rand(shape, device=device, dtype=dtype, generator=torch.Generator(device).manual_seed(0))
            try:
                return record(self.adapter.visit, x)
            except ErfscopeError:
                raise
            except Exception as error:
                raise model_failed(self.label, self.adapter, error) from error

    def layer(self, name: str) -> LayerRecord:
        """What is known about one layer.

        Raises:
            ErfscopeError: unknown layer.
        """
        found = {entry.name: entry for entry in self.recording.layers}
        if name not in found:
            names = [*self.adapter.stages, *(n for n in found if n not in self.adapter.stages and not n.endswith(":in"))]
            raise unknown("layer", name, names, where=self.label)
        return found[name]

    def trf(self, layer: str, unit: tuple[int, ...], wrt: str = IMAGE) -> Trf:
        """The theoretical receptive field of one unit."""
        return self.recording.trf(layer, unit, wrt)

    @cached_property
    def cost(self) -> Cost:
        """Parameters, and multiply-adds of one forward pass counted by PyTorch."""
        from torch.utils.flop_counter import FlopCounterMode

        parameters = sum(p.numel() for p in self.adapter.module.parameters())
        meta: Any = self.adapter.on_meta()
        shape = (1, self.adapter.preprocess.channels, *self.adapter.preprocess.size)
        counter = FlopCounterMode(display=False)
        try:
            with counter, torch.no_grad():
                meta.visit(torch.empty(shape, device="meta"), lambda *_, **__: None)
        except Exception:  # a data-dependent model cannot run without numbers, and may fail in any way
            return Cost(parameters=parameters, gmacs=None)
        return Cost(parameters=parameters, gmacs=counter.get_total_flops() / 2e9)


def model_failed(label: str, adapter: Adapter, error: Exception) -> MeasurementError:
    """One line for a model whose forward pass fails."""
    size = "x".join(str(side) for side in adapter.preprocess.size)
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return MeasurementError(
        f"{label} fails on an input of {adapter.preprocess.channels} channels at {size}: {text}; try another --input-size or --in-chans"
    )

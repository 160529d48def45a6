"""What recorded passes say of a model at one input size, kept as long as its adapter."""

from __future__ import annotations

from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from erfscope.adapter import IMAGE, Adapter
from erfscope.attribution.gradient import guarded
from erfscope.cone.memory import LargestOperations, pass_bytes
from erfscope.cone.plan import Planner
from erfscope.errors import ErfscopeError
from erfscope.model_errors import first_line, model_failed
from erfscope.restore import same_random_numbers
from erfscope.trf.record import IMAGES, Recording, RecordingError, pause_collection, record


class RecordedModel:
    """One recorded pass of a model, on the meta device where it can run there, and what is planned from passes like it.

    Args:
        adapter: The model.
        label: What to call it in messages.

    Raises:
        MeasurementError: the model cannot run on an input of its size.
    """

    def __init__(self, adapter: Adapter, label: str) -> None:
        self.adapter, self._label = adapter, label
        self._meta: Adapter | None = None
        # Copies of parameters that are made in inference mode could not be recorded with gradients.
        with same_random_numbers(), torch.inference_mode(False):
            #: Every operation of one forward pass, and what to say where the model could not run on the meta device;
            #: else None.
            self.recording, self.meta_failure = self._run_recorded()
        if self.meta_failure is None:
            # The model itself is needed no more, and not kept alive.
            self.adapter = self.meta

    def _run_recorded(self) -> tuple[Recording, str | None]:
        parameter = next(self.adapter.module.parameters(), None)
        device = "cpu" if parameter is None else str(parameter.device)
        try:
            with pause_collection():
                return self._record(self.meta, "meta"), None
        except Exception as error:  # a model may fail in any way
            first = _cause(error)
        # A model with data-dependent control flow has to be run with numbers.
        if device == "meta":
            raise model_failed(self._label, self.adapter, first) from first
        text = (
            f"{self._label} has data-dependent control flow; traced once with random input on {device}"
            f" ({first_line(first)}): its theoretical receptive fields (TRFs) hold for the path it took"
        )
        try:
            return self._record(self.adapter, device), text
        except Exception as error:
            failure = _cause(error)
            raise model_failed(self._label, self.adapter, failure) from failure

    @property
    def meta(self) -> Adapter:
        """The same model on the meta device, as it was found.

        Raises:
            RecordingError: it cannot be copied.
        """
        if self._meta is None:
            try:
                self._meta = self.adapter.on_meta()
            except ErfscopeError:
                raise
            except Exception as error:  # what a module holds may refuse to be copied in any way
                raise RecordingError(f"the model cannot be copied: {first_line(error)}") from error
        return self._meta

    def _record(self, adapter: Adapter, device: str) -> Recording:
        """One recorded pass on several images, so that it is seen where each of them goes, or on one for a model that
        takes no more."""
        image = self._noise(device)
        try:
            recording = record(adapter.visit, torch.cat([image] * (IMAGES if device == "meta" else 2)))
        except ErfscopeError:
            return record(adapter.visit, image)
        if not recording.keeps_images:
            # It may have taken the two for something else, such as a pair of views, and then fails on one.
            record(adapter.visit, image)
        return recording

    def input(self, device: str) -> Tensor:
        """An input (1, C_in, *space) without numbers, in the model's dtype."""
        parameter = next((p for p in self.adapter.module.parameters() if p.is_floating_point()), None)
        shape = (1, self.adapter.preprocess.channels, *self.adapter.preprocess.size)
        return torch.empty(shape, device=device, dtype=torch.float32 if parameter is None else parameter.dtype)

    def _noise(self, device: str) -> Tensor:
        """The same with normal numbers, where the device keeps numbers."""
        image = self.input(device)
        return image if image.is_meta else image.normal_(generator=torch.Generator(device).manual_seed(0))

    @cached_property
    def planner(self) -> Planner:
        """Plans cones from passes like the recorded one."""
        return Planner(self.meta, self.recording, self.input("meta").dtype)

    def pass_bytes(self, layer: str, wrt: str = IMAGE) -> int | None:
        """Return the memory that one whole image takes, with its gradient, in bytes: see
        :func:`erfscope.cone.memory.pass_bytes`.

        Of a model that cannot be run on the meta device it is read from a pass on noise. None where the model fails.
        """
        if (layer, wrt) not in self._pass_bytes:
            try:
                found = (
                    self.planner.whole_bytes(layer, wrt)
                    if self.meta_failure is None
                    else self._measured_bytes(layer, wrt)
                )
            except Exception:  # it may fail in any way, and fails again, with its own message, where it is measured
                found = None
            self._pass_bytes[layer, wrt] = found
        return self._pass_bytes[layer, wrt]

    @cached_property
    def _pass_bytes(self) -> dict[tuple[str, str], int | None]:
        return {}

    def _measured_bytes(self, layer: str, wrt: str) -> int:
        device = next((p.device for p in self.adapter.module.parameters()), torch.device("cpu"))
        x = self._noise(str(device)).requires_grad_(True)
        with same_random_numbers(), guarded(device), LargestOperations() as operations:
            features = self.adapter.features(x, layer, wrt, known=self.recording.layouts(layer, wrt))
        return pass_bytes(features, x, self.adapter.module, operations)


def _cause(error: Exception) -> BaseException:
    """What a model raised, as the recorder passes it on. Raises again what is erfscope's own."""
    if isinstance(error, ErfscopeError) and not isinstance(error, RecordingError):
        raise error
    return error.__cause__ or error


#: By adapter what was recorded of it.
_kept: WeakKeyDictionary[Adapter, RecordedModel] = WeakKeyDictionary()


def recorded_model(adapter: Adapter, label: str) -> RecordedModel:
    """Return what recorded passes say of a model, recorded once for an adapter (docs/contract.md, 4).

    Args:
        adapter: The model, at its input size.
        label: What to call it in messages.

    Raises:
        MeasurementError: the model cannot run on an input of its size.
    """
    found = _kept.get(adapter)
    if found is None:
        found = RecordedModel(adapter, label)
        # With real numbers the path may be another one the next time.
        if found.meta_failure is None:
            _kept[adapter] = found
    return found

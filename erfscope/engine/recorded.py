"""What recorded passes say of a model at one input size, kept as long as the model stays what it is."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapter import IMAGE, Adapter
from erfscope.attribution.gradient import guarded
from erfscope.cone.memory import LargestOperations, pass_bytes
from erfscope.cone.plan import Planner
from erfscope.errors import ErfscopeError
from erfscope.hosting.process_state import pause_collection
from erfscope.hosting.random_states import same_random_numbers
from erfscope.hosting.snapshot import as_found
from erfscope.hosting.structure import structure_of
from erfscope.model_errors import first_line, model_failed
from erfscope.trf.record import IMAGES, Recording, RecordingError, record
from erfscope.trf.tapes.control_flow import record_function_calls

#: How many models are kept, at their input sizes.
KEPT = 8


class RecordedModel:
    """One recorded pass of a model, on the meta device where it can run there, and what is planned from passes like it.

    Args:
        adapter: The model.
        label: What to call it in messages.
        meta_mismatch_reason: Why a pass without numbers does not show what is measured, in words; "" where that is not known.

    Raises:
        MeasurementError: the model cannot run on an input of its size.
    """

    def __init__(self, adapter: Adapter, label: str, meta_mismatch_reason: str = "") -> None:
        self.adapter, self._label, self._meta_mismatch_reason = adapter, label, meta_mismatch_reason
        self._meta: Adapter | None = None
        #: What was found out by other passes without numbers, by question.
        self.answers: dict[tuple[object, ...], Any] = {}
        #: How many measurements have taken it.
        self.uses = 0
        # Copies of parameters that are made in inference mode could not be recorded with gradients.
        with same_random_numbers(), torch.inference_mode(False):
            #: Every operation of one forward pass, and what to say where the model could not run on the meta device; else None.
            self.recording, self.meta_failure = self._run_recorded()
        if self.meta_failure is None:
            # The model itself is needed no more, and not kept alive.
            self.adapter = self.meta
        self._calls = self._calls_now()

    def _run_recorded(self) -> tuple[Recording, str | None]:
        parameter = next(self.adapter.module.parameters(), None)
        device = "cpu" if parameter is None else str(parameter.device)
        try:
            if self._meta_mismatch_reason:
                raise RecordingError(self._meta_mismatch_reason)
            with pause_collection(), as_found(self.meta.module):
                recording = self._record(self.meta, "meta")
            if recording.asked_device and device != "meta" and self._functions(device) not in (None, self._functions("meta")):
                raise RecordingError(f"it asks where its tensors lie, and computes otherwise on {device}")
            return recording, None
        except Exception as error:  # a model may fail in any way
            first = _cause(error)
        # A model with data-dependent control flow has to be run with numbers.
        if device == "meta":
            raise model_failed(self._label, self.adapter, first) from first
        text = (
            f"{self._label} has data-dependent control flow; traced once with random input on {device} ({first_line(first)}): "
            "its theoretical receptive fields (TRFs) hold for the path it took"
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
        """One recorded pass on several images, so that it is seen where each of them goes, or on one for a model that takes no more."""
        image = self._noise(device)
        if self._meta_mismatch_reason:
            return record(adapter.visit, image)
        try:
            recording = record(adapter.visit, torch.cat([image] * (IMAGES if device == "meta" else 2)))
        except ErfscopeError:
            return record(adapter.visit, image)
        if not recording.keeps_images:
            # It may have taken the two for something else, such as a pair of views, and then fails on one.
            record(adapter.visit, image)
        return recording

    def _functions(self, device: str) -> list[str] | None:
        """The functions of PyTorch that a forward pass calls on the model as it is, which it stays; None if it fails, as it will again."""
        try:
            adapter = self.adapter.on_meta() if device == "meta" else self.adapter
            with as_found(adapter.module):
                return record_function_calls(adapter.visit, self._noise(device)).names
        except Exception:  # a model may fail in any way
            return None

    def is_current(self) -> bool:
        """Return whether a pass without numbers calls what it did when the model was recorded, with the same arguments.

        No structure of a model shows what its forward reads elsewhere: a constant of another file, the environment, a file.
        """
        return self._calls == self._calls_now()

    def _calls_now(self) -> object:
        if self.meta_failure is not None:  # what needs numbers is never kept
            return None
        try:
            with same_random_numbers(), pause_collection(), as_found(self.meta.module):
                calls = record_function_calls(self.meta.visit, self.input("meta"))
        except Exception as error:  # a model that takes several images only, or fails in any other way
            return type(error), str(error)
        return calls.names, calls.arguments

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
        """Return the memory that one whole image takes, with its gradient, in bytes: see :func:`erfscope.cone.memory.pass_bytes`.

        Of a model that cannot be run on the meta device it is read from a pass on noise. None where the model fails.
        """
        if (layer, wrt) not in self._pass_bytes:
            try:
                found = self.planner.whole_bytes(layer, wrt) if self.meta_failure is None else self._measured_bytes(layer, wrt)
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
        with same_random_numbers(), as_found(self.adapter.module), guarded(device), LargestOperations() as operations:
            features = self.adapter.features(x, layer, wrt, known=self.recording.layouts(layer, wrt))
        return pass_bytes(features, x, self.adapter.module, operations)


def _cause(error: Exception) -> BaseException:
    """What a model raised, as the recorder passes it on. Raises again what is erfscope's own."""
    if isinstance(error, ErfscopeError) and not isinstance(error, RecordingError):
        raise error
    return error.__cause__ or error


#: By the identity of a module, its input size and name: the module, what it was, and what was recorded of it.
_kept: OrderedDict[tuple[object, ...], tuple[weakref.ref[nn.Module], list[Any], RecordedModel]] = OrderedDict()
#: Attributes of an adapter that change nothing of a pass.
_SAID = ("module", "weights", "notes", "remarks", "spec")


def recorded_model(adapter: Adapter, label: str, meta_mismatch_reason: str = "") -> RecordedModel:
    """Return what recorded passes say of a model: what was kept of it, if it is still what it was then, else recorded anew.

    Args:
        adapter: The model, at its input size.
        label: What to call it in messages.
        meta_mismatch_reason: As for :class:`RecordedModel`; nothing is kept where it is not "".

    Raises:
        MeasurementError: the model cannot run on an input of its size.
    """
    asked = {name: value for name, value in vars(adapter).items() if name not in _SAID and not hasattr(type(adapter), name)}
    key = id(adapter.module), type(adapter), adapter.preprocess.size, label
    structure = None if meta_mismatch_reason else structure_of(adapter.module, **asked)
    module, was, found = _kept.get(key, (None, None, None))
    if structure is None or found is None or module is None or module() is not adapter.module or was != structure or not found.is_current():
        found = RecordedModel(adapter, label, meta_mismatch_reason)
        # With real numbers the path may be another one the next time.
        if structure is not None and found.meta_failure is None:
            _kept[key] = weakref.ref(adapter.module, partial(_drop, _kept, key)), structure, found
    if key in _kept:
        _kept.move_to_end(key)
    if len(_kept) > KEPT:
        _kept.popitem(last=False)
    found.uses += 1
    if found.meta_failure is None:
        found.planner.measurement = found.uses
    return found


def _drop(kept: dict[tuple[object, ...], Any], key: tuple[object, ...], _module: object) -> None:
    """Called when a module goes; at the end of the process the names of this file are gone by then, so that it is given all it needs."""
    kept.pop(key, None)


def forget(recorded: RecordedModel) -> bool:
    """Keep a recorded model no longer; return whether it was recorded for an earlier measurement."""
    for key in [key for key, (_, _, found) in _kept.items() if found is recorded]:
        del _kept[key]
    return recorded.uses > 1

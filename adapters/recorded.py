"""Recorded passes of a model, kept as long as its adapter."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from erfscope.adapters.channels import MOST_GUESSES, next_guess
from erfscope.adapters.state import evaluation_mode
from erfscope.core.graph.graph import RecordedGraph, Unfaithful
from erfscope.core.graph.images_apart import takes_images_apart
from erfscope.core.graph.named import INPUTS, RETURNED, STAGES, Pass
from erfscope.core.graph.record import RecordingError, record, unrecorded
from erfscope.core.graph.recording import Recording
from erfscope.core.system.containers import Places, places_of_tensors
from erfscope.core.system.model_errors import contain_exits, first_line, model_failed
from erfscope.core.system.restore import drawn_since, random_states, same_random_numbers
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.layout import Layout, guess_layout, named_layout
from erfscope.core.values.model_facts import GivenModel
from erfscope.core.values.unit import size_text

if TYPE_CHECKING:
    from erfscope.adapters.several_inputs import ExampleInputs


class RecordableModel(GivenModel, Protocol):
    """A module, the input that it takes, and what a recording of it needs to know."""

    spec: str
    notes: tuple[str, ...]
    layout: str | None
    prefix_tokens: int | None
    inputs: ExampleInputs | None
    structure: tuple[object, ...]

    @property
    def device(self) -> torch.device:
        """Where inputs must lie."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that inputs must have."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the module holds now, by name."""

    def outputs(self, module: nn.Module, x: Any) -> tuple[Any, Any]:
        """Run the module on the tensor of all inputs, or on these by name; its output, and its library's stages."""


#: Images of a recorded pass. With a single image, a dimension of windows and one of windows of all images look alike.
IMAGES = 2
#: Most numbers of an input; PyTorch counts the bytes of a tensor without numbers too, and fails above some 2**63.
MOST_NUMBERS = 2**48
#: Longest side: half an hour of sound at 37 kHz. What units see is kept for every place along it.
LONGEST_SIDE = 2**26
#: Adapter -> its recorded passes by number of images; the first is the recording that positions are read from.
_kept: WeakKeyDictionary[RecordableModel, dict[int, Pass]] = WeakKeyDictionary()
#: Most nodes of the graphs that one block of :func:`sharing_recordings` keeps: about 50 MB.
MOST_NODES = 20_000
#: Inside such a block: what was recorded, and the graph.
_shared: ContextVar[dict[object, RecordedGraph] | None] = ContextVar("shared", default=None)
#: Adapter -> where its module keeps its tensors.
_places: WeakKeyDictionary[RecordableModel, Places] = WeakKeyDictionary()


@contextlib.contextmanager
def sharing_recordings() -> Iterator[None]:
    """Inside the block, models of the same spec, options, edits and input size are recorded once for all seeds of their
    weights. Graphs are kept, and no weights, up to :data:`MOST_NODES`; what they are recorded of must not change
    meanwhile (docs/graph.md, rule 3)."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def recording_of(adapter: RecordableModel) -> Recording:
    """Record one pass of a model on inputs of its size, or return the one that is kept.

    Raises:
        MeasurementError: the model cannot run on an input of this size.
    """
    if adapter not in _kept:
        with same_random_numbers(), torch.inference_mode(False):
            recording = _recorded_with_its_channels(adapter)
        _kept[adapter] = {recording.images: recording}
    return cast(Recording, next(iter(_kept[adapter].values())))


def places_of(adapter: RecordableModel) -> Places:
    """Find the tensors of a model, once for each adapter."""
    if adapter not in _places:
        _places[adapter] = places_of_tensors(adapter.module)
    return _places[adapter]


def pass_of(adapter: RecordableModel, images: int, *, exactly: bool = False) -> Pass:
    """Record a pass of so many images, or return one that is kept; it may have more images unless ``exactly``.

    Raises:
        RecordingError: the model does not take so many images.
    """
    recording_of(adapter)
    passes = _kept[adapter]
    enough = [number for number in passes if number == images or (number > images and not exactly)]
    if not enough:
        needs_numbers = bool(cast(Recording, next(iter(passes.values()))).needed_numbers)
        try:
            with same_random_numbers(), torch.inference_mode(False):
                place = adapter.device if needs_numbers else torch.device("meta")
                graph = _record(adapter, _input(adapter, images, place))
        except RecordingError as error:
            raise _refused(adapter, error) from error.__cause__
        passes[images] = Pass(graph, adapter.tensors())
    return passes[min(enough, default=images)]


def _recorded_with_its_channels(adapter: RecordableModel) -> Recording:
    """Record a model; where it fails on channels that are a guess, on those that it takes, which its input then has.

    Raises:
        ErfscopeError: it fails on all that are tried.
    """
    guessed = adapter.preprocess
    try:
        return _recorded(adapter)
    except ErfscopeError as error:
        others, first, text = guessed.with_channels, error, str(error)
    if others is None:
        raise first
    tried = [guessed.channels]
    while len(tried) < MOST_GUESSES and (channels := next_guess(tried, text)) is not None:
        tried.append(channels)
        try:
            adapter.preprocess = replace(others(channels), size=guessed.size)
            recording = _recorded(adapter)
        except ErfscopeError as error:
            text = str(error)
            continue
        note = f"its input has {channels} channels: it fails on {guessed.channels}, which were a guess"
        adapter.notes = (*adapter.notes, note)
        return recording
    adapter.preprocess = guessed
    raise first


def _recorded(adapter: RecordableModel) -> Recording:
    """Record on the meta device if the model runs there, and with two images if it takes them."""
    failures: list[Exception] = []
    # Of the adapter only what is read: its recording must not keep the adapter, nor the module.
    guess = partial(_guess, adapter.preprocess.size, adapter.layout, adapter.prefix_tokens)
    for place in dict.fromkeys((torch.device("meta"), adapter.device)):
        for images in (IMAGES, 1):
            try:
                graph = _record(adapter, _input(adapter, images, place))
            except RecordingError as error:
                failures.append(error)
                continue
            why = "" if place.type == "meta" or not failures else first_line(failures[0].__cause__ or failures[0])
            recording = Recording(graph, adapter.tensors(), partial(guess, images=images), why)
            if takes_images_apart(recording):
                with contextlib.suppress(RecordingError):
                    graph = _record(adapter, _input(adapter, 1, place))
                    return Recording(graph, adapter.tensors(), partial(guess, images=1), why)
            return recording
    why = first_line(failures[-1].__cause__ or failures[-1])
    if adapter.preprocess.parts:  # what such a graph shows does not tell them apart
        raise _refused(adapter, failures[-1]) from failures[-1].__cause__
    try:
        with evaluation_mode(adapter.module):
            x = _input(adapter, 1, adapter.device)
            graph = unrecorded(adapter.module, (x,), partial(_outputs, adapter))
    except Exception:  # the model itself fails
        raise _refused(adapter, failures[-1]) from failures[-1].__cause__
    return Recording(graph, {}, partial(guess, images=1), why)


def _guess(
    size: tuple[int, ...], named: str | None, prefix_tokens: int | None, shape: tuple[int, ...], *, images: int
) -> tuple[Layout | None, bool]:
    """Guess the layout of a tensor by its shape alone, in a pass of so many images, unless the user named one; and
    whether that is so."""
    if named is not None and len(named) == len(shape):
        # A layout that does not fit was given for another layer.
        with contextlib.suppress(MeasurementError):
            return named_layout(named, shape, size, prefix=prefix_tokens), True
    # Tables of positions have a batch of one.
    return guess_layout(shape, size) if shape and shape[0] in (1, images) else None, False


def _refused(adapter: RecordableModel, error: Exception) -> ErfscopeError:
    """Make the error, in one line, of a model that cannot be recorded."""
    cause = error.__cause__ or error
    if isinstance(cause, ErfscopeError) and not isinstance(cause, RecordingError):
        return cause
    return model_failed(adapter.spec, adapter, cause)


def _record(adapter: RecordableModel, x: Tensor) -> RecordedGraph:
    graphs = _shared.get()
    key = None if graphs is None else _structure(adapter, x)
    if graphs is None or key is None:
        return _recorded_graph(adapter, x)
    if key not in graphs:
        graph = _recorded_graph(adapter, x)
        is_structure = (
            graph.by == "shapes" and not graph.constants and all(n.kind != "random" for n in graph.unfaithful)
        )
        if not is_structure or sum(len(each.nodes) for each in (graph, *graphs.values())) > MOST_NODES:
            return graph
        graphs[key] = graph
    return graphs[key]


def _structure(adapter: RecordableModel, x: Tensor) -> object:
    """What a graph is recorded of, beside numbers; None of a model of which that is not known, or that holds tensors
    which are no weights."""
    tensors, module = adapter.tensors(), adapter.module
    weights = {id(each) for each in (*module.parameters(), *module.buffers())}
    if not (
        adapter.structure and x.is_meta and adapter.inputs is None and weights.issuperset(map(id, tensors.values()))
    ):
        return None
    shapes = tuple((name, each.shape, each.dtype) for name, each in tensors.items())
    parts = tuple((name, type(part)) for name, part in module.named_modules())
    # Weights without numbers are recorded as if they were on the CPU.
    device = "cpu" if adapter.device.type == "meta" else str(adapter.device)
    return adapter.structure, tuple(x.shape), x.dtype, device, shapes, parts


def _recorded_graph(adapter: RecordableModel, x: Tensor) -> RecordedGraph:
    before = random_states()
    with evaluation_mode(adapter.module):
        graph = record(adapter.module, (x,), forward=partial(_outputs, adapter))
    # Draws of PyTorch's own generators are recorded operations.
    drawn = {"Python's", "NumPy's"} & {*drawn_since(before)}
    found = Unfaithful("random", "", "draws random numbers")
    return replace(graph, unfaithful=(*graph.unfaithful, found)) if drawn else graph


def _outputs(adapter: RecordableModel, module: nn.Module, x: Tensor) -> Mapping[str, Any]:
    inputs = adapter.inputs if adapter.preprocess.parts else None
    parts: Any = None if inputs is None else inputs.split(x)
    with contain_exits():
        output, stages = adapter.outputs(module, x if parts is None else parts)
    return {RETURNED: output, STAGES: stages, INPUTS: parts or {}}


def _input(adapter: RecordableModel, images: int, device: torch.device) -> Tensor:
    """An input (B, C_in, *space), of normal numbers where the device keeps numbers."""
    shape = (images, adapter.preprocess.channels, *adapter.preprocess.size)
    if math.prod(shape) > MOST_NUMBERS or max(shape) > LONGEST_SIDE:
        size = size_text(adapter.preprocess.size)
        raise MeasurementError(f"an input of {size} fits no memory; use a smaller --input-size", model=adapter.spec)
    x = torch.empty(shape, device=device, dtype=adapter.dtype)
    return x if x.is_meta else x.normal_(generator=torch.Generator(device).manual_seed(0))

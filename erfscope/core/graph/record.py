"""Record a module's forward pass as a graph."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import threading
import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from erfscope.core.graph.graph import Mark, RecordedGraph, by_name
from erfscope.core.graph.operations import Form, map_form
from erfscope.core.graph.rules.reading import rule
from erfscope.core.graph.tape import Tape
from erfscope.core.system.containers import Path, map_tensors, tensors_in, tensors_of
from erfscope.core.system.copies import copy_module
from erfscope.core.system.model_errors import first_line
from erfscope.core.system.silence import silenced
from erfscope.core.system.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    backward_hooks,
    below_autograd,
    has_global_backward_hooks,
    is_of_checkpoint,
    missing,
)
from erfscope.core.values.errors import MeasurementError

#: Held while a module is recorded: what is replaced in PyTorch for that time is the process's.
_lock = threading.RLock()


class RecordingError(MeasurementError):
    """The forward pass cannot be recorded; its text says why in one line."""


#: How a module is called: (module, *inputs, **kwargs) -> what it returns.
Forward = Callable[..., Any]


def record(
    module: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    forward: Forward = operator.call,
) -> RecordedGraph:
    """Record one forward pass of a module.

    It is run on a copy of the module's structure, without numbers; where it asks for numbers, once more with those of
    ``inputs``.

    Args:
        module: The module; parameters and buffers may be on the meta device.
        inputs: Its arguments. The graph is one for their shapes, dtypes and device.
        kwargs: Its keyword arguments.
        forward: How it is called.

    Returns:
        The graph.

    Raises:
        RecordingError: the module cannot be copied, its forward pass fails, or does what a graph cannot hold.
    """
    if missing:
        raise RecordingError(missing)
    given = (inputs, dict(kwargs or {}))
    made: list[weakref.ref[Tensor]] = []
    counts: list[int] = []
    with _lock, silenced("torch"):
        try:
            return _record(module, forward, given, FakeTensorMode(allow_non_fake_inputs=True), made, counts)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # they hold tensors, which a cache is taken to hold below
            if any(tensor.is_meta for tensor in (*tensors_of(module).values(), *(t for _, t in tensors_in(given)))):
                raise RecordingError(_one_line(error)) from error
        finally:
            _clear_caches(made)
        try:
            return _record(module, forward, given, None, [], counts)
        except Exception as error:
            raise RecordingError(_one_line(error)) from error


def _record(
    module: nn.Module,
    forward: Forward,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    mode: FakeTensorMode | None,
    made: list[weakref.ref[Tensor]],
    counts: list[int],
) -> RecordedGraph:
    """Record a pass, and add to ``counts`` how many calls of modules ended before it did or failed: those of one
    without numbers are the same on every path."""
    own = tensors_of(module)
    devices = [each.device for _, each in (*own.items(), *tensors_in(given)) if not each.is_meta]
    stand_in = _as_it_is if mode is None else _without_numbers(mode, (*devices, torch.device("cpu"))[0])
    stand_ins = {id(tensor): stand_in(tensor) for tensor in own.values()}
    names = {id(each): name for name, tensor in own.items() for each in (tensor, stand_ins[id(tensor)])}
    weights = {id(each) for each in (*module.parameters(), *module.buffers())}
    attributes = {name: tensor for name, tensor in own.items() if id(tensor) not in weights and not tensor.is_meta}
    tape = Tape(names, made, attributes, mode)
    copied = copy_module(module, dict(stand_ins))
    args, named = map_tensors(given, stand_in)
    for _, tensor in tensors_in((args, named)):
        tape.add_input(tensor)
    _drop_backward_hooks(copied, tape)
    calls: dict[str, list[Mark]] = {}
    turns = itertools.count()
    for name, part in copied.named_modules():
        _mark_calls(name, part, calls.setdefault(name, []), turns, tape)
    with _recording(tape, mode):
        try:
            returned = _nodes(forward(copied, *args, **named), tape)
        except BaseException:
            tape.forget()
            raise
        finally:
            counts.append(next(turns))
    marks = by_name(mark for found in calls.values() for mark in found if mark.order >= 0)
    return _graph(tape, marks, returned, "shapes" if mode else "path taken", counts)


def _as_it_is(tensor: Tensor) -> Tensor:
    """Parameters are shared; what a forward pass may write to is copied."""
    return tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()


def _without_numbers(mode: FakeTensorMode, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Make tensors without numbers in the place of others; those on the meta device seem to be on another."""

    def stand_in(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return mode.from_tensor(tensor, static_shapes=True)
        with mode:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty

    return stand_in


def _clear_caches(made: list[weakref.ref[Tensor]]) -> None:
    """Clear the caches of functions that have kept a tensor without numbers, as of transformers' DINOv3."""
    if any(each() is not None for each in made):
        gc.collect()
    holders: list[Any] = [tensor for each in made if (tensor := each()) is not None]
    for _ in range(3):  # the tensor itself, or in a tuple or a dictionary
        holders = gc.get_referrers(*holders) if holders else []
        for each in holders:
            if isinstance(each, type(functools.cache(len))):
                each.cache_clear()
        holders = [each for each in holders if isinstance(each, tuple | dict)]


def _drop_backward_hooks(copied: nn.Module, tape: Tape) -> None:
    """Backward hooks would ask for gradients, of which the pass has none."""
    for name, part in copied.named_modules():
        if any(tables := backward_hooks(part)):
            tape.note("backward", "has backward hooks", name)
            for table in tables:
                table.clear()
    if has_global_backward_hooks():
        raise ValueError("backward hooks are set on all modules")


def _mark_calls(name: str, part: nn.Module, found: list[Mark], turns: Iterator[int], tape: Tape) -> None:
    """Note the nodes of what a module takes and gives, behind the hooks that are set on it."""
    open_calls: list[tuple[int, dict[Path, fx.Node]]] = []

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tape.running.append(name)
        open_calls.append((len(found), _nodes(dict(enumerate(args)) | kwargs, tape)))
        found.append(Mark({}, {}, name, -1))

    def after(_module: nn.Module, _args: Any, output: Any) -> None:
        tape.running.pop()
        number, inputs = open_calls.pop()
        found[number] = Mark(inputs, _nodes(output, tape), name, next(turns))

    part.register_forward_pre_hook(before, with_kwargs=True)
    part.register_forward_hook(after)


def _nodes(tensors: Any, tape: Tape) -> dict[Path, fx.Node]:
    return {path: tape.node_of(tensor) for path, tensor in tensors_in(tensors)}


@contextmanager
def _recording(tape: Tape, mode: FakeTensorMode | None) -> Iterator[None]:
    """Record what runs in this thread inside the block."""
    thread = threading.get_ident()

    def notice(context: BackwardCFunction) -> None:
        """Begin a call of a hand-written function."""
        # A checkpoint runs the forward pass again, and has its derivative.
        if threading.get_ident() == thread and not is_of_checkpoint(context):
            name = type(context).__name__.removesuffix("Backward")
            tape.note("backward", f"has a hand-written backward pass ({name})")

    cached = torch.is_autocast_cache_enabled()
    with ExitStack() as stack:
        stack.callback(torch.set_autocast_cache_enabled, cached)
        torch.set_autocast_cache_enabled(False)
        stack.callback(delattr, BackwardCFunction, "__init__")
        BackwardCFunction.__init__ = notice  # type: ignore[assignment, method-assign]
        numbers = mode or torch.random.fork_rng()
        for kind in ("cpu", "cuda"):  # the caller's own
            stack.enter_context(torch.autocast(kind, enabled=False))
        for each in (below_autograd(), torch.enable_grad(), numbers, tape, _GradientQuestions(tape)):
            stack.enter_context(each)
        yield


class _GradientQuestions(TorchFunctionMode):
    """Answer a forward pass that deals with its own gradients, and note it."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.requires_grad.__get__:  # type: ignore[attr-defined]
            self.tape.note("forward", "reads requires_grad")
            return self.tape.is_live(args[0]) or func(*args)
        if func in (Tensor.numpy, Tensor.__array__) and self.tape.is_live(args[0]):
            self.tape.exposed = True
        if func in (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook):
            self.tape.note("backward", "sets hooks on gradients")
            return RemovableHandle(OrderedDict())
        return None if func is Tensor.retain_grad else func(*args, **(kwargs or {}))


def _graph(
    tape: Tape, marks: Mapping[str, Mark], returned: Mapping[Path, fx.Node], by: str, counts: list[int]
) -> RecordedGraph:
    """Leave out what no module takes or gives, and what only that needs."""
    needed = {
        *tape.inputs,
        *returned.values(),
        *(node for mark in marks.values() for _, node in (*mark.inputs.items(), *mark.outputs.items())),
    }
    for node in reversed(tape.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
            node.meta["val"] = map_form(node.meta.pop("form"), _on_meta)
        else:
            tape.graph.erase_node(node)
    return RecordedGraph(
        nodes=tuple(tape.graph.nodes),
        inputs=tuple(tape.inputs),
        live=frozenset(tape.live & needed),
        held={node: name for node, name in tape.held.items() if node in needed},
        constants={node: tensor for node, tensor in tape.constants.items() if node in needed},
        marks=marks,
        returned=returned,
        by=by,
        calls_before_numbers=counts[0] if by == "shapes" else sum(counts[:-1]),
        unfaithful=tuple(tape.notes),
    )


def _on_meta(form: Form) -> Tensor:
    return torch.empty_strided(form.shape, form.stride or [0] * len(form.shape), dtype=form.dtype, device="meta")


def _one_line(error: Exception) -> str:
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return f"its forward pass asks for numbers ({error.func})"
    return first_line(error)


class _ForwardPass:
    """The operation that makes every tensor of such a pass, with what is read of operations of PyTorch."""

    __name__ = "forward_pass"
    tags = ()

    def __str__(self) -> str:
        return "forward pass"

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError("a pass that cannot be recorded cannot be run by its graph")


FORWARD_PASS = _ForwardPass()
rule(str(FORWARD_PASS), normalises=True)(lambda call: None)  # nothing is known of it
#: How such a graph was made.
UNRECORDED = "shapes of a pass"


def unrecorded(module: nn.Module, inputs: tuple[Tensor, ...], forward: Forward) -> RecordedGraph:
    """Run a module, and note what its parts take and give.

    Args:
        module: The module; it is run itself.
        inputs: Its arguments, with numbers.
        forward: How it is called.

    Returns:
        A graph in which every tensor is made from the inputs by one operation without a rule, so that all of them may
        be read for it.
    """
    graph, turns, marks = fx.Graph(), itertools.count(), list[Mark]()
    takes = [_with_shape(graph.placeholder(f"input_{i}"), tensor) for i, tensor in enumerate(inputs)]

    def nodes(tensors: Any) -> Mapping[Path, fx.Node]:
        return {
            path: _with_shape(graph.call_function(FORWARD_PASS, tuple(takes)), tensor)
            for path, tensor in tensors_in(tensors)
        }

    with ExitStack() as stack, torch.no_grad():
        for name, part in module.named_modules():

            def after(_module: nn.Module, args: Any, output: Any, name: str = name) -> None:
                marks.append(Mark(nodes(dict(enumerate(args))), nodes(output), name, next(turns)))

            stack.callback(part.register_forward_hook(after).remove)
        returned = nodes(forward(module, *inputs))
    every = tuple(graph.nodes)
    return RecordedGraph(
        nodes=every,
        inputs=tuple(takes),
        live=frozenset(every),
        held={},
        constants={},
        marks=by_name(marks),
        returned=returned,
        by=UNRECORDED,
        calls_before_numbers=0,
        unfaithful=(),
    )


def _with_shape(node: fx.Node, tensor: Tensor) -> fx.Node:
    node.meta.update(val=torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), no_grad=False)
    return node

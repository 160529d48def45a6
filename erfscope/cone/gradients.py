"""What a forward pass does to gradients beside its operations, noticed while it is recorded.

A hook, or the backward pass of a hand-written function, may do anything to a gradient: move it, or scale it by the
number of positions. No recording of the operations shows that a crop leaves it as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, saved_tensors_hooks
from torch.nn.modules import module as modules

from erfscope.trf.graph import Node
from erfscope.trf.operations import WITHOUT_DERIVATIVE
from erfscope.trf.tapes.fingerprint import is_drawn, operation_provenance
from erfscope.trf.tapes.tape import Tape

#: Methods that set a hook on a gradient. ``retain_grad`` keeps a gradient and changes none.
_SETTERS = (
    (Tensor, "register_hook"),
    (Tensor, "register_post_accumulate_grad_hook"),
    (nn.Module, "register_full_backward_hook"),
    (nn.Module, "register_full_backward_pre_hook"),
    (nn.Module, "register_backward_hook"),
)
#: Re-computes the very operations that were recorded.
_CHECKPOINT = "torch.utils.checkpoint"


@dataclass(slots=True)
class Gradients:
    """What was noticed."""

    #: The first thing that may change a gradient, in words; "" for none.
    changed_by: str = ""
    #: The first hand-written function, whose backward pass may mix the images of a batch, in words; "" for none.
    written_by: str = ""
    #: The hand-written functions whose results are marked.
    noticed: set[type] = field(default_factory=set)
    #: The values whose place in the autograd graph erfscope asked for, by that place.
    edges: dict[tuple[Any, int], Node | None] = field(default_factory=dict)

    def node_of(self, edge: Tensor | GradientEdge, tape: Tape) -> Node | None:
        """The value that a place in the autograd graph stands for; None where that is not known, or does not depend on
        the image."""
        if isinstance(edge, Tensor):
            return tape.value(edge)
        if (edge.node, edge.output_nr) in self.edges:
            return self.edges[edge.node, edge.output_nr]
        # The image is the only leaf.
        return tape.nodes[0] if tape.nodes and edge.node.name().endswith("AccumulateGrad") else None


def unnoticed_functions(output: Tensor, noticed: set[type]) -> str:
    """The first hand-written function in the autograd graph of a tensor that was not noticed while it was applied, in
    words; "" for none.

    A model may have taken hold of a function's ``apply`` before anybody could watch it.
    """
    stack, seen = [output.grad_fn], set[Any]()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack.extend(before for before, _ in node.next_functions)
        cls = getattr(node, "_forward_cls", None)
        if cls is not None and cls not in noticed and cls.__module__ != _CHECKPOINT:
            return f"the model has a hand-written backward pass ({cls.__name__})"
    return ""


def doubts(nodes: Iterable[Node], *, notes_gradients: bool) -> list[str]:
    """The operations that have no derivative, run without gradients or draw random numbers, with their modules.

    Args:
        nodes: The values on the way from the reference to a unit.
        notes_gradients: Whether the first of their arguments says that gradients are enabled.

    Returns:
        Once each, in the order of execution.
    """
    found: dict[str, None] = {}
    for node in sorted(nodes, key=lambda node: node.index):
        if node.name in WITHOUT_DERIVATIVE:
            found[node.describe()] = None
        elif notes_gradients and node.arguments[:1] == (False,):
            found[node.describe(f"{node.name} without gradients")] = None
        elif is_drawn(node.constants):
            found[node.describe("random numbers")] = None
    return list(found)


def hooks_on(module: nn.Module) -> str:
    """What may change gradients in a module or everywhere, in words; "" for nothing."""
    if modules._global_backward_hooks or modules._global_backward_pre_hooks:
        return "backward hooks are set on all modules"
    if any(m._backward_hooks or m._backward_pre_hooks for m in module.modules()):
        return "the model has backward hooks"
    return ""


@contextmanager
def watched_gradients(tape: Tape) -> Iterator[Gradients]:
    """Notice hooks that a forward pass sets, and mark what hand-written functions make, for the time of the block."""
    found = Gradients()

    def notice(text: str) -> None:
        where = tape.modules[-1] if tape.modules else "the model"
        found.changed_by = found.changed_by or f"{where} {text}"

    with ExitStack() as stack:
        for owner, name in _SETTERS:
            stack.enter_context(_replaced(owner, name, _noticed(getattr(owner, name), name, notice)))
        stack.enter_context(_replaced(saved_tensors_hooks, "__enter__", _saving(saved_tensors_hooks.__enter__, notice)))
        stack.enter_context(
            _replaced(torch.autograd.Function, "apply", _marking(vars(torch.autograd.Function)["apply"], tape, found))
        )
        stack.enter_context(_replaced(Tensor, "grad_fn", _nodes(found, tape)))
        yield found


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute of a class, for the time of the block."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _noticed(plain: Callable[..., Any], name: str, notice: Callable[[str], None]) -> Callable[..., Any]:
    def register(*args: Any, **kwargs: Any) -> Any:
        notice(f"sets a hook on a gradient ({name})")
        return plain(*args, **kwargs)

    return register


def _saving(plain: Callable[..., Any], notice: Callable[[str], None]) -> Callable[..., Any]:
    def enter(hooks: saved_tensors_hooks) -> Any:
        if type(hooks).__module__ != _CHECKPOINT:
            notice("changes the tensors that are saved for gradients (saved_tensors_hooks)")
        return plain(hooks)

    return enter


def _marking(plain: Any, tape: Tape, found: Gradients) -> Any:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        first = len(tape.nodes)
        out = plain.__get__(None, cls)(*args, **kwargs)
        if cls.__module__ == _CHECKPOINT:
            return out
        where = tape.modules[-1] if tape.modules else "the model"
        found.noticed.add(cls)
        found.written_by = found.written_by or f"{where} has a hand-written backward pass ({cls.__name__})"
        outs = out if isinstance(out, tuple) else (out,)
        for node in [
            *tape.nodes[first:],
            *(n for t in outs if isinstance(t, Tensor) and (n := tape.value(t)) is not None),
        ]:
            node.constants = (
                operation_provenance(
                    f"{cls.__name__} with a gradient of its own", {}, (), source=f"{id(tape)} {node.index}"
                ),
            )
        return out

    return classmethod(apply)


def _nodes(found: Gradients, tape: Tape) -> property:
    """``Tensor.grad_fn``, which also keeps which value each place in the autograd graph stands for."""
    plain = vars(torch._C.TensorBase)["grad_fn"]

    def grad_fn(tensor: Tensor) -> Any:
        node = plain.__get__(tensor)
        if node is not None:
            found.edges[node, tensor.output_nr] = tape.value(tensor)
        return node

    return property(grad_fn)

"""The mode that writes down the operations of a forward pass, those in place as functional ones."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, fx

from erfscope.core.graph.graph import Unfaithful, arguments, evaluate, name_of
from erfscope.core.graph.operations import (
    LIKE,
    WITHOUT_BATCH,
    Form,
    NotFollowedError,
    address_of,
    draws,
    form_of,
    functional_of,
    map_form,
    result_of,
    written_argument,
)
from erfscope.core.system.containers import map_tensors
from erfscope.core.system.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    unset_fake_temporarily,
)

aten = torch.ops.aten
#: Operations that read nothing of a tensor but its dtype and device, and what they fill a new one with; None where that
#: is their last argument.
_FILLED = {aten.new_zeros.default: 0, aten.new_ones.default: 1, aten.new_full.default: None}
#: Views that leave the order of the cells as it is.
_SAME_ORDER = ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze")


@dataclass(slots=True)
class _Memory:
    """Memory that several tensors share, with the number of writes to it."""

    version: int = 0


@dataclass(slots=True)
class _Seen:
    """A tensor of the pass: its node, and how it looks into the memory of another tensor."""

    tensor: Tensor
    node: fx.Node
    parent: _Seen | None = None
    #: The operation that made it from its parent, the parent's node at that time, and which of the results it is.
    view: fx.Node | None = None
    source: fx.Node | None = None
    item: int | None = None
    memory: _Memory = field(default_factory=_Memory)
    #: How many of the writes the node knows of.
    version: int = 0
    #: Where its cells are.
    address: object = None

    def __post_init__(self) -> None:
        self.address = address_of(self.tensor)


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Write the operations of a forward pass into a graph.

    Below autograd, which takes operations apart, a dispatch mode gets them as the model calls them. What gives the very
    tensor that it took is left out. An operation in place becomes the functional one: its result is what the tensor
    means from then on, and tensors that look into the same memory are put together anew when they are next read.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        made: list[weakref.ref[Tensor]],
        attributes: Mapping[str, Tensor],
        mode: FakeTensorMode | None,
    ) -> None:
        """Begin an empty graph.

        Args:
            names: The module's own tensors: identity -> name.
            made: Takes every tensor that is made and does not depend on an input.
            attributes: Those of the module's own tensors that no training changes, by name.
            mode: Of a pass without numbers.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.inputs: list[fx.Node] = []
        self.held: dict[fx.Node, str] = {}
        self.constants: dict[fx.Node, Tensor] = {}
        self.live: set[fx.Node] = set()
        #: Why autograd on the graph may differ from autograd on the module, once each.
        self.notes: dict[Unfaithful, None] = {}
        #: Whether numbers that depend on an input were taken out of PyTorch, where no operation shows them.
        self.exposed = False
        #: Names of the modules that run, the innermost last.
        self.running: list[str] = []
        self._names, self._made, self._attributes, self._mode = names, made, attributes, mode
        #: Numbers of nodes that are made of constants.
        self._values: dict[fx.Node, Any] = {}
        self._seen: dict[int, _Seen] = {}
        self._by_name: dict[str, _Seen] = {}

    def note(self, kind: Literal["random", "backward", "forward"], does: str, module: str | None = None) -> None:
        """Note what a module does, by default the innermost one that runs."""
        name = module if module is not None else next(reversed(self.running), "")
        self.notes[Unfaithful(kind, name, does)] = None

    def add_input(self, tensor: Tensor) -> None:
        """Let a tensor be the next input."""
        self.inputs.append(self._placeholder(tensor, f"input_{len(self.inputs)}").node)
        self.live.add(self.inputs[-1])

    def forget(self) -> None:
        """Hold no tensor of the pass any more."""
        self._seen.clear()
        self._by_name.clear()
        self._values.clear()

    def node_of(self, tensor: Tensor) -> fx.Node:
        """Return the node of what a tensor holds at this moment."""
        return self._read(self._find(tensor))

    def is_live(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on an input."""
        return id(tensor) in self._seen and self._seen[id(tensor)].node in self.live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and write it down."""
        kwargs = kwargs or {}
        if func.namespace == "prim":  # asks for a device or a layout
            return func(*args, **kwargs)
        if func in WITHOUT_BATCH and args[0].dim() == WITHOUT_BATCH[func]:
            with self:
                out = func(args[0].unsqueeze(0), *args[1:], **kwargs)
                return map_tensors(out, lambda tensor: tensor.squeeze(0))
        read: list[_Seen] = []

        def as_node(each: Any) -> Any:
            if not isinstance(each, Tensor):
                return each
            read.append(self._find(each))
            return self._read(read[-1])

        given, named = (fx.node.map_aggregate(each, as_node) for each in (args, kwargs))
        written = written_argument(func)
        try:
            out = result_of(func, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            if not all(self._is_constant(self._read(each)) for each in read):
                raise
            out = self._on_constants(func, given, named)
        if written is not None:
            self._write(self._find(args[written] if written < len(args) else kwargs["out"]), func, given, named)
        elif func in _FILLED:
            filled = args[2] if _FILLED[func] is None else _FILLED[func]
            made = {"dtype": out.dtype, "device": out.device}
            self._add_results(self._emit(aten.full.default, (list(out.shape), filled), made, form_of(out)), out, [])
        elif isinstance(out, Tensor | tuple | list) and not any(out is each for each in args):
            if func in LIKE and isinstance(out, Tensor):
                func, read_of_form = LIKE[func]
                given, read = (given[0], *read_of_form(out), *given[2:]), read[:1]
            self._add_results(self._emit(func, given, named, form_of(out)), out, read)
        return out

    def _on_constants(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives on constants, whose numbers are known in a pass without numbers too."""
        assert self._mode is not None
        with unset_fake_temporarily(), torch.no_grad():
            out = func(*fx.map_arg(args, self._value), **fx.map_arg(kwargs, self._value))
        return map_tensors(out, partial(self._mode.from_tensor, static_shapes=True))

    def _value(self, node: fx.Node) -> Any:
        """What a node holds that is made of constants."""
        if node not in self._values:
            held = self._attributes.get(self.held.get(node, ""))
            self._values[node] = evaluate(node, self._value) if held is None else held
        return self._values[node]

    def _is_constant(self, node: fx.Node) -> bool:
        """Whether a node holds the same in every pass, before and behind a training."""
        if node.op == "placeholder":
            return node in self.constants or self.held.get(node) in self._attributes
        return "draws" not in node.meta and all(map(self._is_constant, node.all_input_nodes))

    def _find(self, tensor: Tensor) -> _Seen:
        """How a tensor has been seen; one that is seen for the first time is the module's own, or a constant."""
        if (seen := self._seen.get(id(tensor))) is not None:
            if seen.address == address_of(tensor):
                return seen
            self.note("forward", "replaces the data of a tensor")
        name = self._names.get(id(tensor))
        if name is None and (base := self._same_cells(tensor)) is not None:
            # ``x.data``, which no operation shows.
            source = self._read(base)
            node = self._emit(aten.detach.default, (source,), {}, form_of(tensor))
            seen = self._seen[id(tensor)] = _Seen(tensor, node, base, node, source, None, base.memory)
            seen.version = base.memory.version
        elif name is None:
            if isinstance(tensor, FakeTensor) or self.exposed:
                raise NotFollowedError("a tensor was made where no operation is seen")
            seen = self._placeholder(tensor, "constant")
            with unset_fake_temporarily():
                self.constants[seen.node] = self._values[seen.node] = tensor.detach().clone()
        elif (seen := self._by_name.get(name)) is None:
            seen = self._by_name[name] = self._placeholder(tensor, name.replace(".", "_"))
            self.held[seen.node] = name
        return seen

    def _same_cells(self, tensor: Tensor) -> _Seen | None:
        """A tensor that was seen and looks at the very same cells."""
        form, at = form_of(tensor), (address_of(tensor), tensor.storage_offset())
        for seen in reversed(self._seen.values()):
            if (address_of(seen.tensor), seen.tensor.storage_offset()) == at and form_of(seen.tensor) == form:
                return seen
        return None

    def _placeholder(self, tensor: Tensor, name: str) -> _Seen:
        with self.graph.inserting_before():  # all others
            node = self.graph.placeholder(name)
        node.meta.update(form=form_of(tensor), no_grad=False)
        return self._seen.setdefault(id(tensor), _Seen(tensor, node))

    def _add_results(self, node: fx.Node, out: Any, read: list[_Seen]) -> None:
        """Remember the results of an operation, and whose memory they look into."""
        for item, each in enumerate(out) if isinstance(out, tuple | list) else [(None, out)]:
            if isinstance(each, Tensor):
                part = node if item is None else self._emit(operator.getitem, (node, item), {}, form_of(each))
                seen = self._seen[id(each)] = _Seen(each, part)
                if part not in self.live:
                    self._made.append(weakref.ref(each))
                if (parent := next((a for a in read if address_of(a.tensor) == address_of(each)), None)) is not None:
                    seen.parent, seen.view, seen.source, seen.item = parent, node, parent.node, item
                    seen.memory, seen.version = parent.memory, parent.memory.version

    def _emit(self, func: Any, args: Any, kwargs: Any, form: Any) -> fx.Node:
        """Append an operation whose result has a given form."""
        node = self.graph.create_node("call_function", func, args, kwargs)
        module = next(reversed(self.running), "")
        node.meta.update(form=form, no_grad=not torch.is_grad_enabled(), module=module)
        if any(each in self.live for each in node.all_input_nodes):
            self.live.add(node)
        if draws(node):
            node.meta["draws"] = True
            self.note("random", "draws random numbers")
        return node

    def _read(self, seen: _Seen) -> fx.Node:
        """Return the node of what a tensor holds: after a write elsewhere in its memory, it is viewed once more."""
        if seen.version != seen.memory.version:
            assert seen.parent is not None
            assert seen.view is not None
            seen.node = self._view(seen, self._read(seen.parent))
            seen.version = seen.memory.version
        return seen.node

    def _view(self, seen: _Seen, source: fx.Node) -> fx.Node:
        """Look into another tensor as ``seen`` looks into its parent."""
        assert seen.view is not None
        form = map_form(seen.view.meta["form"], lambda each: each._replace(dtype=source.meta["form"].dtype))
        given = (seen.view.args, seen.view.kwargs)
        args, kwargs = (fx.node.map_arg(each, lambda n: source if n is seen.source else n) for each in given)
        node = self._emit(seen.view.target, args, kwargs, form)
        return node if seen.item is None else self._emit(operator.getitem, (node, seen.item), {}, form[seen.item])

    def _write(self, seen: _Seen, func: Any, args: Any, kwargs: Any) -> None:
        """Write down an operation in place: as the functional one, or where there is none, on a copy."""
        target, form = functional_of(func), form_of(seen.tensor)
        if form != seen.node.meta["form"]:
            raise NotFollowedError(f"{func} changes the shape of a tensor in place")
        others = [each for each in (*args, *kwargs.values()) if isinstance(each, fx.Node)]
        if func is aten.copy_.default:  # of which the functional one has no derivative
            spread = form._replace(dtype=args[1].meta["form"].dtype)
            source = self._emit(aten.expand.default, (args[1], form.shape), {}, spread)
            target, args, kwargs = aten.to.dtype, (source, form.dtype), {}
        elif target is None or any(each.meta["form"].dtype != form.dtype for each in others):
            target, copied = func, self._emit(aten.clone.default, (seen.node,), {}, form)
            args, kwargs = (fx.node.map_arg(each, lambda n: copied if n is seen.node else n) for each in (args, kwargs))
        node = self._emit(target, args, kwargs, form)
        if node in self.live and not torch.is_grad_enabled():
            self.note("forward", "writes in place without gradients")
        self._assign(seen, node)

    def _assign(self, seen: _Seen, node: fx.Node) -> None:
        """Let a tensor mean another node from now on, and all tensors whose memory it looks into."""
        if seen.parent is None:
            seen.memory.version += 1
        else:
            self._assign(seen.parent, self._scatter_view(seen, self._read(seen.parent), node))
        seen.node, seen.version = node, seen.memory.version

    def _scatter_view(self, seen: _Seen, whole: fx.Node, part: fx.Node) -> fx.Node:
        """Return ``whole`` with ``part`` in the place of the cells that ``seen`` looks at."""
        assert seen.view is not None
        form, name, given = whole.meta["form"], name_of(seen.view), arguments(seen.view)
        # Its cells are others, or some of them are there twice.
        if form.dtype != seen.tensor.dtype or name in ("unfold", "as_strided", "expand"):
            raise NotFollowedError(f"a write to what {seen.view.target} gives")
        if name in ("alias", "detach"):
            return part
        if name in _SAME_ORDER:
            return self._emit(aten.reshape.default, (part, form.shape), {}, form)
        if name in ("select", "slice"):
            scatter = aten.select_scatter.default if name == "select" else aten.slice_scatter.default
            return self._emit(scatter, (whole, part, *list(given.values())[1:]), {}, form)
        return self._scatter_by_index(seen, whole, part)

    def _scatter_by_index(self, seen: _Seen, whole: fx.Node, part: fx.Node) -> fx.Node:
        """The same for any view, by the numbers of the cells that it looks at."""
        form, count = whole.meta["form"], math.prod(whole.meta["form"].shape)
        line, device = Form((count,), (1,), form.dtype), seen.tensor.device
        numbers = self._emit(aten.arange.default, (count,), {"device": device}, line._replace(dtype=torch.int64))
        numbers = self._emit(aten.reshape.default, (numbers, form.shape), {}, form._replace(dtype=torch.int64))
        numbers, cells = (self._flat(each) for each in (self._view(seen, numbers), part))
        changed = self._emit(aten.index_put.default, (self._flat(whole), [numbers], cells), {}, line)
        return self._emit(aten.reshape.default, (changed, form.shape), {}, form)

    def _flat(self, node: fx.Node) -> fx.Node:
        form = node.meta["form"]
        return self._emit(aten.reshape.default, (node, (-1,)), {}, Form((math.prod(form.shape),), (1,), form.dtype))

"""The operations of a forward pass as nodes, with views and in-place operations resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from erfscope.trf.axes.axis_layout import AffineCenter, Axis, AxisFactor, AxisLayout, Dim, layout_without_axes, other
from erfscope.trf.edges.affine_centers import note_disagreement
from erfscope.trf.edges.basic import unknown_edge
from erfscope.trf.graph import Edge, Node, RuleOutput, Written
from erfscope.trf.operations import COPIES, FILLING, FROM_PYTHON, INDEXING, SHAPE_ONLY, UNINITIALIZED, WHOLE_VIEWS
from erfscope.trf.rules import Call, apply
from erfscope.trf.rules.registry import tensors
from erfscope.trf.tapes.constants import Constants
from erfscope.trf.tapes.fingerprint import (
    VIEWED,
    Provenance,
    is_random,
    operation_provenance,
    provenance_through_view,
    static_arguments,
)
from erfscope.trf.tapes.outside import OUTSIDE, Memory, memory_of
from erfscope.trf.tapes.signature import signature_of
from erfscope.trf.tapes.tensor_state import TensorState
from erfscope.trf.tapes.written_views import scatter_into_base


@dataclass(slots=True)
class Tape:
    """The nodes in the order of execution, and the tensors that hold them."""

    nodes: list[Node] = field(default_factory=list)
    #: What is known of each tensor, by its id.
    states: dict[int, TensorState] = field(default_factory=dict)
    #: The last of them whose numbers lie in that memory.
    by_memory: dict[Memory, TensorState] = field(default_factory=dict)
    #: Modules that are running, outermost first.
    modules: list[str] = field(default_factory=list)
    rank: int = 2
    #: Whether it follows the axes of the image, and not the images of a batch.
    spatial: bool = True
    #: How many images there are, where that is an unusual number; else 0.
    images: int = 0
    #: Floating-point operations of products and convolutions, as PyTorch counts them.
    flops: int = 0
    #: Numbers of small tensors that do not depend on the image.
    constants: Constants = field(default_factory=Constants)
    #: Values whose numbers were handed to code that is not recorded.
    exposed: list[Node] = field(default_factory=list)

    def start(self, image: Tensor, dims: Sequence[int]) -> Node:
        """Make ``image`` the root; ``dims`` are its spatial dimensions."""
        self.rank = len(dims)
        axes = tuple(Axis(image.shape[d], 1.0, (AffineCenter(0.0, 1.0),)) for d in dims)
        spots: list[Dim] = [other(n) for n in image.shape]
        for number, d in enumerate(dims):
            spots[d] = (AxisFactor(number, 1, image.shape[d]),)
        node = self.add("image", tuple(image.shape), RuleOutput(AxisLayout(axes, tuple(spots)), ()))
        self.state_of(image).node = node
        self._note_memory(image)
        return node

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        made: RuleOutput,
        call: Call | None = None,
        output: int = 0,
        *,
        writes: Written | None = None,
    ) -> Node:
        """A new node; ``call`` is the operation that made it, ``output`` which of its outputs it is, ``writes`` as
        :attr:`Node.writes`."""
        module = self.modules[-1] if self.modules else ""
        layout = note_disagreement(made.layout, name, module, [edge.source for edge in made.edges])
        node = Node(len(self.nodes), name, module, shape, layout, made.edges, made.mixing_name, writes=writes)
        if call is not None:
            source = made.edges[0].source.layout if made.edges and writes != "values" else made.layout
            node.arguments = static_arguments(call, output, source)
            node.constants = tuple(self.provenance(t) for value in call.args.values() for t in tensors(value))
        if name in COPIES and len(made.edges) == 1 and made.edges[0].reads is None:
            node.view_of = made.edges[0].source
        self.nodes.append(node)
        return node

    def state_of(self, tensor: Tensor) -> TensorState:
        """The state of a tensor; one that was not met before does not depend on the image."""
        found = self.states.get(id(tensor))
        if found is None:
            found = self.states[id(tensor)] = TensorState(tensor, tuple(tensor.shape))
        return found

    def _note_memory(self, tensor: Tensor) -> None:
        """Keep where the numbers of a tensor lie."""
        state = self.state_of(tensor)
        state.memory = memory_of(tensor)
        if state.memory is not None:
            self.by_memory[state.memory] = state

    def recognise(self, tensor: Tensor) -> None:
        """Take a tensor whose numbers are now those of a known one for a view of that.

        PyTorch tells nobody of subclasses and parameters that are made of a tensor, nor of what is assigned to
        ``.data``."""
        found, memory = self.states.get(id(tensor)), memory_of(tensor)
        if memory is None or (found is not None and found.memory in (None, memory)):
            return
        known = self.by_memory.get(memory)
        if known is None or memory_of(known.tensor) != memory:
            self._note_memory(tensor)
            return
        shapes = (tuple(tensor.shape),)
        view = Call(
            name="alias", args={"self": VIEWED}, shapes=shapes, rank=self.rank, spatial=self.spatial, images=self.images
        )
        base = self._current(known)
        self.states[id(tensor)] = TensorState(
            tensor, *shapes, self._apply_view(view, base, 0), known, view, base_node=base, memory=memory
        )

    def provenance(self, tensor: Tensor) -> Provenance:
        """Where the numbers of a tensor come from; the same in two passes only if the numbers are."""
        return self.state_of(tensor).provenance()

    def value(self, tensor: Tensor) -> Node | None:
        """The node that a tensor holds at this moment; None if it does not depend on the image."""
        found = self.states.get(id(tensor))
        return None if found is None else self._current(found)

    def note_exposed(self, tensor: Tensor) -> None:
        """Note that code that is not recorded has got hold of a tensor's numbers or memory."""
        node = self.value(tensor)
        if node is not None and tensor.is_floating_point():
            self.exposed.append(node)
        elif node is None and id(tensor) in self.states and not isinstance(tensor, torch.nn.Parameter):
            self.states[id(tensor)].root.is_writable_outside = True

    def read(self, tensor: Tensor) -> Node | None:
        """The node of a tensor whose numbers are used now: code that is not recorded may have written them."""
        self.recognise(tensor)
        found = self.states.get(id(tensor))
        if (
            found is not None
            and self._current(found) is None
            and found.shape
            and (root := found.root).is_writable_outside
        ):
            # Memory without numbers says that somebody wrote to it, not what was read for that.
            sources = self.exposed or [node for node in self.nodes if node.edges or node.index == 0]
            edges = tuple(unknown_edge(node) for node in dict.fromkeys(sources))
            root.node = self.add(OUTSIDE, root.shape, RuleOutput(layout_without_axes(root.shape, self.rank), edges))
            root.is_writable_outside = False
        return self.value(tensor)

    def _current(self, state: TensorState) -> Node | None:
        """The value now: made again from the base if that was written to since."""
        if state.base is not None and state.view is not None:
            base = self._current(state.base)
            if base is not state.base_node:
                state.node, state.base_node = self._apply_view(state.view, base, state.output), base
        return state.node

    def _apply_view(self, call: Call, base: Node | None, output: int) -> Node | None:
        if base is None:
            return None
        args = {key: base if value is VIEWED else value for key, value in call.args.items()}
        made = apply(replace(call, args=args, live=(base,)))[output]
        if made is None:
            return None
        node = self.add(call.name, call.shapes[output], made, call, output)
        if all(edge.reads is None for edge in made.edges) and call.name in WHOLE_VIEWS:
            node.view_of = base
        return node

    def record(
        self, func: torch._ops.OpOverload, args: dict[str, Any], shapes: dict[int, tuple[int, ...]], out: object
    ) -> None:
        """Note one operation that has just run.

        Args:
            func: The operation.
            args: Its arguments by name.
            shapes: Shapes of the arguments before it ran, by id.
            out: What it returned.
        """
        outs, mutable = list(tensors(out)), signature_of(func).is_mutable
        for value in args.values():
            for t in tensors(value):
                if not mutable or all(t is not each for each in outs):
                    self.recognise(t)
        self._note(func, args, shapes, outs)
        for t in outs:
            self._note_memory(t)

    def _note(
        self, func: torch._ops.OpOverload, args: dict[str, Any], shapes: dict[int, tuple[int, ...]], outs: list[Tensor]
    ) -> None:
        signature = signature_of(func)
        name, mutable = signature.name, signature.is_mutable
        if not outs and not mutable:  # a number or a yes, which Python goes on with
            return
        if not (name in SHAPE_ONLY or signature.is_view):
            for argument in signature.defaults:
                if argument not in signature.written:
                    for t in tensors(args.get(argument)):
                        self.read(t)
        live = list(
            dict.fromkeys(
                node for value in args.values() for t in tensors(value) if (node := self.value(t)) is not None
            )
        )
        call = Call(
            name=name.rstrip("_") if mutable and name != "_" else name,
            args={key: self._with_nodes(value) for key, value in args.items()},
            shapes=tuple(tuple(t.shape) for t in outs),
            pointwise=torch.Tag.pointwise in func.tags,
            rank=self.rank,
            spatial=self.spatial,
            images=self.images,
            live=tuple(live),
            learned=self._learned(args) if name == "cat" and live else frozenset(),
            values=self._numbers(args) if name in INDEXING and live else {},
        )
        if name in FROM_PYTHON and self.exposed and outs[0].is_floating_point():
            self.state_of(outs[0]).is_writable_outside = True
            self.read(outs[0])
        elif mutable:
            self._write(func, call, args, shapes, outs)
        elif signature.is_view:
            self._view(call, args, outs)
        else:
            self._return(func, call, args, outs)

    def _return(self, func: torch._ops.OpOverload, call: Call, args: dict[str, Any], outs: list[Tensor]) -> None:
        """Note what an operation has made: tensors that are neither its arguments nor views of them."""
        given = [each for value in args.values() for each in tensors(value)]
        source = f"{id(self)} {len(self.nodes)}" if is_random(func, args) else ""
        for i, (t, made) in enumerate(zip(outs, apply(call) if call.live else [None] * len(outs), strict=True)):
            state, shape = self.state_of(t), call.shapes[i]
            if made is None:
                arguments = {key: self._with_provenance(value) for key, value in args.items()}
                state.own_provenance = operation_provenance(
                    call.name, arguments, shape, output=i, source=source, pointwise=call.pointwise
                )
                state.is_writable_outside = call.name in UNINITIALIZED
                state.is_filler = (
                    bool(call.live) or call.name in FILLING or (bool(given) and all(map(self._is_filler, given)))
                )
                continue
            node = state.node = self.add(call.name, shape, made, call, i)
            if source:  # of two passes no numbers are the same
                node.constants = (*node.constants, operation_provenance("random", {}, (), source=source))

    def _is_filler(self, tensor: Tensor) -> bool:
        """Whether a constant was filled with one number in this pass."""
        return self.state_of(tensor).root.is_filler

    def _learned(self, args: dict[str, Any]) -> frozenset[int]:
        """The constants among some arguments, by id, that are more than padding."""
        given = (t for value in args.values() for t in tensors(value) if self.value(t) is None)
        return frozenset(id(t) for t in given if not self._is_filler(t))

    def _numbers(self, args: dict[str, Any]) -> dict[int, Tensor]:
        """The numbers of the constants among some arguments, by id."""
        given = [t for value in args.values() for t in tensors(value) if self.value(t) is None]
        return {id(t): numbers for t in given if (numbers := self.constants.numbers(t)) is not None}

    def _with_provenance(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            # An operation that gives numbers whatever the image is, such as ``zeros_like``, takes no more than its
            # shape.
            return self.provenance(value) if self.value(value) is None else f"image {tuple(value.shape)}"
        return [self._with_provenance(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    def unknown(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> None:
        """Note an operation without a schema."""
        live = tuple(
            node for value in (*args, *kwargs.values()) for t in tensors(value) if (node := self.value(t)) is not None
        )
        outs = list(tensors(out))
        shapes = tuple(tuple(t.shape) for t in outs)
        call = Call(
            name=name, args={}, shapes=shapes, rank=self.rank, spatial=self.spatial, images=self.images, live=live
        )
        for t, made, shape in zip(outs, apply(call) if live else [], shapes, strict=False):
            if made is not None:
                self.state_of(t).node = self.add(name, shape, made)

    def _with_nodes(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            node = self.value(value)
            return value if node is None else node
        if isinstance(value, (list, tuple)):
            return [self._with_nodes(entry) for entry in value]
        return value

    def _view(self, call: Call, args: dict[str, Any], outs: list[Tensor]) -> None:
        source = next(t for value in args.values() for t in tensors(value))
        base = self.state_of(source)
        node = self._current(base)
        template = replace(
            call, args={key: VIEWED if value is source else value for key, value in args.items()}, live=()
        )
        for i, t in enumerate(outs):
            if t is source:
                continue
            state = self.state_of(t)
            state.base, state.view, state.output, state.base_node = base, template, i, node
            state.node = self._apply_view(template, node, i)

    def _write(
        self,
        func: torch._ops.OpOverload,
        call: Call,
        args: dict[str, Any],
        shapes: dict[int, tuple[int, ...]],
        outs: list[Tensor],
    ) -> None:
        signature = signature_of(func)
        targets = [
            t for argument in signature.defaults if argument in signature.written for t in tensors(args.get(argument))
        ]
        if torch.Tag.inplace_view in func.tags:
            self._reshape(call, args, targets[0], shapes)
            return
        if len(targets) == 1 and [t for t in outs if t is targets[0]]:
            answers = apply(call) if call.live else [None]
        else:  # out= variants and statistics that are updated on the side
            answers = apply(
                replace(call, name="several outputs", pointwise=False, shapes=tuple(tuple(t.shape) for t in targets))
            )
            if not call.live:
                answers = [None] * len(targets)
        if returned := [t for t in outs if all(t is not each for each in targets)]:
            # A rule knows the outputs of an operation all together.
            known = call if len(returned) == len(outs) else replace(call, name="several outputs", pointwise=False)
            self._return(func, replace(known, shapes=tuple(tuple(t.shape) for t in returned)), args, returned)
        source = f"{id(self)} {len(self.nodes)}" if is_random(func, args) else ""
        arguments = {key: self._with_provenance(value) for key, value in args.items()}
        for i, (t, made) in enumerate(zip(targets, answers, strict=False)):
            numbers = operation_provenance(
                call.name, arguments, tuple(t.shape), output=i, source=source, pointwise=call.pointwise
            )
            node = None if made is None else self.add(call.name, tuple(t.shape), made, call, i)
            if node is not None and source:
                node.constants = (*node.constants, numbers)
            self._assign(self.state_of(t), node, numbers)

    def _reshape(self, call: Call, args: dict[str, Any], target: Tensor, shapes: dict[int, tuple[int, ...]]) -> None:
        """``x.squeeze_()`` and the like: from now on this tensor object is a view of what it was."""
        now = self.state_of(target)
        before = replace(now, shape=shapes[id(target)])
        template = replace(
            call,
            args={key: VIEWED if value is target else value for key, value in args.items()},
            shapes=(tuple(target.shape),),
            live=(),
        )
        now.base, now.view, now.output, now.base_node, now.shape = before, template, 0, before.node, tuple(target.shape)
        now.node = self._apply_view(template, before.node, 0)

    def _assign(self, state: TensorState, node: Node | None, numbers: Provenance) -> None:
        """Give a tensor a new value, and with it everything whose view it is; ``numbers`` where that does not depend on
        the image."""
        base, view = state.base, state.view
        state.root.is_writable_outside = False
        if base is None or view is None:
            state.node, state.own_provenance = node, numbers
            return
        old, before = self._current(base), base.provenance()
        state.node = node
        arguments = {**view.args, "base": f"image {base.shape}" if old is not None else before, "numbers": numbers}
        after = operation_provenance(f"write into {view.name}", arguments, base.shape, output=state.output)
        if node is not None:
            made = scatter_into_base(view, state.output, node, old, base.shape)
            joined = self.add(f"write into {view.name}", base.shape, made, view, state.output, writes="values")
            if old is None and view.name not in WHOLE_VIEWS:  # the rest keeps its numbers
                joined.constants = (before,)
            self._assign(base, joined, after)
        elif old is not None and view.name not in WHOLE_VIEWS:
            # A constant written into a part leaves the rest: reading it as the old value there is a superset.
            made = RuleOutput(old.layout, (Edge(old, None),))
            joined = self.add(
                f"numbers written into {view.name}", base.shape, made, view, state.output, writes="numbers"
            )
            joined.constants = (provenance_through_view(view, old.layout, numbers, f"{id(self)} {joined.index}"),)
            self._assign(base, joined, after)
        else:
            self._assign(base, None, after)
        state.base_node = base.node

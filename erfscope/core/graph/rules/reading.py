"""What an operation reads: for each tensor that it is given, which of its elements each element of the output needs."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from erfscope.core.graph.graph import arguments, name_of, shape_of, value

IntArray = NDArray[np.intp]
FloatArray = NDArray[np.floating[Any]]
Shape = tuple[int, ...]
#: Operations that only copy.
COPIES = frozenset(["clone", "_to_copy", "to", "contiguous", "alias", "detach"])
#: In place of an index where nothing is read, with or without a border.
ABSENT = int(np.iinfo(np.intp).min)


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """The indices of one dimension of an input that each index of one dimension of the output reads."""

    #: Dimension of the output; None where every element of the output reads the same.
    dim: int | None
    #: (outputs, taps): as if the input went on beyond its borders.
    unbounded: IntArray
    #: The same within its borders, which may end, wrap, reflect or clamp; -1 where nothing is read.
    inside: IntArray
    #: (outputs,): where each output stands among the input's indices; NaN for nowhere.
    center: FloatArray
    #: Indices of the input from one output to the next; 0 where that is not the same for all.
    scale: float
    #: Why the centre is not exact; "" where it is.
    inexact_reason: str = ""


class Whole(NamedTuple):
    """All of a dimension is read for every element of the output."""

    #: The dimension of the output that has the same positions all the same, as behind a norm or a softmax.
    same: int | None = None
    #: Whether only some of it may be read: an upper bound.
    upper_bound: bool = False


class Dims(NamedTuple):
    """A step in which each dimension of the input is read by itself: the same index as one of the output's, all of
    it, or taps.
    """

    reads: tuple[int | Whole | Taps, ...]
    #: Shape of what is made.
    shape: Shape

    @property
    def goals(self) -> list[int | None]:
        """The dimension of the output along which each of the input goes on; None where it ends."""
        return [
            read.same if isinstance(read, Whole) else read.dim if isinstance(read, Taps) else read
            for read in self.reads
        ]


class Reshape(NamedTuple):
    """A step that reads the elements in their order as another shape."""

    shape: Shape


Step = Dims | Reshape


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """How an operation reads one of its inputs: steps from the input to the output."""

    source: fx.Node
    steps: tuple[Step, ...]
    #: False where the output's elements stand where this input's do; True where they stand where those of another,
    #: leading input do, if that has positions, as for the keys of attention.
    secondary: bool = False
    #: A dimension of a following input that is read in full where it repeats positions of the leading one, as keys do.
    columns: int | None = None
    #: What the operation is called where it mixes positions.
    mixing: str = ""
    #: Name of the operation where it may read less than the steps say; "" where they are exact.
    inexact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One output of one operation."""

    node: fx.Node
    name: str
    args: dict[str, Any]
    #: Which output, and the shapes of all.
    output: int
    shapes: tuple[Shape, ...]
    #: The numbers of a tensor that does not depend on the input; None where they are not at hand.
    numbers: Callable[[fx.Node], Tensor | None]

    @property
    def shape(self) -> Shape:
        """Shape of this output."""
        return self.shapes[self.output]

    @property
    def operation(self) -> OperationRule:
        """What is known of the operation."""
        return OPERATIONS.get(self.name, UNNAMED)

    def tensor(self, *names: str) -> fx.Node:
        """The first argument of these names that is a tensor; by default the first argument."""
        found: list[fx.Node] = [self.args[name] for name in names or self.args if is_tensor(self.args.get(name))]
        return found[0]


def is_tensor(value_: Any) -> bool:
    """Whether an argument is a tensor."""
    return isinstance(value_, fx.Node) and isinstance(value(value_), Tensor)


Rule = Callable[[Call], "list[Edge] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRule:
    """What is known of an operation."""

    #: What a call reads of each input; gives None for a call of a kind that the rule does not know.
    reads: Rule
    #: Whether it only shows elements of its inputs elsewhere.
    moves: bool = False
    #: Whether it needs what lies between the first and the last index of a part of its output, (B, C, *space).
    dense: bool = False
    #: Whether it makes all of its dimension ``dim`` where a part of that is asked for.
    makes_dim: bool = False
    #: Whether it holds a state of every image, so that no part of it can be computed alone.
    stateful: bool = False
    #: Whether it subtracts a mean or divides by a sum: behind it a sum of channels may be constant, and
    #: its gradient rounding noise.
    normalises: bool = False
    #: False where it has no derivative, or one that is zero almost everywhere.
    has_derivative: bool = True


#: What is known of operations, by name.
OPERATIONS: dict[str, OperationRule] = {}


def rule(*names: str, **facts: Any) -> Callable[[Rule], Rule]:
    """Register the rule of these operations; ``facts`` are the other fields of :class:`OperationRule`."""

    def register(function: Rule) -> Rule:
        OPERATIONS.update(dict.fromkeys(names, OperationRule(reads=function, **facts)))
        return function

    return register


#: Register the rule of operations that only move elements.
move = functools.partial(rule, moves=True)


def call_of(node: fx.Node, numbers: Callable[[fx.Node], Tensor | None] | None = None) -> Call:
    """The call of an operation that a node is one output of; the node is no placeholder."""
    found: Call | None = node.meta.get("call")
    if found is None:
        made_by: Any = node.args if node.target is operator.getitem else (node, 0)
        (made, output), given = made_by, value(made_by[0])
        outputs = given if isinstance(given, list | tuple) else [given]
        shapes = tuple(tuple(getattr(each, "shape", ())) for each in outputs)
        words: dict[str, Any] = {"name": name_of(made).rstrip("_"), "args": arguments(made), "numbers": lambda _: None}
        found = node.meta["call"] = Call(node=made, output=output, shapes=shapes, **words)
    return found if numbers is None else replace(found, numbers=numbers)


def edges_of(node: fx.Node, numbers: Callable[[fx.Node], Tensor | None] = lambda _: None) -> list[Edge]:
    """What a node reads of every tensor that it is given: without a rule, all of them whole."""
    found: list[Edge] | None = node.meta.get("edges")
    if found is None:
        read = list[fx.Node]()

        def noted(each: fx.Node) -> Tensor | None:
            read.append(each)
            return numbers(each)

        call = call_of(node, noted)
        found = call.operation.reads(call)
        if found is None:
            found = [
                Edge(
                    source=each,
                    steps=(Dims((Whole(upper_bound=True),) * len(shape_of(each)), call.shape),),
                    inexact=call.name,
                    mixing=call.name,
                )
                for each in call.node.all_input_nodes
                if is_tensor(each)
            ]
        if not read:  # whatever numbers the module holds
            node.meta["edges"] = found
    return found


def pointwise(call: Call) -> list[Edge]:
    """Elementwise operations, broadcast."""
    given = filter(is_tensor, call.node.all_input_nodes)
    return [Edge(source=each, steps=broadcast(shape_of(each), call.shape)) for each in given]


def unnamed(call: Call) -> list[Edge] | None:
    """Operations without a rule of their own: those that PyTorch tags as pointwise are understood."""
    return pointwise(call) if torch.Tag.pointwise in call.node.target.tags else None  # type: ignore[union-attr]


UNNAMED = OperationRule(reads=unnamed)


def read_whole(call: Call, source: fx.Node, mixing: str = "") -> Edge:
    """An edge to a tensor that is read whole for every element, and has no say where these stand."""
    return Edge(
        source=source, steps=(Dims((Whole(),) * len(shape_of(source)), call.shape),), secondary=True, mixing=mixing
    )


def others_read_whole(call: Call, x: fx.Node) -> list[Edge]:
    """The same for all inputs but one."""
    return [read_whole(call, each) for each in call.node.all_input_nodes if each is not x]


def broadcast(source: Shape, shape: Shape) -> tuple[Step, ...]:
    """Steps of a broadcast: dimensions are paired from the last one on."""
    lead = len(shape) - len(source)
    if source == shape:
        return ()
    return (Dims(tuple(lead + i if n == shape[lead + i] else Whole() for i, n in enumerate(source)), shape),)


def taps(
    dim: int | None,
    size: int,
    unbounded: IntArray,
    *,
    inside: IntArray | None = None,
    center: FloatArray | None = None,
    scale: float | None = None,
    inexact_reason: str = "",
) -> Taps:
    """Taps into a dimension of ``size`` indices: by default a border ends it, and an output stands in the middle of
    what it reads.
    """
    if inside is None:
        inside = np.where((unbounded >= 0) & (unbounded < size), unbounded, -1)
    if center is None:
        there = np.where(unbounded == ABSENT, np.nan, unbounded.astype(float))
        lone = np.isnan(there).all(1)
        center = np.where(lone, np.nan, np.nansum(there, 1) / np.maximum((~np.isnan(there)).sum(1), 1))
    if scale is None:
        gaps = np.diff(center)
        scale = 1.0 if not gaps.size else float(gaps[0]) if np.allclose(gaps, gaps[0]) else 0.0
    return Taps(dim, unbounded, inside, center, scale, inexact_reason)


def picks(dim: int | None, size: int, indices: Sequence[int] | IntArray, **more: Any) -> Taps:
    """Taps of one index each; :data:`ABSENT` for none."""
    return taps(dim, size, np.asarray(indices, dtype=np.intp).reshape(-1, 1), **more)


def dim_of(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % rank if rank else 0


def dims_of(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions counted from the front; none given means all."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    return tuple(dim_of(each, rank) for each in ([dims] if isinstance(dims, int) else dims))


def groups_of(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of neighbouring dimensions of two shapes that hold the same elements."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        mine, theirs = [i] if i < len(old) else [], [j] if j < len(new) else []
        if mine and theirs and old[i] != new[j] and 1 in (old[i], new[j]):
            mine, theirs = (mine, []) if old[i] == 1 else ([], theirs)  # a dimension of one element comes or goes
        i, j = i + len(mine), j + len(theirs)
        while mine and theirs and (a := math.prod(old[k] for k in mine)) != (b := math.prod(new[k] for k in theirs)):
            if a < b:
                mine.append(i)
                i += 1
            else:
                theirs.append(j)
                j += 1
        groups.append((mine, theirs))
    return groups

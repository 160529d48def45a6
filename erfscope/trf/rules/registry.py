"""What a rule gets, what it gives, and how it is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from erfscope.trf.axes.axis_layout import layout_without_axes
from erfscope.trf.edges.basic import broadcast, unknown_edge
from erfscope.trf.graph import Edge, Node, RuleOutput


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation, with nodes in place of the tensors that depend on the image."""

    #: Name without namespace, overload and the underscore of an in-place variant.
    name: str
    #: All arguments by their names in the schema, defaults filled in.
    args: dict[str, Any]
    #: Shape of each output.
    shapes: tuple[tuple[int, ...], ...]
    #: PyTorch declares that every output element depends on the input elements at the same position only.
    pointwise: bool = False
    #: Number of axes of the image.
    rank: int = 2
    #: Whether axes are those of the image, whose cells may be taken apart, and not the images of a batch.
    spatial: bool = True
    #: How many images were recorded, where no operation deals in as many of anything else; 0 where that is not so.
    images: int = 0
    #: Inputs that depend on the image, in order.
    live: tuple[Node, ...] = field(default=())
    #: Arguments, by id, that do not depend on the image and were there before the pass: weights, tables, class tokens.
    learned: frozenset[int] = frozenset()
    #: The numbers of small arguments that do not depend on the image, by id, where they are known.
    values: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.shapes[0]

    def node(self, name: str) -> Node | None:
        """An argument, if it depends on the image."""
        found = self.args.get(name)
        return found if isinstance(found, Node) else None


#: One output, or one entry per output; None stands for an output that does not depend on the image.
Answer = RuleOutput | Sequence[RuleOutput | None] | None
Rule = Callable[[Call], Answer]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of these operations."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def apply(call: Call) -> list[RuleOutput | None]:
    """The rule's answer, one entry per output. An operation without a rule, or one whose rule cannot follow the
    factors, is widened."""
    function = RULES.get(call.name, pointwise if call.pointwise else unknown)
    answer = function(call)
    if answer is None:
        return [None] * len(call.shapes)
    if isinstance(answer, RuleOutput):
        # Further outputs (indices, saved statistics) are rarely used: all that is said of them is that they may depend
        # on everything.
        return [answer, *(depends_on_all(call, i) for i in range(1, len(call.shapes)))]
    return list(answer)


def depends_on_all(call: Call, output: int = 0) -> RuleOutput:
    """An output about which nothing is known but its inputs."""
    return RuleOutput(
        layout_without_axes(call.shapes[output], call.rank), tuple(unknown_edge(node) for node in call.live)
    )


def unknown(call: Call) -> list[RuleOutput | None]:
    """The rule of operations that are not in the table."""
    return [depends_on_all(call, i) for i in range(len(call.shapes))]


def pointwise(call: Call) -> Answer:
    """Elementwise operations, broadcast."""
    return RuleOutput(*broadcast(call.live, call.shape))


def same(node: Node) -> RuleOutput:
    """The output is the input, position by position."""
    return RuleOutput(node.layout, (Edge(node, None),))


def dim_index(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % rank if rank else 0


def dim_indices(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions counted from the front; none given means all."""
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return tuple(range(rank))
    return tuple(dim_index(d, rank) for d in ([dims] if isinstance(dims, int) else dims))


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors in an argument or result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from tensors(entry)

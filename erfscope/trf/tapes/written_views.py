"""What a tensor holds after a view of it was written to."""

from __future__ import annotations

from erfscope.trf.axes.place import AxisLayout, other
from erfscope.trf.graph import Node
from erfscope.trf.relate import broadcast, widened
from erfscope.trf.rules import Call, RuleOutput, apply
from erfscope.trf.rules.concatenation import written

#: Views that show every element of their base once.
WHOLE_VIEWS = frozenset(
    (
        *("alias", "detach", "lift_fresh", "permute", "transpose", "t"),
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze"),
    )
)


def put_through_view(view: Call, output: int, part: Node, whole: Node | None, shape: tuple[int, ...]) -> RuleOutput:
    """The base's value after ``part`` was written through a view of it."""
    args = view.args
    if view.name in WHOLE_VIEWS:
        made = _inverse(view, part, shape)
    else:
        made = None
        dim = int(args.get("dim") or 0) % max(len(shape), 1)
        if view.name == "slice":
            start = int(args.get("start") or 0)
            made = written(part, whole, shape, dim, start + shape[dim] if start < 0 else start, step=int(args.get("step") or 1))
        elif view.name in ("split", "split_with_sizes"):
            made = written(part, whole, shape, dim, sum(s[dim] for s in view.shapes[:output]))
        elif view.name in ("select", "unbind"):
            index = output if view.name == "unbind" else int(args["index"]) % shape[dim]
            dims = part.place.dims
            lifted = Node(part.index, part.name, part.module, (*part.shape[:dim], 1, *part.shape[dim:]), part.place)
            lifted.place = AxisLayout(part.place.axes, (*dims[:dim], (), *dims[dim:]))
            made = written(lifted, whole, shape, dim, index)
            if made is not None:
                made = made._replace(edges=tuple(e._replace(source=part) if e.source is lifted else e for e in made.edges))
    if made is not None:
        return made
    place = AxisLayout((None,) * len(part.place.axes), tuple(other(n) for n in shape))
    return RuleOutput(place, tuple(widened(node) for node in (part, whole) if node is not None))


def _inverse(view: Call, part: Node, shape: tuple[int, ...]) -> RuleOutput | None:
    """The base of a view that shows all of it, from the view's new value."""
    name, args = view.name, dict(view.args)
    if name == "permute":
        order = [int(d) % len(shape) for d in args["dims"]]
        args = {"dims": [order.index(i) for i in range(len(shape))]}
    elif name in ("alias", "detach", "lift_fresh"):
        return RuleOutput(*broadcast([part], shape))
    elif name not in ("transpose", "t"):
        name, args = "view", {}
    return apply(Call(name=name, args=args, shapes=(shape,), rank=len(part.place.axes), live=(part,)))[0]

"""What a tensor holds after a view of it was written to."""

from __future__ import annotations

from dataclasses import replace

from erfscope.trf.axes.axis_layout import AxisLayout, other
from erfscope.trf.edges.basic import broadcast, unknown_edge
from erfscope.trf.graph import Node, RuleOutput
from erfscope.trf.operations import WHOLE_VIEWS
from erfscope.trf.rules import Call, apply
from erfscope.trf.rules.concatenation import write_part


def scatter_into_base(view: Call, output: int, part: Node, whole: Node | None, shape: tuple[int, ...]) -> RuleOutput:
    """The base's value after ``part`` was written through a view of it."""
    args = view.args
    if view.name in WHOLE_VIEWS:
        made = _inverse(view, part, shape)
    else:
        made = None
        dim = int(args.get("dim") or 0) % max(len(shape), 1)
        if view.name == "slice":
            start = int(args.get("start") or 0)
            made = write_part(
                part, whole, shape, dim, start + shape[dim] if start < 0 else start, step=int(args.get("step") or 1)
            )
        elif view.name in ("split", "split_with_sizes"):
            made = write_part(part, whole, shape, dim, sum(s[dim] for s in view.shapes[:output]))
        elif view.name in ("select", "unbind"):
            index = output if view.name == "unbind" else int(args["index"]) % shape[dim]
            lifted = replace(
                part, shape=(*part.shape[:dim], 1, *part.shape[dim:]), layout=part.layout.with_new_dim(dim), edges=()
            )
            made = write_part(lifted, whole, shape, dim, index)
            if made is not None:
                made = made._replace(
                    edges=tuple(e._replace(source=part) if e.source is lifted else e for e in made.edges)
                )
    if made is not None:
        return made
    layout = AxisLayout((None,) * len(part.layout.axes), tuple(other(n) for n in shape))
    return RuleOutput(layout, tuple(unknown_edge(node) for node in (part, whole) if node is not None))


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
    return apply(Call(name=name, args=args, shapes=(shape,), rank=len(part.layout.axes), live=(part,)))[0]

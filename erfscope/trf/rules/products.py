"""Matrix products, and attention in its fused forms."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.trf.graph import Node
from erfscope.trf.place import OTHER, Bundle, Dim, Place, factors, other, settled, spatial
from erfscope.trf.relate import broadcast, related
from erfscope.trf.rules.table import Answer, Call, Made, lost, rule

ATTENTION = "attention"


@rule("mm", "bmm", "matmul")
def product(call: Call) -> Answer:
    """Matrix product, batched or not."""
    left, right = call.node("self"), call.node("mat2") or call.node("other")
    return multiplied(left, right, call.shape) or lost(call)


@rule("addmm", "baddbmm")
def product_and_sum(call: Call) -> Answer:
    """Matrix product added to a third tensor."""
    names = ("mat1", "mat2") if call.name == "addmm" else ("batch1", "batch2")
    left, right, base = call.node(names[0]), call.node(names[1]), call.node("self")
    if left is None and right is None:
        return Made(*broadcast(call.live, call.shape))
    made = multiplied(left, right, call.shape)
    if made is None or base is None:
        return made or lost(call)
    edges = [related(made.place, base, [i if n == m else None for i, (n, m) in enumerate(zip(base.shape, call.shape, strict=True))])]
    return made._replace(edges=(*made.edges, *edges)) if len(base.shape) == len(call.shape) else lost(call)


@rule("linear")
def linear(call: Call) -> Answer:
    """``x @ weight.T``: reads the last dimension in full."""
    node = call.node("input")
    if node is None or len(call.live) > 1:
        return lost(call)
    rank = len(call.shape)
    place = settled(node.place.axes, (*node.place.dims[:-1], other(call.shape[-1])))
    return Made(place, (related(place, node, [*range(rank - 1), None]),), "linear layer over positions")


@rule("_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu")
@rule("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "scaled_dot_product_attention")
@rule("_scaled_dot_product_fused_attention_overrideable")
def fused_attention(call: Call) -> Answer:
    """Scaled dot-product attention of queries (..., L, E) on keys and values (..., S, E)."""
    query, key, value = (call.node(name) for name in ("query", "key", "value"))
    if query is None or any(node not in (query, key, value) for node in call.live) or len(query.shape) != len(call.shape):
        return lost(call)
    place = settled(query.place.axes, (*query.place.dims[:-1], other(call.shape[-1])))
    rank = len(call.shape)
    edges = [related(place, query, [*range(rank - 1), None])]
    for node in (key, value):
        if node is not None:
            edges.append(related(place, node, [*range(rank - 2), None, None]))
    return Made(place, tuple(edges), ATTENTION)


def multiplied(left: Node | None, right: Node | None, shape: Sequence[int]) -> Made | None:
    """Product of (..., M, K) and (..., K, N), of which at least one depends on the image; None if it cannot be followed."""
    if (left is not None and len(left.shape) != len(shape)) or (right is not None and len(right.shape) != len(shape)):
        return None
    rank = len(shape)
    if left is None or right is None:
        node = left or right
        if node is None:
            return None
        read = rank - 1 if node is left else rank - 2
        place = settled(node.place.axes, node.place.with_dims({read: other(shape[read])}).dims)
        return Made(place, (related(place, node, [None if i == read else i for i in range(rank)]),), "linear layer over positions")
    place = _both(left, right, shape)
    # The dimension N of the right factor keeps its positions only if the output took its axes over.
    columns = rank - 1 if spatial(right.place.dims[-1]) and place.dims[-1] == right.place.dims[-1] else None
    edges = (
        related(place, left, [*range(rank - 1), None]),
        related(place, right, [*range(rank - 2), None, columns]),
    )
    return Made(place, edges, ATTENTION)


def _both(left: Node, right: Node, shape: Sequence[int]) -> Place:
    """Place of a product of two tensors that both depend on the image.

    The rows are the left factor's. The columns are the right factor's, unless their axes are among the rows already: queries against keys at
    the same positions; then every column is read.
    """
    axes = list(settled(left.place.axes, (*left.place.dims[:-1], ())).axes)
    place = settled(left.place.axes, (*left.place.dims[:-1], other(shape[-1])))
    dims: list[Dim] = list(place.dims)
    taken = {i for i, axis in enumerate(axes) if axis is not None}
    mine = {f.axis for dim in (*right.place.dims[:-2], right.place.dims[-1]) for f in factors(dim) if f.axis != OTHER}
    columns = right.place.dims[-1]
    batch_is_mine = all(left.place.dims[i] == right.place.dims[i] for i in range(len(shape) - 2) if spatial(right.place.dims[i]))
    if spatial(columns) and not any(isinstance(part, Bundle) for dim in left.place.dims[:-1] for part in dim):
        if not (mine & taken):
            dims[-1] = columns
            for i in range(len(shape) - 2):
                if not spatial(dims[i]):
                    dims[i] = right.place.dims[i]
            axes = [a if a is not None else right.place.axes[i] if i in mine else None for i, a in enumerate(axes)]
            return settled(axes, dims)
        if batch_is_mine and _disjoint(left, right):
            return settled(left.place.axes, (*left.place.dims[:-1], columns))
    elif not (mine & taken):
        for i in range(len(shape) - 2):
            if not spatial(dims[i]) and spatial(right.place.dims[i]):
                dims[i] = right.place.dims[i]
        axes = [a if a is not None else right.place.axes[i] if i in mine else None for i, a in enumerate(axes)]
        return settled(axes, dims)
    return place


def _disjoint(left: Node, right: Node) -> bool:
    """Whether the columns' digits are missing from the left factor's rows and batch, on axes that are the same in both."""
    rows = {f for dim in left.place.dims[:-1] for f in factors(dim)}
    columns = [f for f in factors(right.place.dims[-1]) if f.axis != OTHER]
    return all(f not in rows and left.place.axes[f.axis] == right.place.axes[f.axis] for f in columns)



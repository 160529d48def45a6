"""Matrix products, and attention in its fused forms."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.trf.axes.axis_layout import OTHER, AxisLayout, canonical_layout, factors_of, other, spatial
from erfscope.trf.edges.basic import broadcast, edge_between
from erfscope.trf.graph import Edge, Node, RuleOutput
from erfscope.trf.rules.registry import Answer, Call, depends_on_all, rule

ATTENTION = "attention"
TOKEN_MIXING = "token mixing"


@rule("mm", "bmm", "matmul")
def product(call: Call) -> Answer:
    """Matrix product, batched or not."""
    left, right = call.node("self"), call.node("mat2") or call.node("other")
    return multiply(left, right, call.shape) or depends_on_all(call)


@rule("addmm", "baddbmm")
def product_and_sum(call: Call) -> Answer:
    """Matrix product added to a third tensor."""
    names = ("mat1", "mat2") if call.name == "addmm" else ("batch1", "batch2")
    left, right, base = call.node(names[0]), call.node(names[1]), call.node("self")
    if left is None and right is None:
        return RuleOutput(*broadcast(call.live, call.shape))
    made = multiply(left, right, call.shape)
    if made is None or base is None:
        return made or depends_on_all(call)
    edges = [
        edge_between(
            made.layout,
            base,
            [i if n == m else None for i, (n, m) in enumerate(zip(base.shape, call.shape, strict=True))],
        )
    ]
    return made._replace(edges=(*made.edges, *edges)) if len(base.shape) == len(call.shape) else depends_on_all(call)


@rule("linear")
def linear(call: Call) -> Answer:
    """``x @ weight.T``: reads the last dimension in full."""
    node = call.node("input")
    if node is None or len(call.live) > 1:
        return depends_on_all(call)
    rank = len(call.shape)
    layout = canonical_layout(node.layout.axes, (*node.layout.dims[:-1], other(call.shape[-1])))
    return RuleOutput(layout, (edge_between(layout, node, [*range(rank - 1), None]),), TOKEN_MIXING)


@rule(
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
@rule("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "scaled_dot_product_attention")
@rule("_scaled_dot_product_fused_attention_overrideable")
def fused_attention(call: Call) -> Answer:
    """Scaled dot-product attention of queries (..., L, E) on keys and values (..., S, E)."""
    query, key, value = (call.node(name) for name in ("query", "key", "value"))
    if any(node not in (query, key, value) for node in call.live) or len(call.live[0].shape) != len(call.shape):
        return depends_on_all(call)
    if query is None:
        return _attend_from_constants(call, [node for node in (key, value) if node is not None])
    layout = canonical_layout(query.layout.axes, (*query.layout.dims[:-1], other(call.shape[-1])))
    rank = len(call.shape)
    edges = [edge_between(layout, query, [*range(rank - 1), None])]
    for node in (key, value):
        if node is not None:
            edges.append(attention_edge(edge_between(layout, node, [*range(rank - 2), None, None])))
    return RuleOutput(layout, tuple(edges), ATTENTION)


def _attend_from_constants(call: Call, nodes: Sequence[Node]) -> RuleOutput:
    """Attention of queries that do not depend on the image: what comes out stands nowhere."""
    rank = len(call.shape)
    lead, without_axes = nodes[-1].layout.dims[: rank - 2], [other(n) for n in call.shape[-2:]]
    layout = canonical_layout(nodes[-1].layout.axes, (*lead, *without_axes))
    edges = [attention_edge(edge_between(layout, node, [*range(rank - 2), None, None])) for node in nodes]
    return RuleOutput(layout, tuple(edges), ATTENTION)


def multiply(left: Node | None, right: Node | None, shape: Sequence[int]) -> RuleOutput | None:
    """Product of (..., M, K) and (..., K, N), of which at least one depends on the image; None if it cannot be
    followed."""
    if (left is not None and len(left.shape) != len(shape)) or (right is not None and len(right.shape) != len(shape)):
        return None
    rank = len(shape)
    if left is None or right is None:
        node = left or right
        if node is None:
            return None
        read = rank - 1 if node is left else rank - 2
        layout = canonical_layout(node.layout.axes, node.layout.with_dims({read: other(shape[read])}).dims)
        return RuleOutput(
            layout, (edge_between(layout, node, [None if i == read else i for i in range(rank)]),), TOKEN_MIXING
        )
    layout, keeps_columns = _product_layout(left, right, shape)
    mine = edge_between(layout, left, [*range(rank - 1), None])
    theirs = edge_between(layout, right, [*range(rank - 2), None, rank - 1 if keeps_columns else None])
    return RuleOutput(layout, (mine, attention_edge(theirs) if left.layout.present else theirs), ATTENTION)


def attention_edge(edge: Edge) -> Edge:
    """The edge to keys and values: at best a window around the query, never its own position alone."""
    return edge.with_kind(
        "window", [i for i, read in enumerate(edge.axis_reads) if read is not None and read.kind == "local"]
    )


def _product_layout(left: Node, right: Node, shape: Sequence[int]) -> tuple[AxisLayout, bool]:
    """Layout of a product of two tensors that both depend on the image, and whether its columns are those of the right
    operand.

    The rows are the left operand's. The columns are the right operand's, unless they repeat positions of the rows, as
    with queries against keys; then every column is read."""
    if (layout := _tiled_layout(left, right, shape)) is not None:
        return layout, False
    rows = left.layout.dims[:-1]
    columns = right.layout.dims[-1]
    alone = canonical_layout(left.layout.axes, (*rows, other(shape[-1])))
    theirs = {f.axis for dim in (*right.layout.dims[:-2], columns) for f in factors_of(dim) if f.axis != OTHER}
    if not theirs & set(alone.present):
        dims = [
            mine if spatial(mine) else more for mine, more in zip(alone.dims[:-2], right.layout.dims[:-2], strict=True)
        ]
        axes = [mine or (right.layout.axes[i] if i in theirs else None) for i, mine in enumerate(alone.axes)]
        return canonical_layout(axes, (*dims, alone.dims[-2], columns)), True
    if spatial(columns) and _are_disjoint(left, right):
        return canonical_layout(left.layout.axes, (*rows, columns)), True
    return alone, False


def _tiled_layout(left: Node, right: Node, shape: Sequence[int]) -> AxisLayout | None:
    """Layout of a product of rows that are the same in every window with a matrix per window, as with GCViT's global
    queries.

    The rows are then read as positions in the window. None if this is not such a product.
    """
    windows = right.layout.dims[:-2]
    inside = next((dim for dim in right.layout.dims[:-3:-1] if spatial(dim)), None)
    if inside is None or any(map(spatial, left.layout.dims[:-2])) or not any(map(spatial, windows)):
        return None
    if [part.size for part in inside] != [part.size for part in left.layout.dims[-2]]:
        return None
    layout = canonical_layout(right.layout.axes, (*windows, inside, other(shape[-1])))
    return layout if layout.axes == right.layout.axes else None


def _are_disjoint(left: Node, right: Node) -> bool:
    """Whether the columns are factors that the left operand's rows lack, on axes that are the same in both, in the same
    batches."""
    if any(
        spatial(theirs) and mine != theirs
        for mine, theirs in zip(left.layout.dims[:-2], right.layout.dims[:-2], strict=True)
    ):
        return False
    rows = {f for dim in left.layout.dims[:-1] for f in factors_of(dim)}
    columns = [f for f in factors_of(right.layout.dims[-1]) if f.axis != OTHER]
    return all(f not in rows and left.layout.axes[f.axis] == right.layout.axes[f.axis] for f in columns)

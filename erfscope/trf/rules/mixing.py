"""Operations that mix positions: reductions, softmax, norms, running sums."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.trf.axes.axis_layout import AxisLayout, canonical_layout, factors_of, other, spatial
from erfscope.trf.axes.index_maps import Cumulative
from erfscope.trf.edges.basic import broadcast, edge_between
from erfscope.trf.graph import AxisRead, Edge, Node, RuleOutput
from erfscope.trf.rules.registry import RULES, Answer, Call, depends_on_all, dim_index, dim_indices, rule, same

#: Names of reductions in results, by operation.
REDUCTIONS = {
    "mean": "global average pooling",
    "prod": "product over positions",
    "aminmax": "global min and max pooling",
    "argmax": "argmax over positions",
    "argmin": "argmin over positions",
    "logsumexp": "logsumexp over positions",
    **dict.fromkeys(("sum", "nansum"), "sum over positions"),
    **dict.fromkeys(("amax", "max"), "global max pooling"),
    **dict.fromkeys(("amin", "min"), "global min pooling"),
    **dict.fromkeys(("median", "nanmedian"), "median over positions"),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), "variance over positions"),
    **dict.fromkeys(("linalg_vector_norm", "norm"), "norm over positions"),
    **dict.fromkeys(("all", "any", "count_nonzero"), "reduction over positions"),
}
#: Operations to look back through for what was transformed.
FAR = 500
#: Scores at or below this are those of closed gates.
CLOSED = -1e4


@rule(*REDUCTIONS)
def reduction(call: Call) -> Answer:
    """Reductions over some or all dimensions."""
    node = call.live[0]
    if "other" in call.args:  # max(a, b), elementwise
        return RuleOutput(*broadcast(call.live, call.shape))
    asked = call.args.get("dim")
    if asked is None and "dim" not in call.args and call.shape != ():
        return depends_on_all(call)
    dims = dim_indices(asked, len(node.shape))
    made = reduce_dims(node, dims, bool(call.args.get("keepdim")), REDUCTIONS[call.name])
    return [made] * len(call.shapes)


def reduce_dims(node: Node, dims: Sequence[int], keep: bool, mixing_name: str) -> RuleOutput:
    """Layout and edge of a reduction over ``dims``."""
    kept = [(i, dim) for i, dim in enumerate(node.layout.dims) if i not in dims]
    if keep:
        layout = canonical_layout(
            node.layout.axes, [() if i in dims else dim for i, dim in enumerate(node.layout.dims)], parts=True
        )
        pairs: list[int | None] = [None if i in dims else i for i in range(len(node.shape))]
    else:
        layout = canonical_layout(node.layout.axes, [dim for _, dim in kept], parts=True)
        order = {i: position for position, (i, _) in enumerate(kept)}
        pairs = [order.get(i) for i in range(len(node.shape))]
    return RuleOutput(layout, (edge_between(layout, node, pairs),), mixing_name)


def mix_dims(node: Node, dims: Sequence[int], mixing_name: str) -> RuleOutput:
    """Layout and edge of an operation that keeps all positions and mixes along ``dims``."""
    pairs = [None if i in dims else i for i in range(len(node.shape))]
    return RuleOutput(node.layout, (edge_between(node.layout, node, pairs, keeps_positions=True),), mixing_name)


@rule("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax")
def softmax(call: Call) -> Answer:
    """Softmax along one dimension."""
    return mix_dims(call.live[0], dim_indices(call.args["dim"], len(call.shape)), "softmax over positions")


@rule("masked_fill")
def masking(call: Call) -> Answer:
    """Elementwise; scores of attention that a constant mask closes are not told from open ones, which is noted."""
    layout, edges = broadcast(call.live, call.shape)
    value = call.args["value"]
    if isinstance(value, (int, float)) and value <= CLOSED and call.live == (call.node("self"),):
        return RuleOutput(layout, (with_unknown_reads(edges[0]),))
    return RuleOutput(layout, edges)


def with_unknown_reads(edge: Edge) -> Edge:
    """An edge that keeps its positions, of which some may not be read."""
    reads = (read and read._replace(kind="unknown", keeps_positions=read.axis is not None) for read in edge.axis_reads)
    return edge._replace(reads=tuple(reads))


@rule("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
def running(call: Call) -> Answer:
    """Running sums read what lies before a position along their dimension."""
    node, dim = call.live[0], dim_index(call.args["dim"], len(call.shape) or 1)
    made = read_up_to(node, dim, f"{call.name} over positions") if call.shape else same(node)
    return [made or read_in_unknown_order(call, node, [dim], i) for i in range(len(call.shapes))]


def read_up_to(node: Node, dim: int, mixing_name: str) -> RuleOutput | None:
    """Layout and edge of an operation that keeps positions and reads those up to them along one dimension; None if it
    is not an axis."""
    axis = node.layout.full_axis(dim)
    if axis is None:
        return None if spatial(node.layout.dims[dim]) else mix_dims(node, [dim], mixing_name)
    edge = Edge(node, None).with_reads({axis: AxisRead(axis, Cumulative(node.layout.size_of(axis)), "global", True)})
    return RuleOutput(node.layout, (edge,), mixing_name)


@rule("sort", "argsort", "msort", "topk", "kthvalue", "mode")
def sorting(call: Call) -> Answer:
    """What is read along the dimension depends on the values, at every position of the others."""
    node = call.live[0]
    rank = len(node.shape)
    if not call.shape and rank:
        return depends_on_all(call)
    dim = 0 if call.name == "msort" else dim_index(call.args.get("dim", -1), rank)
    return [read_in_unknown_order(call, node, [dim], i) for i in range(len(call.shapes))]


def read_in_unknown_order(call: Call, node: Node, dims: Sequence[int], output: int = 0) -> RuleOutput:
    """An output that reads some dimensions of an input in ways not known, and keeps the positions of the others."""
    shape = call.shapes[output]
    gone = len(node.shape) - len(shape)
    if gone not in (0, len(dims)):
        return depends_on_all(call, output)
    made = reduce_dims(node, dims, gone == 0, call.name)
    edge, moved = made.edges[0], {f.axis for dim in dims for f in factors_of(node.layout.dims[dim])}
    layout = made.layout.with_dims({dim: other(shape[dim]) for dim in dims}) if not gone else made.layout
    return RuleOutput(layout, (edge.with_kind("unknown", moved),))


@rule(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm",
    "_batch_norm_with_update",
)
@rule("batch_norm", "_native_batch_norm_legit_functional", "_batch_norm_no_update", "miopen_batch_norm")
def batch_norm(call: Call) -> Answer:
    """Batch normalisation: with stored statistics elementwise, else by the statistics of the whole map."""
    node = call.live[0]
    still = "no_" in call.name or not call.args.get("training", "functional" in call.name or "update" in call.name)
    if len(call.live) > 1:
        return depends_on_all(call)
    return (
        same(node)
        if still
        else mix_dims(node, [0, *range(2, len(node.shape))], "batch or instance norm by the map's own statistics")
    )


@rule("native_group_norm", "group_norm")
def group_norm(call: Call) -> Answer:
    """Group normalisation reads a group of channels at all positions."""
    node = call.live[0]
    return depends_on_all(call) if len(call.live) > 1 else mix_dims(node, range(1, len(node.shape)), "group norm")


@rule("native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm")
def layer_norm(call: Call) -> Answer:
    """Layer and RMS normalisation over the last dimensions."""
    node = call.live[0]
    count = len(call.args["normalized_shape"])
    rank = len(node.shape)
    return (
        depends_on_all(call)
        if len(call.live) > 1
        else mix_dims(node, range(rank - count, rank), "layer norm over positions")
    )


@rule("glu")
def glu(call: Call) -> Answer:
    """Gated linear unit: one half of a dimension gates the other."""
    node = call.live[0]
    (dim,) = dim_indices(call.args["dim"], len(node.shape))
    if spatial(node.layout.dims[dim]):
        return depends_on_all(call)
    layout = canonical_layout(node.layout.axes, node.layout.with_dims({dim: other(call.shape[dim])}).dims)
    return RuleOutput(layout, (edge_between(layout, node, [None if i == dim else i for i in range(len(node.shape))]),))


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def fourier(call: Call) -> Answer:
    """A Fourier transform mixes its dimensions wholly; what comes out are frequencies, not positions."""
    node = call.live[0]
    dims = dim_indices(call.args["dim"], len(node.shape))
    layout = canonical_layout(node.layout.axes, node.layout.with_dims({i: other(call.shape[i]) for i in dims}).dims)
    if (call.name == "_fft_c2r" or call.args.get("forward") is False) and (
        source := _transform_input(node, call.shape, dims)
    ) is not None:
        # Back among positions, which are those that were transformed.
        axes = tuple(mine or theirs for mine, theirs in zip(layout.axes, source.layout.axes, strict=True))
        layout = AxisLayout(axes, layout.with_dims({i: source.layout.dims[i] for i in dims}).dims)
    edge = edge_between(layout, node, [None if i in dims else i for i in range(len(node.shape))])
    return RuleOutput(layout, (edge,), "Fourier transform")


def _transform_input(node: Node, shape: Sequence[int], dims: Sequence[int]) -> Node | None:
    """What was transformed along these dimensions where a tensor of frequencies was made from it alone; None if that is
    not found."""
    stack, seen, found = [node], {node}, set[Node]()
    while stack and len(seen) < FAR:
        here = stack.pop()
        for source in (edge.source for edge in here.edges):
            if here.name in ("_fft_r2c", "_fft_c2c") and all(
                source.layout.full_axis(i) is not None for i in dims if i < len(source.shape)
            ):
                found.add(source)
            elif source not in seen:
                seen.add(source)
                stack.append(source)
    fits = [each for each in found if len(each.shape) == len(shape) and all(each.shape[i] == shape[i] for i in dims)]
    return fits[0] if fits and len({tuple(each.layout.dims[i] for i in dims) for each in fits}) == 1 else None


#: Names under which a softmax runs: they tell softmax attention from a plain product.
SOFTMAX = frozenset(name for name, function in RULES.items() if function is softmax)

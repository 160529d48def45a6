"""Operations that only rearrange: views, permutations, copies."""

from __future__ import annotations

from erfscope.trf.axes.axis_layout import (
    AxisFactor,
    AxisLayout,
    canonical_layout,
    common_ends,
    factors_of,
    other,
    reshape_layout,
    spatial,
    subdivide,
)
from erfscope.trf.axes.factor_maps import Regrid
from erfscope.trf.axes.index_maps import Window
from erfscope.trf.edges.basic import broadcast, edge_between
from erfscope.trf.graph import AxisRead, Edge, Node, RuleOutput
from erfscope.trf.rules.registry import Answer, Call, depends_on_all, dim_index, rule, same


@rule(
    "alias",
    "detach",
    "clone",
    "_to_copy",
    "lift_fresh",
    "contiguous",
    "positive",
    "_conj",
    "resolve_conj",
    "resolve_neg",
    "native_dropout",
)
def identity(call: Call) -> Answer:
    """The same values."""
    return same(call.live[0])


@rule(
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "new_empty",
    "new_zeros",
    "new_ones",
)
@rule(
    "new_full",
    "new_empty_strided",
    "zero",
    "normal",
    "uniform",
    "bernoulli",
    "exponential",
    "sym_size",
    "sym_stride",
    "sym_numel",
)
def new_tensor(call: Call) -> Answer:
    """New tensors that take nothing but a shape from the input."""
    return None


@rule("copy")
def copy(call: Call) -> Answer:
    """``destination.copy_(source)``: only the source counts."""
    source = call.node("src")
    return None if source is None else RuleOutput(*broadcast([source], call.shape))


@rule("fill")
def fill(call: Call) -> Answer:
    """``tensor.fill_(value)``: only the value counts."""
    value = call.node("value")
    return None if value is None else RuleOutput(*broadcast([value], call.shape))


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "_reshape_copy")
def view(call: Call) -> Answer:
    """Splitting and merging dimensions."""
    node = call.live[0]
    if call.args.get("dtype") is not None:  # view(dtype) reinterprets bytes
        return depends_on_all(call)
    if call.shape == node.shape:
        return same(node)
    return _reshape_dims(call, node)


def _reshape_dims(call: Call, node: Node) -> Answer:
    reshaped = reshape_layout(node.layout, node.shape, call.shape)
    if reshaped is None:
        return _reshape_unknown(call, node)
    layout, ratios = subdivide(reshaped, call.images) if call.spatial else (reshaped, {})
    reads = tuple(
        None if axis is None else AxisRead(i, Regrid(axis.size, ratios.get(i, 1), 1))
        for i, axis in enumerate(node.layout.axes)
    )
    return RuleOutput(layout, (Edge(node, reads if ratios else None),))


def _reshape_unknown(call: Call, node: Node) -> RuleOutput:
    """A view that cuts through factors: what it does to them is not understood, but it does nothing to those in other
    dimensions."""
    head, tail = common_ends(node.shape, call.shape)
    last = len(node.shape) - tail
    middle = [other(n) for n in call.shape[head : len(call.shape) - tail]]
    layout = canonical_layout(node.layout.axes, (*node.layout.dims[:head], *middle, *node.layout.dims[last:]))
    shift = len(call.shape) - len(node.shape)
    edge = edge_between(
        layout, node, [i if i < head else i + shift if i >= last else None for i in range(len(node.shape))]
    )
    cut = {f.axis for dim in node.layout.dims[head:last] for f in factors_of(dim)}
    return RuleOutput(layout, (edge.with_kind("unknown", cut),))


@rule("squeeze", "unsqueeze", "flatten", "unflatten")
def squeeze(call: Call) -> Answer:
    """Adding and removing dimensions of size 1."""
    node = call.live[0]
    if call.name != "unsqueeze":
        return _reshape_dims(call, node)
    dim = dim_index(call.args["dim"], len(call.shape))
    return RuleOutput(node.layout.with_new_dim(dim), (Edge(node, None),))


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(call: Call) -> Answer:
    """Channels in another order."""
    node = call.live[0]
    return depends_on_all(call) if spatial(node.layout.dims[1]) else same(node)


@rule("permute", "permute_copy")
def permute(call: Call) -> Answer:
    """Dimensions in another order."""
    node = call.live[0]
    order = [dim_index(d, len(node.shape)) for d in call.args["dims"]]
    return RuleOutput(node.layout.permute(order), (Edge(node, None),))


@rule("transpose", "t", "swapaxes", "mT", "numpy_T")
def transpose(call: Call) -> Answer:
    """Two dimensions swapped."""
    node = call.live[0]
    rank = len(node.shape)
    order = list(range(rank))
    if rank >= 2:
        a, b = dim_index(call.args.get("dim0", 0), rank), dim_index(call.args.get("dim1", 1), rank)
        order[a], order[b] = order[b], order[a]
    return RuleOutput(node.layout.permute(order), (Edge(node, None),))


@rule("expand")
def expand(call: Call) -> Answer:
    """Repetition along dimensions of size 1."""
    return RuleOutput(*broadcast(call.live[:1], call.shape))


@rule("repeat")
def repeat(call: Call) -> Answer:
    """Tiling: the number of the tile is the outermost factor of its dimension."""
    node = call.live[0]
    lead = len(call.shape) - len(node.shape)
    dims = [other(n) for n in call.shape[:lead]]
    gone: set[int] = set()
    for i, dim in enumerate(node.layout.dims):
        times = call.args["repeats"][lead + i]
        if times == 1:
            dims.append(dim)
        elif all(isinstance(part, AxisFactor) for part in dim):
            dims.append((*other(times), *dim))
            gone.update(f.axis for f in factors_of(dim) if f.axis != -1 and node.layout.size_of(f.axis) == 1)
        else:
            return depends_on_all(call)
    axes = tuple(None if i in gone else axis for i, axis in enumerate(node.layout.axes))
    layout = AxisLayout(
        axes, tuple(tuple(f for f in dim if not isinstance(f, AxisFactor) or f.axis not in gone) for dim in dims)
    )
    return RuleOutput(layout, (tile_edge(layout, node, lead),))


def tile_edge(layout: AxisLayout, node: Node, lead: int) -> Edge:
    """Edge of tiling: every axis that is still there keeps its positions."""
    if all(axis is None or layout.axes[i] is not None for i, axis in enumerate(node.layout.axes)):
        return Edge(node, None)
    return edge_between(
        layout, node, [lead + i if layout.dims[lead + i] == dim else None for i, dim in enumerate(node.layout.dims)]
    )


@rule("view_as_real")
def view_as_real(call: Call) -> Answer:
    """A complex number becomes a last dimension of two."""
    node = call.live[0]
    return RuleOutput(node.layout.with_new_dim(len(node.shape), other(2)), (Edge(node, None),))


@rule("view_as_complex")
def view_as_complex(call: Call) -> Answer:
    """A last dimension of two becomes a complex number."""
    node = call.live[0]
    if any(f.axis != -1 for f in factors_of(node.layout.dims[-1])):
        return depends_on_all(call)
    return RuleOutput(node.layout.without_dim(len(node.shape) - 1), (Edge(node, None),))


@rule("as_strided")
def as_strided(call: Call) -> Answer:
    """Understood only where it restates the shape, as PyTorch does to mark a memory format after pooling to one
    cell."""
    node = call.live[0]
    if tuple(call.args["size"]) == node.shape and sum(n > 1 for n in node.shape) <= 1:
        return same(node)
    return depends_on_all(call)


@rule("unfold")
def unfold(call: Call) -> Answer:
    """``tensor.unfold``: windows along one axis, their cells in a new last dimension."""
    node = call.live[0]
    dim = dim_index(call.args["dimension"], len(node.shape))
    size, step = call.args["size"], call.args["step"]
    axis = node.layout.full_axis(dim)
    if axis is None:
        if any(f.axis != -1 for f in factors_of(node.layout.dims[dim])):
            return depends_on_all(call)
        layout = node.layout.with_dims({dim: other(call.shape[dim])}).with_new_dim(len(node.shape), other(size))
        return RuleOutput(layout, (Edge(node, None),))
    old = node.layout.axis(axis)
    windows = old.resample(call.shape[dim], scale=step, shift=(size - 1) / 2)
    layout = node.layout.with_axes({axis: windows}).with_dims({dim: (AxisFactor(axis, 1, call.shape[dim]),)})
    edge = Edge(node, None).with_reads({axis: AxisRead(axis, Window(old.size, size, step))})
    return RuleOutput(layout.with_new_dim(len(node.shape), other(size)), (edge,))

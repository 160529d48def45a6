"""Operations that mix positions: reductions, softmax, norms, running sums."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.trf.graph import Node
from erfscope.trf.place import other, settled, spatial
from erfscope.trf.relate import broadcast, related
from erfscope.trf.rules.table import RULES, Answer, Call, Made, lost, numbers, rule, same

REDUCTIONS = {
    "mean": "global average pooling",
    "sum": "sum over positions",
    "nansum": "sum over positions",
    "prod": "product over positions",
    "amax": "global max pooling",
    "amin": "global min pooling",
    "aminmax": "global min and max pooling",
    "max": "global max pooling",
    "min": "global min pooling",
    "median": "median over positions",
    "nanmedian": "median over positions",
    "argmax": "argmax over positions",
    "argmin": "argmin over positions",
    "var": "variance over positions",
    "std": "variance over positions",
    "var_mean": "variance over positions",
    "std_mean": "variance over positions",
    "linalg_vector_norm": "norm over positions",
    "norm": "norm over positions",
    "logsumexp": "logsumexp over positions",
    "all": "reduction over positions",
    "any": "reduction over positions",
    "count_nonzero": "reduction over positions",
}


@rule(*REDUCTIONS)
def reduction(call: Call) -> Answer:
    """Reductions over some or all dimensions."""
    node = call.live[0]
    if "other" in call.args:  # max(a, b), elementwise
        return Made(*broadcast(call.live, call.shape))
    asked = call.args.get("dim")
    if asked is None and "dim" not in call.args and call.shape != ():
        return lost(call)
    dims = numbers(asked, len(node.shape))
    made = reduced(node, dims, bool(call.args.get("keepdim")), REDUCTIONS[call.name])
    return [made] * len(call.shapes)


def reduced(node: Node, dims: Sequence[int], keep: bool, words: str) -> Made:
    """Place and edge of a reduction over ``dims``."""
    kept = [(i, dim) for i, dim in enumerate(node.place.dims) if i not in dims]
    if keep:
        place = settled(node.place.axes, [() if i in dims else dim for i, dim in enumerate(node.place.dims)])
        pairs: list[int | None] = [None if i in dims else i for i in range(len(node.shape))]
    else:
        place = settled(node.place.axes, [dim for _, dim in kept])
        order = {i: position for position, (i, _) in enumerate(kept)}
        pairs = [order.get(i) for i in range(len(node.shape))]
    return Made(place, (related(place, node, pairs),), words)


def blended(node: Node, dims: Sequence[int], words: str) -> Made:
    """Place and edge of an operation that keeps all positions and mixes along ``dims``."""
    pairs = [None if i in dims else i for i in range(len(node.shape))]
    return Made(node.place, (related(node.place, node, pairs, stays=True),), words)


@rule("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax")
def softmax(call: Call) -> Answer:
    """Softmax along one dimension."""
    return blended(call.live[0], numbers(call.args["dim"], len(call.shape)), "softmax over positions")


@rule("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "argsort", "msort", "renorm")
def running(call: Call) -> Answer:
    """Running sums and sorting mix along their dimension; which part is read depends on the position or the values."""
    node = call.live[0]
    dims = numbers(call.args.get("dim", -1), len(node.shape))
    made = blended(node, dims, f"{call.name} over positions")
    if all(step is None or step.kind == "local" for edge in made.edges for step in edge.steps or ()):
        return [made] * len(call.shapes)
    return lost(call)


@rule(
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "_batch_norm_with_update"
)
@rule("batch_norm", "_native_batch_norm_legit_functional", "_batch_norm_no_update", "miopen_batch_norm")
def batch_norm(call: Call) -> Answer:
    """Batch normalisation: with stored statistics elementwise, else by the statistics of the whole map."""
    node = call.live[0]
    still = "no_" in call.name or not call.args.get("training", "functional" in call.name or "update" in call.name)
    if len(call.live) > 1:
        return lost(call)
    return same(node) if still else blended(node, [0, *range(2, len(node.shape))], "batch or instance norm by the map's own statistics")


@rule("native_group_norm", "group_norm")
def group_norm(call: Call) -> Answer:
    """Group normalisation reads a group of channels at all positions."""
    node = call.live[0]
    return lost(call) if len(call.live) > 1 else blended(node, range(1, len(node.shape)), "group norm")


@rule("native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm")
def layer_norm(call: Call) -> Answer:
    """Layer and RMS normalisation over the last dimensions."""
    node = call.live[0]
    count = len(call.args["normalized_shape"])
    rank = len(node.shape)
    return lost(call) if len(call.live) > 1 else blended(node, range(rank - count, rank), "layer norm over positions")


@rule("glu")
def glu(call: Call) -> Answer:
    """Gated linear unit: one half of a dimension gates the other."""
    node = call.live[0]
    (dim,) = numbers(call.args["dim"], len(node.shape))
    if spatial(node.place.dims[dim]):
        return lost(call)
    place = settled(node.place.axes, node.place.with_dims({dim: other(call.shape[dim])}).dims)
    return Made(place, (related(place, node, [None if i == dim else i for i in range(len(node.shape))]),))


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def fourier(call: Call) -> Answer:
    """A Fourier transform mixes its dimensions wholly; what comes out are frequencies, not positions."""
    node = call.live[0]
    dims = numbers(call.args["dim"], len(node.shape))
    place = settled(node.place.axes, node.place.with_dims({i: other(call.shape[i]) for i in dims}).dims)
    return Made(place, (related(place, node, [None if i in dims else i for i in range(len(node.shape))]),), "Fourier transform")


#: Names under which a softmax runs: they tell softmax attention from a plain product.
SOFTMAX = frozenset(name for name, function in RULES.items() if function is softmax)

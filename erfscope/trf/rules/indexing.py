"""Index lists: their values are not known, so that along positions everything may be read."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from erfscope.trf.axes.axis_layout import AxisLayout, other, spatial
from erfscope.trf.axes.index_maps import IntArray
from erfscope.trf.edges.token_lists import pick_entries
from erfscope.trf.graph import Edge, RuleOutput
from erfscope.trf.rules.mixing import read_in_unknown_order
from erfscope.trf.rules.registry import Answer, Call, depends_on_all, dim_index, rule


@rule("index_select", "index")
def index(call: Call) -> Answer:
    """Picking by one list of indices: exact along a dimension without positions."""
    node = call.live[0]
    if len(call.live) > 1 or node is not call.args.get("self"):
        return depends_on_all(call)
    if call.name == "index_select":
        dim, lists = dim_index(call.args["dim"], len(node.shape)), 1
    else:
        given = call.args["indices"]
        used = [i for i, entry in enumerate(given) if entry is not None]
        if len(used) != 1 or "bool" in str(given[used[0]].dtype):
            return depends_on_all(call)
        dim, lists = used[0], given[used[0]].dim()
    if spatial(node.layout.dims[dim]):
        values = call.values.get(id(call.args["index"] if call.name == "index_select" else given[dim]))
        followed = None if values is None or lists != 1 else pick_entries(node, dim, _entries(values, node.shape[dim]))
        return followed or (read_in_unknown_order(call, node, [dim]) if lists == 1 else depends_on_all(call))
    new = [other(n) for n in call.shape[dim : dim + lists]]
    layout = AxisLayout(node.layout.axes, (*node.layout.dims[:dim], *new, *node.layout.dims[dim + 1 :]))
    return RuleOutput(layout, (Edge(node, None),))


def _entries(values: Tensor, size: int) -> IntArray:
    """Index numbers counted from the front."""
    found = values.numpy().astype(np.intp)
    return np.where(found < 0, found + size, found)


@rule("gather")
def gather(call: Call) -> Answer:
    """Picking along one dimension, by an index for every position of the others."""
    node, dim = call.live[0], dim_index(call.args["dim"], len(call.shape) or 1)
    constant = isinstance(call.args["index"], Tensor) and node is call.args["self"]
    others = all(n == m for i, (n, m) in enumerate(zip(node.shape, call.shape, strict=True)) if i != dim)
    return read_in_unknown_order(call, node, [dim]) if constant and others and call.shape else depends_on_all(call)

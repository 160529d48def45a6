"""Recurrent layers."""

from __future__ import annotations

from erfscope.trf.axes.axis_layout import canonical_layout, other
from erfscope.trf.edges.basic import edge_between
from erfscope.trf.graph import Node, RuleOutput
from erfscope.trf.rules.mixing import read_up_to
from erfscope.trf.rules.registry import Answer, Call, depends_on_all, rule

LAYERS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


@rule(*LAYERS)
def recurrent(call: Call) -> Answer:
    """A recurrent layer over (L, B, C), or (B, L, C): an output reads what lies before it, or all where both directions
    are read."""
    node = call.node("input")
    if node is None or len(call.live) > 1 or len(node.shape) != 3:
        return [depends_on_all(call, i) for i in range(len(call.shapes))]
    along, across = (1, 0) if call.args["batch_first"] else (0, 1)
    mixing_name = f"{LAYERS[call.name]} over positions"
    made = None if call.args["bidirectional"] else read_up_to(node, along, mixing_name)
    pairs = [None if i == along else i for i in range(2)]
    layout = canonical_layout(node.layout.axes, (*node.layout.dims[:2], other(call.shape[2])))
    edge = edge_between(layout, node, [*pairs, None], keeps_positions=True)
    if made is not None and edge.reads is not None and made.edges[0].reads is not None:
        number = node.layout.full_axis(along)
        running = made.edges[0].reads
        edge = edge._replace(reads=tuple(running[i] if i == number else read for i, read in enumerate(edge.reads)))
    return [
        RuleOutput(layout, (edge,), mixing_name),
        *(_last(call, node, across, i, mixing_name) for i in range(1, len(call.shapes))),
    ]


def _last(call: Call, node: Node, across: int, output: int, mixing_name: str) -> RuleOutput:
    """The state after the last step: (layers, B, C)."""
    count, _, width = call.shapes[output]
    layout = canonical_layout(node.layout.axes, (other(count), node.layout.dims[across], other(width)))
    return RuleOutput(
        layout, (edge_between(layout, node, [1 if i == across else None for i in range(3)]),), mixing_name
    )

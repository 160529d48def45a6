"""Where units stand, against what is stated by hand of nets made to mislead, and against places put into the input."""

import re

import adversarial_maps  # noqa: F401  (each of the three fills the table)
import adversarial_others  # noqa: F401
import adversarial_tokens  # noqa: F401
import pytest
import torch
from adversarial_nets import NETS
from oracle import FIRST, Net, Seen

from erfscope.core.graph.field import Fields
from erfscope.core.graph.graph import Numbers
from erfscope.core.graph.positions import GraphPositions
from erfscope.core.graph.record import RecordingError, record
from erfscope.core.system.containers import tensors_of

#: Nets whose operations do not show the positions of units, so that they are read by their shape, with a finding.
OPEN = {"columns_sorted_by_brightness", "rows_sheared_by_a_view", "channels_and_columns_swapped", "sorted_over_columns"}
OPEN |= {
    "identity_flow",
    "shifting_flow",
    "predicted_flow",
    "spatial_transformer",
    "flow_that_turns_by_half",
}
OPEN |= {"flow_that_zooms", "two_scales_in_one_sequence", "filter_in_frequencies"}
OPEN |= {"turned_by_a_quarter", "channels_folded_into_columns"}
#: Tokens in other orders than row by row, which are no map.
OPEN |= {"class_token_in_the_middle", "any_order_behind_a_class_token", "window_by_window"}
#: Nets that the graph cannot hold, or that leave PyTorch.
OUTSIDE = {
    "checkpointed",
    "function_with_another_gradient",
    "tensors_of_another_class",
    "holds_a_lock",
    "gradients_that_meet",
}
STATED = [net for net in NETS if net.expected in ("right", "either") and net.positions and net.name not in OUTSIDE]


def tensor_of(graph, layer):
    """The node of a layer's output, or of the item of it that its name ends in."""
    name, *keys = re.split(r"[\[\]]+", layer.rstrip("]"))
    return graph.marks["" if name == "output" else name].outputs[
        tuple(int(key) if key.isdigit() else key for key in keys)
    ]


def output_of(module, x, layer):
    name, *keys = re.split(r"[\[\]]+", layer.rstrip("]"))
    found = []
    handle = (module if name == "output" else module.get_submodule(name)).register_forward_hook(
        lambda _, args, out: found.append(out)
    )
    with torch.no_grad():
        module(x)
    handle.remove()
    (out,) = found[-1:]
    for key in keys:
        out = out[int(key) if isinstance(out, list | tuple) else key]
    return out


def positions_of(net, module, x):
    try:
        graph = record(module, (x,))
    except RecordingError as error:
        pytest.skip(str(error))
    return graph, GraphPositions(graph, Numbers(graph, tensors_of(module)))


@pytest.mark.slow
@pytest.mark.parametrize("net", STATED, ids=lambda net: net.name)
def test_units_stand_where_it_is_stated(net):
    module = net.build()
    x = torch.randn(2, net.channels, *net.size, dtype=getattr(torch, net.dtype))
    graph, positions = positions_of(net, module, x)
    fields = Fields(positions, positions.image, FIRST)
    for stated in net.positions:
        node = tensor_of(graph, stated.layer)
        layout = positions.reading(node).layout
        if net.name in OPEN:
            continue
        assert layout is not None
        raw = output_of(module, x, stated.layer)
        held = layout.to_map(raw)
        grid = tuple(held.shape[2:])
        units = [tuple(unit) for unit in torch.cartesian_prod(*map(torch.arange, grid)).reshape(-1, len(grid)).tolist()]
        for unit in units[:: max(1, len(units) // 20)]:
            center, inexact_reason = fields.centers(node, layout, unit)
            off = {u: max(abs(a - b) for a, b in zip(stated.centre(u), center, strict=True)) for u in stated.units()}
            there = [u for u in off if off[u] <= stated.slack and torch.equal(stated.pick(raw, u), held[(..., *unit)])]
            assert there, (unit, center, min(off, key=off.get))
            assert net.expected == "either" or not (stated.exact is True and inexact_reason), inexact_reason
            assert inexact_reason or stated.exact is not False


NOWHERE = [net for net in NETS if net.expected == "refused" and not net.positions]


@pytest.mark.parametrize("net", NOWHERE, ids=lambda net: net.name)
def test_queries_and_what_is_pooled_stand_nowhere(net):
    module = net.build()
    graph, positions = positions_of(
        net, module, torch.randn(2, net.channels, *net.size, dtype=getattr(torch, net.dtype))
    )
    assert all(positions.reading(node).layout is None for node in graph.marks[""].outputs.values())


#: What depends on a branch flows through no operation.
UNSEEN = {"branch_by_the_brightness_of_the_batch"}
MIXING = [net for net in NETS if net.mixes_batch and net.name not in UNSEEN]


@pytest.mark.parametrize("net", MIXING, ids=lambda net: net.name)
def test_what_mixes_the_images_of_a_batch_is_named(net):
    module = net.build()
    graph, positions = positions_of(
        net, module, torch.randn(2, net.channels, *net.size, dtype=getattr(torch, net.dtype))
    )
    batch = Fields(positions, positions.image, FIRST, axes=(len(net.size),))
    assert all(batch.mixes_batch(node) for node in graph.marks[""].outputs.values())


def test_images_of_a_batch_that_do_not_meet_are_not_said_to():
    net = Net(lambda n, x: n.a(x).flatten(2).transpose(1, 2).softmax(1), a=torch.nn.Conv2d(2, 3, 3))
    seen = Seen(net, (8, 9))
    assert Fields(seen.positions, seen.positions.image, FIRST, axes=(2,)).mixes_batch(seen.node) == ""

"""Every rule's second half: a part of a net computed from the parts that it needs is that part of the whole."""

import nets.parts  # noqa: F401  (fills the table)
import numpy as np
import pytest
import torch
from nets import NETS
from operations import OPERATIONS, RecordedOperation
from oracle import Seen

from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.rules.parts import PartValues, cut, plan_step, union, whole


def computed(graph, numbers, node, part, x):
    """The part of a node, by the rules alone."""
    (image,) = graph.inputs
    asked, steps = {node: part}, []
    for each in reversed(graph.nodes):
        if each in asked and each.op == "call_function" and each in graph.live:
            steps.insert(0, plan_step(each, asked[each], numbers))
            asked[each] = steps[0].part
            for source, wanted in steps[0].needed.items():
                asked[source] = union(asked.get(source), wanted)
    values = {image: cut(x, whole(x.shape), asked[image])} if image in asked else {}
    for step in steps:

        def value_of(source, step=step):
            have, at = (
                (values[source], asked[source]) if source in values else (numbers(source), whole(shape_of(source)))
            )
            return cut(have, at, step.needed[source]) if source in step.needed else have

        values[step.node] = step.run(step, PartValues(value_of, x.device))
    return cut(values[node], asked[node], part)


def check_parts(graph, numbers, node, x, full, units=2):
    generator = np.random.default_rng(0)
    for _ in range(units):
        part = tuple(np.sort(generator.choice(side, max(1, side // 3), replace=False)) for side in full.shape)
        with torch.no_grad():
            found = computed(graph, numbers, node, part, x)
        torch.testing.assert_close(found, cut(full, whole(full.shape), part), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("net", [net for net in NETS if net.kind == "part"], ids=lambda net: net.name)
def test_a_part_is_that_part_of_the_whole(net):
    seen = Seen(net.build(), net.size)
    x = torch.randn(2, 2, *net.size, dtype=torch.float64)
    with torch.no_grad():
        full = seen.module(x)
    check_parts(seen.graph, seen.positions.numbers, seen.node, x, full)


@pytest.mark.parametrize("name", OPERATIONS)
def test_so_it_is_of_every_operation_on_a_random_shape(name):
    recorded = RecordedOperation(name, 0)
    full = recorded.forward(recorded.x)
    check_parts(recorded.graph, recorded.numbers, recorded.node, recorded.x, full, units=4)

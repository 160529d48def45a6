"""Every rule's second half: a part of a net computed from the parts that it needs is that part of the whole."""

import numpy as np
import pytest
import torch
from nets import CASES, OPERATIONS, REARRANGED, RecordedOperation, parts
from oracle import Net, Seen

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


def check_parts_of_net(module, space):
    seen = Seen(module, space)
    x = torch.randn(2, 2, *space, dtype=torch.float64)
    with torch.no_grad():
        full = seen.module(x)
    check_parts(seen.graph, seen.positions.numbers, seen.node, x, full)


@pytest.mark.parametrize("name", CASES)
def test_a_part_is_that_part_of_the_whole(name):
    check_parts_of_net(*CASES[name])


@pytest.mark.parametrize("name", REARRANGED)
def test_so_it_is_in_windows_and_lists(name):
    check_parts_of_net(Net(REARRANGED[name], **parts()), (12, 15))


@pytest.mark.parametrize("name", OPERATIONS)
def test_so_it_is_of_every_operation_on_a_random_shape(name):
    recorded = RecordedOperation(name, 0)
    full = recorded.forward(recorded.x)
    check_parts(recorded.graph, recorded.numbers, recorded.node, recorded.x, full, units=4)

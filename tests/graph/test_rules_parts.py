"""Every rule's second half: a part of a net computed from the parts that it needs is that part of the whole."""

import numpy as np
import pytest
import torch
from nets import CASES, REARRANGED, parts
from oracle import Net, Seen

from erfscope.graph.rules.parts import Parts, cut, made, needs, run, united, whole
from erfscope.graph.rules.reading import call_of, edges_of, is_tensor, shape_of


def computed(seen, node, part, x):
    """The part of a node, and the parts of all others that were needed, by the rules alone."""
    graph, numbers = seen.graph, seen.positions.numbers
    asked, edges, calls = {node: part}, {}, {}
    for each in reversed(graph.nodes):
        if each not in asked or each.op != "call_function" or each not in graph.live or not is_tensor(each):
            continue
        call = calls[each] = call_of(each, numbers)
        edges[each] = edges_of(each, numbers)
        asked[each] = made(call, edges[each], asked[each])
        for source, wanted in needs(call, edges[each], asked[each]).items():
            asked[source] = united(asked.get(source), wanted)
    image = seen.positions.image
    values = {image: cut(x, whole(x.shape), asked[image])}
    for each in graph.nodes:
        if each in calls:
            wanted = needs(calls[each], edges[each], asked[each])
            tensors = {}
            for source, part_ in wanted.items():
                held = (
                    (values[source], asked[source]) if source in values else (numbers(source), whole(shape_of(source)))
                )
                tensors[source] = cut(*held, part_)
            values[each] = run(
                calls[each],
                edges[each],
                asked[each],
                Parts(wanted, lambda n, t=tensors: t[n] if n in t else numbers(n)),
            )
    return cut(values[node], asked[node], part), asked[image]


def check_parts(module, space, units=2):
    seen = Seen(module, space)
    x = torch.randn(2, 2, *space, dtype=torch.float64)
    with torch.no_grad():
        full = seen.module(x)
    generator = np.random.default_rng(0)
    for _ in range(units):
        part = tuple(np.sort(generator.choice(side, max(1, side // 3), replace=False)) for side in full.shape)
        with torch.no_grad():
            found, _ = computed(seen, seen.node, part, x)
        torch.testing.assert_close(found, cut(full, whole(full.shape), part), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_part_is_that_part_of_the_whole(name):
    check_parts(*CASES[name])


@pytest.mark.parametrize("name", REARRANGED)
def test_so_it_is_in_windows_and_lists(name):
    check_parts(Net(REARRANGED[name], **parts()), (12, 15))

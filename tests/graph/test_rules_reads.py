"""What a rule says that one element of an output reads is what has a derivative, by brute force on random shapes."""

import operator

import numpy as np
import pytest
import torch
from nets import Does
from operations import OPERATIONS, RecordedOperation

from erfscope.core.graph.record import record
from erfscope.core.graph.rules.parts import parts_along, plan_step, union
from erfscope.core.graph.rules.reading import edges_of


def reads(recorded, element):
    """The indices of the input along each dimension that an element of the output needs, by the rules alone."""
    graph, found = recorded.graph, {recorded.node: tuple(np.array([index]) for index in element)}
    for each in reversed(graph.nodes):
        if each in found and each.op == "call_function" and each in graph.live:
            edges = edges_of(each, recorded.numbers)
            assert all(not edge.inexact for edge in edges)
            for edge in edges:
                if (parts := parts_along(edge, found[each])) is not None:
                    found[edge.source] = union(found.get(edge.source), parts[0])
    return [set(part.tolist()) for part in found[graph.inputs[0]]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_element_reads_what_it_has_a_derivative_by(name, seed):
    recorded = RecordedOperation(name, seed)
    x = recorded.x.requires_grad_()
    y = recorded.forward(x)
    for flat in recorded.random.sample(range(y.numel()), min(4, y.numel())):
        element = np.unravel_index(flat, tuple(y.shape))
        (gradient,) = torch.autograd.grad(y[tuple(map(int, element))], x, retain_graph=True, materialize_grads=True)
        if not gradient.any():
            continue
        seen = [set(np.unique(indices).tolist()) for indices in np.nonzero(gradient.numpy())]
        assert reads(recorded, element) == seen, (x.shape, element)


def test_what_has_no_rule_needs_its_inputs_whole():
    module = Does(lambda _, x: torch.linalg.inv(x + torch.eye(3, dtype=x.dtype)))
    graph = record(module, (torch.rand(2, 3, 3, dtype=torch.float64),))
    (node,) = graph.marks[""].outputs.values()
    while node.target is operator.getitem:
        node = node.args[0]
    assert edges_of(node)
    assert all(edge.inexact for edge in edges_of(node))
    (part,) = plan_step(node, tuple(np.array([0]) for _ in range(3)), lambda _: None).needed.values()
    assert [len(indices) for indices in part] == [2, 3, 3]

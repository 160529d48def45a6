"""GATv2's gradients: closed forms against autograd, the printed form that is wrong, and nodes that send the target
weights nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from erfscope import studies
from erfscope.apps.lab.studies.graph_attention import gatv2_gradients
from erfscope.apps.lab.studies.graph_attention.gatv2_gradients import regular_graph


@pytest.fixture(scope="module")
def found() -> studies.StudyResult:
    return studies.run("gatv2-gradients", effort="smoke")


@pytest.mark.slow
def test_closed_forms_equal_autograd_and_the_printed_one_for_one_channel_and_shares_of_dead_nodes_agree(
    found, check_shown
):
    assert max(max(row.error_gradients, row.error_jacobian) for row in found) < 1e-10
    assert found.passed
    assert max(row.error_printed for row in found if row.width == 1) < 1e-12
    assert min(row.error_printed for row in found if row.width > 1 and row.neighbours > 1) > 0.01
    assert [row.dead for row in found] == [row.dead_autograd for row in found]
    assert [row.dead for row in found if row.neighbours == 1] == [1.0, 1.0, 1.0]
    for width in (1, 2, 8):
        shares = [row.dead for row in found if row.width == width]
        assert shares == sorted(shares, reverse=True)
    # Eight channels and eight neighbours that all agree are one chance in many thousands.
    assert found["8 neighbours, 8 channels"].dead < 0.05
    check_shown(found)


def test_nodes_are_compared_and_not_their_number_and_graphs_are_regular():
    # One dead node each, but not the same: the shares agree, and the row fails.
    one, other = np.zeros((4, 2), dtype=bool), np.zeros((4, 2), dtype=bool)
    one[0, 0] = other[1, 0] = True
    graph = {"gradients": 0.0, "jacobian": 0.0, "printed": 0.0, "dead": one, "dead_autograd": other}
    row = gatv2_gradients._row(2, 1, [graph, graph])
    assert row.dead == row.dead_autograd == 1 / 8
    assert (row.differing, row.pairs, row.passed) == (4, 16, False)
    assert gatv2_gradients._row(2, 1, [graph | {"dead_autograd": one}] * 2).passed
    graph = regular_graph(9, 4, torch.Generator().manual_seed(1))
    assert graph.sum(1).tolist() == [4.0] * 9
    assert graph.diagonal().tolist() == [1.0] * 9

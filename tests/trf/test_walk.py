"""Walks that go on with what earlier ones found, and runs of cells that are computed by their ends, against the plain
computation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import erfscope.adapters
from erfscope.engine.model import LoadedModel
from erfscope.trf.axes.factor_maps import Regrid
from erfscope.trf.axes.index_maps import IndexSet, Window, distinct, preimage, single, union
from erfscope.trf.walk import Region, Tails, trace_back


def spans(region):
    """A region in values that can be compared."""
    return region and (
        region.extra_tokens,
        [s and (s.unbounded.tolist(), s.in_bounds.tolist(), s.whole) for s in region.spans],
    )


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
@pytest.mark.parametrize("left_out", [(), ("global", "window")])
def test_a_walk_that_goes_on_with_an_earlier_one_finds_the_same(name, left_out):
    nodes = LoadedModel(adapter=erfscope.adapters.load(name, weights="none"), label=name).recording._nodes
    tails, shared = Tails(), 0
    for start, cell in itertools.product(nodes, (0, 1)):
        region = Region(tuple(None if axis is None else single(min(cell, axis.size - 1)) for axis in start.layout.axes))
        plain = trace_back(start, region, nodes[0], None, left_out)
        known = len(tails._known)
        found = trace_back(start, region, nodes[0], None, left_out, tails=tails)
        shared += len(tails._known) == known
        assert spans(found.region) == spans(plain.region)
        for field in ("mixers", "windows", "unknown", "displacing", "ends", "passed", "met"):
            assert getattr(found, field) == getattr(plain, field), field
    assert shared


MAPS = [Window(40, k, s, p, d) for k, s, p, d in itertools.product((1, 2, 3, 7), (1, 2, 4), (0, 1, 5), (1, 2))]
MAPS += [Regrid(40, over, under) for over, under in itertools.product((1, 2, 7), repeat=2)]
CELLS = [[], [0], [5], [-3, -2, -1], [*range(-4, 60)], [0, 2, 4], [1, 2, 7]]


@pytest.mark.parametrize("cells", CELLS, ids=str)
def test_runs_of_cells_are_those_that_are_computed_one_by_one(cells):
    given = np.array(cells, dtype=np.intp)
    for index_map in MAPS:
        found = preimage(index_map, IndexSet(given, given))
        assert found.unbounded.tolist() == distinct(index_map(given)).tolist(), index_map
        assert found.in_bounds.tolist() == distinct(index_map.in_bounds(given)).tolist(), index_map


def test_a_union_holds_the_cells_of_both():
    for one, other in itertools.product(CELLS, repeat=2):
        a, b = np.array(one, dtype=np.intp), np.array(other, dtype=np.intp)
        found = union(IndexSet(a, b), IndexSet(b, a))
        assert found.unbounded.tolist() == found.in_bounds.tolist() == sorted({*one, *other})

"""Any layout of any tensor: to the map (B, C, *space) and back is the identity, and units are where they should be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from erfscope.core.values.layout import Layout

sides = st.integers(1, 4)


@st.composite
def held_maps(draw: st.DrawFn) -> tuple[Tensor, Layout, tuple[int, ...]]:
    """A tensor of different numbers, the layout of the map in it, and the map's spatial size."""
    space = tuple(draw(st.lists(sides, min_size=1, max_size=3)))
    are_tokens = draw(st.booleans())
    prefix, suffix = (draw(st.integers(0, 3)) if are_tokens else 0 for _ in range(2))
    along = (prefix + math.prod(space) + suffix,) if are_tokens else space
    lengths = [draw(sides), *along, *draw(st.lists(sides, max_size=2))]
    places = draw(st.permutations(range(len(lengths))))
    shape = [lengths[places.index(dim)] for dim in range(len(lengths))]
    dims = tuple(places[1 : 1 + len(along)])
    is_default = places[0] == 0 and not are_tokens and dims == tuple(range(2, len(lengths)))
    grid = space if are_tokens else ()
    layout = Layout(dims=() if is_default else dims, batch_dim=places[0], grid=grid, prefix=prefix, suffix=suffix)
    return torch.arange(1.0, 1 + math.prod(shape)).reshape(shape), layout, space


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(held_maps())
def test_a_tensor_is_the_same_after_the_way_to_the_map_and_back(case: tuple[Tensor, Layout, tuple[int, ...]]) -> None:
    tensor, layout, space = case
    values = layout.to_map(tensor)
    assert tuple(values.shape) == layout.map_shape(tensor.shape)
    assert tuple(values.shape[2:]) == layout.space(tensor.shape) == space
    assert torch.equal(layout.from_map(values, tensor), tensor)
    assert torch.equal(layout.to_map(layout.from_map(-values, tensor)), -values)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(held_maps(), st.data())
def test_a_unit_is_at_its_place_in_the_tensor_and_the_place_is_the_units(
    case: tuple[Tensor, Layout, tuple[int, ...]], data: st.DataObject
) -> None:
    tensor, layout, space = case
    unit = tuple(data.draw(st.integers(0, side - 1)) for side in space)
    box = np.ix_(*layout.unit_box(tensor.shape, unit))
    marked = torch.zeros_like(tensor)
    marked[box] = 1
    of_unit = torch.zeros(layout.map_shape(tensor.shape))
    of_unit[(..., *unit)] = 1
    assert torch.equal(layout.to_map(marked), of_unit)
    assert torch.equal(layout.from_map(of_unit, torch.zeros_like(tensor)), marked)
    assert set(tensor[box].flatten().tolist()) == set(layout.to_map(tensor)[(..., *unit)].flatten().tolist())

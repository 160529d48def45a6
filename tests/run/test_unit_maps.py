"""Maps of many units of one layer: each is the one that is measured alone, in the passes that were told before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope.core import OpenModel, Request, open_images, open_model, unit_maps

pytestmark = pytest.mark.usefixtures("memory_unplanned")

OPTIONS = {"input_size": (12, 10), "dtype": "float64", "draws": 2, "seed": 3, "samples": 1}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 2, stride=2)).eval()


@pytest.fixture
def model() -> Iterator[OpenModel]:
    with open_model(net(), Request.parse(OPTIONS)) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize(("convention", "wrt"), [("jacobian", "image"), ("signed", "image"), ("energy", "0")])
def test_each_map_is_that_of_the_unit_alone(model, convention, wrt):
    request = Request.parse({**OPTIONS, "convention": convention})
    maps = unit_maps(model, model.site("2", wrt), open_images(request, model), request, along=[[0, 4], [1, 2]])
    found = dict(maps)
    assert [unit.index for unit in maps.every.units] == [(0, 1), (0, 2), (4, 1), (4, 2)]
    assert sorted(found) == [0, 1, 2, 3]
    for number, erf in found.items():
        index = maps.every.units[number].index
        alone = erfscope.analyze(net(), unit=index, layer="2", wrt=wrt, convention=convention, **OPTIONS).map
        np.testing.assert_allclose(erf.values, alone.values, rtol=0, atol=1e-12)
        assert (erf.center_px, erf.stride_px, erf.cell_px) == (alone.center_px, alone.stride_px, alone.cell_px)
        assert (erf.axes, erf.scale) == (alone.axes, alone.scale)
        np.testing.assert_array_equal(maps.result(index).map.values, alone.values)


@pytest.mark.parametrize(("plain", "passes"), [(False, 1), (True, 4)])
def test_all_units_are_taken_and_those_apart_share_passes(model, plain, passes):
    request = Request.parse({**OPTIONS, "draws": 1, "plain": plain})
    maps = unit_maps(model, model.site("2"), open_images(request, model), request)
    assert len(maps.every.units) == 6 * 5
    # Fields are 4 wide and 2 apart. All have parts of their own; of whole images two overlap along each axis.
    assert maps.passes == passes
    assert maps.conditions.map is None
    assert maps.conditions.layer == "2"


def test_all_channels_take_a_pass_each(model):
    request = Request.parse({**OPTIONS, "draws": "all"})
    maps = unit_maps(model, model.site("2"), open_images(request, model), request, along=[[0], [0]])
    assert maps.passes == 3

"""The projective field: forward-mode derivatives against the whole Jacobian, and against the units' maps transposed."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from oracle import contributions_of
from test_explorer import LAYERS, SIZE, net
from torch import nn
from torchvision.models import VisionTransformer

from erfscope import CONVENTIONS
from erfscope.core import MeasurementError, OpenModel, Unit, open_model, projective_fields
from erfscope.core.answer.convention import random_signs
from erfscope.core.run.attribution import ModelForward, Question

pytestmark = pytest.mark.usefixtures("memory_unplanned")


def loaded(model: str | nn.Module, size: tuple[int, int], dtype: str = "float64") -> OpenModel:
    return open_model(model, dtype=dtype, input_size=size, weights="random" if isinstance(model, str) else "auto")


def vision_transformer() -> nn.Module:
    torch.manual_seed(0)
    return VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=8).eval()


def image(size: tuple[int, int]) -> torch.Tensor:
    return torch.rand((1, 3, *size), dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def jacobians() -> dict[str, torch.Tensor]:
    """Of each layer (C, h, w, C_in, H, W)."""
    model = net().double().requires_grad_(False)
    functions = {"near": model.near, "far": lambda x: model.far(model.near(x)), "output": model}
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return {name: torch.func.jacfwd(each)(image(SIZE))[0, ..., 0, :, :, :] for name, each in functions.items()}


@pytest.mark.slow
@pytest.mark.parametrize("draws", [1, 3])
def test_a_box_moves_units_as_the_whole_jacobian_says(jacobians, draws):
    box = ((5, 9), (10, 17))
    found = projective_fields(loaded(net(), SIZE), image(SIZE), box, LAYERS, draws=draws, seed=4)
    signs = torch.stack([random_signs(28, seed=4, image=0, draw=draw) for draw in range(draws)])
    for name, jacobian in jacobians.items():
        part = jacobian[..., 5:9, 10:17].flatten(-2)
        expected = torch.einsum("chwsp,dp->dchws", part, signs).square().sum((1, 4)).mean(0).sqrt()
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-9 * expected.max())


@pytest.mark.slow
def test_draws_of_signs_converge_to_the_sum_over_pixels(jacobians):
    found = projective_fields(loaded(net(), SIZE), image(SIZE), ((5, 7), (10, 12)), LAYERS, draws=400)
    for name, jacobian in jacobians.items():
        expected = jacobian[..., 5:7, 10:12].square().sum((0, 3, 4, 5)).sqrt().numpy()
        np.testing.assert_allclose(found[name], expected, atol=6 / math.sqrt(400) * expected.max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "size", "layers"),
    [
        (net(), SIZE, LAYERS),
        ("test_resnet", (64, 64), ["layer1", "layer4"]),
        # Attention that timm fuses, and PyTorch's own module with its fast path.
        ("test_vit", (64, 64), ["blocks.2", "blocks.5"]),
        (vision_transformer(), (32, 32), ["encoder.layers.encoder_layer_1"]),
    ],
)
def test_a_pixel_moves_units_as_much_as_their_maps_have_there(model, size, layers):
    given, x, (row, col) = loaded(model, size), image(size), (size[0] // 2 + 1, size[1] // 3)
    found = projective_fields(given, x, ((row, row + 1), (col, col + 1)), layers, draws=5)
    for layer in layers:
        site = given.site(layer)
        space = site.space
        there = row * space[0] // size[0], col * space[1] // size[1]
        units = [Unit(index=index) for index in (there, (0, 0), (space[0] - 1, space[1] // 2))]
        question = Question(site=site, units=units, convention=CONVENTIONS["energy"], draws="all")
        forward = ModelForward(given.adapter, question)
        maps = [draw.maps[0] for (draw,) in contributions_of(forward, x, question, [0])]
        expected = [float(each[row, col].sqrt()) for each in maps]
        assert found[layer].shape == space
        assert max(expected) > 0
        np.testing.assert_allclose([found[layer][unit.index] for unit in units], expected, rtol=1e-6, atol=1e-12)


def test_an_operation_without_a_forward_derivative_is_refused_in_one_line():
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x):
            y = x.permute(0, 2, 3, 1)
            return self.rows(y.flatten(0, 1))[0].unflatten(0, y.shape[:2]).permute(0, 3, 1, 2)

    before = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(MeasurementError, match=r"^Rows has an operation without a forward derivative: .*rnn") as error:
        projective_fields(loaded(Rows().eval(), (8, 8), "float32"), image((8, 8)).float(), ((0, 1), (0, 1)), ["output"])
    assert "\n" not in str(error.value)
    assert torch.backends.mha.get_fastpath_enabled() is before

"""Attention in windows that are rolled over the border: exact on tiles where a mask shuts it between opposite sides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.swin_transformer import SwinTransformerBlock
from torchvision.ops import Permute

import erfscope

SIDE, WINDOW, SHIFT = 32, 4, 2


class ShiftedWindows(nn.Module):
    """Two blocks of Swin along one axis, the second one shifted, between two convolutions."""

    def __init__(self, shut: float) -> None:
        super().__init__()
        self.shut = shut
        self.before, self.after = (nn.Conv1d(1, 2, 3, padding=1), nn.Conv1d(2, 1, 3, padding=1))
        self.bias = nn.Parameter(torch.randn(WINDOW, WINDOW))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.attend(self.before(x).transpose(1, 2), 0)
        count = tokens.shape[1] // WINDOW
        side = (torch.arange(count * WINDOW) >= count * WINDOW - SHIFT).to(x.dtype).reshape(count, WINDOW)
        mask = (side[:, :, None] != side[:, None]).to(x.dtype) * self.shut
        return self.after(self.attend(tokens.roll(-SHIFT, 1), mask).roll(SHIFT, 1).transpose(1, 2))

    def attend(self, tokens: Tensor, mask: Tensor | int) -> Tensor:
        windows = tokens.reshape(len(tokens), -1, WINDOW, 2).reshape(-1, WINDOW, 2)
        scores = windows @ windows.transpose(1, 2) + self.bias
        scores = (scores.reshape(len(tokens), -1, WINDOW, WINDOW) + mask).reshape(-1, WINDOW, WINDOW)
        return (scores.softmax(-1) @ windows).reshape(tokens.shape)


def assert_exact(net: nn.Module, plan: erfscope.TilePlan, *size: int) -> None:
    """Tiled equals whole."""
    assert plan.possible, plan.blockers
    x = torch.randn(1, 1, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(erfscope.run_tiled(net, x, plan), net(x), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_tiles_of_masked_shifted_windows_equal_the_whole_image() -> None:
    net = ShiftedWindows(-100.0).double().eval()
    plan = erfscope.tile(net, 8, in_chans=1, input_size=(SIDE,), image_size=(64,))
    assert plan.alignment == (WINDOW,)
    assert plan.halo == ((5, 5),)  # a window, and one cell of the first convolution
    assert_exact(net, plan, 64)


@pytest.mark.slow
def test_blocks_of_torchvision_which_write_their_mask_in_place_are_exact_on_tiles() -> None:
    blocks = [SwinTransformerBlock(4, 1, [4, 4], [shift, shift], stochastic_depth_prob=0.0) for shift in (0, 2)]
    net = nn.Sequential(nn.Conv2d(1, 4, 1), Permute([0, 2, 3, 1]), *blocks, Permute([0, 3, 1, 2])).double().eval()
    plan = erfscope.tile(net, 16, in_chans=1, input_size=32, image_size=64)
    assert plan.halo == ((4, 4), (4, 4))  # half a window, rounded to a whole one by the windows before
    assert_exact(net, plan, 64, 64)


@pytest.mark.slow
def test_masks_that_a_spec_holds_in_buffers_are_known() -> None:
    small = {"embed_dim": 6, "depths": (2,), "num_heads": (1,)}
    plan = erfscope.tile("swin_tiny_patch4_window7_224", 28, layer="layers.0", model_kwargs=small)
    assert plan.possible, plan.blockers
    assert plan.halo == ((28, 28), (28, 28))  # as above, in patches of 4 px and windows of 7


@pytest.mark.parametrize("shut", [0.0, -3.0])
def test_a_mask_that_leaves_the_border_open_does_not_help(shut: float) -> None:
    plan = erfscope.tile(ShiftedWindows(shut).eval(), 8, in_chans=1, input_size=(SIDE,), image_size=(64,))
    assert any("roll" in sentence for sentence in plan.blockers), plan.blockers


class BesideConvolutions(nn.Module):
    """Attention in windows of 4 x 4 between convolutions of 3 x 3, whose weights are no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        b, c, h, w = y.shape
        windows = y.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
        windows = (windows @ windows.transpose(1, 2)).softmax(-1) @ windows
        y = windows.reshape(b, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)
        return self.after(y)


def test_windows_beside_convolutions_are_exact_on_tiles() -> None:
    net = BesideConvolutions().double().eval()
    plan = erfscope.tile(net, 16, in_chans=1, input_size=(64, 80), image_size=(64, 80))
    assert_exact(net, plan, 64, 80)

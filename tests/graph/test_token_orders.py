"""Tokens of clips that do not go frame by frame: all frames of a place side by side, as in TimeSformer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import erfscope
from erfscope.core.values.layout import Layout

CLIP = (3, 8, 12)


class PlacesFirst(nn.Module):
    """Patches of 2 x 2 of every frame with a class token; then tokens (h w T) behind one class token, as TimeSformer
    makes them: that of the first frames of the batch."""

    def __init__(self, *, has_class: bool) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 4, 2, 2)
        self.mix = nn.Conv1d(4, 4, 3, padding=1)
        self.token = nn.Parameter(torch.randn(1, 1, 4)) if has_class else None

    def forward(self, x: Tensor) -> Tensor:
        batch, _, frames, *_ = x.shape
        tokens = self.patch(x.transpose(1, 2).flatten(0, 1)).flatten(2).transpose(1, 2)
        first = None
        if self.token is not None:
            tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], 1)
            first, tokens = tokens[:batch, 0].unsqueeze(1), tokens[:, 1:]
        count = tokens.shape[1]
        tokens = tokens.reshape(batch, frames, count, 4).permute(0, 2, 1, 3).reshape(batch * count, frames, 4)
        tokens = tokens + self.mix(tokens.transpose(1, 2)).transpose(1, 2).tanh()
        tokens = tokens.view(batch, count, frames, 4).reshape(batch, count * frames, 4)
        return tokens if first is None else torch.cat([first, tokens], 1)


@pytest.mark.parametrize("has_class", [False, True])
def test_all_frames_of_a_place_side_by_side_have_the_map_of_plain_autograd(has_class):
    torch.manual_seed(0)
    module = PlacesFirst(has_class=has_class).double().eval()
    clips = torch.randn(2, 3, *CLIP, dtype=torch.float64)
    unit = (0, 2, 4)
    result = erfscope.analyze(
        module, images=clips, input_size=CLIP, unit=unit, convention="luo", dtype="float64", measures="r50"
    )
    assert result.unit.map_shape == (4, 3, 4, 6)
    assert result.unit.center_px == (0, 4.5, 8.5)
    assert result.unit.center_exact
    assert result.trf.clipped_box_px == ((0, 1), (4, 5), (8, 9))
    leaf = clips.clone().requires_grad_()
    number = int(has_class) + (2 * 6 + 4) * 3
    module(leaf)[:, number].sum().backward()
    seen = result.map.values != 0
    assert np.array_equal(seen, (leaf.grad.abs().sum((0, 1)) != 0).numpy())


def test_a_map_of_tokens_in_another_order_goes_back_where_it_was():
    layout = Layout(dims=(1,), grid=(3, 4, 5), order=(1, 2, 0), prefix=2, suffix=1)
    tokens = torch.arange(2.0 * 63 * 7).view(2, 63, 7)
    cells = layout.to_map(tokens)
    assert cells.shape == (2, 7, 3, 4, 5)
    assert torch.equal(layout.from_map(cells, tokens), tokens)
    for unit in ((0, 0, 0), (2, 1, 3)):
        (spot,) = layout.unit_box(tokens.shape, unit)[1]
        assert torch.equal(tokens[:, spot], cells[:, :, *unit])
        assert spot == 2 + (unit[1] * 5 + unit[2]) * 3 + unit[0]

"""Example inputs whose axes may be meant otherwise are read as documented, and the result says so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import erfscope


@pytest.mark.parametrize(
    ("shape", "is_said"),
    [((4, 3, 8, 8), True), ((3, 4, 8, 8), False), ((1, 3, 8, 8), False), ((3, 3, 8, 8), False), ((8, 2, 8, 8), False)],
)
def test_frames_before_channels_are_pointed_out(shape, is_said):
    clips = erfscope.wrap(nn.Conv3d(shape[0], 2, 3, padding=1), inputs={"input": torch.zeros(1, *shape)})
    result = erfscope.analyze(clips, samples=1, measures="r50")
    said = [finding.text for finding in result.findings if finding.text.startswith("input is read as (B, C, T, H, W)")]
    assert bool(said) is is_said


class Warped(nn.Module):
    """A view beside another that is moved by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, view, other, cameras):
        moved = nn.functional.affine_grid(cameras[:, 1, :2, :3], view.shape, align_corners=True)
        return self.conv(view) * self.conv(nn.functional.grid_sample(other, moved, align_corners=True))


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 3, 3)])
def test_matrices_of_cameras_are_no_maps_beside_images(shape):
    """Images in their place would be nonsense."""
    cameras = torch.eye(shape[-1]).expand(1, *shape)
    image = torch.zeros(1, 3, 8, 8)
    adapter = erfscope.wrap(Warped(), inputs={"view": image, "other": image, "cameras": cameras})
    assert list(adapter.preprocess.parts) == ["input:view", "input:other"]
    assert list(adapter.passed) == ["input:cameras"]
    assert {row.trf.clipped_box_px for row in erfscope.sweep(adapter, samples=1, layer="output", measures="r50")} > {
        ((3, 5), (3, 5))
    }
    # Small maps are maps where there are no larger ones.
    adapter = erfscope.wrap(Warped(), inputs={each: torch.zeros(1, 3, 4, 4) for each in ("view", "other", "cameras")})
    assert len(adapter.preprocess.parts) == 3

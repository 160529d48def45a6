"""The halo of tiles as a part of results."""

from __future__ import annotations

import pytest
from nets import Does, conv
from torch import nn

import erfscope
from erfscope.core.answer.result import Halo

pytestmark = pytest.mark.usefixtures("memory_unplanned")
QUICK = {"measures": "r50", "samples": 1, "draws": 1, "input_size": 32}
#: A stride of 2 reads one cell before its tile and none after; the convolution behind it adds 2 on each side.
STRIDED = Halo(px=((3, 2), (3, 2)), alignment_px=(2, 2))


def net():
    """A map, the same multiplied by its mean, and with its channels last."""

    def forward(m, x):
        y = m.second(m.first(x))
        return m.last(m.gated(y * y.mean((2, 3), keepdim=True)).permute(0, 2, 3, 1))

    return Does(forward, first=conv(s=2), second=conv(4), gated=nn.Identity(), last=nn.LayerNorm(4)).eval()


@pytest.mark.slow
def test_each_layer_has_the_halo_of_its_own_map_or_what_makes_tiles_impossible(tmp_path) -> None:
    report = erfscope.sweep(net(), layer=["first", "second", "gated", "last"], halo=True, **QUICK)
    first, second, gated, last = found = [result.halo for result in report]
    assert first == Halo(px=((1, 0), (1, 0)), alignment_px=(2, 2))
    assert second == STRIDED
    assert (gated.px, gated.alignment_px) == (STRIDED.px, STRIDED.alignment_px)
    assert gated.blockers[0].startswith("global average pooling (the model itself) averages over the whole map")
    assert last.px == ()
    assert last.blockers[0].startswith("layer 'last' holds no map of the image, such as (B, C, H, W),")
    report.save(tmp_path / "report.json")
    assert [result.halo for result in erfscope.read(tmp_path / "report.json")] == found


def test_models_are_compared_with_the_halo_of_each_and_stored_results_keep_theirs() -> None:
    stored = erfscope.analyze(net(), layer="second", **QUICK)
    report = erfscope.compare({"stored": stored, "net": nn.Conv2d(3, 1, 5, padding=2).eval()}, halo=True, **QUICK)
    assert [result.halo for result in report] == [None, Halo(px=((2, 2), (2, 2)), alignment_px=(1, 1))]

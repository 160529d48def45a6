"""Only some channels of a unit are read: one filter instead of all, in everything that results must share."""

import numpy as np
import pytest
import torch
from nets import Does
from torch import nn

import erfscope
from erfscope import ErfscopeError, MeasurementError

pytestmark = pytest.mark.slow

ASKED = {"input_size": 24, "in_chans": 1, "samples": 4, "measures": ["r50", "r90", "far_mass"]}


@pytest.fixture
def two():
    """Two channels: one sees its own pixel, the other one 5 x 5 of them."""
    narrow, wide = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 5, padding=2)
    return Does(lambda m, x: torch.cat([m.narrow(x), m.wide(x)], 1).tanh(), narrow=narrow, wide=wide).eval()


@pytest.mark.parametrize(
    "more", [{}, {"draws": "all"}, {"plain": True}, {"method": "input_x_gradient"}, {"convention": "energy"}], ids=str
)
def test_the_map_is_that_of_the_channels_named(two, more):
    # The input times the gradient is the gradient where the input is one everywhere.
    images = torch.ones(3, 1, 16, 16) if "method" in more else torch.rand(3, 1, 16, 16)
    narrow, wide = (
        erfscope.analyze(two, layer="output", images=images, unit="8,8", channels=n, **more).map.values for n in (0, 1)
    )
    assert np.argwhere(narrow > 0).tolist() == [[8, 8]]
    kernel = two.wide.weight.detach()[0, 0].abs().numpy().astype(np.float64)
    expected = kernel**2 if more.get("convention") == "energy" else kernel
    found = wide[6:11, 6:11]
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), rtol=1e-4)
    assert wide.sum() == pytest.approx(found.sum())
    if not more:  # all channels by their numbers are the default
        named, default = (erfscope.analyze(two, **ASKED, **asked) for asked in ({"channels": range(2)}, {}))
        np.testing.assert_array_equal(named.map.values, default.map.values)
        assert (default.options, named.options) == ({}, {"channels": (0, 1)})


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("x", "cannot read the channels 'x'; write numbers from 0 on"),
        ([-1], "cannot read the channels"),
        (99_999, "there is no channel 99999 in"),
    ],
    ids=str,
)
def test_what_is_no_channel_is_refused(two, asked, text):
    with pytest.raises(ErfscopeError, match=text):
        erfscope.analyze(two, channels=asked, **ASKED)


def test_a_run_goes_on_and_is_merged_with_the_same_channels_only(two, tmp_path):
    # It is asked before the first batch, too.
    stops = iter([False])
    part = erfscope.sweep(two, channels="0", batch_size=2, stop=lambda: next(stops, True), **ASKED)
    part.save(tmp_path / "part", drawn=False)
    with pytest.raises(ErfscopeError, match="with other settings: channels"):
        erfscope.sweep(two, channels="1", resume=tmp_path / "part", **ASKED)
    whole = erfscope.sweep(two, channels="0", **ASKED)
    gone_on = erfscope.sweep(two, channels="0", resume=tmp_path / "part", **ASKED)
    np.testing.assert_allclose(gone_on[0].map.values, whole[0].map.values, rtol=1e-5)
    for number in (1, 2):
        erfscope.sweep(two, channels=0, shard=f"{number}/2", **ASKED).save(tmp_path / f"{number}", drawn=False)
    erfscope.sweep(two, channels=1, shard="2/2", **ASKED).save(tmp_path / "odd", drawn=False)
    merged = erfscope.merge([tmp_path / "1", tmp_path / "2"])
    np.testing.assert_allclose(merged[0].map.values, whole[0].map.values, rtol=1e-5)
    assert merged[0].options == {"channels": (0,)}
    with pytest.raises(MeasurementError, match=r"they differ in channels \(\(0,\) against \(1,\)\)"):
        erfscope.merge([tmp_path / "1", tmp_path / "odd"])


def test_a_check_of_other_channels_is_another_question(two, tmp_path):
    asked = {
        **{name: value for name, value in ASKED.items() if name != "measures"},
        "baseline": tmp_path / "b.json",
        "name": "x",
    }
    assert erfscope.check(two, channels=0, update=True, **asked).word == "new"
    assert erfscope.check(two, channels=0, **asked).word == "pass"
    for other, words in ((1, "channels is 1 and was 0"), (None, "channels is the default and was 0")):
        verdict = erfscope.check(two, channels=other, **asked)
        assert (verdict.word, verdict.cause) == ("cannot tell", "settings changed")
        assert verdict.reason == words
    assert erfscope.check(two, trf_only=True, **asked).word == "pass"

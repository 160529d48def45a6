"""Results have a finding when its fact holds, and only then."""

from __future__ import annotations

import pytest
import torch
from loaded import adapter_of
from nets import Does, conv
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import erfscope

pytestmark = pytest.mark.usefixtures("memory_unplanned")


def codes(result: erfscope.Result) -> set[str]:
    return {finding.code for finding in result.findings}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "reached"), [(0.5, True), (1e-6, False)])
def test_a_standard_error_that_was_not_reached_is_said(target, reached):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))
    result = erfscope.analyze(net, input_size=(32, 32), samples=12, until_se=target)
    assert ("until_se" in codes(result)) is not reached


@pytest.mark.slow
def test_unused_keys_of_a_checkpoint_are_counted(tmp_path):
    model = erfscope.adapters.load("test_resnet", weights="random").module
    state = {**model.state_dict(), "extra.weight": torch.zeros(3)}
    save_file(state, tmp_path / "x.safetensors")
    result = erfscope.analyze("test_resnet", checkpoint=tmp_path / "x.safetensors", samples=2, measures="r50")
    assert result.weights.ignored_keys == 1
    assert "ignored_keys" in codes(result)


@pytest.mark.slow
def test_a_layer_without_a_map_is_a_row_and_the_others_are_measured():
    report = erfscope.sweep(adapter_of(input_size=64), layer="fc,layer3", samples=1, measures="r50")
    assert [result.status for result in report] == ["error", "ok"]
    assert "no spatial map" in (report[0].error or "")


@pytest.mark.slow
def test_random_weights_say_that_their_vit_shows_its_skip_path():
    result = erfscope.analyze(adapter_of("test_vit"), samples=2, measures="r50")
    (finding,) = (finding for finding in result.findings if finding.code == "own_cell_dominated")
    # What prints a finding prints its code before its text.
    assert finding.text.endswith("% of the ERF is the unit's own cell; compare context_r50 and far_mass")
    assert "own_cell_dominated" not in finding.text


@pytest.mark.parametrize("side", [48, 32])
def test_a_model_that_resizes_each_image_by_itself_is_said_to(side):
    """Normalised before that, as torchvision's detectors do."""

    def forward(m, x):
        images = [F.interpolate(((each - 0.5) / 0.2)[None], (side,) * 2, mode="bilinear")[0] for each in x]
        batch = x.new_zeros(len(x), 3, side, side)
        for place, image in zip(batch, images, strict=True):
            place.copy_(image)
        return m.body(batch)

    result = erfscope.analyze(Does(forward, body=conv(s=2)), input_size=32, samples=2, measures="r50")
    found = [each.text for each in result.findings if each.code == "own_resizing"]
    text = "the model resizes its input itself, from 32x32 to 48x48: sizes here are in pixels before that"
    assert found == ([text] if side == 48 else [])


@pytest.mark.parametrize("channels", [1, 4])
def test_a_model_that_squeezes_a_batch_of_one_is_told_how_to_be_wrapped(channels):
    """Of one image it gives no batch, and of one channel no channels."""
    net = Does(lambda m, x: m.stem(x).tanh().squeeze(), stem=conv(3, channels))
    with pytest.raises(erfscope.ErfscopeError, match=r"erfscope\.wrap\(model, forward=\.\.\.\)"):
        erfscope.analyze(net, input_size=(24, 28), samples=1, layer="output", measures="r50", plain=True)["r50"]


def looking(distance: int) -> nn.Module:
    """A few convolutions, behind which each unit reads mostly what is a distance up and to the left of it, or nothing
    else."""
    torch.manual_seed(1)
    first = nn.Sequential(*(nn.Conv2d(channels, 16, 3, padding=1) for channels in (3, *[16] * 5)))
    last = nn.Conv2d(16, 16, 2 * distance + 1, padding=distance, groups=16, bias=False)
    nn.init.normal_(last.weight, std=0.02 * bool(distance))
    with torch.no_grad():
        last.weight[:, :, 0, 0] = 1
    return nn.Sequential(first, last)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"samples": 1}, ", by more than noise"),
        ({"samples": 10}, ", by more than noise"),
        (
            {"samples": 1, "draws": 2},
            "whether by more than noise is not known, with fewer than four groups of inputs or draws",
        ),
    ],
)
def test_a_peak_elsewhere_is_said_where_it_is_more_than_noise(more, words):
    """The map of six convolutions is so flat around the unit that its brightest cell is 2 px away."""
    asked = {"input_size": 48, "seed": 1, "measures": "r50", **more}
    (text,) = (each.text for each in erfscope.analyze(looking(5), **asked).findings if each.code == "off_centre_peak")
    assert text.endswith(words)
    assert "draws" in more or "off_centre_peak" not in codes(erfscope.analyze(looking(0), **asked))


@pytest.mark.parametrize("late", [True, False])
def test_a_causal_unit_may_peak_anywhere_in_what_it_reads(late):
    """The centre of its TRF, the middle of what the kernel reaches back to, is no place where it should peak."""
    net = nn.Sequential(nn.ConstantPad1d((20, 0), 0.0), nn.Conv1d(1, 1, 21))
    nn.init.constant_(net[1].weight, 0.01)
    net[1].weight.data[..., -1 if late else 2] = 1.0
    result = erfscope.analyze(net, input_size=(80,), in_chans=1, samples=1, measures="r50")
    assert result.map.values.argmax() == (result.unit.index[0] if late else result.unit.index[0] - 18)
    assert "off_centre_peak" not in codes(result)


@pytest.mark.slow
def test_images_without_a_gradient_end_no_run_that_looks_at_its_error():
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU())
    nn.init.constant_(net[0].bias, -9.0)
    result = erfscope.analyze(net, images=torch.rand(8, 3, 9, 9), until_se=0.1, input_size=9)
    assert (result.status, "zero" in str(result.error)) == ("degenerate", True)

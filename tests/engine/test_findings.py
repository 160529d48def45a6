"""Results have a finding when its fact holds, and only then."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
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
    report = erfscope.sweep("test_resnet", layer="fc,layer3", weights="random", samples=2, measures="r50")
    assert [result.status for result in report] == ["error", "ok"]
    assert "no spatial map" in (report[0].error or "")


@pytest.mark.slow
def test_random_weights_say_that_their_vit_shows_its_skip_path():
    result = erfscope.analyze("test_vit", weights="random", samples=2, measures="r50")
    (finding,) = (finding for finding in result.findings if finding.code == "own_cell_dominated")
    # What prints a finding prints its code before its text.
    assert finding.text.endswith("% of the ERF is the unit's own cell; compare context_r50 and far_mass")
    assert "own_cell_dominated" not in finding.text


class Resizing(nn.Module):
    """Every image of the batch is resized by itself, normalised before that, as torchvision's detectors do."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side, self.body = side, nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        images = [F.interpolate(((each - 0.5) / 0.2)[None], (self.side,) * 2, mode="bilinear")[0] for each in x]
        batch = x.new_zeros(len(x), 3, self.side, self.side)
        for place, image in zip(batch, images, strict=True):
            place.copy_(image)
        return self.body(batch)


@pytest.mark.parametrize("side", [48, 32])
def test_a_model_that_resizes_each_image_by_itself_is_said_to(side):
    result = erfscope.analyze(Resizing(side), input_size=32, samples=2, measures="r50")
    found = [each.text for each in result.findings if each.code == "own_resizing"]
    text = "the model resizes its input itself, from 32x32 to 48x48: sizes here are in pixels before that"
    assert found == ([text] if side == 48 else [])


class Repeated(nn.Module):
    """A stem, then one block several times, then scores."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.stem, self.block, self.head = (
            nn.Conv2d(3, 4, 3, 1, 1),
            nn.Conv2d(4, 4, kernel, 1, kernel // 2),
            nn.Linear(4, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        for _ in range(3):
            y = y + self.block(y).tanh()
        return self.head(y.mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "further"), [(3, True), (1, False)])
def test_a_default_layer_that_repeated_layers_look_further_than_is_said_to_be_one(kernel, further):
    result = erfscope.analyze(Repeated(kernel), input_size=(24, 24), samples=2, measures="r50")
    assert result.layer == "stem"
    assert ("repeated_layers" in codes(result)) is further
    assert "repeated_layers" not in codes(
        erfscope.analyze(Repeated(kernel), input_size=(24, 24), samples=2, measures="r50", layer="stem")
    )


class Squeezed(nn.Module):
    """Of one image it gives no batch, and of one channel no channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.stem(x).tanh().squeeze()


@pytest.mark.parametrize(("channels", "plain"), [(1, True), (4, True)])
def test_a_model_that_squeezes_a_batch_of_one_is_told_how_to_be_wrapped(channels, plain):
    with pytest.raises(erfscope.core.values.errors.ErfscopeError, match=r"erfscope\.wrap\(model, forward=\.\.\.\)"):
        erfscope.analyze(
            Squeezed(channels), input_size=(24, 28), samples=1, layer="output", measures="r50", plain=plain
        )["r50"]


class Seen(nn.Module):
    """A few convolutions, behind which each unit reads mostly what is a distance up and to the left of it, or nothing
    else."""

    def __init__(self, seed: int, distance: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Sequential(*(nn.Conv2d(channels, 16, 3, padding=1) for channels in (3, *[16] * 5)))
        self.last = nn.Conv2d(16, 16, 2 * distance + 1, padding=distance, groups=16, bias=False)
        nn.init.normal_(self.last.weight, std=0.02 * bool(distance))
        with torch.no_grad():
            self.last.weight[:, :, 0, 0] = 1

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 3, 10])
def test_a_peak_elsewhere_is_said_where_it_is_more_than_noise(samples):
    """The map of six convolutions is so flat around the unit that its brightest cell is 2 px away."""
    elsewhere, noisy = (
        erfscope.analyze(Seen(1, distance), input_size=48, samples=samples, seed=1, measures="r50")
        for distance in (5, 0)
    )
    assert "off_centre_peak" in codes(elsewhere)
    assert "off_centre_peak" not in codes(noisy)
    (text,) = (each.text for each in elsewhere.findings if each.code == "off_centre_peak")
    assert text.endswith(", by more than noise")


@pytest.mark.slow
def test_a_peak_elsewhere_is_not_said_to_be_above_noise_that_is_not_known():
    net = Seen(1, 5)
    result = erfscope.analyze(net, input_size=48, samples=1, draws=2, seed=1, measures="r50")
    (text,) = (each.text for each in result.findings if each.code == "off_centre_peak")
    assert text.endswith("whether by more than noise is not known, with fewer than four groups of inputs or draws")


@pytest.mark.parametrize("late", [True, False])
def test_a_causal_unit_may_peak_anywhere_in_what_it_reads(late):
    """The centre of its TRF, the middle of what the kernel reaches back to, is no place where it should peak."""

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(1, 1, 21)
            nn.init.constant_(self.conv.weight, 0.01)
            self.conv.weight.data[..., -1 if late else 2] = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(nn.functional.pad(x, (20, 0)))

    result = erfscope.analyze(Causal(), input_size=(80,), in_chans=1, samples=1, measures="r50")
    assert result.map.values.argmax() == (result.unit.index[0] if late else result.unit.index[0] - 18)
    assert "off_centre_peak" not in codes(result)


@pytest.mark.slow
def test_images_without_a_gradient_end_no_run_that_looks_at_its_error():
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU())
    nn.init.constant_(net[0].bias, -9.0)
    result = erfscope.analyze(net, images=torch.rand(8, 3, 9, 9), until_se=0.1, input_size=9)
    assert (result.status, "zero" in str(result.error)) == ("degenerate", True)

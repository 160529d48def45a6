"""From images to one result: averaging, what is left out of it, errors, units, references, published procedures, other
ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from made_up import box_field
from nets import Does, conv
from oracle import contributions_of, plain_gradient
from PIL import Image
from torch import Tensor, nn

import erfscope
from erfscope import CONVENTIONS, Convention, ErfscopeError
from erfscope.adapters import ModuleAdapter
from erfscope.core import FloatArray, Unit
from erfscope.core.answer.convention import random_signs
from erfscope.core.answer.maps.accumulator import MapAccumulator
from erfscope.core.answer.measures import measure_map
from erfscope.core.answer.storage import json_format
from erfscope.core.run.engine.running_sums import RunningSums
from erfscope.core.values.unit import resolve_units

pytestmark = pytest.mark.usefixtures("memory_unplanned")

DOUBLE = torch.float64


def relu_net(seed: int = 0, bias: float = 0.0, *between: nn.Module) -> nn.Sequential:
    """12 channels at stride 4 in float64."""
    torch.manual_seed(seed)
    first, middle, last = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 12, 3, 2, 1)
    nn.init.constant_(first.bias, bias)
    return nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), *between, last).double()


def pictures(n: int, *, seed: int = 1, side: int = 24) -> Tensor:
    """With different contrasts, so that raw and per-image means differ."""
    x = torch.randn(n, 3, side, side, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    return x * torch.linspace(0.2, 3, n, dtype=DOUBLE).reshape(-1, 1, 1, 1)


def codes(result: erfscope.Result) -> list[str]:
    return [finding.code for finding in result.findings]


#: What each convention reads of a unit's channels, and takes of the gradient (C, H, W).
BY_HAND = {
    "luo": (torch.sum, lambda g: g.abs().sum(0)),
    "signed": (torch.sum, lambda g: g.sum(0)),
    "replknet": (lambda y: y.relu().sum(), lambda g: g.relu().sum(0)),
    "kim": (torch.mean, lambda g: g.mean(0).relu()),
}


def raw_mean(net: nn.Module, x: Tensor, unit: tuple[int, ...], convention: str) -> FloatArray:
    """The mean over images of a convention without random signs, by plain autograd."""
    read, take = BY_HAND[convention]
    rows = [take(plain_gradient(net, one, lambda y: read(y[(0, slice(None), *unit)]))[0]) for one in x.split(1)]
    return torch.stack(rows).mean(0).numpy()


def reference_map(
    net: nn.Module, x: Tensor, unit: tuple[int, int], convention: str, *, seed: int = 0, draws: int = 1
) -> FloatArray:
    """The whole procedure by plain autograd, image by image."""
    if convention in BY_HAND:
        total = raw_mean(net, x, unit, convention)
    else:
        rows = []
        for image, one in enumerate(x.split(1)):
            signs = [random_signs(12, seed=seed, image=image, draw=draw) for draw in range(draws)]
            read = lambda y, e: y[0, :, unit[0], unit[1]] @ e.to(y)  # noqa: E731
            energies = [plain_gradient(net, one, lambda y, e=e: read(y, e))[0].square().sum(0) for e in signs]
            mean = torch.stack(energies).mean(0)
            rows.append(mean / mean.sum())
        total = torch.stack(rows).mean(0).numpy()
        total = np.sqrt(total) if convention == "jacobian" else total
    return total / np.abs(total).sum()


# -- averaging


@pytest.mark.parametrize("convention", list(CONVENTIONS))
@pytest.mark.parametrize("n", [1, 3, 5, 12])
def test_a_result_is_the_documented_mean_of_single_images(convention, n):
    net, x = relu_net(), pictures(n)
    # Three images have at least four draws, over which their error is.
    draws = max(math.ceil(8 / n), 4 * (n == 3)) if CONVENTIONS[convention].random else 1
    result = erfscope.analyze(net, images=x, unit=(3, 2), convention=convention, seed=7, measures="r50")
    expected = reference_map(net, x, (3, 2), convention, seed=7, draws=draws)
    np.testing.assert_allclose(result.map.values, expected, rtol=1e-9, atol=1e-12 * np.abs(expected).max())
    assert (result.input.n_images, result.input.n_draws) == (n, draws)
    assert result.scale == CONVENTIONS[convention].scale
    assert np.abs(result.map.values).sum() == pytest.approx(1, rel=1e-12)
    if (convention, n) == ("jacobian", 5):  # with all channels, the mean over images of normalised Frobenius maps
        jacobians = (torch.autograd.functional.jacobian(lambda z: net(z)[0, :, 3, 2], one) for one in x.split(1))
        energies = [jacobian.square().sum((0, 1, 2)) for jacobian in jacobians]
        expected = torch.stack([energy / energy.sum() for energy in energies]).mean(0).sqrt().numpy()
        exact = erfscope.analyze(net, images=x, unit=(3, 2), draws="all", measures="r50")
        np.testing.assert_allclose(exact.map.values, expected / expected.sum(), rtol=1e-9, atol=1e-15)
        assert (exact.input.n_draws, exact.se_over) == ("all", "images")


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["jacobian", "luo", "signed"])
def test_the_batch_size_changes_nothing(convention):
    x = pictures(9)
    x[0] = float("nan")
    results = [erfscope.analyze(relu_net(), images=x, convention=convention, batch_size=size) for size in (1, 4, 16)]
    first = results[0]
    for other in results[1:]:
        np.testing.assert_allclose(
            other.map.values, first.map.values, rtol=1e-9, atol=1e-12 * np.abs(first.map.values).max()
        )
        assert (other.gradient_ratio or 0) == pytest.approx(first.gradient_ratio or 0, rel=1e-9)
        assert [finding.text for finding in other.findings] == [finding.text for finding in first.findings]
        for name, value in first.measures.items():
            if value.se is not None and not name.startswith("gaussian"):
                assert other[name].se == pytest.approx(value.se, rel=1e-6, abs=1e-12), name


@pytest.mark.slow
def test_one_to_three_images_have_their_errors_over_draws():
    net = relu_net()
    one = erfscope.analyze(net, images=pictures(1), measures="r50")
    assert (one.se_over, one.input.n_draws, len(one["r50"].leave_one_out)) == ("draws", 8, 8)
    assert one["r50"].se > 0
    three = erfscope.analyze(net, images=pictures(3), measures="r50")
    assert (three.se_over, three.input.n_draws, len(three["r50"].leave_one_out)) == ("draws", 4, 4)
    assert three["r50"].se > 0
    four = erfscope.analyze(net, images=pictures(4), measures="r50,luo_size")
    assert four["r50"].se > 0
    assert four["luo_size"].se is None
    # Without random signs, or with all channels, one image has one draw and no error.
    for options in ({"convention": "luo"}, {"draws": "all"}):
        assert erfscope.analyze(net, images=pictures(1), measures="r50", **options)["r50"].se is None


@pytest.mark.slow
def test_samples_seed_and_synthetic_kinds_decide_what_is_seen():
    adapter = erfscope.wrap(relu_net(), input_size=(24, 24))
    options = {"synthetic": "noise", "measures": "r50", "samples": 6}
    a, b = erfscope.analyze(adapter, seed=3, **options), erfscope.analyze(adapter, seed=3, **options)
    np.testing.assert_array_equal(a.map.values, b.map.values)
    other = erfscope.analyze(adapter, seed=4, **options)
    assert not np.allclose(other.map.values, a.map.values)
    assert other.input.sha256 != a.input.sha256
    assert a.input.n_images == 6
    assert erfscope.analyze(adapter, measures="r50").input.n_images == 20
    x = pictures(9)
    three = erfscope.analyze(adapter, images=x, samples=3, measures="r50")
    np.testing.assert_array_equal(three.map.values, erfscope.analyze(adapter, images=x[:3], measures="r50").map.values)


@pytest.mark.slow
def test_until_se_stops_when_the_error_is_small_enough_and_says_after_how_many_images():
    adapter = erfscope.wrap(relu_net(), input_size=(24, 24))
    options = {"synthetic": "noise", "measures": "r50", "batch_size": 4}
    results = [erfscope.analyze(adapter, until_se=target, **options) for target in (0.05, 0.002)]
    for target, result in zip((0.05, 0.002), results, strict=True):
        assert result["r50"].se <= target * float(result["r50"])
        assert result.input.text.startswith(f"the first {result.input.n_images} of 1000 synthetic images (white noise")
    assert results[0].input.n_images < results[1].input.n_images < 1000
    # It is the same as asking for that many: the images seen do not depend on the images to come.
    again = erfscope.analyze(adapter, samples=results[1].input.n_images, draws=1, synthetic="noise", measures="r50")
    np.testing.assert_allclose(again.map.values, results[1].map.values, rtol=1e-9, atol=1e-15)


# -- images that give nothing


def test_dead_and_nan_images_are_named_and_left_out():
    # Under the gradient of a square a NaN stays one, unlike under a ReLU's.
    net, x = relu_net(0, -1.0, Does(lambda _, y: y * y)), 5 * pictures(9)
    x[2] = 0
    x[5, 0, 10, 10] = float("nan")
    result = erfscope.analyze(net, images=x, convention="luo", unit=(3, 2), measures="r50")
    kept = [0, 1, 3, 4, 6, 7, 8]
    expected = reference_map(net, x[kept], (3, 2), "luo")
    np.testing.assert_allclose(result.map.values, expected, rtol=1e-9, atol=1e-15)
    assert result.ok
    assert (result.input.n_images, result.input.n_dead, result.input.dead) == (9, 2, ("tensor[2]", "tensor[5]"))
    texts = {finding.code: finding.text for finding in result.findings}
    assert "tensor[2]" in texts["dead_images"]
    assert "tensor[5]" in texts["nan_images"]
    # Groups are those of the images' own numbers: two of the nine are empty.
    assert len(result["r50"].leave_one_out) == 7


@pytest.mark.parametrize("method", ["gradient", "input_x_gradient", "guided_backprop"])
def test_a_nan_that_a_relu_swallows_is_still_found(method):
    """The gradient of relu(NaN) is 0, so that the map of such an image is finite; its unit is not."""
    x = pictures(5)
    x[1, 2, 12, 12] = float("nan")
    result = erfscope.analyze(relu_net(), images=x, convention="luo", method=method, unit=(3, 3), measures="r50")
    assert result.input.dead == ("tensor[1]",)
    assert "nan_images" in codes(result)


def test_one_channel_that_is_not_finite_leaves_its_image_out():
    net = Does(lambda m, x: torch.cat([m.conv(x), x[:, :1].detach().sqrt()], 1), conv=conv()).double()
    x = pictures(5).abs()
    x[1] *= -1
    result = erfscope.analyze(net, images=x, convention="luo", unit=(3, 3), measures="r50")
    assert result.input.dead == ("tensor[1]",)
    assert "nan_images" in codes(result)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "size"), [(0.0, 1), (0.0, 6), (float("nan"), 1), (float("nan"), 6)])
def test_a_useless_first_image_does_not_condemn_the_others(first, size):
    x = pictures(6)
    x[0] = first
    result = erfscope.analyze(relu_net(0, -1.0), images=x, convention="luo", batch_size=size, measures="r50")
    assert (result.ok, result.input.dead) == (True, ("tensor[0]",))


@pytest.mark.parametrize("convention", ["jacobian", "luo"])
def test_all_images_dead_is_degenerate(convention):
    result = erfscope.analyze(relu_net(0, -1.0), images=torch.zeros(3, 3, 24, 24, dtype=DOUBLE), convention=convention)
    assert (result.status, result.map, dict(result.measures), result.gradient_ratio) == ("degenerate", None, {}, 0.0)
    assert "zero for all 3 images" in result.error
    assert ("--convention jacobian" in result.error) is (convention == "luo")


@pytest.mark.parametrize(("kind", "name"), [("weight", "2.weight"), ("buffer", "3.running_var")])
def test_all_nan_is_an_error_that_names_the_weights(kind, name):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4))
    (net[2].weight.data if kind == "weight" else net[3].running_var)[1] = float("nan")
    result = erfscope.analyze(net, input_size=(24, 24), samples=3, errors="row")
    assert result.status == "error"
    assert result.map is None
    assert name in result.error
    assert "all 3 images" in result.error
    assert result.input.n_dead == 3


@pytest.mark.slow
def test_an_unreadable_picture_stops_the_run_or_is_named(tmp_path):
    for i in range(1, 5):
        pixels = np.random.default_rng(i).integers(0, 256, (30, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    (tmp_path / "0.png").write_bytes(b"no image")
    files = sorted(str(path) for path in tmp_path.iterdir())
    adapter = erfscope.wrap(relu_net(), input_size=(24, 24))
    with pytest.raises(ErfscopeError, match=r"0\.png"):
        erfscope.analyze(adapter, images=files, measures="r50", errors="row")
    words = {"keep_going": True, "measures": "r50", "errors": "row"}
    result = erfscope.analyze(adapter, images=files, draws=1, batch_size=1, **words)
    assert (result.ok, result.input.n_images, result.input.n_dead) == (True, 5, 1)
    assert result.input.dead[0].endswith("0.png")
    assert "0.png" in next(finding.text for finding in result.findings if finding.code == "unreadable_images")
    only = erfscope.analyze(adapter, images=files[:1], **words)
    assert only.status == "error"
    assert "none of the 1 images could be read" in only.error


def test_a_field_that_is_too_small_is_given_up_and_said():
    """Contributions outside the box that the structure allows are kept, whatever was summed before."""

    maps = np.random.default_rng(0).random((5, 7, 7))
    maps[:2, 5:] = maps[:2, :, 5:] = maps[:2, :1] = maps[:2, :, :1] = 0
    runs = [
        RunningSums(MapAccumulator(CONVENTIONS["luo"], 5, (7, 7), trf))
        for trf in (box_field([(1, 4), (1, 4)], (7, 7)), None)
    ]
    for images in (range(1), range(1, 2), range(2, 5)):
        for run in runs:
            run.add(images, [torch.from_numpy(maps[images.start : images.stop])])
        assert runs[0].average().outside_trf is (images.start == 2)
    small, whole = (run.average() for run in runs)
    # Shards of which one has the box still are merged on the whole reference, whichever comes first.
    shards = [
        RunningSums(MapAccumulator(CONVENTIONS["luo"], 5, (7, 7), box_field([(1, 4), (1, 4)], (7, 7)))) for _ in "12"
    ]
    for shard, images in zip(shards, (range(2), range(2, 5)), strict=True):
        shard.add(images, [torch.from_numpy(maps[images.start : images.stop])])
    first, last = (shard.average() for shard in shards)
    assert (first.outside_trf, last.outside_trf) == (False, True)
    merged, turned = first.copy(), last.copy()
    merged.merge(last)
    turned.merge(first)
    for found in (small, merged, turned):
        np.testing.assert_allclose(found.values(), whole.values(), rtol=1e-12)
        np.testing.assert_allclose(list(found.leave_one_out()), list(whole.leave_one_out()), rtol=1e-12)


def test_the_raw_mean_counts_dead_images_as_zeros_as_other_tools_do():
    running = RunningSums(MapAccumulator(CONVENTIONS["replknet"], 4, (3, 3), None))
    maps = np.random.default_rng(0).random((4, 3, 3))
    maps[2] = 0
    running.add(range(4), [torch.from_numpy(maps)])
    average = running.average()
    np.testing.assert_allclose(average.raw(), maps.mean(0), rtol=1e-12)
    assert (average.zero_gradient_images, average.n_images) == ([2], 3)


# -- signed maps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "convention", "warns"), [(15, "signed", True), (16, "signed", False), (15, "luo", False)]
)
def test_signed_maps_warn_of_their_noise_floor_below_sixteen_images(number, convention, warns):
    few = erfscope.analyze(relu_net(), images=pictures(number), convention=convention, measures="r50")
    said = [finding.text for finding in few.findings if finding.code == "noise_floor"]
    assert (len(said), "26%" in "".join(said)) == (warns, warns)
    assert bool(few.map.values.min() < 0 < few.map.values.max()) is (convention == "signed")


def test_a_signed_map_with_a_negative_sum_keeps_its_sign():
    net = nn.Conv2d(1, 1, 3, padding=1, bias=False, dtype=DOUBLE)
    nn.init.constant_(net.weight, -1.0)
    result = erfscope.analyze(
        net, images=torch.ones(1, 1, 9, 9, dtype=DOUBLE), layer="output", convention="signed", measures="r50"
    )
    np.testing.assert_allclose(result.map.values[3:6, 3:6], np.full((3, 3), -1 / 9))


# -- gradients that are rounding noise


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["gradient", "input_x_gradient"])
def test_channel_sums_after_layernorm_are_degenerate(dtype, method):
    """Such a sum is constant, so its gradient is rounding noise."""
    torch.manual_seed(1)
    parts = {"patches": nn.Conv2d(3, 16, 4, 4), "norm": nn.LayerNorm(16), "mix": nn.Conv2d(16, 16, 3, 1, 1)}
    net = Does(lambda m, x: m.norm(m.mix(m.patches(x).relu()).permute(0, 2, 3, 1)), **parts)
    options = {"layer": "norm", "samples": 4, "dtype": dtype, "method": method, "measures": "r50"}
    adapter = erfscope.wrap(net, input_size=32, layout="NHWC")
    eps = torch.finfo(getattr(torch, dtype)).eps
    for convention in ("luo", "signed", "kim"):
        result = erfscope.analyze(adapter, convention=convention, **options)
        assert result.status == "degenerate"
        assert 0 <= result.gradient_ratio < 100 * eps
        if result.gradient_ratio:
            assert f"{result.gradient_ratio:.1e}" in result.error
    assert erfscope.analyze(adapter, convention="jacobian", **options).ok
    assert erfscope.analyze(adapter, convention="replknet", **options).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "unit", "samples"),
    [("gradient", "centre", 1), ("gradient", "all", 3), ("input_x_gradient", "centre", 3)],
)
def test_signed_sums_over_the_channels_before_a_layernorm_are_degenerate(method, unit, samples):
    """What reads the patches sees them through the norm, so that the gradients of their channels add up to zero."""
    torch.manual_seed(1)
    asked = {"wrt": "patches", "unit": unit, "samples": samples, "measures": "r50"}
    parts = {"patches": nn.Conv2d(3, 16, 4, 4), "norm": nn.LayerNorm(16), "mix": nn.Conv2d(16, 16, 3, 1, 1)}
    net = Does(lambda m, x: m.mix(m.norm(m.patches(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)), **parts)
    adapter = erfscope.wrap(net, input_size=32)
    for convention in ("signed", "kim"):
        result = erfscope.analyze(adapter, convention=convention, method=method, **asked)
        assert result.status == "degenerate"
        assert f"{result.gradient_ratio:.1e} of a random-sign draw's where channels have cancelled" in result.error
    for convention in ("luo", "replknet", "jacobian"):
        assert erfscope.analyze(adapter, convention=convention, method=method, **asked).ok


@pytest.mark.parametrize("convention", ["luo", "signed", "kim", "replknet"])
def test_a_healthy_net_has_a_ratio_near_one_whatever_the_readouts_scale(convention):
    """kim's mean over 2048 channels has a gradient 2048 times smaller, which is no sign of noise."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 2048, 3, 1, 1)
    options = {"input_size": (16, 16), "samples": 2, "convention": convention, "measures": "r50"}
    result = erfscope.analyze(nn.Sequential(nn.GroupNorm(1, 3), *layers), **options)
    assert result.ok
    assert 0.2 < result.gradient_ratio < 5
    # Where nothing normalises, no sum of channels can cancel.
    assert erfscope.analyze(nn.Sequential(*layers), **options).gradient_ratio is None
    tiny = (lambda y, signs: 1e-9 * y[:, 0], lambda g: g.abs().sum(1))
    custom = erfscope.analyze(relu_net(), images=pictures(2), convention=tiny, measures="r50")
    assert (custom.status, custom.convention) == ("ok", "custom")


def skip() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(inplace=True))
    parts = {"stem": nn.Conv2d(3, 8, 3, 2, 1), "body": body, "tail": nn.Conv2d(8, 8, 3, 2, 1)}
    return Does(lambda m, x: m.tail((y := m.stem(x)) + m.body(y)), **parts).double()


# -- references


@pytest.mark.slow
def test_sizes_with_respect_to_a_feature_map_are_in_cells_and_in_image_pixels():
    adapter = erfscope.wrap(skip(), input_size=(24, 32))
    result = erfscope.analyze(
        adapter, images=pictures(4, side=32)[:, :, :24], layer="tail", wrt="stem", measures="r50,entropy_area,far_mass"
    )
    assert result.map.values.shape == (12, 16)
    assert result.map.cell_px == (2.0, 2.0)
    assert result.unit.stride_px == (2.0, 2.0)
    entry = json_format.result_to_json(result)["measures"]
    assert (entry["r50"]["in"], entry["entropy_area"]["in"]) == ("cells", "cells2")
    assert entry["r50"]["image_px"] == pytest.approx(2 * float(result["r50"]), rel=1e-12)
    assert entry["entropy_area"]["image_px"] == pytest.approx(4 * float(result["entropy_area"]), rel=1e-12)
    assert "image_px" not in entry["far_mass"]


@pytest.mark.slow
def test_a_reference_that_some_path_avoids_is_said_to_be_bypassed():
    adapter = erfscope.wrap(skip(), input_size=(24, 24))
    x = pictures(2)
    results = {
        w: erfscope.analyze(adapter, images=x, layer="tail", wrt=w, measures="r50")
        for w in ("image", "stem", "body", "body:in")
    }
    bypassed = {wrt: "bypassed" in codes(result) for wrt, result in results.items()}
    assert bypassed == {"image": False, "stem": False, "body": True, "body:in": False}
    assert {wrt: result.trf.all_paths for wrt, result in results.items()} == {
        wrt: not found for wrt, found in bypassed.items()
    }
    # The body's input is the stem's output, through all its later uses: the skip too.
    np.testing.assert_array_equal(results["body:in"].map.values, results["stem"].map.values)


@pytest.mark.slow
def test_findings_do_not_depend_on_the_measures_asked_for():
    net = nn.Conv2d(3, 4, 3, 8, 1).double()
    options = {"images": pictures(4), "layer": "output", "unit": (0, 0)}
    everything, one = erfscope.analyze(net, **options), erfscope.analyze(net, measures="r90", **options)
    assert list(one.measures) == ["r90"]
    assert [finding.text for finding in one.findings] == [finding.text for finding in everything.findings]
    assert {"own_cell_dominated", "at_border"} <= set(codes(one))


# -- other tools' procedures


def their_rectangle(view: FloatArray, share: float) -> tuple[int, float] | None:
    """FIELD section 2, cell by cell: the smallest i >= 1 whose square about (H // 2, W // 2) holds more than the
    share."""
    h, w = view.shape
    total = view.sum()
    for i in range(1, h // 2):
        held = sum(view[r, c] for r in range(h) for c in range(w) if max(abs(r - h // 2), abs(c - w // 2)) <= i)
        if held / total > share:
            return 2 * i + 1, (2 * i + 1) ** 2 / (h * w)
    return None


def test_replknet_is_the_published_procedure_with_its_own_numbers():
    """Scaled up, since their logarithm only matters for large gradients."""
    net, x = relu_net(0, -0.5), pictures(6)
    x[3] = 0
    net[-1].weight.data *= 100
    mean = raw_mean(net, x, (3, 3), "replknet")
    result = erfscope.analyze(net, images=x, convention="replknet", unit=(3, 3), measures="r50")
    np.testing.assert_allclose(result.map.values, mean / mean.sum(), rtol=1e-9, atol=1e-15)
    view = np.log10(mean + 1)
    view /= view.max()
    for share in (0.2, 0.3, 0.5, 0.99):
        theirs, ours = their_rectangle(view, share), result.published[f"t{share:g}"]
        assert (ours["side_px"], ours["area_ratio"]) == (theirs[0], pytest.approx(theirs[1], rel=1e-12))
    assert "comparison with published tables only" in result.published["note"]


@pytest.mark.parametrize(("side", "found"), [(64, False), (192, False), (198, False), (200, True)])
def test_their_rule_has_no_answer_for_wide_maps_on_small_inputs(side, found):
    """FIELD section 2, pitfall 8: a uniform map at t = 0.99."""
    from erfscope.core.answer.maps.reference_tools import replknet_rectangles

    assert (replknet_rectangles(np.ones((side, side)))["t0.99"] is not None) is found


@pytest.mark.slow
def test_kim_is_the_published_formula_with_openerfs_numbers():
    from openerf.metrics import compute_erf_metrics

    net, x = relu_net(), pictures(4)
    mean = raw_mean(net, x, (3, 2), "kim")
    result = erfscope.analyze(net, images=x, convention="kim", unit=(3, 2), measures="r50")
    np.testing.assert_allclose(result.map.values, mean / mean.sum(), rtol=1e-9, atol=1e-15)
    theirs = compute_erf_metrics(mean)
    assert result.published["radial_cumulative_mass"] == pytest.approx(theirs["radial_cumulative_mass"], rel=1e-9)
    assert result.published["center_of_mass_px"] == pytest.approx([theirs["com_y"], theirs["com_x"]], rel=1e-9)
    assert erfscope.analyze(net, images=x, measures="r50").published is None


# -- units


@pytest.mark.parametrize(
    ("word", "space", "expected"),
    [
        ("centre", (7, 7), [(3, 4)]),
        ("corner", (7, 7), [(0, 0)]),
        ("edge", (7, 7), [(0, 4)]),
        ("grid:2", (7, 8), [(1, 2), (1, 6), (5, 2), (5, 6)]),
        ("3,4", (7, 7), [(3, 4)]),
        ("3,3,0,1", (7, 7), [(3, 3), (0, 1)]),
        ((2, 5), (7, 7), [(2, 5)]),
        (np.array([2, 5]), (7, 7), [(2, 5)]),
        ("5", (9,), [(5,)]),
        ("edge", (9,), [(0,)]),
        ("grid:3", (9,), [(1,), (4,), (7,)]),
        ("1x2x3,corner", (4, 7, 7), [(1, 2, 3), (0, 0, 0)]),
    ],
)
def test_unit_words(word, space, expected):
    centre = (3, 4) if len(space) == 2 else (4,) * len(space)
    assert [unit.index for unit in resolve_units(word, space, centre)] == expected


@pytest.mark.parametrize(
    ("word", "match"),
    [
        ("7,0", "outside layer4, whose map is 7x7; the last unit is 6,6"),
        ((0, 9), "outside"),
        ("3x3x3", "outside"),
        ("3", "2 indices such as 3,3"),
        ("middle", "cannot read"),
        ((3.7, 2), "cannot read"),
        ("grid:0", "at least 1"),
    ],
)
def test_what_is_no_unit_is_refused_in_one_line(word, match):
    with pytest.raises(ErfscopeError, match=match) as caught:
        resolve_units(word, (7, 7), (3, 3), layer="layer4")
    assert "\n" not in str(caught.value)


# -- one and three axes


@pytest.mark.slow
def test_a_video_net_is_measured_on_its_frames_together_and_each_frames_mass_is_given():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(2, 6, 3, (1, 2, 2), 1), nn.ReLU(), nn.Conv3d(6, 8, 3, (2, 2, 2), 1)).double()
    x = torch.randn(2, 2, 8, 24, 28, dtype=DOUBLE)
    result = erfscope.analyze(net, images=x, layer="output", convention="luo", unit=(2, 3, 3), axes="thw")
    expected = raw_mean(net, x, (2, 3, 3), "luo")
    expected /= expected.sum()
    np.testing.assert_allclose(result.map.values, expected, rtol=1e-9, atol=1e-15)
    assert result.unit.center_px == (4.0, 12.0, 12.0)
    assert result.trf.size_px == (5, 7, 7)
    np.testing.assert_allclose(result.frame_mass, expected.sum((1, 2)), rtol=1e-9, atol=1e-15)
    assert [share > 0 for share in result.frame_mass] == [2 <= t <= 6 for t in range(8)]
    flat = erfscope.ErfMap(values=expected.sum(0), center_px=(12.0, 12.0), stride_px=(4.0, 4.0))
    names = ("r50", "sigma_col", "side50", "far_mass")
    assert {name: float(result[name]) for name in names} == pytest.approx(measure_map(flat, names), rel=1e-9)
    again = json_format.result_from_json(json_format.result_to_json(result))
    assert again.frame_mass == result.frame_mass


def test_a_sequence_net_is_measured_along_its_one_axis():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 6, 5, 2, 2), nn.ReLU(), nn.Conv1d(6, 8, 5, 2, 2)).double()
    x = torch.randn(5, 2, 64, dtype=DOUBLE)
    result = erfscope.analyze(net, images=x, layer="output", convention="luo")
    expected = raw_mean(net, x, (8,), "luo")
    expected /= expected.sum()
    np.testing.assert_allclose(result.map.values, expected, rtol=1e-9, atol=1e-15)
    assert (result.unit.index, result.unit.center_px, result.trf.size_px) == ((8,), (32.0,), (13,))
    assert result.frame_mass is None
    assert "sigma_row" not in measure_map(result.map)
    t = np.arange(64)
    sigma = math.sqrt(((t - (t * expected).sum()) ** 2 * expected).sum())
    assert float(result["sigma_time"]) == pytest.approx(sigma, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layer", "size"), [("test_resnet", "layer3", s) for s in (160, 192, 224)] + [("test_vit", None, 160)]
)
def test_the_default_unit_is_the_middle_of_resnets_and_vits(model, layer, size):
    result = erfscope.analyze(model, weights="random", input_size=size, layer=layer, samples=1, draws=1, measures="r50")
    assert result.unit.index == tuple(side // 2 for side in result.unit.map_shape[1:])


# -- the caller's own mode


@pytest.mark.slow
def test_the_engine_leaves_the_callers_grad_mode_alone_between_draws(small: ModuleAdapter):
    from erfscope.core.run.attribution import ModelForward, Question

    x = torch.randn(1, 3, 32, 40, dtype=DOUBLE)
    with torch.no_grad():
        units = [Unit(index=(1, 1))]
        question = Question(site=small.site("down"), units=units, convention=CONVENTIONS["jacobian"], draws=3)
        (draws,) = contributions_of(ModelForward(small, question), x, question, [0])
        assert not torch.is_grad_enabled()
        for _ in draws:
            assert not torch.is_grad_enabled()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            assert erfscope.analyze(small, images=x, layer="down", measures="r50").ok
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


def test_a_convention_of_ones_own_is_averaged_as_it_says():
    words = {"readout": lambda y, _: y.square().sum(1), "contribution": lambda g: g.square().sum(1)}
    mine = Convention(name="mine", **words, scale="energy", per_image=True)
    net, x = relu_net(), pictures(3)
    gradients = [plain_gradient(net, one, lambda y: y[0, :, 3, 3].square())[0] for one in x.split(1)]
    rows = [(g.square().sum(0) / g.square().sum()).numpy() for g in gradients]
    result = erfscope.analyze(net, images=x, convention=mine, unit=(3, 3), measures="r50")
    np.testing.assert_allclose(result.map.values, np.mean(rows, axis=0), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("channels", [1, 2, 7, 64, 2049])
def test_random_signs_are_those_of_numpys_generator(channels):
    """Which stored results were measured with."""
    for seed, image, draw in [(0, 0, 0), (7, 3, 1), (2**40, 10**6, 12)]:
        philox = np.random.Philox(key=np.array([seed, 0x5167], dtype=np.uint64), counter=[0, 0, image, draw])
        expected = np.random.Generator(philox).integers(0, 2, channels) * 2.0 - 1
        np.testing.assert_array_equal(random_signs(channels, seed=seed, image=image, draw=draw), expected)

"""Plans in the settings of other tools: texts that run, and give the output of the whole image where they say so."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from test_tiling import EXACT, UNet, plan_of, positive
from torch import Tensor, nn

from erfscope import ErfscopeError, TilePlan
from erfscope.apps.tile.recipes import TOOLS, recipe

Keep = Callable[[slice], slice]


def starts(side: int, patch: int, step: int) -> list[int]:
    """Where tools put patches: in steps, the last one at the border."""
    return [*range(0, side - patch, step), side - patch]


def sliding_window_inference(image: Tensor, roi_size: Any, predictor: Any, overlap: Any, **_: Any) -> list[Tensor]:
    """MONAI's, for one image."""
    steps = [int(roi * (1 - share)) for roi, share in zip(roi_size, overlap, strict=True)]
    spots = itertools.product(*map(starts, image.shape[2:], roi_size, steps))
    totals: list[Tensor] = []
    count = torch.zeros(1)
    for spot in spots:
        window = [slice(first, first + roi) for first, roi in zip(spot, roi_size, strict=True)]
        found = predictor(image[(..., *window)], [[slice(0, 1), slice(None), *window]])
        zoom = [made / roi for made, roi in zip(found[0].shape[2:], roi_size, strict=True)]
        target = [slice(int(w.start * z), int(w.stop * z)) for w, z in zip(window, zoom, strict=True)]
        if not totals:
            sides = [int(side * z) for side, z in zip(image.shape[2:], zoom, strict=True)]
            totals, count = [torch.zeros(*each.shape[:2], *sides).double() for each in found], torch.zeros(sides)
        count[tuple(target)] += 1
        for total, each in zip(totals, found, strict=True):
            total[(..., *target)] += each
    return [total / count for total in totals]


class Careamist:
    """CAREamics' tiles, half of the overlap cropped."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def predict(self, image: Tensor, tile_size: Any, tile_overlap: Any) -> tuple[Tensor, list[str]]:
        output = self.net(image)
        steps = [tile - overlap for tile, overlap in zip(tile_size, tile_overlap, strict=True)]
        for spot in itertools.product(*map(starts, image.shape[2:], tile_size, steps)):
            window = [slice(first, first + tile) for first, tile in zip(spot, tile_size, strict=True)]
            halves = [overlap // 2 for overlap in tile_overlap]
            kept = [
                slice(half * (w.start > 0), w.stop - w.start - half * (w.stop < side))
                for w, half, side in zip(window, halves, image.shape[2:], strict=True)
            ]
            target = [slice(w.start + k.start, w.start + k.stop) for w, k in zip(window, kept, strict=True)]
            output[(..., *target)] = self.net(image[(..., *window)])[(..., *kept)]
        return output, []


@functools.cache
def fixed_plan() -> TilePlan:
    return plan_of(UNet(4, pad=1).eval(), (256, 256), 256)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_plan_is_written_in_the_words_of_a_tool(golden: Callable[[str, str], None], tool: str) -> None:
    plan = fixed_plan()
    if tool == "diffusers":
        net = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(3, 3, 3, padding=1))
        plan = plan_of(net.eval(), (64, 64), 48, channels=4)
    text = recipe(plan, tool)
    golden(f"tile-{tool}", text)
    assert max(map(len, text.splitlines())) <= 120
    if tool != "bioimageio":
        compile(text, tool, "exec")


@pytest.mark.parametrize(
    "name", ["stack", "causal", "dilated", "stride", "shuffle", "transposed", "reflected", "U-Net"]
)
def test_the_text_for_monai_gives_the_output_of_the_whole_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, _, size, tile = EXACT[name]
    size = tuple(side + 1 for side in size) if name == "stack" else tuple(side // 4 * 4 for side in size)
    net = positive(make())
    plan = plan_of(net, size, tile // 2)
    inferers = ModuleType("monai.inferers")
    inferers.sliding_window_inference = sliding_window_inference  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "monai", ModuleType("monai"))
    monkeypatch.setitem(sys.modules, "monai.inferers", inferers)
    names: dict[str, Any] = {"model": net, "image": torch.rand(1, 1, *size, dtype=torch.float64)}
    with torch.no_grad():
        exec(recipe(plan, "monai"), names)
        torch.testing.assert_close(names["output"], net(names["image"]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["stack", "causal", "dilated", "reflected", "U-Net"])
def test_the_text_for_careamics_gives_the_output_of_the_whole_image(name: str) -> None:
    make, _, size, tile = EXACT[name]
    net = positive(make())
    names: dict[str, Any] = {"careamist": Careamist(net), "image": torch.rand(1, 1, *size, dtype=torch.float64)}
    with torch.no_grad():
        exec(recipe(plan_of(net, size, tile // 2), "careamics"), names)
        torch.testing.assert_close(names["prediction"], net(names["image"]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("up", [True, False])
def test_diffusers_rounds_nothing_of_the_sides_and_the_overlap(up: bool) -> None:
    net = nn.Conv2d(1, 1, 7, padding=3, stride=1 if up else 4)
    net = nn.Sequential(net, nn.Upsample(scale_factor=4)) if up else net
    plan = plan_of(net.eval(), (64, 64), 40)
    vae = SimpleNamespace(enable_tiling=lambda: None)
    exec(recipe(plan, "diffusers"), {"vae": vae})
    given, made = vae.tile_latent_min_size, vae.tile_sample_min_size
    given, made = (given, made) if up else (made, given)
    step, blend = int(given * (1 - vae.tile_overlap_factor)), int(made * vae.tile_overlap_factor)
    assert step * plan.scale[0] == made - blend
    assert given - step >= 2 * max(plan.halo[0])


def test_the_halo_of_bioimageio_is_rounded_up_to_the_alignment_and_what_is_lost_is_an_offset() -> None:
    assert recipe(fixed_plan(), "bioimageio").count("offset: 0}, halo: 96}") == 2
    valid = plan_of(UNet(4, pad=0).eval(), (572, 572), 388)
    assert recipe(valid, "bioimageio").count("offset: -184}}") == 2


def test_what_a_tool_cannot_put_together_is_refused_and_what_is_not_exact_is_said() -> None:
    valid = plan_of(UNet(2, pad=0).eval(), (100, 100), 16)
    for tool in ("monai", "nnunet", "careamics", "torchio", "diffusers"):
        with pytest.raises(ErfscopeError, match=r"takes outputs as large as the input.*run_tiled"):
            recipe(valid, tool)
    with pytest.raises(ErfscopeError, match=r"unknown tool 'monia'.*did you mean 'monai'"):
        recipe(valid, "monia")
    norm = plan_of(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.InstanceNorm2d(2)).eval(), (32, 32), 8)
    assert "# Not exact: batch or instance norm" in recipe(norm, "torchio")

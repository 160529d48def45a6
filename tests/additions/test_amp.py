"""Claims about autocast: what it changes is measured on the first image and said."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import erfscope
from erfscope.core.answer.convention import random_signs
from erfscope.core.answer.storage import json_format

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned")]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 16, 3, 1, 1), nn.GELU(), nn.Conv2d(16, 12, 3, 2, 1)
    ).eval()


def pictures(n: int) -> Tensor:
    return torch.randn(n, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def said(result: erfscope.Result) -> str | None:
    return next((w.text for w in result.findings if w.code == "amp_error"), None)


def by_hand(x: Tensor, unit: tuple[int, int], draws: int, dtype: torch.dtype | None) -> np.ndarray:
    """The amplitude map of one image, sum 1, by plain autograd."""
    leaf = x.clone().requires_grad_(True)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        y = net()(leaf)[0, :, unit[0], unit[1]]
    energies = []
    for draw in range(draws):
        signs = random_signs(len(y), seed=0, image=0, draw=draw).to(y)
        (g,) = torch.autograd.grad((y * signs).sum(), leaf, retain_graph=True)
        energies.append(g[0].double().square().sum(0))
    amplitude = torch.stack(energies).mean(0).sqrt()
    return (amplitude / amplitude.sum()).numpy()


@pytest.mark.parametrize(("n", "draws", "plain"), [(1, 8, False), (3, 4, True)])
def test_the_error_of_autocast_is_that_of_the_first_pictures_map(n, draws, plain):
    """Over one image as many draws as the run has."""
    x = pictures(n)
    results = erfscope.sweep(net(), images=x, amp_dtype="bfloat16", unit="centre,corner", measures="r50", plain=plain)
    for result in results:
        coarse, fine = (by_hand(x[:1], result.unit.index, draws, dtype) for dtype in (torch.bfloat16, None))
        expected = np.abs(coarse - fine).sum()
        assert 1e-4 < expected < 0.2
        match = re.fullmatch(
            r"bfloat16 changes the map of the first image by (.*)% \(relative L1\) and its r50 by (.*)%", said(result)
        )
        assert float(match[1]) / 100 == pytest.approx(expected, abs=6e-5)
        both = [
            float(
                erfscope.analyze(
                    net(), images=x[:1], draws=draws, unit=result.unit.index, measures="r50", amp_dtype=amp, plain=plain
                )["r50"]
            )
            for amp in ("bfloat16", None)
        ]
        assert float(match[2]) / 100 == pytest.approx(abs(both[0] / both[1] - 1), abs=6e-5)


def test_the_error_is_in_the_json_and_leaves_the_numbers_alone():
    options = {"images": pictures(5), "measures": "r50"}
    result = erfscope.analyze(net(), amp_dtype="bfloat16", **options)
    entry = json_format.result_to_json(result)
    assert {"code": "amp_error", "text": said(result)} in entry["warnings"]
    assert entry["input"]["n_images"] == 5
    again = erfscope.analyze(net(), amp_dtype="bfloat16", batch_size=2, **options)
    assert float(again["r50"]) == pytest.approx(float(result["r50"]), rel=1e-3)
    assert said(erfscope.analyze(net(), **options)) is None


def test_the_first_picture_that_can_be_used_is_compared():
    x = pictures(4)
    x[0] = torch.nan
    expected = said(erfscope.analyze(net(), images=x[1:], convention="luo", amp_dtype="bfloat16", measures="r50"))
    assert said(erfscope.analyze(net(), images=x, convention="luo", amp_dtype="bfloat16", measures="r50")) == expected


@pytest.mark.parametrize("method", ["gradient", "input_x_gradient"])
def test_the_callers_own_autocast_changes_nothing(method):
    plain = erfscope.analyze(net(), images=pictures(2), method=method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = erfscope.analyze(net(), images=pictures(2), method=method)
        assert torch.is_autocast_enabled("cpu")
    np.testing.assert_array_equal(inside.map.values, plain.map.values)

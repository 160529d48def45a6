"""``input_size="auto"``: inputs are doubled until their border cuts less than a tenth of the ERF, and the last one says
what was found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up import box_field, result
from nets import conv
from one_line import one_line
from torch import nn

import erfscope
from erfscope import ErfMap, ErfscopeError, Result, Trf
from erfscope.core import Finding
from erfscope.core.run import auto_input_size
from erfscope.core.run.auto_input_size import DOUBLINGS, ENOUGH, TOO_SMALL, share_outside

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")
OWN = 32


def field(side: int, size: int, **more: str) -> Trf:
    box = [(side // 2 - size // 2, side // 2 + size // 2)] * 2
    return box_field(box, (side, side), stride=8, center_px=(float(side // 2),) * 2, **more)


def row(values: np.ndarray, trf: Trf, **changes) -> Result:
    side = len(values)
    center = (float(side // 2),) * 2
    made, index = result("net"), (side // 16,) * 2
    found = replace(
        made,
        id=f"net-{side}",
        input=replace(made.input, size=(side, side)),
        unit=replace(made.unit, index=index, center_px=center, stride_px=(8.0, 8.0)),
        trf=trf,
        measures={},
        findings=(),
        map=ErfMap(values=values / values.sum(), center_px=center, stride_px=(8.0, 8.0), trf=trf),
    )
    return replace(found, **changes)


def bell(side: int, sigma: float) -> np.ndarray:
    line = np.exp(-((np.arange(side) - side // 2) ** 2) / (2 * sigma**2))
    return np.outer(line, line)


def enlarged(measured) -> list[Result]:
    """What is measured at the sizes that are asked for."""
    return auto_input_size.grown(measured)


def sides(rows: list[Result]) -> list[int]:
    return [each.input.size[0] for each in rows]


def said(result: Result) -> list[tuple[str, str]]:
    return [(each.code, each.text) for each in result.findings if each.code in (ENOUGH, TOO_SMALL)]


# --- the share ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("center", "other", "shape", "outside"),
    [
        ((4, 4), (2, 2), (4, 4), 48 / 64),
        ((4, 4), (4, 4), (8, 8), 0.0),
        # Three rows and three columns of the window lie on the map.
        ((0, 0), (1, 1), (4, 4), 55 / 64),
        ((0, 0), (9, 9), (4, 4), 1.0),
        ((4, 4), (20, 20), (40, 40), 0.0),
    ],
)
def test_of_a_uniform_map_the_share_outside_is_that_of_its_area(center, other, shape, outside):
    uniform = ErfMap(values=np.full((8, 8), 1 / 64), center_px=center, stride_px=(1.0, 1.0))
    window = ErfMap(values=np.zeros(shape), center_px=other, stride_px=(1.0, 1.0))
    assert share_outside(uniform, window) == pytest.approx(outside)


# --- how far it goes ------------------------------------------------------------------------------


def test_an_input_is_doubled_until_less_than_a_tenth_of_the_erf_lies_outside_the_size_before():
    rows = enlarged(lambda size: [row(bell((size or (OWN,))[0], 20.0), field((size or (OWN,))[0], 801))])
    bells = {side: bell(side, 20.0) for side in (64, 128, 256)}
    outside = {n: 1 - each[n // 4 : -n // 4, n // 4 : -n // 4].sum() / each.sum() for n, each in bells.items()}
    assert [share > 0.1 for share in outside.values()] == [True, True, False]
    assert sides(rows) == [32, 64, 128, 256]
    assert [said(each) for each in rows[:-1]] == [[]] * 3
    shown = f"{outside[256]:.0%} of the ERF at 256x256 lies outside 128x128; large enough"
    assert said(rows[-1]) == [(ENOUGH, f"input size auto ends at 256x256: {shown}")]


def corner(side: int) -> np.ndarray:
    """A map with a share of its sum in the corner, that falls with every doubling, and the rest in the middle."""
    values = np.zeros((side, side))
    values[0, 0] = {32: 0.0, 64: 0.9, 128: 0.6, 256: 0.3}[side]
    values[side // 2, side // 2] = 1 - values[0, 0]
    return values


def narrow(side: int) -> np.ndarray:
    return bell(side, 4.0)


def wide(side: int) -> np.ndarray:
    return bell(side, 14.0)


def uniform(side: int) -> np.ndarray:
    return np.ones((side, side))


SHARE = 1 - wide(64)[16:48, 16:48].sum() / wide(64).sum()
LIES = "of the theoretical receptive field (TRF) lies outside"
ATTENTION = {"global_by": "attention (blocks.0)"}


@pytest.mark.parametrize(
    ("values", "size", "more", "ends_at", "code", "words"),
    [
        (narrow, 21, {}, 32, ENOUGH, [f"0% {LIES} 32x32"]),
        (wide, 61, {}, 64, ENOUGH, [f"{SHARE:.0%} of the ERF at 64x64 lies outside 32x32 and 0% {LIES} 64x64"]),
        (uniform, 8, ATTENTION, 128, TOO_SMALL, ["75% of the ERF", "the ERF grows", "(blocks.0) sees all"]),
        (corner, 801, {}, 32 * 2**DOUBLINGS, TOO_SMALL, ["30% of the ERF", "no more than 8 times the model's own"]),
    ],
    ids=["a field inside the own size", "a field inside the next size", "an ERF that grows", "three doublings"],
)
def test_where_it_ends_and_why(values, size, more, ends_at, code, words):
    rows = enlarged(lambda at: [row(values((at or (OWN,))[0]), field((at or (OWN,))[0], size, **more))])
    assert sides(rows) == [side for side in (32, 64, 128, 256) if side <= ends_at]
    ((found, text),) = said(rows[-1])
    assert found == code
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("how", ["raised", "a row"])
def test_a_larger_size_that_fails_is_the_reason_and_no_result(how):
    def measured(size):
        if size is None:
            return [row(bell(OWN, 20.0), field(OWN, 801))]
        if how == "raised":
            raise ErfscopeError("it takes 32x32 only")
        return [row(bell(64, 20.0), field(64, 801), status="error", error="it takes 32x32 only")]

    (only,) = enlarged(measured)
    assert only.ok
    ((code, text),) = said(only)
    assert code == TOO_SMALL
    assert text.endswith(
        "of the theoretical receptive field (TRF) lies outside 32x32; 64x64 cannot be measured: it takes 32x32 only"
    )


def test_a_result_of_no_use_and_a_run_that_was_stopped_end_it_without_a_word():
    for changes in ({"status": "degenerate"}, {"findings": (Finding(code="stopped", text="stopped"),)}):
        rows = enlarged(lambda size, changes=changes: [row(bell(OWN, 20.0), field(OWN, 801), **changes)])
        assert (sides(rows), said(rows[0])) == ([OWN], [])
    assert enlarged(lambda size: []) == []


def test_every_result_has_to_fit_and_says_its_own_share():
    def measured(size):
        side = (size or (OWN,))[0]
        return [row(bell(side, sigma), field(side, 801), id=f"{sigma}-{side}") for sigma in (2.0, 12.0)]

    rows = enlarged(measured)
    assert sides(rows) == [32, 32, 64, 64, 128, 128]
    texts = [said(each)[0][1] for each in rows[-2:]]
    assert "0% of the ERF" in texts[0]
    assert texts[0] != texts[1]


# --- whole calls ----------------------------------------------------------------------------------

SMALL = {"weights": "random", "samples": 1, "measures": ["r50"]}


@pytest.mark.slow
def test_every_size_is_a_row_with_the_numbers_of_that_size(tmp_path):
    grown = erfscope.sweep("test_efficientnet", input_size="auto", **SMALL)
    assert [each.input.size for each in grown] == [(160, 160), (320, 320)]
    for each in grown:
        alone = erfscope.analyze("test_efficientnet", input_size=each.input.size, **SMALL)
        np.testing.assert_array_equal(each.map.values, alone.map.values)
    assert [said(each)[0][0] if said(each) else None for each in grown] == [None, ENOUGH]
    assert grown.settings["input_size"] == "auto"
    assert len({each.id for each in grown}) == 2
    # A stored run is gone on with.
    grown.save(tmp_path / "erf", drawn=False)
    stored = erfscope.read(tmp_path / "erf")
    again = erfscope.sweep("test_efficientnet", input_size="auto", resume=stored, **SMALL)
    assert [said(each) for each in again] == [said(each) for each in grown]


@pytest.mark.slow
def test_a_model_of_one_size_says_so_and_is_measured_there():
    adapter = erfscope.wrap(nn.Sequential(conv(3, 4, 41), conv(4, 4, 41)), input_size=32)
    (result,) = erfscope.sweep(adapter, input_size="auto", samples=2)
    assert result.input.size == (32, 32)
    ((code, text),) = said(result)
    assert code == TOO_SMALL
    assert "64x64 cannot be measured: this adapter was made for inputs of (32, 32)" in text


def test_elsewhere_a_size_has_to_be_given(tmp_path):
    pair, auto = ["test_resnet", "test_vit"], {"input_size": "auto"}
    words = r"input size auto is found by measuring one model, .*; give a size such as 224 here"
    one_line(lambda: erfscope.compare(pair, **auto), words)
    one_line(lambda: erfscope.compare_isolated(pair, **auto), words)
    one_line(lambda: erfscope.check("test_resnet", baseline=tmp_path / "b.json", **auto), words)
    one_line(lambda: erfscope.sweep("test_resnet", input_size="auto,224"), words)
    one_line(lambda: erfscope.sweep("test_resnet", shard="1/2", **auto), "shards have to be of one input size")
    images = torch.zeros(1, 3, 64, 64)
    one_line(lambda: erfscope.analyze("test_resnet", images=images, **auto), "a ready tensor is used as it is")

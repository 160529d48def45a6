"""Every pair of options of ``analyze`` works together, or is refused in one line that says what to do."""

from __future__ import annotations

import itertools
import typing

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope import ErfscopeError, Options

IMAGE = np.random.default_rng(0).integers(0, 255, (20, 24, 3), dtype=np.uint8)
#: Other values than the defaults.
VALUES: list[tuple[str, object]] = [
    *(("layer", "3"), ("layer", "0,3"), ("wrt", "0"), ("wrt", "3:in"), ("channels", (0, 2))),
    *(("unit", "all"), ("unit", "grid:2"), ("unit", "corner"), ("unit", (1, 2))),
    *(("convention", "luo"), ("convention", "signed"), ("convention", "replknet"), ("convention", "kim")),
    *(("draws", "all"), ("draws", 3), ("method", "occlusion"), ("method", "integrated_gradients")),
    *(("method", "smoothgrad"), ("method", "guided_backprop"), ("measures", "all"), ("measures", "r50")),
    *(("samples", 3), ("images", [IMAGE, IMAGE[::-1]]), ("image", IMAGE), ("synthetic", "noise"), ("squash", True)),
    *(("seed", 7), ("dtype", "float64"), ("amp_dtype", "bfloat16"), ("tf32", True), ("batch_size", 2)),
    *(("workers", 1), ("keep_going", True), ("until_se", 0.5), ("shard", "1/2"), ("trust", True), ("verify", True)),
    *(("plain", True), ("show_samples", True), ("halo", True), ("accept", "gradient_disagrees")),
    *(("label", "mine"), ("input_size", (24, 18)), ("input_size", "auto"), ("insert", "gcn@0"), ("in_chans", 3)),
    *(("mean", (0.1, 0.2, 0.3)), ("std", (1.0, 2.0, 3.0)), ("layout", "NCHW"), ("device", "cpu")),
    *(("axes", "hw"), ("spacing", (2.0, 1.0))),
    ("transform", lambda image: torch.full((3, 16, 16), np.asarray(image).mean() / 255)),
]
#: Files, callbacks, and what only a spec, another option or another layout takes.
ELSEWHERE = {
    *("fps", "sample_rate", "unit_name"),
    *("alpha", "checkpoint", "keep_in", "model_kwargs", "prefix_tokens", "progress", "resume", "stop", "tell"),
    *("unsafe_load", "weights"),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, 2, 1))
    return nn.Sequential(*layers).eval()


def measured(model: nn.Module, *options: tuple[str, object]) -> erfscope.Report:
    asked = {"input_size": (16, 16), "samples": 1, "measures": "r50", **dict(options)}
    if {"image", "images"} & asked.keys() and "samples" not in dict(options):
        del asked["samples"]
    return erfscope.sweep(model, **asked)


def test_every_option_has_a_value_here():
    assert {name for name, _ in VALUES} | ELSEWHERE == set(typing.get_type_hints(Options))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_option_works_alone():
    model = net()
    for option in VALUES:
        assert all(result.ok for result in measured(model, option)), option


@pytest.mark.slow
@pytest.mark.parametrize("first", range(len(VALUES)), ids=lambda at: f"{VALUES[at][0]}-{at}")
@pytest.mark.filterwarnings("ignore")
def test_a_pair_of_options_works_or_is_refused_in_one_line(first):
    model, wrong = net(), []
    for one, other in itertools.product(VALUES[first : first + 1], VALUES[first + 1 :]):
        if one[0] == other[0]:
            continue
        try:
            report = measured(model, one, other)
        except ErfscopeError as error:
            if "\n" in str(error) or not str(error).strip():
                wrong.append((one, other, str(error)))
            continue
        except Exception as error:
            wrong.append((one, other, f"{type(error).__name__}: {error}"))
            continue
        for result in report:
            if result.error is not None and ("internal" in result.error or "\n" in result.error):
                wrong.append((one, other, result.error))
            if result.ok and (result.map is None or not np.isfinite(result.map.values).all()):
                wrong.append((one, other, "no map"))
    assert wrong == []

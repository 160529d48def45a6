"""Every pair of values of two options of ``analyze`` works in some call, among many others, or is refused in one line
that says what to do."""

from __future__ import annotations

import re
import typing
from collections import defaultdict
from itertools import combinations, product

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
    ("transform", lambda image: torch.linspace(0, np.asarray(image).mean() / 255, 768).view(3, 16, 16)),
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
    for parameter in (net := nn.Sequential(*layers).eval()).parameters():
        parameter.data.abs_()  # no unit is closed, and every gradient is positive
    return net


def measured(model: nn.Module, *options: tuple[str, object]) -> erfscope.Report:
    asked = {"input_size": (16, 16), "samples": 1, "measures": "r50", **dict(options)}
    if {"image", "images"} & asked.keys() and "samples" not in dict(options):
        del asked["samples"]
    return erfscope.sweep(model, **asked)


CAPTUM = ("occlusion", "integrated_gradients", "smoothgrad", "guided_backprop")
#: Options that exclude each other, with their values or None for any that is here, and what the refusal says.
#: None of what only takes too long.
EXCLUSIVE: list[tuple[dict[str, object], str | None]] = [
    ({"layer": "0,3", "wrt": "3:in"}, "does not depend on"),
    ({"wrt": None, "method": "guided_backprop"}, "on the image only"),
    ({"wrt": None, "show_samples": None}, "leave --show-samples or --wrt out"),
    ({"wrt": None, "method": "occlusion", "until_se": None}, "leave --until-se out"),
    ({"wrt": None, "method": "occlusion", "shard": None}, "cannot be measured in shards"),
    ({"input_size": "auto", "method": None}, None),
    ({"input_size": "auto", "trust": None}, None),
    ({"unit": "all", "method": None}, "leave --method out"),
    ({"unit": "all", "shard": None}, "leave --shard out"),
    ({"draws": "all", "method": None}, "give a number of draws"),
    ({"method": None, "amp_dtype": None}, "for the method gradient only"),
    ({"method": None, "trust": None}, "leave --trust or --method out"),
    ({"method": None, "verify": None}, "leave --verify or --method out"),
    ({"images": None, "image": None}, "either images or image"),
    ({"images": None, "synthetic": None}, "either images or a synthetic kind"),
    ({"image": None, "synthetic": None}, "either images or a synthetic kind"),
    ({"squash": None, "transform": None}, "leave it out"),
    ({"amp_dtype": None, "verify": None}, "leave --verify or --amp-dtype out"),
    ({"tf32": None, "trust": None}, "leave --trust or --tf32 out"),
    ({"tf32": None, "verify": None}, "leave --verify or --tf32 out"),
    ({"until_se": None, "shard": None}, "give --samples instead"),
    ({"shard": None, "input_size": "auto"}, "give a size"),
    ({"input_size": None, "transform": None}, "give the size"),
]
Option = tuple[str, int]
CHOICES: dict[str, list[object]] = defaultdict(list)
for name, value in VALUES:
    CHOICES[name].append(value)


def excluded() -> dict[frozenset[Option], str | None]:
    found = {}
    for row, words in EXCLUSIVE:
        fits = [[(name, at) for at, each in enumerate(CHOICES[name]) if row[name] in (None, each)] for name in row]
        found |= {frozenset(chosen): words for chosen in product(*fits)}
    return found


def covering() -> list[dict[str, int]]:
    """Calls in one of which each pair of values stands that are not exclusive: greedily, each option takes the value
    with the most pairs that were in no call before."""
    never, calls = {*excluded()}, []
    options = [(name, number) for name, values in CHOICES.items() for number in range(len(values))]
    open_pairs = {frozenset(pair) for pair in combinations(options, 2) if pair[0][0] != pair[1][0]} - never
    while open_pairs:
        call = dict(min(map(sorted, open_pairs)))
        while True:
            fit = [each for each in options if each[0] not in call]
            fit = [each for each in fit if not any(each in group <= {each, *call.items()} for group in never)]
            gains = [sum(frozenset({each, taken}) in open_pairs for taken in call.items()) for each in fit]
            if not max(gains, default=0):
                break
            call |= [fit[gains.index(max(gains))]]
        open_pairs -= {frozenset(pair) for pair in combinations(call.items(), 2)}
        calls.append(call)
    return calls


def test_every_option_has_a_value_here():
    assert {name for name, _ in VALUES} | ELSEWHERE == set(typing.get_type_hints(Options))


@pytest.mark.slow
@pytest.mark.parametrize("call", covering(), ids=lambda call: f"{len(call)} options")
@pytest.mark.filterwarnings("ignore")
def test_options_work_together(call):
    report = measured(net(), *((name, CHOICES[name][number]) for name, number in call.items()))
    # A convention that takes positive numbers alone finds no gradient in what is negative.
    assert {result.status for result in report} <= {"ok", "degenerate"}, [result.error for result in report]
    assert all(np.isfinite(result.map.values).all() for result in report if result.ok)


@pytest.mark.parametrize(
    ("pair", "words"),
    [each for each in excluded().items() if each[1]],
    ids=lambda each: each if isinstance(each, str) else " ".join(sorted(dict(each))),
)
@pytest.mark.filterwarnings("ignore")
def test_options_that_exclude_each_other_are_refused_in_one_line(pair, words):
    with pytest.raises(ErfscopeError, match=f"^[^\n]*{re.escape(words)}[^\n]*$"):
        measured(net(), *((name, CHOICES[name][number]) for name, number in pair))

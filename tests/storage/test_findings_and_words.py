"""Decisions are taken on fields: every kind of finding is in one table, and what older reports said in words alone is
read into fields."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import made_up
import pytest
import torch
from torch import nn

import erfscope
from erfscope.adapters.preprocess import input_config, preprocess
from erfscope.finding import CODES, SWITCHED_ON, Finding, code_of
from erfscope.results.comparability import CONDITIONS, Use, differing, values
from erfscope.storage.migrations import reworded, upgrade

ROOT = Path(erfscope.__file__).parent


def test_every_finding_that_is_made_is_of_a_known_kind():
    made = set()
    for folder in (ROOT, ROOT / "adapters", ROOT / "cli"):
        for path in folder.resolve().rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                    made |= {
                        k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)
                    }
    assert made <= set(CODES)
    # Those of pictures without use are made in a loop.
    assert set(CODES) - made == {"dead_images", "nan_images", "unreadable_images"}


def test_a_finding_of_another_version_is_one_of_the_model():
    assert code_of(Finding(code="unheard_of", text="x")).scope == "model"


def test_preprocessing_is_said_in_steps():
    own = preprocess(input_config({}))
    assert own.text == f"{own.resize_text}, {own.scale_text}; assumed: size, mean, std"
    assert own.pixelwise
    theirs = preprocess(input_config({}), lambda picture: torch.zeros(3, 4, 4))
    assert (theirs.pixelwise, theirs.scale_text, theirs.text) == (False, "", theirs.resize_text)


@pytest.mark.parametrize(
    ("transform", "resize", "scale"),
    [
        (
            "bicubic resize, center crop 0.9 to 8x8, mean 0.5, std 1; assumed: size",
            "bicubic resize, center crop 0.9 to 8x8",
            "mean 0.5, std 1",
        ),
        ("the user's own transform", "the user's own transform", ""),
        ("", "", ""),
    ],
)
def test_lines_of_older_reports_are_read_into_fields(transform, resize, scale):
    entry = made_up.report(made_up.broken("net")).to_json()["results"][0]
    for name in ("resize", "scale", "described"):
        del entry["input"][name]
    entry["input"] |= {"transform": transform, "source": "image", "n_images": 1, "text": "/data/a.png"}
    for error, reason in (
        ("net gives NaN for all 2 images: x", "gives NaN for all 2 images: x"),
        ("net: no room", "no room"),
        ("late", "late"),
    ):
        found = upgrade({**entry, "error": error}, 2)
        assert found["error"] == reason
        assert (found["input"]["resize"], found["input"]["scale"], found["input"]["described"]) == (
            resize,
            scale,
            "file",
        )
    assert upgrade(upgrade(entry, 2), 2) == upgrade(entry, 2)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("1 synthetic leaves picture (version 1, seed 0)", "1 synthetic image (dead leaves, version 1, seed 0)"),
        ("20 synthetic noise pictures (version 1, seed 3)", "20 synthetic images (white noise, version 1, seed 3)"),
        (
            "1 branches that are zero at initialisation were switched on",
            f"1 residual branch starts at zero; {SWITCHED_ON}",
        ),
        (
            "8 branches that are zero at initialisation were switched on",
            f"8 residual branches start at zero; {SWITCHED_ON}",
        ),
        ("8 zero-initialised residual branches were set to 1", f"8 residual branches start at zero; {SWITCHED_ON}"),
        (
            "gcn is the identity at its initialisation: 2 weights were set to 1 or drawn anew",
            "gcn starts without effect; re-initialised",
        ),
        (
            "computed without the cone: add in head uses numbers that may depend on the position",
            "cropping disabled: add in head may depend on the position",
        ),
        (
            "31% of the theoretical field's area in-plane lies outside this input and shrinks the sizes",
            (
                "input too small: sizes are underestimates; 31% of the in-plane area of the theoretical receptive field"
                " (TRF) lies outside"
            ),
        ),
        (
            (
                "net cannot run without numbers (its path depends on values): its fields come from one forward pass on"
                " cpu with random pixels, and hold for the path it took"
            ),
            (
                "net has data-dependent control flow; traced once with random input on cpu (its path depends on"
                " values): its theoretical receptive fields (TRFs) hold for the path it took"
            ),
        ),
        ("stopped after 2 of 4 pictures; the same command", "stopped after 2 of 4 images; the same command"),
        (
            "shard 2/2, 2 pictures of 4 synthetic leaves pictures (version 1, seed 0)",
            "shard 2/2, 2 images of 4 synthetic images (dead leaves, version 1, seed 0)",
        ),
        ("shard 1/2 saw 2 of 4 pictures; `erfscope merge`", "shard 1/2 saw 2 of 4 images; `erfscope merge`"),
        ("a batch of 16 pictures did not fit into memory", "a batch of 16 images did not fit into memory"),
        (
            "cropping disabled: the cone differs from the whole pass by up to 1e-3 on 1 of 4 pictures",
            "cropping disabled: the cone differs from the whole pass by up to 1e-3 on 1 of 4 images",
        ),
        *(
            (
                f"{code}: 33% of the ERF is the unit's own cell; compare context_r50 and far_mass",
                "33% of the ERF is the unit's own cell; compare context_r50 and far_mass",
            )
            for code in ("skip_dominated", "own_cell_dominated")
        ),
        ("bfloat16 changes the map of the first picture by 3%", "bfloat16 changes the map of the first image by 3%"),
        ("no gradient in head 2 (first picture)", "no gradient in head 2 (first image)"),
        (
            "the theoretical field is an upper bound: f not understood",
            "the theoretical receptive field (TRF) is an upper bound: f not understood",
        ),
        # Names of files are nobody's words.
        ("picture.png", "picture.png"),
        (
            "20 of 50 images in 'my pictures, theoretical field' (seed 0)",
            "20 of 50 images in 'my pictures, theoretical field' (seed 0)",
        ),
    ],
)
def test_texts_of_older_reports_read_as_those_of_today(then, now):
    assert reworded(then) == now
    assert reworded(now) == now


def test_shards_without_a_finite_gradient_say_why(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1))
    nn.init.constant_(net[0].weight, float("nan"))
    for number in (1, 2):
        report = erfscope.sweep(net, input_size=16, samples=4, shard=f"{number}/2")
        report.save(tmp_path / str(number), drawn=False)
        stored = json.loads((tmp_path / str(number) / "report.json").read_text())["results"][0]
        assert stored["shard"]["nan_cause"].startswith("weights are not finite in 0.weight")
    merged = erfscope.merge([tmp_path / "1", tmp_path / "2"])[0]
    assert merged.error == "gives NaN for all 4 images: weights are not finite in 0.weight; load other weights"
    assert merged.error == erfscope.analyze(net, input_size=16, samples=4).error


def test_every_condition_serves_something():
    assert all(each.uses or each.gate for each in CONDITIONS)
    names = [each.gate for each in CONDITIONS if each.gate]
    assert len(set(names)) == len(names)


def test_an_option_without_a_field_is_a_condition_of_its_own():
    first = made_up.result()
    other = replace(first, options={"some_option": (1, 2)})
    assert differing(first, other) == ["some option (None against (1, 2))"]
    for use in (Use.COMPARE, Use.RESUME, Use.FAILURE):
        assert values(first, use) != values(other, use)
        assert values(other, use) == values(replace(first, options={"some_option": (1, 2)}), use)
    stored = made_up.report(other).to_json()["results"][0]
    assert stored["options"] == {"some_option": [1, 2]}

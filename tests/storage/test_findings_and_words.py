"""Decisions are taken on fields: every kind of finding is in one table."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import made_up
import pytest
from torch import nn

import erfscope
from erfscope.core.answer.comparability import Use, differing, values
from erfscope.core.values.finding import CODES

ROOT = Path(erfscope.__file__).parent


@pytest.mark.slow
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
    # Those of pictures without use, and of less precision, are made in a loop.
    assert set(CODES) - made == {"dead_images", "nan_images", "unreadable_images", "amp_error", "tf32_error"}


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
    assert merged.error == erfscope.analyze(net, input_size=16, samples=4, errors="row").error


def test_an_option_without_a_field_is_a_condition_of_its_own():
    first = made_up.result()
    other = replace(first, options={"some_option": (1, 2)})
    assert differing(first, other) == ["some option (None against (1, 2))"]
    for use in (Use.COMPARE, Use.RESUME):
        assert values(first, use) != values(other, use)
        assert values(other, use) == values(replace(first, options={"some_option": (1, 2)}), use)
    stored = made_up.report(other).to_json()["results"][0]
    assert stored["options"] == {"some_option": [1, 2]}

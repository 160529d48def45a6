"""Runs measured in shards: together they are the run measured at once, and nothing else is put together."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import erfscope
from erfscope import ErfscopeError, MeasurementError, Report
from erfscope.core.values.shard import Shard, parse

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")
OPTIONS = {
    "weights": "random",
    "input_size": 64,
    "samples": 11,
    "dtype": "float64",
    "layer": "layer2,layer3",
    "unit": "centre,corner",
}
SHARDS = ("1/3", "2/3", "3/3")


@pytest.fixture(scope="module")
def whole() -> Report:
    return erfscope.sweep("test_resnet", **OPTIONS)


@pytest.fixture(scope="module")
def shards() -> list[Report]:
    return [erfscope.sweep("test_resnet", shard=shard, **OPTIONS) for shard in SHARDS]


@pytest.fixture(scope="module")
def stored(shards, tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("shards")
    paths = [folder / f"s{number}" for number in (1, 2, 3)]
    for shard, path in zip(shards, paths, strict=True):
        shard.save(path)
    return [str(path) for path in paths]


def close(ours: object, theirs: object, rel: float) -> bool:
    return ours == pytest.approx(theirs, rel=rel) if isinstance(theirs, float) else ours == theirs


def assert_alike(ours: Report, theirs: Report, tolerance: float = 1e-12) -> None:
    assert [result.id for result in ours] == [result.id for result in theirs]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.map.values, b.map.values, rtol=0, atol=tolerance * b.map.values.max())
        assert (a.status, a.input, a.findings, a.trf, a.unit) == (b.status, b.input, b.findings, b.trf, b.unit)
        assert (a.gradient_ratio or 0) == pytest.approx(b.gradient_ratio or 0, rel=1e-9)
        for name, measure in b.measures.items():
            rel = 1e-9
            assert close(a[name].value, measure.value, rel), name
            assert close(a[name].se, measure.se, 1e-6), name
            assert a[name].leave_one_out == pytest.approx(measure.leave_one_out, rel=rel), name


@pytest.mark.parametrize("of", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [7, 20])
def test_every_picture_is_in_one_shard(n, of):
    found = [index for number in range(1, of + 1) for index in Shard(number=number, of=of).indices(n)]
    assert sorted(found) == list(range(n))


@pytest.mark.parametrize("text", ["", "x", "0/3", "4/3", "1/0", "-1/3", "1.5/3", "1/", "1/3/2", "١/٣x"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ErfscopeError, match="shard"):
        parse(text)


@pytest.mark.slow
def test_more_shards_than_pictures_are_refused():
    with pytest.raises(ErfscopeError, match=r"shard 3/3 of 2 images is empty; use at most 2 shards"):
        erfscope.analyze("test_resnet", weights="random", samples=2, shard="3/3")


@pytest.mark.slow
def test_shards_together_are_the_run_measured_at_once(whole, stored):
    assert_alike(erfscope.merge(stored), whole)


@pytest.mark.slow
def test_the_order_of_the_shards_changes_nothing(shards):
    documents = []
    for order in itertools.permutations(shards):
        document = erfscope.merge(order).to_json()
        documents.append(json.dumps({**document, "results": [{**each, "seconds": 0} for each in document["results"]]}))
    assert len(set(documents)) == 1


@pytest.mark.slow
def test_a_merged_report_has_no_trace_of_its_shards(whole, stored):
    ours, theirs = erfscope.merge(stored).to_json(), whole.to_json()
    assert ours["settings"] == {**theirs["settings"], "shard": None}
    assert {entry["shard"] is None for entry in ours["results"]} == {True}


@pytest.mark.slow
def test_a_shard_says_that_it_is_one(stored):
    report = erfscope.read(stored[1])
    assert report[0].input.n_images == 4
    assert report[0].input.text.startswith("shard 2/3, 4 images of ")
    assert report[0].findings[0].text == "shard 2/3 saw 4 of 11 images; `erfscope merge` puts the shards together"
    schema = json.loads((files("erfscope.core.answer.storage") / "schema" / "report-1.json").read_text())
    jsonschema.validate(json.loads(json.dumps(report.to_json(), allow_nan=False)), schema)


@pytest.mark.slow
def test_a_shard_survives_being_stored(shards, stored):
    for shard, path in zip(shards, stored, strict=True):
        again = erfscope.read(path)
        assert again.to_json()["results"][0]["shard"] == shard.to_json()["results"][0]["shard"]
        for ours, theirs in zip(again, shard, strict=True):
            np.testing.assert_array_equal(ours.part.average.values(), theirs.part.average.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ((0, 2), r"missing: shard 2/3 of test_resnet; measure them with --shard, and name all 3"),
        ((1,), r"missing: shards 1/3, 3/3"),
        ((0, 1, 1, 2), r"given more than once: shard 2/3"),
    ],
)
def test_gaps_and_overlaps_are_refused(shards, chosen, words):
    with pytest.raises(MeasurementError, match=words):
        erfscope.merge([shards[number] for number in chosen])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("seed", 1, r"seed \(0 against 1\)"),
        ("samples", 12, r"images"),
        ("convention", "energy", r"convention \(jacobian against energy\)"),
        ("input_size", 96, r"different results: test_resnet-layer1-u12x12"),
    ],
)
def test_shards_of_another_run_are_refused_by_name(option, value, words):
    asked = {"weights": "random", "input_size": 64, "samples": 8, "layer": "layer1", "dtype": "float64"}
    reports = [
        erfscope.sweep("test_resnet", shard="1/2", **asked),
        erfscope.sweep("test_resnet", shard="2/2", **{**asked, option: value}),
    ]
    with pytest.raises(MeasurementError, match=words):
        erfscope.merge(reports)


@pytest.mark.slow
def test_another_number_of_shards_is_refused(shards):
    other = erfscope.sweep("test_resnet", shard="2/2", **OPTIONS)
    with pytest.raises(MeasurementError, match=r"shard 2/2 of test_resnet is of another run than shard 1/3"):
        erfscope.merge([shards[0], other])


@pytest.mark.slow
def test_a_whole_run_and_nothing_at_all_are_refused(whole, shards):
    with pytest.raises(ErfscopeError, match="is no shard with its sums") as caught:
        erfscope.merge([shards[0], whole])
    assert not isinstance(caught.value, MeasurementError)
    with pytest.raises(ErfscopeError, match="nothing to merge"):
        erfscope.merge([])


@pytest.mark.slow
def test_numbers_without_their_sums_are_refused(shards, tmp_path):
    for number, shard in enumerate(shards):
        shard.save(tmp_path / f"{number}.json")
    with pytest.raises(ErfscopeError, match=r"store shards as folders"):
        erfscope.merge([tmp_path / f"{number}.json" for number in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"groups": {"0": 1.0}},
        {"groups": {"0": -1.0, "3": 1.0, "6": 1.0, "9": 1.0}},
        {"leaked": 7},
    ],
)
def test_a_damaged_shard_is_refused_in_one_line(shards, tmp_path, change):
    shards[0].save(tmp_path / "s")
    file = tmp_path / "s" / "report.json"
    document = json.loads(file.read_text())
    document["results"][0]["shard"] |= change
    file.write_text(json.dumps(document))
    with pytest.raises(ErfscopeError, match="damaged"):
        erfscope.read(tmp_path / "s")


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["energy", "signed", "kim"])
def test_every_convention_can_be_measured_in_shards(convention):
    asked = {
        "weights": "random",
        "input_size": 64,
        "samples": 6,
        "layer": "layer1",
        "dtype": "float64",
        "convention": convention,
    }
    whole = erfscope.sweep("test_resnet", **asked)
    merged = erfscope.merge([erfscope.sweep("test_resnet", shard=f"{number}/2", **asked) for number in (1, 2)])
    assert_alike(merged, whole)
    if whole[0].published is None:
        assert merged[0].published is None
    else:
        assert json.dumps(merged[0].published)[:60] == json.dumps(whole[0].published)[:60]


class Gated(nn.Module):
    """A model that is dead for dark images, and not finite for bright ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = x.mean(dim=(1, 2, 3), keepdim=True)
        return self.conv(x) * (gate > -1) / (gate < 1)


@pytest.mark.slow
def test_dead_and_broken_pictures_are_named_as_in_one_run():
    torch.manual_seed(0)
    model, x = Gated().double(), torch.randn(9, 3, 8, 8, dtype=torch.float64) * 0.1
    x[2], x[5] = -2, 2
    module = nn.Sequential(model)
    whole = erfscope.sweep(module, images=x)
    merged = erfscope.merge([erfscope.sweep(module, images=x, shard=f"{number}/3") for number in (3, 1, 2)])
    assert_alike(merged, whole)
    assert merged[0].input.dead == ("tensor[2]", "tensor[5]")


@pytest.mark.slow
def test_a_shard_whose_pictures_are_all_of_no_use_counts(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64) * 0.1
    x[1], x[3] = -2, -2
    module = nn.Sequential(Gated().double())
    for number in (1, 2):
        erfscope.sweep(module, images=x, shard=f"{number}/2").save(tmp_path / f"s{number}")
    merged = erfscope.merge([tmp_path / "s1", tmp_path / "s2"])
    assert (merged[0].ok, merged[0].input.n_dead, merged[0].input.n_images) == (True, 2, 4)
    assert_alike(merged, erfscope.sweep(module, images=x))


@pytest.mark.slow
def test_compare_puts_shards_of_stored_runs_together(tmp_path):
    asked = {"weights": "random", "samples": 6, "input_size": 96}
    for label in ("test_resnet", "test_vit"):
        for number in (1, 2):
            erfscope.sweep(label, shard=f"{number}/2", **asked).save(tmp_path / f"{label}-{number}")
    names = [str(tmp_path / f"{label}-{number}") for number in (2, 1) for label in ("test_vit", "test_resnet")]
    report = erfscope.compare(names)
    assert [(row.label, row.input.n_images) for row in report] == [("test_vit", 6), ("test_resnet", 6)]
    assert report.differences()[1]["r50"][1] > 0
    with pytest.raises(MeasurementError, match=r"missing: shard 2/2 of test_vit"):
        erfscope.compare(names[1:])


@pytest.mark.slow
def test_a_shard_that_failed_makes_the_result_an_error(shards):
    failed = replace(shards[1][0], part=None, map=None, measures={}, status="error", error="no memory")
    broken = replace(shards[1], results=(failed, *shards[1].results[1:]))
    merged = erfscope.merge([shards[0], broken, shards[2]])
    assert (merged[0].status, merged[0].error) == ("error", "shard 2/3 failed: no memory")
    assert merged[1].ok


@pytest.mark.slow
def test_versions_that_differ_are_said(shards):
    other = {**shards[1].environment, "versions": {**shards[1].environment["versions"], "torch": "1.0"}}
    merged = erfscope.merge([shards[0], replace(shards[1], environment=other), shards[2]])
    assert any(
        finding.code == "versions" and "torch" in finding.text and "1.0" in finding.text
        for finding in merged[0].findings
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"until_se": 0.02}, "--samples instead of --until-se"),
        ({"method": "occlusion", "wrt": "layer1"}, "cannot be measured in shards"),
        ({"convention": (lambda y: y.sum(1), lambda g: g.abs().sum(1))}, "none of erfscope's own"),
    ],
)
def test_what_cannot_be_put_together_is_refused_before_it_is_measured(options, words):
    with pytest.raises(ErfscopeError, match=words):
        erfscope.sweep("test_resnet", weights="random", samples=4, shard="1/2", **options)


def test_a_check_takes_no_shard(tmp_path):
    with pytest.raises(ErfscopeError, match="a check needs the whole"):
        erfscope.check("test_resnet", baseline=tmp_path / "b.json", weights="random", shard="1/2")


@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 3])
def test_an_unreadable_picture_ends_no_shard_whosever_it_is(broken, tmp_path):
    """The first image of all is shown and looked at beside the measurement, also where it is another shard's."""
    for number in range(4):
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (24, 24, 3), np.uint8)).save(
            tmp_path / f"{number}.png"
        )
    (tmp_path / f"{broken}.png").write_bytes(b"no image")
    net = ClosedBranch()
    for shard in ("1/2", "2/2"):
        result = erfscope.analyze(
            net, images=tmp_path, input_size=24, keep_going=True, measures="r50", layer="output", shard=shard
        )
        assert result.ok
        assert "zero_branches" in {finding.code for finding in result.findings}


class ClosedBranch(nn.Module):
    """x + norm(x), the norm's weights all zeros."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        nn.init.zeros_(self.last.weight)

    def forward(self, x):
        x = self.conv(x)
        return x + self.last(x)

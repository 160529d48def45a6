"""Runs measured in shards: together they are the run measured at once, and nothing else is put together."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
import torch
from nets import Does
from PIL import Image
from torch import nn

import erfscope
from erfscope import ErfscopeError, MeasurementError, Report
from erfscope.core.values.shard import Shard, parse

pytestmark = pytest.mark.usefixtures("memory_unplanned")
OPTIONS = {"input_size": 32, "samples": 11, "label": "net"}


def stack() -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 6, 3, 2, 1), nn.Tanh(), nn.Conv2d(6, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 6, 3, 2, 1)]
    return nn.Sequential(*parts).double()


def sweep(**more: object) -> Report:
    return erfscope.sweep(stack(), **{**OPTIONS, "layer": "2,4", "unit": "centre,corner", **more})


@pytest.fixture(scope="module")
def whole() -> Report:
    return sweep()


@pytest.fixture(scope="module")
def shards() -> list[Report]:
    return [sweep(shard=shard) for shard in ("1/3", "2/3", "3/3")]


@pytest.fixture(scope="module")
def stored(shards, tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("shards")
    paths = [folder / f"s{number}" for number in (1, 2, 3)]
    for shard, path in zip(shards, paths, strict=True):
        shard.save(path, drawn=False)
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
            assert close(a[name].value, measure.value, 1e-9), name
            assert close(a[name].se, measure.se, 1e-6), name
            assert a[name].leave_one_out == pytest.approx(measure.leave_one_out, rel=1e-9), name


@pytest.mark.parametrize("of", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [7, 20])
def test_every_picture_is_in_one_shard(n, of):
    found = [index for number in range(1, of + 1) for index in Shard(number=number, of=of).indices(n)]
    assert sorted(found) == list(range(n))


@pytest.mark.parametrize("text", ["", "x", "0/3", "4/3", "1/0", "-1/3", "1.5/3", "1/", "1/3/2", "١/٣x"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ErfscopeError, match="shard"):
        parse(text)


def test_more_shards_than_pictures_are_refused():
    with pytest.raises(ErfscopeError, match=r"shard 3/3 of 2 images is empty; use at most 2 shards"):
        sweep(samples=2, shard="3/3")


@pytest.mark.slow
def test_shards_together_are_the_run_measured_at_once_without_a_trace_of_them(whole, shards, stored):
    merged = erfscope.merge(stored)
    assert_alike(merged, whole)
    ours, theirs = merged.to_json(), whole.to_json()
    assert ours["settings"] == {**theirs["settings"], "shard": None}
    assert {entry["shard"] is None for entry in ours["results"]} == {True}
    documents = []
    for order in itertools.permutations(shards):
        document = erfscope.merge(order).to_json()
        documents.append(json.dumps({**document, "results": [{**each, "seconds": 0} for each in document["results"]]}))
    assert len(set(documents)) == 1


def test_a_shard_says_that_it_is_one_and_survives_being_stored(shards, stored):
    report = erfscope.read(stored[1])
    assert report[0].input.n_images == 4
    assert report[0].input.text.startswith("shard 2/3, 4 images of ")
    assert report[0].findings[0].text == "shard 2/3 saw 4 of 11 images; `erfscope merge` puts the shards together"
    schema = json.loads((files("erfscope.core.answer.storage") / "schema" / "report-1.json").read_text())
    jsonschema.validate(json.loads(json.dumps(report.to_json(), allow_nan=False)), schema)
    for shard, path in zip(shards, stored, strict=True):
        again = erfscope.read(path)
        assert again.to_json()["results"][0]["shard"] == shard.to_json()["results"][0]["shard"]
        for ours, theirs in zip(again, shard, strict=True):
            np.testing.assert_array_equal(ours.part.average.values(), theirs.part.average.values())


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ((0, 2), r"missing: shard 2/3 of net; measure them with --shard, and name all 3"),
        ((1,), r"missing: shards 1/3, 3/3"),
        ((0, 1, 1, 2), r"given more than once: shard 2/3"),
    ],
)
def test_gaps_and_overlaps_are_refused(shards, chosen, words):
    with pytest.raises(MeasurementError, match=words):
        erfscope.merge([shards[number] for number in chosen])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 1}, r"seed \(0 against 1\)"),
        ({"samples": 12}, r"images"),
        ({"convention": "energy"}, r"convention \(jacobian against energy\)"),
        ({"input_size": 48}, r"different results: net-2-u12x12, net-2-u8x8, net-4-"),
        ({"shard": "2/2"}, r"shard 2/2 of net is of another run than shard 1/3"),
    ],
)
def test_shards_of_another_run_are_refused_by_name(options, words, shards):
    other = sweep(**{"shard": "2/3", **options})
    with pytest.raises(MeasurementError, match=words):
        erfscope.merge([shards[0], other, shards[2]])


def test_a_whole_run_and_nothing_at_all_are_refused(whole, shards):
    with pytest.raises(ErfscopeError, match="is no shard with its sums") as caught:
        erfscope.merge([shards[0], whole])
    assert not isinstance(caught.value, MeasurementError)
    with pytest.raises(ErfscopeError, match="nothing to merge"):
        erfscope.merge([])


def test_numbers_without_their_sums_are_refused(shards, tmp_path):
    for number, shard in enumerate(shards):
        shard.save(tmp_path / f"{number}.json")
    with pytest.raises(ErfscopeError, match=r"store shards as folders"):
        erfscope.merge([tmp_path / f"{number}.json" for number in range(3)])


@pytest.mark.parametrize(
    "change", [{"groups": {"0": 1.0}}, {"groups": {"0": -1.0, "3": 1.0, "6": 1.0, "9": 1.0}}, {"leaked": 7}]
)
def test_a_damaged_shard_is_refused_in_one_line(stored, tmp_path, change):
    file = shutil.copytree(stored[0], tmp_path / "s") / "report.json"
    document = json.loads(file.read_text())
    document["results"][0]["shard"] |= change
    file.write_text(json.dumps(document))
    with pytest.raises(ErfscopeError, match="damaged"):
        erfscope.read(tmp_path / "s")


@pytest.mark.slow
def test_every_convention_can_be_measured_in_shards():
    for convention in ("energy", "signed", "kim"):
        asked = {"samples": 6, "layer": "2", "unit": "centre", "convention": convention}
        whole = sweep(**asked)
        merged = erfscope.merge([sweep(**asked, shard=f"{number}/2") for number in (1, 2)])
        assert_alike(merged, whole)
        if whole[0].published is None:
            assert merged[0].published is None
        else:
            assert json.dumps(merged[0].published)[:60] == json.dumps(whole[0].published)[:60]


def gated() -> nn.Module:
    """A model that is dead for dark images, and not finite for bright ones."""

    def gate(m: Does, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        return m.conv(x) * (mean > -1) / (mean < 1)

    torch.manual_seed(0)
    return nn.Sequential(Does(gate, conv=nn.Conv2d(3, 4, 3, padding=1)).double())


@pytest.mark.slow
def test_dead_and_broken_pictures_are_named_as_in_one_run():
    module, x = gated(), torch.randn(9, 3, 8, 8, dtype=torch.float64) * 0.1
    x[2], x[5] = -2, 2
    whole = erfscope.sweep(module, images=x)
    merged = erfscope.merge([erfscope.sweep(module, images=x, shard=f"{number}/3") for number in (3, 1, 2)])
    assert_alike(merged, whole)
    assert merged[0].input.dead == ("tensor[2]", "tensor[5]")


@pytest.mark.slow
def test_a_shard_whose_pictures_are_all_of_no_use_counts(tmp_path):
    module, x = gated(), torch.randn(4, 3, 8, 8, dtype=torch.float64) * 0.1
    x[1], x[3] = -2, -2
    for number in (1, 2):
        erfscope.sweep(module, images=x, shard=f"{number}/2").save(tmp_path / f"s{number}", drawn=False)
    merged = erfscope.merge([tmp_path / "s1", tmp_path / "s2"])
    assert (merged[0].ok, merged[0].input.n_dead, merged[0].input.n_images) == (True, 2, 4)
    assert_alike(merged, erfscope.sweep(module, images=x))


def test_compare_puts_shards_of_stored_runs_together(tmp_path):
    for label, kernel in (("one", 3), ("two", 5)):
        model = nn.Conv2d(3, 4, kernel, padding=kernel // 2)
        for number in (1, 2):
            shard = erfscope.sweep(model, label=label, samples=6, input_size=16, shard=f"{number}/2")
            shard.save(tmp_path / f"{label}-{number}", drawn=False)
    names = [str(tmp_path / f"{label}-{number}") for number in (2, 1) for label in ("two", "one")]
    report = erfscope.compare(names)
    assert [(row.label, row.input.n_images) for row in report] == [("two", 6), ("one", 6)]
    assert report.differences()[1]["r50"][1] > 0
    with pytest.raises(MeasurementError, match=r"missing: shard 2/2 of two"):
        erfscope.compare(names[1:])


def test_a_shard_that_failed_makes_the_result_an_error(shards):
    failed = replace(shards[1][0], part=None, map=None, measures={}, status="error", error="no memory")
    broken = replace(shards[1], results=(failed, *shards[1].results[1:]))
    merged = erfscope.merge([shards[0], broken, shards[2]])
    assert (merged[0].status, merged[0].error) == ("error", "shard 2/3 failed: no memory")
    assert merged[1].ok


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
        ({"method": "occlusion", "wrt": "0"}, "cannot be measured in shards"),
        ({"convention": (lambda y: y.sum(1), lambda g: g.abs().sum(1))}, "none of erfscope's own"),
    ],
)
def test_what_cannot_be_put_together_is_refused_before_it_is_measured(options, words):
    with pytest.raises(ErfscopeError, match=words):
        sweep(shard="1/2", **options)


def test_a_check_takes_no_shard(tmp_path):
    with pytest.raises(ErfscopeError, match="a check needs the whole"):
        erfscope.check(stack(), baseline=tmp_path / "b.json", shard="1/2")


@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 3])
def test_an_unreadable_picture_ends_no_shard_whosever_it_is(broken, tmp_path):
    """The first image of all is shown and looked at beside the measurement, also where it is another shard's."""
    for number in range(4):
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (24, 24, 3), np.uint8)).save(
            tmp_path / f"{number}.png"
        )
    (tmp_path / f"{broken}.png").write_bytes(b"no image")
    # x + norm(x), the norm's weights all zeros.
    closed = Does(lambda m, x: x + m.last(x), last=nn.BatchNorm2d(4))
    nn.init.zeros_(closed.last.weight)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), closed)
    for shard in ("1/2", "2/2"):
        result = erfscope.analyze(
            net, images=tmp_path, input_size=24, keep_going=True, measures="r50", layer="output", shard=shard
        )
        assert result.ok
        assert "zero_branches" in {finding.code for finding in result.findings}

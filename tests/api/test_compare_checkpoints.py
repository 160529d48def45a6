"""Checkpoints of one model side by side: in the order of the training, each with its own weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from one_line import one_line
from torch import nn

import erfscope
from erfscope.adapters.weights.checkpoint_files import checkpoints, step_of
from erfscope.show.figures.draw import fitting

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")

SOURCE = """
from torch import nn
def build(depth=2):
    return nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(depth)))
"""
OPTIONS = {"of": "smallnet.py:build", "input_size": 16, "samples": 4, "measures": "r50"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three checkpoints: the later, the more of the outer weights is left."""
    (tmp_path / "smallnet.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1))
    for step, outer in ((2, 0.1), (10, 0.5), (100, 1.0)):
        state = {name: value.clone() for name, value in net.state_dict().items()}
        for name in ("0.weight", "1.weight"):
            mask = torch.full((3, 3), outer)
            mask[1, 1] = 1
            state[name] *= mask
        torch.save(state, tmp_path / f"ckpt-{step}.pt")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("given", [["ckpt-10.pt", "ckpt-100.pt", "ckpt-2.pt"], ["ckpt-*.pt"]])
def test_rows_stand_in_the_order_of_the_training(run, given):
    report = erfscope.compare(given, **OPTIONS)
    assert [(row.label, row.step) for row in report] == [(f"smallnet.py:build @ {step}", step) for step in (2, 10, 100)]
    assert {row.weights.source for row in report} == {"checkpoint"}
    sizes = [row["r50"].value for row in report]
    assert sizes == sorted(sizes)
    assert report.differences()[2]["r50"][0] == pytest.approx(sizes[2] - sizes[0])
    alone = erfscope.analyze(
        "smallnet.py:build", checkpoint="ckpt-10.pt", **{k: v for k, v in OPTIONS.items() if k != "of"}
    )
    np.testing.assert_array_equal(report[1].map.values, alone.map.values)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["ckpt-100.pt", "ckpt-10.pt"], ["ckpt-100.pt", "ckpt-10.pt"]),
        (["ckpt-100.pt", "ckpt-[2-9].pt"], ["ckpt-100.pt", "ckpt-2.pt"]),
        (["ckpt-2.pt", "ckpt-1?*.pt"], ["ckpt-2.pt", "ckpt-10.pt", "ckpt-100.pt"]),
        ([Path("ckpt-2.pt"), Path("ckpt-10.pt"), Path("ckpt-1.pt")], ["ckpt-2.pt", "ckpt-10.pt", "ckpt-1.pt"]),
        (["b-1.pt", "a-2.pt", "a-10.pt"], ["b-1.pt", "a-2.pt", "a-10.pt"]),
        (["b-*.pt", "a-*.pt"], ["b-1.pt", "a-2.pt", "a-10.pt"]),
    ],
)
def test_files_named_one_by_one_keep_their_order_unless_a_shell_could_have_written_them(run, given, names):
    for name in ("b-1.pt", "a-2.pt", "a-10.pt", "ckpt-1.pt"):
        (run / name).write_bytes(b"")
    assert [saved.file.name for _, saved in checkpoints(given, "net")] == names


@pytest.mark.slow
def test_a_training_can_be_drawn_and_stored(run):
    report = erfscope.compare(["ckpt-*.pt"], **OPTIONS)
    assert "training" in fitting(report.results)
    figure = report.figure(kind="training")
    (line,) = [line for ax in figure.axes for line in ax.lines if line.get_gid() == "r50"]
    np.testing.assert_allclose(line.get_xdata().astype(float), [2, 10, 100])
    np.testing.assert_allclose(line.get_ydata().astype(float), [row["r50"].value for row in report])
    report.save(run / "erf")
    assert erfscope.read(run / "erf").to_json() == report.to_json()
    assert (run / "erf" / "training.png").is_file()
    # Labels are those that are given, and names where numbers do not tell files apart.
    (run / "last.pt").write_bytes((run / "ckpt-2.pt").read_bytes())
    assert [label for label, _ in checkpoints(["last.pt", "ckpt-2.pt"], "net")] == ["last.pt", "ckpt-2.pt"]
    report = erfscope.compare({"early": "ckpt-2.pt", "late": "ckpt-100.pt"}, **OPTIONS)
    assert [row.label for row in report] == ["early", "late"]


@pytest.mark.parametrize(
    ("name", "step"),
    [("ckpt-12.pt", 12), ("epoch=3-step=400.ckpt", 400), ("best.pt", None), ("v2.safetensors", 2), ("1" * 40, None)],
)
def test_the_step_is_the_last_number_of_the_name(name, step):
    assert step_of(Path(name)) == step


LOST = r"ckpt-3\.pt' holds no weights: it has a list; a checkpoint holds tensors by name"


@pytest.mark.parametrize(
    ("models", "more", "words"),
    [
        (["nothing-*.pt"], {}, "no checkpoint matches 'nothing-\\*.pt'"),
        (["resnet18"], {}, "there is no checkpoint file 'resnet18'"),
        ([], {}, "name at least one checkpoint file"),
        ([nn.Conv2d(1, 1, 1)], {}, "not Conv2d"),
        (["ckpt-3.pt"], {}, LOST),
        (["ckpt-3.pt", "ckpt-4.pt"], {}, LOST),
        (["ckpt-2.pt", "ckpt-10.pt"], {"of": "smallnet.py:biuld"}, "biuld"),
        (["ckpt-2.pt", "ckpt-10.pt"], {"layer": "7"}, "unknown layer '7'"),
    ],
)
def test_what_is_no_checkpoint_or_wrong_with_all_is_refused_once(run, models, more, words):
    for file in ("ckpt-3.pt", "ckpt-4.pt"):
        torch.save([1, 2], run / file)
    one_line(lambda: erfscope.compare(models, **OPTIONS | more), words)


@pytest.mark.slow
def test_a_checkpoint_that_does_not_load_is_a_row_with_its_reason(run):
    torch.save({"other.weight": torch.zeros(1)}, run / "ckpt-3.pt")
    report = erfscope.compare(["ckpt-2.pt", "ckpt-3.pt", "ckpt-10.pt"], **OPTIONS)
    assert [(row.step, row.status) for row in report] == [(2, "ok"), (3, "error"), (10, "ok")]
    assert "ckpt-3.pt' does not fit" in report[1].error
    assert (report[1].weights.source, report[1].weights.origin, report[1].measures) == ("checkpoint", "ckpt-3.pt", {})
    assert report.differences()[2]["r50"][0] == pytest.approx(report[2]["r50"].value - report[0]["r50"].value)

"""Measuring while a model is trained: the numbers are those of ``analyze``, and the training does not notice."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import nn

import erfscope
from erfscope.errors import ErfscopeError
from erfscope.monitoring import ErfMonitor

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = {"samples": 3, "input_size": 32, "quiet": True}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 8, 3, padding=1)]
    return nn.Sequential(*parts)


def train(model: nn.Module, steps: int, monitor: ErfMonitor | None = None) -> list[torch.Tensor]:
    """A few steps with dropout and batch statistics, measuring in the midst of each: after the backward pass, before the step."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 32, 32)).square().mean().backward()
        if monitor is not None:
            monitor.step(step)
        optimizer.step()
    return [value.clone() for value in model.state_dict().values()]


def test_the_numbers_are_those_of_analyze():
    model = net()
    result = ErfMonitor(model, **OPTIONS).step(0)
    alone = erfscope.analyze(model, samples=3, input_size=32)
    np.testing.assert_array_equal(result.map.values, alone.map.values)
    assert result.label == "Sequential @ 0"


def test_a_training_does_not_notice():
    plain, watched = net(), net()
    monitor = ErfMonitor(watched, **OPTIONS)
    for ours, theirs in zip(train(watched, 4, monitor), train(plain, 4), strict=True):
        assert torch.equal(ours, theirs)
    assert watched.training
    assert [moment.step for moment in monitor.moments] == [0, 1, 2, 3]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.modules())


def test_every_measurement_sees_the_weights_of_its_time():
    model = net()
    monitor = ErfMonitor(model, **OPTIONS)
    first = monitor.step(0)
    with torch.no_grad():
        model[4].weight[:, :, 0] = 0
        model[4].weight[:, :, 2] = 0
    second = monitor.step(1)
    assert second["r50"].value < first["r50"].value
    np.testing.assert_array_equal(second.map.values, erfscope.analyze(model, samples=3, input_size=32).map.values)


def test_only_every_nth_step_is_measured_and_what_is_forced():
    monitor = ErfMonitor(net(), every=3, **OPTIONS)
    found = [monitor.step(step) is not None for step in range(7)]
    assert found == [True, False, False, True, False, False, True]
    assert monitor.step(8, force=True) is not None


@pytest.mark.parametrize("budget", [1e-9, "0.0001%"])
def test_a_budget_passes_steps_over_and_says_so_once(budget, capfd):
    monitor = ErfMonitor(net(), budget=budget, **{**OPTIONS, "quiet": False})
    assert [monitor.step(step) is not None for step in range(4)] == [True, False, False, False]
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("erfscope: step 0: r50 ")
    assert lines[0].endswith(" s)")
    assert [line for line in lines[1:] if "passed over" in line] == lines[1:2]
    assert len(lines) == 2
    assert monitor.step(4, force=True) is not None


def test_a_generous_budget_measures_everything():
    monitor = ErfMonitor(net(), budget=3600, **OPTIONS)
    assert all(monitor.step(step) is not None for step in range(3))


class Compiled(nn.Module):
    """What torch.compile makes, without a compiler."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


@pytest.mark.parametrize("wrapper", ["data parallel", "average", "timm", "compiled", "both"])
def test_wrappers_are_looked_through(wrapper):
    model = net()
    wrapped = {
        "data parallel": nn.DataParallel,
        "average": torch.optim.swa_utils.AveragedModel,
        "timm": timm.utils.ModelEmaV3,
        "compiled": Compiled,
        "both": lambda module: nn.DataParallel(Compiled(module)),
    }[wrapper](model)
    result = ErfMonitor(wrapped, **OPTIONS).step(0)
    assert result.label == "Sequential @ 0"
    np.testing.assert_array_equal(result.map.values, erfscope.analyze(model, samples=3, input_size=32).map.values)


def test_a_compiled_module_stays_compiled():
    model = net()
    compiled = torch.compile(model, backend="eager")
    result = ErfMonitor(compiled, **OPTIONS).step(0)
    np.testing.assert_array_equal(result.map.values, erfscope.analyze(copy.deepcopy(model), samples=3, input_size=32).map.values)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_the_callers_mode_changes_nothing(mode):
    model = net()
    with mode():
        inside = ErfMonitor(model, **OPTIONS).step(0)
    np.testing.assert_array_equal(inside.map.values, ErfMonitor(model, **OPTIONS).step(0).map.values)


def test_only_the_first_rank_measures(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        assert (ErfMonitor(net(), **OPTIONS).step(0) is None) == (rank == 1)


def test_scalars_go_to_whoever_logs():
    logged = []
    monitor = ErfMonitor(net(), log=lambda scalars, step: logged.append((step, scalars)), **OPTIONS)
    result = monitor.step(7)
    assert logged == [(7, result.scalars())]
    assert logged[0][1]["erf/r50"] == result["r50"].value


def test_a_model_that_breaks_is_a_result_and_not_an_exception():
    model, logged = net(), []
    monitor = ErfMonitor(model, log=lambda *told: logged.append(told), **OPTIONS)
    with torch.no_grad():
        model[0].weight[:] = float("nan")
    result = monitor.step(0)
    assert (result.status, "NaN" in result.error, logged) == ("error", True, [])


def test_the_report_has_a_row_per_step(tmp_path):
    monitor = ErfMonitor(net(), **OPTIONS)
    with pytest.raises(ErfscopeError, match="nothing was measured yet"):
        monitor.report()
    for step in range(3):
        monitor.step(step)
    report = monitor.report()
    assert [row.label for row in report] == ["Sequential @ 0", "Sequential @ 1", "Sequential @ 2"]
    assert report.differences()[2]["r50"] == (0.0, None)  # three pictures are too few for an error
    report.save(tmp_path / "erf")
    assert erfscope.read(tmp_path / "erf").to_json() == report.to_json()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every must be at least 1"),
        ({"budget": "soon"}, "cannot read the budget 'soon'"),
        ({"budget": -1}, "cannot read the budget -1"),
        ({"sample": 3}, "unknown option 'sample'"),
        ({"weights": "random"}, "weights means nothing to a monitor"),
        ({"layer": "0,2"}, "layer asks for several"),
        ({"convention": ["luo", "energy"]}, "convention asks for several"),
    ],
)
def test_bad_options_are_refused_before_a_training_starts(options, words):
    with pytest.raises(ErfscopeError, match=words):
        ErfMonitor(net(), **options)


def test_several_units_are_refused():
    with pytest.raises(ErfscopeError, match="make one monitor for each"):
        ErfMonitor(net(), unit="grid:2", **OPTIONS).step(0)


DISTRIBUTED = """
import sys, torch, torch.distributed as dist
from torch import nn
import erfscope
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)))
monitor = erfscope.ErfMonitor(model, samples=2, input_size=16, quiet=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(2, 3, 16, 16)).square().mean().backward()
    monitor.step(step)
    optimizer.step()
print(len(monitor.moments), float(sum(p.sum() for p in model.parameters())))
dist.destroy_process_group()
"""


def test_distributed_training_goes_on(tmp_path):
    """Two real processes; a collective call in one of them only would hang both."""
    arguments = [sys.executable, "-c", DISTRIBUTED, str(tmp_path / "store")]
    runs = [subprocess.Popen([*arguments, str(rank)], stdout=subprocess.PIPE, text=True, cwd=ROOT) for rank in range(2)]
    try:
        first, second = (run.communicate(timeout=120)[0].split() for run in runs)
    finally:
        for run in runs:
            run.kill()
    assert (first[0], second[0]) == ("2", "0")
    assert first[1] == second[1]


@pytest.mark.parametrize("example", ["train_with_lightning", "train_with_trainer"])
def test_the_examples_run_with_the_real_libraries(example):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    script = str(ROOT / "examples" / f"{example}.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("| Sequential @")]
    assert len(rows) == 3


def test_a_part_that_is_not_there_is_named():
    pytest.importorskip("lightning")
    from lightning.pytorch import LightningModule

    from erfscope.monitoring.lightning import ErfCallback

    with pytest.raises(ErfscopeError, match="LightningModule has no part 'backbone'"):
        ErfCallback(part="backbone").on_fit_start(None, LightningModule())

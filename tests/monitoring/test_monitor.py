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
import torch.utils.checkpoint
import warm
from torch import nn
from torch.utils.checkpoint import checkpoint

import erfscope
from erfscope import ErfMonitor, ErfscopeError
from erfscope.adapters.weights.weights import sha256
from erfscope.apps.monitor import monitor as monitoring

pytestmark = pytest.mark.usefixtures("memory_unplanned")

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"samples": 3, "input_size": 32, "quiet": True}
MEASURED = {"samples": 3, "input_size": 32}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    first, last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    return nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), last)


def train(model: nn.Module, steps: int, monitor: ErfMonitor | None = None) -> list[torch.Tensor]:
    """A few steps with dropout and batch statistics, measuring in the midst of each: after the backward pass, before
    the step."""
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


@pytest.mark.slow
def test_numbers_are_those_of_analyze_with_the_weights_of_their_time():
    model = net()
    result = ErfMonitor(model, **OPTIONS).step(0)
    alone = erfscope.analyze(model, **MEASURED)
    np.testing.assert_array_equal(result.map.values, alone.map.values)
    assert result.label == "Sequential @ 0"
    model = net()
    monitor = ErfMonitor(model, **OPTIONS)
    first = monitor.step(0)
    with torch.no_grad():
        model[4].weight[:, :, 0] = 0
        model[4].weight[:, :, 2] = 0
    second = monitor.step(1)
    assert second["r50"].value < first["r50"].value
    assert second.weights.sha256 == second.map.provenance["weights"]["sha256"] == sha256(model) != first.weights.sha256
    np.testing.assert_array_equal(second.map.values, erfscope.analyze(model, **MEASURED).map.values)


@pytest.mark.slow
def test_a_training_does_not_notice_and_records_the_structure_once(monkeypatch):
    plain, watched = net(), net()
    monitor = ErfMonitor(watched, **OPTIONS)
    for ours, theirs in zip(train(watched, 4, monitor), train(plain, 4), strict=True):
        assert torch.equal(ours, theirs)
    assert watched.training
    assert [moment.step for moment in monitor.moments] == [0, 1, 2, 3]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.modules())
    made, real = [], monitoring.open_model
    monkeypatch.setattr(monitoring, "open_model", lambda *args, **more: made.append(1) or real(*args, **more))
    train(net(), 3, ErfMonitor(net(), **OPTIONS))
    model = net()
    train(model, 3, ErfMonitor(model, **OPTIONS))
    assert len(made) == 2


@pytest.mark.slow
def test_the_report_has_a_row_per_step_that_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("erfscope.show.figures.draw.figure_bytes", lambda *_: b"")
    monitor = ErfMonitor(net(), **OPTIONS)
    with pytest.raises(ErfscopeError, match="nothing was measured yet"):
        monitor.report()
    for step in range(3):
        monitor.step(step)
    report = monitor.report()
    assert [row.label for row in report] == ["Sequential @ 0", "Sequential @ 1", "Sequential @ 2"]
    assert "(ERF) of Sequential at 3 steps of its training:" in report.table(["r50"], format="latex")
    assert report.differences()[2]["r50"] == (0.0, 0.0)  # the same weights, over the same draws
    report.save(tmp_path / "erf")
    assert erfscope.read(tmp_path / "erf").to_json() == report.to_json()
    monitor = ErfMonitor(net(), every=3, **OPTIONS)
    found = [monitor.step(step) is not None for step in range(7)]
    assert found == [True, False, False, True, False, False, True]
    assert monitor.step(8, force=True) is not None


@pytest.mark.slow
def test_a_budget_passes_steps_over_and_says_so_once(capfd):
    for budget in (1e-9, "0.0001%"):
        monitor = ErfMonitor(net(), budget=budget, **{**OPTIONS, "quiet": False})
        assert [monitor.step(step) is not None for step in range(4)] == [True, False, False, False]
        first, second = capfd.readouterr().err.splitlines()
        assert first.startswith("erfscope: step 0: r50 ")
        assert first.endswith(" s)")
        assert "steps are skipped" in second
    assert monitor.step(4, force=True) is not None


#: What torch.compile makes is below.
WRAPPERS = [timm.utils.ModelEmaV3, lambda module: nn.DataParallel(torch.optim.swa_utils.AveragedModel(module))]


@pytest.mark.slow
def test_wrappers_are_looked_through():
    expected = erfscope.analyze(net(), **MEASURED).map.values
    for wrapper in WRAPPERS:
        result = ErfMonitor(wrapper(net()), **OPTIONS).step(0)
        assert result.label == "Sequential @ 0"
        np.testing.assert_array_equal(result.map.values, expected)


def hand_in(model: nn.Module, backend: str, how: str) -> nn.Module:
    """Compile a model, a part of it, or its method."""
    if how == "whole":
        return torch.compile(model, backend=backend)
    if how == "in place":
        model.compile(backend=backend, fullgraph=True)
    elif how == "part in place":
        model[4].compile(backend=backend)
    elif how == "part":
        model[4] = torch.compile(model[4], backend=backend)
    elif how == "method":
        model.forward = torch.compile(model.forward, backend=backend)
    return model


def graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def fed(model: nn.Module) -> None:
    model(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(3))).square().mean().backward()


#: PyTorch's own, when it compiles a part.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("how", ["whole", "in place", "part in place", "part", "method"])
def test_a_compiled_module_is_measured_uncompiled_and_stays_compiled(how):
    torch._dynamo.reset()
    model, before = hand_in(net().eval(), "aot_eager", how), graphs()
    fed(model)
    compiled = graphs()
    assert compiled > before
    expected = erfscope.analyze(net(), **MEASURED).map.values
    # A compiled method cannot be copied, so that the model runs whole: the same but for rounding in float32.
    rounding = 1e-6 if how == "method" else 0
    for found in (ErfMonitor(model, **OPTIONS).step(0), erfscope.analyze(model, **MEASURED)):
        np.testing.assert_allclose(found.map.values, expected, rtol=0, atol=rounding * expected.max())
    fed(model)
    assert graphs() == compiled


class Checkpointed(nn.Module):
    """Two parts that are run again in the backward pass."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant, parts = reentrant, net()
        self.first, self.second = parts[:4], parts[4:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in (self.first, self.second):
            x = part(x) if self.reentrant is None else checkpoint(part, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False])
def test_activations_that_are_computed_again_in_training_are_kept_for_measuring(reentrant):
    model, plain = Checkpointed(reentrant), Checkpointed(None)
    x = torch.randn(4, 3, 32, 32, requires_grad=True)
    model(x).sum().backward()
    statistics = copy.deepcopy(model.state_dict())
    plain.load_state_dict(statistics)
    for layer in (None, "first", "second.4"):
        expected = erfscope.analyze(plain, layer=layer, **MEASURED).map.values
        for found in (
            ErfMonitor(model, layer=layer, **OPTIONS).step(0),
            erfscope.analyze(model, layer=layer, **MEASURED),
        ):
            np.testing.assert_array_equal(found.map.values, expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, statistics[name])
    runs = []
    model.second[0].register_forward_pre_hook(lambda *_: runs.append(1))
    model(x).sum().backward()
    assert len(runs) == 2, "the training checkpoints as before"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_timms_gradient_checkpointing_changes_no_map(name):
    torch.manual_seed(0)
    model = timm.create_model(name).train()
    asked = {"samples": 2, "measures": "r50"}
    expected = erfscope.analyze(model, **asked).map.values
    model.set_grad_checkpointing(True)
    np.testing.assert_array_equal(ErfMonitor(model, quiet=True, **asked).step(0).map.values, expected)
    assert model.grad_checkpointing


@pytest.mark.slow
def test_what_wrap_made_is_measured_in_its_own_way_and_left_as_it_was():
    model = net()
    adapter = erfscope.wrap(model, forward=lambda module, x: module(x * 2), input_size=(32, 32))
    before = adapter.weights
    monitor = ErfMonitor(adapter, samples=3, quiet=True)
    np.testing.assert_array_equal(monitor.step(0).map.values, erfscope.analyze(adapter, samples=3).map.values)
    with torch.no_grad():
        model[0].weight += 1
    assert monitor.step(1).weights.sha256 == sha256(model) != before.sha256
    assert adapter.weights is before


@pytest.mark.slow
def test_the_callers_mode_changes_nothing():
    model = net()
    expected = ErfMonitor(model, **OPTIONS).step(0).map.values
    for mode in (torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", dtype=torch.bfloat16)):
        with mode():
            inside = ErfMonitor(model, **OPTIONS).step(0)
        np.testing.assert_array_equal(inside.map.values, expected)


@pytest.mark.slow
def test_scalars_are_logged_and_a_model_that_breaks_is_a_result_and_not_an_exception():
    logged = []
    monitor = ErfMonitor(net(), log=lambda scalars, step: logged.append((step, scalars)), **OPTIONS)
    result = monitor.step(7)
    assert logged == [(7, result.scalars())]
    assert logged[0][1]["erf/r50"] == result["r50"].value
    model, logged = net(), []
    monitor = ErfMonitor(model, log=lambda *told: logged.append(told), **OPTIONS)
    with torch.no_grad():
        model[0].weight[:] = float("nan")
    result = monitor.step(0)
    assert (result.status, "NaN" in result.error, logged) == ("error", True, [])

    def fails(*_: object) -> None:
        raise RuntimeError("out of luck")

    model = net()
    monitor, hook = ErfMonitor(model, **OPTIONS), model.register_forward_pre_hook(fails)
    result = monitor.step(1)
    assert (result.status, "out of luck" in result.error, result.label) == ("error", True, "Sequential @ 1")
    hook.remove()
    assert monitor.step(2).ok


class HalfDetached(nn.Sequential):
    """Cuts a half of what its last module gets off from autograd, in its own forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *first, last = self
        for module in first:
            x = module(x)
        return last((x + x.detach()) / 2)


@pytest.mark.slow
def test_a_gradient_that_is_wrong_is_said_and_the_training_goes_on():
    plain, watched, logged = HalfDetached(*net()), HalfDetached(*net()), []
    monitor = ErfMonitor(watched, trust=True, log=lambda *told: logged.append(told), **OPTIONS)
    for ours, theirs in zip(train(watched, 2, monitor), train(plain, 2), strict=True):
        assert torch.equal(ours, theirs)
    assert logged == []
    for moment in monitor.moments:
        # Half of the change is predicted: 1 / 0.5^2, but for the kinks of one ReLU.
        assert (moment.result.status, moment.result.trust.module) == ("degenerate", "")
        assert moment.result.trust.ratio.value == pytest.approx(4, rel=0.05)
        assert "the first operation without a true derivative is in the model itself" in moment.result.error
    right = ErfMonitor(net(), trust=True, **OPTIONS).step(0)
    assert right.ok
    assert not right.trust.disagrees


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every must be at least 1"),
        ({"budget": "soon"}, "cannot read the budget 'soon'"),
        ({"every": "2"}, "every is a whole number, not '2'"),
        ({"sample": 3}, "unknown option 'sample' in a monitor"),
        ({"resume": "erf/"}, "a monitor has no option resume"),
        ({"input_size": "32,64"}, "input_size asks for several"),
        ({"weights": "random"}, "a monitor has no option weights"),
    ],
)
def test_bad_options_are_refused_before_a_training_starts(options, words):
    with pytest.raises(ErfscopeError, match=words):
        ErfMonitor(net(), **options)


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


@pytest.mark.slow
def test_distributed_training_goes_on(tmp_path):
    """Two real processes; a collective call in one of them only would hang both."""
    arguments = [sys.executable, "-c", DISTRIBUTED, str(tmp_path / "store")]
    runs = [warm.WarmProcess([*arguments, str(rank)], stdout=subprocess.PIPE, text=True, cwd=ROOT) for rank in range(2)]
    try:
        first, second = (run.communicate(timeout=120)[0].split() for run in runs)
    finally:
        for run in runs:
            run.kill()
    assert (first[0], second[0]) == ("2", "0")
    assert first[1] == second[1]


@pytest.mark.more
@pytest.mark.parametrize("example", ["train_with_lightning", "train_with_trainer"])
def test_the_examples_run_with_the_real_libraries(example):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    script = str(ROOT / "examples" / f"{example}.py")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=200, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("| Sequential @")]
    assert len(rows) == 3


@pytest.mark.slow
def test_a_part_that_is_not_there_is_named():
    pytest.importorskip("lightning")
    from lightning.pytorch import LightningModule

    from erfscope.apps.monitor.lightning import ErfCallback

    with pytest.raises(ErfscopeError, match="LightningModule has no part 'backbone'"):
        ErfCallback(part="backbone").on_fit_start(None, LightningModule())

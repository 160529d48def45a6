"""Factories and models that change the process: results go where they were asked for, and exit codes are erfscope's."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from hostile import ACTIONS, DEADLY, FATAL, SOURCE, hostile_net

import erfscope
from erfscope.errors import ErfscopeError
from erfscope.hosting.process_state import keep_process, keep_switches

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--device", "cpu", "--input-size", "32", "--samples", "2", "--measures", "r50", "-q")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="on Linux only")


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(*arguments):
    """How a command is started: what to run, and in which environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return {"args": [sys.executable, "-m", "erfscope", *arguments], "env": environment}


def run(*arguments):
    asked = started(*arguments)
    return warm.run(asked["args"], env=asked["env"])


def state():
    return {
        "cwd": Path.cwd(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "filters": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "path": list(sys.path),
        "streams": (sys.stdout, sys.stderr),
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "random": random.getstate(),
        "depth": sys.getrecursionlimit(),
        "numpy errors": np.geterr(),
        "json": sys.modules.get("json"),
    }


@pytest.mark.parametrize("where", ["factory", "forward"])
@pytest.mark.parametrize("action", [action for action in ACTIONS if action != "closes_stdout"])
def test_the_process_is_handed_back_as_it_was_and_the_result_is_that_of_a_model_that_does_nothing(project, action, where):
    options = {"input_size": 32, "samples": 2, "device": "cpu", "measures": ["r50"]}
    plain, before = erfscope.analyze("nets.py:plain", **options), state()
    if (where, action) == ("factory", "device"):
        pytest.skip("the module is one without numbers then")
    if action == "generators" and threading.active_count() > 1:
        pytest.skip("generators stay where they are while other threads run, as an earlier test has left one")
    result = erfscope.analyze(f"nets.py:{where}_{action}", **options)
    assert state() == before
    # A forward pass without gradients, or in half precision, is the model's own doing.
    if where == "factory" or action not in ("grad_off", "inference", "autocast", "device"):
        assert float(result["r50"]) == pytest.approx(float(plain["r50"]), rel=1e-4)


def test_of_blocks_within_each_other_the_last_to_end_puts_the_state_back():
    before = torch.get_num_threads()
    with keep_switches():
        torch.set_num_threads(before + 1)
        with keep_switches():
            torch.set_num_threads(before + 2)
        assert torch.get_num_threads() == before + 2
    assert torch.get_num_threads() == before


def test_entries_of_the_path_that_were_taken_out_come_back_in_their_order():
    before = list(sys.path)
    with keep_process():
        sys.path[:] = ["new", *before[1:]]
    assert sys.path == before


@pytest.mark.parametrize("kind", DEADLY)
@pytest.mark.parametrize("where", ["factory", "forward", "backward"])
def test_what_ends_a_program_is_a_failed_model(project, kind, where):
    try:
        result = erfscope.analyze(f"nets.py:{where}_{kind}", input_size=32, samples=2, device="cpu", measures=["r50"])
    except ErfscopeError as error:
        assert where == "factory"
        text = str(error)
    else:
        assert result.status == "error"
        text = result.error
    assert "its code" in text
    assert "\n" not in text


def test_a_real_interruption_passes():
    def interrupted(module, x):
        signal.raise_signal(signal.SIGINT)
        return module(x)

    adapter = erfscope.wrap(hostile_net("nothing"), forward=interrupted, input_size=32)
    with pytest.raises(KeyboardInterrupt):
        erfscope.analyze(adapter, samples=2)


@pytest.mark.parametrize("model", ["factory_prints", "forward_prints", "forward_closes_stdout", "factory_prints_at_exit", "forward_chdir"])
def test_results_go_where_they_were_asked_for_and_json_is_pure(project, model):
    done = run("analyze", f"nets.py:{model}", *SMALL, "--json", "-o", "found.json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["status"] == "ok"
    assert (project / "found.json").is_file()
    if "prints" in model:
        assert all(words in done.stderr for words in ("by Python", "by Python too", "by descriptor", "by a child"))


@on_linux
@pytest.mark.parametrize(
    ("where", "kind"),
    [("factory", "exit_0"), ("factory", "segfault"), *(("forward", kind) for kind in (*FATAL, "sys_exit", "base_exception"))],
)
def test_a_check_of_a_model_that_died_is_neither_a_pass_nor_a_failure(project, kind, where):
    done = run("check", f"nets.py:{where}_{kind}", "--allow-new", *SMALL)
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert "its code" in " ".join(done.stdout.split()) or "no result" in done.stderr
    assert not (project / "erf-baseline.json").exists()


@on_linux
def test_who_is_asked_to_stop_from_outside_stops_by_that_signal(project):
    with warm.WarmProcess(**started("check", "nets.py:forward_sleeps", *SMALL), stderr=subprocess.PIPE, text=True) as process:
        while "asleep" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def test_a_torchscript_module_is_refused_by_that_name(project):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(torch.nn.Conv2d(3, 2, 3))
        torch.jit.save(scripted, "s.pt")
    with pytest.raises(ErfscopeError, match="is a TorchScript module"):
        erfscope.analyze(scripted, input_size=32, samples=2)
    with pytest.raises(ErfscopeError, match="has a TorchScript module, '1'"):
        erfscope.analyze(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), scripted), input_size=32, samples=2)
    with pytest.raises(ErfscopeError, match="is a TorchScript archive"):
        erfscope.analyze("s.pt", samples=2)
    with pytest.raises(ErfscopeError, match="is a TorchScript archive"):
        erfscope.analyze("nets.py:plain", checkpoint="s.pt", input_size=32, samples=2)


NET = "nets.py:plain"


@pytest.mark.parametrize(
    "words",
    [
        *(["loop.py:net"], ["loop"], ["local-dir:loop"], [NET, "--checkpoint", "loop.pth"], [NET, "--image", "loop.png"]),
        *([NET, "-o", "loop.json"], [NET, "-o", "loop/"], [NET, "--image", "loop/below.png"]),
    ],
    ids=" ".join,
)
def test_a_link_to_itself_is_named_as_the_cause(project, words, capsys):
    from erfscope.cli.main import _run

    for name in ("loop", "loop.py", "loop.pth", "loop.png", "loop.json"):
        (project / name).symlink_to(name)
    assert _run(["analyze", *words, *SMALL]) == 2
    said = capsys.readouterr().err
    assert "a link that leads back to itself" in said
    assert len(said.splitlines()) == 1


@on_linux
@pytest.mark.parametrize("gib", [0.7, 1.5])
def test_too_little_address_space_is_named_as_the_cause(project, gib):
    import resource

    limit = int(gib * 2**30)
    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))}
    done = subprocess.run(**started("analyze", NET, *SMALL), **limited, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "ulimit -v allows" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkout_without_symbolic_links_works(tmp_path):
    for name in ("erfscope", "adapters", "cli"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("adapters", "cli"):
        link = tmp_path / "erfscope" / name
        link.unlink()
        # What git writes where it makes no links.
        link.write_text(f"../{name}")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = "import erfscope.adapters, erfscope.cli.main; print(erfscope.cli.main.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "cli" / "main.py"), done.stderr
    done = subprocess.run([sys.executable, "-m", "erfscope", "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "erfscope,"), done.stderr

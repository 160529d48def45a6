"""The run over all of timm's models: in which order, within which time, and what becomes of a model that fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import erfscope
from erfscope import ErfscopeError
from erfscope.core.run.isolated import measure_alone
from erfscope.core.run.processes import Limits, Outcome

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import zoo
import zoo_table
import zoo_timm
from zoo_timm import ASKED, RESERVE, Budget, Model

LIMITS = Limits(seconds=90, bytes=2**33)
SIZES = {"netv2_a": 9, "net18": 5, "net50": 7, "tf_net_b0": 6, "vit_b": 8, "vit_s": 4, "late_x": None}
MODULES = {
    "netv2_a": "net",
    "net18": "net",
    "net50": "net",
    "tf_net_b0": "net",
    "vit_b": "vit",
    "vit_s": "vit",
    "late_x": "late",
}
MODELS = [Model(name=name, module=MODULES[name], parameters=size) for name, size in SIZES.items()]
#: One per module, then one per family that has none yet, then the rest; smallest first.
ORDER = [(1, "vit_s"), (1, "net18"), (1, "late_x"), (2, "tf_net_b0"), (2, "netv2_a"), (3, "net50"), (3, "vit_b")]


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Runner:
    """Takes ``seconds`` for a model, looking every second whether to stop."""

    def __init__(self, clock: Clock, seconds: float = 10.0) -> None:
        self.clock, self.seconds, self.names = clock, seconds, []

    def __call__(self, call, label, *given, limits, stop) -> Outcome:
        self.names.append(label)
        assert (call, limits) == (measure_alone, LIMITS)
        for _ in range(int(self.seconds)):
            self.clock.now += 1
            if stop():
                return Outcome(error="stopped", cause="environment")
        assert {name: given[-1][name] for name in ASKED} == ASKED
        return Outcome(error="not this time", seconds=self.seconds)


def measured(folder, clock, runner, seconds, *, anew=True) -> list[str]:
    rows, _ = zoo_timm.begun(folder, ASKED, anew=anew)
    told: list[str] = []
    order = zoo_timm.plan(MODELS)
    zoo_timm.measure_all(
        order, rows, Budget(seconds, clock), LIMITS, ASKED, lambda row: told.append(row["model"]), runner
    )
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()[1:]]
    assert told == [line["model"] for line in lines][len(lines) - len(told) :]
    return told


def test_one_model_per_architecture_comes_before_variants_and_small_ones_before_large_ones():
    assert [(number, model.name) for number, model in zoo_timm.plan(MODELS)] == ORDER
    assert zoo_timm.plan(MODELS[::-1]) == zoo_timm.plan(MODELS)


def test_every_model_of_timm_is_planned_once_and_every_module_in_the_first_round():
    models = zoo_timm.timm_models()
    planned = zoo_timm.plan(models)
    assert sorted(model.name for _, model in planned) == sorted(model.name for model in models)
    assert {model.module for number, model in planned if number == 1} == {model.module for model in models}
    assert {model.family for number, model in planned if number <= 2} == {model.family for model in models}
    assert {"resnet", "vision_transformer", "swin_transformer"} <= {model.module for model in models}
    assert len({model.name for model in models if model.family == ("resnet", "resnet")}) > 20


def test_parameters_are_counted_without_allocating_them():
    # He et al. 2015, as timm documents it.
    assert zoo_timm.parameters_of("resnet18") == 11_689_512


def test_counting_keeps_to_its_share_has_every_family_early_and_is_not_done_again(tmp_path):
    clock, counted = Clock(), []

    def count(name: str) -> int:
        clock.now += 1
        counted.append(name)
        if name == "net18":
            raise RuntimeError("cannot be built")
        return SIZES[name] or 1

    _, journal = zoo_timm.begun(tmp_path, ASKED, anew=True)
    models = [Model(name=model.name, module=model.module) for model in MODELS]
    # A quarter of 16 seconds, and the model during which they end.
    first = zoo_timm.counted(models, journal, Budget(16, clock), count)
    assert counted == ["netv2_a", "net18", "tf_net_b0", "vit_b", "late_x"]
    assert [model.parameters for model in first] == [9, None, None, 6, 8, None, 1]
    _, journal = zoo_timm.begun(tmp_path, ASKED, anew=False)
    second = zoo_timm.counted(models, journal, Budget(16, clock), count)
    assert counted[5:] == ["net50", "vit_s"]
    assert [model.parameters for model in second] == [9, None, 7, 6, 8, 4, 1]
    assert [model.name for model in second] == list(SIZES)


def test_a_run_ends_within_its_budget_and_the_next_one_does_the_rest(tmp_path):
    clock = Clock()
    runner = Runner(clock)
    begun = clock.now
    # Time for three models and a part of a fourth, which is no row: it did not fail.
    assert measured(tmp_path, clock, runner, 35 + RESERVE) == [name for _, name in ORDER[:3]]
    assert clock.now - begun == 35
    assert runner.names == [name for _, name in ORDER[:4]]
    again = Runner(clock)
    assert measured(tmp_path, clock, again, 1000, anew=False) == [name for _, name in ORDER[3:]] == again.names
    assert measured(tmp_path, clock, again, 1000, anew=False) == []


def test_a_line_that_was_not_written_to_its_end_is_measured_again(tmp_path):
    clock = Clock()
    measured(tmp_path, clock, Runner(clock), 1000)
    lines = (tmp_path / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:-5])
    assert measured(tmp_path, clock, Runner(clock), 1000, anew=False) == [ORDER[-1][1]]
    assert (tmp_path / "rows.jsonl").read_bytes().splitlines(keepends=True) == lines


def test_a_budget_smaller_than_its_reserve_measures_nothing(tmp_path):
    clock = Clock()
    runner = Runner(clock)
    assert measured(tmp_path, clock, runner, RESERVE) == []
    assert runner.names == []


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome(error="no result within 90 s", cause="environment", late=True), "late"),
        (Outcome(error="its process crashed (SIGSEGV)", cause="environment"), "crashed"),
        (Outcome(error="ValueError: no"), "error"),
    ],
)
def test_a_process_without_a_result_is_a_row_that_says_why(outcome, status):
    assert zoo_timm.found(outcome) == {"status": status, "error": outcome.error}


def test_a_row_says_what_the_report_of_a_model_says():
    found = erfscope.compare(["test_resnet"], input_size=96, **ASKED)
    row = zoo_timm.found(Outcome(value=found.results))
    (result,) = found
    assert (row["status"], row["error"], row["input_px"], row["layer"]) == ("ok", None, [96, 96], result.layer)
    assert tuple(row["trf_px"]) == result.trf.size_px
    assert (row["r50"], row["context_r50"]) == (float(result["r50"]), float(result["context_r50"]))
    cells = zoo_table.cells(row | {"model": "test_resnet", "parameters": 470000, "seconds": 1.25})
    side, r50, context = result.trf.size_px[0], float(result["r50"]), float(result["context_r50"])
    assert cells == ("test_resnet", "0.5", "ok", "1.2", "96", str(side), f"{r50:.1f}", f"{context:.1f}")


def test_a_folder_is_begun_once_and_gone_on_with_as_it_was_begun(tmp_path):
    zoo_timm.begun(tmp_path / "a", ASKED, anew=True)
    with pytest.raises(ErfscopeError, match="go on with --resume"):
        zoo_timm.begun(tmp_path / "a", ASKED, anew=True)
    with pytest.raises(ErfscopeError, match="ask as before"):
        zoo_timm.begun(tmp_path / "a", ASKED | {"input_size": [64, 64]}, anew=False)
    (tmp_path / "a" / "counts.jsonl").write_text("nonsense\n")
    with pytest.raises(ErfscopeError, match=r"counts\.jsonl is damaged"):
        zoo_timm.begun(tmp_path / "a", ASKED, anew=False)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ErfscopeError, match="holds something else"):
        zoo_timm.begun(tmp_path, ASKED, anew=False)


def test_a_run_leaves_rows_and_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        zoo_timm, "timm_models", lambda: [Model(name="test_resnet", module="resnet"), Model(name="none", module="m")]
    )
    assert zoo_timm.run(tmp_path, budget_s=100, anew=True, limits=LIMITS, input_size=32) == 1
    assert "1 of 2 models counted" in capsys.readouterr().out
    assert "| resnet | test_resnet | 0.5 | ok |" in (tmp_path / "table.md").read_text()
    first, *lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert first["settings"] == ASKED | {"input_size": [32, 32]}
    assert [(line["model"], line["round"]) for line in lines] == [("test_resnet", 1), ("none", 1)]


def row(name: str, status: str, error: str | None, **more) -> dict[str, object]:
    return {
        "model": name,
        "module": MODULES[name],
        "round": 1,
        "parameters": SIZES[name],
        "seconds": 2,
        "status": status,
        "error": error,
    } | more


def test_errors_that_differ_in_names_and_numbers_only_are_one_kind():
    rows = [
        row("net18", "error", "net18 has no map of 7 cells in 'a'", layer="a"),
        row("vit_s", "error", "vit_s has no map of 14 cells in 'b.3'", layer="b.3"),
        row("vit_b", "late", "no result within 90 s"),
        row("net50", "ok", None),
    ]
    lines = zoo_table.failures(rows).splitlines()
    assert lines[2:] == [
        "| error | net18, vit_s | net18 has no map of 7 cells in 'a' |",
        "| late | vit_b | no result within 90 s |",
    ]
    assert zoo_table.failures(rows[3:]) == "Every model that was measured is `ok`."


def test_what_was_not_run_is_counted_by_module():
    text = zoo_table.missing([row("net18", "ok", None), row("late_x", "ok", None)], MODELS)
    assert text.startswith("5 of 7 models; modules without any row: vit. ")
    assert text.endswith("By module: net 3, vit 2.")
    assert zoo_table.missing([row(name, "ok", None) for name in SIZES], MODELS) == "All 7 models were run."


def test_a_global_field_is_said_with_the_one_without_global_operations():
    cells = zoo_table.cells(
        row("net18", "ok", None, trf_px=[32, 32], local_trf_px=[16, 8], global_by="se", trf_exact=False, r50=None)
    )
    assert cells[5:] == ("global (16x8) (upper bound)", "–", "–")


def test_the_command_line_asks_for_that_run(monkeypatch, tmp_path, capsys):
    calls = []
    monkeypatch.setattr(zoo_timm, "run", lambda folder, **asked: calls.append((folder, asked)) or 3)
    assert zoo.main(["--budget", "60m", "-o", str(tmp_path), "--resume", "--memory-limit", "2GiB"]) == 3
    limits = Limits(seconds=90, bytes=2**31)
    assert calls == [(tmp_path, {"budget_s": 3600, "anew": False, "limits": limits, "input_size": None})]
    with pytest.raises(SystemExit):
        zoo.main(["--budget", "soon"])
    assert "'soon' is no time" in capsys.readouterr().err

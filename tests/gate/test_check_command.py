"""``erfscope check`` as a team's CI meets it: what passes, what fails, what cannot be told, and what is written."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
import warm
from PIL import Image
from spared import opened_once  # noqa: F401

import erfscope
from erfscope.apps.gate.checks import CheckRequest, check_all
from erfscope.apps.gate.gate import Tolerance
from erfscope.core import ErfscopeError

pytestmark = pytest.mark.usefixtures("memory_unplanned")

SCHEMA = json.loads((files("erfscope.core.answer.storage") / "schema" / "baseline-1.json").read_text())
#: A net with everything that a pull request can break. What is broken stands in a file, so that the spec stays the
#: same.
NETS = """
from pathlib import Path

import torch
from torch import nn


def what():
    return (Path(__file__).parent / "broken").read_text()


class NonLocal(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(8, 8, 1) for _ in range(3))

    def forward(self, x):
        q, k, v = (f(x).flatten(2) for f in (self.q, self.k, self.v))
        return x + 3 * (v @ (q.transpose(1, 2) @ k).softmax(-1).transpose(1, 2)).view_as(x)


class Net(nn.Module):
    def __init__(self, broken, attention):
        super().__init__()
        valid, d = broken == "valid", {"dilation": 1, "dilated": 7}.get(broken, 3)
        self.stem = nn.Conv2d(3, 8, 3, 2, 1 - valid, padding_mode="zeros" if valid else "reflect")
        self.near = nn.Conv2d(8, 8, 1) if broken == "1x1" else nn.Conv2d(8, 8, 3, 1, 1)
        self.wide = nn.Conv2d(8, 8, 3, 1, d, dilation=d)
        self.far = nn.Conv2d(8, 8, 3, 1, 5, dilation=5)
        self.attention = NonLocal() if attention and broken != "nonlocal" else nn.Identity()
        self.late = nn.Conv2d(8, 8, 3, 1 if broken == "stride" else 2, 1)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.wide(torch.relu(self.near(x))) + self.far(x))
        return self.late(self.attention(x))


@torch.no_grad()
def net(attention=False):
    broken = what()
    if broken == "raises":
        raise ValueError("no such layer any more")
    torch.manual_seed(broken == "retrained")
    made = Net(broken, attention)
    made.far.weight *= {"grown": 4.0, "far": 0.0}.get(broken, 1.0)
    if broken == "tuned":
        for p in made.parameters():
            p *= 1 + 0.003 * torch.randn(p.shape)
    if broken == "nan":
        made.stem.weight[0, 0, 0, 0] = float("nan")
    if broken == "dead":
        made.stem.bias.fill_(-1e3)
    return made


def noisy():
    torch.manual_seed(what() == "retrained")
    convs = [nn.Conv2d(a, 8, 3, s, 1) for a, s in ((3, 1), (8, 1), (8, 2), (8, 1))]
    return nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ReLU())))[:-1]
"""
NET = ["nets.py:net", "--input-size", "48", "--samples", "8"]


@pytest.fixture
def folder(tmp_path, monkeypatch, plain_environment):
    """A project with an unbroken net."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "broken").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, command):
    """Run ``erfscope check`` in the project: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[object, str, str]:
        found = command("check", *arguments)
        assert "Traceback" not in found[2]
        return found

    return call


@pytest.fixture
def broken(folder):
    """Break the net, or mend it."""
    return lambda what: (folder / "broken").write_text(what)


def entries(folder: Path, name: str = "erf-baseline.json") -> dict:
    document = json.loads((folder / name).read_text())
    jsonschema.validate(document, SCHEMA)
    return document["entries"]


#: Baselines that were written for the unbroken net.
WRITTEN: dict[tuple[str, ...], bytes] = {}


@pytest.fixture
def accepted(folder, run):
    """Accept the unbroken net with some options, which is measured once for all tests; the baseline's text."""

    def accept(*asked: str) -> bytes:
        if asked not in WRITTEN:
            assert run(*asked, "--update")[0] == 0
            WRITTEN[asked] = (folder / "erf-baseline.json").read_bytes()
        (folder / "erf-baseline.json").write_bytes(WRITTEN[asked])
        return WRITTEN[asked]

    return accept


@pytest.mark.slow
def test_a_missing_baseline_is_written_and_exits_3_and_then_an_unchanged_model_passes(folder, run):
    code, out, _ = run(*NET)
    assert code == 3
    assert out.startswith("BASELINE CREATED nets.py:net")
    assert "written to erf-baseline.json" in out
    assert out.endswith("1 created (erf-baseline.json)\n")
    before = (folder / "erf-baseline.json").read_bytes()
    assert list(entries(folder)) == ["nets.py:net"]
    code, out, _ = run(*NET)
    assert code == 0
    assert out.startswith("PASS nets.py:net · same weights\n")
    assert (folder / "erf-baseline.json").read_bytes() == before
    # Further checks are let in only where that is allowed.
    other = ["other=nets.py:net", *NET[1:]]
    code, out, _ = run(*other)
    assert (code, "the baseline has no such entry" in out) == (3, True)
    assert list(entries(folder)) == ["nets.py:net"]
    for word in ("BASELINE CREATED ", "PASS "):
        code, out, _ = run(*other, "--allow-new")
        assert (code, out.startswith(word)) == (0, True)
    assert sorted(entries(folder)) == ["nets.py:net", "other"]


@pytest.mark.slow
def test_an_unchanged_model_passes_with_any_threads_and_batches(run, accepted):
    accepted(*NET)
    threads = torch.get_num_threads()
    try:
        for count, size in ((1, 1), (1, 3), (2, 5), (2, 8)):
            torch.set_num_threads(count)
            code, out, _ = run(*NET, "--batch-size", str(size), "--json")
            assert code == 0
            for name, found in json.loads(out)["checks"][0]["measures"].items():
                assert abs(found["difference"]) <= 0.002 * found["expected"]["value"], name
    finally:
        torch.set_num_threads(threads)


ATTENTION = "TRF shrank 27x27 whole input (global operation: softmax attention (attention)) – – fail"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "attention", "far", "what", "first"),
    [
        ("nonlocal", True, 5, ATTENTION, ""),
        ("dilation", True, 2, "TRF without global operations shrank 15x15 23x23", "wide"),
        # Without the far branch the dilated convolution is the widest.
        ("dilation", False, 1, "TRF shrank 15x15 23x23", "wide"),
        ("stride", False, 5, "map shape 8x24x24 8x12x12", ""),
        ("valid", False, 5, "unit centre", ""),
        ("1x1", False, 2, "TRF shrank 19x19 23x23", "near"),
        ("far", False, 5, "r50 moved by -", ""),
    ],
)
def test_what_makes_a_model_see_less_is_caught(folder, run, broken, mutation, attention, far, what, first):
    asked = [*NET, "--model-kwargs", f"attention={attention}"]
    branch = f"3, 1, {far}, dilation={far}" if far > 1 else "3, 1, 1"
    (folder / "nets.py").write_text(NETS.replace("3, 1, 5, dilation=5", branch))
    assert run(*asked, "--update")[0] == 0
    broken(mutation)
    code, out, _ = run(*asked)
    assert code == 1
    assert out.startswith(f"FAIL nets.py:net · {'weights' if mutation == 'far' else 'structure'} changed")
    assert what in " ".join(out.split())
    assert f"the first layer whose TRF differs is {first}\n" in out or not first
    assert f"to accept: erfscope check {' '.join(asked)} --update" in out
    assert run(*asked, "--trf-only")[0] == (0 if mutation == "far" else 1)
    if mutation in ("far", "stride"):
        assert run(*asked, "--exit-zero")[0] == 0
        code, out, _ = run(*asked, "--update")
        assert (code, "UPDATED" in out) == (0, True)
        assert run(*asked)[0] == 0


@pytest.mark.slow
def test_what_grew_passes_with_a_notice_and_fails_two_sided(run, broken, accepted, monkeypatch):
    accepted(*NET)
    broken("grown")
    code, out, _ = run(*NET)
    assert (code, "the ERF became wider: r50 +" in out) == (0, True)
    code, out, _ = run(*NET, "--fail-on", "r50=5%")
    assert (code, "tolerated either way" in out) == (1, True)
    assert run(*NET, "--fail-on", "r50=+5%")[0] == 1
    assert run(*NET, "--fail-on", "r50=-5%,r90=-5%")[0] == 0
    broken("dilated")
    code, out, _ = run(*NET, "--trf-only")
    assert code == 0
    assert "note: TRF grew: obtained 39x39, expected 27x27; the first layer whose TRF differs is wide\n" in out
    code, out, _ = run(*NET)
    assert (code, "note: TRF grew" in out) == (0, True)
    assert run(*NET, "--fail-on", "r90=5%")[0] == 1
    # The lines of --quiet are never wrapped.
    monkeypatch.setenv("COLUMNS", "40")
    code, out, _ = run(*NET, "--fail-on", "r50=-50%", "-q")
    assert (code, out.count("\n")) == (0, 1)
    assert out.startswith("PASS nets.py:net · structure changed, within the tolerances: TRF 27 -> 39; wide: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "arguments", "fragment"),
    [
        ("", "--input-size 64", "input size is 64x64 and was 48x48"),
        ("", "--convention luo", "convention is luo and was jacobian"),
        ("", "--samples 9", "samples is 9 and was 8"),
        ("", "--seed 1", "seed is 1 and was 0"),
        ("", "--draws 2", "draws is 2 and was 1"),
        ("", "--dtype float64", "dtype is float64 and was float32"),
        ("", "--synthetic noise", "stimuli is noise, version 1 and was leaves, version 1"),
        ("", "--layer far", "layer is far and was the default"),
        ("", "--unit corner", "unit is corner and was centre"),
        ("", "--method input_x_gradient", "method is input_x_gradient and was gradient"),
        ("", "--insert gc@far", "insert is gc@far and was the default"),
        ("nan", "", "weights are not finite in stem.weight"),
        ("dead", "", "the gradient is zero for all 8 images"),
        ("raises", "", "no such layer any more"),
        ("", "--layer gone", "unknown layer 'gone'"),
        ("", "--checkpoint gone.pth", "gone.pth"),
        ("", "--image gone.png", "gone.png"),
    ],
)
def test_what_cannot_be_told_exits_3_and_never_0(folder, run, broken, accepted, mutation, arguments, fragment):
    before = accepted(*NET)
    broken(mutation)
    code, out, _ = run(*NET, *arguments.split())
    assert code == 3
    assert out.startswith("INCONCLUSIVE")
    assert fragment in out
    assert (folder / "erf-baseline.json").read_bytes() == before
    if mutation:
        # What cannot be used is not accepted either.
        assert run(*NET, "--update")[0] == 3
        assert (folder / "erf-baseline.json").read_bytes() == before
        (folder / "erf-baseline.json").unlink()
        assert (run(*NET)[0], run(*NET, "--allow-new")[0]) == (3, 3)
        assert not (folder / "erf-baseline.json").exists()


@pytest.mark.slow
def test_a_noisy_check_names_the_samples_that_make_it_a_verdict(run, broken):
    asked = ["nets.py:noisy", "--input-size", "32", "--fail-on", "r50=2%"]
    assert run(*asked, "--samples", "6", "--update")[0] == 0
    broken("retrained")
    code, out, _ = run(*asked, "--samples", "6", "--json")
    found = json.loads(out)["checks"][0]["measures"]["r50"]
    assert (code, found["verdict"]) == (3, "cannot tell")
    assert 6 < found["needed"] < 500
    assert f"{found['needed']} samples would settle it" in found["reason"]
    broken("")
    assert run(*asked, "--samples", str(found["needed"]), "--update")[0] == 0
    broken("retrained")
    code, out, _ = run(*asked, "--samples", str(found["needed"]), "--json")
    assert json.loads(out)["checks"][0]["measures"]["r50"]["verdict"] in ("pass", "fail")
    assert code in (0, 1)


@pytest.mark.slow
def test_a_little_training_is_within_the_tolerance_and_too_few_pictures_cannot_tell(run, broken, accepted):
    accepted(*NET)
    broken("tuned")
    code, out, _ = run(*NET)
    assert (code, "weights changed, within the tolerances" in out, "-5%" in out) == (0, True, True)
    few = [*NET[:-1], "3", "--draws", "1"]
    code, out, _ = run(*few, "--update")
    assert (code, "without an error bar" in out) == (0, True)
    code, out, _ = run(*few)
    assert (code, "has no error bar" in out) == (3, True)


@pytest.mark.slow
@pytest.mark.usefixtures("opened_once")
def test_random_weights_never_stand_in_by_themselves(folder, run):
    # test_resnet has pretrained weights on the hub, which no test may ask.
    asked = ["test_resnet.r160_in1k", "--samples", "4", "--input-size", "64"]
    code, out, _ = run(*asked)
    assert (code, "cannot be had" in out) == (3, True)
    assert not (folder / "erf-baseline.json").exists()
    assert run(*asked, "--trf-only", "--update")[0] == 0
    assert entries(folder)["test_resnet.r160_in1k"]["measures"] == {}
    assert run(*asked, "--trf-only")[0] == 0
    code, out, _ = run(*asked, "--weights", "random")
    assert code == 3
    assert "measures are missing in the baseline" in out
    assert "r50 is not in the baseline" in out
    assert run(*asked, "--weights", "random", "--update")[0] == 0
    assert run(*asked, "--weights", "random")[0] == 0
    # The structure is compared even where the weights cannot be had.
    document = json.loads((folder / "erf-baseline.json").read_text())
    document["entries"]["test_resnet.r160_in1k"]["structure"]["trf_px"][0] += 1
    (folder / "erf-baseline.json").write_text(json.dumps(document))
    code, out, _ = run(*asked)
    assert (code, "TRF shrank" in out) == (1, True)
    for name in ("", "n="):
        verdict = erfscope.check(f"{name}torchvision:squeezenet1_1", input_size=64, samples=4, draws=1)
        assert (verdict.word, "pretrained weights" in verdict.text) == ("cannot tell", True), verdict.text


CHECKS = """
input-size = 48
samples = 8

[[check]]
name = "plain"
model = "nets.py:net"

[[check]]
name = "inserted"
model = "nets.py:net"
layer = "late"
insert = ["nonlocal@far"]
tolerances = { r50 = "-5%", center_share = "5%" }
model-kwargs = { attention = true }
samples = 6
"""


@pytest.mark.slow
def test_the_settings_list_checks_each_with_its_own_options(folder, run, broken, monkeypatch):
    (folder / "erfscope.toml").write_text(CHECKS)
    code, out, _ = run("--update")
    assert code == 0
    assert out.endswith("2 created (erf-baseline.json)\n")
    found = entries(folder)
    assert sorted(found) == ["inserted", "plain"]
    assert sorted(found["inserted"]["measures"]) == ["center_share", "r50"]
    own = {"insert": "nonlocal@far", "layer": "late", "samples": 6, "model_kwargs": {"attention": True}}
    asked = {**own, "input_size": [48, 48]}
    assert {name: found["inserted"]["protocol"][name] for name in asked} == asked
    assert "softmax attention" in found["inserted"]["structure"]["global_by"]
    # The baseline lies beside the settings that list the checks.
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    assert run()[0] == 0
    broken("far")
    code, out, _ = run("--only", "plain")
    assert code == 1
    assert "inserted" not in out
    assert "to accept: erfscope check --only plain --update" in out
    found = json.loads(run("--json")[1])["checks"]
    assert [(check["name"], check["verdict"]) for check in found] == [("plain", "fail"), ("inserted", "fail")]


@pytest.mark.slow
def test_pyproject_lists_them_too_and_the_command_line_comes_first(folder, run):
    text = CHECKS.replace("[[check]]", "[[tool.erfscope.check]]").replace("\ninput-size", "[tool.erfscope]\ninput-size")
    (folder / "pyproject.toml").write_text(text)
    assert run("--update", "--samples", "5", "--synthetic", "noise", "--fail-on", "r50=-80%")[0] == 0
    assert {found["protocol"]["samples"] for found in entries(folder).values()} == {5}
    assert {found["protocol"]["stimuli"] for found in entries(folder).values()} == {"noise, version 1"}
    code, out, _ = run("--fail-on", "r50=-80%")
    assert (code, out.count("samples is 8 and was 5"), out.count("samples is 6 and was 5")) == (3, 1, 1)


@pytest.mark.slow
def test_more_measures_than_are_guarded_can_be_recorded(folder, run):
    assert run(*NET, "--measures", "coverage,context_r50", "--update")[0] == 0
    assert sorted(entries(folder)["nets.py:net"]["measures"]) == ["context_r50", "coverage", "far_mass", "r50", "r90"]
    code, out, _ = run(*NET, "--fail-on", "context_r50=-1%", "--fail-on", "coverage=-1%", "--json")
    assert (code, sorted(json.loads(out)["checks"][0]["measures"])) == (0, ["context_r50", "coverage"])


@pytest.mark.parametrize(
    ("settings", "arguments", "fragments"),
    [
        ("", [], ["nothing to check", "[[tool.erfscope.check]]"]),
        ("[[check]]\nmodel = 'a'\nnaem = 'x'\n", [], ["naem", "check 'a' of erfscope.toml", "did you mean 'name'"]),
        ("[[check]]\nname = 'x'\n", [], ["[[check]] number 1 of erfscope.toml names no model"]),
        *((f"[[check]]\nmodel = {model}\n", [], ["number 1 of erfscope.toml names no model"]) for model in ("3", "''")),
        ("[[check]]\nname = 3\nmodel = 'a'\n", [], ["is called 3"]),
        ("[[check]]\nmodel = 'a'\n[[check]]\nmodel = 'a'\n", [], ["two checks", "'a'"]),
        ("[check]\nsamples = 3\n", [], ["must be a list", "[[check]]"]),
        ("check = ['a']\n", [], ["must be a list"]),
        ("[[check]]\nmodel = 'a'\nsamples = 'many'\n", [], ["samples of check 'a' of erfscope.toml", "many"]),
        ("[[check]]\nmodel = 'a'\nsamples = true\n", [], ["samples of check 'a' of erfscope.toml is True"]),
        ("[[check]]\nmodel = 'a'\ntolerances = '5%'\n", [], ["tolerances of check 'a'"]),
        ("[[check]]\nmodel = 'a'\ntolerances = { r51 = '5%' }\n", [], ["check 'a'", "r51", "did you mean 'r50'"]),
        ("[[check]]\nmodel = 'a'\nupdate = true\n", [], ["update", "check 'a'"]),
        ("[[check]]\nmodel = 'a'\nconvention = 'lou'\n", [], ["check 'a'", "lou", "did you mean 'luo'"]),
        ("[[check]]\nmodel = 'a'\nlayer = ['b', 'c']\n", [], ["layer asks for several", "one check for each"]),
        ("[[check]]\nmodel = 'a'\nlayer = 'stages'\n", [], ["layer asks for several"]),
        ("[[check]]\nmodel = 'a'\nuntil-se = '2%'\n", [], ["until_se", "--samples"]),
        ("[[check]]\nmodel = 'a'\n", ["--only", "b"], ["unknown check 'b' in erfscope.toml"]),
        ("update = true\n", ["a"], ["update", "erfscope.toml"]),
        ("", ["a", "--only", "b"], ["--only"]),
        ("", ["a", "--fail-on", "r50"], ["write MEASURE=TOLERANCE"]),
        ("", ["a", "--fail-on", "r51=5%"], ["r51"]),
        ("", ["a", "--format", "csv"], ["no format 'csv'"]),
        ("format = 'cvs'\n", ["a"], ["no format 'cvs'"]),
        ("", ["a", "--baseline", "nets.py/b.json"], ["the baseline nets.py/b.json", "name another file"]),
        ("", ["a", "--baseline", "nets.py"], ["nets.py", "damaged"]),
    ],
)
def test_what_cannot_be_started_is_one_line_and_exits_2(folder, run, settings, arguments, fragments):
    if settings:
        (folder / "erfscope.toml").write_text(settings)
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    for fragment in fragments:
        assert fragment in err


@pytest.mark.slow
def test_artifacts_show_what_failed_and_leave_the_verdict_where_they_cannot_be_written(folder, run, broken, accepted):
    accepted(*NET)
    (folder / "file").write_text("")
    assert run(*NET, "--artifacts", "found")[0] == 0
    assert [path.name for path in (folder / "found").iterdir()] == ["check.json"]
    code, out, err = run(*NET, "--artifacts", "file")
    assert (code, out[:4], "cannot make the folder" in err) == (3, "PASS", True)
    broken("far")
    code, out, err = run(*NET, "--artifacts", "file")
    assert (code, out[:4]) == (1, "FAIL")
    assert run(*NET, "--artifacts", "deep/found")[0] == 1
    made = folder / "deep" / "found"
    assert sorted(path.name for path in made.iterdir()) == ["check.json", "nets.py_net.npz", "nets.py_net.png"]
    with np.load(made / "nets.py_net.npz") as arrays:
        name = next(name for name in arrays.files if not name.endswith("center_px"))
        assert arrays[name].shape == (48, 48)
        assert arrays[name].sum() == pytest.approx(1)
    assert np.asarray(Image.open(made / "nets.py_net.png")).std() > 0
    assert json.loads((made / "check.json").read_text())["exit_code"] == 1


@pytest.mark.slow
def test_every_format_says_the_same(folder, run, broken, accepted, monkeypatch):
    accepted(*NET)
    broken("far")
    code, out, err = run(*NET, "--json")
    document = json.loads(out)
    assert (code, document["schema"], document["exit_code"], "1 fail" in err) == (1, "erfscope.check/1", 1, True)
    r50 = document["checks"][0]["measures"]["r50"]
    assert r50["difference"] == pytest.approx(r50["obtained"]["value"] - r50["expected"]["value"])
    assert r50["limit"] == pytest.approx(0.05 * r50["expected"]["value"])
    code, out, _ = run(*NET, "--format", "markdown")
    assert code == 1
    squeezed = " ".join(out.split())
    assert "| check | what | obtained | expected | tolerance | difference | verdict |" in squeezed
    assert "| nets.py:net | r50 px |" in squeezed
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))
    code, plain, commands = run(*NET, "--format", "github")
    assert code == 1
    assert plain == run(*NET, "--format", "plain")[1]
    assert (folder / "summary.md").read_text() == out
    assert commands.startswith(
        "::error file=erf-baseline.json,title=erfscope check%3A nets.py%3Anet%3A fail::weights changed%0Ar50 moved"
    )
    assert "5%25" in commands
    assert commands.count("\n") == 1
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    # A format for other commands is no obstacle.
    (folder / "erfscope.toml").write_text("format = 'csv'\n")
    assert run(*NET)[2] == commands


@pytest.mark.slow
def test_words_from_outside_steer_neither_the_terminal_nor_github(folder, run):
    (folder / "erfscope.toml").write_text(
        'input-size = 48\nsamples = 4\n[[check]]\nname = "a\\u001b[31m,b|c%\\n::error::d"\nmodel = "nets.py:net"\n'
    )
    code, out, err = run("--format", "github")
    assert code == 3
    assert "\x1b" not in out + err
    assert "\n::error::d" not in out + err
    assert "%2Cb|c%25" in err
    assert "b\\|c%" in run("--format", "markdown", "--baseline", "other.json")[1]


@pytest.mark.slow
def test_python_has_the_same_gate(folder, small_net, small, pictures):
    asked = {"name": "small", "images": pictures, "draws": 2, "baseline": "own.json"}
    first = erfscope.check(small, **asked)
    assert (first.word, first.exit_code, first.ok) == ("cannot tell", 3, False)
    second = erfscope.check(small, **asked, tolerances={"r50": "5%"})
    assert (second.word, "no error bar" in second.text) == ("cannot tell", True)
    asked["images"] = more = pictures.repeat(4, 1, 1, 1)
    assert erfscope.check(small, **asked, update=True).word == "updated"
    assert erfscope.check(small, **asked).ok
    result = erfscope.analyze(small, images=more, draws=2)
    same = erfscope.compare_to_baseline(result, "own.json", name="small")
    assert (same.word, same.cause) == ("pass", "same weights")
    assert same.result is result
    assert not erfscope.compare_to_baseline(result, "own.json").ok
    stem = erfscope.analyze(small, images=more, draws=2, layer="stem")
    other = erfscope.compare_to_baseline(stem, "own.json", name="small")
    assert (other.word, other.cause) == ("cannot tell", "settings changed")
    # A missing entry can be written by whoever asks for it.
    assert erfscope.check(small, **{**asked, "name": "c"}).reason.startswith("the baseline has no such entry;")
    found = erfscope.check(small, **{**asked, "name": "b"}, missing="write")
    assert (found.word, "written to own.json" in found.reason) == ("cannot tell", True)
    assert erfscope.check(small, **{**asked, "name": "b"}, missing="write").ok
    with torch.no_grad():
        small_net.body[0].weight.zero_()
    changed = erfscope.check(small, **asked)
    assert changed.expected is not None
    assert changed.cause != "same weights"


@pytest.mark.slow
def test_the_gate_cannot_be_switched_off_by_a_number(folder, run, broken, accepted):
    before = accepted(*NET)
    broken("far")
    for tolerances, fail_on, said in (
        ("{ far_mass = -5, r50 = -60 }", [], "write '-5%'"),
        ("{ r50 = nan }", [], "cannot read the tolerance nan"),
        ("{ r50 = '-5%' }", ["--fail-on", "far_mass=-5"], "write '-5%'"),
        ("{ r50 = '-5%' }", [], ""),
    ):
        checks = f"input-size = 48\nsamples = 8\n[[check]]\nmodel = 'nets.py:net'\ntolerances = {tolerances}\n"
        (folder / "erfscope.toml").write_text(checks)
        code, out, err = run(*fail_on)
        assert (code, bool(out), said in err) == (2 if said else 1, not said, True)
    assert (folder / "erf-baseline.json").read_bytes() == before


def test_a_tolerance_as_large_as_the_value_is_refused_before_anything_is_measured(run, broken, accepted):
    accepted(*NET)
    broken("far")
    for word in ("-60", "60"):
        code, out, err = run(*NET, "--fail-on", f"r50={word}")
        assert (code, out, f"'{word}' guards nothing; write a percentage" in err) == (2, "", True)
    # Without a baseline the size of the image says it: 48 px have a diagonal of 67.9 px.
    for word, code in (("-68", 2), ("+68", 2), ("-67", 3)):
        assert run(*NET, "--baseline", f"{word}.json", "--fail-on", f"r50={word}")[0] == code


@pytest.mark.slow
def test_python_refuses_a_tolerance_that_guards_nothing(folder, small, pictures):
    asked = {"images": pictures, "baseline": "own.json", "name": "x"}
    assert erfscope.check(small, **asked, missing="accept").ok
    result = erfscope.analyze(small, images=pictures)
    large = Tolerance(side="both", amount=1e3, relative=False)
    for words in ({"r50": -1e300}, {"r50": float("nan")}, {"r50": -500}, {"r50": large}):
        with pytest.raises(ErfscopeError, match=r"guards nothing|cannot read"):
            erfscope.check(small, **asked, tolerances=words)
        with pytest.raises(ErfscopeError, match=r"guards nothing|cannot read"):
            erfscope.compare_to_baseline(result, "own.json", name="x", tolerances=words)


def test_python_refuses_what_is_no_check(small):
    for options in ({"layer": ["stem", "down"]}, {"until_se": 0.1}, {"samlpes": 3}, {"weights": "random"}):
        with pytest.raises(ErfscopeError, match="check 'x': "):
            erfscope.check(small, name="x", **options)
    two = [CheckRequest(name="a", model=model) for model in ("resnet18", "resnet34")]
    with pytest.raises(ErfscopeError, match="two checks are called 'a'"):
        check_all(two, baseline="b.json")
    with pytest.raises(ErfscopeError, match="unknown missing 'acept'; there is: refuse, write, accept"):
        check_all([], missing="acept")


def test_a_check_measures_inside_inference_mode(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.inference_mode():
        first, second = (erfscope.check(small, name="x", samples=4, draws=1) for _ in range(2))
    assert (first.created, second.word) == (True, "pass"), first.text


@pytest.mark.slow
def test_a_reader_that_goes_away_changes_no_verdict(folder, broken, accepted):
    accepted(*NET)
    broken("far")
    reading, writing = os.pipe()
    os.close(reading)
    done = warm.run([sys.executable, "-m", "erfscope", "check", *NET], stdout=writing)
    os.close(writing)
    assert done.returncode == 1, done.stderr


@pytest.mark.slow
def test_accepting_a_structure_alone_keeps_the_measures_of_the_same_one_and_removes_those_of_another(
    folder, run, broken, accepted
):
    accepted(*NET)
    before = entries(folder)["nets.py:net"]
    broken("retrained")
    assert run(*NET, "--trf-only", "--update")[0] == 0
    assert entries(folder)["nets.py:net"] == before
    # The weights stay those of the baseline.
    broken("stride")
    assert run(*NET, "--trf-only")[0] == 1
    code, out, _ = run(*NET, "--trf-only", "--update")
    assert code == 0
    assert "the measures were those of the earlier structure, and are removed" in " ".join(out.split())
    after = entries(folder)["nets.py:net"]
    assert after["structure"] != before["structure"]
    assert after["measures"] == {}
    assert run(*NET, "--trf-only")[0] == 0
    code, out, _ = run(*NET)
    assert code == 3
    assert out.startswith("INCONCLUSIVE nets.py:net · measures are missing in the baseline\n")


@pytest.mark.slow
def test_the_accepting_command_can_be_copied_where_arguments_follow_two_dashes(run, broken, accepted):
    accepted(*NET)
    broken("far")
    _, out, _ = run("--input-size", "48", "--samples", "8", "--", "nets.py:net")
    assert "to accept: erfscope check --input-size 48 --samples 8 --update -- nets.py:net" in out


@pytest.mark.slow
def test_paths_of_the_settings_are_beside_them_and_those_of_the_command_line_are_here(folder, run, monkeypatch):
    (folder / "erfscope.toml").write_text(
        'baseline = "base.json"\n[[check]]\nname = "net"\nmodel = "nets.py:net"\nimages = "pictures/*.png"\n'
        'checkpoint = "w.pth"\ninput-size = 48\n'
        '[[check]]\nname = "module"\nmodel = "nets_beside:net"\ninput-size = 48\nsamples = 4\n'
    )
    # A name that no other test has imported.
    shutil.copy(folder / "nets.py", folder / "nets_beside.py")
    torch.save(runpy.run_path(str(folder / "nets.py"))["net"]().state_dict(), "w.pth")
    (folder / "pictures").mkdir()
    (folder / "a" / "b").mkdir(parents=True)
    numbers = np.random.default_rng(0)
    for file in (folder / "pictures" / "0.png", folder / "a" / "own.png"):
        Image.fromarray(numbers.integers(0, 255, (48, 48, 3), dtype=np.uint8)).save(file)
    assert run("-q")[0] == 3
    monkeypatch.chdir(folder / "a" / "b")
    code, out, _ = run("-q")
    assert (code, out) == (0, "PASS net · same weights\nPASS module · same weights\n")
    code, out, _ = run("-q", "--only", "net", "--image", "../own.png", "--artifacts", "art")
    assert (code, "stimuli is image" in out) == (3, True)
    assert (folder / "a" / "b" / "art" / "check.json").is_file()
    assert run("--only", "net", "--baseline", "own.json", "--update")[0] == 0
    assert [file.name for file in (folder / "a" / "b").glob("[!.]*") if file.is_file()] == ["own.json"]


@pytest.mark.slow
def test_a_changed_activation_and_a_changed_number_in_the_code_are_named(folder, run):
    code = (folder / "nets.py").read_text()
    # A ramp over the map that no operation shows: its numbers are a constant.
    ramp = code.replace(
        "x = torch.relu(self.wide", "x = x * torch.tensor([1.0, 1.0] * 12)\n        x = torch.relu(self.wide"
    )
    (folder / "nets.py").write_text(ramp)
    assert run(*NET, "--update")[0] == 0
    assert run(*NET)[0] == 0
    (folder / "nets.py").write_text(ramp.replace("[1.0, 1.0] * 12", "[1.0, 0.1] * 12"))
    assert run(*NET, "-q")[1].startswith("FAIL nets.py:net · code changed, with the same weights: r")
    (folder / "nets.py").write_text(ramp.replace("torch.relu(self.stem", "torch.tanh(self.stem"))
    code, out, _ = run(*NET, "-q")
    assert code == 1
    assert out.startswith("FAIL nets.py:net · operations changed, with the same weights: behind stem: relu -> tanh; r")

"""The pytest plugin, through the life of a stored expectation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import erfscope

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned")]

ROOT = Path(__file__).resolve().parents[2]
NET = """
import torch
from torch import nn

def net(dilation):
    torch.manual_seed(0)
    parts = []
    for _ in range(2):
        parts += [nn.Conv2d(8 if parts else 3, 8, 3, padding=dilation, dilation=dilation), nn.Tanh()]
    return nn.Sequential(*parts)
"""
TEST = """
from net import net

def test_reach(erf_regression):
    verdict = erf_regression.check(net({dilation}), input_size=32, samples=8, batch_size=4{more})
    assert verdict.ok
"""


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory):
    """Everything that a check imports: pytester forgets what is imported inside it, and PyTorch cannot be imported
    twice."""
    baseline = tmp_path_factory.mktemp("once") / "erf.json"
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3))
    for _ in range(2):
        assert erfscope.check(net, input_size=16, samples=4, baseline=baseline, missing="accept").ok


@pytest.fixture
def project(pytester, monkeypatch):
    """A project with one test of a net whose dilation can be set; runs it and gives what pytest printed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pytester.makepyfile(net=NET)
    pytester.makeini("[pytest]\npythonpath = .\n")

    def run(dilation: int, *arguments: str, more: str = ""):
        pytester.makepyfile(test_model=TEST.format(dilation=dilation, more=more))
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly", *arguments)

    run.path = pytester.path
    return run


def stored(project, name: str = "Sequential") -> dict:
    document = json.loads((project.path / "test_model" / "test_reach.json").read_text())
    return document["entries"][name]


def test_the_whole_life_of_an_expectation(project):
    missing = project(2)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(
        ["*written to test_reach.json*; `pytest 'test_model.py::test_reach' --erf-update` stores and passes at once"]
    )
    assert "erfscope check" not in missing.stdout.str()
    first = stored(project)
    project(2, "--junitxml=out.xml").assert_outcomes(passed=1)
    numbers = ElementTree.parse(project.path / "out.xml").iter("property")
    found = {each.get("name"): each.get("value") for each in numbers}
    assert found["erf.Sequential.verdict"] == "pass"
    assert float(found["erf.Sequential.r50"]) == pytest.approx(first["measures"]["r50"]["value"], rel=1e-5)
    assert float(found["erf.Sequential.r50_se"]) > 0
    narrower = project(1)
    narrower.assert_outcomes(failed=1)
    narrower.stdout.fnmatch_lines(["*structure changed*", "*pytest 'test_model.py::test_reach' --erf-update*"])
    assert "pytest_plugin.py" not in narrower.stdout.str()
    assert "Traceback" not in narrower.stdout.str()
    assert stored(project) == first
    project(1, "--erf-update").assert_outcomes(passed=1)
    assert stored(project)["structure"] != first["structure"]
    project(1).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("tolerances={'r50': float('nan')}", "ErfscopeError: check 'Sequential':"),
        ("tolerances={'r50': '200%'}", "ErfscopeError: check 'Sequential':"),
        ("smaples=3", "unknown option 'smaples'"),
    ],
)
def test_what_is_no_check_fails_the_test(project, more, said):
    refused = project(2, more=f", {more}")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines([f"*{said}*"])


def test_tolerances_and_options_are_the_tests_own(project):
    own = ", tolerances={'r50': '-1%', 'sigma_row': '2%'}, layer="
    project(2, "--erf-update", more=f"{own}'2'").assert_outcomes(passed=1)
    entry = stored(project)
    assert set(entry["measures"]) == {"r50", "sigma_row"}
    assert entry["protocol"]["layer"] == "2"
    project(2, more=f"{own}'0'").assert_outcomes(failed=1)


def test_models_parameters_and_tests_that_share_a_name_have_expectations_of_their_own(project, pytester):
    pytester.makepyfile(
        test_many="""
        import pytest
        from net import net

        def test_both(erf_regression):
            for dilation in (1, 2):
                erf_regression.check(net(dilation), name=f"dilation {dilation}", input_size=32, samples=4)

        class TestOne:
            def test_reach(self, erf_regression):
                erf_regression.check(net(1), input_size=32, samples=4)

        class TestTwo:
            def test_reach(self, erf_regression):
                erf_regression.check(net(2), input_size=32, samples=4)

        @pytest.mark.parametrize("name", ["a/b", "a_b", "1"])
        def test_named(erf_regression, name):
            erf_regression.check(net(1), input_size=32, samples=4)

        def test_twice(erf_regression):
            for dilation in (1, 2):
                erf_regression.check(net(dilation), input_size=32, samples=4)
        """
    )
    result = pytester.runpytest_inprocess("test_many.py", "--erf-update")
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(["*this test checks 'Sequential' twice*"])
    files = {path.name for path in (pytester.path / "test_many").glob("[!.]*")} - {"test_twice.json"}
    assert len(files) == 6
    assert {"test_both.json", "test_named[1].json"} < files
    both = json.loads((pytester.path / "test_many" / "test_both.json").read_text())["entries"]
    assert set(both) == {"dilation 1", "dilation 2"}
    pytester.runpytest_inprocess("test_many.py").assert_outcomes(passed=6, failed=1)


def test_force_regen_stores_and_fails_as_elsewhere(project, pytester):
    pytester.makeconftest(
        "def pytest_addoption(parser):\n    parser.addoption('--force-regen', action='store_true', default=False)\n"
    )
    project(2, "--force-regen").assert_outcomes(failed=1)
    project(2).assert_outcomes(passed=1)
    project(1, "--force-regen").assert_outcomes(failed=1)
    project(1).assert_outcomes(passed=1)


def test_what_cannot_be_told_is_no_pass(project, pytester):
    pytester.makepyfile(
        test_nan="""
        import torch
        from net import net

        def test_nan(erf_regression):
            model = net(1)
            with torch.no_grad():
                model[0].weight.fill_(float("nan"))
            erf_regression.check(model, input_size=32, samples=4)
        """
    )
    for arguments in ((), ("--erf-update",)):
        result = pytester.runpytest_inprocess("test_nan.py", *arguments)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*not finite*"])
    assert not list((pytester.path / "test_nan").glob("*.json"))


def test_the_plugin_is_loaded_by_name_and_imports_nothing_heavy():
    code = (
        "import sys, pytest\nclass Seen:\n    def pytest_sessionstart(self, session):\n"
        "        assert session.config.pluginmanager.has_plugin('erfscope')\n"
        "        heavy = {'torch', 'timm', 'captum', 'numpy', 'scipy', 'cv2', 'matplotlib'} & set(sys.modules)\n"
        "        assert not heavy, heavy\n"
        # Those of zarr and pytest-randomly, where they are installed, import numpy themselves.
        "words = ['-p', 'no:zarr', '-p', 'no:randomly', '--collect-only', '-q', '--rootdir', '.', '-c', '/dev/null']\n"
        "words += ['.']\n"
        "sys.exit(pytest.main(words, plugins=[Seen()]) not in (0, 5))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT / "examples"
    )
    assert done.returncode == 0, done.stdout + done.stderr

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
    project(2).assert_outcomes(passed=1)
    narrower = project(1)
    narrower.assert_outcomes(failed=1)
    narrower.stdout.fnmatch_lines(["*structure changed*", "*--erf-update*"])
    assert stored(project) == first
    project(1, "--erf-update").assert_outcomes(passed=1)
    assert stored(project)["structure"] != first["structure"]
    project(1).assert_outcomes(passed=1)


def test_a_failure_shows_obtained_and_expected_and_no_traceback(project):
    project(2, "--erf-update").assert_outcomes(passed=1)
    out = project(1).stdout.str()
    assert "pytest 'test_model.py::test_reach' --erf-update" in out
    assert "pytest_plugin.py" not in out
    assert "Traceback" not in out


@pytest.mark.parametrize("word", ["-1e300", "float('nan')", "'200%'"])
def test_a_tolerance_that_guards_nothing_fails_the_test(project, word):
    project(2, "--erf-update", more=", tolerances={'r50': '-5%'}").assert_outcomes(passed=1)
    refused = project(2, more=f", tolerances={{'r50': {word}}}")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["*ErfscopeError: check 'Sequential':*"])


def test_tolerances_and_options_are_the_tests_own(project):
    project(2, "--erf-update", more=", tolerances={'r50': '-1%', 'sigma_row': '2%'}, layer='2'").assert_outcomes(
        passed=1
    )
    entry = stored(project)
    assert set(entry["measures"]) == {"r50", "sigma_row"}
    assert entry["protocol"]["layer"] == "2"
    other = project(2, more=", tolerances={'r50': '-1%', 'sigma_row': '2%'}, layer='0'")
    other.assert_outcomes(failed=1)


def test_several_models_of_one_test_have_entries_of_their_own(project, pytester):
    pytester.makepyfile(
        test_both="""
        from net import net

        def test_both(erf_regression):
            for dilation in (1, 2):
                erf_regression.check(net(dilation), name=f"dilation {dilation}", input_size=32, samples=4)
        """
    )
    pytester.runpytest_inprocess("test_both.py", "--erf-update").assert_outcomes(passed=1)
    assert set(json.loads((pytester.path / "test_both" / "test_both.json").read_text())["entries"]) == {
        "dilation 1",
        "dilation 2",
    }
    pytester.runpytest_inprocess("test_both.py").assert_outcomes(passed=1)


def test_parameters_make_files_of_their_own(project, pytester):
    pytester.makepyfile(
        test_many="""
        import pytest
        from net import net

        @pytest.mark.parametrize("dilation", [1, 2])
        def test_many(erf_regression, dilation):
            erf_regression.check(net(dilation), input_size=32, samples=4)
        """
    )
    pytester.runpytest_inprocess("test_many.py", "--erf-update").assert_outcomes(passed=2)
    assert {path.name for path in (pytester.path / "test_many").glob("[!.]*")} == {
        "test_many[1].json",
        "test_many[2].json",
    }


def test_tests_that_share_a_name_share_no_file(project, pytester):
    pytester.makepyfile(
        test_classes="""
        import pytest
        from net import net

        class TestOne:
            def test_reach(self, erf_regression):
                erf_regression.check(net(1), input_size=32, samples=4)

        class TestTwo:
            def test_reach(self, erf_regression):
                erf_regression.check(net(2), input_size=32, samples=4)

        @pytest.mark.parametrize("name", ["a/b", "a_b"])
        def test_named(erf_regression, name):
            erf_regression.check(net(1), input_size=32, samples=4)
        """
    )
    pytester.runpytest_inprocess("test_classes.py", "--erf-update").assert_outcomes(passed=4)
    assert len(list((pytester.path / "test_classes").glob("[!.]*"))) == 4
    pytester.runpytest_inprocess("test_classes.py").assert_outcomes(passed=4)


def test_two_checks_of_one_name_in_a_test_are_refused(project, pytester):
    pytester.makepyfile(
        test_twice="""
        from net import net

        def test_twice(erf_regression):
            for dilation in (1, 2):
                erf_regression.check(net(dilation), input_size=32, samples=4)
        """
    )
    result = pytester.runpytest_inprocess("test_twice.py", "--erf-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*this test checks 'Sequential' twice*"])


def test_force_regen_stores_and_fails_as_elsewhere(project, pytester):
    pytester.makeconftest(
        "def pytest_addoption(parser):\n    parser.addoption('--force-regen', action='store_true', default=False)\n"
    )
    project(2, "--force-regen").assert_outcomes(failed=1)
    project(2).assert_outcomes(passed=1)
    project(1, "--force-regen").assert_outcomes(failed=1)
    project(1).assert_outcomes(passed=1)


def test_the_numbers_are_in_the_junit_report(project):
    project(2, "--erf-update").assert_outcomes(passed=1)
    project(2, "--junitxml=out.xml").assert_outcomes(passed=1)
    found = {
        each.get("name"): each.get("value") for each in ElementTree.parse(project.path / "out.xml").iter("property")
    }
    assert found["erf.Sequential.verdict"] == "pass"
    assert float(found["erf.Sequential.r50"]) == pytest.approx(stored(project)["measures"]["r50"]["value"], rel=1e-5)
    assert float(found["erf.Sequential.r50_se"]) > 0


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


def test_an_unknown_option_is_one_line(project):
    result = project(2, more=", smaples=3")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*unknown option 'smaples'*"])


def test_the_plugin_is_loaded_by_name_and_imports_nothing_heavy():
    code = (
        "import sys, pytest\nclass Seen:\n    def pytest_sessionstart(self, session):\n"
        "        assert session.config.pluginmanager.has_plugin('erfscope')\n"
        "        heavy = {'torch', 'timm', 'captum', 'numpy', 'scipy', 'cv2', 'matplotlib'} & set(sys.modules)\n"
        "        assert not heavy, heavy\n"
        # That of zarr, where it is installed, imports numpy itself.
        "words = ['-p', 'no:zarr', '--collect-only', '-q', '--rootdir', '.', '-c', '/dev/null', '.']\n"
        "sys.exit(pytest.main(words, plugins=[Seen()]) not in (0, 5))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT / "examples"
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""The face: its page has every name, the page's own tool runs, and applications import nothing else of the core."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from erfscope import core
from erfscope.core import ErfscopeError, MeasurementError, Request, measure, open_images, open_model, rows

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "core.md").read_text(encoding="utf-8")
TOOL = re.search(r"```python\n(# fill\.py\n.*?)```", PAGE, flags=re.DOTALL)[1]
OPTIONS = {"weights": "random", "samples": 2}


def test_the_page_has_every_name_of_the_face():
    assert sorted(re.findall(r"^::: erfscope\.core\.(\w+)$", PAGE, flags=re.MULTILINE)) == core.__all__
    assert len(core.__all__) <= 51


def test_every_function_and_class_of_the_face_says_what_it_is():
    values = [getattr(core, name) for name in core.__all__]
    silent = {each.__name__ for each in values if inspect.isroutine(each) and "Raises:" not in (each.__doc__ or "")}
    assert silent <= {
        *("environment", "first_line", "is_input", "lists_options", "mass_beyond", "report_of", "rows"),
        *("sound_gradients", "to_json", "unknown"),
    }
    assert all(inspect.getdoc(each) for each in values if inspect.isclass(each))


@pytest.mark.slow
def test_the_tool_of_the_page_runs_as_a_command(tmp_path, monkeypatch):
    assert len(TOOL.splitlines()) <= 60
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "fill"}
    monkeypatch.setitem(sys.modules, "fill", type(sys)("fill"))
    exec(compile(TOOL, "fill.py", "exec"), namespace)
    words = ["test_resnet", "--weights", "random", "--samples", "2", "-o", "fill.csv"]
    found = CliRunner().invoke(namespace["fill"], words, catch_exceptions=False)
    assert found.exit_code == 0
    lines = found.output.splitlines()
    assert lines[0] == "test_resnet: what each stage uses of its TRF, in px"
    assert lines[1].startswith("RANDOM WEIGHTS")
    (head,) = [number for number, line in enumerate(lines) if line.startswith("───")]
    assert [line.split()[:2] for line in lines[head + 1 :]] == [
        ["act1", "11"],
        ["layer1", "31"],
        ["layer2", "55"],
        ["layer3", "71"],
        ["layer4", "167"],
    ]
    assert (tmp_path / "fill.csv").read_text().startswith("stage,TRF,r50,ERF / TRF\nact1,11,")


@pytest.mark.slow
def test_what_the_face_measures_is_what_analyze_does():
    import erfscope

    request = Request.parse({**OPTIONS, "layer": "layer2"})
    with open_model("test_resnet", request) as model:
        images = open_images(request, model)
        (first,) = measure(rows({model.label: model}, request), request, images)
        (again,) = measure(rows({model.label: model}, request), request)
    expected = erfscope.analyze("test_resnet", layer="layer2", **OPTIONS)
    for found in (first, again):
        assert (found.map.values == expected.map.values).all()
        assert found.measures == expected.measures
        assert found.trf == expected.trf


@pytest.mark.slow
def test_a_live_module_is_handed_back_as_found():
    from torch import nn

    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)).train()
    request = Request.parse({"samples": 2, "input_size": 16})
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with open_model(module, request) as model:
        assert measure(rows({"net": model}, request), request)[0].trf.size_px == (5, 5)
        with pytest.raises(MeasurementError), model:
            raise MeasurementError("no map")
    assert all(part.training for part in module.modules())
    assert all((value == before[name]).all() for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.slow
def test_importing_the_face_imports_no_torch():
    code = "import erfscope.core, sys; print({'torch', 'timm', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"input_size": 96}, "open with input_size="),
        ({"weights": "random-raw"}, "open with weights=('random',), and the request asks for ('random-raw',)"),
        ({"seed": 1}, "open with seed=0, and the request asks for 1"),
        ({"insert": "gcn@layer2"}, "open with insert=None"),
    ],
)
def test_an_open_model_is_not_measured_as_another_one(changed, text):
    request = Request.parse(OPTIONS)
    with open_model("test_resnet", request) as model:
        other = request.with_options(**changed)
        with pytest.raises(ErfscopeError, match=re.escape(text)):
            measure(rows({"net": model}, other), other)
        (found,) = measure(rows({"net": model}, changed_layer := request.with_options(layer="layer1")), changed_layer)
    assert found.layer == "layer1"


def test_a_request_with_other_options_is_checked_and_keeps_the_others():
    request = Request.parse({**OPTIONS, "layer": "layer2"})
    other = request.with_options(unit="corner")
    assert (other.layers, other.settings.unit, other.settings.samples) == (("layer2",), "corner", 2)
    assert request.settings.unit == "centre"
    with pytest.raises(ErfscopeError, match="unknown option 'units'"):
        request.with_options(units="corner")


def test_a_site_says_what_its_units_see_and_where_that_is_cut_off():
    from torch import nn

    model = open_model(nn.Sequential(nn.Conv2d(3, 2, 5, padding=2)), input_size=9, with_numbers=False)
    site = model.site("0")
    corner, centre = site.units("corner")[0], site.units("centre")[0]
    assert (site.trf(corner).box_px, site.trf(corner).is_clipped) == (((-2, 2), (-2, 2)), True)
    assert (site.trf(centre.index), site.trf(centre).is_clipped) == (site.trf(centre), False)

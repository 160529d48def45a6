"""The face: its page has every name, the page's own tool runs, and applications import nothing else of the core."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from erfscope import core
from erfscope.core import ErfscopeError, MeasurementError, Request, measure, open_images, open_model, rows

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "core.md").read_text(encoding="utf-8")
TOOL = re.search(r"```python\n(# fill\.py\n.*?)```", PAGE, flags=re.DOTALL)[1]
OPTIONS = {"weights": "random", "samples": 2}


def test_the_page_has_every_name_of_the_face():
    assert sorted(re.findall(r"^::: erfscope\.core\.(\w+)$", PAGE, flags=re.MULTILINE)) == core.__all__
    assert len(core.__all__) <= 52


def test_every_function_and_class_of_the_face_says_what_it_is():
    values = [getattr(core, name) for name in core.__all__]
    silent = {each.__name__ for each in values if inspect.isroutine(each) and "Raises:" not in (each.__doc__ or "")}
    assert silent <= {
        *("environment", "first_line", "is_input", "lists_options", "mass_beyond", "report_of", "rows"),
        *("sharing_recordings", "sound_gradients", "to_json", "unknown"),
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
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)).train()
    request = Request.parse({"samples": 2, "input_size": 16})
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with open_model(module, request) as model:
        assert measure(rows({"net": model}, request), request)[0].trf.size_px == (5, 5)
        with pytest.raises(MeasurementError), model:
            raise MeasurementError("no map")
        with model:
            # What the caller does to it inside is put back too.
            module.eval()
            module[1].register_forward_hook(lambda *_: None)
            module.train()(torch.randn(4, 3, 16, 16)).sum().backward()
    assert all(part.training for part in module.modules())
    assert all((value == before[name]).all() for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not module[1]._forward_hooks


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
    model = open_model(nn.Sequential(nn.Conv2d(3, 2, 5, padding=2)), input_size=9, with_numbers=False)
    site = model.site("0")
    corner, centre = site.units("corner")[0], site.units("centre")[0]
    assert (site.trf(corner).box_px, site.trf(corner).is_clipped) == (((-2, 2), (-2, 2)), True)
    assert (site.trf(centre.index), site.trf(centre).is_clipped) == (site.trf(centre), False)


def net(kernel: int = 3) -> nn.Module:
    torch.manual_seed(kernel)
    return nn.Sequential(nn.Conv2d(3, 4, kernel, padding=kernel // 2), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))


SMALL = {"samples": 2, "input_size": 16}


@pytest.mark.slow
def test_rows_are_of_the_models_and_labels_that_they_name(tmp_path):
    request = Request.parse({**SMALL, "keep_in": tmp_path})
    first, second = open_model(net(), request), open_model(net(5), request)
    found = measure(rows({"u": first, "v": second}, request), request)
    assert [(each.label, each.trf.size_px[0]) for each in found] == [("u", 5), ("v", 7)]
    assert len(list(tmp_path.rglob("report.json"))) == 2
    with pytest.raises(ErfscopeError, match="two models are called 'u'"):
        measure([*rows({"u": first}, request), *rows({"u": second}, request)], request)
    other = request.with_options(convention="luo")
    later = measure((each for each in [*rows({"u": first}, request), *rows({"v": second}, other)]), request)
    assert [(each.label, each.convention) for each in later] == [("u", "jacobian"), ("v", "luo")]
    again = request.with_options(resume=str(tmp_path))
    assert measure(rows({"u": first, "v": second}, again), again)[0].map.values.tolist() == found[0].map.values.tolist()


@pytest.mark.slow
def test_what_measure_cannot_do_is_refused():
    request = Request.parse(SMALL)
    model = open_model(net(), request)
    larger = open_model(net(), request, input_size=24)
    assert larger.input_size == (24, 24)
    with pytest.raises(ErfscopeError, match=r"images are inputs of \(3, 16, 16\), and Sequential takes \(3, 24, 24\)"):
        measure(rows({"": larger}, larger.request), larger.request, open_images(request, model))
    with pytest.raises(ErfscopeError, match="open with input_size"):
        measure(rows({"": model}, larger.request), request)
    with pytest.raises(ErfscopeError, match="open without numbers"):
        measure(rows({"": open_model(net(), request, with_numbers=False)}, request), request)
    with pytest.raises(ErfscopeError, match="halo is for erfscope"):
        measure(rows({"": model}, request), request.with_options(halo=True))
    with pytest.raises(ErfscopeError, match="unknown option 'nonsense'"):
        open_model(net(), request, nonsense=3)


def test_the_error_of_numbers_takes_integers_and_single_numbers():
    import erfscope

    result = erfscope.analyze(net(), samples=8, input_size=12)
    counted = result.errors_of(lambda values: np.array([(values > 0).sum(), 3]))
    assert counted.shape == (2,)
    assert counted[1] == 0
    assert result.errors_of(lambda values: float(values.max())).shape == ()
    assert np.isnan(erfscope.analyze(net(), samples=1, draws=1, input_size=12).errors_of(lambda values: 3)).all()

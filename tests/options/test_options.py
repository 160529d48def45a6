"""Options are declared once: what type checkers, the command line and the pages know of them follows from that."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path
from typing import get_args

import pytest
import torch
from PIL import Image
from torch import nn

import erfscope
from erfscope import CONVENTIONS, ErfscopeError, Options
from erfscope.adapters.blocks import BLOCKS
from erfscope.apps.lab.command import STUDY_NAMES
from erfscope.apps.lab.studies import STUDIES
from erfscope.core import Building, Request
from erfscope.core.answer import figure_style
from erfscope.core.images.synthetic import KINDS
from erfscope.core.request import settings
from erfscope.core.request.option import declared
from erfscope.core.request.settings import OPTIONS, Settings
from erfscope.core.run.attribution.captum_methods import NAMES
from erfscope.core.values.errors import naming_flags
from erfscope.show.command import table
from erfscope.show.figures.kinds import FIGURES
from erfscope.show.figures.style import FigureStyle

END_OF_DOCSTRING = 'so that type checkers see\n    them.\n    """\n\n'


@pytest.mark.parametrize(
    ("module", "fields"), [(settings, Settings), (figure_style, FigureStyle)], ids=["Settings", "FigureStyle"]
)
def test_the_keywords_that_type_checkers_see_are_the_fields(module, fields, request):
    file = Path(module.__file__)
    before, mark, obtained = file.read_text(encoding="utf-8").partition(END_OF_DOCSTRING)
    assert mark
    expected = "".join(f"    {name}: {each.accepts}\n" for name, each in declared(fields).items())
    if request.config.getoption("--update-golden"):
        file.write_text(before + mark + expected, encoding="utf-8")
        return
    assert obtained == expected, f"accept it: pytest {request.node.nodeid} --update-golden"
    assert {*Options.__annotations__} == {*OPTIONS}


def test_the_command_line_and_type_checkers_offer_what_there_is():
    """Without importing what has them."""
    there = {"convention": CONVENTIONS, "method": NAMES, "insert": BLOCKS, "synthetic": KINDS}
    for name, known in there.items():
        assert OPTIONS[name].option.words == tuple(known)
    assert get_args(figure_style.FigureKind) == tuple(FIGURES)
    assert tuple(STUDIES) == STUDY_NAMES


def test_the_help_of_a_command_of_one_value_offers_no_lists():
    unit, alone = OPTIONS["unit"].option, table(*OPTIONS)
    assert unit.several
    assert unit.text == alone["unit"].option.text.removesuffix(".") + f"; {unit.several}."
    assert not [name for name, each in alone.items() if "comma list" in each.option.text or "{" in each.option.text]


@pytest.mark.parametrize("name", OPTIONS)
def test_values_outside_the_limits_are_refused_with_the_limits(name):
    option = OPTIONS[name].option
    for beyond, limit in ((option.least - 1, f"at least {option.least}"), (option.most + 1, f"at most {option.most}")):
        if abs(beyond) != float("inf"):
            with pytest.raises(ErfscopeError, match=rf"{name.replace('_', '-')} must be {limit}.*, not {beyond}"):
                option.refuse(name, beyond)
            option.refuse(name, option.least)
            option.refuse(name, option.most)
    if option.is_closed:
        with pytest.raises(ErfscopeError, match=f"unknown {name.replace('_', ' ')} 'none of it'; there is: "):
            option.refuse(name, "none of it")


def test_image_is_another_name_of_images():
    assert Request.parse({"image": "x.png"}).images == Request.parse({"images": "x.png", "image": None}).images
    with pytest.raises(ErfscopeError, match="give either images or image, not both"):
        Request.parse({"images": "x.png", "image": "y.png"})


def test_lists_are_values_and_what_is_given_is_kept():
    given = {"layer": "layer1, layer2", "convention": ["jacobian", "luo"], "wrt": "image", "input_size": "64,24x32"}
    request = Request.parse({**given, "insert": "gcn@layer3", "alpha": "0,1", "channels": "3,0", "unsafe_load": False})
    assert request.layers == ("layer1", "layer2")
    assert request.conventions == ("jacobian", "luo")
    assert (request.references, request.sizes) == (("image",), ((64,), (24, 32)))
    assert (request.alphas, request.weights) == ((0.0, 1.0), ("auto",))
    assert request.several() == ["layer", "convention", "input_size", "alpha"]
    assert (request.given["channels"], request.settings.channels, request.building) == ("3,0", (0, 3), {})
    asked = [(each.convention, each.layer) for each in request.questions(["a", "b"])]
    assert asked == [("jacobian", "a"), ("jacobian", "b"), ("luo", "a"), ("luo", "b")]
    with pytest.raises(ErfscopeError, match="sampling points are points of the image"):
        Request.parse({"show_samples": True, "wrt": "image,layer1"})


def test_the_layers_of_each_model_are_several_where_one_has_several():
    for several, layers in ((["layer"], "a,b"), (["layer"], "stages"), ([], "a")):
        request = Request.parse({"layer": {"one": layers, "other": None, "third": "c"}}, of_each=True)
        assert request.several() == several
        assert request.of_model("one").several() == several
        assert request.of_model("other").several() == request.of_model("third").several() == []


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda net: erfscope.wrap(net, axes="thv"), "thw"),
        (lambda net: erfscope.wrap(net, layout="NHCW"), "NHWC"),
        (lambda net: erfscope.ErfMonitor(net, synthetic="leafs"), "leaves"),
        (lambda net: erfscope.check(net, missing="refues"), "refuse"),
        (lambda _: erfscope.ErfMap(values=[[1.0]], center_px=(0, 0), stride_px=(1, 1), scale="amplitud"), "amplitude"),
    ],
)
def test_a_wrong_word_is_refused_where_it_is_given(call, near):
    with pytest.raises(ErfscopeError, match=f"did you mean '{near}'"):
        call(nn.Conv2d(3, 4, 3))


@pytest.mark.parametrize("name", ["analyze", "sweep", "compare", "tile", "layers", "theoretical"])
def test_the_docstring_of_a_function_lists_its_options_with_their_lines(name):
    lines = inspect.getdoc(getattr(erfscope, name)).partition("\nOptions:\n")[2].splitlines()
    taken = declared(Building) if name in ("tile", "layers", "theoretical") else OPTIONS
    assert [line.partition("(")[0].strip() for line in lines] == list(taken)
    assert all(each.option.text in line for line, each in zip(lines, taken.values(), strict=True))


def to_tensor_of_side_16(image):
    return torch.zeros(3, 16, 16) + image.width


#: A module that a file builds, of any rank; one of tokens in front of those of the map too.
NET = """
from torch import nn

class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x).flatten(2).transpose(1, 2) if self.tokens else super().forward(x)

def make(rank=2, tokens=False):
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]
    net = Net(conv(3, 4, 3, padding=1), nn.ReLU(), conv(4, 4, 3, padding=1))
    net.tokens = tokens
    return net
"""
FILE = {"checkpoint": "net.pth", "weights": "auto"}
#: Options that another one must stand beside, or whose default is no value to give.
PICTURE = {"samples": 1, "synthetic": None}
NORMALISED = {"mean": 0.5, "std": 0.5}
GIVEN = {
    "images": {"images": "image.png", **PICTURE},
    "image": {"image": "image.png", **PICTURE},
    "transform": {"transform": to_tensor_of_side_16, "images": "image.png", **PICTURE},
    "checkpoint": FILE,
    "unsafe_load": {**FILE, "unsafe_load": True},
    "mean": NORMALISED,
    "std": NORMALISED,
    "unit_name": {"unit_name": "mm", "spacing": (1.0, 2.0)},
    "fps": {"fps": 2.0, "axes": "thw", "input_size": (4, 8, 8), "model_kwargs": {"rank": 3}},
    "sample_rate": {"sample_rate": 2.0, "axes": "t", "in_chans": 3, "input_size": 16, "model_kwargs": {"rank": 1}},
    "prefix_tokens": {"prefix_tokens": 0, "layout": "NLC", "model_kwargs": {"tokens": True}},
    "alpha": {"alpha": 0.5, "insert": "gc@0"},
    "until_se": {"until_se": 0.9, "samples": None},
    "accept": {"accept": "gradient_disagrees", "trust": True},
}
VALUES = {"in_chans": 3, "axes": "hw", "spacing": (1.0, 2.0), "layout": "NCHW", "insert": "gc@0", "label": "mine"}
VALUES |= {"model_kwargs": {"rank": 2}, "layer": "0", "channels": 0, "draws": 2, "shard": "1/1", "batch_size": 1}
VALUES |= {"amp_dtype": "bfloat16", "keep_in": "kept", "stop": lambda: False, "tell": str, "progress": lambda *_: None}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["analyze", "sweep", "compare", "tile", "layers", "theoretical"])
def test_every_option_of_a_docstring_is_taken(name, tmp_path, monkeypatch, memory_unplanned):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET, encoding="utf-8")
    torch.save(runpy.run_path("net.py")["make"]().state_dict(), "net.pth")
    Image.new("RGB", (16, 16), (9, 99, 200)).save("image.png")
    is_building = name in ("tile", "layers", "theoretical")
    options = declared(Building) if is_building else OPTIONS
    measured = {"weights": "random", "samples": 2, "synthetic": "leaves", "measures": "r50"}
    common = {"input_size": 16, **({"layer": "2"} if is_building else measured)}
    for option, each in options.items():
        own = GIVEN.get(option, {option: VALUES.get(option, each.default)})
        own = {key: value for key, value in own.items() if key in options or not is_building}
        model = ["net.py:make"] if name == "compare" else "net.py:make"
        assert getattr(erfscope, name)(model, **{**common, **own}) is not None, option


@pytest.mark.parametrize(
    ("text", "in_python", "in_terminal"),
    [
        ("such as input_size=(16, 9) (--input-size 16x9)", "such as input_size=(16, 9)", "such as --input-size 16x9"),
        ("give mean= and std= (--mean, --std), or", "give mean= and std=, or", "give --mean, --std, or"),
        ("say axes='t' (--axes t)", "say axes='t'", "say --axes t"),
        ("use --plain (plain=True)", "use plain=True", "use --plain"),
        ("use --seed 1 or --plain (seed=1, plain=True)", "use seed=1, plain=True", "use --seed 1 or --plain"),
        ("start again (--force)", "start again (--force)", "start again (--force)"),
    ],
)
def test_errors_name_keywords_in_python_and_flags_in_a_terminal(text, in_python, in_terminal):
    assert (str(ErfscopeError(text)), ErfscopeError(text, model="net").reason) == (in_python, in_python)
    with naming_flags():
        assert str(ErfscopeError(text, model="net")) == f"net {in_terminal}"
    assert str(ErfscopeError(text)) == in_python

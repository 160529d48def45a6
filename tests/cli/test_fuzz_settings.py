"""Hostile words: model specs, settings files and the values of every option. Each works, or is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import rich_click as click
from fuzzing import VALUES, command, files_below, fuzz, works_or_refuses
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from erfscope import ErfscopeError
from erfscope.adapters import load, split_label
from erfscope.adapters.sources import timm_models, torchvision_models
from erfscope.cli.commands import OWN, import_command
from erfscope.core.values.model_facts import Weights

pytestmark = pytest.mark.slow

NETS = """
from torch import nn

LIST = [1]

def tiny(**_options):
    return nn.Sequential(nn.Conv2d(3, 2, 3, 2, 1), nn.Conv2d(2, 2, 3, 2, 1))

def fails():
    raise RuntimeError("two\\nlines \\x1b[31m")

def leaves():
    raise SystemExit(7)
"""
SMALL = "nets.py:tiny --device cpu --input-size 8 --samples 1 --measures r50 --format plain"
TINY = tuple(SMALL.split())
PLAIN_PIECES = """
nets.py:tiny nets:tiny nets.py:fails nets.py:leaves nets.py:LIST nets.py nets.py: :tiny a= = resnet18
test_resnet.r160_in1k resnet18. hf-hub: local-dir: torchvision: transformers: a/b torch.nn:Identity os:sep
.. / // \\ ~ ~nobody $HOME * [ [0] ? : :in @ , é -- - % .onnx .pt2 .pth .json report.json image.png
/dev/null /dev/zero /proc/self/mem 0 -1 1 2 1e9 1e400 nan inf 0x8 3,3 8x8 8x8x8x8 all none true 1/2 0/0
centre corner grid:2 grid:0 grid:-1 grid:99999999 stages image output 0:in 1 jacobian energy luo r50 r50=-5%
best_shape=1 nonlocal@0 gcn@1:k=2 gcn@1:k= @0 nonlocal@ nets:tiny@0 cpu cuda:99 meta float64 NCHW NLC random
random-raw pretrained auto leaves grating occlusion smoothgrad 2% float16
"""
#: Pieces that words are made of.
OTHER_PIECES = (" ", "\n", "\0", "\x1b[31m", "\u202e", "x" * 300, "9" * 30, "9" * 5000, "a=(" * 50)
PIECES = [*PLAIN_PIECES.split(), *OTHER_PIECES]
WORDS = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=3).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A project, entered for as long as these tests run, with no settings in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith("ERFSCOPE_") and name != "ERFSCOPE_FUZZ":
                patch.delenv(name)
        place = tmp_path_factory.mktemp("outside") / "project"
        place.mkdir()
        (place / "nets.py").write_text(NETS)
        (place / "image.png").write_bytes(b"no image")
        (place / "report.json").write_text("{}")
        patch.chdir(place)
        # Zoo models take long to build, and what is fuzzed here is which of them is meant.
        for module in (timm_models, torchvision_models):
            patch.setattr(module, "check_room", lambda _make: None)
            patch.setattr(
                module,
                "obtain",
                lambda _make, _store, *, policy, seed: (nn.Conv2d(3, 2, 3), Weights(source=policy, seed=seed)),
            )
        yield place


@fuzz(80)
@given(spec=WORDS, weights=st.sampled_from(["random", "random", "auto", "pretrained"]))
def test_any_text_is_a_model_or_refused(folder, spec, weights):
    found = works_or_refuses(lambda: split_label(spec))
    assert isinstance(found, ErfscopeError) or found[1] == found[1].strip()
    assert isinstance(found, ErfscopeError) or found[0] in (None, spec.partition("=")[0].strip())
    made = works_or_refuses(lambda: load(spec, weights=weights))
    assert isinstance(made, ErfscopeError) or isinstance(made.module, nn.Module)


@fuzz(20)
@given(spec=WORDS, name=st.sampled_from(["analyze", "compare", "layers", "check"]))
def test_any_text_is_a_model_on_the_command_line(folder, spec, name):
    if spec.strip().startswith("-"):
        spec = f"./{spec}"
    if name == "compare":
        # A pattern may stand for the whole zoo.
        spec = "".join(c for c in spec if c not in "*?[")
    before = kept_files(folder)
    options = {"layers": (), "check": ("--trf-only", "--baseline", "known.json", *TINY[1:])}.get(name, TINY[1:])
    command(name, spec, *options)
    assert kept_files(folder) == before


def kept_files(folder):
    """All around a project but what may be written."""
    found = files_below(folder.parent)
    return {name: found[name] for name in found if "__pycache__" not in name and "known.json" not in name}


#: Options whose values are places to write to.
WRITE = {"output", "artifacts", "baseline", "cache"}
#: Options that ask for as much work as their number says.
WORK = {"samples", "draws", "batch_size"}
MEASURING = ("analyze", "compare", "check")
#: Words that would be work without end, or places elsewhere.
ASKING = [
    (name, option)
    for name, entry in OWN.items()
    if name not in ("study", "doctor")
    for option in import_command(entry).params
    if isinstance(option, click.Option) and option.name != "help"
]


@fuzz(60)
@given(which=st.lists(st.tuples(st.sampled_from(ASKING), WORDS), min_size=1, max_size=2))
def test_any_value_of_any_option_works_or_is_refused(folder, which):
    name = which[0][0][0]
    arguments = [name, *{"layers": ("nets.py:tiny",), **dict.fromkeys(MEASURING, TINY)}.get(name, ("report.json",))]
    for (owner, option), word in which:
        if owner != name or elsewhere(option, word):
            continue
        flag = option.opts[-1]
        arguments += [flag] if option.is_flag else [f"{flag}={word}" if flag.startswith("--") else f"{flag}{word}"]
    outside = files_below(folder.parent).keys()
    command(*arguments)
    new = {name for name in files_below(folder.parent).keys() - outside if not name.startswith("project/")}
    assert not new, (arguments, new)


def elsewhere(option: click.Option, word: str) -> bool:
    """Whether a value asks to write outside the project, or to work for long; who asks for that gets it."""
    if option.name in WRITE:
        return word.startswith(("/", "~")) or ".." in word
    return option.name in WORK and any(text in word for text in ("9" * 5, "1e"))


KEY_WORDS = """
samples seed images image model_kwargs model-kwargs insert unit format json mean analyze check compare output draws
until-se keep_going fail-on baseline plain help tool erfscope layers
"""
KEYS = st.sampled_from(KEY_WORDS.split())


def toml(value: object) -> str:
    """A JSON value in TOML's inline notation; there is no null in it."""
    if value is None:
        return "''"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(str(key))} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        kept = (c for c in value if not 0xD800 <= ord(c) < 0xE000)
        return '"' + "".join(c if c.isalnum() or c in " .,:;/@=%" else f"\\U{ord(c):08x}" for c in kept) + '"'
    return str(value).lower()


HEADS = (
    *("", "[tool.erfscope]\n", "[tool]\nerfscope = 3\n", "[[check]]\n", "[[tool.erfscope.check]]\n", "[analyze]\n"),
    "[check]\n",
)
TABLES = st.dictionaries(
    KEYS | st.text(max_size=5), VALUES | WORDS | st.dictionaries(KEYS, VALUES | WORDS, max_size=3), max_size=3
)


@fuzz(60)
@given(
    table=TABLES,
    head=st.sampled_from(HEADS),
    own=st.booleans(),
    name=st.sampled_from(["analyze", "check", "models", "layers"]),
)
def test_any_settings_hold_or_are_refused(folder, table, head, own, name):
    """Settings are read before anything else, so that an option that cannot be shows that they passed."""
    lines = [f"{toml(key)} = {toml(value)}" for key, value in table.items()]
    with settings_file(folder, own, (head + "\n".join(lines) + "\n").encode()):
        code, _, said = (
            command(name, "--no-such-option") if name != "check" else command("check", "--baseline=/dev/null/x")
        )
        assert code == 2, said


@fuzz(60)
@given(
    content=st.binary(max_size=80)
    | st.lists(st.sampled_from([*PIECES, "[", "]", "'", '"', "\n", "=", "[["])).map(lambda text: "".join(text).encode())
)
def test_any_bytes_are_settings_or_refused(folder, content):
    with settings_file(folder, True, content):
        code, _, said = command("models", "--no-such-option")
        assert code == 2, said


class settings_file:
    """A settings file, for as long as the block runs."""

    def __init__(self, folder: Path, own: bool, content: bytes) -> None:
        self.path, self.content = folder / ("erfscope.toml" if own else "pyproject.toml"), content

    def __enter__(self) -> None:
        self.path.write_bytes(self.content)

    def __exit__(self, *_error: object) -> None:
        self.path.unlink()

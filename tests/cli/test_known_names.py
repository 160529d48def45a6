"""``erfscope models`` keeps the names it lists, and lists the same with and without that file."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from erfscope.adapters.sources import catalogue
from erfscope.cli.run import known_names


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """The file that the names are kept in, below an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return known_names.user_cache_path("erfscope", appauthor=False) / "models.json"


@pytest.fixture
def no_timm(monkeypatch):
    """timm must not be asked."""

    def asked(*_, **__):
        pytest.fail("timm was asked")

    monkeypatch.setattr(catalogue, "model_names", asked)


@pytest.fixture
def kept(file):
    """The names are kept already."""
    known_names.model_names("test_vit")
    return file


@pytest.mark.parametrize("pretrained", [False, True])
@pytest.mark.parametrize(
    "pattern",
    [
        None,
        "",
        "test_vit",
        "*next*tiny*",
        "resnet?",
        "resnet18.a*",
        "*.in1k",
        "vit_[st]*",
        "resnet*.",
        "RESNET",
        "none of it",
    ],
)
def test_kept_names_are_those_of_timm_in_its_order(kept, pattern, pretrained):
    expected = catalogue.model_names(pattern, pretrained=pretrained)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "model_names", lambda *_, **__: pytest.fail("timm was asked"))
        assert known_names.model_names(pattern, pretrained=pretrained) == expected


def test_names_are_kept_once_asked_for(file):
    assert not file.exists()
    expected = known_names.model_names("test_*")
    assert json.loads(file.read_bytes())["names"] == catalogue.model_names()
    assert [path.name for path in file.parent.iterdir()] == ["models.json"]
    assert known_names.model_names("test_*") == expected == catalogue.model_names("test_*")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"origin": {}, "names": ["a"], "pretrained": []}',
        b'{"origin": 1, "names": 2, "pretrained": 3}',
    ],
    ids=["empty", "cut", "list", "no text", "of another installation", "other types"],
)
def test_a_damaged_file_is_replaced(file, content):
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert known_names.model_names() == catalogue.model_names()
    assert json.loads(file.read_bytes())["names"] == catalogue.model_names()


@pytest.mark.parametrize("changed", ["erfscope", "timm", "torch", "torchvision", "folder", "changed"])
def test_names_of_another_installation_are_asked_for_again(kept, changed):
    document = json.loads(kept.read_bytes())
    document["origin"][changed] += "x"
    document["names"] = document["pretrained"] = ["of_then"]
    kept.write_text(json.dumps(document))
    assert known_names.model_names() == catalogue.model_names()


def test_current_names_do_without_timm(kept, no_timm):
    assert "test_vit" in known_names.model_names("test_vit")


def test_a_cache_that_is_a_file_is_done_without(tmp_path):
    (tmp_path / "cache").write_text("")
    assert known_names.model_names() == catalogue.model_names()


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    assert known_names.model_names() == catalogue.model_names()


def test_a_file_that_is_a_folder_is_done_without(file):
    file.mkdir(parents=True)
    assert known_names.model_names() == catalogue.model_names()


def test_nothing_is_kept_of_an_installation_without_versions(file, monkeypatch):
    monkeypatch.setattr(known_names, "_origin", lambda: None)
    assert known_names.model_names() == catalogue.model_names()
    assert not file.exists()


@pytest.mark.slow
def test_the_command_imports_neither_torch_nor_timm_where_names_are_kept(kept):
    code = (
        "import sys\nfrom erfscope.cli.main import main\n"
        "try:\n    main(['models', 'test_vit'])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'torch', 'timm', 'torchvision', 'numpy', 'scipy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "test_vit" in done.stdout.splitlines()

"""Names of outputs: any name is written or refused in one line, and no input is ever replaced."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from fuzzing import command, files_below, fuzz
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

import erfscope
from erfscope import ErfscopeError, studies
from erfscope.core.answer.storage.writing import FORMATS
from erfscope.core.images.files import SUFFIXES as SUFFIXES_OF_IMAGES
from erfscope.show.command.inputs import refuse_inputs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")]

NETS = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1))

def enlarging():
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2))
"""
QUICK = ("--input-size", "16", "--samples", "2", "--weights", "random", "--device", "cpu", "--measures", "r50")
#: Every command that writes a file.
WRITERS = {
    "analyze": ("analyze", "nets.py:tiny", *QUICK, "--quiet"),
    "tile": ("tile", "nets.py:tiny", "--input-size", "16"),
    "tile --run": ("tile", "nets.py:tiny", "--input-size", "16", "--weights", "random", "--run", "image.npy"),
    "lam": ("lam", "nets.py:enlarging", "--image", "x.png", "--window", "4,4,8", "--steps", "1"),
    "explore": ("explore", "nets.py:tiny", "--input-size", "16", "--weights", "random", "--grid", "1"),
    "merge": ("merge", "shard1", "shard2", "--quiet"),
    "study": ("study", "theorems", "--show", "--quiet"),
}
NAMES = st.one_of(
    st.sampled_from(
        [*FORMATS, ".npy", ".npz.json", ".docx", ".", "..", "", "/", "//", "~", "-", ".json/", "a/b", "\0"]
    ),
    st.text(alphabet="a.B/\\- \n\u202e\udcff%*[", max_size=6),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net, pictures, an array and two shards, made once for all tests."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("nets.py").write_text(NETS)
        Path("photos").mkdir()
        pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        for name in ("x.png", "photos/y.png"):
            Image.fromarray(pixels).save(name)
        np.save("image.npy", np.zeros((3, 16, 16), np.float32))
        asked = {"input_size": 16, "samples": 2, "weights": "random", "device": "cpu", "measures": "r50"}
        for number in (1, 2):
            erfscope.sweep("nets.py:tiny", shard=f"{number}/2", **asked).save(f"shard{number}", drawn=False)
    return folder


@pytest.fixture(autouse=True)
def place(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project, with studies whose figures are empty."""
    monkeypatch.setattr(studies.StudyResult, "figure", lambda *_: Figure((1, 1)))
    shutil.copytree(project, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@fuzz(80)
@given(st.sampled_from([*WRITERS]), st.sampled_from(["out", "", "no/"]), NAMES, st.booleans())
def test_an_output_of_any_name_is_written_or_refused_in_one_line(
    writer: str, start: str, name: str, force: bool
) -> None:
    before = Path("image.npy").read_bytes()
    code, _, said = command(*WRITERS[writer], "-o", start + name, *(["--force"] if force else []))
    assert code in (0, 2, 3), said
    assert Path("image.npy").read_bytes() == before


def test_folders_above_an_output_are_made_but_not_for_a_run_that_fails() -> None:
    assert command("analyze", "nets.py:tiny", *QUICK, "--layer", "gone", "-o", "out/1/")[0] == 2
    assert not Path("out").exists()
    outputs = {
        "analyze": ["", *(f"erf{suffix}" for suffix in FORMATS)],
        "merge": [""],
        "study": [""],
        "tile": ["plan.json"],
        "tile --run": ["out.npy"],
        "lam": ["lam.json", "lam.csv", "lam.md", "lam.tex", "lam.html", "lam.png"],
        "explore": ["page.html"],
    }
    for writer, names in outputs.items():
        for number, name in enumerate(names):
            target = f"{writer}{number}/1/{name}"
            code, _, said = command(*WRITERS[writer], "-o", target)
            assert (code, Path(target).exists()) == (0, True), said


#: Every way to name a file that is read: the words before its name, and those after it.
READERS = {
    "image": (("analyze", "nets.py:tiny", *QUICK, "--quiet", "--image"), ()),
    "checkpoint": (("analyze", "nets.py:tiny", "--input-size", "16", "--samples", "2", "--quiet", "--checkpoint"), ()),
    "settings": (("analyze", "nets.py:tiny", *QUICK, "--quiet", "--config"), ()),
    "model": (("analyze",), (*QUICK, "--quiet")),
    "folder of timm": (("analyze",), (*QUICK, "--quiet")),
    "report": (("compare",), ("nets.py:tiny", *QUICK, "--quiet")),
    "stored map": (("lam",), ()),
    "shard": (("merge",), ("--quiet",)),
    "baseline": (("check", "nets.py:tiny", *QUICK, "--baseline"), ()),
    "tiles": (("tile", "nets.py:tiny", "--input-size", "16", "-o", "out.npy", "--force", "--run"), ()),
}
OTHER_SUFFIXES = (".npy", ".pth", ".safetensors", ".bin", ".pt2", ".ts", ".onnx", ".toml", ".py", "", "/")
SUFFIXES = st.sampled_from([*FORMATS, *SUFFIXES_OF_IMAGES, *OTHER_SUFFIXES])


def contents() -> st.SearchStrategy[bytes]:
    """Bytes of a file: any, those of a real one, and those of a real one that is cut off or has other bytes inside."""
    real = [
        *(Path(name).read_bytes() for name in ("x.png", "image.npy", "shard1/report.json", "nets.py")),
        *(file.read_bytes() for file in Path("shard1").glob("*.npz")),
        b"[analyze]\nseed = 3\n",
        b"{}",
        b"",
        pickle.dumps({"a": 1}),
    ]

    def damaged(content: bytes, place: int, by: bytes, is_cut: bool) -> bytes:
        place %= len(content) + 1
        return content[:place] + by + (b"" if is_cut else content[place + len(by) :])

    return st.one_of(
        st.binary(max_size=40),
        st.sampled_from(real),
        st.builds(damaged, st.sampled_from(real), st.integers(0, 1 << 16), st.binary(max_size=4), st.booleans()),
    )


@fuzz(80)
@given(st.sampled_from([*READERS]), SUFFIXES, st.data())
def test_a_file_of_any_suffix_and_content_is_read_or_refused_in_one_line(
    reader: str, suffix: str, data: st.DataObject
) -> None:
    before, after = READERS[reader]
    file = Path(f"given{suffix}")
    if suffix == "/":
        file = Path("folder", "config.json")
        file.parent.mkdir(exist_ok=True)
    file.write_bytes(data.draw(contents()))
    named = "folder" if suffix == "/" else f"given{suffix}"
    command(*before, f"local-dir:./{named}" if reader == "folder of timm" else named, *after)


ANALYZE = " ".join(("analyze nets.py:tiny", *QUICK))
TILE = "tile nets.py:tiny --input-size 16 --weights random"
HELD = "is or holds the input"
#: A command, what it is to write to, and what it says of that.
INPUTS = [
    *(
        (f"{ANALYZE} --image {asked}", output, "--force replaces no input")
        for asked in ("x.png", "./x.png", "soft.png", "hard.png", "*.png")
        for output in ("x.png", "soft.png", "hard.png")
    ),
    (f"{ANALYZE} --image photos", "photos/y.png", "replaces no input"),
    ("merge shard1 shard2", "shard1", "replaces no input"),
    (f"tile nets.py:tiny {' '.join(QUICK[:-2])} --image x.png --tolerance 0.1", "x.png", "replaces no input"),
    *(
        (f"{ANALYZE.replace('analyze', 'compare')} --image {asked}", "report", HELD)
        for asked in ("report/i0.png", "report/*.png", "link/i0.png", "report/inner")
    ),
    *(
        (f"compare {named} one", output, HELD)
        for named in ("one", "label=one", "one/report.json")
        for output in ("one", "one/report.json", "one/tiny.npz")
    ),
    (f"{TILE} --run big.zarr/0", "big.zarr", HELD),
    *(
        (f"{words} {named}", output, f"lies in the input {named}")
        for named in ("big.zarr", "link.zarr")
        for words, output in (
            *((f"{TILE} --run", output) for output in ("big.zarr/0", "link.zarr/0", "inner")),
            (f"{ANALYZE} --image", "big.zarr/notes.json"),
        )
    ),
]


def test_force_replaces_no_input(place: Path) -> None:
    Path("soft.png").symlink_to("x.png")
    Path("hard.png").hardlink_to("x.png")
    for name in ("report", "one"):
        erfscope.merge(["shard1", "shard2"]).save(name, drawn=False)
    next(Path("one").glob("*.npz")).rename("one/tiny.npz")
    Path("report/inner").mkdir()
    Path("link").symlink_to("report")
    for name in ("report/i0.png", "report/inner/i1.png"):
        Path(name).write_bytes(Path("x.png").read_bytes())
    group = zarr.open_group("big.zarr", mode="w")
    group.create_array("0", data=np.zeros((3, 16, 16), np.float32))
    Path("big.zarr/notes.json").write_text("mine")
    Path("link.zarr").symlink_to("big.zarr")
    Path("inner").symlink_to("big.zarr/0")
    before = files_below(place)
    for words, output, said in INPUTS:
        code, _, error = command(*words.split(), "-o", output, "--force")
        assert (code, said in error) == (2, True), (words, output, error)
    kept = files_below(place)
    assert {name: kept[name] for name in kept if "__pycache__" not in name} == before


@pytest.mark.parametrize("images", ["x.png", ["rgb=x.png", "nir=photos/y.png"], {"rgb": "x.png"}])
def test_images_are_no_output_however_they_are_given(images: object) -> None:
    with pytest.raises(ErfscopeError, match=r"is or holds the input x\.png"):
        refuse_inputs("x.png", images)
    refuse_inputs("nets.py", images)


def test_settings_that_are_nested_without_end_are_one_line() -> None:
    for text in ("a = " + "[" * 100_000, "a" + ".a" * 5_000 + " = 1", "a = " + "{a=" * 50_000):
        Path("erfscope.toml").write_text(text)
        code, _, said = command("tile", "nets.py:tiny", "--input-size", "16")
        assert (code, "erfscope.toml" in said) == (2, True)


def test_a_working_directory_that_was_removed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, said = command("tile", "test_resnet", "--input-size", "32")
    assert code in (0, 2)
    assert "internal error" not in said

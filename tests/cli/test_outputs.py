"""Names of outputs: any name is written or refused in one line, and no input is ever replaced."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr
from fuzzing import command, fuzz
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import erfscope
from erfscope import ErfscopeError
from erfscope.core.answer.storage.writing import FORMATS
from erfscope.core.images.files import SUFFIXES as SUFFIXES_OF_IMAGES
from erfscope.show.command.inputs import refuse_inputs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")]

NETS = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1))
"""
QUICK = ("--input-size", "16", "--samples", "2", "--weights", "random", "--device", "cpu")
#: Every command that writes a file.
WRITERS = {
    "analyze": ("analyze", "nets.py:tiny", *QUICK, "--quiet"),
    "tile": ("tile", "nets.py:tiny", "--input-size", "16"),
    "tile --run": ("tile", "nets.py:tiny", "--input-size", "16", "--weights", "random", "--run", "image.npy"),
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


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    Path("photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    for name in ("x.png", "photos/y.png"):
        Image.fromarray(pixels).save(name)
    np.save("image.npy", np.zeros((3, 16, 16), np.float32))
    for number in (1, 2):
        shard = erfscope.sweep(
            "nets.py:tiny", input_size=16, samples=2, weights="random", device="cpu", shard=f"{number}/2"
        )
        shard.save(f"shard{number}", drawn=False)
    return tmp_path


@fuzz(150)
@given(st.sampled_from([*WRITERS]), st.sampled_from(["out", "", "no/"]), NAMES, st.booleans())
def test_an_output_of_any_name_is_written_or_refused_in_one_line(
    writer: str, start: str, name: str, force: bool
) -> None:
    before = Path("image.npy").read_bytes()
    code, _, said = command(*WRITERS[writer], "-o", start + name, *(["--force"] if force else []))
    assert code in (0, 2, 3), said
    assert Path("image.npy").read_bytes() == before


@pytest.mark.parametrize(
    ("writer", "name"),
    [
        *((writer, "out/1/") for writer in ("analyze", "merge", "study")),
        *(("analyze", f"out/1/erf{suffix}") for suffix in FORMATS),
        *(("tile", "out/1/plan.json"), ("tile --run", "out/1/out.npy"), ("explore", "out/1/page.html")),
    ],
)
def test_folders_above_an_output_are_made(writer: str, name: str) -> None:
    code, _, said = command(*WRITERS[writer], "-o", name)
    assert code == 0, said
    assert Path(name).exists()
    assert "Traceback" not in said


def test_no_folder_is_made_for_a_run_that_fails() -> None:
    assert command("analyze", "nets.py:tiny", *QUICK, "--layer", "gone", "-o", "out/1/")[0] == 2
    assert not Path("out").exists()


#: Every way to name a file that is read: the words before its name, and those after it.
READERS = {
    "image": (("analyze", "nets.py:tiny", *QUICK, "--quiet", "--image"), ()),
    "checkpoint": (("analyze", "nets.py:tiny", "--input-size", "16", "--samples", "2", "--quiet", "--checkpoint"), ()),
    "settings": (("analyze", "nets.py:tiny", *QUICK, "--quiet", "--config"), ()),
    "model": (("analyze",), (*QUICK, "--quiet")),
    "folder of timm": (("analyze",), (*QUICK, "--quiet")),
    "report": (("compare",), ("nets.py:tiny", *QUICK, "--quiet")),
    "shard": (("merge",), ("--quiet",)),
    "baseline": (("check", "nets.py:tiny", *QUICK, "--baseline"), ()),
    "tiles": (("tile", "nets.py:tiny", "--input-size", "16", "-o", "out.npy", "--force", "--run"), ()),
}
SUFFIXES = st.sampled_from(
    [
        *FORMATS,
        *SUFFIXES_OF_IMAGES,
        ".npy",
        ".pth",
        ".safetensors",
        ".bin",
        ".pt2",
        ".ts",
        ".onnx",
        ".toml",
        ".py",
        "",
        "/",
    ]
)


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


@fuzz(150)
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


@pytest.mark.parametrize("asked", ["x.png", "./x.png", "soft.png", "hard.png", "*.png"])
@pytest.mark.parametrize("output", ["x.png", "soft.png", "hard.png"])
def test_force_replaces_no_image_that_is_read(asked: str, output: str) -> None:
    Path("soft.png").symlink_to("x.png")
    Path("hard.png").hardlink_to("x.png")
    before = Path("x.png").read_bytes()
    code, _, said = command("analyze", "nets.py:tiny", *QUICK, "--image", asked, "-o", output, "--force")
    assert code == 2
    assert "--force replaces no input" in said
    assert Path("x.png").read_bytes() == before


def test_force_replaces_no_image_of_a_folder_and_no_shard() -> None:
    code, _, said = command("analyze", "nets.py:tiny", *QUICK, "--image", "photos", "-o", "photos/y.png", "--force")
    assert (code, "replaces no input" in said) == (2, True)
    code, _, said = command("merge", "shard1", "shard2", "-o", "shard1", "--force")
    assert (code, "replaces no input" in said) == (2, True)
    code, _, said = command(
        "tile", "nets.py:tiny", *QUICK, "--image", "x.png", "--tolerance", "0.1", "-o", "x.png", "--force"
    )
    assert (code, "replaces no input" in said) == (2, True)


@pytest.mark.parametrize("asked", ["report/i0.png", "report/*.png", "link/i0.png", "report/inner"])
def test_force_replaces_no_folder_that_holds_an_input(asked: str) -> None:
    erfscope.merge(["shard1", "shard2"]).save("report", drawn=False)
    Path("report/inner").mkdir()
    Path("link").symlink_to("report")
    for name in ("report/i0.png", "report/inner/i1.png"):
        Path(name).write_bytes(Path("x.png").read_bytes())
    code, _, said = command("compare", "nets.py:tiny", *QUICK, "--image", asked, "-o", "report", "--force")
    assert (code, "is or holds the input" in said) == (2, True)
    assert Path("report/i0.png").exists()


def test_force_replaces_no_group_that_holds_the_array() -> None:
    group = zarr.open_group("big.zarr", mode="w")
    group.create_array("0", data=np.zeros((3, 16, 16), np.float32))
    asked = ("tile", "nets.py:tiny", "--input-size", "16", "--weights", "random", "--run", "big.zarr/0")
    code, _, said = command(*asked, "-o", "big.zarr", "--force")
    assert (code, "is or holds the input" in said) == (2, True)
    assert Path("big.zarr/0").exists()


@pytest.mark.parametrize("named", ["big.zarr", "link.zarr"])
@pytest.mark.parametrize("output", ["big.zarr/0", "link.zarr/0", "inner", "big.zarr/notes.json"])
def test_force_replaces_nothing_inside_an_input_of_zarr(named: str, output: str) -> None:
    group = zarr.open_group("big.zarr", mode="w")
    group.create_array("0", data=np.zeros((3, 16, 16), np.float32))
    Path("big.zarr/notes.json").write_text("mine")
    Path("link.zarr").symlink_to("big.zarr")
    Path("inner").symlink_to("big.zarr/0")
    if output.endswith("json"):
        asked: tuple[str, ...] = ("analyze", "nets.py:tiny", *QUICK, "--image", named)
    else:
        asked = ("tile", "nets.py:tiny", "--input-size", "16", "--weights", "random", "--run", named)
    before = {file: file.read_bytes() for file in Path("big.zarr").rglob("*") if file.is_file()}
    code, _, said = command(*asked, "-o", output, "--force")
    assert (code, f"lies in the input {named}" in said) == (2, True)
    assert {file: file.read_bytes() for file in Path("big.zarr").rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("output", ["one", "one/report.json", "one/tiny.npz"])
@pytest.mark.parametrize("named", ["one", "label=one", "one/report.json"])
def test_force_replaces_no_stored_result_that_is_compared(named: str, output: str) -> None:
    erfscope.merge(["shard1", "shard2"]).save("one", drawn=False)
    next(Path("one").glob("*.npz")).rename("one/tiny.npz")
    before = Path("one/report.json").read_bytes()
    code, _, said = command("compare", named, "one", "-o", output, "--force")
    assert (code, "is or holds the input" in said) == (2, True)
    assert Path("one/report.json").read_bytes() == before


@pytest.mark.parametrize("images", ["x.png", ["rgb=x.png", "nir=photos/y.png"], {"rgb": "x.png"}])
def test_images_are_no_output_however_they_are_given(images: object) -> None:
    with pytest.raises(ErfscopeError, match=r"is or holds the input x\.png"):
        refuse_inputs("x.png", images)
    refuse_inputs("nets.py", images)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a" + ".a" * 5_000 + " = 1", "a = " + "{a=" * 50_000])
def test_settings_that_are_nested_without_end_are_one_line(text: str) -> None:
    Path("erfscope.toml").write_text(text)
    code, _, said = command("tile", "nets.py:tiny", "--input-size", "16")
    assert code == 2
    assert "erfscope.toml" in said


def test_a_working_directory_that_was_removed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, said = command("tile", "test_resnet", "--input-size", "32")
    assert code in (0, 2)
    assert "internal error" not in said

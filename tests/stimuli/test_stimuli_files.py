"""Which files are taken, in which order, and the error when there are none."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from erfscope import ErfscopeError
from erfscope.core.images import Stimuli, open_pictures
from erfscope.core.images.files import SUFFIXES


def whole(image: Image.Image) -> np.ndarray:
    return np.asarray(image)


def opened(*paths: str | Path, samples: int | None = None, seed: int = 0, channels: int = 3) -> Stimuli:
    return open_pictures(paths, samples=samples, seed=seed, crop=whole, channels=channels)


def picture(path: Path, level: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), (level, level, level)).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 images in three classes; the grey level is the number in the name."""
    for number in range(60):
        picture(tmp_path / "val" / f"class{number % 3}" / f"{number:03}.png", number)
    return tmp_path / "val"


def relative(stimuli: Stimuli, top: Path) -> list[str]:
    return [Path(name).relative_to(top).as_posix() for name in stimuli.names]


def test_a_directory_gives_20_files_of_all_classes_and_not_the_first(folder: Path) -> None:
    stimuli = opened(folder)
    names = relative(stimuli, folder)
    assert stimuli.n == len(set(names)) == 20
    assert sorted(names) != sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))[:20]
    assert {name.split("/")[0] for name in names} == {"class0", "class1", "class2"}
    assert stimuli.kind == "image"
    assert stimuli.source == f"20 of 60 images in {str(folder)!r} (seed 0)"
    for index, name in enumerate(stimuli.names):
        shown = stimuli.pixels(index)
        assert np.all(shown == int(Path(name).stem))
        assert not shown.flags.writeable
    # A larger sample begins with the smaller one.
    assert opened(folder, samples=50).names[:7] == opened(folder, samples=7).names
    assert opened(folder, samples=1000).n == 60
    assert opened(folder, samples=1000).source == f"60 images in {str(folder)!r}"


def test_the_sample_depends_on_the_seed_and_on_nothing_else(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = relative(opened(folder), folder)
    assert relative(opened(folder), folder) == names
    assert set(relative(opened(folder, seed=1), folder)) != set(names)
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    assert relative(opened(moved), moved) == names
    monkeypatch.chdir(tmp_path)
    assert relative(opened("elsewhere"), Path("elsewhere")) == names


@pytest.mark.slow
def test_every_file_is_equally_likely_to_be_sampled(folder: Path) -> None:
    counts = np.zeros(60)
    for seed in range(100):
        for name in opened(folder, samples=6, seed=seed).names:
            counts[int(Path(name).stem)] += 1
    # 600 draws into 60 bins: chi square with 59 degrees of freedom is below 98.3 with probability 0.999.
    assert np.sum((counts - 10) ** 2 / 10) < 98.3


def test_named_files_are_all_used_in_their_order_and_before_those_of_directories(folder: Path, tmp_path: Path) -> None:
    paths = [folder / f"class{number % 3}" / f"{number:03}.png" for number in range(59, 20, -1)]
    stimuli = opened(*paths)
    assert list(stimuli.names) == [str(path) for path in paths]
    assert stimuli.source == "39 images"
    assert opened(paths[0]).source == str(paths[0])
    fewer = opened(*paths, samples=5)
    assert fewer.n == 5
    assert set(fewer.names) < {str(path) for path in paths}
    assert set(fewer.names) != {str(path) for path in paths[:5]}
    assert opened(*paths, samples=500).n == 39
    mine = picture(tmp_path / "mine.png")
    assert opened(folder, mine).names[0] == str(mine)
    assert opened(folder, mine).n == 21
    assert opened(folder, mine, samples=21).names == opened(folder, mine).names
    assert opened(folder, mine, samples=1).names == (str(mine),)


def test_patterns_and_links_are_followed_and_a_file_that_is_reached_twice_counts_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"class1/*.png": 20, "**/*.png": 60, "class[01]": 40, "class?/00*.png": 10, "**": 60}
    for pattern, count in counts.items():
        assert opened(str(folder / pattern), samples=500).n == count
    assert opened(picture(tmp_path / "odd[1].png")).n == 1
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(folder, target_is_directory=True)
    (folder / "loop").symlink_to(top, target_is_directory=True)
    assert opened(top, samples=500).n == 60
    one = folder / "class0" / "000.png"
    assert opened(one, one).n == 1
    monkeypatch.chdir(folder)
    stimuli = opened("class0/000.png", one, folder, folder / "class0", "*/*.png", samples=500)
    assert stimuli.n == 60
    assert stimuli.names[0] == "class0/000.png"


def test_hidden_files_and_other_suffixes_are_left_out(folder: Path) -> None:
    for name in (".hidden.png", ".cache/a.png", "class0/._000.png"):
        picture(folder / name)
    (folder / "README.txt").write_text("no image")
    upper = picture(folder / "class0" / "UPPER.PNG")
    (folder / "directory.png").mkdir()
    for asked in (folder, f"{folder}/**"):
        names = opened(asked, samples=500).names
        assert len(names) == 61
        assert str(upper) in names


def test_the_hash_is_that_of_the_files_and_a_broken_one_raises_when_it_is_asked_for(folder: Path) -> None:
    stimuli = opened(folder, samples=3)
    expected = hashlib.sha256(b"".join(Path(name).read_bytes() for name in stimuli.names)).hexdigest()
    assert stimuli.sha256 == expected
    one = folder / "class0" / "000.png"
    assert opened(one).sha256 == hashlib.sha256(one.read_bytes()).hexdigest()
    stimuli = opened(folder)
    Path(stimuli.names[11]).write_bytes(b"broken")
    Path(stimuli.names[12]).unlink()
    with pytest.raises(ErfscopeError, match=r"^cannot read '.*png': it is not an image that Pillow reads; give one of"):
        stimuli.pixels(11)
    with pytest.raises(ErfscopeError, match=r"^cannot read '.*png': No such file"):
        stimuli.pixels(12)
    assert stimuli.pixels(13).shape == (2, 3, 3)
    assert len(stimuli.sha256) == 64


def test_what_cannot_be_found_is_said_in_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    (tmp_path / "empty" / "notes.txt").write_text("")
    fifo = tmp_path / "pipe.png"
    os.mkfifo(fifo)
    cases = {
        f"{folder}/class0/0000.png": r"'.*0000\.png' does not exist \(did you mean '.*000\.png'\?\); give an image",
        f"{tmp_path}/nowhere/x.png": r"'.*' does not exist \(there is no directory '.*nowhere' either\)",
        f"{tmp_path}/empty": r"no images in the directory '.*empty'; its files need one of these suffixes: \.jpg",
        f"{tmp_path}/empty/*.png": r"no images for the pattern '.*': 0 matches, none",
        f"{tmp_path}/empty/*": r"no images for the pattern '.*': 2 matches, none of them a file with one of \.jpg",
        str(fifo): r"'.*pipe\.png' is neither a file nor a directory",
        "a" * 5000: r"cannot look for 'aaa.*File name too long",
        "nul\0byte": r"'nul\\x00byte' is no name of a file or folder",
        "": r"^an empty path was given; give an image file, a directory or a quoted pattern",
        "~no_such_user_here/x.png": r"cannot look for '~no_such_user_here/x\.png': Could not determine home",
    }
    for asked, text in cases.items():
        with pytest.raises(ErfscopeError, match=text) as caught:
            opened(folder, asked)
        assert "\n" not in str(caught.value)


def test_every_suffix_that_is_searched_for_can_be_read(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        path = tmp_path / f"x{suffix}"
        grey = Image.new("1", (16, 16), 1) if suffix == ".pbm" else Image.new("L", (16, 16), 77)
        try:
            grey.save(path)
        except (KeyError, OSError, ValueError):
            assert suffix in (".avif", ".webp")  # Optional parts of Pillow.
            continue
        assert np.abs(opened(path).pixels(0).astype(int) - (255 if suffix == ".pbm" else 77)).max() <= 3

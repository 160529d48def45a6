"""``erfscope lam``: the table, the files, and one line where there is no answer."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import erfscope
from erfscope.apps.lam.attribution import GRADIENTS, MAPS

NETS = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 12, 3, padding=1), nn.PixelShuffle(2))

def large():
    return nn.Sequential(nn.Conv2d(3, 6, 7, padding=3), nn.ReLU(), nn.Conv2d(6, 12, 7, padding=3), nn.PixelShuffle(2))

def broken():
    net = small()
    nn.init.constant_(net[0].weight, float("nan"))
    return net
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_environment: None) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "lr").mkdir()
    (tmp_path / "empty").mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, (20, 20 + 4 * number, 3), dtype=np.uint8)).save(
            f"{tmp_path}/lr/{number}.png"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run(command: Run) -> Run:
    return lambda *arguments: command("lam", *arguments)


ASKED = ("--image", "lr/0.png", "--window", "10,12,8", "--steps", "5")


@pytest.mark.slow
def test_a_table_compares_models_over_the_images_of_a_folder(run: Run) -> None:
    path = ("--steps", "5", "--gradient-at", "middle")
    code, out, _ = run("nets.py:small", "nets.py:large", "--image", "lr", "--window", "grid:2", *path)
    assert code == 0
    assert out.splitlines()[0] == "Local attribution of 16 windows in 4 images: nets.py:small, nets.py:large"
    assert "± standard error over images" in out
    first, second, minus = (line for line in out.splitlines() if line.startswith("nets.py"))
    assert "13x13" in first and "21x21" in second  # noqa: PT018
    assert float(minus.split()[1]) > 0


@pytest.mark.slow
def test_json_csv_latex_and_figures_hold_the_answer(run: Run) -> None:
    code, out, err = run("nets.py:small", *ASKED, "--json", "-o", "lam.json")
    assert (code, err) == (0, "erfscope: wrote lam.json\n")
    found = json.loads(out)
    assert found == json.loads(Path("lam.json").read_text())
    (row,) = found["maps"]
    assert (found["schema"], row["window"], row["trf"]) == ("erfscope.lam/1", [10, 12, 8], "9x9")
    assert found["path"]["steps"] == 5
    assert run("nets.py:small", *ASKED, "-o", "lam.json")[0] == 2
    for name in ("lam.csv", "lam.tex", "lam.md", "lam.png", "lam.pdf"):
        assert run("nets.py:small", "nets.py:large", *ASKED, "-o", name)[0] == 0
    rows = list(csv.DictReader(Path("lam.csv").read_text().splitlines()))
    assert [each["model"] for each in rows] == ["nets.py:small", "nets.py:large"]
    assert float(rows[0]["di"]) == pytest.approx(row["di"])
    assert r"\toprule" in Path("lam.tex").read_text()
    with Image.open("lam.png") as figure:
        assert figure.width > 600


@pytest.mark.slow
def test_the_command_and_python_give_the_same(run: Run) -> None:
    found = erfscope.lam(
        "nets.py:small", "lr/1.png", "texture:2", window_size=6, null=True, path={"steps": 3, "map_of": "root"}
    )
    asked = ("--image", "lr/1.png", "--window", "texture:2", "--window-size", "6", "--null", "--steps", "3")
    assert json.loads(run("nets.py:small", *asked, "--map-of", "root", "--json")[1]) == found.to_json()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--image", "none.png"), "'none.png' does not exist"),
        (
            ("--image", "lr/0.png", "--window", "10,12,80"),
            "40x40 pixels, of which each window leaves the last row and column free: the largest is 39 wide",
        ),
        (("--image", "lr/0.png", "--window", "-1,12,8"), "one of 8 begins at 31,31 at the latest"),
        (("--image", "lr/0.png", "--hr", "lr"), "--hr names 4 images for 1; give one for each"),
        (("--hr", "lr/0.png"), "pictures of high resolution alone need --scale"),
        (("--image", "lr/0.png", "-o", "lam.docx"), "lam.docx"),
        (("--image", "lr/0.png", "-o", "/proc/none/lam.json"), "the folder /proc cannot be written to"),
        (("--image", "empty"), "empty"),
    ],
)
def test_what_cannot_be_answered_is_one_line(run: Run, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run("nets.py:small", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_weights_that_are_not_finite_are_one_line_too(run: Run) -> None:
    code, out, err = run("nets.py:broken", *ASKED)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "gives an output or a gradient that is not finite on this image" in err


def test_the_command_names_every_way_to_read_a_step_and_a_map() -> None:
    from erfscope.apps.lam.command import lam

    words = {option.name: option.type.words for option in lam.params if option.name in ("gradient_at", "map_of")}
    assert words == {"gradient_at": tuple(GRADIENTS), "map_of": tuple(MAPS)}


def test_random_weights_are_said_to_be_so(run: Run) -> None:
    asked = ("--layer", "layer1", *ASKED[:2], "--window", "1,1,2", "--steps", "2", "--weights", "random")
    code, out, err = run("test_resnet", *asked)
    assert (code, err) == (0, "")
    assert "test_resnet: random weights, so that the map is the architecture's" in out


@pytest.mark.slow
def test_stored_maps_come_first_and_a_tolerance_decides_the_exit_code(run: Run) -> None:
    many = ("--image", "lr", "--window", "10,12,8", "--steps", "5")
    assert run("nets.py:small", *many, "-o", "kept.json")[0] == 0
    kept = "nets.py:small (kept.json)"
    code, out, _ = run("nets.py:small", "kept.json", *many, "--tolerance", "0.01", "--json")
    found = json.loads(out)
    assert (code, list(found["means"])) == (0, [kept, "nets.py:small"])
    assert found["means"][kept]["r90_px"] == pytest.approx(found["means"]["nets.py:small"]["r90_px"])
    assert found["verdicts"][1]["verdict"] == "pass"
    assert found["verdicts"][1]["text"].startswith(f"pass: nets.py:small: r90 0 ± 0 from {kept}, tolerated 0.")
    code, out, _ = run("kept.json", "nets.py:large", *many, "--tolerance", "0.01")
    assert code == 1
    assert "fail: nets.py:large: r90 +" in out
    # The same without running a model.
    assert run("nets.py:large", *many, "-o", "large.json")[0] == 0
    code, stored, _ = run("kept.json", "large.json", "--tolerance", "0.01")
    assert code == 1
    assert [line for line in out.splitlines() if line.startswith("fail: ")]
    words = (" ".join(text.replace("─", "").split()) for text in (stored.replace(" (large.json)", ""), out))
    assert len({*words}) == 1
    # One window has no error.
    assert run("nets.py:small", *ASKED, "-o", "one.json")[0] == 0
    code, out, _ = run("one.json", "nets.py:small", *ASKED, "--tolerance", "0.5")
    assert code == 3
    assert "; an error takes 4 images or windows" in " ".join(out.split())


@pytest.mark.slow
def test_each_model_is_guarded_by_the_one_of_its_name(run: Run) -> None:
    many = ("--image", "lr", "--window", "grid:2", "--steps", "4")
    assert run("nets.py:small", "nets.py:large", *many, "-o", "two.json")[0] == 0
    code, out, _ = run("two.json", "nets.py:large", "nets.py:small", *many, "--tolerance", "0.05")
    assert (code, out.count("pass: ")) == (0, 4)
    code, out, _ = run("two.json", "nets.py:small", "--null", *many, "--tolerance", "0.05")
    assert (code, out.count("pass: ")) == (0, 2)
    sixteen = ("--image", "lr/0.png", "--window", "grid:4", "--window-size", "4", "--steps", "2")
    assert run("nets.py:small", *sixteen, "-o", "page.html")[0] == 0
    assert "12 of 16 windows are drawn" in Path("page.html").read_text()


@pytest.mark.slow
def test_stored_maps_that_do_not_fit_are_refused_in_one_line(run: Run) -> None:
    assert run("nets.py:small", *ASKED, "-o", "kept.json")[0] == 0
    Path("other.json").write_text('{"schema": "erfscope.lam/2", "path": {}, "maps": []}')
    Path("none.json").write_text('{"schema": "erfscope.lam/1", "path": {}, "maps": []}')
    Path("half.json").write_text(Path("kept.json").read_text()[:200])
    for asked, says in [
        (("kept.json", "nets.py:small", "--image", "lr/1.png", *ASKED[2:]), "has other images or windows than"),
        (("kept.json", "nets.py:small", *ASKED[:4], "--steps", "6"), "found along other paths"),
        (("kept.json", "kept.json"), "one model twice"),
        (("kept.json", "--tolerance", "0.1"), "a tolerance is of models beside the first one"),
        (("kept.json", "--image", "lr/0.png"), "leave out images"),
        (("other.json",), "schema: Invalid enum value 'erfscope.lam/2'"),
        (("none.json",), "name no model"),
        (("half.json",), "cannot read 'half.json' as stored local attribution maps"),
        (("gone.json",), "cannot read 'gone.json' as stored local attribution maps"),
        (("kept.json", "-o", "kept.json", "--force"), "--force replaces no input"),
    ]:
        code, out, err = run(*asked)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert says in err


@pytest.mark.slow
def test_what_cannot_be_drawn_loses_neither_the_table_nor_the_page(run: Run) -> None:
    assert run("nets.py:small", *ASKED, "-o", "kept.json")[0] == 0
    code, out, err = run("kept.json", "-o", "kept.png")
    assert (code, out[:17], err.count("\n")) == (2, "Local attribution", 1)
    assert "stored maps are numbers alone" in err
    assert run("kept.json", "-o", "kept.html")[0] == 0
    assert run(*(f"{n}=nets.py:small" for n in range(8)), *ASKED, "-o", "many.html")[0] == 0
    for name, says in [("kept", "stored maps are numbers alone"), ("many", "room for images or volumes of up to 7")]:
        page = Path(f"{name}.html").read_text()
        assert says in page
        assert "nets.<wbr>py:<wbr>small" in page or ">7<" in page


@pytest.mark.slow
def test_a_page_holds_the_figures_the_table_and_what_was_asked(run: Run) -> None:
    asked = ("--image", "lr/0.png", "--window", "10,12,8", "--window", "2,3,8", "--steps", "5")
    assert run("nets.py:small", "nets.py:large", *asked, "-o", "lam.html")[0] == 0
    page = Path("lam.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "sigma 1.2 to 0 in 5 steps, gradient at the end of each" in page
    assert "Window 2,3,8 of lr/" in page
    assert "minus" in page
    assert "http:" not in page and "https:" not in page  # noqa: PT018
    di, _ = erfscope.lam("nets.py:small", "lr/0.png", ["10,12,8", "2,3,8"], path={"steps": 5}).mean(
        "nets.py:small", "di"
    )
    assert f">{di:.2f}<" in page

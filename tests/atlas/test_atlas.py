"""The kept atlas: what it says is what its models say when they are recorded and measured, and it runs nothing."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import erfscope
from erfscope.apps.atlas import atlas

ROOM = Path(atlas.__file__).parent


def test_every_name_of_timm_has_a_row_or_a_reason():
    timm = pytest.importorskip("timm")
    known = erfscope.models()
    if timm.__version__ == known.versions["timm"]:
        assert set(known) == set(timm.list_models())
    assert all(row.error or row.layer is None or row.trf_px for row in known.values())


def test_the_files_are_what_their_schemas_say_and_small():
    schema = json.loads((ROOM / "atlas-1.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(atlas.STRUCTURES.read_text(encoding="utf-8")), schema)
    jsonschema.validate(json.loads(json.dumps(erfscope.models("resnet1*").to_json())), schema)
    assert sum(path.stat().st_size for path in ROOM.glob("*.json")) < 2 << 20


@pytest.mark.parametrize("name", ["resnet18", "test_vit", "mixer_s32_224"])
def test_structures_are_those_of_the_recorded_model(name):
    known, table, advice = erfscope.models()[name], erfscope.layers(name), erfscope.advise(name).structure
    (row,) = [each for each in table.rows if each.name == known.layer]
    assert known.layer == table.default_layer
    assert (known.input, known.shape) == (table.input_size, row.shape)
    assert known.trf_px == row.trf.local_size_px
    assert known.global_by == row.trf.global_by
    assert known.center_px == row.trf.center_px
    assert known.stages == {
        each.name: (each.trf.stride_px[0], None if each.trf.is_global else each.trf.local_size_px[0])
        for each in table.rows
        if each.stage
    }
    assert (known.params, known.border_layer) == (advice.params, getattr(advice.border(), "name", None))
    assert known.gmacs == pytest.approx(advice.gmacs, abs=1e-4)


def test_the_centre_stands_off_the_middle_by_what_padding_moved_it():
    known = erfscope.models()["resnet18"]
    assert known.offset_px == (96 - 111.5, 96 - 111.5)


@pytest.mark.slow
def test_a_kept_size_is_measured_again_within_its_error():
    kept = erfscope.models()["test_resnet"].erf
    (now,) = erfscope.compare(["test_resnet"], weights="random").results
    for name in ("r50", "r90", "context_r50", "far_mass"):
        assert abs(float(now[name]) - float(kept[name])) <= 2 * kept[name].se, name


@pytest.mark.slow
def test_a_kept_row_stands_beside_a_measured_model(command):
    code, out, _ = command("compare", "test_vit", "--atlas", "test_resnet", "--weights", "random", "--json")
    assert code == 0
    ours, kept = json.loads(out)["results"]
    assert (ours["model"], kept["model"]) == ("test_vit", "test_resnet")
    assert kept["measures"]["r50"]["value"] == erfscope.models()["test_resnet"].sizes["r50"][0]
    difference, error = kept["differences"]["r50"].values()
    assert difference == pytest.approx(kept["measures"]["r50"]["value"] - ours["measures"]["r50"]["value"])
    assert 0 < error < 1


def test_rows_of_other_images_are_not_compared(command):
    code, out, _ = command("compare", "test_vit", "--atlas", "test_resnet", "--weights", "random", "--samples", "2")
    assert code == 3
    assert "Δ" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("models", "nosuchmodel"), "unknown model 'nosuchmodel' in the atlas of timm"),
        (("models", "xyz*"), "no model of the atlas of timm matches 'xyz*'"),
        (("compare", "--atlas", "resnet19"), "did you mean 'resnet18'"),
        (("compare", "--atlas", "resnet"), "unknown model 'resnet'"),
        (("compare", "--atlas", "resnet*"), "unknown model 'resnet*'"),
        (("compare", "a.pth", "--of", "resnet18", "--atlas", "resnet18"), "leave out --atlas"),
        (("compare", "test_vit", "--isolate", "--atlas", "resnet18"), "--atlas"),
    ],
)
def test_what_it_lacks_is_said_in_a_line(command, arguments, words):
    code, _, said = command(*arguments)
    assert code == 2
    assert words in said


def test_sizes_that_the_border_cuts_are_marked(command):
    known = erfscope.models("resnet50")
    assert "clipped" in known["resnet50"].findings
    assert "≥61.6" in known.table() and "≥" in command("models", "resnet50")[1]  # noqa: PT018
    assert "≥" not in erfscope.models("vgg16").table()


def test_the_model_that_is_named_comes_first():
    assert [*erfscope.models("resnet50")][:2] == ["resnet50", "resnet50_clip"]
    assert "wide_resnet50_2" in erfscope.models("resnet50")


def test_a_model_without_a_measured_field_says_how_to_measure_it():
    known = next(row for row in erfscope.models().values() if not row.sizes and row.layer)
    with pytest.raises(erfscope.ErfscopeError, match=f"erfscope analyze {known.name} --weights random"):
        _ = known.erf


def test_the_table_of_programs_has_every_number():
    known = erfscope.models("resnet18*")
    rows = list(csv.DictReader(io.StringIO(known.table("csv"))))
    assert [row["name"] for row in rows] == list(known)
    # A sign would begin a formula in a spreadsheet.
    assert (rows[0]["trf_px"], rows[0]["offset_px"]) == ("435x435", "'-15.5x-15.5")
    assert float(rows[0]["r50"]) == known["resnet18"].sizes["r50"][0]


def test_names_with_weights_are_those_of_the_installed_timm(command):
    code, out, _ = command("models", "test_vit*", "--pretrained")
    assert code == 0
    assert out.split() == __import__("timm").list_models("test_vit*", pretrained=True)


@pytest.mark.slow
def test_it_is_shown_without_torch():
    code = (
        "import sys; from erfscope.cli.main import main\ntry: main()\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "models", "resnet18"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
    assert "resnet18" in done.stdout

"""The theoretical receptive field of layers: complete, for every kind of model and unit, and in one line where it
cannot be had."""

from __future__ import annotations

import csv
import io
import json

import pytest
from loaded import adapter_of
from nets import Does
from rich.console import Console
from torch import nn

import erfscope
from erfscope import ErfscopeError, MeasurementError, Trf
from erfscope.show import Column, Table, rows_of
from erfscope.show.view.terminal.layers import layer_view
from erfscope.show.view.terminal.table import TerminalTable

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
#: (kernel, stride, padding) from the image on: the field is 1 + 4 + 2 * 2 + 4 * 2 = 17 wide, the stride 2 * 2 * 1 = 4.
GEOMETRY = ((5, 2, 1), (3, 2, 0), (3, 1, 1))
SIDE, STRIDE = 17, 4
#: Distill's formula: -P + (r - 1) / 2, with P = 1 + 2 * 0 + 4 * 1 the padding seen from the image.
OFFSET = -5 + 8
SPACE = {1: (67,), 2: (67, 51), 3: (35, 67, 51)}

CAUSE = "global average pooling"
NETS = """
import torch
from torch import nn

class Aside(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.aside = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    def forward(self, x):
        return self.seen(x), self.aside(torch.ones(1, 4, 9, 9, device=x.device))

class Squeeze(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.gate, self.last = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, 2, 1)
    def forward(self, x):
        y = self.conv(x)
        return self.last(y * self.gate(y.mean((2, 3), keepdim=True)).sigmoid())

class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.far, self.near = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 5), nn.Conv2d(4, 4, 1)
        nn.init.constant_(self.first.bias, 10.0)
    def forward(self, x):
        x = self.first(x)
        return self.far(x) if x.mean() > 0 else self.near(x)

class Strip(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3, 1, 1), nn.Identity()
    def forward(self, x):
        y = self.conv(x)
        return self.out(y + y.mean(3, keepdim=True))
"""


def net(rank: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (kernel, stride, padding) in enumerate(GEOMETRY):
        layers += [CONV[rank](3 if i == 0 else 4, 4, kernel, stride, padding), nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.fixture
def folder(tmp_path, monkeypatch, plain_environment):
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, command):
    """Run a command in the folder."""
    return command


def shown(renderable, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


# --- Complete, for any unit of any map ------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("word", ["centre", "corner", "last", "index"])
def test_the_field_of_a_chain_follows_the_closed_form(rank, word):
    model, space = net(rank), SPACE[rank]
    sizes = tuple(erfscope.layers(model, input_size=space, layer="4").rows[0].shape[1:])
    unit = {"last": tuple(s - 1 for s in sizes), "index": tuple(range(1, rank + 1))}.get(word, word)
    (row,) = erfscope.layers(model, input_size=space, layer="4", unit=unit).rows
    trf = erfscope.theoretical(model, "4", unit, input_size=space)
    assert trf == row.trf
    if word == "centre":
        # No other unit is nearer to the middle.
        middles = [(side - 1) / 2 for side in space]
        assert all(abs(OFFSET + STRIDE * u - middle) <= STRIDE / 2 for u, middle in zip(row.unit, middles, strict=True))
    else:
        assert row.unit == ((0,) * rank if word == "corner" else unit)
    centre = tuple(OFFSET + STRIDE * u for u in row.unit)
    box = tuple((c - SIDE // 2, c + SIDE // 2) for c in centre)
    assert trf == Trf(
        size_px=(SIDE,) * rank,
        local_size_px=(SIDE,) * rank,
        stride_px=(STRIDE,) * rank,
        center_px=centre,
        center_exact=True,
        exact=True,
        box_px=box,
        local_box_px=box,
        reference_px=space,
        offset_px=(OFFSET,) * rank,
    )
    clipped = [(max(a, 0), min(b, side - 1)) for (a, b), side in zip(box, space, strict=True)]
    assert trf.clipped_box_px == tuple(clipped)


@pytest.mark.parametrize("wrt", ["1", "2:in", "0"])
def test_a_field_can_be_had_in_any_map_on_the_way(wrt):
    """From the second convolution on: 1 + 2 + 2 * 2 = 7 cells at stride 2; unit 0 at -(0 + 2 * 1) + 3 = 1."""
    (row,) = erfscope.layers(net(2), input_size=SPACE[2], layer="4", unit=(3, 2), wrt=wrt).rows
    assert (row.trf.size_px, row.trf.stride_px, row.trf.offset_px) == ((7, 7), (2, 2), (1, 1))
    assert row.trf.center_px == (7, 5)
    assert row.trf.reference_px == (33, 25)
    assert row.trf.all_paths


@pytest.mark.slow
def test_patches_have_their_centre_between_pixels():
    table = erfscope.layers(adapter_of("test_vit"), layer="blocks.0", unit="grid:3")
    assert len(table.rows) == 9
    assert {row.trf.offset_px for row in table.rows} == {(7.5, 7.5)}
    assert all(row.trf.center_px == tuple(7.5 + 16 * u for u in row.unit) for row in table.rows)


@pytest.mark.slow
def test_specs_adapters_and_live_modules_answer_alike():
    adapter = adapter_of("test_resnet")
    first, *others = (erfscope.theoretical(model, "layer3") for model in ("test_resnet", adapter, adapter.module))
    assert others == [first, first]


# --- Global operations ----------------------------------------------------------------------------


def test_squeeze_excite_is_named_and_left_out_of_the_local_field(run):
    status, out, _ = run("layers", "nets.py:Squeeze", "--layer", "last", "--input-size", "64", "--json")
    (entry,) = json.loads(out)["layers"]
    trf = entry["trf"]
    assert status == 0
    assert (trf["global"], trf["size_px"], trf["box_px"]) == (True, [64, 64], [[0, 63], [0, 63]])
    # Two 3 x 3 convolutions of stride 2: 1 + 2 + 2 * 2 = 7 pixels around pixel 4 u = 32.
    assert (trf["local_size_px"], trf["local_box_px"]) == ([7, 7], [[29, 35], [29, 35]])
    assert trf["clipped_box_px"] == [[0, 63], [0, 63]]
    found = [entry[name] for name in ("stride_px", "center_px", "offset_px", "unit")]
    assert found == [[4, 4], [32, 32], [0, 0], [8, 8]]


@pytest.mark.parametrize("width", [80, 120])
def test_everything_about_one_layer_can_be_read(folder, width):
    table = erfscope.layers("nets.py:Squeeze", layer="last", input_size=64)
    text = "\n".join(shown(layer_view(table, one=True, everything=False), width))
    facts = ("last", "4x16x16", "64x64", "8,8", "32,32", "4 px", "0,0", CAUSE, "7 px", "[29, 35] x [29, 35]", "[0, 63]")
    assert [words for words in (*facts, "every operation") if words not in text] == []


def test_a_table_marks_global_layers_and_names_the_cause_where_there_is_room(folder):
    table = erfscope.layers("nets.py:Squeeze", input_size=64)
    wide, narrow = (shown(layer_view(table, one=False, everything=False), width) for width in (120, 60))
    (row,) = [line for line in wide if line.split()[:1] == ["last"]]
    assert row.split()[:7] == ["last", "4x16x16", "4", "all", "7", "8,8", "32,32"]
    assert CAUSE in row
    (row,) = [line for line in narrow if line.split()[:1] == ["last"]]
    assert row.split() == ["last", "4x16x16", "4", "all", "7", "8,8", "32,32", "yes"]
    assert f"all by {CAUSE}: last and 1 more" in narrow


@pytest.mark.slow
def test_the_table_shows_stages_and_blocks_and_from_where_on_nothing_is_new(run):
    """Blocks of a ResNet; the TRF of layer4 covers 64 x 64 pixels. --all has every name that JSON has."""
    (status, out, _), (_, as_json, _), (_, every, _) = (
        run("layers", "test_resnet", "--input-size", "64", *more) for more in ((), ("--json",), ("--all",))
    )
    assert status == 0
    begins = ("act1", "layer", "conv1")
    rows = [line.split() for line in out.splitlines() if line.startswith(begins) and not line.startswith("layer  ")]
    stages = [f"layer{n}{part}" for n in (1, 2, 3, 4) for part in (".0", "")]
    assert [row[0] for row in rows] == [*(f"conv1.{n}" for n in range(7)), "act1", *stages]
    entries = json.loads(as_json)["layers"]
    covering = {entry["name"] for entry in entries if entry["trf"]["clipped_box_px"] == [[0, 63], [0, 63]]}
    assert {row[0] for row in rows if row[-1] == "yes"} == covering & {row[0] for row in rows}
    assert f"from {next(row[0] for row in rows if row[-1] == 'yes')} on" in " ".join(out.split())
    assert {line.split()[0] for line in every.splitlines() if line} >= {entry["name"] for entry in entries}
    assert f"--all shows {len(entries) - len(rows)} more layers" in " ".join(out.split())


@pytest.mark.parametrize("width", [22, 16])
def test_names_are_broken_after_their_marks(width):
    names = Column(name="", kind="name", folds=True, width=width)
    lines = shown(TerminalTable(Table(columns=(names,), rows=rows_of([["vit_tiny_patch16_224.augreg_in21k"]]))), width)
    assert "".join(line.strip() for line in lines) == "vit_tiny_patch16_224.augreg_in21k"
    assert len(lines) > 1
    assert all(line.strip()[-1] in "_." for line in lines[:-1])


def test_a_table_without_global_layers_has_no_columns_for_them():
    text = "\n".join(shown(layer_view(erfscope.layers(net(2), input_size=SPACE[2]), one=False, everything=False), 120))
    assert "TRF" in text
    assert "local" not in text
    assert "all" not in text


def test_mixing_along_one_axis_is_no_global_field_but_widens_it(folder):
    """A mean over columns: rows see 3 pixels, columns all 20."""
    table = erfscope.layers("nets.py:Strip", layer="out", input_size="24x20")
    trf = table.rows[0].trf
    assert (trf.global_by, trf.size_px, trf.local_size_px) == (None, (3, 20), (3, 3))
    text = "\n".join(shown(layer_view(table, one=True, everything=False), 80))
    assert "3x20 px" in text
    assert "without global operations  3 px" in text


@pytest.mark.slow
def test_tables_of_results_give_the_whole_field_and_the_local_one(folder):
    asked = {"samples": 1, "input_size": (24, 32), "measures": "r50"}
    report = erfscope.compare(["nets.py:Squeeze", "nets.py:Strip"], **asked)
    squeeze, strip = csv.DictReader(io.StringIO(report.table(["r50"], format="csv")))
    assert (squeeze["trf_px"], squeeze["trf_local_px"], squeeze["trf_exact"]) == ("24x32", "7x7", "true")
    assert squeeze["global_by"] == CAUSE
    assert (strip["trf_px"], strip["trf_local_px"], strip["global_by"]) == ("3x32", "3x3", "")
    header, _, *rows = ([cell.strip() for cell in row.split("|")] for row in report.table(["r50"]).splitlines())
    column = header.index("TRF (px)")
    assert [row[column] for row in rows[:2]] == ["all (7)", "3x32"]


# --- Several units --------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_unit_asked_for_is_shown(run):
    asked = ("layers", "test_resnet", "--layer", "layer3", "--unit", "grid:2")
    status, out, _ = run(*asked)
    assert status == 0
    units = ["2,2", "2,7", "7,2", "7,7"]
    assert [line.split()[0] for line in out.splitlines() if line.split()[:1] and line.split()[0] in units] == units
    assert sum("layer3" in line for line in out.splitlines()) == 1
    entries = json.loads(run(*asked, "--json")[1])["layers"]
    assert [entry["unit"] for entry in entries] == [[2, 2], [2, 7], [7, 2], [7, 7]]
    assert [entry["center_px"] for entry in entries] == [[32, 32], [32, 112], [112, 32], [112, 112]]


def test_one_field_is_asked_of_one_unit():
    with pytest.raises(ErfscopeError, match=r"'grid:2' are 4 units, .* erfscope\.layers"):
        erfscope.theoretical(net(2), unit="grid:2", input_size=SPACE[2])
    with pytest.raises(ErfscopeError, match="at one input size, not 2"):
        erfscope.theoretical(net(2), input_size="32,64")


# --- What cannot be had ---------------------------------------------------------------------------


def test_layers_beside_the_image_are_left_out_and_counted(run):
    status, out, _ = run("layers", "nets.py:Aside", "--input-size", "32")
    assert status == 0
    assert "! 2 layers do not depend on the image, so there is no row for aside, output[1]" in " ".join(out.split())
    table = erfscope.layers("nets.py:Aside", input_size=32)
    assert "aside" not in [row.name for row in table.rows]
    assert table.to_json()["notes"] == list(table.notes)
    later = erfscope.layers(net(2), input_size=SPACE[2], wrt="2")
    assert [row.name for row in later.rows] == ["2", "3", "4", "5", "output"]
    assert later.notes == ("2 layers do not depend on 2, so there is no row for 0, 1",)


def test_what_cannot_be_had_in_python_is_an_error_of_its_own_kind():
    with pytest.raises(MeasurementError, match="holds no spatial map"):
        erfscope.theoretical(adapter_of("test_resnet"), "fc")
    with pytest.raises(ErfscopeError, match="unit 5,5 lies outside layer4, whose map is 5x5"):
        erfscope.theoretical(adapter_of("test_resnet"), "layer4", (5, 5))


# --- Models without numbers, on several devices, or that need numbers -----------------------------


def test_a_module_on_the_meta_device_has_a_field_but_no_numbers():
    model = net(2).to("meta")
    assert erfscope.theoretical(model, input_size=SPACE[2]) == erfscope.theoretical(net(2), input_size=SPACE[2])
    with pytest.raises(ErfscopeError, match="Sequential has no numbers: 6 of its 6 parameters are on the meta device"):
        erfscope.analyze(model, input_size=SPACE[2], samples=2)


@pytest.mark.parametrize("moved", [True, False])
def test_a_module_on_several_devices_has_a_field(moved):
    """Two parts on two devices; the activations are moved between them, or are not."""
    second = nn.Conv2d(4, 4, 3, 2).to("meta")
    after = Does(lambda m, x: m.second(x.to(m.second.weight.device) if moved else x), second=second)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), after)
    assert erfscope.theoretical(model, input_size=32).size_px == (5, 5)


@pytest.mark.slow
def test_the_field_of_a_data_dependent_model_holds_for_one_path_and_says_so(run, recwarn):
    said = "has data-dependent control flow; recorded once with random input"
    with pytest.warns(erfscope.ErfWarning, match=f"Choosing {said} .* the path it took"):
        trf = erfscope.theoretical("nets.py:Choosing", "output", input_size=32)
    assert trf.size_px == (7, 7)
    status, out, _ = run("layers", "nets.py:Choosing", "--layer", "output", "--input-size", "32")
    assert status == 0
    assert f"! nets.py:Choosing {said}" in " ".join(out.split())
    document = json.loads(run("layers", "nets.py:Choosing", "--input-size", "32", "--json")[1])
    assert [entry["name"] for entry in document["layers"]] == ["first", "far", "output"]
    assert "the path it took" in document["notes"][0]
    result = erfscope.analyze("nets.py:Choosing", input_size=32, samples=2, measures="r50")
    assert [w.code for w in result.findings if "the path it took" in w.text] == ["needed_numbers"]


@pytest.mark.slow
def test_names_are_built_without_numbers_and_with_them_where_they_must_be(monkeypatch):
    import timm

    create, devices, picky = timm.create_model, [], False

    def build(*args, **kwargs):
        model = create(*args, **kwargs)
        devices.append(next(model.parameters()).device.type)
        if picky:
            float(next(model.parameters()).sum())
        return model

    monkeypatch.setattr(timm, "create_model", build)
    light = erfscope.theoretical("test_resnet")
    assert devices == ["meta"]
    picky = True
    assert erfscope.theoretical("test_resnet") == light
    assert devices == ["meta", "meta", "cpu"]


def test_a_line_has_units_of_one_number():
    asked = {"input_size": SPACE[1]}
    assert erfscope.theoretical(net(1), unit=3, **asked) == erfscope.theoretical(net(1), unit=(3,), **asked)
    with pytest.raises(ErfscopeError, match=r"what erfscope\.wrap makes of a module, not int"):
        erfscope.theoretical(3)

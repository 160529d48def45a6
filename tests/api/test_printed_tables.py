"""What ``print`` and notebooks show: what the commands print of layers, receptive fields and plans of tiles; and what
is said of checkpoints and lost images."""

from __future__ import annotations

from dataclasses import replace

from made_up import result
from nets import conv
from torch import nn

import erfscope
from erfscope.core.values.model_facts import Weights
from erfscope.show import weights_condition
from erfscope.show.view.report_view import report_view
from erfscope.show.view.sentences import quiet_line, title


def net() -> nn.Sequential:
    return nn.Sequential(conv(s=2), nn.ReLU(), conv(4, s=2)).eval()


def test_layers_print_as_the_command_does_and_are_a_data_frame():
    table = erfscope.layers(net(), input_size=(32, 32))
    text = str(table)
    assert text.splitlines()[0].split() == ["layer", "shape", "stride", "TRF", "unit", "centre"]
    assert "sizes in px; default layer output" in text
    assert repr(table) == "<Sequential at 32x32: 4 layers and units>"
    assert table._repr_html_().startswith("<pre")
    frame = table.to_dataframe()
    assert list(frame.index) == ["0", "1", "2", "output"]
    assert frame.loc["2", "trf_px"] == "7x7"
    assert "centre = offset + unit x stride" in str(erfscope.layers(net(), layer="2", input_size=(32, 32)))


def test_a_receptive_field_prints_its_size_its_place_and_why_it_is_not_exact():
    assert str(erfscope.theoretical(net(), input_size=(32, 32))) == (
        "TRF 7x7 of 32x32\ncells inside 13 to 19 x 13 to 19\ncentre 16,16; stride 4,4"
    )
    assert "stride 4,4" in str(erfscope.theoretical(net(), input_size=(32, 40)))
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(1, 4)).eval()
    text = str(erfscope.theoretical(pooled, input_size=(8, 8)))
    assert text.startswith("TRF 8x8 of 8x8, all of it by group norm (1); 3x3 without such operations")


def test_a_plan_of_tiles_prints_as_the_command_does():
    plan = erfscope.tile(net(), input_size=(64, 64))
    assert repr(plan) == f"<{str(plan).splitlines()[0].strip()}>"
    assert len(str(plan).splitlines()) > 3
    assert plan._repr_html_().startswith("<pre")


def test_a_notebook_gets_a_result_once():
    found = erfscope.analyze(net(), input_size=(32, 32), samples=1, measures="r50")
    assert not hasattr(found, "_repr_png_")
    assert "<img" in found._repr_html_() or "<svg" in found._repr_html_()


def test_checkpoints_are_named_by_folder_file_and_averaging():
    rows = [
        replace(result(), label=run, weights=Weights(source="checkpoint", origin=f"/home/me/{run}/best.pth{end}"))
        for run, end in (("a", ""), ("b", ", keys ema.*"))
    ]
    assert [weights_condition(row).text for row in rows] == ["checkpoint a/best.pth", "checkpoint b/best.pth (EMA)"]
    view = report_view(erfscope.Report(results=tuple(rows)))
    assert title(view).endswith("with 2 checkpoints")
    assert "weights" not in view.shared


def test_lost_images_stand_in_the_quiet_line():
    row = result()
    lost = replace(row, input=replace(row.input, n_images=5, n_dead=1))
    assert "4 of 5" in quiet_line(lost)
    assert " of 5" not in quiet_line(row)

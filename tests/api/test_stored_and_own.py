"""What a comparison says of stored results, of checkpoints, and of layers that stand twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import result

import erfscope
from erfscope.errors import ErfscopeError
from erfscope.model_facts import Weights
from erfscope.view.report_view import report_view
from erfscope.view.sentences import quiet_line, title
from erfscope.view.words import weights_condition


@pytest.mark.parametrize("layer", ["layer3", {"U": "layer3"}])
def test_a_layer_that_no_model_is_measured_at_is_refused(layer):
    with pytest.raises(ErfscopeError, match="stands twice, behind the @ of the model and in layer="):
        erfscope.compare({"U": "test_resnet@layer1", "D": "test_resnet@layer2"}, layer=layer)


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

"""What a comparison says of stored results, of checkpoints, and of layers that stand twice."""

from __future__ import annotations

from dataclasses import replace

from made_up import result

import erfscope
from erfscope.core.values.model_facts import Weights
from erfscope.show import weights_condition
from erfscope.show.view.report_view import report_view
from erfscope.show.view.sentences import quiet_line, title


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

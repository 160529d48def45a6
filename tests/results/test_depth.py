"""Where an ERF stops growing with depth, where the border begins to clip it, and where the TRF covers the input."""

from __future__ import annotations

import math
from dataclasses import replace

import made_up
import numpy as np
import pytest
from torch import nn

import erfscope
from erfscope.core import Finding
from erfscope.core.answer.depth import Depth, covered, depth_of
from erfscope.core.answer.maps.accumulator import error_bar
from erfscope.show import depth_sentences, depth_table, in_depth

pytestmark = pytest.mark.usefixtures("memory_unplanned")


def stack(*kernels: int, side: int, samples: int = 4) -> tuple[erfscope.Result, ...]:
    """The layers of a stack of convolutions of one channel whose weights are all 1."""
    net = nn.Sequential(*(nn.Conv2d(1, 1, k, padding=k // 2, bias=False) for k in kernels))
    for weight in net.parameters():
        nn.init.ones_(weight)
    adapter = erfscope.wrap(net.eval(), input_size=(side, side))
    (series,) = in_depth(erfscope.sweep(adapter, layer=list(map(str, range(len(kernels)))), samples=samples).results)
    return series


def grown(*sizes: float, se: float = 0.01, **changes) -> Depth:
    """Layers with these r50, whose groups of images differ independently by ``se``."""
    patterns = ((-1, -1, 1, 1), (-1, 1, -1, 1), (-1, 1, 1, -1))
    rows = []
    for n, size in enumerate(sizes):
        groups = tuple(size + step * se / error_bar(0.0, patterns[0]) for step in patterns[n % 3])
        measure = replace(made_up.measured("r50", size, se), leave_one_out=groups if se else ())
        rows.append(made_up.result(layer=f"layer{n}", **changes))
        rows[-1].measures["r50"] = measure
    return depth_of(rows)


def test_equal_convolutions_add_what_the_closed_form_says():
    # The variance along an axis grows by (k^2 - 1) / 12 a layer, and r50 of a Gaussian is 1.1774 sigma.
    depth = depth_of(stack(*[5] * 8, side=41))
    sigma = np.sqrt(2.0 * np.arange(1, 9))
    added = [step.added[0] for step in depth.steps[3:]]
    np.testing.assert_allclose(added, 1.17741 * np.diff(sigma)[2:], atol=0.04)
    assert all(step.added[1] == 0 for step in depth.steps[1:])
    assert (depth.stops_at, depth.clips_at) == (7, None)


@pytest.mark.parametrize("samples", [1, 4])
def test_layers_of_one_cell_add_nothing_and_the_growth_stops_before_them(samples):
    series = stack(3, 3, 3, 1, 1, side=17, samples=samples)
    depth = depth_of(series)
    assert depth.stops_at == 2
    assert depth.rest[0] == depth.steps[3].added[0] == depth.steps[4].added[0] == 0
    assert depth.rest[1] == 0
    assert depth_sentences(series)[0] == "r50 stops growing at 2: the last 2 layers add 0 ± 0 px."


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ([5.0, 18.0, 12.0, 3.0], "r50 shrinks behind layer1, by 15.00 ± 0.01 px in the last 2 layers."),
        ([5.0, 18.0, 12.0], "r50 shrinks behind layer1, by 6.000 ± 0.014 px in the last layer."),
        # Less than 2 %.
        ([5.0, 18.0, 17.9], "r50 stops growing at layer1, and changes by -0.100 ± 0.014 px in the last layer."),
    ],
)
def test_a_size_that_is_lost_again_shrinks(sizes, sentence):
    results = [step.result for step in grown(*sizes).steps]
    assert depth_sentences(results)[0] == sentence


def test_clipping_begins_where_the_kernel_reaches_far_beyond_the_border():
    # Sigma is 0.8, 1.2 and 4.5 px, half the side of the input 8.5: 10, 7 and 1.9 sigma.
    series = stack(3, 3, 15, side=17)
    assert depth_of(series).clips_at == 2
    assert "The border begins to clip the ERF at 2: its sizes are underestimates." in depth_sentences(series)
    r90 = float(series[0]["r90"])
    assert depth_of(series).steps[0].filled == pytest.approx(math.pi * r90**2 / 3**2)


@pytest.mark.parametrize(
    ("sizes", "se", "stops_at"),
    [
        ((10.0, 20.0, 20.3, 20.1), 0.01, 1),  # within 2 %
        ((10.0, 20.0, 20.6), 0.01, 2),  # 3 %
        ((10.0, 20.0, 20.6), 0.5, 1),  # within two errors of the difference, 0.71
        ((10.0, 20.0, 20.6), 0.0, 2),  # 3 % without errors
        ((10.0, 30.0, 10.1), 0.01, 1),  # a growth that is lost again
        ((30.0, 20.0, 10.0), 0.01, 0),
        ((10.0,), 0.01, 0),
    ],
)
def test_growth_ends_where_no_later_layer_is_larger_by_more_than_noise_and_2_per_cent(sizes, se, stops_at):
    depth = grown(*sizes, se=se)
    assert depth.stops_at == stops_at
    assert depth.rest[0] == pytest.approx(sizes[-1] - sizes[stops_at])
    assert (depth.rest[1] is None) is (se == 0)


def test_where_the_own_cell_sets_r50_growth_is_that_of_the_context():
    own = Finding(code="own_cell_dominated", text="")
    depth = grown(10.0, 20.0, findings=(own,))
    assert (depth.measure, depth.stops_at) == ("context_r50", 0)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_layer_behind_one_that_reads_all_along_every_axis_reaches_no_new_cells(axes):
    def field(first: int, last: int, **more):
        return made_up.result(trf=made_up.box_field([(first, last)] + [(0, 9)] * (axes - 1), (10,) * axes, **more))

    assert covered([field(1, 9), field(0, 9), field(-3, 14), field(-9, 30)]) == [False, False, True, True]
    # Of global operations the local field counts, and a bound is not sure to be reached.
    everything = {"global_by": "se", "local_size_px": (3,) * axes, "local_box_px": ((4, 6),) * axes}
    assert covered([field(0, 9, **everything), field(0, 9, exact=False), field(0, 9)]) == [False, False, False]


def test_failed_layers_are_left_out_and_other_settings_are_series_of_their_own():
    rows = made_up.stages().results
    failed = (replace(rows[1], status="degenerate"), made_up.broken())
    other = replace(rows[2], seed=1)
    series = in_depth([rows[3], rows[0], *failed, rows[2], other, *rows[4:]])
    assert [[result.layer for result in each] for each in series] == [
        ["layer1", "layer3", "layer4"],
        ["layer3"],
        ["blocks.0", "blocks.6", "blocks.11"],
    ]


def test_the_table_has_each_layers_sizes_and_what_it_adds():
    table = depth_table(made_up.stages().results[:4])
    cells = [dict(zip([column.name for column in table.columns], row.cells, strict=True)) for row in table.rows]
    assert [str(row["TRF"]) for row in cells] == ["43", "99", "211", "435"]
    assert [str(row["r50"]) for row in cells] == ["8.0 ± 0.2", "16.7 ± 0.3", "44.0 ± 0.9", "62.0 ± 1.2"]
    # The groups of these differ by one pattern: the error of a difference is that of the errors.
    assert [str(row["added"]) for row in cells] == ["–", "+8.7 ± 0.2", "+27.3 ± 0.5", "+18.0 ± 0.4"]

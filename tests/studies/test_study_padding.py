"""Padding: influence at the border, units that no border reaches, turned images, and nets that read where things
are."""

from __future__ import annotations

import pytest
import torch

from erfscope import studies
from erfscope.apps.lab.studies import padding
from erfscope.apps.lab.studies.padding import BOX, PICTURE, circular_limit, red_green

TOTALS = {
    "replicate": (3,) * 9,
    "full": (3,) * 9,
    "circular": (3,) * 9,
    "zero": (2, *(3,) * 7, 2),
    "valid": (1, 2, *(3,) * 5, 2, 1),
    "reflect": (2, 4, *(3,) * 5, 4, 2),
}
#: Of a kernel that is not symmetric.
SKEWED = {
    "replicate": (3, *(2,) * 7, 1),
    "full": (2,) * 9,
    "circular": (2,) * 9,
    "zero": (*(2,) * 8, 1),
    "valid": (1, *(2,) * 6, 1, 0),
    "reflect": (2, 3, *(2,) * 6, 1),
}


@pytest.fixture(scope="module")
def found() -> studies.StudyResult:
    return studies.run("padding", effort="smoke")


@pytest.mark.slow
def test_totals_and_bias_are_those_derived_by_hand(found, check_shown):
    assert {row.name: row.totals for row in found} == TOTALS
    assert [row.bias for row in found] == pytest.approx([0, 0, 0, 1 / 3, 2 / 3, 1 / 3], abs=1e-12)
    assert found.passed
    # An input's total is the kernel's sum where all outputs that it reaches exist, and more where padding repeats it.
    assert {row.name: padding.line_totals(row.name, (1, 1, 0))[0] for row in found} == SKEWED
    assert [row.bias_skewed for row in found] == pytest.approx([0.5, 0, 0, 0.5, 1, 0.5], abs=1e-12)
    check_shown(found)


def test_circular_padding_answers_alike_around_the_image_and_no_table_of_what_it_sees_beats_the_limit():
    torch.manual_seed(0)
    net, draws = padding.net1("circular").double(), torch.Generator().manual_seed(0)
    x, classes = red_green(12_000, draws)
    some = x[:50].double()
    torch.testing.assert_close(net(some.roll((8, 16), (2, 3))), net(some))
    assert not torch.allclose(net(some.roll(4, 3)), net(some))
    # The more frequent class of each pair (place of red modulo 8, place of green less that of red modulo 32), counted.
    red, green = ((x[:, colour].sum(1) > 0).int().argmax(1) for colour in (0, 1))
    pairs = (red % 8) * PICTURE + (green - red) % PICTURE
    counts = torch.zeros(8 * PICTURE, 2).index_put_((pairs, classes), torch.ones(()), accumulate=True)
    # Four binomial standard errors, and a little more that the larger of two counts gains by chance.
    assert float(counts.amax(1).sum() / 12_000) == pytest.approx(circular_limit(), abs=0.02)
    assert 0.5 < circular_limit() < 1


@pytest.mark.slow
def test_erfs_are_shifted_turned_and_cut_as_their_padding_says_and_places_are_read_without(found):
    assert max(row.shift_error for row in found) < 1e-12
    assert max(row.turn_symmetric for row in found) < 1e-9
    # Kernels drawn at random do not turn: the maps have little in common.
    assert min(row.turn_other for row in found) > 0.5
    valid, full, circular = (found[mode] for mode in ("valid", "full", "circular"))
    assert valid.r50_centre == valid.r50_edge == valid.r50_corner
    assert full.r50_corner > full.r50_edge > full.r50_centre
    # The corner's ERF is wrapped around to the far corners, so that half of it lies beyond most of the picture.
    assert circular.r50_corner > padding.SIDE / 2
    assert len({round(row.r50_centre, 9) for row in found}) == 1
    # A net without padding takes the place for the class.
    assert valid.accuracy > 0.9
    assert valid.accuracy_swapped < 0.1
    assert (valid.held, full.held) == (True, None)


def test_pictures_differ_between_classes_in_order_and_in_height_alone():
    for swapped in (False, True):
        x, classes = red_green(200, torch.Generator().manual_seed(0), swapped=swapped)
        assert x.sum((2, 3)) == pytest.approx(torch.tensor([[BOX**2, BOX**2, 0.0]]).expand(200, 3))
        columns = (x.sum(2) > 0).float().argmax(2)
        assert torch.equal(columns[:, 0] > columns[:, 1], classes == 1)
        assert ((columns[:, 0] - columns[:, 1]).abs() > BOX).all()
        rows = (x.sum(3) > 0).float().argmax(2)[:, :2]
        assert torch.equal((rows >= PICTURE // 2).all(1), classes == (0 if swapped else 1))
        assert torch.equal((rows < PICTURE // 2).all(1), classes == (1 if swapped else 0))

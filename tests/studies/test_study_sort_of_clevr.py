"""Sort-of-CLEVR: answers are right, the nets' ERFs rank, and what a net that does not look would get."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from erfscope import studies
from erfscope.apps.lab.studies.scenes import sort_of_clevr
from erfscope.apps.lab.studies.scenes.sort_of_clevr import CIRCLE, COLOURS, NO, ONE, RADIUS, SIDE, SQUARE, YES

CENTRES = np.array([(10, 10), (10, 30), (70, 70), (40, 40), (60, 10), (30, 69)])
ROUND = np.array([True, False, False, True, False, False])


@pytest.fixture(scope="module")
def found() -> studies.StudyResult:
    return studies.run("sort-of-clevr", effort="smoke")


@pytest.mark.slow
def test_erf_sizes_rank_conv_s_conv_l_attention(found, check_shown):
    small, large, attention = found
    for measure in ("r90_before", "r90"):
        sizes = [getattr(row, measure) for row in (small, large, attention)]
        # Far apart: each is at least half as large again as the one before.
        assert sizes[0] * 1.5 < sizes[1]
        assert sizes[1] * 1.3 < sizes[2]
    # Two 3 x 3 with strides 3 and 2: 1 + 2 + 2 * 3; two more with strides 2 and 1 behind: 9 + 2 * 6 + 2 * 12.
    assert (small.trf, large.trf, attention.trf) == (9, 45, None)
    assert found.passed
    assert [row.published for row in found] == [54.4, 73.3, 81.8]
    check_shown(found)


def test_questions_are_answered_by_where_things_are_and_a_blind_net_gets_the_most_frequent_answer():
    alone, related = sort_of_clevr._alone, sort_of_clevr._related
    assert [alone(0, kind, CENTRES, ROUND) for kind in range(3)] == [CIRCLE, YES, YES]
    assert [alone(2, kind, CENTRES, ROUND) for kind in range(3)] == [SQUARE, NO, NO]
    # From (10, 10) the nearest is (10, 30), a square; the furthest (70, 70), a square; of circles there are two.
    assert [related(0, kind, CENTRES, ROUND) for kind in range(3)] == [SQUARE, SQUARE, ONE + 1]
    # From (30, 69) the nearest is (40, 40), a circle, and there are four squares.
    assert [related(5, kind, CENTRES, ROUND) for kind in (0, 2)] == [CIRCLE, ONE + 3]
    one = sort_of_clevr.scenes(30, np.random.default_rng(1))
    # Trained on the questions that it is asked, it cannot do worse than the most frequent answer of all.
    counts = torch.bincount(one.answers[:, 10:].flatten())
    assert sort_of_clevr.blind(one, one) >= float(counts.max() / counts.sum())


def test_pictures_have_every_colour_in_its_shape():
    picture = sort_of_clevr.drawn(CENTRES, ROUND) + 0.5
    for (row, col), colour, circle in zip(CENTRES, COLOURS, ROUND, strict=True):
        assert picture[:, row, col] == pytest.approx(colour)
        corner = picture[:, row + RADIUS, col + RADIUS] if max(row, col) + RADIUS < SIDE else None
        if corner is not None:
            assert (corner == colour).all() == (not circle)
    seen = sort_of_clevr.scenes(20, np.random.default_rng(0))
    assert seen.questions.sum(2).eq(3).all()
    assert seen.questions[:, :10, 6].eq(1).all()
    assert seen.questions[:, 10:, 7].eq(1).all()
    # Objects do not overlap: all six areas are whole.
    squares, circles = (2 * RADIUS + 1) ** 2, int((np.hypot(*np.indices((11, 11)) - 5) <= RADIUS).sum())
    pictures, colours = seen.pictures.numpy()[:, None] + 0.5, COLOURS.astype(np.float32)[:, :, None, None]
    areas = (abs(pictures - colours).max(2) < 1e-6).sum((2, 3))
    assert set(areas.flat) == {squares, circles}

"""One seed gives one result, for any batch size and any number of workers and threads. Ranks and shards: test_ranks.py,
test_shards.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import erfscope

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned")]

MEASURED = ("r50", "r90", "context_r50", "sigma_row", "angle_deg", "far_mass", "entropy_area", "side50", "coverage")
#: Beside the defaults; conventions that average raw and per image, signed ones, and two methods.
ASKED = {"layer": "down", "dtype": "float64", "samples": 11, "batch_size": 4, "measures": list(MEASURED)}
KINDS = [
    {"convention": "jacobian"},
    {"convention": "luo"},
    {"convention": "signed"},
    {"convention": "replknet"},
    {"convention": "jacobian", "method": "smoothgrad", "samples": 3},
    {"convention": "luo", "wrt": "body"},
    {"convention": "jacobian", "draws": "all", "samples": 1},
]
#: Threads of PyTorch, and options: several at once show what one alone would.
TOGETHER = [(1, {"batch_size": 1}), (2, {"batch_size": 11, "workers": 2})]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_sizes_do_not_depend_on_how_they_are_computed(kind, small, threads):
    threads(1)
    one = erfscope.analyze(small, **ASKED | kind)
    for number, other in TOGETHER:
        threads(number)
        found = erfscope.analyze(small, **ASKED | kind | other)
        np.testing.assert_allclose(found.map.values, one.map.values, rtol=0, atol=1e-12)
        for name, measure in one.measures.items():
            if isinstance(measure.value, float) and not name.startswith(("gaussian", "best")):
                assert float(found[name]) == pytest.approx(measure.value, rel=1e-9, abs=1e-12), (name, other)


@pytest.mark.parametrize("kind", ["leaves", "noise", "correlated", "impulse", "grating"])
def test_stimuli_are_the_same_bit_for_bit_in_any_order_and_in_workers(kind):
    from erfscope.core.images import synthetic
    from erfscope.core.images.feed import PictureImages, Prefetcher

    feed = PictureImages(
        synthetic(kind, samples=9, seed=3, size=(48, 40), channels=3), lambda pixels: torch.from_numpy(pixels.copy())
    )
    forward = [feed.batch([index]) for index in range(9)]
    backward = [feed.batch([index]) for index in reversed(range(9))][::-1]
    ahead = Prefetcher(feed, range(9), None, workers=2, keep=3)
    assert all(torch.equal(one, other) for one, other in zip(forward, backward, strict=True))
    assert all(torch.equal(one, ahead(index)) for index, one in enumerate(forward))
    # What was let go of is read again.
    assert torch.equal(ahead(0), forward[0])
    ahead.close()

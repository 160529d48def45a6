"""Errors that name what exists."""

from __future__ import annotations

from erfscope.core import unknown


def test_of_many_names_the_similar_ones_are_listed_first():
    names = [f"stem{number}" for number in range(20)] + ["layer3", "layer4"]
    text = str(unknown("layer", "layr4", names))
    assert text.startswith("unknown layer 'layr4'; there is: layer4, layer3, stem0, ")
    assert text.endswith("... (22 in all) (did you mean 'layer4'?)")


def test_a_few_names_stay_in_their_order():
    assert "there is: c, a, b" in str(unknown("thing", "b2", ["c", "a", "b"]))

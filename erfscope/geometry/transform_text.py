"""The line that says how a picture becomes the input of a model: what makes the pixels, then what scales them."""

from __future__ import annotations

#: Where a line of :attr:`erfscope.adapter.Preprocess.text` goes from what makes the pixels to what only scales them.
_SCALING = ", mean "


def pixels_text(transform: str) -> str:
    """What makes the pixels in a line about a transform: resize and crop, without the mean and std that leave them as they are."""
    return transform.partition(_SCALING)[0]


def is_whole(transform: str) -> bool:
    """Whether a transform does everything in one step, as a user's own does, so that nobody can say which pixels a model sees."""
    return _SCALING not in transform

"""How many channels the input of a model has, by the errors that it raises on others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

#: Numbers of channels that are tried.
MOST_GUESSES = 8
#: What is most common.
COMMON = (3, 1, 2, 4)
#: Errors of a layer that gets other features than it takes: which of the two numbers comes first.
_TAKES_THEN_GETS = (
    r"to have (\d+) channels, but got (\d+) channels",
    r"normalized_shape=\[(?:\d+, )*(\d+)\].*input of size ?\[(?:\d+, )*(\d+)\]",
)
_GETS_THEN_TAKES = (
    r"should contain (\d+) elements not (\d+)",
    r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)",
    r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at non-singleton dimension 1",
)


def next_guess(tried: Sequence[int], text: str) -> int | None:
    """Return a number of input channels that was not tried yet; None for no more.

    With n channels a layer gets g features and takes t: where others were joined to the n, n - (g - t) are right, and
    where each channel became several, n * t / g.

    Args:
        tried: Numbers of channels on which a model fails, the last one last.
        text: How it fails on that.
    """
    return next((channels for channels in (*_by_error(tried[-1], text), *COMMON) if _is_new(channels, tried)), None)


def _is_new(channels: int, tried: Sequence[int]) -> bool:
    return channels > 0 and channels not in tried


def _by_error(channels: int, text: str) -> Iterator[int]:
    pairs = [found.groups() for pattern in _TAKES_THEN_GETS if (found := re.search(pattern, text))]
    pairs += [found.groups()[::-1] for pattern in _GETS_THEN_TAKES if (found := re.search(pattern, text))]
    for takes, gets in (map(int, pair) for pair in pairs):
        yield channels - (gets - takes)
        if gets and channels * takes % gets == 0:
            yield channels * takes // gets

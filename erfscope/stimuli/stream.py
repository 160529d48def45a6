"""Random numbers that are the same on every machine and with every numpy."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

MID_GREY = 128
#: Standard deviation of the noise stimuli in grey levels; the ends of the 8-bit range then lie 3.2 of them away.
NOISE_STD = 40


class Stream:
    """The random numbers of one synthetic image.

    Only the raw 64-bit output of Philox is used: numpy promises that it never changes, and promises no such thing of
    the distributions in ``Generator``. The key is a hash of (kind, seed, index), so that an image does not depend on
    how many others are drawn."""

    def __init__(self, kind: str, seed: int, index: int) -> None:
        digest = hashlib.sha256(f"erfscope:{kind}:{seed}:{index}".encode()).digest()
        self._philox = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def words(self, count: int) -> NDArray[np.uint64]:
        """``count`` independent integers, uniform in [0, 2^64)."""
        return np.asarray(self._philox.random_raw(count), dtype=np.uint64).reshape(count)

    def octets(self, count: int) -> NDArray[np.uint8]:
        """``count`` independent integers, uniform in [0, 256)."""
        return self.words(-(-count // 8)).astype("<u8").view(np.uint8)[:count]

    def uniform(self, count: int) -> NDArray[np.float64]:
        """``count`` independent numbers, uniform in [0, 1); multiples of 2^-53, hence exact."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def symmetric(self, count: int, reach: int) -> NDArray[np.int64]:
        """``count`` independent integers, uniform in [-reach, reach]."""
        return np.floor(self.uniform(count) * (2 * reach + 1)).astype(np.int64) - reach

    def grey_levels(self, count: int) -> NDArray[np.uint8]:
        """``count`` independent Gaussian grey levels around mid-grey, rounded and clipped to 0 ... 255.

        Each is one 32-bit integer looked up in the cumulative table of the rounded Gaussian: no logarithm or cosine,
        whose last bit differs between platforms, ever touches a pixel."""
        uniform = self.words(-(-count // 2)).astype("<u8").view("<u4")[:count]
        return np.searchsorted(_GAUSSIAN_STEPS, uniform, side="right").astype(np.uint8)


def _gaussian_steps() -> NDArray[np.uint32]:
    """Entry k: the share of pixels at level k or below, in units of 2^-32."""
    edges = [(k + 0.5 - MID_GREY) / NOISE_STD for k in range(255)]
    return np.array([round(2**32 * 0.5 * math.erfc(-edge / math.sqrt(2))) for edge in edges], dtype=np.uint32)


_GAUSSIAN_STEPS = _gaussian_steps()

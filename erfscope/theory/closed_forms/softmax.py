"""The softmax over a part of each row, with a defined result where that part is empty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from erfscope.maps.erf_map import FloatArray


def masked_softmax(logits: FloatArray, allowed: NDArray[np.bool_] | None = None) -> FloatArray:
    """Softmax along the last axis over the allowed entries.

    Args:
        logits: (..., n).
        allowed: The same shape; every entry if left out.

    Returns:
        The same shape, exactly 0 where not allowed; a row without an allowed entry is 0, not NaN.
    """
    masked = logits if allowed is None else np.where(allowed, logits, -np.inf)
    highest = masked.max(axis=-1, keepdims=True)
    exponentials = np.exp(masked - np.where(np.isneginf(highest), 0.0, highest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0, 1.0, total)

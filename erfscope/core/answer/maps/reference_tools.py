"""Other tools' own numbers by their own rules. For comparison with published tables only: see each function for what is
wrong with them."""

from __future__ import annotations

import numpy as np

from erfscope.core.answer.maps.erf_map import FloatArray

NOTE = "for comparison with published tables only"
REPLKNET_SHARES = (0.2, 0.3, 0.5, 0.99)
OPENERF_RADII = (5, 10, 20, 30, 40, 60, 80)


def published_numbers(convention: str, raw: FloatArray) -> dict[str, object] | None:
    """The numbers that go with a convention, or None where no tool stands behind it.

    Args:
        convention: Name of the convention.
        raw: Mean over images of the contributions, (H, W), not normalised.
    """
    if raw.ndim != 2 or not raw.any():
        return None
    if convention == "replknet":
        return {"note": NOTE, "rule": "log10(m + 1) map, square about the image's centre", **replknet_rectangles(raw)}
    if convention == "kim":
        return {"note": NOTE, "rule": "mass within a radius about the image's centre", **openerf_masses(raw)}
    return None


def replknet_rectangles(raw: FloatArray) -> dict[str, object]:
    """Side and area ratio of the smallest centred square that holds more than a share of log10(m + 1).

    The logarithm makes the numbers depend on the scale of the gradient, and the square is about the image's centre, not
    the unit's. A share that no square below the image's side reaches gives None.

    Source: Ding et al. 2022, arXiv:2203.06717, the ``erf`` scripts.
    """
    view = np.log10(raw + 1)
    view = view / view.max()
    (h, w), total = view.shape, view.sum()
    rows: dict[str, object] = {}
    for share in REPLKNET_SHARES:
        rows[f"t{share:g}"] = None
        for i in range(1, h // 2):
            if view[h // 2 - i : h // 2 + 1 + i, w // 2 - i : w // 2 + 1 + i].sum() / total > share:
                rows[f"t{share:g}"] = {"side_px": 2 * i + 1, "area_ratio": (2 * i + 1) ** 2 / (h * w)}
                break
    return rows


def openerf_masses(raw: FloatArray) -> dict[str, object]:
    """Share of the map within fixed radii of the pixel (H // 2, W // 2), and the centre of mass.

    Source: the openerf package, ``compute_erf_metrics``.
    """
    share = raw / raw.sum()
    rows, cols = np.indices(share.shape)
    distance = np.hypot(rows - share.shape[0] // 2, cols - share.shape[1] // 2)
    return {
        "radial_cumulative_mass": {str(radius): float(share[distance <= radius].sum()) for radius in OPENERF_RADII},
        "center_of_mass_px": [float((rows * share).sum()), float((cols * share).sum())],
    }

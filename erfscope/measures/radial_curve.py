"""An ERF map as a function of the distance to its unit: density per ring, and the mass enclosed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from erfscope.maps.erf_map import ErfMap, FloatArray
from erfscope.measures.prepared import Geometry, Prepared
from erfscope.measures.shapes import MIN_R2, gaussian
from erfscope.measures.sizes import RadialMass

#: Radii that every profile holds besides those one cell apart, so that its curve passes through r50 and r90 themselves.
SHARES = (0.5, 0.9)
#: Half the width of a ring, with what rounding may do to the distance of a cell on its edge.
HALF = 0.5 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RadialProfile:
    """A map around its unit's centre; three arrays (n,), by rising radius."""

    #: In cells of the reference: one cell apart from the centre to the farthest cell, r50, r90, and where all mass is
    #: enclosed.
    radius_px: FloatArray
    #: Mean over the ring of one cell's width around the radius, relative to the uniform map.
    density: FloatArray
    #: sum_i p_i clip(r - d_i + 1/2, 0, 1): the rule that r50 and r90 follow, so that it is 0.5 at r50.
    enclosed: FloatArray


def radial_profile(erf: ErfMap) -> RadialProfile:
    """Profile of a map around its unit's centre.

    Args:
        erf: The map, of any scale and with one to three axes (:attr:`ErfMap.plane` is taken); of a signed one the
            absolute value.

    Returns:
        The profile. Density and enclosed mass belong together: where the enclosed mass has a slope, that is the mass of
            the ring.

    Raises:
        ValueError: a map that is zero or not finite.
    """
    plane = erf.plane
    weights, geometry = plane.magnitude, Geometry(plane)
    if not weights.sum() > 0 or not np.isfinite(weights).all():
        raise ValueError("a map that is zero or not finite has no profile")
    mass = RadialMass(weights, geometry.rings)
    farthest = float(geometry.distance.max())
    # At half a cell beyond the farthest one all mass is enclosed.
    marks = [*(mass.radius(share) for share in SHARES), farthest + 0.5]
    radii = np.union1d(np.arange(np.ceil(farthest)), marks)
    return at_radii(weights, geometry.distance, radii)


def at_radii(weights: FloatArray, distance: FloatArray, radii: FloatArray) -> RadialProfile:
    """Density and enclosed mass at given radii.

    Args:
        weights: (H, W), non-negative.
        distance: (H, W), distance of every cell to the unit's centre, in cells.
        radii: (n,), rising. Those whose ring holds no cell, beside the centre or beyond the map, are left out.

    Returns:
        The profile at the radii that are left.
    """
    order = np.argsort(distance, axis=None, kind="stable")
    near, p = distance.ravel()[order], weights.ravel()[order]
    mass, moment = (np.concatenate([[0.0], np.cumsum(terms)]) for terms in (p, p * near))
    first, last = np.searchsorted(near, radii - HALF), np.searchsorted(near, radii + HALF, side="right")
    held = last > first
    radii, first, last = radii[held], first[held], last[held]
    ring = mass[last] - mass[first]
    # A cell at distance d of the ring counts by the share r + 1/2 - d of its mass.
    enclosed = mass[first] + (radii + 0.5) * ring - (moment[last] - moment[first])
    return RadialProfile(radius_px=radii, density=ring / (last - first) * weights.size, enclosed=enclosed)


def gaussian_profile(erf: ErfMap, radii: FloatArray) -> FloatArray | None:
    """Profile of the Gaussian that the measures ``gaussian_sigma_row`` and ``gaussian_sigma_col`` describe.

    Args:
        erf: The map, as for :func:`radial_profile`.
        radii: (n,), rising, such as :attr:`RadialProfile.radius_px`.

    Returns:
        (n,), mean of the fitted surface over each ring, relative to the uniform map; None where the measures have no
        fit, since its R2 is too low.
    """
    plane = erf.plane
    prepared = Prepared(plane.magnitude, Geometry(plane))
    fitted = prepared.fit("gaussian")
    if fitted is None or fitted.r2 < MIN_R2:
        return None
    geometry = prepared.geometry
    axes = zip((geometry.rows, geometry.cols), fitted.center, fitted.sigma, strict=True)
    # Along an axis of a single cell there was nothing to fit.
    row, col = (gaussian(at, center, sigma)[0] if len(at) > 1 else np.ones(1) for at, center, sigma in axes)
    surface, part = np.outer(row, col), geometry.support
    amplitude = np.sum(surface[part] * prepared.weights[part]) / np.sum(surface[part] ** 2)
    return at_radii(amplitude * surface, geometry.distance, radii).density

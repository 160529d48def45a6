"""An ERF map as a function of the distance to its unit: density per ring, and the mass enclosed."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.answer.measures.prepared import Geometry, Prepared
from erfscope.core.answer.measures.shapes import gaussian

#: Radii that every profile holds besides those one cell apart, so that its curve passes through r50 and r90 themselves.
SHARES = (0.5, 0.9)
#: Half the width of a ring, with what rounding may do to the distance of a cell on its edge.
HALF = 0.5 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RadialProfile:
    """A map around its unit's centre; arrays (n,), by rising radius.

    Density and enclosed mass belong together: where the enclosed mass has a slope, that is the mass of the ring.
    """

    #: In the unit of the map's axes: one cell apart from the centre to the farthest cell, r50, r90, and where all mass
    #: is enclosed. Those whose ring holds no cell are left out.
    radius_px: FloatArray
    #: Mean over the ring of one cell's width around the radius, relative to the uniform map.
    density: FloatArray
    #: sum_i p_i clip(r - d_i + 1/2, 0, 1): the rule that r50 and r90 follow, so that it is 0.5 at r50.
    enclosed: FloatArray
    #: Density of the Gaussian that the measures ``gaussian_sigma_row`` and ``gaussian_sigma_col`` describe; None where
    #: they have no fit, since its R2 is too low, or it was not asked for.
    fit: FloatArray | None = None


def radial_profile(erf: ErfMap, *, with_fit: bool = False) -> RadialProfile:
    """Profile of a map around its unit's centre.

    Args:
        erf: The map, of any scale and with one to three axes (:attr:`ErfMap.measured` is taken); of a signed one the
            absolute value.
        with_fit: Whether to fit a Gaussian too.

    Raises:
        ValueError: a map that is zero or not finite.
    """
    measured = erf.measured
    prepared = Prepared(measured.magnitude, Geometry(measured))
    if not prepared.has_mass:
        raise ValueError("a map that is zero or not finite has no profile")
    cell, distance = prepared.geometry.cell, prepared.geometry.rings.distance
    farthest = float(distance.max())
    # At half a cell beyond the farthest one all mass is enclosed.
    radii = np.union1d(
        np.arange(np.ceil(farthest)), [*(prepared.radius(share) / cell for share in SHARES), farthest + 0.5]
    )
    order = np.argsort(distance, kind="stable")
    near, weights = distance[order], prepared.weights.ravel()[order]
    first, last = np.searchsorted(near, radii - HALF), np.searchsorted(near, radii + HALF, side="right")
    held = last > first
    radii, first, last = radii[held], first[held], last[held]
    mass, moment = _sums_below(weights), _sums_below(weights * near)
    ring = mass[last] - mass[first]
    to_density = weights.size / (last - first)
    surface = _fitted_surface(prepared) if with_fit else None
    fitted = None if surface is None else _sums_below(surface.ravel()[order])
    return RadialProfile(
        radius_px=cell * radii,
        density=ring * to_density,
        # A cell at distance d of the ring counts by the share r + 1/2 - d of its mass.
        enclosed=mass[first] + (radii + 0.5) * ring - (moment[last] - moment[first]),
        fit=None if fitted is None else (fitted[last] - fitted[first]) * to_density,
    )


def mass_beyond(erf: ErfMap) -> FloatArray:
    """The share of a map's mass that lies at least 0, 1, 2, ... cells from its unit's centre (n,).

    Args:
        erf: As for :func:`radial_profile`.
    """
    measured = erf.measured
    geometry, weights = Geometry(measured), measured.magnitude
    cells = np.floor(geometry.distance / geometry.cell).astype(int)
    # Summed from the outside, so that what is zero there stays zero.
    beyond = np.cumsum(np.bincount(cells.ravel(), weights.ravel())[::-1])[::-1]
    return np.asarray(beyond / beyond[0], dtype=np.float64)


def _sums_below(terms: FloatArray) -> FloatArray:
    """Sums of the first 0, 1, ... terms (n,), (n + 1,)."""
    return np.concatenate([[0.0], np.cumsum(terms)])


def _fitted_surface(prepared: Prepared) -> FloatArray | None:
    """The Gaussian that fits a map (*space), in the map's unit; None where its R2 is too low."""
    fitted = prepared.fit("gaussian")
    if fitted is None or not fitted.is_usable:
        return None
    geometry = prepared.geometry
    axes = zip(geometry.offsets, fitted.center, fitted.sigma, strict=True)
    # Along an axis of a single cell there was nothing to fit.
    lines = [gaussian(at, center, sigma)[0] if len(at) > 1 else np.ones(1) for at, center, sigma in axes]
    surface, part = functools.reduce(np.multiply, np.ix_(*lines)), geometry.support
    amplitude = np.sum(surface[part] * prepared.weights[part]) / np.sum(surface[part] ** 2)
    return np.asarray(amplitude * surface, dtype=np.float64)

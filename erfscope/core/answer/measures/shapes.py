"""Least-squares fits of separable shapes, A g((r - r0) / s_r) g((c - c0) / s_c), for g = Gaussian, box and Laplace.

The amplitude A enters linearly, so for every other choice of parameters the best A is known, and the residual it leaves
is |p|^2 (1 - cos^2), cos being the cosine between the map and the shape. The fit therefore maximises cos^2 over two
centres and two scales. Because the shape is an outer product u v^T, the cosine and its gradient need only the
products p v and u p: no pooling is necessary, and a fit of a 224 x 224 map takes a few milliseconds. Along a line and
in a volume there is one centre and one scale for each axis.

Scales are standard deviations for all three shapes. The Gaussian is sampled at the cells' centres; box and Laplace are
integrated over each cell, so that edges and cusp move smoothly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from erfscope.core.answer.maps.erf_map import FloatArray

Shape = Literal["gaussian", "box", "laplace"]
#: A shape that explains less of the map does not describe it; the name of the best shape where no shape does.
MIN_R2, MIN_MASS, NO_SHAPE = 0.5, 0.5, "none"
#: Shapes whose R2 differ by less fit alike.
ALIKE = 1e-6
#: Values of a shape along one axis, their derivative by the centre, and by the logarithm of the scale.
Profile = tuple[FloatArray, FloatArray, FloatArray]
#: A loss (a number) and its gradient, of steps (n,), of a centre and a scale for each axis.
Loss = Callable[[FloatArray], tuple[float, FloatArray]]
#: A scale stays within a factor of e^5 of where it started.
LOG_SCALE_REACH = 5.0
#: Newton's steps at the end of a Gaussian's fit: how many, over which distance the gradient's change is taken, how far
#: one may lead, after how short a one the curvature is kept, how short the last one is where they have arrived and when
#: more would change nothing, and which ratio of curvatures is too flat to locate the minimum.
POLISH_ROUNDS, POLISH_PROBE, POLISH_REACH, POLISH_KEPT, POLISH_ARRIVED, POLISH_ENOUGH, POLISH_FLAT = (
    6,
    1e-4,
    0.05,
    1e-3,
    1e-6,
    1e-14,
    1e-8,
)
#: A map whose variance is a smaller share of its energy is constant up to rounding.
CONSTANT = 1e-24


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The best shape of one kind."""

    #: One number per axis, in the coordinates of the positions that were given.
    center: tuple[float, ...]
    #: Standard deviation along each axis, in cells.
    sigma: tuple[float, ...]
    #: 1 - residual / total sum of squares around the mean.
    r2: float
    #: Its mass on the positions, as a share of the map's: a fit to a bright patch alone has little.
    mass: float

    @property
    def is_usable(self) -> bool:
        """Whether it explains most of the map: its variance, and its mass."""
        return self.r2 >= MIN_R2 and self.mass >= MIN_MASS


def gaussian(positions: FloatArray, center: float, sigma: float) -> Profile:
    """Gaussian sampled at positions (N,)."""
    z = (positions - center) / sigma
    values = np.exp(-(z**2) / 2)
    return values, values * z / sigma, values * z**2


def box(positions: FloatArray, center: float, sigma: float) -> Profile:
    """Box of half-width sqrt(3) sigma: the share of every cell (N,) that it covers."""
    half = math.sqrt(3) * sigma
    edges = np.append(positions - 0.5, positions[-1] + 0.5) - center
    inside = (np.abs(edges) < half).astype(np.float64)
    return np.diff(np.clip(edges, -half, half)), -np.diff(inside), half * np.diff(np.sign(edges) * (1 - inside))


def laplace(positions: FloatArray, center: float, sigma: float) -> Profile:
    """Laplace density of standard deviation sigma, integrated over every cell (N,)."""
    scale = sigma / math.sqrt(2)
    z = (np.append(positions - 0.5, positions[-1] + 0.5) - center) / scale
    density = np.exp(-np.abs(z)) / 2
    return np.diff(np.where(z < 0, density, 1 - density)), -np.diff(density) / scale, -np.diff(z * density)


SHAPES: Mapping[Shape, Callable[[FloatArray, float, float], Profile]] = {
    "gaussian": gaussian,
    "box": box,
    "laplace": laplace,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a map, and where a fit starts along it."""

    #: (N,), one cell apart.
    positions: FloatArray
    center: float
    #: Standard deviation, in cells.
    sigma: float

    @property
    def is_free(self) -> bool:
        """Whether there is anything to fit: along a single cell every shape is constant."""
        return len(self.positions) > 1

    def place(self, steps: FloatArray) -> tuple[float, float]:
        """Centre and sigma after steps (in units of sigma, in log sigma) from the start."""
        return self.center + self.sigma * float(steps[0]), self.sigma * math.exp(float(steps[1]))

    def profile(self, shape: Shape, steps: FloatArray) -> Profile:
        """Values along the axis after these steps, and their derivatives by the steps."""
        if not self.is_free:
            return np.ones(1), np.zeros(1), np.zeros(1)
        values, by_center, by_scale = SHAPES[shape](self.positions, *self.place(steps))
        return values, by_center * self.sigma, by_scale

    @property
    def limits(self) -> list[tuple[float, float]]:
        """Limits of the two steps: the centre stays within one map's length of the map."""
        if not self.is_free:
            return [(0.0, 0.0), (0.0, 0.0)]
        first, last = float(self.positions[0]), float(self.positions[-1])
        low, high = first - (last - first + 1), last + (last - first + 1)
        return [
            (min(low - self.center, 0.0) / self.sigma, max(high - self.center, 0.0) / self.sigma),
            (-LOG_SCALE_REACH, LOG_SCALE_REACH),
        ]


def fit(weights: FloatArray, axes: Sequence[Axis], shape: Shape, *, is_near: bool = False) -> Fit | None:
    """Fit one shape by least squares.

    Args:
        weights: (*space), non-negative, not necessarily with sum 1.
        axes: Positions of the cells along each axis, and the start.
        shape: Which g.
        is_near: Whether the start is the fit of a map that differs little.

    Returns:
        The fit; None where the map is constant, or has no spread along an axis of several cells. Along an axis of one
        cell, centre and sigma stay as given.
    """
    total = float(np.sum((weights - weights.mean()) ** 2))
    energy = float(np.sum(weights**2))
    if total <= CONSTANT * energy or any(axis.is_free and axis.sigma <= 0 for axis in axes):
        return None
    unit_map = weights / math.sqrt(energy)
    limits = [limit for axis in axes for limit in axis.limits]

    def profiles(steps: FloatArray) -> list[Profile]:
        return [axis.profile(shape, steps[2 * place :][:2]) for place, axis in enumerate(axes)]

    def loss(steps: FloatArray) -> tuple[float, FloatArray]:
        return _mismatch(unit_map, profiles(steps))

    inside = all(low < 0 < high for axis in axes if axis.is_free for low, high in axis.limits)
    steps = _polished(np.zeros(len(limits)), loss, limits) if is_near and inside and shape == "gaussian" else None
    if steps is None:
        best = _minimum(loss, limits)
        polished = _polished(best, loss, limits) if shape == "gaussian" else None
        steps = best if polished is None else polished
    places = [axis.place(steps[2 * place :][:2]) for place, axis in enumerate(axes)]
    found = [values for values, *_ in profiles(steps)]
    # The amplitude of least squares, times the sum of the shape.
    overlap = float(_seen_along(weights, found, 0) @ found[0])
    mass = overlap * math.prod(float(values.sum()) / float(values @ values) for values in found)
    return Fit(
        center=tuple(center for center, _ in places),
        sigma=tuple(sigma for _, sigma in places),
        r2=1 - loss(steps)[0] * energy / total,
        mass=mass / float(weights.sum()),
    )


def _minimum(loss: Loss, limits: Sequence[tuple[float, float]]) -> FloatArray:
    """Where the minimisation from the start ends."""
    from scipy.optimize import (
        minimize,
    )  # late: only fits need it, and it takes longer to import than everything else here

    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 300}
    found: FloatArray = minimize(
        loss, np.zeros(len(limits)), jac=True, method="L-BFGS-B", bounds=limits, options=options
    ).x
    return found


def _polished(steps: FloatArray, loss: Loss, limits: Sequence[tuple[float, float]]) -> FloatArray | None:
    """The minimum near ``steps``, as the zero of the gradient.

    Near a minimum the loss itself is flat: it gives the place no better than the root of the rounding error,
    1e-8, and so two maps that differ by rounding (sums of shards and ranks in another order) would have scales that
    differ by as much. The gradient is not flat there. Newton's method, its matrix by central differences of the
    gradient, which is kept once the steps are short; steps at a limit stay there.

    Args:
        steps: Such as where a minimisation has ended.
        loss: With its gradient by the steps.
        limits: Of each step.

    Returns:
        The steps there; None where the gradient has no zero nearby that is a minimum.
    """
    lows, highs = (np.array(side) for side in zip(*limits, strict=True))
    free = np.flatnonzero((steps > lows) & (steps < highs))
    probes = POLISH_PROBE * np.eye(len(steps))[free]
    at, length = steps.copy(), math.inf
    for _ in range(POLISH_ROUNDS if free.size else 0):
        if length > POLISH_KEPT:
            curvature = np.stack(
                [(loss(at + probe)[1] - loss(at - probe)[1])[free] / (2 * POLISH_PROBE) for probe in probes]
            )
            scales, axes = np.linalg.eigh((curvature + curvature.T) / 2)
            if scales[0] <= POLISH_FLAT * scales[-1]:
                # Along some direction the map does not say where the minimum is.
                return None
        move = -(axes @ ((axes.T @ loss(at)[1][free]) / scales))
        at[free] += move
        length = float(np.abs(move).max())
        if length > POLISH_REACH or np.any(at < lows) or np.any(at > highs):
            return None
        if length < POLISH_ENOUGH:
            break
    return at if length <= POLISH_ARRIVED else None


def _seen_along(values: FloatArray, profiles: Sequence[FloatArray], axis: int) -> FloatArray:
    """A map multiplied by the profiles of all axes but one and summed over them, (N,)."""
    # Not `@`, whose threads would wait for those of PyTorch: ten times slower right after a pass.
    for other in reversed(range(len(profiles))):
        if other != axis:
            values = np.einsum("...i,i->...", np.moveaxis(values, other, -1), profiles[other])
    return values


def _mismatch(unit_map: FloatArray, profiles: Sequence[Profile]) -> tuple[float, FloatArray]:
    """1 - cos^2 between a map of norm 1 and the outer product of a profile for each axis, and its gradient by the
    steps of each axis."""
    found = [values for values, *_ in profiles]
    seen = [_seen_along(unit_map, found, axis) for axis in range(len(found))]
    overlap, norms = float(found[0] @ seen[0]), [float(values @ values) for values in found]
    if math.prod(norms) <= 0:
        return 1.0, np.zeros(2 * len(found))
    cos2 = overlap**2 / math.prod(norms)
    scale = -2 * overlap / math.prod(norms)
    gradient = [
        scale * (change @ line) + 2 * cos2 * (values @ change) / norm
        for (values, *changes), line, norm in zip(profiles, seen, norms, strict=True)
        for change in changes
    ]
    return 1 - cos2, np.array(gradient)

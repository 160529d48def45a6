"""Dead leaves: discs of all sizes that hide one another, the simplest images with the statistics of natural ones.

With radii r^-3 between r_min and r_max every octave of radii covers the same share of the image, so that the model is
scale-invariant between the two, as natural images are.

Source: Lee, Mumford & Huang 2001, "Occlusion models for natural images", doi:10.1023/A:1011109015675.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erfscope.stimuli.picture import Pixels
from erfscope.stimuli.stream import MID_GREY, Stream

#: How often the leaves cover an average pixel. e^-6 = 0.25 % of the pixels stay bare and show the ground, a leaf larger
#: than the image.
DEPTH = 6.0
#: No octave of radii begins below this many pixels: smaller leaves would be single pixels, that is white noise.
SMALLEST_PX = 1.5
#: Grey levels around mid-grey. A leaf's colour is a shade that all channels share plus a tint per channel, both
#: uniform: the channels correlate with 0.86 and have a standard deviation of 55 (ImageNet: 57).
SHADE, TINT = 88, 36
#: Grain as of a camera, triangular, standard deviation 1.6. Without it a max-pool meets ties everywhere and always
#: takes the first.
GRAIN = 3
#: Fastest drift along each axis, pixels per frame.
DRIFT_PX = 1.5
#: A literal, so that not even a logarithm depends on the platform.
_LN2 = 0.6931471805599453


@dataclass(frozen=True, slots=True, kw_only=True)
class _Octave:
    """Leaves with radii in [r, 2r). One entry per leaf in every array."""

    #: Who hides whom: the larger number is in front.
    rank: NDArray[np.int32]
    radius: NDArray[np.float64]
    #: (2, n): row and column of the centres in frame 0, counted from the corner of the padded image, and their steps
    #: per frame.
    place: NDArray[np.float64]
    drift: NDArray[np.float64]
    #: How far outside the image a centre may lie: the largest radius.
    margin: float


def draw_leaves(stream: Stream, size: Sequence[int], channels: int) -> Pixels:
    """Draw one dead-leaves image.

    Only +, -, *, / and square roots of float64, which IEEE 754 rounds alike everywhere, decide which leaf a pixel
    shows; the colours are integers. Hence the same bytes on every machine.

    Args:
        stream: The image's random numbers.
        size: (H, W); (L,), where the leaves are intervals; or (T, H, W), where each leaf drifts at its own constant
            velocity.
        channels: Number of channels.

    Returns:
        uint8 (*size, channels).
    """
    flat = len(size) == 1
    frames = size[0] if len(size) == 3 else 1
    plane = (1, size[0]) if flat else (size[-2], size[-1])
    octaves = _scatter(stream, plane, flat)
    total = 1 + sum(len(octave.rank) for octave in octaves)
    shade, tint = stream.symmetric(total, SHADE), stream.symmetric(total * channels, TINT)
    # Without the grain's lower end, which is added back with it: all arithmetic on the pixels stays within uint8.
    colours = (MID_GREY - GRAIN + shade[:, None] + tint.reshape(total, channels)).astype(np.uint8)
    front = np.zeros((frames, *plane), dtype=np.int32)
    for frame in range(frames):
        for octave in octaves:
            _paint(front[frame], octave, frame, flat)
    octets = stream.octets(front.size * channels).reshape(*size, channels)
    grain = (octets & 3) + ((octets >> 2) & 3)
    return colours[front.reshape(size)] + grain


def _scatter(stream: Stream, plane: tuple[int, int], flat: bool) -> list[_Octave]:
    """Draw the leaves of all octaves, from half the shorter side down."""
    largest = (plane[1] if flat else min(plane)) / 2
    tops = [top for top in (largest / 2**k for k in range(64)) if top >= 2 * SMALLEST_PX] or [2 * SMALLEST_PX]
    # Rounded up or down at random: right on average even where few leaves are large.
    counts = [
        math.floor(_expected(plane, top, flat) * DEPTH / len(tops) + dice)
        for top, dice in zip(tops, stream.uniform(len(tops)), strict=True)
    ]
    # Rank 0 is the ground.
    ranks = 1 + np.argsort(stream.words(sum(counts)), kind="stable").astype(np.int32)
    octaves = []
    for top, rank in zip(tops, np.split(ranks, np.cumsum(counts)[:-1]), strict=True):
        count = len(rank)
        # Inverse of the cumulative law: r^-3 in the plane, r^-2 on the line, so that an octave covers as much as any
        # other.
        share = stream.uniform(count)
        radius = top / 2 / (1 - share / 2) if flat else top / 2 / np.sqrt(1 - share * 0.75)
        extent = np.array([[side + 2 * top] for side in plane])
        place = stream.uniform(2 * count).reshape(2, count) * extent
        drift = (2 * stream.uniform(2 * count).reshape(2, count) - 1) * DRIFT_PX
        octaves.append(_Octave(rank=rank, radius=radius, place=place, drift=drift, margin=top))
    return octaves


def _expected(plane: tuple[int, int], top: float, flat: bool) -> float:
    """Number of leaves with radii in [top / 2, top) whose areas add up to that of the padded image."""
    if flat:
        return (plane[1] + 2 * top) / (2 * _LN2 * top)
    mean_area = math.pi * _LN2 * 2 / 3 * top**2
    return (plane[0] + 2 * top) * (plane[1] + 2 * top) / mean_area


def _paint(front: NDArray[np.int32], octave: _Octave, frame: int, flat: bool) -> None:
    """Raise every pixel of ``front`` (H, W) to the largest rank among the leaves that cover it."""
    height, width = front.shape
    # A leaf that drifts off the padded image comes back on the other side; both places are out of sight.
    extent = np.array([[side + 2 * octave.margin] for side in front.shape])
    row, col = np.mod(octave.place + frame * octave.drift, extent) - octave.margin - 0.5
    if flat:
        leaf, line, half = np.arange(len(col)), np.zeros(len(col), dtype=np.int64), octave.radius
    else:
        first, lines = _cells(row, octave.radius, height)
        leaf, step = _unroll(lines)
        line = first[leaf] + step
        half = np.sqrt(np.maximum(octave.radius[leaf] ** 2 - (line - row[leaf]) ** 2, 0))
    first, cells = _cells(col[leaf], half, width)
    span, step = _unroll(cells)
    # A maximum, not an assignment: numpy leaves open which of several assignments to one cell comes last.
    np.maximum.at(front.reshape(-1), (line * width + first)[span] + step, octave.rank[leaf][span])


def _cells(
    center: NDArray[np.float64], reach: NDArray[np.float64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First of the cells 0 ... size - 1 that lie within ``reach`` of ``center``, and how many they are."""
    first = np.maximum(np.ceil(center - reach), 0).astype(np.int64)
    last = np.minimum(np.floor(center + reach), size - 1).astype(np.int64)
    return first, np.maximum(last - first + 1, 0)


def _unroll(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For runs of these lengths laid end to end: which run each element belongs to, and its place in it."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    return run, np.arange(len(run)) - (np.cumsum(lengths) - lengths)[run]

"""Synthetic stimuli: the same image for the same seed and index, on every machine.

To add one: its function and its row here, its name in ``Choices.synthetic`` of ``core/request/option.py``, ``GOLDEN``
in ``tests/stimuli/test_stimuli_synthetic.py`` and the list in ``docs/layer_and_unit.md``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from erfscope.core.images.picture import Pixels, Stimuli, at_least_one
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.unit import size_text

MID_GREY = 128
#: Standard deviation of the noise stimuli in grey levels; the ends of the 8-bit range then lie 3.2 of them away.
NOISE_STD = 40


class RandomStream:
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


def draw_leaves(stream: RandomStream, size: Sequence[int], channels: int) -> Pixels:
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


def _scatter(stream: RandomStream, plane: tuple[int, int], flat: bool) -> list[_Octave]:
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


#: Swing of a grating around mid-grey, in grey levels.
CONTRAST = 100
#: Correlation of the channels of correlated noise.
SHARED = 0.8

Draw = Callable[[RandomStream, Sequence[int], int], Pixels]


@dataclass(frozen=True, slots=True, kw_only=True)
class StimulusKind:
    """One way to draw an image."""

    draw: Draw
    #: What is on it: "synthetic images (...)".
    words: str
    #: Counted up whenever a pixel of it changes: baselines that were taken on other pixels must not be compared.
    version: int
    #: The number of spatial axes that it is for; 0 for any.
    rank: int = 0


def synthetic(
    kind: str, *, samples: int, seed: int, size: tuple[int, ...], channels: int, noun: str = "image"
) -> Stimuli:
    """Images drawn by a rule.

    Image i depends on (kind, seed, i, size, channels) alone, not on how many are drawn or in which order. ``constant``
    and ``impulse`` are the same for every i.

    Where a transcendental function or a Fourier transform is involved (``correlated``, ``grating``, ``chirp``) the last
    bit of the float64 may differ between platforms; rounding to 256 levels hides that but for about one pixel in 10^12.
    The other kinds are exact.

    Args:
        kind: ``leaves`` (dead leaves, see :func:`draw_leaves`), ``noise`` (independent Gaussian grey levels around
            mid-grey), ``correlated`` (1/f noise), ``constant`` (mid-grey, 128), ``impulse`` (mid-grey, 255 at S // 2),
            ``grating`` (a grey sinusoid), ``chirp`` (one whose frequency sweeps, for one axis only).
        samples: Number of images.
        seed: Any integer.
        size: The model's input size, one to three axes.
        channels: The model's input channels.
        noun: What an input is called.

    Returns:
        The images, uint8 (*size, channels) each.

    Raises:
        ErfscopeError: unknown kind, fewer than one sample, axis or channel, a chirp of more than one axis.
    """
    if kind not in KINDS:
        raise unknown("synthetic stimulus", kind, KINDS)
    at_least_one(samples)
    size, channels, seed = tuple(int(side) for side in size), int(channels), int(seed)
    if not 1 <= len(size) <= 3 or min(size) < 1 or channels < 1:
        raise ErfscopeError(
            f"{kind} of size {size} with {channels} channels was asked for; give one to three axes, each at least 1"
        )
    if KINDS[kind].rank not in (0, len(size)):
        others = ", ".join(name for name, each in KINDS.items() if not each.rank)
        raise ErfscopeError(
            f"{kind} is for inputs of one axis, and the model's input is {size_text(size)}; give one of {others}"
        )
    version = KINDS[kind].version
    definition = f"erfscope:{kind}:version={version}:seed={seed}:size={'x'.join(map(str, size))}:channels={channels}"
    return Stimuli(
        kind=kind,
        names=tuple(f"{kind}[{index}]" for index in range(samples)),
        source=(
            f"{samples} synthetic {noun}{'' if samples == 1 else 's'} ({KINDS[kind].words}, version {version}, seed"
            f" {seed})"
        ),
        draw=partial(_draw, kind, seed, size, channels),
        digest=partial(_sha256, definition),
        version=version,
    )


def _draw(kind: str, seed: int, size: tuple[int, ...], channels: int, index: int) -> Pixels:
    return KINDS[kind].draw(RandomStream(kind, seed, index), size, channels)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _noise(stream: RandomStream, size: Sequence[int], channels: int) -> Pixels:
    return stream.grey_levels(math.prod(size) * channels).reshape(*size, channels)


def _correlated(stream: RandomStream, size: Sequence[int], channels: int) -> Pixels:
    """Gaussian noise with the same power in every octave of frequency: amplitude f^(-D/2) on D axes, so 1/f in a
    plane."""
    axes = tuple(range(len(size)))
    white = (
        stream.grey_levels(math.prod(size) * (channels + 1)).reshape(*size, channels + 1).astype(np.float64) - MID_GREY
    )
    mixed = math.sqrt(SHARED) * white[..., :1] + math.sqrt(1 - SHARED) * white[..., 1:]
    squares = np.zeros(())
    for side in size:
        squares = squares[..., None] + np.fft.fftfreq(side) ** 2
    # Frequency 0 gets no power: every image has the same mean.
    gain = np.divide(1.0, squares, out=np.zeros(tuple(size)), where=squares > 0) ** (len(size) / 4)
    # White noise has power 1 at each frequency; this gain keeps the variance over all of them.
    gain /= math.sqrt(np.mean(gain**2)) or 1.0
    filtered = np.fft.ifftn(np.fft.fftn(mixed, axes=axes) * gain[..., None], axes=axes).real
    return _quantise(filtered)


def _constant(_stream: RandomStream, size: Sequence[int], channels: int) -> Pixels:
    return np.full((*size, channels), MID_GREY, dtype=np.uint8)


def _impulse(stream: RandomStream, size: Sequence[int], channels: int) -> Pixels:
    pixels = _constant(stream, size, channels)
    pixels[tuple(side // 2 for side in size)] = 255
    return pixels


def _grating(stream: RandomStream, size: Sequence[int], channels: int) -> Pixels:
    """Sinusoid of random direction and phase, between two periods per shorter side and a period of four pixels, evenly
    in octaves.

    Over time it drifts by up to a sixteenth of a period per frame, either way.
    """
    turn, octave, start, speed = stream.uniform(4)
    low = min(2 / min(size[-2:]), 0.25)
    frequency = low * (0.25 / low) ** octave
    direction = (1.0,) if len(size) == 1 else (math.sin(math.pi * turn), math.cos(math.pi * turn))
    waves = [frequency * share for share in direction]
    if len(size) == 3:
        waves.insert(0, (2 * speed - 1) / 16)
    phase = np.full((), start)
    for side, wave in zip(size, waves, strict=True):
        phase = phase[..., None] + wave * np.arange(side)
    return np.repeat(_quantise(CONTRAST * np.cos(2 * math.pi * phase))[..., None], channels, axis=-1)


def _chirp(stream: RandomStream, size: Sequence[int], channels: int) -> Pixels:
    """Sinusoid whose frequency sweeps, as fast in every octave, between two periods per input and a period of four
    samples, up or down, from a random phase."""
    start, turn = stream.uniform(2)
    low = min(2 / size[0], 0.25)
    rate = math.log(0.25 / low) / max(size[0] - 1, 1)
    steps = np.arange(size[0])
    # The integral of low * e^(rate * t), in periods.
    phase = start + low * (np.expm1(rate * steps) / rate if rate else steps)
    line = _quantise(CONTRAST * np.cos(2 * math.pi * phase))
    return np.repeat((line if turn < 0.5 else line[::-1])[..., None], channels, axis=-1)


def _quantise(offset: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Pixels:
    """Grey levels from offsets to mid-grey: rounded, clipped to 0 ... 255."""
    return np.clip(np.rint(offset + MID_GREY), 0, 255).astype(np.uint8)


#: Every kind of synthetic stimulus, the default first.
KINDS: dict[str, StimulusKind] = {
    "leaves": StimulusKind(draw=draw_leaves, words="dead leaves", version=1),
    "noise": StimulusKind(draw=_noise, words="white noise", version=1),
    "correlated": StimulusKind(draw=_correlated, words="correlated noise", version=1),
    "constant": StimulusKind(draw=_constant, words="uniform mid-grey", version=1),
    "impulse": StimulusKind(draw=_impulse, words="one bright pixel", version=1),
    "grating": StimulusKind(draw=_grating, words="sinusoidal grating", version=1),
    "chirp": StimulusKind(draw=_chirp, words="sinusoid of sweeping frequency", version=1, rank=1),
}

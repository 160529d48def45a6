"""Synthetic stimuli: the same image for the same seed and index, on every machine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from erfscope.errors import ErfscopeError, unknown
from erfscope.stimuli.leaves import draw_leaves
from erfscope.stimuli.picture import Pixels, Stimuli, at_least_one
from erfscope.stimuli.stream import MID_GREY, Stream

#: Swing of a grating around mid-grey, in grey levels.
CONTRAST = 100
#: Correlation of the channels of correlated noise.
SHARED = 0.8

Draw = Callable[[Stream, Sequence[int], int], Pixels]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way to draw an image."""

    draw: Draw
    #: What is on it: "synthetic images (...)".
    words: str
    #: Counted up whenever a pixel of it changes: baselines that were taken on other pixels must not be compared.
    version: int


def synthetic(kind: str, *, samples: int, seed: int, size: tuple[int, ...], channels: int) -> Stimuli:
    """Images drawn by a rule.

    Image i depends on (kind, seed, i, size, channels) alone, not on how many are drawn or in which order. ``constant``
    and ``impulse`` are the same for every i.

    Where a transcendental function or a Fourier transform is involved (``correlated``, ``grating``) the last bit of the
    float64 may differ between platforms; rounding to 256 levels hides that but for about one pixel in 10^12. The other
    kinds are exact.

    Args:
        kind: ``leaves`` (dead leaves, see :func:`draw_leaves`), ``noise`` (independent Gaussian grey levels around
            mid-grey), ``correlated`` (1/f noise), ``constant`` (mid-grey, 128), ``impulse`` (mid-grey, 255 at S // 2),
            ``grating`` (a grey sinusoid).
        samples: Number of images.
        seed: Any integer.
        size: The model's input size, one to three axes.
        channels: The model's input channels.

    Returns:
        The images, uint8 (*size, channels) each.

    Raises:
        ErfscopeError: unknown kind, fewer than one sample, axis or channel.
    """
    if kind not in KINDS:
        raise unknown("synthetic stimulus", kind, KINDS)
    at_least_one(samples)
    size, channels, seed = tuple(int(side) for side in size), int(channels), int(seed)
    if not 1 <= len(size) <= 3 or min(size) < 1 or channels < 1:
        raise ErfscopeError(
            f"{kind} of size {size} with {channels} channels was asked for; give one to three axes, each at least 1"
        )
    version = KINDS[kind].version
    definition = f"erfscope:{kind}:version={version}:seed={seed}:size={'x'.join(map(str, size))}:channels={channels}"
    return Stimuli(
        kind=kind,
        names=tuple(f"{kind}[{index}]" for index in range(samples)),
        source=(
            f"{samples} synthetic image{'' if samples == 1 else 's'} ({KINDS[kind].words}, version {version}, seed"
            f" {seed})"
        ),
        draw=partial(_draw, kind, seed, size, channels),
        digest=partial(_sha256, definition),
        version=version,
    )


def _draw(kind: str, seed: int, size: tuple[int, ...], channels: int, index: int) -> Pixels:
    return KINDS[kind].draw(Stream(kind, seed, index), size, channels)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _noise(stream: Stream, size: Sequence[int], channels: int) -> Pixels:
    return stream.grey_levels(math.prod(size) * channels).reshape(*size, channels)


def _correlated(stream: Stream, size: Sequence[int], channels: int) -> Pixels:
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


def _constant(_stream: Stream, size: Sequence[int], channels: int) -> Pixels:
    return np.full((*size, channels), MID_GREY, dtype=np.uint8)


def _impulse(stream: Stream, size: Sequence[int], channels: int) -> Pixels:
    pixels = _constant(stream, size, channels)
    pixels[tuple(side // 2 for side in size)] = 255
    return pixels


def _grating(stream: Stream, size: Sequence[int], channels: int) -> Pixels:
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


def _quantise(offset: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Pixels:
    """Grey levels from offsets to mid-grey: rounded, clipped to 0 ... 255."""
    return np.clip(np.rint(offset + MID_GREY), 0, 255).astype(np.uint8)


#: Every kind of synthetic stimulus, the default first.
KINDS: dict[str, Kind] = {
    "leaves": Kind(draw=draw_leaves, words="dead leaves", version=1),
    "noise": Kind(draw=_noise, words="white noise", version=1),
    "correlated": Kind(draw=_correlated, words="correlated noise", version=1),
    "constant": Kind(draw=_constant, words="uniform mid-grey", version=1),
    "impulse": Kind(draw=_impulse, words="one bright pixel", version=1),
    "grating": Kind(draw=_grating, words="sinusoidal grating", version=1),
}

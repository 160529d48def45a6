"""Synthetic images: the same everywhere, and with the statistics they promise."""

from __future__ import annotations

import hashlib
import importlib
import runpy
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from PIL import Image

from erfscope import ErfscopeError
from erfscope.core.images import KINDS, Stimuli, synthetic
from erfscope.core.images.synthetic import RandomStream

leaves = importlib.import_module("erfscope.core.images.synthetic")  # the package's own name is the function's
EXAMPLES = Path(__file__).parents[2] / "examples"

#: sha256 of picture 3 of seed 7 at 24 x 32 x 3, of a chirp at 32 x 3. A change here is a change of the pixels: count up
#: the kind's version.
GOLDEN = {
    "leaves": "bca74591a85c9dc6ffd7641964616758fbc81ca279a082a69ca89bab46d00181",
    "noise": "1801adacf7c8a949257e2d6b40635a5aefd0341d0e362071a131c7cf10de31c7",
    "correlated": "3a5e0d5c21bf2e8656bf9bdb0f67ac4dca6691bd974ef505e105ca8a316f60df",
    "constant": "dea313a03db46a224a28a8a79febff397b832f3256b9c9ce236e79ee90e6ed7f",
    "impulse": "89d331f2fefda89a2514452e77d0a838cf5ff403087e2b8e904ea6bca1c48bbb",
    "grating": "c89cc37919b204e46f4abb4593210d2b463a8356c56e1f7a2b2891368f0c82d0",
    "chirp": "791edaa8abc1da3ffabf40a52dd07f126a9d63de123aa982e817d45cbf17bc8f",
}


def make(
    kind: str = "leaves", samples: int = 4, seed: int = 7, size: tuple[int, ...] = (), channels: int = 3
) -> Stimuli:
    size = size or ((32,) if kind == "chirp" else (24, 32))
    return synthetic(kind, samples=samples, seed=seed, size=size, channels=channels)


def stack(kind: str, samples: int, size: tuple[int, ...], channels: int = 1, seed: int = 0) -> np.ndarray:
    stimuli = make(kind, samples, seed, size, channels)
    return np.stack([stimuli.pixels(index) for index in range(samples)]).astype(np.float64)


def power_slope(pictures: np.ndarray, low: float, high: float) -> float:
    """Exponent of the radially averaged power spectrum between two frequencies in cycles per pixel; images (N, S,
    S)."""
    side = pictures.shape[1]
    window = np.outer(np.hanning(side), np.hanning(side))
    centred = pictures - pictures.mean(axis=(1, 2), keepdims=True)
    power = np.mean(np.abs(np.fft.fft2(centred * window)) ** 2, axis=0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    ring = np.digitize(frequency, np.geomspace(low, high, 9))
    points = [(np.log(frequency[ring == k].mean()), np.log(power[ring == k].mean())) for k in range(1, 9)]
    return float(np.polyfit(*np.transpose(points), 1)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_a_picture_are_fixed_however_many_there_are_and_in_whatever_order(kind: str) -> None:
    assert hashlib.sha256(make(kind).pixels(3).tobytes()).hexdigest() == GOLDEN[kind]
    assert KINDS[kind].version == 1
    few, many = make(kind, samples=2), make(kind, samples=50)
    many.pixels(40), many.pixels(0)
    assert np.array_equal(few.pixels(1), many.pixels(1))
    assert few.sha256 == many.sha256
    drawn = [make(kind, seed=seed).pixels(index).tobytes() for seed in (0, 1, -1, 2**70) for index in range(4)]
    assert len(set(drawn)) == (1 if kind in ("constant", "impulse") else 16)


def test_random_words_are_those_of_philox_and_the_hash_tells_requests_apart() -> None:
    key = int.from_bytes(hashlib.sha256(b"erfscope:noise:5:2").digest()[:16], "little")
    expected = np.random.Generator(np.random.Philox(key=key)).integers(0, 2**64, size=5, dtype=np.uint64)
    assert RandomStream("noise", 5, 2).words(5).tolist() == expected.tolist()
    variants = [make(), make("noise"), make(seed=8), make(size=(32, 24)), make(size=(24, 32, 1)), make(channels=1)]
    assert len({stimuli.sha256 for stimuli in variants}) == len(variants)
    assert make().sha256 == hashlib.sha256(b"erfscope:leaves:version=1:seed=7:size=24x32:channels=3").hexdigest()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1,), (40,), (1, 1), (5, 3), (1, 60), (1, 1, 1), (3, 9, 12)])
def test_any_shape_of_one_to_three_axes_and_any_number_of_channels(kind: str, size: tuple[int, ...]) -> None:
    if KINDS[kind].rank not in (0, len(size)):
        with pytest.raises(ErfscopeError, match=f"{kind} is for inputs of one axis, and the model's input is .*; give"):
            make(kind, size=size)
        return
    for channels in (1, 3, 6):
        stimuli = make(kind, size=size, channels=channels)
        picture = stimuli.pixels(0)
        assert (picture.shape, picture.dtype, stimuli.names[0]) == ((*size, channels), np.uint8, f"{kind}[0]")
        assert not picture.flags.writeable


@pytest.mark.slow
def test_leaves_have_the_power_spectrum_of_natural_pictures() -> None:
    """Exponent -2 where leaves of that size exist; natural images: -1.8 to -2.3 (Ruderman & Bialek 1994; van der Schaaf
    1996)."""
    pictures = stack("leaves", 16, (256, 256))[..., 0]
    assert -2.3 < power_slope(pictures, 4 / 256, 0.15) < -1.7


@pytest.mark.parametrize(("flat", "exponent"), [(False, 2), (True, 1)])
def test_radii_follow_the_power_law_within_an_octave(flat: bool, exponent: int) -> None:
    """Density r^-3 in the plane, r^-2 on the line: the law under which no scale is special."""
    for octave in leaves._scatter(RandomStream("leaves", 0, 0), (1, 40000) if flat else (200, 200), flat)[-2:]:
        low = octave.margin / 2
        uniform = (1 - (low / octave.radius) ** exponent) / (1 - 0.5**exponent)
        assert uniform.min() >= 0
        assert uniform.max() < 1
        assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_leaves_prefer_no_place_and_no_direction_and_have_correlated_colours_as_wide_as_natural_ones() -> None:
    pictures = stack("leaves", 160, (48, 48), channels=3)
    assert abs(pictures.mean() - 128) < 2
    down, across = (np.abs(np.diff(pictures, axis=k)).mean(axis=(0, 3)) for k in (1, 2))
    edges = np.concatenate([down[[0, -1]].ravel(), across[:, [0, -1]].ravel()]).mean()
    centre = np.concatenate([down[12:35].ravel(), across[:, 12:35].ravel()]).mean()
    assert abs(edges / centre - 1) < 0.05
    assert abs(down.mean() / across.mean() - 1) < 0.03
    spread = pictures.std(axis=(0, 3))
    assert abs(spread[[0, -1]].mean() / spread[12:36].mean() - 1) < 0.05
    # Shade and tint are uniform on -88 ... 88 and -36 ... 36: correlation 88^2 / (88^2 + 36^2) = 0.857, deviation 54.9.
    pixels = pictures.reshape(-1, 3)
    correlations = np.corrcoef(pixels.T)[np.triu_indices(3, 1)]
    assert np.all(np.abs(correlations - 0.857) < 0.03)
    assert np.all(np.abs(pixels.std(axis=0) - 54.9) < 2)


@pytest.mark.parametrize("axes", [1, 2])
def test_leaves_cover_the_picture_as_often_as_they_should(axes: int) -> None:
    """The share of bare ground is e^-6, so that few pixels of an image have the ground's colour."""
    plane = (1, 20000) if axes == 1 else (160, 160)
    bare, number = 0.0, 30
    for index in range(number):
        front = np.zeros(plane, dtype=np.int32)
        for octave in leaves._scatter(RandomStream("leaves", 0, index), plane, axes == 1):
            leaves._paint(front, octave, 0, axes == 1)
        bare += np.mean(front == 0) / number
    assert 0.5 < bare / np.exp(-6) < 2


def test_a_leaf_is_exactly_the_pixels_within_its_radius_and_moves_by_its_velocity() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        count, top = 12, 9.0
        place, radius = rng.uniform(0, 40 + 2 * top, (2, count)), rng.uniform(top / 2, top, count)
        rank = (1 + rng.permutation(count)).astype(np.int32)
        front = np.zeros((40, 40), dtype=np.int32)
        octave = leaves._Octave(rank=rank, radius=radius, place=place, drift=np.zeros((2, count)), margin=top)
        leaves._paint(front, octave, 0, False)
        rows, cols = np.mgrid[:40, :40]
        distance = np.hypot(rows - (place[0] - top - 0.5)[:, None, None], cols - (place[1] - top - 0.5)[:, None, None])
        expected = np.where(distance <= radius[:, None, None], rank[:, None, None], 0).max(axis=0)
        assert np.array_equal(front, expected)
    place, drift = np.array([[10.5], [15.5]]), np.array([[1.0], [-0.5]])
    octave = leaves._Octave(
        rank=np.array([1], dtype=np.int32), radius=np.array([3.0]), place=place, drift=drift, margin=4.0
    )
    for frame in range(5):
        front = np.zeros((30, 30), dtype=np.int32)
        leaves._paint(front, octave, frame, False)
        assert np.allclose(np.argwhere(front).mean(axis=0), (6 + frame, 11 - 0.5 * frame), atol=0.51)


def test_noise_is_gaussian_and_correlated_noise_has_power_one_over_f_squared_on_a_line_too() -> None:
    pixels = stack("noise", 4, (128, 128), channels=3)
    clipped = (pixels - 128) / 40
    assert abs(clipped.mean()) < 0.01
    assert abs(clipped.std() - 1) < 0.01
    assert abs(np.mean(clipped**3)) < 0.03
    assert abs(np.mean(np.abs(clipped) < 0.99) - 0.683) < 0.01
    assert abs(np.corrcoef(pixels.reshape(-1, 3).T)[0, 1]) < 0.01
    assert abs(power_slope(pixels[..., 0], 0.05, 0.45)) < 0.1
    pixels = stack("correlated", 10, (128, 128), channels=3)
    assert abs(power_slope(pixels[..., 0], 0.03, 0.4) + 2) < 0.1
    assert np.allclose(pixels.mean(axis=(1, 2)), 128, atol=0.3)
    assert abs(pixels.std() - 40) < 2
    assert abs(np.corrcoef(pixels.reshape(-1, 3).T)[0, 1] - 0.8) < 0.1
    lines = stack("correlated", 40, (4096,))[..., 0] - 128
    power = np.mean(np.abs(np.fft.rfft(lines)) ** 2, axis=0)
    octaves = [power[2**k : 2 ** (k + 1)].sum() for k in range(3, 11)]
    assert max(octaves) / min(octaves) < 1.3
    assert np.all(make("constant").pixels(0) == 128)
    pixels = make("impulse", size=(9, 12)).pixels(0).astype(int)
    assert np.argwhere(pixels != 128).tolist() == [[4, 6, channel] for channel in range(3)]
    assert np.all(pixels[4, 6] == 255)
    assert np.argwhere(make("impulse", size=(4, 5, 6), channels=1).pixels(0) == 255).tolist() == [[2, 2, 3, 0]]


@pytest.mark.slow
def test_gratings_and_chirps_have_frequencies_between_two_periods_and_a_quarter_per_sample() -> None:
    found = []
    for picture in stack("grating", 30, (96, 96)):
        assert (picture.min(), picture.max()) >= (28, 218)
        padded = np.abs(np.fft.fft2(picture[..., 0] - picture.mean(), s=(1024, 1024)))
        peak = np.unravel_index(np.argmax(padded), padded.shape)
        found.append((np.fft.fftfreq(1024)[peak[0]], np.fft.fftfreq(1024)[peak[1]]))
    frequency = np.hypot(*np.transpose(found))
    assert frequency.min() > 1.5 / 96
    assert frequency.max() < 0.26
    assert np.median(frequency) == pytest.approx(np.sqrt(2 / 96 * 0.25), rel=0.4)
    angles = np.arctan2(*np.transpose(found)) % np.pi
    assert np.histogram(angles, bins=3, range=(0, np.pi))[0].min() >= 4
    # Oracle: the frequency at a share of the way is the same share of the way in its logarithm; from the spectrum of
    # windows.
    length, seen = 4096, []
    for line in stack("chirp", 12, (length,))[..., 0]:
        assert (line.min(), line.max()) == (28, 228)
        share = [0.5, 0.7, 0.9]
        found = []
        for place in share:
            window = (line[int(place * length) - 128 :][:256] - 128) * np.hanning(256)
            found.append(np.argmax(np.abs(np.fft.rfft(window, 8192))) / 8192)
        seen.append(found[0] < found[-1])
        expected = 2 / length * (0.25 * length / 2) ** np.array(share)
        if seen[-1]:
            assert found == pytest.approx(expected, rel=0.1)
    assert 0 < sum(seen) < len(seen)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"kind": "leafs"}, r"unknown synthetic stimulus 'leafs'; there is: leaves, noise, .* \(did you mean 'leaves'"),
        ({"samples": 0}, "samples=0 was asked for; give 1 or more"),
        ({"size": (4, 4, 4, 4)}, "one to three axes"),
        ({"channels": 0}, "with 0 channels"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(ErfscopeError, match=text) as caught:
        make(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_shipped_example_is_what_its_script_draws(tmp_path: Path) -> None:
    script = tmp_path / "make_leaves.py"
    script.write_text((EXAMPLES / "make_leaves.py").read_text())
    runpy.run_path(str(script))
    with Image.open(EXAMPLES / "leaves.png") as shipped, Image.open(tmp_path / "leaves.png") as drawn:
        assert shipped.mode == "RGB"
        assert shipped.size == (512, 384)
        assert np.array_equal(np.asarray(shipped), np.asarray(drawn))

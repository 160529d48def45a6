"""Volumes, clips and sound from files."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import sys
import wave
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import erfscope
from erfscope import ErfscopeError
from erfscope.adapters.preprocess import input_config, preprocess
from erfscope.core import Axes
from erfscope.core.images import open_pictures, stored, values
from erfscope.core.images.feed import Prefetcher
from erfscope.core.images.files import paired_files, suffixes_of
from erfscope.core.images.values import ValuesImages, open_values, read_values
from erfscope.core.values.axes import NAMES, asked_axes
from erfscope.core.values.model_facts import Preprocess

SIZE = (4, 6, 8)
#: Larger than the input along each axis, by an even and an odd number.
SPACE = (7, 8, 12)
MIDDLE = (slice(1, 5), slice(1, 7), slice(2, 10))


def model_of(size: tuple[int, ...] = SIZE, channels: int = 1, **numbers) -> Preprocess:
    return preprocess(input_config({}, size=size, channels=channels, rank=len(size), **numbers))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(3, 2, shape).astype(np.float32)


def opened(*paths: Path, samples: int | None = None, **model) -> ValuesImages:
    feed = open_values(paths, samples=samples, seed=0, preprocess=model_of(**model))
    assert feed is not None
    return feed


def refuses(text: str, *paths: Path, **model) -> None:
    with pytest.raises(ErfscopeError, match=text) as error:
        opened(*paths, **model).batch([0])
    assert "\n" not in str(error.value)


def write_nifti(path: Path, volume: np.ndarray, zooms=(1.0, 2.0, 3.0), unit: str = "mm") -> None:
    """(Z, Y, X[, C]) with zooms (x, y, z)."""
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(np.swapaxes(volume, 0, 2), np.eye(4))
    image.header.set_zooms((*zooms, *[1.0] * (volume.ndim - 3)))
    image.header.set_xyzt_units(unit)
    nibabel.save(image, path)


def write_tiff(path: Path, volume: np.ndarray, **options) -> None:
    pytest.importorskip("tifffile").imwrite(path, volume, **options)


def write_zarr(path: Path, volume: np.ndarray, **options) -> None:
    array = pytest.importorskip("zarr").create_array(path, shape=volume.shape, dtype=volume.dtype, **options)
    array[...] = volume


def write_wav(path: Path, samples: np.ndarray, rate: int = 8000) -> None:
    """Samples (T, C) of 16 bits, by the standard library."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


def save(path: Path, values: np.ndarray) -> Path:
    np.save(path, values)
    return path


VOLUMES = {
    "v.npy": np.save,
    "v.nii": write_nifti,
    "v.nii.gz": write_nifti,
    "v.zarr": write_zarr,
    "V.TIF": write_tiff,
    "v.tiff": lambda path, volume: write_tiff(path, volume, compression="zlib"),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_every_format_gives_the_same_middle_standardised(name, tmp_path):
    volume = numbers(*SPACE)
    VOLUMES[name](tmp_path / name, volume)
    feed = opened(tmp_path / name)
    expected = volume[MIDDLE].astype(np.float64)
    found = read_values(tmp_path / name, channels=1, size=SIZE)
    assert np.array_equal(found.values[0], expected)
    inputs = feed.batch([0])
    assert inputs.dtype == torch.float64
    assert inputs.shape == (1, 1, *SIZE)
    np.testing.assert_allclose(inputs[0, 0], (expected - expected.mean()) / expected.std(), rtol=0, atol=1e-12)
    assert torch.equal(feed.batch([0, 0], ((1, 3), (0, 6), (2, 5)))[1, 0], inputs[0, 0, 1:3, :, 2:5])
    assert (feed.kind, feed.n, feed.text_kind, feed.name(0)) == ("volume", 1, "file", str(tmp_path / name))
    shown = feed.preprocess(model_of())
    assert shown.text == "middle 4x6x8 of each file, each standardised (mean 0, std 1)"
    assert feed.pixels(0).shape == (*SIZE, 1)


@pytest.mark.parametrize("name", ["v.nii", "v.npy", "v.zarr", "v.tif"])
def test_the_channels_are_found_by_their_number(name, tmp_path):
    volume = numbers(*SPACE, 2)
    for place in ("last",) if name == "v.nii" else ("last", "first"):
        path = tmp_path / f"{place}{name}"
        VOLUMES.get(name, write_tiff)(path, np.moveaxis(volume, -1, 0).copy() if place == "first" else volume)
        found = read_values(path, channels=2, size=SIZE)
        assert np.array_equal(found.values, np.moveaxis(volume[MIDDLE], -1, 0))


def test_a_tiff_file_says_itself_which_axis_is_that_of_the_channels_and_else_the_size_decides_or_nothing(tmp_path):
    volume = numbers(7, 2, 8, 12)
    write_tiff(tmp_path / "v.tif", volume, imagej=True, metadata={"axes": "ZCYX"})
    found = read_values(tmp_path / "v.tif", channels=2, size=SIZE)
    assert np.array_equal(found.values, np.moveaxis(volume, 1, 0)[:, *MIDDLE])
    clip = numbers(3, 20, 20, 3)
    path = save(tmp_path / "v.npy", clip)
    assert np.array_equal(read_values(path, channels=3, size=(3, 20, 20)).values, np.moveaxis(clip, -1, 0))
    with pytest.raises(ErfscopeError, match=r"first or its last axis of 3x20x20x3 may be that of 3 channels"):
        read_values(path, channels=3, size=(2, 3, 3))


def test_given_mean_and_std_take_the_place_of_each_file_s_own_and_8_bits_are_scaled_as_pictures_are(tmp_path):
    volume = numbers(*SPACE)
    path = save(tmp_path / "v.npy", volume)
    middle = torch.from_numpy(volume[MIDDLE]).double()
    assert torch.equal(opened(path, mean=3.0, std=2.0).batch([0])[0, 0], (middle - 3) / 2)
    feed = opened(path, std=4.0)
    assert torch.equal(feed.batch([0])[0, 0], middle / 4)
    assert feed.preprocess(feed.model).scale_text == "std 4"
    constant = save(tmp_path / "c.npy", np.ones(SPACE))
    assert torch.equal(opened(constant, mean=1.0).batch([0]), torch.zeros(1, 1, *SIZE).double())
    refuses("holds one value only in its middle 4x6x8", constant)
    clip = np.random.default_rng(0).integers(0, 256, (*SPACE, 3), dtype=np.uint8)
    feed = opened(save(tmp_path / "clip.npy", clip), channels=3)
    model = model_of(channels=3)
    assert torch.equal(feed.batch([0]), model.normalise(clip[MIDDLE][None]))
    assert np.array_equal(feed.pixels(0), clip[MIDDLE])
    shown = feed.preprocess(model)
    assert shown.scale_text == model.scale_text
    assert "mean" in shown.assumed
    both = opened(tmp_path / "clip.npy", save(tmp_path / "float.npy", clip.astype(float)), channels=3)
    with pytest.raises(ErfscopeError, match=r"float.npy' has other values, unlike the files before it"):
        both.batch([1])
    volume = numbers(*SIZE)
    found = opened(save(tmp_path / "v.npy", volume)).pixels(0)
    low, high = np.percentile(volume[2].astype(float), (1, 99))
    assert np.array_equal(found[0, ..., 0], np.rint(255 * np.clip((volume[2] - low) / (high - low), 0, 1)))
    assert np.array_equal(found[0], found[3])
    assert found.dtype == np.uint8


def test_sound_is_taken_as_it_is(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    samples = np.random.default_rng(0).integers(-32768, 32768, (101, 2), dtype=np.int16)
    write_wav(tmp_path / "s.wav", samples)
    soundfile.write(tmp_path / "s.flac", samples, 8000)
    save(tmp_path / "s.npy", samples / 32768)
    for suffix in ("wav", "flac", "npy"):
        feed = opened(tmp_path / f"s.{suffix}", size=(40,), channels=2)
        expected = torch.from_numpy(samples[30:70].T / 32768)
        assert torch.equal(feed.batch([0])[0], expected)
        assert torch.equal(feed.batch([0], ((5, 9),))[0], expected[:, 5:9])
        assert (feed.pixels(0), feed.kind) == (None, "sound")
        assert (feed.spacing, feed.spacing_unit) == (None if suffix == "npy" else (0.125,), "ms")
        assert feed.preprocess(feed.model).text == "middle 40 of each file, as in the file"
    mono = numbers(50)
    for number, sound in enumerate((mono, mono[None], mono[:, None])):
        path = save(tmp_path / f"{number}.npy", sound)
        assert np.array_equal(read_values(path, channels=1, size=(10,)).values[0], mono[20:30])


def test_headers_give_the_spacing_and_files_that_disagree_are_refused(tmp_path, monkeypatch):
    write_nifti(tmp_path / "a.nii", numbers(*SPACE), zooms=(1, 2, 3))
    write_nifti(tmp_path / "b.nii.gz", numbers(*SPACE), zooms=(1000, 2000, 3000), unit="micron")
    write_nifti(tmp_path / "c.nii", numbers(*SPACE), zooms=(1, 2, 4))
    save(tmp_path / "d.npy", numbers(*SPACE))
    feed = opened(tmp_path / "a.nii", tmp_path / "b.nii.gz", tmp_path / "d.npy")
    assert feed.spacing == (3, 2, 1)
    assert feed.spacing_unit == "mm"
    assert feed.batch([0, 1, 2]).shape[0] == 3
    with pytest.raises(ErfscopeError) as error:
        opened(tmp_path / "a.nii", tmp_path / "c.nii")
    assert "a.nii' has voxels of 3 x 2 x 1 mm and" in str(error.value)
    assert "c.nii' voxels of 4 x 2 x 1 mm; resample" in str(error.value)
    # Headers round, by less than a thousandth.
    write_nifti(tmp_path / "near.nii", numbers(*SPACE), zooms=(1, 2, 3.002))
    write_nifti(tmp_path / "off.nii", numbers(*SPACE), zooms=(1, 2, 3.01))
    assert opened(tmp_path / "a.nii", tmp_path / "near.nii").spacing == (3, 2, 1)
    with pytest.raises(ErfscopeError, match=r"off.nii' voxels of 3.01 x 2 x 1 mm"):
        opened(tmp_path / "a.nii", tmp_path / "off.nii")
    monkeypatch.setattr(values, "HEADERS_FIRST", 2)
    save(tmp_path / "a.npy", numbers(*SPACE))
    write_nifti(tmp_path / "b.nii", numbers(*SPACE), zooms=(1, 2, 3))
    write_nifti(tmp_path / "c.nii", numbers(*SPACE), zooms=(1, 2, 4))
    feed = opened(*(tmp_path / name for name in ("a.npy", "b.nii", "c.nii")))
    assert feed.batch([0, 1]).shape == (2, 1, *SIZE)
    with pytest.raises(ErfscopeError, match=r"b.nii' has voxels of 3 x 2 x 1 mm and '.*c.nii' voxels of 4 x 2 x 1"):
        feed.batch([2])


def ome_zarr_of_microns(path: Path, volume: np.ndarray) -> None:
    group = pytest.importorskip("zarr").open_group(path, mode="w", zarr_format=2)
    write_zarr(path / "0", volume[None])
    axes = [{"name": "c"}, *({"name": name, "unit": "micrometer"} for name in "zyx")]
    halves, twice = ({"type": "scale", "scale": [1, *steps]} for steps in ((1, 0.25, 0.25), (2, 2, 2)))
    datasets = [{"path": "0", "coordinateTransformations": [halves]}]
    group.attrs["multiscales"] = [{"axes": axes, "datasets": datasets, "coordinateTransformations": [twice]}]


OME_SIDES = {f"PhysicalSize{letter}": side for letter, side in (("Z", 2000), ("Y", 500), ("X", 0.5))}
OME_UNITS = {"PhysicalSizeZUnit": "nm", "PhysicalSizeYUnit": "nm"}
#: How voxels of 2 x 0.5 x 0.5 µm are stated.
MICRONS = {
    "x.zarr": ome_zarr_of_microns,
    "x.ome.tif": lambda path, volume: write_tiff(path, volume, metadata={"axes": "ZYX", **OME_SIDES, **OME_UNITS}),
    "x.tif": lambda path, volume: write_tiff(
        path, volume, imagej=True, resolution=(2, 2), metadata={"axes": "ZYX", "spacing": 2.0, "unit": "um"}
    ),
}


@pytest.mark.parametrize("name", MICRONS)
def test_microscopes_files_state_the_sides_of_voxels_and_a_user_states_others(name, tmp_path):
    MICRONS[name](tmp_path / name, numbers(*SPACE).astype(np.float32))
    feed = opened(tmp_path / name)
    shown = feed.preprocess(model_of()).axes
    assert (shown.spacing, shown.units) == ((2.0, 0.5, 0.5), ("µm",) * 3)
    own = replace(model_of(), axes=asked_axes(model_of().axes, spacing=(3, 1, 1), unit_name="µm"))
    other = open_values([tmp_path / name], samples=None, seed=0, preprocess=own)
    assert other is not None
    assert other.preprocess(own).axes.spacing == (3, 1, 1)
    # The same in mm, from a scanner, is the same.
    write_nifti(tmp_path / "a.nii", numbers(*SPACE), zooms=(0.0005, 0.0005, 0.002))
    assert opened(tmp_path / name, tmp_path / "a.nii").n == 2


def test_sides_that_are_not_all_stated_in_units_of_length_are_not_taken(tmp_path):
    for number, stated in enumerate(({}, {"PhysicalSizeX": 0.5}, {**OME_SIDES, "PhysicalSizeXUnit": "pixel"})):
        path = tmp_path / f"{number}.ome.tif"
        write_tiff(path, numbers(*SPACE).astype(np.float32), metadata={"axes": "ZYX", **stated})
        assert opened(path).spacing is None


def test_files_that_are_too_large_for_memory_or_a_transform_are_refused_and_damaged_ones_passed_over(
    tmp_path, monkeypatch
):
    write_tiff(tmp_path / "v.tif", numbers(*SPACE), compression="zlib")
    monkeypatch.setattr(stored.psutil, "virtual_memory", lambda: SimpleNamespace(available=100))
    refuses("0 MiB do not fit into the 0 MiB of memory that are free; save it uncompr", tmp_path / "v.tif")
    monkeypatch.undo()
    config = input_config({}, size=SIZE, channels=1, rank=3)
    path = save(tmp_path / "v.npy", numbers(*SPACE))
    with pytest.raises(ErfscopeError, match=r"transform= takes images, and '.*v.npy' is none; leave it out"):
        open_values([path], samples=None, seed=0, preprocess=preprocess(config, lambda image: torch.zeros(1, *SIZE)))
    net = nn.Conv3d(1, 2, 3, padding=1)
    paths = [tmp_path / "bad.npy", save(tmp_path / "good.npy", numbers(*SPACE))]
    paths[0].write_bytes(b"x")
    options = {"images": paths, "input_size": SIZE, "in_chans": 1}
    with pytest.raises(ErfscopeError, match=r"bad.npy"):
        erfscope.analyze(net, **options)
    result = erfscope.analyze(net, keep_going=True, **options)
    assert (result.input.n_images, result.input.n_dead) == (2, 1)


def test_sound_of_two_rates_is_to_be_resampled_and_integers_need_a_full_scale(tmp_path):
    pytest.importorskip("soundfile")
    for rate in (8000, 44100):
        write_wav(tmp_path / f"{rate}.wav", np.ones((50, 1)), rate)
    text = r"has 8000 samples per second and '.*44100.wav' 44100 samples per second; resample"
    refuses(text, tmp_path / "8000.wav", tmp_path / "44100.wav", size=(40,))
    path = save(tmp_path / "s.npy", np.arange(40, dtype=np.int16))
    refuses("holds integers, which do not say what full scale is", path, size=(40,))
    scaled = opened(path, size=(40,), mean=0.0, std=32768.0).batch([0])
    assert torch.equal(scaled[0, 0], torch.arange(40).double() / 32768)


def test_folders_and_patterns_hold_what_the_input_takes_and_a_hash_is_that_of_what_lies_in_an_array(tmp_path):
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "a.npy", numbers(*SPACE))
    write_nifti(tmp_path / "b.nii.gz", numbers(*SPACE))
    write_zarr(tmp_path / "z.zarr", numbers(*SPACE))
    write_wav(tmp_path / "s.wav", np.ones((500, 1)))
    (tmp_path / "notes.txt").write_text("no volume")
    feed = opened(tmp_path)
    assert sorted(Path(file).name for file in feed.files) == ["a.npy", "b.nii.gz", "z.zarr"]
    assert feed.text == f"3 volumes in {str(tmp_path)!r}"
    assert feed.text_kind == "count"
    assert len(feed.sha256) == 64
    assert opened(tmp_path, samples=2).files == feed.files[:2]
    assert [path.name for path in opened(tmp_path / "*.zarr").files] == ["z.zarr"]
    pytest.importorskip("soundfile")
    assert {path.name for path in opened(tmp_path / "*", size=(9,)).files} == {"s.wav", "a.npy"}
    assert open_values([tmp_path], samples=None, seed=0, preprocess=model_of()).sha256 == feed.sha256
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_zarr(tmp_path / f"{name}.zarr", numbers(*SPACE, seed=seed))
    a, b, c = (opened(tmp_path / f"{name}.zarr").sha256 for name in "abc")
    assert a == b != c


def npy_of(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


F4 = "{'descr': '<f4', 'fortran_order': False, 'shape': "
DAMAGED = "damaged or of another kind"
#: What stands in a file: an array that is saved, bytes that are written, or a PNG.
WRONG_FILES = {
    "object.npy": (np.array([{}] * 9), "Python objects"),
    "complex.npy": (np.ones(SPACE, complex), "its values are complex128"),
    "text.npy": (np.full(SPACE, "a"), "its values are <U1"),
    "plane.npy": (np.ones((8, 8)), r"holds 8x8, and the model takes 1 channel of 4x6x8"),
    "small.npy": (np.ones((7, 5, 12)), r"4x6x8; .*input_size=\(7, 5, 12\)"),
    "nan.npy": (np.full(SPACE, np.nan), "192 of the 192 values .* are not finite"),
    "pickle.npy": (pickle.dumps([1]), DAMAGED),
    "empty.npy": (b"", DAMAGED),
    "cut.npy": (npy_of(f"{F4}(7, 8, 12)}}", b"0"), "damaged"),
    "long.npy": (npy_of(f"{{'descr': '<f4'}}{' ' * 20000}"), "damaged"),
    "giant.npy": (npy_of(f"{F4}(99999, 99999, 9)}}"), "damaged"),
    "picture.nii": (None, DAMAGED),
    "cut.nii.gz": (gzip.compress(bytes(348))[:30], DAMAGED),
    "picture.zarr": (None, "no zarr array"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_is_one_line_that_names_it(name, tmp_path):
    for part in ("nii", "zarr"):
        if f".{part}" in name:
            pytest.importorskip({"nii": "nibabel"}.get(part, part))
    (content, text), path = WRONG_FILES[name], tmp_path / name
    if isinstance(content, np.ndarray):
        np.save(path, content, allow_pickle=True)
    elif content is None:
        Image.new("L", (9, 9)).save(path, "PNG")
    else:
        path.write_bytes(content)
    with pytest.raises(ErfscopeError, match=text) as error:
        opened(path).batch([0])
    assert name in str(error.value)
    assert "\n" not in str(error.value)
    assert "keep_going=True passes over" in str(error.value)


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_a_truncated_nifti_file_is_refused(name, tmp_path):
    write_nifti(tmp_path / name, numbers(*SPACE))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:1500])
    refuses("damaged or of another kind", tmp_path / name)


@pytest.mark.parametrize("channels", [1, 3])
def test_sound_of_other_channels_is_refused(channels, tmp_path):
    pytest.importorskip("soundfile")
    write_wav(tmp_path / "s.wav", np.ones((50, 2)))
    text = rf"s.wav': it holds 50x2, and the model takes {channels} channels? of 40, .* in_chans="
    refuses(text.replace(" --in", ".*--in"), tmp_path / "s.wav", size=(40,), channels=channels)


def test_zarr_arrays_run_no_code_and_groups_name_what_to_give(tmp_path):
    pytest.importorskip("zarr")
    note = {"zarr_format": 2, "shape": [7, 8, 12], "chunks": [7, 8, 12], "dtype": "<f4", "order": "C", "fill_value": 0}
    (tmp_path / "v.zarr").mkdir()
    for kind in ({"filters": [{"id": "pickle"}], "compressor": None}, {"compressor": {"id": "pickle"}}):
        (tmp_path / "v.zarr" / ".zarray").write_text(json.dumps(note | kind))
        refuses("its codec 'pickle' is not among those that are safe", tmp_path / "v.zarr")
    pytest.importorskip("zarr").create_group(tmp_path / "g.zarr")
    write_zarr(tmp_path / "g.zarr" / "0", numbers(*SPACE))
    refuses(r"it is no zarr array; name an array inside it, as .*g.zarr/0", tmp_path / "g.zarr")
    assert opened(tmp_path / "g.zarr" / "0").batch([0]).shape == (1, 1, *SIZE)


PACKAGES = {"v.nii.gz": ("nibabel", "volumes"), "v.zarr": ("zarr", "volumes"), "s.wav": ("soundfile", "audio")}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named_at_once(name, tmp_path, monkeypatch):
    package, extra = PACKAGES[name]
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ErfscopeError) as error:
        opened(tmp_path / name, size=(40,) if extra == "audio" else SIZE)
    assert str(error.value) == f"reading {name} needs {package}: pip install 'erfscope[{extra}]'"


def test_files_for_another_kind_of_input_are_refused(tmp_path):
    volume, sound, picture = (tmp_path / name for name in ("v.nii.gz", "s.wav", "p.png"))
    volume.write_bytes(b"x"), sound.write_bytes(b"x")
    Image.new("RGB", (9, 9)).save(picture)
    wrong = [
        (volume, (9, 9), 3, "is a volume, and the model takes images of two axes, 9x9"),
        (sound, (9, 9), 3, r"is sound, and the model takes images of two axes.*axes='t'"),
        (volume, (9,), 1, "is a volume, and the model takes sound of one axis, 9; .*\\.wav"),
        (sound, SIZE, 1, "is sound, and the model takes volumes or clips of three axes, 4x6x8; .*\\.nii"),
        (picture, SIZE, 1, r"is an image, and the model takes volumes of 1 channel, 4x6x8; give .nii"),
    ]
    for path, size, channels, text in wrong:
        refuses(text, path, size=size, channels=channels)
    assert open_values([picture], samples=None, seed=0, preprocess=model_of(channels=3)) is None
    clip = save(tmp_path / "c.npy", numbers(*SPACE, 3))
    refuses(r"c.npy' is no image, and .*p.png' is one; name one kind, as in '\*.npy'", clip, picture, channels=3)


def test_files_are_paired_without_both_parts_of_a_suffix_and_workers_read_the_same(tmp_path):
    keys, endings = ("a", "b.1"), {"image": ".png", "volume": ".nii.gz"}
    for name, ending in endings.items():
        (tmp_path / name).mkdir()
        for key in keys:
            (tmp_path / name / f"{key}{ending}").write_bytes(b"x")
    suffixes = {"image": suffixes_of(Axes.of_rank(2)), "volume": suffixes_of(Axes.named(NAMES["dhw"]))}
    found = paired_files({name: tmp_path / name for name in endings}, samples=None, seed=0, suffixes=suffixes)
    one, other = ([path.name.removesuffix(ending) for path in found[name]] for name, ending in endings.items())
    assert one == other
    assert sorted(one) == [*keys]
    write_zarr(tmp_path / "v.zarr", numbers(*SPACE))
    write_nifti(tmp_path / "v.nii", numbers(*SPACE, seed=1))
    feed = opened(tmp_path / "v.zarr", tmp_path / "v.nii")
    ahead = Prefetcher(feed, [0, 1], None, workers=2, keep=2)
    assert torch.equal(torch.cat([ahead(0), ahead(1)]), feed.batch([0, 1]))
    ahead.close()


def two(conv: type[nn.Module] = nn.Conv3d, k: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(conv(1, 2, k, padding=k // 2), nn.Tanh(), conv(2, 2, k, padding=k // 2))


def test_a_model_is_measured_on_volumes_as_on_their_standardised_middles(tmp_path):
    paths = [save(tmp_path / f"{seed}.npy", numbers(9, 10, 11, seed=seed)) for seed in (0, 1)]
    options = {"input_size": (8, 8, 8), "in_chans": 1, "dtype": "float64", "draws": "all", "unit": (4, 4, 4)}
    result = erfscope.analyze(two().double(), images=paths, **options)
    raw = np.stack([np.load(path)[0:8, 1:9, 1:9].astype(np.float64) for path in paths])
    inputs = torch.from_numpy((raw - raw.mean((1, 2, 3), keepdims=True)) / raw.std((1, 2, 3), keepdims=True))[:, None]
    assert (result.input.source, result.input.text_kind) == ("volume", "count")
    assert "assumed" not in [finding.code for finding in result.findings]
    ready = erfscope.analyze(two().double(), images=inputs, **options)
    np.testing.assert_allclose(result.map.values, ready.map.values, rtol=0, atol=1e-12)


def test_models_are_measured_on_sound_and_chirps_and_compared_on_the_same_volumes(tmp_path):
    net = two(nn.Conv1d, 5)
    path = save(tmp_path / "s.npy", np.sin(np.arange(200) / 5))
    result = erfscope.analyze(net, images=path, input_size=(64,), in_chans=1)
    assert (result.input.source, result.picture, result.trf.size_px) == ("sound", None, (9,))
    assert erfscope.analyze(net, synthetic="chirp", samples=2, input_size=(64,), in_chans=1).input.source == "chirp"
    nets = {"a": two(), "b": two(k=5)}
    path = save(tmp_path / "v.npy", numbers(*SPACE))
    options = {"images": path, "input_size": SIZE, "in_chans": 1}
    rows = erfscope.compare(nets, **options)
    for row, net in zip(rows, nets.values(), strict=True):
        alone = erfscope.analyze(net, **options)
        assert np.array_equal(row.map.values, alone.map.values)
        assert row.input.sha256 == alone.input.sha256


def test_a_folder_of_frames_is_one_clip_and_a_folder_of_folders_several(tmp_path):
    """The middle frames in the order of their numbers, each resized as an image alone is."""
    for number, (clip, frame) in enumerate((clip, frame) for clip in "ab" for frame in range(8, 12)):
        (tmp_path / clip).mkdir(exist_ok=True)
        Image.fromarray(np.full((6, 8, 3), 10 * number, np.uint8)).save(tmp_path / clip / f"f{frame}.png")
    model = model_of((2, 6, 8), channels=3)

    def shown(*paths: Path):
        asked = {"samples": None, "seed": 0, "suffixes": suffixes_of(model.axes)}
        assert open_values(paths, samples=None, seed=0, preprocess=model) is None
        return open_pictures(paths, crop=model.crop, channels=3, **asked)

    one, several, still = shown(tmp_path / "a"), shown(tmp_path), shown(tmp_path / "b" / "f9.png")
    # Of f8, f9, f10, f11 the middle two.
    assert one.pixels(0)[:, 0, 0, 0].tolist() == [10, 20]
    assert (one.n, several.n, several.source) == (1, 2, f"2 clips in {str(tmp_path)!r}")
    assert sorted(several.pixels(at)[:, 0, 0, 0].tolist() for at in (0, 1)) == [[10, 20], [50, 60]]
    assert still.pixels(0)[:, 0, 0, 0].tolist() == [50, 50]
    long = model_of((5, 6, 8), channels=3)
    asked = {"crop": long.crop, "channels": 3, "suffixes": suffixes_of(long.axes)}
    folder = open_pictures([tmp_path / "a"], samples=1, seed=0, **asked)
    with pytest.raises(ErfscopeError, match=r"a clip of 4 frames, and the input has 5; give more frames"):
        folder.pixels(0)


def write_ome_zarr(path: Path, image: np.ndarray) -> None:
    """Bands (H, W, C) as (T, C, Z, Y, X)."""
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w", zarr_format=3)
    write_zarr(path / "0", np.moveaxis(image, -1, 0)[None, :, None])
    axes = [{"name": name} for name in "tczyx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": [{"path": "0"}]}]}


@pytest.mark.parametrize(
    ("axes", "named", "shape"),
    [(None, "no axes", (9, 12)), (["y"], "the axes y", (4, 9, 12)), (None, "no axes", (2, 4, 9, 12))],
)
def test_an_ome_zarr_whose_axes_are_not_named_says_so(axes, named, shape, tmp_path):
    group = pytest.importorskip("zarr").open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    write_zarr(tmp_path / "x.zarr" / "0", numbers(*shape))
    image = {"datasets": [{"path": "0"}]} | ({"axes": axes} if axes else {})
    group.attrs["multiscales"] = [image]
    with (
        pytest.raises(ErfscopeError, match=rf"OME metadata name {named} .*name the array alone, .*x\.zarr/0"),
        stored.open_array(tmp_path / "x.zarr"),
    ):
        pass
    with stored.open_array(tmp_path / "x.zarr" / "0") as array:
        assert array.shape == shape
    group.attrs["multiscales"] = [{"axes": axes}]
    with pytest.raises(ErfscopeError, match="name no array"), stored.open_array(tmp_path / "x.zarr"):
        pass


SEPARATE = {"photometric": "minisblack", "planarconfig": "separate", "metadata": None}
INTERLEAVED = {"photometric": "minisblack", "planarconfig": "contig", "metadata": None}
#: How an image (H, W, C) of some bands lies in a file.
BANDS = {
    "planes.tif": lambda path, image: write_tiff(path, np.moveaxis(image, -1, 0), **SEPARATE),
    "planes.zlib.tif": lambda path, image: write_tiff(path, np.moveaxis(image, -1, 0), compression="zlib", **SEPARATE),
    "bands.tif": lambda path, image: write_tiff(path, image, **INTERLEAVED),
    "zlib.tif": lambda path, image: write_tiff(path, image, compression="zlib", predictor=True, **INTERLEAVED),
    "bands.ome.tif": lambda path, image: write_tiff(path, np.moveaxis(image, -1, 0), metadata={"axes": "CYX"}),
    "bands.zarr": write_ome_zarr,
    "hwc.npy": np.save,
    "chw.npy": lambda path, image: np.save(path, np.moveaxis(image, -1, 0)),
}


@pytest.mark.parametrize("name", BANDS)
def test_an_image_of_several_bands_gives_its_middle(name, tmp_path):
    for channels in (2, 3, 4, 6):
        image = np.random.default_rng(0).integers(0, 60000, (9, 12, channels), dtype=np.uint16)
        path = tmp_path / f"{channels}{name}"
        BANDS[name](path, image)
        feed = opened(path, size=(7, 8), channels=channels)
        middle = np.moveaxis(image[1:8, 2:10], -1, 0) / 65535
        np.testing.assert_allclose(feed.batch([0])[0], (middle - middle.mean()) / middle.std(), atol=1e-12)
        stated = opened(path, size=(7, 8), channels=channels, mean=[0.5] * channels, std=[0.25] * channels)
        np.testing.assert_allclose(stated.batch([0])[0], (middle - 0.5) / 0.25, atol=1e-12)
        assert feed.kind == "image"
        assert feed.pixels(0).shape == (7, 8, 3 if channels >= 3 else 1)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32])
def test_bands_read_the_same_beside_each_other_and_one_after_another(dtype, tmp_path):
    for channels in (2, 3, 4, 6):
        image = np.random.default_rng(0).integers(0, 100, (9, 12, channels)).astype(dtype)
        one, other = (tmp_path / f"{channels}{name}.tif" for name in "xy")
        write_tiff(one, image, **INTERLEAVED)
        write_tiff(other, np.moveaxis(image, -1, 0), **SEPARATE)
        beside, after = (opened(path, size=(9, 12), channels=channels).batch([0]) for path in (one, other))
        assert torch.equal(beside, after)


def test_bands_without_an_axis_are_one_channel_and_four_of_eight_bits_no_picture(tmp_path):
    image = numbers(9, 12)
    middle = image[1:8, 2:10].astype(np.float64)
    for name, write in (("x.npy", np.save), ("x.tif", write_tiff), ("x.zarr", write_zarr)):
        write(tmp_path / name, image)
        found = opened(tmp_path / name, size=(7, 8)).batch([0])[0, 0]
        np.testing.assert_allclose(found, (middle - middle.mean()) / middle.std(), atol=1e-12)
    write_tiff(tmp_path / "y.tif", numbers(9, 12, 5), **INTERLEAVED)
    text = r"it holds 9x12x5, and the model takes 4 channels of 7x8, as in \(4, H, W\)"
    refuses(text, tmp_path / "y.tif", size=(7, 8), channels=4)
    image = np.random.default_rng(0).integers(0, 256, (9, 12, 4), dtype=np.uint8)
    write_tiff(tmp_path / "x.tif", image, photometric="rgb", extrasamples=["unassalpha"])
    feed = opened(tmp_path / "x.tif", size=(9, 12), channels=4)
    assert feed.batch([0]).shape == (1, 4, 9, 12)
    assert open_values([tmp_path / "x.tif"], samples=None, seed=0, preprocess=model_of((9, 12), 3)) is None

"""Tiled inference from TIFF and zarr files to others of their kind: the output of the whole image, in its place."""

from __future__ import annotations

import errno
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
import zarr
from torch import nn

import erfscope
from erfscope import ErfscopeError, TilePlan
from erfscope.apps.tile.files import tile_file
from erfscope.apps.tile.run import TileCount
from erfscope.core import RasterOutput

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned")]

SIDES = (40, 56)
#: Pixels of 10 m whose upper left corner is at (500000, 4000000).
GEO: list[tuple[Any, ...]] = [
    (33550, "d", 3, (10.0, 10.0, 0.0), True),
    (33922, "d", 6, (0.0, 0.0, 0.0, 5e5, 4e6, 0.0), True),
    (34735, "H", 8, (1, 1, 0, 1, 1024, 0, 1, 1), True),
    (34737, "s", 0, "WGS 84|", True),
]
MICRONS = {f"PhysicalSize{letter}{end}": value for letter in "XY" for end, value in (("", 0.5), ("Unit", "µm"))}


def net(bands: int = 4, padding: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(bands, 3, 3, padding=padding), nn.Tanh(), nn.Conv2d(3, 2, 3, padding=padding)).eval()


def image(bands: int = 4) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 4000, (*SIDES, bands), dtype=np.uint16)


def geo(path: Path, **options: Any) -> None:
    tifffile.imwrite(
        path, image(), photometric="minisblack", planarconfig="contig", extratags=GEO, metadata=None, **options
    )


def planes(path: Path, bands: int = 4) -> None:
    values = np.moveaxis(image(bands), -1, 0)
    planar: dict[str, Any] = {"planarconfig": "separate"} if bands > 1 else {}
    tifffile.imwrite(
        path, values[0] if bands == 1 else values, photometric="minisblack", extratags=GEO, metadata=None, **planar
    )


def ome(path: Path) -> None:
    tifffile.imwrite(path, np.moveaxis(image(), -1, 0), metadata={"axes": "CYX", **MICRONS})


def ome_zarr(path: Path) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=2)
    array = group.create_array("0", shape=(1, 4, 1, *SIDES), dtype="u2", chunks=(1, 1, 1, 16, 16))
    array[:] = np.moveaxis(image(), -1, 0)[None, :, None]
    kinds = {"t": "time", "c": "channel"}
    axes = [{"name": name, "type": kinds.get(name, "space")} for name in "tczyx"]
    scale = {"coordinateTransformations": [{"type": "scale", "scale": [1, 1, 2.0, 0.5, 0.5]}]}
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": [{"path": "0", **scale}]}]


#: How an image is written, and the output read: (C, H, W).
FILES: dict[str, tuple[str, Callable[[Path], None], Callable[[Path], np.ndarray]]] = {
    "GeoTIFF": ("tif", geo, lambda path: np.moveaxis(tifffile.imread(path), -1, 0)),
    "compressed": (
        "tif",
        lambda path: geo(path, compression="zlib", predictor=True, tile=(16, 16)),
        lambda path: np.moveaxis(tifffile.imread(path), -1, 0),
    ),
    "planes": ("tif", planes, tifffile.imread),
    "OME-TIFF": ("ome.tif", ome, tifffile.imread),
    "OME-zarr": ("zarr", ome_zarr, lambda path: zarr.open_group(path, mode="r")["0"][:]),
}


def planned(module: nn.Module, bands: int = 4) -> TilePlan:
    return erfscope.tile(module, 16, in_chans=bands, input_size=32, image_size=SIDES)


def whole(module: nn.Module, bands: int = 4) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(np.moveaxis(image(bands), -1, 0).astype(np.float32))[None])[0].numpy()


@pytest.mark.parametrize("kind", FILES)
def test_an_output_is_of_the_kind_of_its_image_and_that_of_the_whole(kind, tmp_path, monkeypatch):
    suffix, write, read = FILES[kind]
    source, target, module = tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}", net()
    write(source)
    tile_file(module, planned(module), RasterOutput(source, target), in_chans=4, input_size=32)
    np.testing.assert_allclose(read(target), whole(module), atol=1e-3)
    # A run that is stopped goes on, beside an output that is there already.
    plain, count = TileCount.set, []

    def stopping(mark: TileCount, done: int, out: object) -> None:
        plain(mark, done, out)
        count.append(done)
        if done == 2 and len(count) < 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(TileCount, "set", stopping)
    with pytest.raises(KeyboardInterrupt):
        tile_file(module, planned(module), RasterOutput(source, target), in_chans=4, input_size=32)
    tile_file(module, planned(module), RasterOutput(source, target), goes_on=True, in_chans=4, input_size=32)
    # The first crop tells the output's shape; the run goes on behind its second tile.
    assert count[:5] == [1, 0, 1, 2, 3]
    np.testing.assert_allclose(read(target), whole(module), atol=1e-3)
    assert sorted(each.name for each in tmp_path.iterdir()) == [source.name, target.name]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_link_to_an_output_stays_and_what_it_leads_to_is_replaced(can_exchange, tmp_path, monkeypatch):
    if not can_exchange:
        monkeypatch.setattr("erfscope.core.answer.storage.writing._exchanged", lambda one, other: False)
    module, disk, target = net(), tmp_path / "disk", tmp_path / "out.zarr"
    disk.mkdir()
    ome_zarr(tmp_path / "in.zarr")
    ome_zarr(disk / "old.zarr")
    target.symlink_to(disk / "old.zarr")
    tile_file(module, planned(module), RasterOutput(tmp_path / "in.zarr", target), in_chans=4, input_size=32)
    np.testing.assert_allclose(zarr.open_group(target, mode="r")["0"][:], whole(module), atol=1e-3)
    assert target.is_symlink()
    assert [each.name for each in disk.iterdir()] == ["old.zarr"]


def test_a_geotiff_keeps_its_place_and_one_without_a_border_moves_by_it(tmp_path):
    geo(tmp_path / "in.tif")
    for padding, corner in ((1, 0), (0, 2)):
        module, target = net(padding=padding), tmp_path / f"out{padding}.tif"
        tile_file(module, planned(module), RasterOutput(tmp_path / "in.tif", target), in_chans=4, input_size=32)
        with tifffile.TiffFile(target) as file:
            assert file.series[0].axes == "YXS"
            found = {code: file.pages.first.tags[code].value for code, *_ in GEO}
        # The first pixel of the output is that many pixels of 10 m from the image's.
        column, row, _, east, north, _ = found[33922]
        assert (east - 10 * column, north + 10 * row) == (5e5 + 10 * corner, 4e6 - 10 * corner)
        assert (found[33550], found[34737]) == ((10, 10, 0), "WGS 84|")


def test_a_rotated_geotiff_has_the_place_of_its_first_pixel(tmp_path):
    """A model transformation: by it the output's pixel (0, 0) lies where the image's (2, 2) does."""
    turned = (8.0, -6.0, 0.0, 5e5, -6.0, -8.0, 0.0, 4e6, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    tags = [(34264, "d", 16, turned, True), *GEO[2:]]
    tifffile.imwrite(tmp_path / "in.tif", image(), photometric="minisblack", planarconfig="contig", extratags=tags)
    module, target = net(padding=0), tmp_path / "out.tif"
    tile_file(module, planned(module), RasterOutput(tmp_path / "in.tif", target), in_chans=4, input_size=32)
    with tifffile.TiffFile(target) as file:
        found = np.reshape(file.pages.first.tags[34264].value, (4, 4))
    np.testing.assert_allclose(found @ [0, 0, 0, 1], np.reshape(turned, (4, 4)) @ [2, 2, 0, 1])
    np.testing.assert_array_equal(found[:, :3], np.reshape(turned, (4, 4))[:, :3])


@pytest.mark.parametrize("bands", [1, 4])
def test_bands_one_after_another_are_one_page_with_its_place(bands, tmp_path):
    planes(tmp_path / "in.tif", bands)
    module, target = net(bands), tmp_path / "out.tif"
    tile_file(module, planned(module, bands), RasterOutput(tmp_path / "in.tif", target), in_chans=bands, input_size=32)
    with tifffile.TiffFile(target) as file:
        assert [page.axes for page in file.pages] == ["SYX"]
        assert {33550, 33922, 34735, 34737} <= {tag.code for tag in file.pages.first.tags}
    np.testing.assert_allclose(tifffile.imread(target), whole(module, bands), atol=1e-3)


def test_ome_metadata_state_the_pixel_size_of_the_output(tmp_path):
    ome(tmp_path / "in.ome.tif")
    ome_zarr(tmp_path / "in.zarr")
    module = nn.Sequential(nn.Conv2d(4, 2, 2, stride=2)).eval()
    for suffix in ("ome.tif", "zarr"):
        target = tmp_path / f"out.{suffix}"
        tile_file(module, planned(module), RasterOutput(tmp_path / f"in.{suffix}", target), in_chans=4, input_size=32)
    with tifffile.TiffFile(tmp_path / "out.ome.tif") as file:
        pixels = tifffile.xml2dict(file.ome_metadata)["OME"]["Image"]["Pixels"]
    assert (pixels["PhysicalSizeX"], pixels["PhysicalSizeXUnit"], pixels["SizeC"]) == (1.0, "µm", 2)
    (found,) = zarr.open_group(tmp_path / "out.zarr", mode="r").attrs["multiscales"]
    assert [axis["name"] for axis in found["axes"]] == ["c", "y", "x"]
    assert found["datasets"][0]["coordinateTransformations"][0]["scale"] == [1.0, 1.0, 1.0]


def test_an_ome_zarr_states_where_the_pixels_of_the_output_lie(tmp_path):
    ome_zarr(tmp_path / "in.zarr")
    group = zarr.open_group(tmp_path / "in.zarr", mode="a")
    (stated,) = group.attrs["multiscales"]
    stated["datasets"][0]["coordinateTransformations"].append({"type": "translation", "translation": [0, 0, 3, 10, 20]})
    stated["coordinateTransformations"] = [{"type": "scale", "scale": [1, 1, 1, 0.5, 4]}]
    group.attrs["multiscales"] = [stated]
    nets = {"strided": nn.Conv2d(4, 2, 2, stride=2).eval(), "valid": net(padding=0)}
    for name, module in nets.items():
        target = tmp_path / f"{name}.zarr"
        tile_file(module, planned(module), RasterOutput(tmp_path / "in.zarr", target), in_chans=4, input_size=32)
        (found,) = zarr.open_group(target, mode="r").attrs["multiscales"]
        scale, translation = found["datasets"][0]["coordinateTransformations"]
        # Pixels of 0.25 x 2 whose first is at (5, 80): two make one, whose middle is half a pixel further, or two are
        # lost at each border.
        stride, first = {"strided": (2, 0.5), "valid": (1, 2)}[name]
        assert scale["scale"] == [1, 0.25 * stride, 2 * stride]
        assert translation["translation"] == [0, 5 + 0.25 * first, 80 + 2 * first]
        assert not any("unit" in axis for axis in found["axes"])


@pytest.mark.parametrize("separator", [".", "/"])
def test_chunks_of_an_output_are_named_as_those_of_its_image(separator, tmp_path):
    naming = {"name": "v2", "separator": separator}
    zarr.create_array(tmp_path / "in.zarr", data=np.moveaxis(image(), -1, 0), zarr_format=2, chunk_key_encoding=naming)
    module = net()
    tile_file(
        module, planned(module), RasterOutput(tmp_path / "in.zarr", tmp_path / "out.zarr"), in_chans=4, input_size=32
    )
    assert (tmp_path / "out.zarr" / separator.join("000")).is_file()


@pytest.mark.parametrize("suffix", ["tif", "npy", "zarr"])
def test_an_output_that_cannot_be_written_is_not_blamed_on_the_image(suffix, tmp_path, monkeypatch):
    values = np.moveaxis(image(), -1, 0)
    np.save(tmp_path / "in.npy", values)
    tifffile.imwrite(tmp_path / "in.tif", values, photometric="minisblack", metadata=None)
    zarr.create_array(tmp_path / "in.zarr", data=values)
    module, target = net(), tmp_path / f"out.{suffix}"

    def run(**more: Any) -> str:
        with pytest.raises(ErfscopeError) as error:
            tile_file(
                module,
                planned(module),
                RasterOutput(tmp_path / f"in.{suffix}", target),
                in_chans=4,
                input_size=32,
                **more,
            )
        return str(error.value)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full(np.ndarray):
        __setitem__ = full

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        said = run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said.startswith("cannot write ")
    assert (str(target) in said, "File too large" in said) == (True, True)
    # Only of zarr is a part written, and the run goes on behind it.
    assert bool(list(tmp_path.glob("out*"))) == (suffix == "zarr") == ("resume=" in said)
    if suffix == "zarr":
        tile_file(
            module, planned(module), RasterOutput(tmp_path / "in.zarr", target), goes_on=True, in_chans=4, input_size=32
        )
        np.testing.assert_allclose(zarr.open_array(target)[:], whole(module), atol=1e-3)
        shutil.rmtree(target)
    monkeypatch.setattr(
        "erfscope.core.images.raster.Raster.new", lambda *_: np.zeros((2, *SIDES), np.float32).view(Full)
    )
    assert "No space left on device; make room for it and go on with resume=" in run()
    monkeypatch.setattr("erfscope.core.images.raster.Raster.new", full)
    assert run() == f"cannot write {target}: No space left on device; choose another place"


@pytest.mark.parametrize("name", ["in.npy", "in.tif", "in.zarr", "in"])
def test_an_image_that_is_not_there_is_said_to_be_so(name, tmp_path):
    module, target = net(), tmp_path / f"out.{name[3:] or 'npy'}"
    with pytest.raises(ErfscopeError, match=rf"{name} does not exist; name another file"):
        tile_file(module, planned(module), RasterOutput(tmp_path / name, target), in_chans=4, input_size=32)


def test_an_image_without_an_axis_of_channels_has_one(tmp_path):
    module, values = net(1), image(1)[..., 0]
    expected = whole(module, 1)
    np.save(tmp_path / "in.npy", values)
    tifffile.imwrite(tmp_path / "in.tif", values)
    plan = planned(module, 1)
    for suffix, read in (("npy", np.load), ("tif", tifffile.imread)):
        tile_file(
            module, plan, RasterOutput(tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}"), in_chans=1, input_size=32
        )
        np.testing.assert_allclose(read(tmp_path / f"out.{suffix}"), expected, atol=1e-3)
    np.testing.assert_allclose(erfscope.run_tiled(module, values.astype(np.float32), plan), expected, atol=1e-3)


def test_several_images_in_one_file_are_refused(tmp_path):
    tifffile.imwrite(tmp_path / "in.tif", np.zeros((2, 4, *SIDES), np.uint8), metadata={"axes": "TCYX"}, imagej=True)
    module = net()
    with pytest.raises(ErfscopeError, match="it holds 2x4x40x56, and the plan is for 2 axes and one of channels"):
        tile_file(
            module, planned(module), RasterOutput(tmp_path / "in.tif", tmp_path / "out.tif"), in_chans=4, input_size=32
        )


@pytest.mark.parametrize("beside", ["", ".part", ".tiles.json"])
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_a_folder_of_something_else_is_never_replaced(kind, beside, tmp_path):
    module, mine = net(), tmp_path / f"out.{kind}{beside}" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    np.save(tmp_path / "in.npy", np.moveaxis(image(), -1, 0).astype(np.float32))
    ome_zarr(tmp_path / "in.zarr")
    with pytest.raises(ErfscopeError, match="is a folder that no such run wrote"):
        tile_file(
            module,
            planned(module),
            RasterOutput(tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"),
            in_chans=4,
            input_size=32,
        )
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("shape", [(*SIDES, 4), (5, *SIDES), (1, *SIDES)])
def test_an_image_of_other_channels_than_the_model_takes_says_both(shape, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros(shape, np.float32))
    module = net()
    read = f"{shape[0]} {'channel' if shape[0] == 1 else 'channels'} of {shape[1]}x{shape[2]}"
    text = rf"in.npy' is read as {read}, and Sequential takes 4; give .* with 4"
    with pytest.raises(ErfscopeError, match=text):
        tile_file(
            module, planned(module), RasterOutput(tmp_path / "in.npy", tmp_path / "out.npy"), in_chans=4, input_size=32
        )

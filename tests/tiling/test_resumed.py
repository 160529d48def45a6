"""Runs on tiles that were stopped go on with what they were begun with, and with nothing else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import erfscope
from erfscope import ErfscopeError

SIDE = 48


class Stopped(Exception):
    pass


def stop_after(tiles: int) -> Callable[[int, int], None]:
    def stop(done: int, _: int) -> None:
        if done >= tiles:
            raise Stopped

    return stop


def net_of(seed: int, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(seed)
    # Tiles of this output overlap by a unit, so that later ones write over earlier ones.
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), act(), nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.Conv2d(2, 2, 2)
    ).eval()
    for weight in net.parameters():
        nn.init.uniform_(weight, 0.1, 1)
    return net


def image_file(folder: Path, name: str = "x.npy", seed: int = 0) -> np.ndarray:
    np.save(folder / name, np.random.default_rng(seed).random((1, SIDE, SIDE), dtype=np.float32))
    return np.load(folder / name, mmap_mode="r")


class Run:
    """A run that was stopped after some tiles, and everything that it is of."""

    def __init__(self, folder: Path, tiles: int = 5) -> None:
        self.net, self.x, self.mark, self.file = net_of(0), image_file(folder), folder / "run.json", folder / "y.npy"
        self.plan = erfscope.tile(self.net, 8, in_chans=1, input_size=SIDE)
        shape = (2, *self.plan.output_size((SIDE, SIDE)))
        self.out: Any = np.lib.format.open_memmap(self.file, "w+", np.float32, shape)
        with contextlib.suppress(Stopped):
            self.go_on(progress=stop_after(tiles))

    def go_on(self, **other: Any) -> Any:
        given = {"net": self.net, "x": self.x, "plan": self.plan, "out": self.out, "resume": self.mark, **other}
        return erfscope.run_tiled(given.pop("net"), given.pop("x"), given.pop("plan"), **given)

    def bytes(self) -> tuple[bytes, bytes]:
        return self.file.read_bytes(), self.mark.read_bytes()

    def whole(self) -> Tensor:
        with torch.no_grad():
            return self.net(torch.from_numpy(np.array(self.x))[None])[0]


@pytest.mark.slow
@pytest.mark.parametrize("tiles", range(1, 36, 3))
def test_a_run_goes_on_after_any_tile(tmp_path: Path, tiles: int) -> None:
    run = Run(tmp_path, tiles)
    if tiles % 2:
        # Killed after the next tile was written, and before it was counted.
        counted = run.mark.read_bytes()
        with contextlib.suppress(Stopped):
            run.go_on(progress=stop_after(tiles + 1))
        run.mark.write_bytes(counted)
        assert run.plan.axes[0].step_units < run.plan.axes[0].tile_units
    seen: list[int] = []
    run.go_on(progress=lambda done, _: seen.append(done))
    assert seen[0] == tiles + 1
    assert not run.mark.exists()
    np.testing.assert_allclose(run.out, run.whole(), atol=1e-6)


@pytest.mark.slow
def test_a_run_goes_on_in_batches(tmp_path: Path) -> None:
    run, seen = Run(tmp_path), list[int]()
    assert run.go_on(progress=lambda done, _: seen.append(done), batch_size=4) is run.out
    assert seen[:2] == [9, 13]
    np.testing.assert_allclose(run.out, run.whole(), rtol=1e-6)


@pytest.mark.parametrize(
    ("of", "other"),
    [
        ("model", lambda run, _: {"net": net_of(1)}),
        ("model", lambda run, _: {"net": net_of(0, nn.GELU)}),
        ("model", lambda run, _: {"net": run.net.forward}),
        ("image", lambda run, folder: {"x": image_file(folder, "other.npy", seed=1)}),
        ("image", lambda run, _: {"x": np.array(run.x)}),
        ("image", lambda run, _: {"x": run.x.astype(np.float64)}),
        ("image", lambda run, _: {"x": torch.from_numpy(np.array(run.x)) + 1e-7}),
        ("plan", lambda run, _: {"plan": erfscope.tile(run.net, 16, in_chans=1, input_size=SIDE)}),
        ("model and image", lambda run, folder: {"net": net_of(1), "x": image_file(folder, "other.npy")}),
    ],
)
def test_a_run_of_something_else_is_refused_and_writes_nothing(
    tmp_path: Path, of: str, other: Callable[[Run, Path], dict[str, Any]]
) -> None:
    run = Run(tmp_path)
    before = run.bytes()
    with pytest.raises(ErfscopeError, match=f"belongs to a run of another {of};"):
        run.go_on(**other(run, tmp_path))
    assert run.bytes() == before


def test_an_image_that_was_written_since_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    image_file(tmp_path, seed=1)
    with pytest.raises(ErfscopeError, match="another image"):
        run.go_on(x=np.load(tmp_path / "x.npy", mmap_mode="r"))


@pytest.mark.slow
def test_two_images_in_one_file_are_two(tmp_path: Path) -> None:
    np.save(tmp_path / "both.npy", np.random.default_rng(0).random((2, 1, SIDE, SIDE), dtype=np.float32))
    both = np.load(tmp_path / "both.npy", mmap_mode="r")
    run = Run(tmp_path)
    run.mark.unlink()
    with contextlib.suppress(Stopped):
        run.go_on(x=both[0], progress=stop_after(3))
    with pytest.raises(ErfscopeError, match="another image"):
        run.go_on(x=both[1])
    run.go_on(x=np.asarray(both[0]))


@pytest.mark.parametrize(
    "change",
    [
        lambda out: np.zeros_like(out),
        lambda out: np.array(out, dtype=np.float64),
        lambda out: np.array(out[:1]),
        lambda out: np.array(out).reshape(out.shape[0], -1, 1),
        lambda out: np.roll(out, 1),
    ],
)
def test_another_output_is_refused_and_not_touched(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    run = Run(tmp_path)
    other = change(run.out)
    before = other.copy()
    with pytest.raises(ErfscopeError, match="does not hold the 5 tiles"):
        run.go_on(out=other)
    np.testing.assert_array_equal(other, before)


@pytest.mark.parametrize("out", [torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16), np.zeros(1, ">f4")])
def test_a_run_goes_on_in_an_output_of_any_kind(tmp_path: Path, out: Any) -> None:
    run = Run(tmp_path)
    run.mark.unlink()
    shape = tuple(run.out.shape)
    own = torch.zeros(shape, dtype=out.dtype) if isinstance(out, Tensor) else np.zeros(shape, out.dtype)
    with contextlib.suppress(Stopped):
        run.go_on(out=own, progress=stop_after(5))
    run.go_on(out=own)
    found = own.float().numpy() if isinstance(own, Tensor) else own
    np.testing.assert_allclose(found, run.whole(), rtol=1e-2)


def test_an_output_that_was_cut_off_and_grew_again_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.file.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(ErfscopeError, match="does not hold"):
        run.go_on(out=np.lib.format.open_memmap(run.file, "r+"))


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just([]), st.just({}), st.just([[1]])
)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@example("done", False, False)
@example("done", -1, False)
@given(st.sampled_from(["run", "output", "done", "last", "plan", "model", "image"]), VALUES, st.booleans())
def test_a_count_with_any_value_in_any_field_is_one_line(
    begun: Run, name: str, value: object, is_missing: bool
) -> None:
    run, whole = begun, begun.mark.read_text()
    count = json.loads(whole)
    place = count if name in count else count["run"]
    if place[name] == value and type(value) is int:
        return
    place[name] = value
    if is_missing:
        del place[name]
    run.mark.write_text(json.dumps(count))
    before = run.bytes()
    try:
        with pytest.raises(ErfscopeError, match=r"counts|does not hold|belongs to") as caught:
            run.go_on()
        assert "\n" not in str(caught.value)
        assert run.bytes() == before
    finally:
        run.mark.write_text(whole)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b"[" * 100_000, b"{}"])
def test_a_file_that_holds_no_count_is_one_line(tmp_path: Path, content: bytes) -> None:
    run = Run(tmp_path)
    run.mark.write_bytes(content)
    before = run.bytes()
    with pytest.raises(ErfscopeError, match="does not hold the count of a run"):
        run.go_on()
    assert run.bytes() == before


def test_a_count_that_is_a_folder_is_one_line(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.mark.unlink()
    run.mark.mkdir()
    with pytest.raises(ErfscopeError, match="does not hold the count of a run"):
        run.go_on()


@pytest.mark.slow
def test_what_a_killed_process_left_of_the_count_goes_at_the_next_run(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / ".run.json.ab_c3d4z").touch()
    (tmp_path / ".run.json.mine").touch()
    run.go_on()
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == [".run.json.mine"]


def test_the_output_is_never_the_image(tmp_path: Path) -> None:
    net = nn.Conv2d(1, 1, 3, padding=1).eval()
    plan = erfscope.tile(net, 8, in_chans=1, input_size=16)
    array = np.zeros((1, 16, 16), np.float32)
    np.save(tmp_path / "x.npy", array)
    (tmp_path / "link.npy").hardlink_to(tmp_path / "x.npy")
    on_disk = [np.load(tmp_path / name, mmap_mode="r+") for name in ("x.npy", "link.npy")]
    tensor = torch.zeros(1, 16, 16)
    for x, out in (on_disk, (array, array), (array, array[:, ::-1]), (tensor, tensor.view(1, 16, 16))):
        with pytest.raises(ErfscopeError, match="out is x itself"):
            erfscope.run_tiled(net, x, plan, out=out)
    erfscope.run_tiled(net, on_disk[0], plan, out=array)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [">f4", ">f8", "f2", ">f2", "g", "u1", "<u2", ">u2", "u4", "u8", ">i8", "i1", "?"])
def test_images_of_any_real_numbers_are_run(dtype: str) -> None:
    net = net_of(0)
    plan = erfscope.tile(net, 8, in_chans=1, input_size=SIDE)
    image = (np.random.default_rng(0).random((1, SIDE, SIDE)) * 3).astype(dtype)
    with torch.no_grad():
        whole = net(torch.from_numpy(image.astype(np.float32))[None])[0].numpy()
    np.testing.assert_allclose(erfscope.run_tiled(net, image, plan), whole, atol=1e-5)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((1, SIDE, SIDE), complex), "holds complex128"),
        (torch.zeros(1, SIDE, SIDE, dtype=torch.complex64), "holds torch.complex64"),
        (np.zeros((1, SIDE, SIDE), "U3"), "holds <U3"),
        (np.zeros((1, SIDE, SIDE), object), "holds object"),
        (np.zeros((0, 1, SIDE, SIDE)), "holds no numbers"),
        (np.zeros((1, SIDE, 0)), "holds no numbers"),
        (np.zeros(()), "x has shape ()"),
        (np.zeros((3, SIDE, SIDE)), "fails on a crop of 3 channels at 1[0-9]x1[0-9]: Given groups=1"),
    ],
)
def test_what_is_no_image_of_the_model_is_one_line(image: Any, words: str) -> None:
    net = net_of(0)
    with pytest.raises(ErfscopeError, match=words.replace("()", r"\(\)")) as caught:
        erfscope.run_tiled(net, image, erfscope.tile(net, 8, in_chans=1, input_size=SIDE))
    assert "\n" not in str(caught.value)

"""Stored reports and baselines that are damaged or made to harm: refused in one line."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzzing import VALUES, command, fuzz, works_or_refuses
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import erfscope
import erfscope.core.answer.storage.files
from erfscope import ErfscopeError, gate

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the report of a run, whose files are exchanged."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))
    folder = tmp_path_factory.mktemp("stored") / "whole"
    erfscope.sweep(net, input_size=16, device="cpu", samples=4, unit="centre,corner", label="net").save(folder)
    return folder


@pytest.fixture(scope="module")
def document(place) -> dict:
    return json.loads((place / "report.json").read_text())


@pytest.fixture
def copied(place, tmp_path) -> Path:
    """The same report, to be damaged."""
    return Path(shutil.copytree(place, tmp_path / "copied"))


@fuzz(40)
@given(
    content=st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()),
    nested=st.sampled_from([0, 0, 0, 20_000]),
)
def test_any_text_as_a_report_or_a_baseline_is_refused(tmp_path, content, nested):
    file = tmp_path / "report.json"
    file.write_bytes(b"[" * nested + content + b"]" * nested)
    for read in (erfscope.read, gate.read):
        assert isinstance(works_or_refuses(lambda read=read: read(file)), ErfscopeError)


def write_signed(folder: Path, document: dict, content: bytes) -> None:
    """Exchange the map file of the first result, with its digest in the report."""
    first = document["results"][0]
    signed = {**first, "map_sha256": hashlib.sha256(content).hexdigest()}
    (folder / first["map_file"]).write_bytes(content)
    (folder / "report.json").write_text(json.dumps({**document, "results": [signed, *document["results"][1:]]}))


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


class Trap:
    """What pickle would run."""

    def __reduce__(self):
        return (Path.touch, (Path("pickle-was-run"),))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a pickled object": lambda: npy(np.array([Trap()], dtype=object)),
    "a shape without bytes": lambda: npy(np.zeros((2, 2))).replace(b"(2, 2)", b"(99999999, 99999999)", 1),
    "a negative shape": lambda: npy(np.zeros((2, 2))).replace(b"(2, 2)", b"(-2, -2)", 1),
    "more than may be": lambda: npy(np.zeros((1024, 1024))),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*HOSTILE, "bare pickle"])
def test_arrays_made_to_harm_are_refused(document, copied, monkeypatch, kind):
    monkeypatch.chdir(copied.parent)
    monkeypatch.setattr(erfscope.core.answer.storage.files, "LARGEST_ARRAYS", 1 << 22)
    name = document["results"][0]["id"]
    content = pickle.dumps(Trap()) if kind == "bare pickle" else archive({f"{name}.npy": HOSTILE[kind]()})
    write_signed(copied, document, content)
    assert isinstance(works_or_refuses(lambda: erfscope.read(copied)), ErfscopeError)
    assert [*copied.parent.iterdir()] == [copied]


MAPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "NaN": lambda values: np.where(values == values.max(), np.nan, values),
    "infinite": lambda values: np.where(values == values.max(), np.inf, values),
    "0-d": lambda _: np.float64(1),
    "empty": lambda _: np.zeros((0, 16)),
    "of one axis": lambda values: values[0],
    "of another size": lambda values: values[1:],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAPS)
def test_maps_that_are_not_those_of_their_field_are_refused(document, copied, kind):
    name = document["results"][0]["id"]
    with np.load(copied / document["results"][0]["map_file"]) as arrays:
        members = {**arrays, name: MAPS[kind](arrays[name])}
    write_signed(copied, document, archive({f"{key}.npy": npy(values) for key, values in members.items()}))
    code, _, said = command("compare", str(copied), str(copied))
    assert (code, "its map" in said) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "shape"), [("u1", (1 << 14, 1 << 14)), ("f8", (1 << 12, 1 << 13)), ("f2", (16, 16))])
def test_an_array_that_claims_to_be_another_is_refused_before_it_is_unpacked(
    document, copied, monkeypatch, dtype, shape
):
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("unpacked"))
    write_signed(copied, document, archive({f"{document['results'][0]['id']}.npy": npy(np.zeros(shape, dtype))}))
    assert "and the report's is float64 of (16, 16)" in str(works_or_refuses(lambda: erfscope.read(copied)))


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """The way to every field of a stored report."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, each in list(value.items() if isinstance(value, dict) else enumerate(value))[:60]:
            yield from places(each, (*path, key))


@pytest.mark.slow
@fuzz(60)
@given(data=st.data(), value=VALUES | st.sampled_from(["INFINITE", "\x1b[31mred", [], [[]], -1, 1e308]))
def test_any_value_in_any_field_is_a_result_or_one_line(document, place, data, value):
    path = data.draw(st.sampled_from(sorted(places(document), key=str)))
    edited = json.loads(json.dumps(document))
    owner = edited
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    (place / "report.json").write_text(json.dumps(edited).replace('"INFINITE"', "1e999"))
    try:
        command(
            "compare", str(place), "--format", data.draw(st.sampled_from(["csv", "json", "markdown", "latex", "plain"]))
        )
    finally:
        (place / "report.json").write_text(json.dumps(document))


NAMES = ["../x", "/tmp/x", "..", ".", "", "a/b", "a\\b", "a\x00b", "x" * 300, ".hidden", "con\x1b"]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["id", "map_file"])
@pytest.mark.parametrize("name", NAMES)
def test_ids_and_map_files_of_a_report_name_nothing_outside_its_folder(document, copied, key, name):
    first, *others = document["results"]
    (copied / "report.json").write_text(json.dumps({**document, "results": [{**first, key: name}, *others]}))
    found = works_or_refuses(lambda: erfscope.read(copied))
    assert isinstance(found, ErfscopeError) or (key == "map_file" and found[0].map is None)


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_report_and_no_baseline(target):
    for read in (erfscope.read, gate.read):
        assert isinstance(works_or_refuses(lambda read=read: read(Path(target))), ErfscopeError)

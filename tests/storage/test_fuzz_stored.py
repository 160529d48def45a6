"""Stored reports, shards and baselines that are damaged or made to harm: read, or refused in one line."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzzing import EDITS, VALUES, damaged, fuzz, steering, works_or_refuses
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import erfscope
import erfscope.storage.files
from erfscope import gate
from erfscope.api.page import html
from erfscope.cli.console.screen import Screen
from erfscope.errors import ErfscopeError
from erfscope.results.report import Report

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")

SHARDS = ("1/2", "2/2")


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))


@pytest.fixture(scope="module")
def stored(net, tmp_path_factory) -> Path:
    """A folder with a whole run of two rows, its two shards, and a baseline."""
    folder = tmp_path_factory.mktemp("stored")
    options = {"input_size": 16, "device": "cpu", "samples": 4, "unit": "centre,corner", "label": "net"}
    for shard in (None, *SHARDS):
        report = erfscope.sweep(net, **options, **({} if shard is None else {"shard": shard}))
        report.save(folder / ("whole" if shard is None else f"shard{shard[0]}"))
    report = erfscope.sweep(net, **options)
    gate.update(folder / "erf-baseline.json", {result.id: gate.entry_of(result) for result in report})
    return folder


class Documents(dict):
    """Reports as JSON values, too long to be shown with every failing case."""

    def __repr__(self) -> str:
        return ", ".join(self)


@pytest.fixture(scope="module")
def documents(stored) -> Documents:
    return Documents(
        {name: json.loads((stored / name / "report.json").read_text()) for name in ("whole", "shard1", "shard2")}
    )


@pytest.fixture(scope="module")
def place(stored, tmp_path_factory) -> Path:
    """Where damaged reports are written, beside the files that they name."""
    folder = tmp_path_factory.mktemp("damaged")
    for name in ("whole", "shard1", "shard2"):
        (folder / name).mkdir()
        for file in (stored / name).glob("*.npz"):
            (folder / name / file.name).write_bytes(file.read_bytes())
    return folder


def shown(report: Report, how: str) -> str:
    """What is shown of a report that could be read."""
    if how == "json":
        return json.dumps(report.to_json(), allow_nan=False)
    if how == "page":
        return html(report)
    if how == "terminal":
        out = io.StringIO()
        screen = Screen(plain=True)
        screen.file = out
        screen.print(report)
        assert not steering(out.getvalue())
        return out.getvalue()
    return report.table(format=how)


@fuzz(150)
@given(edits=EDITS, how=st.sampled_from(["json", "page", "terminal", "csv", "markdown", "latex"]))
def test_a_damaged_report_is_shown_or_refused(documents, place, edits, how):
    (place / "whole" / "report.json").write_text(json.dumps(damaged(documents["whole"], edits)))
    report = works_or_refuses(lambda: erfscope.read(place / "whole"))
    if isinstance(report, Report):
        works_or_refuses(lambda: shown(report, how))


@fuzz(60)
@given(edits=EDITS, below=st.sampled_from([(), ("results",), ("results", 0, "shard")]))
def test_a_damaged_shard_is_merged_or_refused(documents, place, edits, below):
    (place / "shard1" / "report.json").write_text(json.dumps(damaged(documents["shard1"], edits, below=below)))
    (place / "shard2" / "report.json").write_text(json.dumps(documents["shard2"]))
    report = works_or_refuses(lambda: erfscope.merge([place / "shard1", place / "shard2"]))
    if isinstance(report, Report):
        works_or_refuses(lambda: shown(report, "json"))


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


@st.composite
def broken_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Cut off, with some bytes changed, or with a piece put in."""
    kept = bytearray(content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content)
    for _ in range(draw(st.integers(1, 4))):
        if kept:
            # Most of what matters stands at the beginning and at the end.
            at = draw(st.sampled_from([0, len(kept)])) + draw(st.integers(-120, 120))
            kept[at % len(kept)] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        kept += draw(st.binary(max_size=40))
    return bytes(kept)


@fuzz(120)
@given(data=st.data())
def test_damaged_arrays_are_read_or_refused(stored, documents, place, data):
    document = documents["shard1"]
    name = document["results"][0]["map_file"]
    kept = (stored / "shard1" / name).read_bytes()
    try:
        write_signed(place / "shard1", document, data.draw(broken_bytes(kept)))
        report = works_or_refuses(lambda: erfscope.merge([place / "shard1", stored / "shard2"]))
        if isinstance(report, Report):
            shown(report, "json")
    finally:
        (place / "shard1" / name).write_bytes(kept)


class Trap:
    """What pickle would run."""

    def __reduce__(self):
        return (Path.touch, (Path("pickle-was-run"),))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a pickled object": lambda: npy(np.array([Trap()], dtype=object)),
    "a shape without bytes": lambda: npy(np.zeros((2, 2))).replace(b"(2, 2)", b"(99999999, 99999999)", 1),
    "a negative shape": lambda: npy(np.zeros((2, 2))).replace(b"(2, 2)", b"(-2, -2)", 1),
    "more than may be": lambda: npy(np.zeros((1024, 1024))),
    "text": lambda: npy(np.array(["x", "y"])),
    "complex numbers": lambda: npy(np.ones((16, 16), dtype=complex)),
    "numbers that are not finite": lambda: npy(np.full((16, 16), np.nan)),
    "another shape": lambda: npy(np.ones((3, 5))),
}


@pytest.mark.parametrize("kind", [*HOSTILE, "bare pickle"])
def test_arrays_made_to_harm_are_refused(documents, stored, place, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(erfscope.storage.files, "LARGEST_ARRAYS", 1 << 22)
    result = documents["whole"]["results"][0]
    name, file = result["id"], place / "whole" / result["map_file"]
    kept = file.read_bytes()
    try:
        content = pickle.dumps(Trap()) if kind == "bare pickle" else archive({f"{name}.npy": HOSTILE[kind]()})
        write_signed(place / "whole", documents["whole"], content)
        assert isinstance(works_or_refuses(lambda: erfscope.read(place / "whole")), ErfscopeError)
    finally:
        file.write_bytes(kept)
    assert not list(tmp_path.iterdir())


@fuzz(30)
@given(
    name=st.sampled_from(["../x", "/tmp/x", "..", ".", "", "a/b", "a\\b", "a\x00b", "x" * 300, ".hidden", "con\x1b"])
    | st.text(max_size=8)
)
def test_ids_and_map_files_of_a_report_name_nothing_outside_its_folder(documents, place, name):
    document = damaged(documents["whole"], [])
    for key in ("id", "map_file"):
        document["results"][0] = {**documents["whole"]["results"][0], key: name}
        (place / "whole" / "report.json").write_text(json.dumps(document))
        report = works_or_refuses(lambda: erfscope.read(place / "whole"))
        if isinstance(report, Report):
            assert all(Path(result.id).name == result.id and not result.id.startswith(".") for result in report)


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_report_and_no_baseline(target):
    for read in (erfscope.read, gate.read):
        assert isinstance(works_or_refuses(lambda read=read: read(Path(target))), ErfscopeError)


@fuzz(150)
@given(edits=EDITS)
def test_a_damaged_baseline_is_compared_with_or_refused(stored, tmp_path, edits):
    file = tmp_path / "erf-baseline.json"
    document = json.loads((stored / "erf-baseline.json").read_text())
    file.write_text(json.dumps(damaged(document, edits)))
    result = erfscope.read(stored / "whole")[0]
    verdict = works_or_refuses(lambda: erfscope.compare_to_baseline(result, file, name=result.id))
    if not isinstance(verdict, ErfscopeError):
        report = gate.CheckReport(verdicts=(verdict,), baseline=file)
        assert json.dumps(report.to_json(), allow_nan=False)
        assert report.markdown()
        assert report.text
    found = works_or_refuses(lambda: gate.update(file, {"new": gate.entry_of(result)}))
    if found is None:
        assert "new" in gate.read(file)


@fuzz(60)
@given(data=st.data())
def test_a_baseline_with_broken_bytes_is_read_or_refused(stored, tmp_path, data):
    file = tmp_path / "erf-baseline.json"
    file.write_bytes(data.draw(broken_bytes((stored / "erf-baseline.json").read_bytes())))
    works_or_refuses(lambda: gate.read(file))

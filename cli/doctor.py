"""``erfscope doctor``: problems of this installation, and their fixes."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import rich_click as click

from erfscope.cli.options import with_verbose
from erfscope.cli.run.known_names import ModelName
from erfscope.environment import OPENCV_FIX

PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "captum",
    "numpy",
    "scipy",
    "pillow",
    "matplotlib",
    "rich",
    "rich-click",
    "safetensors",
)
OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")


class Line(NamedTuple):
    """One line of the report; without a fix nothing is wrong."""

    subject: str
    text: str
    fix: str = ""


@click.command()
@click.option(
    "--fix-hint",
    "model",
    is_flag=False,
    flag_value="",
    metavar="[MODEL]",
    type=ModelName(),
    help="Print only the fixes; with MODEL also how to get its weights.",
)
@with_verbose
def doctor(model: str | None, verbose: bool) -> int:
    """Check versions, devices, installed packages and the weights' caches, and name the fixes.

    Exits with 2 if something is broken, or if the weights of MODEL can neither be found nor fetched.
    """
    from erfscope.cli.console import Screen
    from erfscope.view.table import Cell, Column, Table, rows_of
    from erfscope.view.terminal.table import TerminalTable

    torch = _imported("torch", "pip install torch")
    lines = [
        *_versions(),
        torch,
        # Torch and torchvision from different indexes break it.
        _imported("timm", "pip install --force-reinstall torch torchvision, both from the same index"),
        _opencv(),
        # A library is missing, or it is a build for another numpy.
        _imported("cv2", OPENCV_FIX),
        *(() if torch.fix else (*_devices(), *_caches())),
        *([_weights(model)] if model else []),
    ]
    bad, screen = [line for line in lines if line.fix], Screen()
    if model is not None:
        for line in bad:
            screen.print_line(f"fix: {line.subject}: {line.text}; {line.fix}")
        if not bad:
            screen.print_line("nothing to fix" + (f": {lines[-1].subject} {lines[-1].text}" if model else ""))
        return 2 if bad else 0
    marks = (Cell(text="ok", style="green"), Cell(text="!!", style="bold red"))
    rows = rows_of(
        (marks[bool(line.fix)], line.subject, f"{line.text}\n→ {line.fix}" if line.fix else line.text) for line in lines
    )
    screen.print(TerminalTable(Table(columns=(Column(name=""),) * 2 + (Column(name="", folds=True),), rows=rows)))
    found = f"{len(bad)} problem{'s' * (len(bad) > 1)} found"
    screen.print(found if bad else "everything erfscope needs is in place")
    return 2 if bad else 0


def _versions() -> Iterator[Line]:
    yield Line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        version = _version(package)
        yield Line(package, version or "not installed", "" if version else f"pip install {package}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _imported(module: str, fix: str) -> Line:
    """Whether a module can be imported."""
    try:
        importlib.import_module(module)
    except Exception as error:
        why = next((line.strip()[:100] for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return Line(f"import {module}", f"fails: {why}", fix)
    return Line(f"import {module}", "works")


def _opencv() -> Line:
    """Two OpenCV distributions overwrite each other's files."""
    found = [package for package in OPENCV if _version(package)]
    text = ", ".join(f"{package} {_version(package)}" for package in found) or "none"
    if len(found) == 1:
        return Line("OpenCV", text)
    fix = f"pip uninstall {' '.join(found[1:])}" if found else "pip install opencv-python"
    return Line("OpenCV", f"{text}: exactly one must be installed", fix)


def _devices() -> Iterator[Line]:
    import torch

    yield Line("cpu", f"{torch.get_num_threads()} threads")
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        yield Line(f"cuda:{number}", torch.cuda.get_device_name(number))
    if torch.backends.mps.is_available():
        yield Line("mps", "available")


def _caches() -> Iterator[Line]:
    """The folders from which libraries read pretrained weights."""
    import torch
    from huggingface_hub import constants

    hub, files = Path(constants.HF_HUB_CACHE), Path(torch.hub.get_dir()) / "checkpoints"
    offline = ", offline by HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else ""
    stored, fetched = (len(list(folder.glob(names))) for folder, names in ((hub, "models--*"), (files, "*")))
    yield Line("weights' cache", f"{hub}: {_count(stored, 'model')}{offline}")
    yield Line("torch.hub's cache", f"{files}: {_count(fetched, 'file')}")


def _weights(model: str) -> Line:
    """Whether the pretrained weights of a model are here or can be fetched."""
    from erfscope.adapters.sources.sources import pretrained_store
    from erfscope.adapters.weights.weights import remedy, unreachable_reason

    store, subject = pretrained_store(model), f"weights of {model}"
    if store is None:
        return Line(subject, "are its own: nothing is fetched")
    if store.cached:
        return Line(subject, f"are in the cache: {store.origin}")
    unreachable = "none are known" if store.host is None else unreachable_reason(store.host)
    if unreachable is None:
        return Line(subject, f"are fetched when they are first used: {store.origin}")
    return Line(subject, f"cannot be had: {unreachable}", remedy(store))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"

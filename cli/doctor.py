"""``erfscope doctor``: is this installation sound, and what to do if it is not."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    subject: str
    text: str
    ok: bool = True
    fix: str = ""


@click.command()
@click.option(
    "--fix-hint",
    "model",
    is_flag=False,
    flag_value="",
    metavar="[MODEL]",
    type=ModelName(),
    help="Only what to do; for MODEL also to get its weights.",
)
@with_verbose
def doctor(model: str | None, verbose: bool) -> int:
    """Check versions, devices, broken installs and the weights' caches, and name the fix.

    Exits with 2 if something is broken, or weights of a named model can neither be found nor fetched.
    """
    from rich.table import Table
    from rich.text import Text

    from erfscope.cli.console.screen import Screen

    findings = [
        *_versions(),
        _timm(),
        _opencv(),
        _cv2(),
        *_devices(),
        *_caches(),
        *([_weights(model)] if model else []),
    ]
    bad = [finding for finding in findings if not finding.ok]
    console = Screen()
    if model is not None:
        lines = [f"fix: {finding.subject}: {finding.text}; {finding.fix}" for finding in bad]
        lines = lines or ["nothing to fix" + (f": {findings[-1].subject} {findings[-1].text}" if model else "")]
        for line in lines:
            console.print_line(line)
        return 2 if bad else 0
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for finding in findings:
        mark = Text("ok", style="green") if finding.ok else Text("!!", style="bold red")
        table.add_row(mark, finding.subject, Text(finding.text + (f"\n→ {finding.fix}" if finding.fix else "")))
    console.print(table)
    console.print(
        f"{len(bad)} problem{'' if len(bad) == 1 else 's'} found" if bad else "everything erfscope needs is in place"
    )
    return 2 if bad else 0


def _versions() -> list[Finding]:
    found = [Finding(subject="python", text=f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    for package in PACKAGES:
        version = _version(package)
        fix = "" if version else f"pip install {package}"
        found.append(Finding(subject=package, text=version or "not installed", ok=version is not None, fix=fix))
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _timm() -> Finding:
    """Whether timm can be imported: torch and torchvision from different indexes break it."""
    try:
        importlib.import_module("timm")
    except Exception as error:
        fix = "pip install --force-reinstall torch torchvision, both from the same index"
        return Finding(subject="import timm", text=f"fails: {_first_line(error)}", ok=False, fix=fix)
    return Finding(subject="import timm", text="works")


def _opencv() -> Finding:
    """Two OpenCV distributions overwrite each other's files."""
    found = [package for package in OPENCV if _version(package)]
    text = ", ".join(f"{package} {_version(package)}" for package in found) or "none"
    if len(found) == 1:
        return Finding(subject="OpenCV", text=text)
    fix = f"pip uninstall {' '.join(found[1:])}" if found else "pip install opencv-python"
    return Finding(subject="OpenCV", text=f"{text}: exactly one must be installed", ok=False, fix=fix)


def _cv2() -> Finding:
    try:
        importlib.import_module("cv2")
    except Exception as error:  # a missing library, or a build for another numpy
        return Finding(subject="import cv2", text=f"fails: {_first_line(error)}", ok=False, fix=OPENCV_FIX)
    return Finding(subject="import cv2", text="works")


def _first_line(error: Exception) -> str:
    return next((line.strip()[:100] for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _devices() -> list[Finding]:
    try:
        import torch
    except Exception as error:
        return [
            Finding(
                subject="devices",
                text=f"torch cannot be imported: {_first_line(error)}",
                ok=False,
                fix="pip install torch",
            )
        ]
    found = [Finding(subject="cpu", text=f"{torch.get_num_threads()} threads")]
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        found.append(Finding(subject=f"cuda:{number}", text=torch.cuda.get_device_name(number)))
    if torch.backends.mps.is_available():
        found.append(Finding(subject="mps", text="available"))
    return found


def _caches() -> list[Finding]:
    """Where pretrained weights are read from, by the libraries that read them."""
    try:
        import torch
        from huggingface_hub import constants
    except Exception as error:
        return [
            Finding(
                subject="weights' cache",
                text=f"unknown: {_first_line(error)}",
                ok=False,
                fix="pip install torch huggingface_hub",
            )
        ]
    hub, files = Path(constants.HF_HUB_CACHE), Path(torch.hub.get_dir()) / "checkpoints"
    offline = ", offline by HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else ""
    stored, fetched = (len(list(folder.glob(names))) for folder, names in ((hub, "models--*"), (files, "*")))
    return [
        Finding(subject="weights' cache", text=f"{hub}: {_count(stored, 'model')}{offline}"),
        Finding(subject="torch.hub's cache", text=f"{files}: {_count(fetched, 'file')}"),
    ]


def _weights(model: str) -> Finding:
    """Whether the pretrained weights of a model are here or can be fetched."""
    from erfscope.adapters.sources.sources import pretrained_store
    from erfscope.adapters.weights.store import remedy
    from erfscope.adapters.weights.weights import silence_of

    store, subject = pretrained_store(model), f"weights of {model}"
    if store is None:
        return Finding(subject=subject, text="are its own: nothing is fetched")
    if store.cached:
        return Finding(subject=subject, text=f"are in the cache: {store.origin}")
    silence = "none are known" if store.host is None else silence_of(store.host)
    if silence is None:
        return Finding(subject=subject, text=f"are fetched when they are first used: {store.origin}")
    return Finding(subject=subject, text=f"cannot be had: {silence}", ok=False, fix=remedy(store))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""``erfscope doctor``: problems of this installation, and their fixes."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import rich_click as click

from erfscope.cli.commands import import_command, others, package
from erfscope.core.values.errors import ErfscopeError
from erfscope.show.command.known_names import ModelName
from erfscope.show.command.options import with_verbose

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")


class Diagnosis(NamedTuple):
    """One line of the report; without a fix nothing is wrong."""

    subject: str
    text: str
    fix: str = ""
    #: Whether erfscope works without it.
    is_optional: bool = False


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
    """Check the installed packages, the devices, the hub and the weights' caches, and name the fixes.

    Exits with 2 if something is broken, or if the weights of MODEL can neither be found nor fetched.
    """
    from erfscope.core.system.environment import OPENCV_FIX
    from erfscope.show import Cell, Column, Table, rows_of
    from erfscope.show.command.console import Screen
    from erfscope.show.terminal import TerminalTable

    torch = _imported("torch", "pip install torch")
    hub = _imported("huggingface_hub", "pip install --force-reinstall huggingface-hub")
    lines = [
        *_versions(),
        torch,
        # Torch and torchvision from different indexes break it.
        _imported("timm", "pip install --force-reinstall torch torchvision, both from the same index"),
        _opencv(),
        # A library is missing, or it is a build for another numpy.
        _imported("cv2", OPENCV_FIX),
        hub,
        *(() if torch.fix else _devices()),
        *_others(),
        *(() if torch.fix or hub.fix else (*_caches(), _weights(model) if model else _hub())),
    ]
    lacking, screen = [line for line in lines if line.fix], Screen()
    bad = [line for line in lacking if not line.is_optional]
    if model is not None:
        for line in lacking:
            screen.print_line(f"fix: {line.subject}: {line.text}; {line.fix}")
        if not lacking:
            screen.print_line("nothing to fix" + (f": {lines[-1].subject} {lines[-1].text}" if model else ""))
        return 2 if bad else 0
    marks = (Cell(text="ok", style="green"), Cell(text="--", style="yellow"), Cell(text="!!", style="bold red"))
    texts = [f"{line.text}\n→ {line.fix}" if line.fix else line.text for line in lines]
    rows = rows_of(
        (marks[(line in lacking) + (line in bad)], line.subject, text) for line, text in zip(lines, texts, strict=True)
    )
    screen.print(TerminalTable(Table(columns=(Column(name=""),) * 2 + (Column(name="", folds=True),), rows=rows)))
    found = f"{len(bad)} problem{'s' * (len(bad) > 1)} found"
    without = f"erfscope works, without: {', '.join(line.subject for line in lacking)}"
    screen.print(found if bad else without if lacking else "everything erfscope needs is in place")
    return 2 if bad else 0


def _versions() -> Iterator[Diagnosis]:
    """Python, erfscope, and all that its installation requires."""
    yield Diagnosis("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    version, folder = _version("erfscope"), Path(__file__).resolve().parents[1]
    if version is None:
        fix = "pip install . in its checkout, which also installs what it requires"
        yield Diagnosis("erfscope", f"not installed, runs from {folder}", fix)
        return
    yield Diagnosis("erfscope", f"{version}, runs from {folder}")
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield Diagnosis("packaging", "not installed", "pip install packaging")
        return
    for requirement in map(Requirement, importlib.metadata.requires("erfscope") or ()):
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and requirement.name not in OPENCV:
            found, needed = _version(requirement.name), f"{requirement.name}{requirement.specifier}"
            fits = found is not None and requirement.specifier.contains(found, prereleases=True)
            text = "not installed" if found is None else found if fits else f"{found}, not {needed}"
            yield Diagnosis(requirement.name, text, "" if fits else f"pip install '{needed}'")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _imported(module: str, fix: str) -> Diagnosis:
    """Whether a module can be imported."""
    try:
        importlib.import_module(module)
    except Exception as error:
        why = next((line.strip()[:100] for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return Diagnosis(f"import {module}", f"fails: {why}", fix)
    return Diagnosis(f"import {module}", "works")


def _others() -> Iterator[Diagnosis]:
    """The commands of other packages."""
    from erfscope.core.system.model_errors import first_line

    for entry in others().values():
        try:
            import_command(entry)
            text, fix = f"from {package(entry)}, works", ""
        except ErfscopeError as error:
            why, fix = first_line(error.__cause__ or error), f"update or uninstall {package(entry)}"
            text = f"from {package(entry)}, fails: {why}"
        yield Diagnosis(f"erfscope {entry.name}", text, fix, is_optional=True)


def _opencv() -> Diagnosis:
    """Two OpenCV distributions overwrite each other's files."""
    found = [package for package in OPENCV if _version(package)]
    text = ", ".join(f"{package} {_version(package)}" for package in found) or "none"
    if len(found) == 1:
        return Diagnosis("OpenCV", text)
    fix = f"pip uninstall {' '.join(found[1:])}" if found else "pip install opencv-python"
    return Diagnosis("OpenCV", f"{text}: exactly one must be installed", fix)


def _devices() -> Iterator[Diagnosis]:
    import torch

    yield Diagnosis("cpu", f"{torch.get_num_threads()} threads")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield from (_gpu(f"cuda:{number}", torch.cuda.get_device_name(number)) for number in range(count))
    if torch.backends.mps.is_available():
        yield Diagnosis("mps", "available")
    elif not count:
        build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
        text = f"none that PyTorch {torch.__version__}, built {build}, can use"
        why = f": {said[0].message}" if said else ""
        yield Diagnosis("GPU", text + why, "install a driver that fits PyTorch" if said else "")
    # Ampere is the first generation with TF32.
    if any(torch.cuda.get_device_capability(number) >= (8, 0) for number in range(count)):
        yield Diagnosis("TF32", "off while erfscope measures; --tf32 allows it")
    else:
        yield Diagnosis("TF32", "no GPU here has it: float32 is full precision")


def _gpu(device: str, name: str) -> Diagnosis:
    """Whether a GPU computes: a driver may name one that this build of PyTorch has no kernels for."""
    import torch

    try:
        torch.ones(1, device=device).add(1).cpu()
    except RuntimeError as error:
        fix = "install a build of PyTorch for this GPU and its driver, or measure with --device cpu"
        return Diagnosis(device, f"{name}, fails: {str(error).splitlines()[0][:100]}", fix)
    return Diagnosis(device, name)


def _caches() -> Iterator[Diagnosis]:
    """The folders from which libraries read pretrained weights."""
    import torch
    from huggingface_hub import constants

    files = Path(torch.hub.get_dir()) / "checkpoints"
    yield Diagnosis("weights' cache", f"{constants.HF_HUB_CACHE}: {_count(_models_in_cache(), 'model')}")
    yield Diagnosis("torch.hub's cache", f"{files}: {_count(len(list(files.glob('*'))), 'file')}")


def _models_in_cache() -> int:
    from huggingface_hub import constants

    return len(list(Path(constants.HF_HUB_CACHE).glob("models--*")))


def _hub() -> Diagnosis:
    """Whether pretrained weights of the hub can be had."""
    from huggingface_hub import constants

    from erfscope.adapters.weights.weights import is_offline, unreachable_reason

    if is_offline():
        count = _models_in_cache()
        fix = "unset HF_HUB_OFFLINE, or copy models into the cache: erfscope doctor --fix-hint MODEL says how"
        text = f"the cache has {_count(count, 'model')}" if count else "the cache is empty: no pretrained weights"
        return Diagnosis("hub", f"offline by HF_HUB_OFFLINE, and {text}", "" if count else fix, is_optional=True)
    if unreachable_reason(constants.ENDPOINT) is None:
        return Diagnosis("hub", f"{constants.ENDPOINT} is reachable")
    fix = "connect to it, or set HF_HUB_OFFLINE=1 to use the cache without waiting for it"
    text = f"{constants.ENDPOINT} is unreachable: pretrained weights come from the cache alone"
    return Diagnosis("hub", text, fix, is_optional=True)


def _weights(model: str) -> Diagnosis:
    """Whether the pretrained weights of a model are here or can be fetched."""
    from erfscope.adapters.sources.sources import pretrained_store
    from erfscope.adapters.weights.weights import remedy, unreachable_reason

    store, subject = pretrained_store(model), f"weights of {model}"
    if store is None:
        return Diagnosis(subject, "are its own: nothing is fetched")
    if store.cached:
        return Diagnosis(subject, f"are in the cache: {store.origin}")
    unreachable = "none are known" if store.host is None else unreachable_reason(store.host)
    if unreachable is None:
        return Diagnosis(subject, f"are fetched when they are first used: {store.origin}")
    return Diagnosis(subject, f"cannot be had: {unreachable}", remedy(store))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"

"""How a run of many models in processes of their own begins: its folder, and the input size that all models share."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from erfscope.adapters.sources.catalogue import declared_size
from erfscope.adapters.weights.weights import NO_NUMBERS
from erfscope.api.comparison import COMMON_SIZE
from erfscope.api.models import load_model
from erfscope.errors import EnvironmentFailure, ErfscopeError
from erfscope.isolation import Journal, Processes
from erfscope.options.keywords import Options, sizes
from erfscope.options.settings import CALLBACKS, FREE, GOING_ON
from erfscope.results.json_values import plain

#: Where unfinished work lies, inside the folder of the comparison.
WORK = ".run"


def as_json(options: Options) -> dict[str, Any]:
    """The options of every model, as JSON values."""
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in (*CALLBACKS, *GOING_ON)}
    images = given.get("images")
    if images is not None:
        given["images"] = [images] if isinstance(images, str) else [str(each) for each in images]
    found: dict[str, Any] = plain(given)
    return found


def resolve_input_size(
    journal: Journal, given: dict[str, Any], specs: Sequence[str], processes: Processes, stop: Callable[[], bool] | None
) -> dict[str, Any] | None:
    """The options with an input size, as the journal has noted it or will; None where somebody stopped the search for
    one.

    It is the size asked for, else that of the run which is gone on with, else the one that all models share, else 224.
    """
    settings = {name: value for name, value in given.items() if name not in FREE and value is not None}
    asked = {"settings": settings, "pixels_of": specs[0]}
    if journal.asked is not None:
        journal.begin(asked)
        size = journal.asked.get("input_size")
    elif given.get("input_size") is not None:
        size = given["input_size"]
    else:
        own = _own_sizes(list(dict.fromkeys(specs)), given, processes, journal.path.parent.absolute() / WORK, stop)
        if stop is not None and stop():
            return None
        size = list(next(iter(own)) if len(own) == 1 else COMMON_SIZE)
    try:
        if size is None:
            raise ErfscopeError("it names no input size")
        sizes(size)
    except (ErfscopeError, TypeError, ValueError) as error:
        raise ErfscopeError(f"{journal.path} is damaged ({str(error)[:80]}); begin anew in another folder") from error
    journal.begin({**asked, "input_size": size})
    return {**given, "input_size": size}


def _own_sizes(
    specs: Sequence[str], given: Mapping[str, Any], processes: Processes, place: Path, stop: Callable[[], bool] | None
) -> set[tuple[int, ...]]:
    """The input sizes that models have of themselves; one that timm does not know by name is opened, without numbers
    where that can be."""
    found = set()
    for number, spec in enumerate(specs):
        size = None if given.get("model_kwargs") else declared_size(spec)
        if size is None:
            own = made_place(place / f"size-{number}")
            what = {"spec": spec, "options": given, "file": str(own / "size")}
            outcome = processes.run("erfscope.api.isolated_setup:note_size", what, log=own / "log", stop=stop)
            if stop is not None and stop():
                break
            # One that fails says why when it is to be measured.
            size = _noted_size(own / "size") if outcome.ok else None
            shutil.rmtree(own, ignore_errors=True)
        if size is not None:
            found.add(size)
    return found


def _noted_size(file: Path) -> tuple[int, ...] | None:
    """What :func:`note_size` has written; None where that is nothing."""
    try:
        return tuple(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def made_place(path: Path) -> Path:
    """A folder for unfinished work.

    Raises:
        EnvironmentFailure: there is no space for it, say.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot make {path}: {error.strerror or error}; what is finished is kept: make room, and go on with"
            " --resume"
        ) from error
    return path


@contextlib.contextmanager
def open_run(folder: Path, *, anew: bool) -> Iterator[Journal]:
    """The journal of a new folder, or of one that was begun; nobody else has it meanwhile."""
    journal = Journal(folder)
    if folder.exists() and not folder.is_dir():
        raise ErfscopeError(f"{folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not journal.path.is_file():
        raise ErfscopeError(f"{folder} holds something else already; name another folder")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ErfscopeError(f"cannot create {folder}: {error.strerror or error}; choose another place") from error
    with journal.locked():
        journal.read()
        if anew and journal.asked is not None:
            raise ErfscopeError(f"{folder} was begun already; go on with --resume, or name another folder")
        yield journal


def note_size(what: Mapping[str, Any]) -> None:
    """Write down the input size that a model has of itself, in the process that was made for it."""
    loaded = load_model(what["spec"], what["options"], size=None, weights=NO_NUMBERS)
    Path(what["file"]).write_text(json.dumps(loaded.adapter.preprocess.size))

"""The checkpoint files of one model, in the order of its training."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erfscope.core.values.errors import ErfscopeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A model whose weights are one of several checkpoint files."""

    spec: str
    file: Path
    #: Of the training, where the file's name tells.
    step: int | None = None


def checkpoints(models: Mapping[str, Any] | Sequence[Any], of: str) -> list[tuple[str, Saved]]:
    """(label, checkpoint), in the order given; a pattern's files by the numbers in their names, ``ckpt-2`` before
    ``ckpt-10``.

    A shell replaces a pattern by its files. So files named one by one count as a pattern's if a shell could have named
    them: in alphabetical order, with names that differ only in their numbers.

    Args:
        models: Files, or patterns of files; a mapping gives them labels and keeps its order.
        of: The spec of the model that they are checkpoints of.

    Returns:
        Labels are ``SPEC @ STEP`` where the last numbers in the names tell the files apart, else the files' names.

    Raises:
        ErfscopeError: something that is no file, or no file at all.
    """
    if isinstance(models, Mapping):
        return [(label, Saved(spec=of, file=_file(model))) for label, model in models.items()]
    files = list(dict.fromkeys(file for model in models for file in _files(model)))
    if _as_of_a_shell(files) and not any(_is_pattern(model) for model in models):
        files.sort(key=_natural)
    if not files:
        raise ErfscopeError(
            "nothing to compare; name at least one checkpoint file, or a pattern such as 'run/ckpt-*.pt'"
        )
    steps = [step_of(file) for file in files]
    apart = None not in steps and len(set(steps)) == len(files)
    labels = [f"{of} @ {step}" if apart else file.name for file, step in zip(files, steps, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [str(file) for file in files]
    return [
        (label, Saved(spec=of, file=file, step=step)) for label, file, step in zip(labels, files, steps, strict=True)
    ]


def step_of(file: Path) -> int | None:
    """The last number in a file's name."""
    numbers = re.findall(r"\d+", file.name.removesuffix(file.suffix))
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= 15 else None


def _as_of_a_shell(files: Sequence[Path]) -> bool:
    """Whether files stand as a shell writes out a pattern, and differ in numbers alone."""
    names = [str(file) for file in files]
    return names == sorted(names) and len({re.sub(r"\d+", "#", name) for name in names}) == 1


def _natural(file: Path) -> list[tuple[int, str]]:
    """Numbers compare as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(file)) if part]


def _is_pattern(model: Any) -> bool:
    return isinstance(model, str) and glob.has_magic(model) and not Path(model).exists()


def _files(model: Any) -> list[Path]:
    """A file, or those of a pattern by their numbers."""
    if _is_pattern(model):
        found = sorted(map(Path, glob.glob(model, recursive=True)), key=_natural)  # noqa: PTH207 (a pattern may be absolute)
        if not found:
            raise ErfscopeError(f"no checkpoint matches {model!r}")
        return found
    return [_file(model)]


def _file(model: Any) -> Path:
    if not isinstance(model, str | Path):
        raise ErfscopeError(f"with --of every model is one of its checkpoint files, not {type(model).__name__}")
    if not Path(model).is_file():
        raise ErfscopeError(
            f"there is no checkpoint file {str(model)!r}; with --of every model is one of its checkpoint files"
        )
    return Path(model)

"""The files of a path, a directory or a pattern."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from erfscope.errors import ErfscopeError, refuse_broken_link

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".avif")
_HINT = "give an image file, a directory or a quoted pattern such as 'val/*.jpg'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The files of one path given by the user."""

    #: The path as given.
    asked: str
    #: Sorted, so that their order does not depend on the file system.
    files: tuple[Path, ...]
    #: What each file is called below the directory, or below the fixed part of the pattern, with "/": the same wherever
    #: the data set lies.
    keys: tuple[str, ...]
    #: Whether the user named the file itself rather than a directory or a pattern.
    named: bool


def find(asked: str | Path) -> Found:
    """Resolve one path.

    Args:
        asked: A file; a directory, searched with all below it for files with an image suffix, hidden ones left out; or
            a pattern with ``*``, ``?``, ``[...]`` or ``**``, whose matches are filtered and searched in the same way.

    Returns:
        At least one file.

    Raises:
        ErfscopeError: there is none.
    """
    if not str(asked):  # Path("") would be the working directory.
        raise ErfscopeError(f"an empty path was given; {_HINT}")
    try:
        return _find(asked, Path(asked).expanduser())
    except (OSError, RuntimeError) as error:  # A name that is too long, no permission to look, "~nobody".
        raise ErfscopeError(f"cannot look for {str(asked)!r}: {getattr(error, 'strerror', None) or error}") from error


def _find(asked: str | Path, path: Path) -> Found:
    if path.is_file():
        return Found(asked=str(asked), files=(path,), keys=(path.as_posix(),), named=True)
    if path.is_dir():
        files = list(_below(path, set()))
        if not files:
            raise ErfscopeError(
                f"no images in the directory {str(asked)!r}; its files need one of these suffixes: {' '.join(SUFFIXES)}"
            )
        return Found(
            asked=str(asked),
            files=tuple(files),
            keys=tuple(file.relative_to(path).as_posix() for file in files),
            named=False,
        )
    refuse_broken_link(path)
    if path.exists():
        raise ErfscopeError(f"{str(asked)!r} is neither a file nor a directory; {_HINT}")
    if glob.has_magic(str(path)):
        return _match(str(asked), path)
    raise ErfscopeError(f"no such image: {str(asked)!r}{_nearest(path)}; {_HINT}")


def _match(asked: str, pattern: Path) -> Found:
    matches = [Path(match) for match in sorted(glob.glob(str(pattern), recursive=True))]  # noqa: PTH207 (Path.glob finds hidden files)
    seen: set[str] = set()
    files: dict[Path, None] = {}
    for match in matches:
        if match.is_dir():
            files.update(dict.fromkeys(_below(match, seen)))
        elif match.suffix.lower() in SUFFIXES and match.is_file():
            files[match] = None
    if not files:
        suffixes = " ".join(SUFFIXES)
        raise ErfscopeError(
            f"no images for the pattern {asked!r}: {len(matches)} matches, none of them a file with one of {suffixes}"
        )
    ordered = sorted(files, key=lambda file: file.as_posix())
    fixed = _fixed_part(pattern)
    return Found(
        asked=asked,
        files=tuple(ordered),
        keys=tuple(file.relative_to(fixed).as_posix() for file in ordered),
        named=False,
    )


def _fixed_part(pattern: Path) -> Path:
    """The directories before the first wildcard."""
    return next(parent for parent in pattern.parents if not glob.has_magic(str(parent)))


def _below(top: Path, seen: set[str]) -> Iterator[Path]:
    """Files with an image suffix below ``top``, sorted by path; each directory once, links to directories followed."""

    def stop(error: OSError) -> None:
        raise ErfscopeError(f"cannot read the directory {error.filename!r}: {error.strerror}") from error

    found = []
    for folder, inner, names in os.walk(top, onerror=stop, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        found += [
            Path(folder, name) for name in names if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
        ]
    yield from sorted((file for file in found if file.is_file()), key=lambda file: file.as_posix())


def _nearest(path: Path) -> str:
    """A hint at the most similar name in the same directory."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir())
    except OSError:
        return f" (there is no directory {str(path.parent)!r} either)"
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f" (did you mean {str(path.parent / near[0])!r}?)" if near else ""

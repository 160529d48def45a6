"""Images from files."""

from __future__ import annotations

import difflib
import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from erfscope.core.images.decode import Crop, fit, largest_value, read_picture, refuse_channels
from erfscope.core.images.picture import Pixels, Stimuli, at_least_one
from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import ErfscopeError, refuse_broken_link

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".avif")
#: Files of arrays: no picture has one of these.
VOLUMES = (".nii", ".nii.gz", ".npy", ".zarr")
SOUNDS = (".wav", ".flac", ".ogg", ".npy")
EVERY = tuple(dict.fromkeys((*SUFFIXES, *VOLUMES, *SOUNDS)))
_HINT = "give an image file, a directory or a quoted pattern such as 'val/*.jpg'"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
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


#: Stands among suffixes where a directory whose own files are images counts as one file: a clip, frame by frame.
FRAMES = "/"


def suffixes_of(axes: Axes) -> tuple[str, ...]:
    """What a directory is searched for, for an input with these axes."""
    frames = (FRAMES,) if axes.noun == "clip" else ()
    return {1: SOUNDS, 3: (*SUFFIXES, *VOLUMES, *frames)}.get(len(axes.names), (*SUFFIXES, ".zarr"))


def find(asked: str | Path, suffixes: tuple[str, ...] = SUFFIXES) -> FoundFiles:
    """Resolve one path.

    Args:
        asked: A file; a directory, searched with all below it for files with one of the suffixes, hidden ones left out;
            or a pattern with ``*``, ``?``, ``[...]`` or ``**``, whose matches are filtered and searched in the same
            way. A zarr array is a directory that counts as one file, and so is one of frames.
        suffixes: Those that count; a file that is named itself may have any other.

    Returns:
        At least one file.

    Raises:
        ErfscopeError: there is none.
    """
    if not str(asked):  # Path("") would be the working directory.
        raise ErfscopeError(f"an empty path was given; {_HINT}")
    try:
        return _find(asked, Path(asked).expanduser(), suffixes)
    except (OSError, RuntimeError) as error:  # A name that is too long, no permission to look, "~nobody".
        raise ErfscopeError(f"cannot look for {str(asked)!r}: {getattr(error, 'strerror', None) or error}") from error


def _find(asked: str | Path, path: Path, suffixes: tuple[str, ...]) -> FoundFiles:
    if path.is_file() or _is_one(path, suffixes):
        return FoundFiles(asked=str(asked), files=(path,), keys=(path.as_posix(),), named=True)
    if path.is_dir():
        files = list(_below(path, set(), suffixes))
        if not files:
            raise ErfscopeError(
                f"no {_noun(suffixes)} in the directory {str(asked)!r}; its files need one of these suffixes:"
                f" {' '.join(suffixes)}"
            )
        return FoundFiles(
            asked=str(asked),
            files=tuple(files),
            keys=tuple(file.relative_to(path).as_posix() for file in files),
            named=False,
        )
    refuse_broken_link(path)
    if path.exists():
        raise ErfscopeError(f"{str(asked)!r} is neither a file nor a directory; {_HINT}")
    if glob.has_magic(str(path)):
        return _match(str(asked), path, suffixes)
    raise ErfscopeError(f"{str(asked)!r} does not exist{_nearest(path)}; {_HINT}")


def _match(asked: str, pattern: Path, suffixes: tuple[str, ...]) -> FoundFiles:
    matches = [Path(match) for match in sorted(glob.glob(str(pattern), recursive=True))]  # noqa: PTH207 (Path.glob finds hidden files)
    seen: set[str] = set()
    files: dict[Path, None] = {}
    for match in matches:
        if _is_one(match, suffixes):
            files[match] = None
        elif match.is_dir():
            files.update(dict.fromkeys(_below(match, seen, suffixes)))
        elif _has(match.name, suffixes) and match.is_file():
            files[match] = None
    if not files:
        if not (folder := _fixed_part(pattern)).exists():
            raise ErfscopeError(f"the directory {str(folder)!r} of the pattern {asked!r} does not exist; {_HINT}")
        raise ErfscopeError(
            f"no {_noun(suffixes)} for the pattern {asked!r}: {len(matches)} matches, none of them a file with one of"
            f" {' '.join(suffixes)}"
        )
    ordered = sorted(files, key=lambda file: file.as_posix())
    fixed = _fixed_part(pattern)
    return FoundFiles(
        asked=asked,
        files=tuple(ordered),
        keys=tuple(file.relative_to(fixed).as_posix() for file in ordered),
        named=False,
    )


def _fixed_part(pattern: Path) -> Path:
    """The directories before the first wildcard."""
    return next(parent for parent in pattern.parents if not glob.has_magic(str(parent)))


def _noun(suffixes: tuple[str, ...]) -> str:
    return "images" if SUFFIXES[0] in suffixes else "sound"


def _has(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes)


def is_zarr(path: Path) -> bool:
    """Whether a directory is a zarr array or group, by what lies in it."""
    return any((path / name).is_file() for name in (".zarray", ".zgroup", "zarr.json"))


def suffixes_like(source: str | Path) -> tuple[str, ...]:
    """The suffixes of files of the same kind as one that holds numbers: TIFF, zarr, or else .npy."""
    name = str(source).lower().rstrip("/")
    kinds = ((".tif", ".tiff"), (".zarr",), (".npy",))
    return next((kind for kind in kinds if name.endswith(kind)), (".zarr",) if Path(source).is_dir() else (".npy",))


def frames_of(path: Path) -> list[Path]:
    """The images in a directory itself, in the order of the numbers in their names; none of anything else."""
    try:
        files = [each for each in path.iterdir() if _has(each.name, SUFFIXES) and not each.name.startswith(".")]
    except OSError:
        return []
    return sorted(files, key=lambda file: [part.zfill(20) for part in re.split(r"(\d+)", file.name)])


def _is_one(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a directory counts as one file."""
    return (".zarr" in suffixes and path.is_dir() and (path.suffix.lower() == ".zarr" or is_zarr(path))) or (
        FRAMES in suffixes and bool(frames_of(path))
    )


def _below(top: Path, seen: set[str], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Files with one of the suffixes below ``top``, sorted by path; each directory once, links to directories
    followed."""

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
        found += [Path(folder, name) for name in names if not name.startswith(".") and _has(name, suffixes)]
        arrays = [name for name in inner if _is_one(Path(folder, name), suffixes)]
        found += [Path(folder, name) for name in arrays]
        inner[:] = [name for name in inner if name not in arrays]
    yield from sorted(
        (file for file in found if file.is_file() or _is_one(file, suffixes)), key=lambda file: file.as_posix()
    )


def _nearest(path: Path) -> str:
    """A hint at the most similar name in the same directory."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir())
    except OSError:
        return f" (there is no directory {str(path.parent)!r} either)"
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f" (did you mean {str(path.parent / near[0])!r}?)" if near else ""


#: How many files are taken from directories and patterns unless a number is asked for.
DEFAULT_SAMPLES = 20


def open_pictures(
    paths: str | Path | Sequence[str | Path],
    *,
    samples: int | None,
    seed: int,
    crop: Crop,
    channels: int,
    suffixes: tuple[str, ...] = SUFFIXES,
) -> Stimuli:
    """Images from files, read one at a time when they are needed.

    Files named one by one come first, in the order given, and are all used unless ``samples`` is smaller. Directories
    and patterns form one pool that fills up to ``samples``, or gives 20. Samples are drawn without replacement, by the
    hash of (seed, path below the directory given): the same files wherever the data set lies and on every system, and a
    larger sample begins with the smaller one. A file that is reached twice counts once.

    Args:
        paths: Files, directories (searched with all below them; hidden files left out) and patterns; one or a sequence.
        samples: How many images; all there are if there are fewer; None for the default.
        seed: Chooses the sample.
        crop: Image -> uint8 (H, W, C) at the model's input size; gets mode "L" for one channel, "RGB" for three.
        channels: The model's input channels, 1 or 3.
        suffixes: Those of files that directories are searched for.

    Returns:
        The images. A damaged file raises in :meth:`Stimuli.pixels`, not here.

    Raises:
        ErfscopeError: a missing path, a directory or pattern without images, fewer than one sample, another number of
            channels.
    """
    refuse_channels(channels)
    files, source, is_one = chosen_files(
        paths, samples=samples, seed=seed, suffixes=suffixes, noun="clips" if FRAMES in suffixes else "images"
    )
    return Stimuli(
        kind="image",
        names=tuple(map(str, files)),
        source=source,
        draw=partial(_draw, files, crop, channels),
        digest=cache(partial(sha256_of, files)),
        largest=partial(_largest, files, crop, channels),
        is_one_file=is_one,
    )


def image_files(
    paths: str | Path | Sequence[str | Path],
    *,
    samples: int | None,
    seed: int,
    suffixes: tuple[str, ...] = SUFFIXES,
) -> list[Path]:
    """The files that :func:`open_pictures` takes, with the same arguments and errors."""
    return _chosen(paths, samples=samples, seed=seed, suffixes=suffixes)[1]


def chosen_files(
    paths: str | Path | Sequence[str | Path], *, samples: int | None, seed: int, suffixes: tuple[str, ...], noun: str
) -> tuple[tuple[Path, ...], str, bool]:
    """The files that :func:`open_pictures` takes, with the same arguments and errors, the line that says so, and
    whether it is the name of the only file.

    Args:
        paths: As for :func:`open_pictures`, as what follows.
        samples: How many.
        seed: Chooses them.
        suffixes: Those of files that directories are searched for.
        noun: What the line calls them.
    """
    found, files, known = _chosen(paths, samples=samples, seed=seed, suffixes=suffixes)
    return tuple(files), _describe(found, files, noun, known, seed), known == 1


#: Before the path of images for one of several inputs.
_NAME = re.compile(r"([A-Za-z_][\w.\[\]]*)=(.+)", re.DOTALL)


def by_input(images: Any) -> Any:
    """Paths that are given as ``"NAME=PATH"``, for the inputs of a model that takes several, by name; anything else as
    it is.

    Raises:
        ErfscopeError: some paths have a name, and others have none.
    """
    listed = [images] if isinstance(images, str) else images if isinstance(images, list | tuple) else []
    named = [_NAME.fullmatch(each) for each in listed if isinstance(each, str) and not os.path.lexists(each)]
    found: dict[str, list[str]] = {}
    for match in filter(None, named):
        found.setdefault(match[1], []).append(match[2])
    if not found:
        return images
    if sum(map(len, found.values())) < len(listed):
        raise ErfscopeError(f"some images were given for {', '.join(found)}, and others without NAME=; name all")
    return found


def paired_files(
    asked: Mapping[str, str | Path | Sequence[str | Path]],
    *,
    samples: int | None,
    seed: int,
    suffixes: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, list[Path]]:
    """The files that belong together of several inputs: those of directories and patterns by their names below them,
    without suffixes, and files that were named one by one in their order.

    Args:
        asked: Paths by the name of the input.
        samples: As for :func:`open_pictures`, of the first input.
        seed: Likewise.
        suffixes: Those of files that directories are searched for, by the name of the input; of images if None.

    Raises:
        ErfscopeError: a file of one input without one of another.
    """
    searched = suffixes or dict.fromkeys(asked, SUFFIXES)
    every = {name: _by_key(paths, searched[name]) for name, paths in asked.items()}
    first, *others = every
    for name in others:
        for one, two in ((first, name), (name, first)):
            if lonely := [file for key, file in every[one].items() if key not in every[two]]:
                more = f" and {len(lonely) - 1} more have" if len(lonely) > 1 else " has"
                raise ErfscopeError(
                    f"{str(lonely[0])!r} of {one}{more} no partner among the images of {two}: files of folders are"
                    " paired by their names, files that are named one by one in their order"
                )
    keys = {file: key for key, file in every[first].items()}
    files = image_files(asked[first], samples=samples, seed=seed, suffixes=searched[first])
    chosen = [keys[file] for file in files]
    return {name: [every[name][key] for key in chosen] for name in asked}


def _by_key(paths: str | Path | Sequence[str | Path], suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Every file that paths name, by what pairs it with another input's."""
    found = [find(path, suffixes) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    return {
        f"{place}" if entry.named else f"{place}:{_without_suffix(key)}": file
        for place, entry in enumerate(found)
        for file, key in zip(entry.files, entry.keys, strict=True)
    }


def _without_suffix(key: str) -> str:
    return os.path.splitext(re.sub(r"(?i)(\.nii)\.gz$", r"\1", key))[0]  # noqa: PTH122 (a key is no path)


def _chosen(
    paths: str | Path | Sequence[str | Path], *, samples: int | None, seed: int, suffixes: tuple[str, ...]
) -> tuple[list[FoundFiles], list[Path], int]:
    """What each path names, the files that are taken, and of how many."""
    at_least_one(samples)
    found = [find(path, suffixes) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if not found:
        raise ErfscopeError(
            "no images were given; give images=PATH or synthetic='leaves' (--image PATH or --synthetic leaves)"
        )
    known: set[str] = set()
    named = _candidates([entry for entry in found if entry.named], known)
    pool = _candidates([entry for entry in found if not entry.named], known)
    if samples is not None and samples < len(named):
        files = _sample(named, samples, seed)
    else:
        files = [*named, *_sample(pool, DEFAULT_SAMPLES if samples is None else samples - len(named), seed)]
    return found, files, len(known)


def _candidates(found: Iterable[FoundFiles], known: set[str]) -> dict[Path, str]:
    """Each file that is not ``known`` yet, with the key that it is sampled by."""
    candidates: dict[Path, str] = {}
    for place, entry in enumerate(found):
        for file, key in zip(entry.files, entry.keys, strict=True):
            absolute = os.path.abspath(file)  # noqa: PTH100 (Path.absolute keeps "..")
            if absolute not in known:
                known.add(absolute)
                candidates[file] = f"{place}:{key}"
    return candidates


def _sample(candidates: dict[Path, str], count: int, seed: int) -> list[Path]:
    """The ``count`` candidates whose hash comes first, in that order."""

    def rank(file: Path) -> bytes:
        return hashlib.sha256(f"{seed}:{candidates[file]}".encode(errors="surrogateescape")).digest()

    return sorted(candidates, key=rank)[:count]


def _describe(found: Sequence[FoundFiles], files: Sequence[Path], noun: str, known: int, seed: int) -> str:
    taken = len(files)
    if known == 1:
        return str(files[0])
    where = ", ".join(repr(entry.asked) for entry in found if not entry.named)
    place = f" in {where}" if where else ""
    return f"{taken} {noun}{place}" if taken == known else f"{taken} of {known} {noun}{place} (seed {seed})"


def _draw(files: Sequence[Path], crop: Crop, channels: int, index: int) -> Pixels:
    if frames := frames_of(files[index]):
        shown = _shown(files[index], frames, crop, channels)
        return np.stack([_draw(shown, crop, channels, at)[0] for at in range(len(shown))])
    picture = read_picture(files[index], channels=channels)
    try:
        return fit(picture, crop, channels=channels)
    except ErfscopeError as error:
        raise ErfscopeError(f"cannot use {str(files[index])!r}: {error}") from error


def _largest(files: Sequence[Path], crop: Crop, channels: int, index: int) -> tuple[int, int]:
    """The largest value of an image, or of a clip's frames, and the largest that it may have."""
    frames = frames_of(files[index])
    shown = _shown(files[index], frames, crop, channels) if frames else [files[index]]
    return max(map(largest_value, shown))


def _shown(folder: Path, frames: Sequence[Path], crop: Crop, channels: int) -> Sequence[Path]:
    """The frames that a clip takes of a directory, those in the middle."""
    length = len(_draw(frames[:1], crop, channels, 0))
    first = (len(frames) - length) // 2
    if first < 0:
        raise ErfscopeError(
            f"{str(folder)!r} is a clip of {len(frames)} frames, and the input has {length}; give more frames or a"
            f" smaller input; a pattern such as '{folder / '*'}' shows each image as a clip of equal frames"
        )
    return frames[first : first + length]


def sha256_of(files: Sequence[Path]) -> str:
    """Hash of the bytes of files, one after the other; of a directory those of all files below it, by their paths."""
    digest = hashlib.sha256()
    for file in files:
        for part in sorted(file.rglob("*")) if file.is_dir() else [file]:
            try:
                with part.open("rb") as opened:
                    while block := opened.read(1 << 20):
                        digest.update(block)
            except OSError:  # Has no bytes to hash; pixels() raises for it.
                continue
    return digest.hexdigest()

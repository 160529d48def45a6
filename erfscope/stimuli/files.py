"""Images from files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path

from erfscope.errors import ErfscopeError
from erfscope.stimuli.decode import Crop, fit, read_picture, refuse_channels
from erfscope.stimuli.picture import Pixels, Stimuli, at_least_one
from erfscope.stimuli.search import Found, find

#: How many files are taken from directories and patterns unless a number is asked for.
DEFAULT_SAMPLES = 20


def open_images(
    paths: str | Path | Sequence[str | Path], *, samples: int | None, seed: int, crop: Crop, channels: int
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

    Returns:
        The images. A damaged file raises in :meth:`Stimuli.pixels`, not here.

    Raises:
        ErfscopeError: a missing path, a directory or pattern without images, fewer than one sample, another number of
            channels.
    """
    at_least_one(samples)
    refuse_channels(channels)
    found = [find(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if not found:
        raise ErfscopeError("no images were given; give --image PATH or --synthetic leaves")
    known: set[str] = set()
    named = _candidates([entry for entry in found if entry.named], known)
    pool = _candidates([entry for entry in found if not entry.named], known)
    if samples is not None and samples < len(named):
        files = _sample(named, samples, seed)
    else:
        files = [*named, *_sample(pool, DEFAULT_SAMPLES if samples is None else samples - len(named), seed)]
    return Stimuli(
        kind="image",
        names=tuple(map(str, files)),
        source=_describe(found, files, len(known), seed),
        draw=partial(_draw, files, crop, channels),
        digest=cache(partial(_sha256, files)),
        is_one_file=len(known) == 1,
    )


def _candidates(found: Iterable[Found], known: set[str]) -> dict[Path, str]:
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


def _describe(found: Sequence[Found], files: Sequence[Path], known: int, seed: int) -> str:
    taken = len(files)
    if known == 1:
        return str(files[0])
    where = ", ".join(repr(entry.asked) for entry in found if not entry.named)
    place = f" in {where}" if where else ""
    return f"{taken} images{place}" if taken == known else f"{taken} of {known} images{place} (seed {seed})"


def _draw(files: Sequence[Path], crop: Crop, channels: int, index: int) -> Pixels:
    picture = read_picture(files[index], channels=channels)
    try:
        return fit(picture, crop, channels=channels)
    except ErfscopeError as error:
        raise ErfscopeError(f"cannot use {str(files[index])!r}: {error}") from error


def _sha256(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as opened:
                while part := opened.read(1 << 20):
                    digest.update(part)
        except OSError:  # Has no bytes to hash; pixels() raises for it.
            continue
    return digest.hexdigest()

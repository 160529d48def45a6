"""The baseline file: sorted JSON that people can read, merge and commit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta, Struct

from erfscope.apps.gate import structure as structures
from erfscope.apps.gate.lock import locked
from erfscope.apps.gate.structure import Structure
from erfscope.core import MEASURES, ErfscopeError, MeasureValue, Result, environment, from_json, to_json
from erfscope.show import write

#: Settings as they were asked for: a result holds none of them, or only what they led to.
ASKED = ("layer", "unit", "model_kwargs")
#: The cause of a verdict on an entry that was measured under other settings.
SETTINGS_CHANGED = "settings changed"
#: Significant digits that are stored: float32 has no more, and a diff of two baselines can be read.
DIGITS = 7


class BaselineQuestion(TypedDict):
    """The settings of every check."""

    model: str
    insert: str | None
    wrt: str
    input_size: Sequence[int]


class Protocol(BaselineQuestion, total=False):
    """The settings of a check; those from the convention on exist only where images were shown."""

    #: As they were asked for.
    layer: str | None
    unit: str
    model_kwargs: Mapping[str, Any] | None
    convention: str
    method: str
    alpha: float | None
    stimuli: str
    samples: Annotated[int, Meta(ge=1)]
    draws: int | str
    seed: int
    dtype: str
    amp_dtype: str | None
    #: "own" are identified by their hash.
    weights: Literal["random", "random-raw", "own"]
    #: Options that are not the default, by name.
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMeasure:
    """One measure as a baseline keeps it."""

    #: None where the measure does not exist for the map.
    value: float | None
    #: Standard error; None where there is none.
    se: float | None
    #: Usable images, or draws where the error is over draws.
    n: Annotated[int, Meta(ge=0)]
    over: Literal["images", "draws"]
    #: "px", "mm" and the like; "" where it is that of images.
    unit: str = ""
    #: Values without one group of images (or draws) each.
    leave_one_out: Annotated[tuple[float, ...], Meta(max_length=10)] = ()

    def as_measured(self, name: str) -> MeasureValue:
        """The value as a measured one, for the statistics of differences."""
        return MeasureValue(value=self.value, se=self.se, leave_one_out=self.leave_one_out, kind=MEASURES[name].kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreImages:
    """A check's measures over more images than its protocol has; these are the first of them."""

    samples: Annotated[int, Meta(ge=1)]
    #: As in the protocol.
    stimuli: str
    measures: Mapping[str, BaselineMeasure]


class UsedWeights(TypedDict, total=False):
    """The source of a model's weights; empty where none were needed."""

    source: str
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEntry:
    """All that a baseline keeps of one check, or that a check finds."""

    #: The settings; only entries of the same settings can be compared.
    protocol: Mapping[str, Any] = field(default_factory=dict)
    structure: Structure | None = None
    weights: UsedWeights = field(default_factory=UsedWeights)
    measures: Mapping[str, BaselineMeasure] = field(default_factory=dict)
    #: The same over more and more images, for checks that the first ones do not decide.
    more: tuple[MoreImages, ...] = ()
    #: Versions, device, threads, hash of the first image's pixels: they may differ.
    recorded: Mapping[str, str | int | None] = field(default_factory=dict)
    #: Why there is nothing to compare. Such an entry is never stored.
    unusable: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, options that are not the default among them."""
        asked = dict(self.protocol)
        options: Mapping[str, Any] = asked.pop("options", {})
        if self.weights.get("source") == "factory" and "weights" in asked:
            # Not known to be trained, unlike other weights of a model's own.
            asked["weights"] = "factory"
        return asked | {
            name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in options.items()
        }

    def over(self, samples: object) -> BaselineEntry:
        """The entry over so many images; itself where these are its own, or unknown to it."""
        for found in self.more:
            if found.samples == samples:
                protocol = {**self.protocol, "samples": found.samples, "stimuli": found.stimuli}
                return replace(self, protocol=protocol, measures=found.measures, more=())
        return self

    def to_json(self) -> dict[str, Any]:
        """The entry that ``schema/baseline-1.json`` describes."""
        left_out = {"unusable"} if self.more else {"unusable", "more"}
        return {name: value for name, value in sorted(to_json(self).items()) if name not in left_out}


def entry_of(
    result: Result, *, asked: Mapping[str, Any] | None = None, names: Sequence[str] | None = None
) -> BaselineEntry:
    """The entry of a result.

    Args:
        result: The result.
        asked: :data:`ASKED` as they were asked for.
        names: The measures to keep; all numbers if None.

    Returns:
        The entry, ``unusable`` where the result is not ok or some images gave NaN.
    """
    result.compute(names or ())
    kept = [name for name in (result.measures if names is None else names) if name in result.measures]
    return BaselineEntry(
        protocol={**_protocol(result), **(asked or {})},
        structure=structures.structure_of(result),
        weights={"source": result.weights.source, "sha256": result.weights.sha256},
        measures={name: _recorded(result, name) for name in kept if not isinstance(result[name].value, str)},
        recorded=_circumstances(result),
        unusable=_unusable(result),
    )


def _unusable(result: Result) -> str | None:
    broken = next((finding.text for finding in result.findings if finding.code == "nan_images"), None)
    return None if result.ok and broken is None else result.error or broken or f"the result is {result.status}"


def _protocol(result: Result) -> dict[str, Any]:
    """The settings that a result holds; a model that failed was shown no images, and has none of theirs."""
    source, shown = result.weights.source, result.input
    found = {
        "model": result.model,
        # Random weights differ in whether zero-initialised branches are switched on; all other weights are the model's
        # own, which their hash identifies.
        "weights": source if source in ("random", "random-raw") else "own",
        "insert": result.insert,
        "alpha": result.alpha,
        "input_size": shown.size,
        "stimuli": shown.stimuli,
        "samples": shown.n_images,
        "draws": shown.n_draws,
        **{name: getattr(result, name) for name in ("wrt", "convention", "method", "seed", "dtype", "amp_dtype")},
        **({"options": result.options} if result.options else {}),
    }
    if not shown.n_images:
        found = {name: value for name, value in found.items() if name in BaselineQuestion.__annotations__}
    document: dict[str, Any] = to_json(found)
    return document


def _recorded(result: Result, name: str) -> BaselineMeasure:
    measure, pictures = result[name], result.input
    drawn = pictures.n_draws if isinstance(pictures.n_draws, int) else 1
    return BaselineMeasure(
        value=_rounded(measure.value),
        se=_rounded(measure.se),
        n=drawn if result.se_over == "draws" else pictures.n_images - pictures.n_dead,
        over=result.se_over,
        unit="" if measure.unit == MEASURES[name].unit else measure.unit,
        leave_one_out=tuple(float(f"{value:.{DIGITS}g}") for value in measure.leave_one_out),
    )


def _rounded(value: object) -> float | None:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else None


def _circumstances(result: Result) -> dict[str, Any]:
    """Versions, device and the like, which may differ from one machine to the next, as a flat mapping."""
    around = environment()
    found = {**around["versions"], **{name: around[name] for name in ("python", "system", "threads")}}
    found |= {"device": result.device, "transform": result.input.transform}
    if result.picture is not None:
        found["pixels"] = hashlib.sha256(np.asarray(result.picture).tobytes()).hexdigest()
    return found


SCHEMA = "erfscope.baseline/1"
#: The default name of a baseline.
FILE = "erf-baseline.json"


class StoredBaseline(Struct, frozen=True, kw_only=True):
    """The file's content; each entry is read by itself, as a :class:`~erfscope.apps.gate.baseline.BaselineEntry`."""

    schema: str
    entries: Mapping[str, Mapping[str, Any]]


def read(path: Path) -> dict[str, BaselineEntry]:
    """Every entry of a baseline by its name.

    Args:
        path: The file; one that does not exist has no entries.

    Raises:
        ErfscopeError: it cannot be read, holds a merge conflict, is damaged, or is of another version.
    """
    try:
        if path.exists() and not path.is_file():
            # A device may have no end.
            raise OSError("it is not a file")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ErfscopeError(
            f"cannot read the baseline {path}: {str(error)[:120]}; move it away, or name another file"
        ) from error
    if any(line.startswith("<<<<<<<") for line in text.splitlines()):
        raise ErfscopeError(
            f"the baseline {path} holds a merge conflict; take either side of it, then check again and accept"
            " what is found"
        )
    try:
        document = from_json(text.encode())
        _refuse_other(document, path)
        entries = from_json(document, StoredBaseline, "the baseline").entries
        found = {name: from_json(entry, BaselineEntry, f"entry {name[:40]!r}") for name, entry in entries.items()}
        if incomplete := [name for name, entry in found.items() if entry.structure is None]:
            raise ValueError(f"entry {incomplete[0][:40]!r} has no structure")
        return found
    except (ValueError, TypeError, RecursionError) as error:
        what = f"{type(error).__name__}: {str(error)[:120]}"
        raise ErfscopeError(
            f"the baseline {path} is damaged ({what}); restore it, or delete it and check once more"
        ) from error


def update(path: Path, entries: Mapping[str, BaselineEntry]) -> None:
    """Put entries into a baseline, beside those of other names that it holds when it is written.

    The file is there whole or not at all, and of two processes that update it neither loses what the other wrote.

    Args:
        path: The file; made where it does not exist.
        entries: By name. None of them may be unusable.

    Raises:
        ErfscopeError: the file cannot be read or written.
        ValueError: an entry without anything to compare with.
    """
    for name, entry in entries.items():
        if entry.unusable is not None or entry.structure is None:
            raise ValueError(f"{name!r} holds nothing that could be compared with: {entry.unusable}")
    target = path.resolve()
    with locked(target):
        write(target, baseline_bytes({**read(target), **entries}), force=True)


def baseline_bytes(entries: Mapping[str, BaselineEntry]) -> bytes:
    """The text of a baseline: keys sorted, one value per line, lists of numbers on one line."""
    document = {"schema": SCHEMA, "entries": {name: entry.to_json() for name, entry in entries.items()}}
    return (_text(document) + "\n").encode()


def _text(value: Any, indent: int = 0) -> str:
    """JSON with one line per value of an object; a list, which is one value in a merge, stays on one line."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = " " * (indent + 1)
    lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_text(value[key], indent + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"


def _refuse_other(document: Any, path: Path) -> None:
    found = document.get("schema") if isinstance(document, dict) else None
    if found != SCHEMA:
        raise ErfscopeError(
            f"{path} is not an erfscope baseline of this version: its schema is {found!r}, not {SCHEMA!r}; install"
            " the erfscope that wrote it, or name another file"
        )

"""What may stand in one table: the same pixels, the same convention, the same kind of weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from erfscope.errors import MeasurementError
from erfscope.finding import Finding
from erfscope.geometry.box import size_text
from erfscope.geometry.transform_text import pixels_text
from erfscope.results.json_values import fields
from erfscope.results.result import Result


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the conditions that a result was measured under."""

    #: In messages.
    name: str
    of: Callable[[Result], object]
    #: Whether two rows of one table must agree in it.
    comparable: bool = False
    #: Whether a run that was stopped, or the shards of one, go on with the same value only.
    resumable: bool = False
    #: Whether it may vary within one model: the name of a column then.
    swept: bool = False


#: Everything that results may have to agree in. Some stand here twice, seen more or less closely.
SETTINGS = (
    Setting("model", lambda r: r.model, resumable=True),
    Setting("weights", lambda r: fields(r.weights), resumable=True),
    Setting("weights", lambda r: r.weights.source, swept=True),
    Setting("inserted blocks", lambda r: (r.insert, r.alpha), resumable=True),
    Setting("input size", lambda r: r.input.size, resumable=True),
    Setting("input size", lambda r: size_text(r.input.size), comparable=True),
    Setting("input", lambda r: size_text(r.input.size), swept=True),
    Setting("pictures", lambda r: (r.input.source, r.input.sha256), resumable=True),
    Setting("pictures (sha256)", lambda r: (r.input.sha256 or "")[:12], comparable=True),
    Setting("resize and crop", lambda r: r.input.transform, resumable=True),
    # The hash is that of the files, before they were resized.
    Setting("resize and crop", lambda r: pixels_text(r.input.transform), comparable=True),
    Setting("number of images", lambda r: r.input.n_images, comparable=True),
    Setting("draws", lambda r: r.input.n_draws, comparable=True, resumable=True),
    Setting("reference", lambda r: "image" if r.wrt == "image" else "feature map", comparable=True),
    Setting("reference", lambda r: r.wrt, resumable=True, swept=True),
    # Layers and units have names of their own in every model.
    Setting("layer", lambda r: (r.layer, r.unit and (r.unit.index, r.unit.map_shape)), resumable=True),
    Setting("layer", lambda r: r.layer, swept=True),
    Setting("unit", lambda r: None if r.unit is None else r.unit.index, swept=True),
    Setting("theoretical field", lambda r: r.trf, resumable=True),
    Setting("convention", lambda r: r.convention, comparable=True, resumable=True, swept=True),
    Setting("method", lambda r: r.method, comparable=True, resumable=True),
    Setting("seed", lambda r: r.seed, comparable=True, resumable=True),
    Setting("dtype", lambda r: (r.dtype, r.amp_dtype), resumable=True),
    Setting("dtype", lambda r: r.dtype, comparable=True),
    Setting("amp dtype", lambda r: r.amp_dtype, comparable=True),
)
RESUMABLE = tuple(setting for setting in SETTINGS if setting.resumable)
#: Both are random weights, but only the first switches on what is zero at initialisation.
RANDOM = ("random", "random-raw")


def differing(first: Result, other: Result) -> list[str]:
    """The settings that two results do not share, with both values, in words."""
    values = [(each.name, each.of(first), each.of(other)) for each in SETTINGS if each.comparable]
    return [f"{name} ({ours} against {theirs})" for name, ours, theirs in values if ours != theirs]


def unlike(settings: Iterable[Setting], first: Result, other: Result) -> list[tuple[str, str, str]]:
    """The settings that two results do not share, as (name, value, value) in short words."""
    return [(each.name, short(each.of(first)), short(each.of(other))) for each in settings if each.of(first) != each.of(other)]


def short(value: object) -> str:
    """A value of a setting, cut to what fits a sentence."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_stopped(result: Result) -> bool:
    """Whether it has fewer pictures than were asked for, since somebody stopped it."""
    return result.part is not None and result.part.stopped


def paired(first: Result, other: Result) -> bool:
    """Whether the difference of two results means something, and its error is that of pairs: both usable, on the same pixels."""
    return first.ok and other.ok and not differing(first, other)


def refuse_mismatch(results: Sequence[Result]) -> None:
    """Refuse rows that were measured under different settings.

    Raises:
        MeasurementError: names the settings that differ, with both values.
    """
    usable = [result for result in results if result.ok and not is_stopped(result)]
    for result in usable[1:]:
        found = differing(usable[0], result)
        if found:
            # Drawn pictures are others at another size; what else differs needs both to be measured again.
            only_size = found[0].startswith("input size") and all(text.startswith(("input size", "pictures")) for text in found)
            fix = (
                f"measure both with --input-size {size_text(usable[0].input.size)}" if only_size else "measure both with the same settings"
            )
            raise MeasurementError(
                f"{result.label} cannot be compared with {usable[0].label}: they differ in {', '.join(found)}; {fix}, or name the models "
                "themselves: one resize and crop then serves all of them"
            )


def with_versions(rows: Sequence[Result]) -> list[Result]:
    """Rows, of which those that were measured with other versions than the first one say so."""
    first = next((row.versions for row in rows if row.versions), {})
    found = []
    for row in rows:
        unlike = [
            f"{name} {version} and not {first.get(name)}" for name, version in (row.versions or {}).items() if version != first.get(name)
        ]
        finding = Finding(code="versions", text=f"measured with other versions than the first row: {', '.join(unlike[:4])}")
        found.append(replace(row, warnings=(*row.warnings, finding)) if unlike and finding not in row.warnings else row)
    return found


def refuse_mixed_random(entries: Sequence[tuple[str, Sequence[Result]]]) -> None:
    """Refuse random weights with re-activated branches beside raw ones, unless one entry was measured under both.

    Args:
        entries: (label, rows) of every entry.

    Raises:
        MeasurementError: names two entries that share no kind of random weights.
    """
    kinds = [(label, {row.weights.source for row in rows if row.ok} & set(RANDOM)) for label, rows in entries]
    kinds = [(label, found) for label, found in kinds if found]
    for label, found in kinds[1:]:
        first, ours = kinds[0]
        if not ours & found:
            raise MeasurementError(
                f"{label} cannot be compared with {first}: they differ in weights ({'/'.join(ours)} against {'/'.join(found)}), of which "
                "only random switches on the branches that are zero at initialisation; measure both with the same --weights"
            )


def one_unit_word(entries: Sequence[tuple[str, object]]) -> str | None:
    """The word for the units that all entries were asked for.

    A word and not an index: the same unit of two models may have another index, since it is the place in the picture that counts.

    Args:
        entries: (label, unit as asked for) of every entry; None where nobody knows.

    Returns:
        The word in one spelling, ``"centre"`` or ``"0,0"``; None if none is known.

    Raises:
        MeasurementError: two entries were asked for different units.
    """
    known = [(label, _unit_word(word)) for label, word in entries if word is not None]
    for label, word in known[1:]:
        if word != known[0][1]:
            raise MeasurementError(
                f"{label} cannot be compared with {known[0][0]}: they differ in the unit asked for ({known[0][1]} against {word}); "
                "measure both with the same --unit"
            )
    return known[0][1] if known else None


def _unit_word(word: object) -> str:
    text = word if isinstance(word, str) else ",".join(map(str, word)) if isinstance(word, list | tuple) else str(word)
    # An index may be written 3,3 or 3x3.
    text = re.sub(r"(?<=\d)x(?=-?\d)", ",", re.sub(r"\s", "", text.lower()))
    return text.replace("center", "centre")


def refuse_mixed_weights(weights: Sequence[tuple[str, Any]]) -> None:
    """Refuse a comparison in which some models fell back to random weights and others have trained ones, or their own.

    Args:
        weights: (label, weights record) of every model and stored result.

    Raises:
        MeasurementError: names the models that fell back.
    """
    fell = list(dict.fromkeys(label for label, record in weights if record.fallback))
    # Random weights that were asked for are what a fallback gives.
    others = [label for label, record in weights if not record.fallback and record.source != RANDOM[0]]
    if fell and others:
        reason = next(record.reason for _, record in weights if record.fallback)
        raise MeasurementError(
            f"pretrained weights are missing for {', '.join(fell)} ({reason}) but not for the others, and trained models are not compared "
            f"with random ones; measure all of them with --weights random to compare architectures"
        )

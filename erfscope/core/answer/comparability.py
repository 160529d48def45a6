"""Which results may be compared: those of the same pixels, the same convention and the same kind of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from functools import partial

from erfscope.core.answer.json_values import fields
from erfscope.core.answer.result import Result
from erfscope.core.values.errors import MeasurementError
from erfscope.core.values.finding import Finding
from erfscope.core.values.model_facts import Weights
from erfscope.core.values.names import is_input
from erfscope.core.values.unit import size_text, unit_word


class Use(Flag):
    """Purposes for which two results must agree in a condition."""

    #: To be rows of one table.
    COMPARE = auto()
    #: To be one run: one that was stopped goes on with the same value only, and so do the shards of one.
    RESUME = auto()
    #: To be parts of one run, beside that.
    MERGE = auto()
    #: To be the same row of one model: conditions that a sweep may vary, by the names of its columns.
    SWEEP = auto()


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition under which a result was measured."""

    #: In messages.
    name: str
    of: Callable[[Result], object]
    uses: Use
    #: The option of which it is one value, if all models may be measured under several; "" otherwise.
    option: str = ""


#: Both are random weights, but only the first switches on what is zero at initialisation.
RANDOM = ("random", "random-raw")
_ALL = Use.COMPARE | Use.RESUME
#: All conditions. Some stand here twice, in more and in less detail.
CONDITIONS = (
    Condition("model", lambda r: r.model, Use.RESUME),
    Condition("weights", lambda r: fields(r.weights), Use.RESUME),
    Condition("weights", lambda r: r.weights.source, Use.SWEEP, option="weights"),
    Condition("inserted blocks", lambda r: (r.insert, r.alpha), Use.RESUME),
    Condition("input size", lambda r: r.input.size, Use.RESUME, option="input_size"),
    Condition("input size", lambda r: size_text(r.input.size), Use.COMPARE),
    Condition("input", lambda r: size_text(r.input.size), Use.SWEEP),
    Condition("images", lambda r: (r.input.source, r.input.sha256), Use.RESUME),
    Condition("images (sha256)", lambda r: (r.input.sha256 or "")[:12], Use.COMPARE),
    Condition("resize and crop", lambda r: r.input.transform, Use.RESUME),
    # The hash is that of the files, before they were resized.
    Condition("resize and crop", lambda r: r.input.resize, Use.COMPARE),
    Condition("number of images", lambda r: r.input.n_images, Use.COMPARE),
    Condition("draws", lambda r: r.input.n_draws, _ALL),
    Condition("reference", lambda r: "image" if is_input(r.wrt) else "feature map", Use.COMPARE),
    Condition("reference", lambda r: r.wrt, Use.RESUME | Use.SWEEP, option="wrt"),
    # Layers and units have names of their own in every model.
    Condition("layer", lambda r: (r.layer, r.unit and (r.unit.kind, r.unit.index, r.unit.map_shape)), Use.RESUME),
    Condition("layer", lambda r: r.layer, Use.SWEEP),
    Condition("unit", lambda r: None if r.unit is None else (r.unit.kind, *r.unit.index), Use.SWEEP),
    Condition("theoretical receptive field (TRF)", lambda r: r.trf, Use.RESUME),
    Condition("convention", lambda r: r.convention, _ALL | Use.SWEEP, option="convention"),
    Condition("method", lambda r: r.method, _ALL),
    Condition("seed", lambda r: r.seed, _ALL),
    Condition("dtype", lambda r: (r.dtype, r.amp_dtype), Use.RESUME),
    Condition("dtype", lambda r: r.dtype, Use.COMPARE),
    Condition("amp dtype", lambda r: r.amp_dtype, Use.COMPARE),
    # A message names the first that differ: what a user asked for stands before what follows from it.
    Condition("number of images", lambda r: r.part and (r.part.n_all, r.part.text), Use.MERGE),
    Condition("measures", lambda r: r.part and r.part.measures, Use.MERGE),
    Condition("number of shards", lambda r: r.part and r.part.shard and r.part.shard.of, Use.MERGE),
)


def conditions_for(uses: Use, *results: Result) -> list[Condition]:
    """The conditions that serve any of some uses, with the options that any of these results was measured with."""
    names = sorted({name for result in results for name in result.options}) if uses & _ALL else []
    options = [Condition(name.replace("_", " "), partial(_option, name), _ALL) for name in names]
    return [*(each for each in CONDITIONS if each.uses & uses), *options]


def _option(name: str, result: Result) -> object:
    return result.options.get(name)


def values(result: Result, uses: Use) -> tuple[tuple[str, object], ...]:
    """The values of a result in the conditions for some uses: equal for two results that agree."""
    return tuple((each.name, each.of(result)) for each in conditions_for(uses, result))


def place_of(result: Result) -> tuple[object, ...]:
    """Identifies a result among those of its report; the same when it is measured again."""
    return result.label, result.alpha, values(result, Use.SWEEP)


def unlike(uses: Use, first: Result, other: Result) -> list[tuple[str, object, object]]:
    """The conditions that two results do not share, as (name, value, value)."""
    found = [(each.name, each.of(first), each.of(other)) for each in conditions_for(uses, first, other)]
    return [(name, ours, theirs) for name, ours, theirs in found if ours != theirs]


def differing(first: Result, other: Result) -> list[str]:
    """The conditions that two results of one table would have to share and do not, each with both values as text."""
    return [f"{name} ({ours} against {theirs})" for name, ours, theirs in unlike(Use.COMPARE, first, other)]


def short(value: object) -> str:
    """A value of a condition, cut to what fits a sentence."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_stopped(result: Result) -> bool:
    """Whether its run was stopped before the last image."""
    return result.part is not None and result.part.stopped


def paired(first: Result, other: Result) -> bool:
    """Whether two results have a paired difference: both are usable, and measured on the same pixels."""
    return first.ok and other.ok and not differing(first, other)


def refuse_mismatch(results: Sequence[Result]) -> None:
    """Refuse rows that were measured under different settings.

    Raises:
        MeasurementError: names the settings that differ, with both values.
    """
    usable = [result for result in results if result.ok and not is_stopped(result)]
    # Each of several inputs has images of its own.
    firsts = {result.wrt: result for result in reversed(usable) if is_input(result.wrt)}
    for result in usable:
        first = firsts.get(result.wrt, usable[0])
        found = {name for name, *_ in unlike(Use.COMPARE, first, result)}
        if found:
            # Drawn images are others at another size; what else differs needs both to be measured again.
            only_size = "input size" in found and found <= {"input size", "images (sha256)"}
            fix = (
                f"measure both with --input-size {size_text(first.input.size)}"
                if only_size
                else "measure both with the same settings"
            )
            raise MeasurementError(
                f"{result.label} cannot be compared with {first.label}: they differ in"
                f" {', '.join(differing(first, result))}; {fix}, or name the models themselves: one resize and crop"
                " then serves all of them"
            )


def with_versions(rows: Sequence[Result]) -> list[Result]:
    """Rows, with a finding on those that were measured with other versions than the first one."""
    first = next((row.versions for row in rows if row.versions), {})
    found = []
    for row in rows:
        unlike = [
            f"{name} {version} and not {first[name]}"
            for name, version in (row.versions or {}).items()
            if name in first and version != first[name]
        ]
        finding = Finding(
            code="versions", text=f"measured with other versions than the first row: {', '.join(unlike[:4])}"
        )
        found.append(replace(row, findings=(*row.findings, finding)) if unlike and finding not in row.findings else row)
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
                f"{label} cannot be compared with {first}: they differ in weights ({'/'.join(ours)} against"
                f" {'/'.join(found)}), of which only random switches on residual branches that start at zero; measure"
                " both with the same --weights"
            )


def one_unit_word(entries: Sequence[tuple[str, object]]) -> str | None:
    """The word for the units that all entries were asked for.

    Words are compared, not indices: the same place in the image has different indices in two models.

    Args:
        entries: (label, unit as asked for) of every entry; None if unknown.

    Returns:
        The word in one spelling, ``"centre"`` or ``"0,0"``; None if none is known.

    Raises:
        MeasurementError: two entries were asked for different units.
    """
    known = [(label, unit_word(word)) for label, word in entries if word is not None]
    for label, word in known[1:]:
        if word != known[0][1]:
            raise MeasurementError(
                f"{label} cannot be compared with {known[0][0]}: they differ in the unit asked for ({known[0][1]}"
                f" against {word}); measure both with the same --unit"
            )
    return known[0][1] if known else None


def refuse_mixed_weights(weights: Sequence[tuple[str, Weights]], asked: str) -> None:
    """Refuse a comparison in which some models have trained weights, or their own, and others random ones that nobody
    asked for: those that fell back, and factories' without a checkpoint. Of a module that is handed over nobody knows
    whether it is trained: it stands beside a factory's.

    Args:
        weights: (label, weights record) of every model and stored result.
        asked: The weights that were asked for.

    Raises:
        MeasurementError: names the models that fell back, or were made.
    """
    fell = list(dict.fromkeys(label for label, record in weights if record.fallback))
    made = list(dict.fromkeys(label for label, record in weights if record.source == "factory"))
    trained = [label for label, record in weights if record.source not in (*RANDOM, "factory")]
    known = [label for label, record in weights if record.source in ("pretrained", "checkpoint")]
    if made and known and asked not in RANDOM:
        raise MeasurementError(
            f"{', '.join(made)}: weights as the factory made them; no checkpoint was given, and trained models, such as"
            f" {known[0]}, are not compared with random ones; give trained weights with"
            f" checkpoint={{{made[0]!r}: 'FILE'}} (--checkpoint {made[0]}=FILE), or compare architectures with"
            " weights='random' (--weights random)"
        )
    # Random weights that were asked for are what a fallback gives.
    if fell and (trained or any(record.source == "random-raw" for _, record in weights)):
        reason = next(record.reason for _, record in weights if record.fallback)
        raise MeasurementError(
            f"pretrained weights are missing for {', '.join(fell)} ({reason}) but not for the others, and trained"
            " models are not compared with random ones; measure all of them with weights='random' (--weights random)"
            " to compare architectures"
        )


#: Measures minus those of another result, with the standard error of the difference; a measure is absent where there is
#: none.
Differences = Mapping[str, tuple[float | None, float | None]]

#: Conditions that a sweep may vary, by the names of its columns, and their values.
SWEPT = {condition.name: condition.of for condition in conditions_for(Use.SWEEP)}


def swept(results: Sequence[Result]) -> tuple[str, ...]:
    """The settings that vary within one model, by the names of :data:`SWEPT`; the layers of different models differ
    without a sweep."""
    by_label: dict[str, list[Result]] = {}
    for result in results:
        # A failed row may know neither its layer nor its unit.
        if result.unit is not None:
            by_label.setdefault(result.label, []).append(result)
    rows = by_label.values()
    found = [name for name, read in SWEPT.items() if any(len({read(row) for row in group}) > 1 for group in rows)]
    if "input" in found and not any(_varies_within_an_input(group) for group in rows):
        found.remove("input")
    if "unit" in found and not any(_varies_within_a_layer(group) for group in rows):
        found.remove("unit")
    return tuple(found)


def partners(results: Sequence[Result]) -> list[Result | None]:
    """The result that each one is compared with.

    That is the model without the inserted blocks, where there are any; where several reports hold a model under the
    same settings, the first one's result; in a sweep of one model its first result; and of several models the first
    one's result under the same settings: at the layer of the same stride, the last one if there are several, and at the
    same place in the list of units. None for what the others are compared with, and where the first model has no such
    result.

    Args:
        results: All results, in the order of the report.
    """
    hosts = {each.id: each for each in reversed(results)}
    by_label: dict[str, list[Result]] = {}
    for each in results:
        by_label.setdefault(each.label, []).append(each)
    varied = swept(results)
    return [
        hosts.get(each.host or "") or _same(by_label[each.label], each) or _partner(by_label, varied, each)
        for each in results
    ]


def _same(group: Sequence[Result], result: Result) -> Result | None:
    """The first of a model's results where this is another one of the same settings: it is of another report."""

    def is_same(other: Result) -> bool:
        return bool(other.unit and result.unit) and all(read(other) == read(result) for read in SWEPT.values())

    first = next(each for each in group if each is result or is_same(each))
    return None if first is result else first


def _partner(by_label: Mapping[str, Sequence[Result]], varied: Sequence[str], result: Result) -> Result | None:
    label, first = next(iter(by_label.items()))
    if len(by_label) == 1:
        return None if result is first[0] else first[0]
    if result.label == label:
        return None
    settings = [name for name in varied if name not in ("layer", "unit")]
    ours = [each for each in first if all(SWEPT[name](each) == SWEPT[name](result) for name in settings)]
    ours = [each for each in ours if _place(first, each) == _place(by_label[result.label], result)]
    if "layer" in varied:
        ours = [each for each in ours if each.unit and result.unit and each.unit.stride_px == result.unit.stride_px]
    return ours[-1] if ours else None


def _varies_within_an_input(group: Sequence[Result]) -> bool:
    """Whether a model was measured at several input sizes: several inputs may each have their own."""
    sizes: dict[str, set[object]] = {}
    for row in group:
        sizes.setdefault(row.wrt, set()).add(row.input.size)
    return any(len(found) > 1 for found in sizes.values())


def _varies_within_a_layer(group: Sequence[Result]) -> bool:
    """Whether several units of one layer were measured, at one input size: the central unit's index changes with
    both."""
    indices: dict[object, set[object]] = {}
    for row in group:
        indices.setdefault((row.layer, row.input.size, row.wrt), set()).add(SWEPT["unit"](row))
    return any(len(found) > 1 for found in indices.values())


def _place(group: Sequence[Result], result: Result) -> int:
    """Which unit of its map this is, counted in the order of the report among the model's results that differ in
    nothing else."""
    others = [name for name in SWEPT if name != "unit"]
    same = [each for each in group if all(SWEPT[name](each) == SWEPT[name](result) for name in others)]
    return next(number for number, each in enumerate(same) if each is result)

"""Several models as they are named: their labels, and what each has of its own beside the options of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from erfscope.adapters import split_label
from erfscope.adapters.requested import Model, name_of
from erfscope.adapters.sources.catalogue import model_names
from erfscope.adapters.sources.sources import split_layer, take_layer
from erfscope.core.answer.comparability import CONDITIONS, short
from erfscope.core.answer.json_values import to_json
from erfscope.core.answer.merge import is_shard, merge, run_of
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result
from erfscope.core.answer.storage.files import is_report, read
from erfscope.core.answer.storage.writing import REPORT
from erfscope.core.request.option import OF_EACH, Running
from erfscope.core.request.request import Request, is_several
from erfscope.core.request.settings import OPTIONS
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.values.errors import ErfscopeError, MeasurementError, unknown
from erfscope.core.values.printable import one_line
from erfscope.core.values.unit import size_text, unit_word
from erfscope.core.values.unit_kind import by_kind, kind_of

#: Options that neither measure nor change what was measured.
_HARMLESS = {*Running.__annotations__, "measures", "label", "unsafe_load", "device", "batch_size", "workers", "plain"}
_HARMLESS |= {"accept"}
#: Options whose values each row records, left out or not.
_RECORDED: dict[str, Callable[[Result], object]] = {each.option: each.of for each in CONDITIONS if each.option}
_RECORDED |= {name: attrgetter(name) for name in ("insert", "alpha", "method", "seed", "dtype", "amp_dtype")}
_RECORDED |= {
    "samples": lambda r: r.input.n_images,
    "draws": lambda r: r.input.n_draws,
    "input_size": lambda r: size_text(r.input.size),
    "layer": lambda r: r.layer,
    "checkpoint": lambda r: r.weights.origin,
    "synthetic": lambda r: r.input.source,
}


def named_models(models: Any, options: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], Mapping[str, Any]]:
    """Models with their labels, which differ, and the options with what each model has of its own.

    Args:
        models: One model, several, or by their labels, as for :func:`erfscope.compare`: a spec keeps a label before it,
            and gives the layer behind it to the options.
        options: The keywords of a public function.

    Returns:
        (label, model or stored report) each, and the options with layers and checkpoints by these labels.

    Raises:
        ErfscopeError: no model, a name that none has, or an option of a label that no model has.
    """
    return with_own(entries_of(models if isinstance(models, Mapping | list | tuple) else [models]), options)


def entries_of(models: Mapping[str, Model] | Sequence[Any]) -> list[tuple[str, Any]]:
    """(label, model or stored report), labels made distinct; a spec keeps the layer behind it."""
    named: list[tuple[Any, Any]] = (
        [*models.items()] if isinstance(models, Mapping) else [(None, model) for model in models]
    )
    pairs = [pair for label, m in named for pair in (_named(label, m) if isinstance(m, str) else [(label, m)])]
    if not pairs:
        raise ErfscopeError("nothing to compare; name at least one model or stored result")
    entries: list[tuple[str, Any]] = []
    paths = set[str]()
    for label, model in pairs:
        given = take_layer(model)[0]
        if isinstance(given, str | Path) and Path(given).name == REPORT:
            given = Path(given).parent
        if isinstance(model, Result):
            model = Report(results=(model,))
        elif isinstance(model, str | Path) and is_stored(model):
            model = read(model)
        if isinstance(model, Report) and label:
            model = replace(model, results=tuple(replace(result, label=one_line(label)) for result in model))
        name = label or name_of(given if isinstance(given, str | Path) else model)
        taken = sum(other == name or other.startswith(f"{name} #") for other, _ in entries)
        entries.append((f"{name} #{taken + 1}" if taken else name, model))
        if isinstance(given, str | Path):
            paths.add(entries[-1][0])
    return _with_folders_in_labels(_without_shards(entries), paths)


def is_stored(model: str | Path) -> bool:
    """Whether a model is named by its stored report."""
    return Path(model).suffix == ".json" or is_report(Path(model))


def _with_folders_in_labels(entries: list[tuple[str, Any]], stored: set[str]) -> list[tuple[str, Any]]:
    """The entries; of reports that were read from ``stored`` paths, with rows that are called as those of another
    entry, these have the report's folder in their labels."""
    labels = [{row.label for row in entry} if isinstance(entry, Report) else {label} for label, entry in entries]
    alike = [
        label in stored and any(own & other for other in labels if other is not own)
        for (label, _), own in zip(entries, labels, strict=True)
    ]
    paths = [Path(label).parts for (label, _), is_alike in zip(entries, alike, strict=True) if is_alike]
    # As much of the ends of paths as differs in all of them.
    longest = max(map(len, paths), default=0)
    kept = next((n for n in range(1, longest) if len({path[-n:] for path in paths}) == len(paths)), longest)
    renamed = []
    for (label, entry), is_alike in zip(entries, alike, strict=True):
        if is_alike and isinstance(entry, Report):
            folder = one_line(str(Path(*Path(label).parts[-kept:])))
            entry = replace(entry, results=tuple(replace(row, label=f"{row.label} ({folder})") for row in entry))
        renamed.append((label, entry))
    return renamed


def with_own(
    entries: Sequence[tuple[str, Any]], options: Mapping[str, Any]
) -> tuple[list[tuple[str, Any]], Mapping[str, Any]]:
    """The entries without the layers that specs name, and the options with these and checkpoints ``LABEL=FILE`` in
    mappings by label.

    Raises:
        ErfscopeError: a label that no model has.
    """
    taken = [(label, *take_layer(model)) for label, model in entries]
    labels, layers = [label for label, _ in entries], {label: layer for label, _, layer in taken if layer is not None}
    found = dict(options)
    if layers:
        shared = found.get("layer")
        found["layer"] = {**(shared if isinstance(shared, Mapping) else dict.fromkeys(labels, shared)), **layers}
    files = found.get("checkpoint")
    if isinstance(files, str | Path | list | tuple):
        files = [files] if isinstance(files, str | Path) else files
        pairs = [(next((each for each in labels if str(file).startswith(f"{each}=")), None), file) for file in files]
        found["checkpoint"] = {label: str(file)[len(label) + 1 :] for label, file in pairs if label is not None}
        named = Counter(label for label, _ in pairs if label is not None)
        if twice := [label for label, count in named.items() if count > 1]:
            raise ErfscopeError(f"the checkpoint of {', '.join(twice)} stands twice; leave one out")
        if plain := [file for label, file in pairs if label is None]:
            if len(labels) > 1 or len(files) > 1:
                raise ErfscopeError(
                    "of several models each has its own checkpoint: write checkpoint={'LABEL': 'FILE'} (--checkpoint"
                    f" LABEL=FILE), not {plain[0]}; the labels are {', '.join(labels)}"
                )
            found["checkpoint"] = plain[0]
    for name in OF_EACH:
        for label in found[name] if isinstance(found.get(name), Mapping) else ():
            if label not in labels:
                raise unknown("model", str(label), labels, where=f"the {name} of each")
    return [(label, model) for label, model, _ in taken], found


def _named(label: str | None, text: str) -> list[tuple[str | None, str]]:
    """(label, spec) of one argument: several where it is a pattern of timm's names."""
    if label is not None:
        return [(label, text)]
    label, spec = split_label(text)
    pattern, layer = split_layer(spec)
    if label is not None or not any(mark in pattern for mark in "*?[") or Path(spec).exists():
        return [(label, spec)]
    names = model_names(pattern)
    if not names:
        raise ErfscopeError(f"no model of timm is called {pattern!r}; `erfscope models` lists the names")
    return [(None, name if layer is None else f"{name}@{layer}") for name in names]


def _without_shards(entries: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The shards of each run as one entry, where its first shard stands.

    Raises:
        MeasurementError: they cannot be put together.
    """
    runs: dict[object, list[Report]] = {}
    for _, entry in entries:
        if isinstance(entry, Report) and is_shard(entry):
            runs.setdefault(run_of(entry), []).append(entry)
    merged: list[tuple[str, Any]] = []
    for label, entry in entries:
        if not (isinstance(entry, Report) and is_shard(entry)):
            merged.append((label, entry))
        elif (shards := runs.pop(run_of(entry), None)) is not None:
            merged.append((label, merge(shards)))
    return merged


def refuse_per_model(request: Request, count: int, of: str | None) -> None:
    """Refuse options that only one of several models can have."""
    if of is None and count > 1 and request.building.get("model_kwargs"):
        raise ErfscopeError(
            "model_kwargs= (--model-kwargs) belongs to one model: name a factory for each, or give the modules"
            " themselves to erfscope.compare"
        )


def refuse_unlike_stored(entries: Sequence[tuple[str, Any]], request: Request, asked: Mapping[str, Any]) -> None:
    """Refuse options with which stored results were not measured: all that were given where nothing is measured now,
    else those that each model may have of its own; the rows themselves show the others.

    Args:
        entries: (label, model or stored report).
        request: The options.
        asked: The same as JSON values.

    Raises:
        MeasurementError: names the first, with both values.
    """
    are_stored = all(isinstance(entry, Report) for _, entry in entries)
    names = [n for n in request.given if n not in _HARMLESS and (are_stored or n in OF_EACH)]
    for label, entry in entries:
        own = request.of_model(label)
        for name in names if isinstance(entry, Report) else ():
            value = request.given[name]
            value = value.get(label) if isinstance(value, Mapping) and name in OF_EACH else asked[name]
            if value is None or value is False:
                continue
            now, then = _asked_values(name, value, own, entry)
            if now is not None:
                flag = (*OPTIONS[name].option.flags, f"--{name.replace('_', '-')}")[0]
                raise MeasurementError(
                    f"{label} is stored: it was measured with {name.replace('_', ' ')} {short(then)}, not {short(now)};"
                    f" leave {name}= ({flag}) out, or name the model itself to measure it again"
                )


def _asked_values(name: str, value: object, own: Request, report: Report) -> tuple[str | None, str]:
    """A value as asked for, or None where a stored report has it, and the value that the report has."""
    several = {"layer": own.layers, "weights": own.weights, "convention": own.conventions, "wrt": own.references}
    rank = len(report[0].input.size) if len(report) else 0
    several["input_size"] = tuple(size_text(s * rank if len(s) == 1 else s) for s in own.sizes if s is not None)
    asked = {str(to_json(each, records=False)) for each in several.get(name, (value,))}
    rows = {str(_RECORDED[name](row)) for row in report if row.ok} if name in _RECORDED else set[str]()
    stored = report.settings.get(name, to_json(OPTIONS[name].default, records=False))
    alike = [value, to_json(getattr(own.settings, name, value), records=False)]
    if name == "unit":
        alike, stored = [unit_word(each) for each in alike], unit_word(stored)
    is_same = (stored in alike and (name in report.settings or name not in _RECORDED)) or (rows and rows <= asked)
    now = ", ".join(map(str, value)) if isinstance(value, list) else ", ".join(sorted(asked))
    return None if is_same else now, ", ".join(sorted(rows)) or ("none" if stored in (None, False) else str(stored))


def refuse_unknown_layers(models: Sequence[OpenModel], request: Request) -> None:
    """Refuse a layer by name that a model lacks, before any model is measured; blocks add layers later.

    Raises:
        ErfscopeError: names it, and how a model has a layer of its own.
    """
    for model in models if len(models) > 1 and not request.insert else ():
        for layer in request.of_model(model.label).layers:
            try:
                if layer is not None and not is_several(layer):
                    model.layer(by_kind(layer, kind_of(request.settings.unit)[0]))
            except MeasurementError:
                continue
            except ErfscopeError as error:
                raise ErfscopeError(f"{error}; LABEL=MODEL@LAYER gives a model a layer of its own") from error

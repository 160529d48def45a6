"""Many models, each measured in a process of its own: ``compare_isolated``."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from erfscope import comparison
from erfscope.adapter import Weights
from erfscope.adapters.catalogue import declared_size
from erfscope.adapters.weights import NO_NUMBERS
from erfscope.api.comparing import COMMON_SIZE, compared, entries_of, refuse_per_model
from erfscope.api.measuring import CALLS, FREE, asked_settings
from erfscope.api.opening import subject_of
from erfscope.convention import convention_of
from erfscope.errors import ErfscopeError
from erfscope.isolation import Journal, Limits, Outcome, Processes
from erfscope.options import Options, check, sizes, words
from erfscope.printable import one_line
from erfscope.ranks import current
from erfscope.report import PAGE, Report, read
from erfscope.result import InputRecord, Result, slug
from erfscope.serialise import plain, result_from_json, result_to_json
from erfscope.storage import REPORT, report_bytes, save_directory, write_bytes

#: Where unfinished work lies, inside the folder of the comparison.
WORK = ".run"
#: Up to how many rows a page and figures are made: beyond that nobody can look at them, and all maps would have to lie in memory.
DRAWN = 60


def compare_isolated(
    models: Sequence[str], folder: str | Path, *, limits: Limits | None = None, anew: bool = True, **options: Unpack[Options]
) -> Report:
    """Compare models that may crash, hang or take all memory: each is measured in a process of its own.

    Finished models are noted in ``folder/models.jsonl`` one by one, so that nothing is lost where the run is killed. Memory does not grow
    with the number of models.

    Args:
        models: Specs, ``LABEL=SPEC``, or patterns of timm's names.
        folder: Where everything is kept: the journal, ``report.json`` and a map per result; page and figures for up to 60 rows.
        limits: Of time and memory per model. A model that needs more is a row with that reason.
        anew: Whether the folder must be new. If not, what it has is gone on with: finished models, and failed ones, are not measured again.
        **options: As for :func:`erfscope.compare`, JSON values only.

    Returns:
        One result per model and setting, in the order given; without maps where there are more than 60.

    Raises:
        ErfscopeError: as for :func:`erfscope.compare`; the folder holds something else, or was begun with other settings.
        MeasurementError: only some of the models could have their pretrained weights.
    """
    check(options)
    if current().size > 1:
        raise ErfscopeError("models in processes of their own are not shared by ranks; start erfscope without torchrun")
    folder, limits = Path(folder), limits or Limits()
    entries = [(label, _spec(model)) for label, model in entries_of(models)]
    refuse_per_model(options, len(entries), None)
    _refuse_alike([label for label, _ in entries])
    given = _given(options, [spec for _, spec in entries])
    journal = _begun(folder, given, entries[0][1], anew=anew)
    stop, progress = options.get("stop"), options.get("progress")
    with Processes(limits) as processes:
        for number, (label, spec) in enumerate(entries):
            if progress is not None:
                progress("models", number, len(entries))
            if label in journal.models:
                continue
            work = folder / WORK / slug(label)
            work.mkdir(parents=True, exist_ok=True)
            what = {"label": label, "spec": spec, "options": given, "pixels_of": entries[0][1], "folder": str(work / "report")}
            outcome = processes.run("erfscope.api.isolating:work", what, log=work / "log", stop=stop)
            if stop is not None and stop():
                break
            journal.add(_noted(label, spec, outcome, work, folder, given, limits))
            shutil.rmtree(work, ignore_errors=True)
    if progress is not None:
        progress("models", len(journal.models), len(entries))
    found = [journal.models[label] for label, _ in entries if label in journal.models]
    return _reported(folder, found, [label for label, _ in entries], given)


def work(what: Mapping[str, Any]) -> None:
    """Measure one model, in the process that was made for it."""
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))
    folder = Path(what["folder"])
    options: Options = {**what["options"], "stop": lambda: bool(asked_to_stop)}  # type: ignore[typeddict-item]
    if (folder / REPORT).is_file():
        options["resume"] = folder
    try:
        pixels = None
        if options.get("images") is not None and what["spec"] != what["pixels_of"]:
            size = sizes(options.get("input_size"))[0]
            pixels = subject_of(what["pixels_of"], options, size=size, weights=NO_NUMBERS).adapter.preprocess
        report = compared([(what["label"], what["spec"])], options, pixels=pixels)
    except ErfscopeError as error:
        print(one_line(str(error)), file=sys.stderr)
        sys.exit(1)
    if report.results:
        save_directory(report.to_json, list(report.results), folder, others=[], force=True)


def _spec(model: object) -> str:
    if not isinstance(model, str):
        raise ErfscopeError(f"a model in a process of its own is named by a spec, not {type(model).__name__}; compare it without --isolate")
    return model


def _refuse_alike(labels: Sequence[str]) -> None:
    """Refuse labels whose files would be the same."""
    taken: dict[str, str] = {}
    for label in labels:
        name = slug(label).lower()
        if name in taken:
            raise ErfscopeError(f"{taken[name]!r} and {label!r} would be stored under one name; give one another label, LABEL=SPEC")
        taken[name] = label


def _given(options: Options, specs: Sequence[str]) -> dict[str, Any]:
    """The options of every model, as JSON values; the input size is that asked for, else the one that all models share, else 224."""
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in (*CALLS, "resume")}
    if given.get("input_size") is None:
        own = {declared_size(spec) for spec in specs}
        common = next(iter(own)) if len(own) == 1 else None
        given["input_size"] = list(common or COMMON_SIZE)
    images = given.get("images")
    if images is not None:
        given["images"] = [images] if isinstance(images, str) else [str(each) for each in images]
    found: dict[str, Any] = plain(given)
    return found


def _begun(folder: Path, given: Mapping[str, Any], first: str, *, anew: bool) -> Journal:
    """The journal of a new folder, or of one that was begun."""
    journal = Journal(folder)
    if folder.exists() and not folder.is_dir():
        raise ErfscopeError(f"{folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not journal.path.is_file():
            raise ErfscopeError(f"{folder} holds something else already; name another folder")
        if anew:
            raise ErfscopeError(f"{folder} was begun already; go on with --resume, or name another folder")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ErfscopeError(f"cannot create {folder}: {error.strerror or error}; choose another place") from error
    journal.open({"settings": {name: value for name, value in given.items() if name not in FREE}, "pixels_of": first})
    return journal


def _noted(label: str, spec: str, outcome: Outcome, work: Path, folder: Path, given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """A line of the journal: the results of a model whose maps now lie in the folder, or a row that says why there are none."""
    stored = work / "report"
    if outcome.ok and (stored / REPORT).is_file():
        results = json.loads((stored / REPORT).read_text(encoding="utf-8"))["results"]
        for file in stored.glob("*.npz"):
            file.replace(folder / file.name)
    else:
        results = [result_to_json(_lost(label, spec, outcome.why(limits), given))]
    return {"label": label, "model": spec, "seconds": round(outcome.seconds, 3), "results": results}


def _lost(label: str, spec: str, why: str, given: Mapping[str, Any]) -> Result:
    """The row of a model that gave no result."""
    convention = convention_of(words(given.get("convention", "jacobian"))[0])
    size = sizes(given["input_size"])[0] or COMMON_SIZE
    return Result(
        id=slug(label, "failed"),
        label=label,
        model=spec,
        status="error",
        error=why,
        weights=Weights(source="unknown"),
        input=InputRecord(size=size * 2 if len(size) == 1 else size, source="none", n_images=0, n_draws=0),
        layer="",
        unit=None,
        convention=convention.name,
        method=str(given.get("method", "gradient")),
        scale=convention.scale,
        seed=int(given.get("seed", 0)),
        dtype=str(given.get("dtype", "float32")),
    )


def _reported(folder: Path, found: Sequence[Mapping[str, Any]], labels: Sequence[str], given: Mapping[str, Any]) -> Report:
    """The report of what is finished, in the folder, and page and figures where all is finished and not too much."""
    stored = [entry for model in found for entry in model["results"]]
    rows = comparison.with_versions(_comparable([result_from_json({**entry, "map_file": None}) for entry in stored]))
    comparison.refuse_mixed_weights([(row.label, row.weights) for row in rows if row.ok])
    report = Report(results=tuple(rows), settings=asked_settings(list(labels), dict(given)))  # type: ignore[arg-type]
    document = report.to_json()
    for entry, original in zip(document["results"], stored, strict=True):
        entry |= {name: original[name] for name in ("map", "map_file")}
    write_bytes(folder / REPORT, report_bytes(document), force=True)
    if len(found) < len(labels) or not rows:
        return report
    shutil.rmtree(folder / WORK, ignore_errors=True)
    if len(rows) > DRAWN:
        return report
    from erfscope.figures import folder_figures
    from erfscope.page import html

    whole = read(folder)
    for name, content in [(PAGE, html(whole).encode()), *folder_figures(whole.results)]:
        write_bytes(folder / name, content, force=True)
    return whole


def _comparable(rows: Sequence[Result]) -> list[Result]:
    """Rows, of which those that were shown something else than the first one cannot be used."""
    first = next((row for row in rows if row.ok), None)
    found = []
    for row in rows:
        unlike = comparison.differing(first, row) if first is not None and row.ok else []
        text = "" if first is None else f"{row.label} cannot be compared with {first.label}: they differ in {', '.join(unlike[:3])}"
        found.append(replace(row, status="error", error=f"{text}; analyze it alone") if unlike else row)
    return found

"""Many models, each measured in a process of its own: ``compare_isolated``."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from erfscope.adapter import Weights
from erfscope.adapters.weights.weights import NO_NUMBERS
from erfscope.api.analysis import asked_settings
from erfscope.api.comparison import COMMON_SIZE, compared, entries_of, refuse_per_model
from erfscope.api.isolated_setup import WORK, as_json, made_place, open_run, resolve_input_size
from erfscope.api.models import load_model
from erfscope.api.save import PAGE
from erfscope.attribution.convention import convention_of
from erfscope.errors import EnvironmentFailure, ErfscopeError
from erfscope.isolation import Journal, Limits, Outcome, Processes
from erfscope.isolation.entry import is_worth_another_try, journal_line
from erfscope.isolation.order import comparable, groups_of, settings_in_order
from erfscope.model_errors import MODEL, ErrorCause, cause_of
from erfscope.options.keywords import Options, check, sizes, values_of
from erfscope.parallel import current
from erfscope.results import comparability
from erfscope.results.report import Report
from erfscope.results.result import InputRecord, Result, slug
from erfscope.storage.files import REPORT, report_bytes, save_directory, write_bytes
from erfscope.storage.json_format import result_from_json, result_to_json
from erfscope.storage.reports import read

#: Up to how many rows a page and figures are made: beyond that nobody can look at them, and all maps would have to lie
#: in memory.
DRAWN = 60


def compare_isolated(
    models: Sequence[str],
    folder: str | Path,
    *,
    limits: Limits | None = None,
    anew: bool = True,
    **options: Unpack[Options],
) -> Report:
    """Compare models that may crash, hang or take all memory: each is measured in a process of its own.

    Finished models are noted in ``folder/models.jsonl`` one by one, so that nothing is lost where the run is killed.
    Memory does not grow with the number of models.

    Args:
        models: Specs, ``LABEL=SPEC``, or patterns of timm's names.
        folder: Where everything is kept: the journal, ``report.json`` and a map per result; page and figures for up to
            60 rows.
        limits: Of time and memory per model. A model that needs more is a row with that reason.
        anew: Whether the folder must be new. If not, what it has is gone on with: finished models are not measured
            again, nor those that failed by themselves, unless ``retry_failed`` is set. Those that failed for lack of
            space, memory or time, or by a signal, are.
        **options: As for :func:`erfscope.compare`, JSON values only.

    Returns:
        One result per setting and model, in the order given; without maps where there are more than 60.

    Raises:
        ErfscopeError: as for :func:`erfscope.compare`; the folder holds something else, was begun with other settings,
            or is being filled by another run.
        MeasurementError: only some of the models could have their pretrained weights.
        EnvironmentFailure: there is no space to keep what was measured; what was finished before is there.
    """
    check(options)
    if current().size > 1:
        raise ErfscopeError("models in processes of their own are not shared by ranks; start erfscope without torchrun")
    folder, limits = Path(folder), limits or Limits()
    entries = [(label, _spec(model)) for label, model in entries_of(models)]
    refuse_per_model(options, len(entries), None)
    _refuse_alike([label for label, _ in entries])
    with Processes(limits) as processes, open_run(folder, anew=anew) as journal:
        given = resolve_input_size(
            journal, as_json(options), [spec for _, spec in entries], processes, options.get("stop")
        )
        if given is None:
            return Report(results=())
        _measure_all(entries, journal, processes, given, options, limits)
        found = [journal.models[label] for label, _ in entries if label in journal.models]
        try:
            return _reported(folder, found, [label for label, _ in entries], given)
        except (ErfscopeError, OSError) as error:
            if cause_of(error) == MODEL:
                raise
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise EnvironmentFailure(
                f"what was measured is kept in {folder}, but not its report: {reason}; make room, and --resume"
            ) from error


def _measure_all(
    entries: Sequence[tuple[str, str]],
    journal: Journal,
    processes: Processes,
    given: Mapping[str, Any],
    options: Options,
    limits: Limits,
) -> None:
    """Measure whatever the journal does not have, until it is done or somebody stops it."""
    stop, progress, folder = options.get("stop"), options.get("progress"), journal.path.parent
    for number, (label, spec) in enumerate(entries):
        if progress is not None:
            progress("models", number, len(entries))
        if label in journal.models and _is_finished(
            journal.models[label], folder, retry_failed=bool(options.get("retry_failed"))
        ):
            continue
        # A model may change the working directory.
        own = made_place(folder.absolute() / WORK / slug(label))
        what = {
            "label": label,
            "spec": spec,
            "options": given,
            "pixels_of": entries[0][1],
            "folder": str(own / "report"),
        }
        outcome = processes.run("erfscope.api.isolated:work", what, log=own / "log", stop=stop)
        if stop is not None and stop():
            return
        journal.add(_noted(label, spec, outcome, own, given, limits))
        shutil.rmtree(own, ignore_errors=True)
    if progress is not None:
        progress("models", len(entries), len(entries))


def _is_finished(entry: Mapping[str, Any], folder: Path, *, retry_failed: bool) -> bool:
    """Whether a model that is in the journal need not be measured again: its maps are there, and if it failed it did so
    by itself."""
    files = [result["map_file"] for result in entry["results"] if result["map_file"] is not None]
    return all((folder / name).is_file() for name in files) and not is_worth_another_try(
        entry, retry_failed=retry_failed
    )


def work(what: Mapping[str, Any]) -> None:
    """Measure one model, in the process that was made for it."""
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))
    folder = Path(what["folder"])
    options: Options = {**what["options"], "stop": lambda: bool(asked_to_stop)}  # type: ignore[typeddict-item]
    if (folder / REPORT).is_file():
        options["resume"] = folder
    pixels = {}
    if options.get("images") is not None and what["spec"] != what["pixels_of"]:
        for size in sizes(options.get("input_size")):
            pixels[size] = load_model(what["pixels_of"], options, size=size, weights=NO_NUMBERS).adapter.preprocess
    report = compared([(what["label"], what["spec"])], options, pixels=pixels)
    if report.results:
        save_directory(report.to_json, list(report.results), folder, others=[], force=True)


def _spec(model: object) -> str:
    if isinstance(model, Report):
        raise ErfscopeError(
            "stored results are compared without --isolate; name models only, and compare the folder with them"
            " afterwards"
        )
    if not isinstance(model, str):
        raise ErfscopeError(
            f"a model in a process of its own is named by a spec, not {type(model).__name__}; compare it without"
            " --isolate"
        )
    return model


def _refuse_alike(labels: Sequence[str]) -> None:
    """Refuse labels whose files would be the same."""
    taken: dict[str, str] = {}
    for label in labels:
        name = slug(label).lower()
        if name in taken:
            raise ErfscopeError(
                f"{taken[name]!r} and {label!r} would be stored under one name; give one another label, LABEL=SPEC"
            )
        taken[name] = label


def _noted(
    label: str, spec: str, outcome: Outcome, work: Path, given: Mapping[str, Any], limits: Limits
) -> dict[str, Any]:
    """A line of the journal: the results of a model whose maps now lie in the folder, or a row that says why there are
    none."""
    stored = work / "report"
    if outcome.ok and (stored / REPORT).is_file():
        try:
            results = json.loads((stored / REPORT).read_text(encoding="utf-8"))["results"]
            for file in stored.glob("*.npz"):
                file.replace(work.parent.parent / file.name)
        except OSError as error:
            why = f"its results cannot be kept: {error.strerror or error}"
            results = [result_to_json(_result_of_ended_process(label, spec, why, cause_of(error), given))]
    else:
        results = [
            result_to_json(_result_of_ended_process(label, spec, outcome.why(limits), outcome.error_cause, given))
        ]
    return journal_line(label, spec, outcome, results, limits)


def _result_of_ended_process(label: str, spec: str, why: str, cause: ErrorCause, given: Mapping[str, Any]) -> Result:
    """The row of a model that gave no result."""
    convention = convention_of(values_of(given, "convention")[0])
    size = sizes(given["input_size"])[0] or COMMON_SIZE
    return Result(
        id=slug(label, "failed"),
        label=label,
        model=spec,
        status="error",
        error=why,
        error_cause=cause,
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


def _reported(
    folder: Path, found: Sequence[Mapping[str, Any]], labels: Sequence[str], given: Mapping[str, Any]
) -> Report:
    """The report of what is finished, in the folder, and page and figures where all is finished and not too much."""
    settings = settings_in_order(given)
    numbered: list[tuple[int, Mapping[str, Any]]] = []
    for model in found:
        groups = groups_of([_row(entry) for entry in model["results"]], settings)
        numbered += zip(groups, model["results"], strict=True)
    numbered.sort(key=lambda pair: pair[0])
    stored = [entry for _, entry in numbered]
    rows = comparability.with_versions(comparable([_row(entry) for entry in stored], [group for group, _ in numbered]))
    comparability.refuse_mixed_weights([(row.label, row.weights) for row in rows if row.ok])
    report = Report(results=tuple(rows), settings=asked_settings(list(labels), dict(given)))  # type: ignore[arg-type]
    document = report.to_json()
    for entry, original in zip(document["results"], stored, strict=True):
        entry |= {name: original[name] for name in ("map", "map_file", "map_sha256")}
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


def _row(entry: Mapping[str, Any]) -> Result:
    """A result without its map."""
    return result_from_json({**entry, "map_file": None})

"""Several models in one table: ``compare``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from erfscope.adapters.requested import Model
from erfscope.adapters.weights.checkpoint_files import Saved, checkpoints
from erfscope.core.answer import comparability
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result
from erfscope.core.request.request import Request
from erfscope.core.request.settings import Options, lists_options
from erfscope.core.run.engine.measure import refuse_others
from erfscope.core.run.entries import entries_of, refuse_per_model, refuse_unlike_stored, with_own
from erfscope.core.run.executor import asked_settings, measure_rows, report_of, with_earlier
from erfscope.core.run.halos import with_halos
from erfscope.core.run.models import caller_modules, check_images
from erfscope.core.run.rows import rows
from erfscope.core.system.environment import environment
from erfscope.core.system.restore import restored
from erfscope.core.values.model_facts import Preprocess


@lists_options
def compare(
    models: Mapping[str, Model] | Sequence[Model | Report | Result],
    *,
    of: str | None = None,
    **options: Unpack[Options],
) -> Report:
    """Measure several models at one input size, on the same pixels.

    Args:
        models: Specs, adapters, live modules or stored results (a path, a report or a result); a mapping gives them
            labels. Shards of one run are put together.
        of: The spec of one model. ``models`` are then its checkpoint files, or patterns of such; the files of a pattern
            stand in the order of the numbers in their names.
        **options: As for :func:`erfscope.analyze`. A ``layer`` by name is that of every model; one model's own stands
            behind its spec, ``"net.py:make@dec1"``, or in a mapping by labels, as in ``layer={"ours": "dec1"}``. So
            does its ``checkpoint``, ``{"ours": "best.pt"}``. ``model_kwargs`` is refused with several models.

    Returns:
        One result per model and setting, in the order given. A model that fails is a row with its reason.

    Raises:
        ErfscopeError: as for :func:`erfscope.analyze`.
        MeasurementError: settings differ, or only some of the models could have their pretrained weights.
    """
    entries, named = with_own(entries_of(models) if of is None else [*checkpoints(models, of)], options)
    with restored(*caller_modules(*(model for _, model in entries))):
        return compared(entries, Request.parse(named, of_each=True), of=of)


@torch.inference_mode(False)
def compared(
    entries: list[tuple[str, Any]],
    request: Request,
    *,
    of: str | None = None,
    pixels: Mapping[Any, Preprocess] | None = None,
) -> Report:
    """:func:`compare`, of entries that have labels.

    Args:
        entries: (label, model or stored report).
        request: The options.
        of: The model that the entries are checkpoints of.
        pixels: By input size as asked for, whose resize and crop makes the pixels; the first model's where there is
            none.
    """
    request = with_earlier(request)
    stored = {label: model.results for label, model in entries if isinstance(model, Report)}
    beside = [row for each in stored.values() for row in each]
    refuse_others(request.resume or (), [*(label for label, _ in entries), *(row.label for row in beside)])
    live = [(label, model) for label, model in entries if label not in stored]
    refuse_per_model(request, len(entries), of)
    refuse_unlike_stored(entries, request, asked_settings([label for label, _ in entries], request))
    unit = comparability.one_unit_word(
        [(label, m.settings.get("unit") if isinstance(m, Report) else request.settings.unit) for label, m in entries]
    )
    if live:
        check_images(request)
    results: list[Result] = []
    results_of: dict[str, list[Result]] = {label: [] for label, _ in entries}
    for found in _by_setting(live, request, pixels, beside):
        group = [row for label, _ in entries for row in stored.get(label, found.get(label, ()))]
        comparability.refuse_mismatch(group)
        for label, _ in entries:
            results_of[label] += stored.get(label, found.get(label, ()))
        # A stored result stands once, however many settings the others are measured under.
        results += [row for row in group if not any(row is other for other in results)]
    comparability.refuse_mixed_random(list(results_of.items()))
    more: dict[str, Any] = {} if of is None else {"of": of}
    if not live and unit is not None:
        # Nothing is measured now, so the unit of the stored results holds.
        more["unit"] = unit
    together = comparability.with_versions(results)
    labels = [label for label, _ in entries]
    return report_of(together, request, model=labels, environment=_environment(entries), **more)


def _by_setting(
    live: Sequence[tuple[str, Any]],
    request: Request,
    pixels: Mapping[Any, Preprocess] | None,
    beside: Sequence[Result],
) -> Iterator[dict[str, list[Result]]]:
    """The results of every model, setting by setting; of no models, none under one setting."""
    if not live:
        for weights in request.weights:
            comparability.refuse_mixed_weights([(row.label, row.weights) for row in beside if row.ok], weights)
        yield {}
        return
    asked = rows(dict(live), request, by_reference=True)
    for found in measure_rows(asked, request, with_cost=True, pixels=pixels, beside=beside):
        for label, model in live:
            if isinstance(model, Saved):
                found[label] = [replace(row, step=model.step) for row in found[label]]
            if request.settings.halo:
                found[label] = with_halos(found[label], model, request.of_model(label))
        yield found


def _environment(entries: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """That of the stored reports, where nothing is measured now and they share one; else today's."""
    stored = [dict(model.environment) if isinstance(model, Report) else None for _, model in entries]
    first = stored[0]
    return environment() if first is None or any(other != first for other in stored) else first

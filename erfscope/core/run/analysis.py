"""One model: ``analyze`` and ``sweep``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack

import torch

from erfscope.adapters.requested import Model
from erfscope.adapters.sources.sources import take_layer
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result
from erfscope.core.request.request import Request
from erfscope.core.request.settings import Options, lists_options
from erfscope.core.run.auto_input_size import grown
from erfscope.core.run.executor import measure_rows, report_of, with_earlier
from erfscope.core.run.halos import with_halos
from erfscope.core.run.models import caller_modules, check_images
from erfscope.core.run.rows import rows
from erfscope.core.system.restore import restored
from erfscope.core.values.errors import ErfscopeError, MeasurementError, unknown
from erfscope.core.values.names import ONE_INPUT
from erfscope.core.values.unit_kind import kind_of


@lists_options
def analyze(model: Model, *, errors: Literal["raise", "row"] = "raise", **options: Unpack[Options]) -> Result:
    """Measure how far one unit of a model looks.

    Args:
        model: A spec (see :func:`erfscope.adapters.load`), an adapter, or a live ``nn.Module``, handed back as found.
        errors: What a model that fails gives: an exception ("raise"), or a result whose ``status`` is "error" ("row"),
            as in the table of :func:`erfscope.compare`.
        **options: See :class:`erfscope.Options`; each is the command line's option of the same name.

    Returns:
        One result. Its ``status`` is "degenerate" where the gradient is zero or rounding noise.

    Raises:
        ErfscopeError: nothing could be started: a bad name, file, layer, unit, size or option, or options that ask for
            several results.
        MeasurementError: the model fails, or gives nothing that is finite, and ``errors`` is "raise".
    """
    if errors not in ("raise", "row"):
        raise unknown("errors", str(errors), ("raise", "row"))
    model, named = with_layer(model, options)
    request = replace(Request.parse(named, may_grow=True), raises=errors == "raise")
    report = _sweep(model, request, with_host=False)
    # Of several sizes that were tried the last one counts.
    wanted = [row for row in report if row.input.size == report[-1].input.size] if request.is_growing else report
    if len(wanted) != 1:
        references = [row.wrt for row in wanted if row.wrt.startswith(ONE_INPUT)]
        one = f", wrt={references[0]!r} one of them" if len({*references}) > 1 else ""
        raise ErfscopeError(f"these options ask for {len(report)} results; erfscope.sweep gives them all{one}")
    if request.raises and wanted[0].status == "error":
        raise MeasurementError(wanted[0].error or "", model=wanted[0].label)
    return wanted[0]


@lists_options
def sweep(model: Model, **options: Unpack[Options]) -> Report:
    """Measure one model under every combination of the layers, units, input sizes, weights and conventions given.

    Arguments and errors are those of :func:`analyze`; ``layer``, ``wrt``, ``unit``, ``input_size``, ``weights``,
    ``convention`` and ``alpha`` take lists, and ``layer="stages"`` means every stage. Several input sizes are
    ``"96,128"`` or ``[(96, 96), (128, 128)]``; a pair of numbers, ``(96, 128)`` or ``[96, 128]``, is one, height and
    width. ``input_size="auto"`` means the model's own size and its doubles, until less than a tenth of the ERF
    lies outside of the size before; :func:`analyze` gives the result of the last one.

    Returns:
        One result per combination, in the order given. Before those of a model with inserted blocks comes that of the
        model without them.
    """
    model, named = with_layer(model, options)
    return _sweep(model, Request.parse(named, may_grow=True), with_host=True)


def with_layer(model: Model, options: Mapping[str, Any]) -> tuple[Model, Mapping[str, Any]]:
    """A model without the layer that its spec names, and the options with it in the place of theirs."""
    plain, layer = take_layer(model)
    return plain, options if layer is None else {**options, "layer": layer}


def _sweep(model: Model, request: Request, *, with_host: bool) -> Report:
    if request.is_growing:
        _refuse_growth(request)
    with restored(*caller_modules(model)), torch.inference_mode(False):
        request = with_earlier(request)
        request.refuse_weights(model)
        check_images(request)

        def measured(sizes: Sequence[tuple[int, ...] | None]) -> Iterator[dict[str, list[Result]]]:
            asked = rows({"": model}, replace(request, sizes=tuple(sizes)))
            return measure_rows(asked, request, with_host=with_host)

        results: list[Result] = []
        if request.is_growing:
            results = grown(lambda size: [row for found in measured([size]) for row in found[""]])
        else:
            for found in measured(request.sizes):
                results += found[""]
        if request.settings.halo:
            results = with_halos(results, model, request)
        return report_of(results, request, model=model)


def _refuse_growth(request: Request) -> None:
    """Refuse what cannot be measured at sizes that are found by measuring."""
    if request.settings.shard is not None:
        raise ErfscopeError(
            "shards have to be of one input size, and input size auto finds its own for each; give a size"
        )
    if kind := kind_of(request.settings.unit)[0]:
        raise ErfscopeError(f"input size auto grows around a unit's place, which a unit {kind!r} has not; give a size")
    if isinstance(request.images, torch.Tensor):
        raise ErfscopeError(
            "a ready tensor is used as it is, and input size auto makes others; give images, or leave the size out"
        )

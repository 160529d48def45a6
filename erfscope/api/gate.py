"""The CI gate: ``check`` measures models and compares them with a baseline, ``compare_to_baseline`` compares what was
measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

import torch

from erfscope.adapters.requested import name_of, refuse_weights
from erfscope.api.analysis import measure_with_host
from erfscope.api.blocks import variant_of
from erfscope.api.models import Model, caller_modules, check_images, feed_of, load_model, load_structure
from erfscope.api.tile import halo_of
from erfscope.engine.layer_table import layer_table
from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError
from erfscope.gate import baseline as baselines
from erfscope.gate.acceptance import Missing, entry_to_store, settled, with_halo
from erfscope.gate.baseline import BaselineEntry, entry_of
from erfscope.gate.compare import compare
from erfscope.gate.judge import Tolerance, guarded, tolerances
from erfscope.gate.structure import Structure, structure
from erfscope.gate.verdict import PYTHON, Advice, CheckReport, Verdict
from erfscope.geometry.unit_kind import by_kind, kind_of
from erfscope.options.request import Request
from erfscope.options.settings import Options
from erfscope.restore import restored
from erfscope.results.comparability import one_unit_word
from erfscope.results.json_values import plain
from erfscope.results.result import Halo, Result
from erfscope.storage.writing import check_target


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """One check: what is measured, and how far it may move."""

    name: str
    model: Model
    #: By measure, as words or ready; None for the defaults.
    tolerances: Mapping[str, object] | None = None
    #: Those of ``erfscope.analyze``.
    options: Options = field(default_factory=Options)
    #: What to do with what is found, where the check is run.
    advice: Advice = PYTHON
    #: The longest halo that tiles may need on any side, in input pixels; None guards none.
    longest_halo: int | None = None


def check(
    model: Model,
    *,
    name: str | None = None,
    baseline: str | Path = baselines.FILE,
    tolerances: Mapping[str, object] | None = None,
    update: bool = False,
    missing: Missing | None = None,
    trf_only: bool = False,
    longest_halo: int | None = None,
    **options: Unpack[Options],
) -> Verdict:
    """Measure a model and compare it with a baseline.

    On the CPU unless ``device`` says otherwise. A spec's weights are its pretrained ones, its checkpoint's or, with
    ``weights="random"``, random ones; nothing falls back.

    Args:
        model: A spec, an adapter or a live module, as for :func:`erfscope.analyze`.
        name: Of the baseline's entry; the label, or what the model is called, if None.
        baseline: The baseline file.
        tolerances: By measure, such as ``{"r50": "-5%", "far_mass": "-0.02"}``; see :func:`erfscope.gate.parse`. r50,
            r90 and far_mass with -5 % each if None, or 1 % both ways where weights and structure are the same.
        update: Write what is found into the baseline.
        missing: What to do where the baseline has no such entry: ``"refuse"``, ``"write"`` one and still not pass, or
            ``"accept"`` what is found; None writes where there is no file at all, and refuses otherwise.
        trf_only: Compare the structure only, which needs no weights.
        longest_halo: The longest halo in input pixels that tiles may need on any side, see :func:`erfscope.tile`; it is
            that of ``layer``, or of what the model returns. None guards none.
        **options: Those of :func:`erfscope.analyze`, each with one value.

    Returns:
        The verdict, with ``word``, ``text`` and ``exit_code``.

    Raises:
        ErfscopeError: an option, a tolerance or the baseline cannot be used. What is wrong with the model is a verdict,
            not an error.
    """
    request = CheckRequest(
        name=name or options.get("label") or name_of(model),
        model=model,
        tolerances=tolerances,
        options=options,
        longest_halo=longest_halo,
    )
    return check_all([request], baseline=baseline, update=update, missing=missing, trf_only=trf_only).verdicts[0]


def compare_to_baseline(
    result: Result, baseline: str | Path, *, name: str | None = None, tolerances: Mapping[str, object] | None = None
) -> Verdict:
    """Compare a result with an entry of a baseline, as :func:`check` does; nothing is measured or written.

    Args:
        result: What :func:`erfscope.analyze` gave, or :func:`erfscope.read`.
        baseline: The baseline file.
        name: Of the entry; the result's label if None.
        tolerances: As for :func:`check`.

    Raises:
        ErfscopeError: a tolerance or the baseline cannot be used.
    """
    own = name or result.label
    expected = baselines.read(Path(baseline)).get(own)
    allowed = _parsed(tolerances)
    result.compute(allowed or ())
    verdict = compare(entry_of(result), expected, name=own, tolerances=allowed)
    return replace(verdict, result=result)


@torch.inference_mode(False)
def check_all(
    requests: Sequence[CheckRequest],
    *,
    baseline: str | Path = baselines.FILE,
    update: bool = False,
    missing: Missing | None = None,
    trf_only: bool = False,
) -> CheckReport:
    """Several checks against one baseline, which is written at the end, in one step.

    Arguments and errors are those of :func:`check`. A model that cannot be measured is a verdict, and the others are
    measured all the same."""
    if missing not in (None, "refuse", "write", "accept"):
        raise ErfscopeError(f"missing is 'refuse', 'write' or 'accept', not {missing!r}")
    path = Path(baseline)
    known = baselines.read(path)
    policy: Missing = missing or ("refuse" if path.exists() else "write")
    if update or any(policy != "refuse" and request.name not in known for request in requests):
        check_target(path, force=True)
    names = [request.name for request in requests]
    if len(set(names)) < len(names):
        raise ErfscopeError(
            f"two checks are called {next(n for n in names if names.count(n) > 1)!r}; give each a name of its own"
        )
    prepared = [_checked(request) for request in requests]
    verdicts: list[Verdict] = []
    accepted: dict[str, BaselineEntry] = {}
    for check, (request, allowed) in zip(requests, prepared, strict=True):
        with restored(*caller_modules(check.model)):
            obtained, result = _observe(check.model, request, allowed, trf_only=trf_only)
        found = compare(
            obtained,
            known.get(check.name),
            name=check.name,
            tolerances=allowed,
            structure_only=trf_only,
            advice=check.advice,
        )
        found = settled(replace(found, result=result), update=update, policy=policy, path=path, trf_only=trf_only)
        if obtained.unusable is None and (update or (found.expected is None and policy != "refuse")):
            accepted[check.name] = entry_to_store(obtained, known.get(check.name), trf_only=trf_only)
        if check.longest_halo is not None:
            found = with_halo(found, _halo(check.model, request), check.longest_halo)
        verdicts.append(found)
    if accepted:
        baselines.update(path, accepted)
    return CheckReport(verdicts=tuple(verdicts), baseline=path, written=tuple(accepted))


def _checked(check: CheckRequest) -> tuple[Request, dict[str, Tolerance] | None]:
    """Read the options and the tolerances, and refuse what needs no model to be refused."""
    try:
        request = Request.parse({"device": "cpu", **check.options})
        for name in request.several():
            raise ErfscopeError(f"a check is of one result, and {name} asks for several; write one check for each")
        if request.settings.until_se is not None:
            raise ErfscopeError("until_se would measure another number of images each time; a check takes --samples")
        if request.settings.shard is not None:
            raise ErfscopeError("a shard is a part of a measurement, and a check needs the whole; leave shard out")
        refuse_weights(check.model, request)
        return request, _parsed(check.tolerances)
    except ErfscopeError as error:
        raise ErfscopeError(f"check {check.name!r}: {error}") from error


def _parsed(given: Mapping[str, object] | None) -> dict[str, Tolerance] | None:
    return tolerances(given) if given else None


def _observe(
    model: Model, request: Request, allowed: Mapping[str, Tolerance] | None, *, trf_only: bool
) -> tuple[BaselineEntry, Result | None]:
    """The structure of a model, even if its weights cannot be had, and its measures."""
    loaded, reason = None, None
    try:
        if not trf_only:
            check_images(request)
            loaded = _with_numbers(model, request)
    except ErfscopeError as error:
        reason = str(error)
    try:
        variant = load_structure(model, request) if loaded is None else variant_of(loaded, request)
        geometry = _structure(variant, request)
    except ErfscopeError as error:
        return BaselineEntry(unusable=reason or str(error)), None
    settings = request.settings
    asked = {
        "layer": request.layers[0],
        "unit": one_unit_word([("", settings.unit)]),
        "model_kwargs": plain(request.building.get("model_kwargs")),
    }
    question = {"model": variant.adapter.spec, "insert": variant.insert, "wrt": settings.wrt}
    protocol = {**question, **asked, "input_size": list(variant.adapter.preprocess.of(settings.wrt).size)}
    if loaded is None:
        return BaselineEntry(protocol=protocol, structure=geometry, unusable=reason), None
    # The measures that are guarded, and others that were asked for.
    more = [] if settings.measures is None else settings.measure_names()
    guards = guarded(has_place=bool(geometry.center_px)) if allowed is None else allowed
    names = list(dict.fromkeys([*guards, *more]))
    try:
        feed = feed_of(request, variant.adapter.preprocess)
        wanted = replace(settings, layer=geometry.layer, measures=names)
        result = measure_with_host(variant, (), feed, wanted, request)[0]
    except ErfscopeError as error:
        return BaselineEntry(protocol=protocol, structure=geometry, unusable=str(error)), None
    found = entry_of(result, asked=asked, names=names)
    return replace(found, protocol={**found.protocol, **protocol}, structure=geometry), result


def _halo(model: Model, request: Request) -> Halo | ErfscopeError:
    """The halo of the layer, or of what the model returns; why it is not known where it is not."""
    try:
        return halo_of(model, request, request.layers[0], request.settings.wrt)
    except ErfscopeError as error:
        return error


def _with_numbers(model: Model, request: Request) -> LoadedModel:
    """The model with its weights, and never with others that stand in for them."""
    (weights,), (size,) = request.weights, request.sizes
    if weights == "auto" and request.building.get("checkpoint") is None:
        weights = "pretrained"
    return load_model(model, request, size=size, weights=weights)


def _structure(loaded: LoadedModel, request: Request) -> Structure:
    unit = request.settings.unit
    kind, _ = kind_of(unit)
    layer = request.layers[0] or loaded.default_layer_of(kind)
    references = loaded.references(by_kind(layer, kind), request.settings.wrt)
    if len(references) > 1:
        raise ErfscopeError(
            f"a check is of one reference, and the model takes {', '.join(references)}: name one with --wrt, and write"
            " one check for each"
        )
    table = layer_table(loaded, layer=layer, unit=unit, wrt=request.settings.wrt)
    if len(table.rows) != 1:
        raise ErfscopeError(f"a check is of one unit, and {unit!r} are {len(table.rows)}; write one check for each")
    row, last = table.rows[0], loaded.layer(by_kind(layer, kind)).order
    rows = layer_table(loaded, wrt=request.settings.wrt).rows
    before = {each.name: each.trf for each in rows if loaded.layer(each.name).order <= last}
    return structure(row.name, row.shape, row.unit, row.trf, before)

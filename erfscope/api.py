"""The public functions: they compose the core and the adapters. The only module of the core that looks outward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from erfscope import comparison
from erfscope.adapter import Preprocess
from erfscope.adapters import ModuleAdapter, load, split_label, wrap
from erfscope.analysis import measure
from erfscope.conclusion import failed
from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.feed import Feed, PictureFeed, TensorFeed
from erfscope.layer_table import LayerTable, layer_table
from erfscope.options import MODEL, Building, Options, check, settings_of, sizes, words
from erfscope.printable import one_line
from erfscope.report import Report, read
from erfscope.result import Result
from erfscope.serialise import fields, plain
from erfscope.settings import SAMPLES, UNTIL_SE_LIMIT, Settings
from erfscope.stimuli import open_arrays, open_images
from erfscope.stimuli import synthetic as draw
from erfscope.subject import Subject
from erfscope.trf.field import Trf
from erfscope.unit import UnitWord

Model = str | nn.Module | ModuleAdapter
#: What --device takes; cuda:1 and the like name one of several.
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
#: Size of a comparison whose models share none of their own.
COMMON_SIZE = (224, 224)


def analyze(model: Model, **options: Unpack[Options]) -> Result:
    """Measure how far one unit of a model looks.

    Args:
        model: A spec (see :func:`erfscope.adapters.load`), an adapter, or a live ``nn.Module``, which is handed back unchanged.
        **options: See :class:`erfscope.Options`; each is the command line's option of the same name.

    Returns:
        One result. Its ``status`` is not "ok" where the model ran but gave nothing usable.

    Raises:
        ErfscopeError: nothing could be started: a bad name, file, layer, unit, size or option, or options that ask for several results.
    """
    report = sweep(model, **options)
    if len(report) != 1:
        raise ErfscopeError(f"these options ask for {len(report)} results; erfscope.sweep gives them all")
    return report[0]


def sweep(model: Model, **options: Unpack[Options]) -> Report:
    """Measure one model under every combination of the layers, units, input sizes, weights and conventions given.

    Arguments and errors are those of :func:`analyze`; ``layer``, ``unit``, ``input_size``, ``weights`` and ``convention`` take lists, and
    ``layer="stages"`` means every stage.

    Returns:
        One result per combination, in the order given.
    """
    check(options)
    results: list[Result] = []
    for size, weights in product(_sizes(options), words(options.get("weights", "auto"))):
        subject = subject_of(model, options, size=size, weights=weights)
        feed = feed_of(options, subject.adapter.preprocess)
        for convention, layer in product(words(options.get("convention", "jacobian")), _layers(subject, options)):
            results += _measured(subject, feed, settings_of(options, convention=convention, layer=layer), options)
    return Report(results=_distinct(results), settings=_settings(model, options))


def compare(models: Mapping[str, Model] | Sequence[Model | Report | Result], **options: Unpack[Options]) -> Report:
    """Measure several models at one input size, on the same pixels.

    Args:
        models: Specs, adapters, live modules or stored results (a path, a report or a result); a mapping gives them labels.
        **options: As for :func:`analyze`; ``checkpoint``, ``model_kwargs`` and a ``layer`` by name are refused with several models.

    Returns:
        One result per model and setting, in the order given. A model that fails is a row with its reason.

    Raises:
        ErfscopeError: as for :func:`analyze`.
        MeasurementError: settings differ, or only some of the models could have their pretrained weights.
    """
    check(options)
    entries = _entries(models)
    live = [(label, model) for label, model in entries if not isinstance(model, Report)]
    _refuse_per_model(options, len(entries))
    rows: list[Result] = []
    for size, weights in product(_sizes(options), words(options.get("weights", "auto"))):
        subjects = _common_subjects(live, options, size, weights)
        ready = [s for s in subjects.values() if isinstance(s, Subject)]
        comparison.refuse_mixed_weights([(s.label, s.adapter.weights) for s in ready])
        feed = feed_of(options, ready[0].adapter.preprocess) if ready else None
        for convention in words(options.get("convention", "jacobian")):
            settings = settings_of(options, convention=convention)
            group = [row for label, model in entries for row in _rows(subjects.get(label, model), ready, feed, settings, options)]
            comparison.refuse_mismatch(group)
            # A stored result stands once, however many settings the others are measured under.
            rows += [row for row in group if not any(row is other for other in rows)]
    return Report(results=_distinct(rows), settings=_settings([label for label, _ in entries], options))


def layers(
    model: Model, *, layer: str | None = None, unit: UnitWord = "centre", wrt: str = "image", **options: Unpack[Building]
) -> LayerTable:
    """Every layer that can be asked for, in order of execution, without weights or a forward pass on real data.

    Args:
        model: As for :func:`analyze`.
        layer: Only this one.
        unit: The unit of each layer whose theoretical field is given.
        wrt: Reference of sizes and centres: "image", or a module's output ("NAME") or input ("NAME:in").
        **options: Those that build the model, such as ``input_size``.

    Raises:
        ErfscopeError: unknown model, layer or reference.
    """
    return layer_table(_bare(model, options), layer=layer, unit=unit, wrt=wrt)


def theoretical(model: Model, layer: str | None = None, unit: UnitWord = "centre", wrt: str = "image", **options: Unpack[Building]) -> Trf:
    """The theoretical receptive field of one unit, from one forward pass without numbers.

    Arguments and errors are those of :func:`layers`; ``layer`` is the model's default layer if None.
    """
    subject = _bare(model, options)
    return layer_table(subject, layer=layer or subject.default_layer, unit=unit, wrt=wrt).rows[0].trf


def _bare(model: Model, options: Building) -> Subject:
    """A model whose weights do not matter."""
    check(options)
    return subject_of(model, {**options}, size=_sizes(options)[0], weights="random-raw")  # type: ignore[typeddict-item]


def subject_of(model: Model, options: Options, *, size: tuple[int, ...] | None, weights: str, label: str | None = None) -> Subject:
    """A model on the device and in the dtype asked for, at one input size."""
    given = {name: value for name, value in options.items() if name in MODEL}
    images = options.get("images")
    if isinstance(images, Tensor) and size is None:
        size = tuple(images.shape[2:])
        given.setdefault("in_chans", images.shape[1])
    name = label or options.get("label")
    if isinstance(model, str):
        found, spec = split_label(model)
        layer = options.get("layer")
        named = layer if isinstance(layer, str) and layer != "stages" and "," not in layer else None
        adapter = load(spec, weights=weights, seed=options.get("seed", 0), input_size=size, layer=named, **given)  # type: ignore[arg-type]
        name = name or found
    elif isinstance(model, ModuleAdapter):
        adapter = model
        if size is not None and size != model.preprocess.size:
            raise ErfscopeError(
                f"this adapter was made for inputs of {model.preprocess.size}, not {size}; give input_size to erfscope.wrap"
            )
    else:
        for option in ("checkpoint", "model_kwargs"):
            if given.pop(option, None) is not None:
                raise ErfscopeError(f"{option} is for models that erfscope builds; a live module has its weights already")
        adapter = wrap(model, input_size=size, **given)  # type: ignore[arg-type]
    owned = isinstance(model, str)
    device = _device(options.get("device", "auto"), adapter if not owned else None)
    dtype = getattr(torch, options.get("dtype", "float32")) if owned or "dtype" in options else None
    return Subject(adapter=adapter.to(device=device, dtype=dtype), label=one_line(name or adapter.spec))


def feed_of(options: Options, preprocess: Preprocess) -> Feed:
    """The pictures that the options name, cropped and normalised for one model.

    Raises:
        ErfscopeError: no such file, an unreadable picture, or an unknown kind.
    """
    images, samples, seed = options.get("images"), options.get("samples"), options.get("seed", 0)
    endless = options.get("until_se") is not None
    if isinstance(images, Tensor):
        return TensorFeed(images if samples is None else images[:samples])
    if images is None:
        count = samples or (UNTIL_SE_LIMIT if endless else SAMPLES)
        kind = options.get("synthetic") or "leaves"
        stimuli = draw(kind, samples=count, seed=seed, size=preprocess.size, channels=preprocess.channels)
    elif _are_paths(images):
        paths = [images] if isinstance(images, str | Path) else list(images)
        wanted = UNTIL_SE_LIMIT if endless and samples is None else samples
        stimuli = open_images(paths, samples=wanted, seed=seed, crop=preprocess.crop, channels=preprocess.channels)
    else:
        stimuli = open_arrays(images, crop=preprocess.crop, channels=preprocess.channels)
    return PictureFeed(stimuli, preprocess.normalise)


def _are_paths(images: Any) -> bool:
    if isinstance(images, str | Path):
        return True
    return isinstance(images, list | tuple) and len(images) > 0 and all(isinstance(item, str | Path) for item in images)


def _measured(subject: Subject, feed: Feed, settings: Settings, options: Options) -> list[Result]:
    """Results of one layer; a model that runs but fails is a result too."""
    report = options.get("progress")
    progress = None if report is None else (lambda done, total: report(subject.label, done, total))
    try:
        return measure(subject, feed, settings, layer=settings.layer or subject.default_layer, progress=progress)
    except MeasurementError as error:
        return [failed(subject, settings, feed, error, layer=settings.layer or "")]


def _rows(entry: Report | Subject | Result, ready: list[Subject], feed: Feed | None, settings: Settings, options: Options) -> list[Result]:
    """Rows of a stored report, of a model that could not be built, or of one to be measured: on shared pixels, by its own mean and std."""
    if not isinstance(entry, Subject):
        return list(entry.results) if isinstance(entry, Report) else [entry]
    assert feed is not None
    prepared, shared = entry.adapter.preprocess, ready[0].adapter.preprocess.channels
    if prepared.channels != shared:
        text = f"{entry.label} takes {prepared.channels} channels, but the pictures compared on have {shared}; analyze it alone"
        return [failed(entry, settings, feed, MeasurementError(text))]
    own = replace(feed, normalise=prepared.normalise) if isinstance(feed, PictureFeed) else feed
    rows: list[Result] = []
    for layer in _layers(entry, options):
        rows += _measured(entry, own, replace(settings, layer=layer), options)
    return [replace(row, cost=entry.cost) for row in rows]


def _common_subjects(
    models: Sequence[tuple[str, Model]], options: Options, size: tuple[int, ...] | None, weights: str
) -> dict[str, Subject | Result]:
    """All models at one input size: the one asked for, else the one they share, else 224 x 224. A model that refuses it is a result."""

    def built(label: str, model: Model, at: tuple[int, ...] | None) -> Subject | Result:
        try:
            return subject_of(model, options, size=at, weights=weights, label=label)
        except ErfscopeError as error:
            if at is None or len(models) == 1:
                raise
            # Raises again where the size is not to blame.
            subject = subject_of(model, options, size=None, weights=weights, label=label)
            row = failed(subject, settings_of(options, convention=words(options.get("convention", "jacobian"))[0]), None, error)
            return replace(row, input=replace(row.input, size=at))

    subjects: dict[str, Subject | Result] = {label: built(label, model, size) for label, model in models}
    own = {s.adapter.preprocess.size for s in subjects.values() if isinstance(s, Subject)}
    common = size or (next(iter(own)) if len(own) == 1 else COMMON_SIZE)
    for label, model in models:
        subject = subjects[label]
        if isinstance(subject, Subject) and subject.adapter.preprocess.size != common:
            subjects[label] = built(label, model, common)
    return subjects


def _entries(models: Mapping[str, Model] | Sequence[Any]) -> list[tuple[str, Any]]:
    """(label, model or stored report), labels made distinct."""
    if isinstance(models, Mapping):
        pairs: list[tuple[str | None, Any]] = list(models.items())
    else:
        pairs = [split_label(m) if isinstance(m, str) else (None, m) for m in models]
    if not pairs:
        raise ErfscopeError("nothing to compare; name at least one model or stored result")
    entries: list[tuple[str, Any]] = []
    for label, model in pairs:
        if isinstance(model, Result):
            model = Report(results=(model,))
        elif isinstance(model, str | Path) and _is_stored(model):
            model = read(model)
        if isinstance(model, Report) and label:
            model = replace(model, results=tuple(replace(result, label=one_line(label)) for result in model))
        name = label or (model if isinstance(model, str) else str(getattr(model, "spec", type(model).__name__)))
        taken = sum(other == name or other.startswith(f"{name} #") for other, _ in entries)
        entries.append((f"{name} #{taken + 1}" if taken else name, model))
    return entries


def _is_stored(text: str | Path) -> bool:
    path = Path(text)
    return path.suffix == ".json" or (path / "report.json").is_file()


def _refuse_per_model(options: Options, count: int) -> None:
    for option in ("checkpoint", "model_kwargs"):
        if count > 1 and options.get(option):
            raise ErfscopeError(f"--{option.replace('_', '-')} belongs to one model; analyze each with -o DIR, then compare the folders")
    if count > 1 and options.get("layer") not in (None, "stages"):
        raise ErfscopeError("--layer by name belongs to one model; analyze each with -o DIR, then compare the folders")


def _layers(subject: Subject, options: Options) -> list[str]:
    asked = words(options.get("layer"))
    if asked == ["stages"]:
        if not subject.adapter.stages:
            raise ErfscopeError(f"{subject.label} declares no stages; `erfscope layers` lists its layers")
        return list(subject.adapter.stages)
    try:
        return [layer or subject.default_layer for layer in asked]
    except MeasurementError:
        return [""]


def _sizes(options: Options | Building) -> list[tuple[int, ...] | None]:
    return sizes(options.get("input_size"))


def _device(asked: str, live: ModuleAdapter | None) -> torch.device | None:
    """The device asked for; ``auto`` is a live module's own, else the fastest there is."""
    if asked == "auto":
        if live is not None:
            return None
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if asked.partition(":")[0] not in DEVICES:
        raise unknown("device", asked, DEVICES)
    try:
        device = torch.device(asked)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        text = str(error).splitlines()[0][:80]
        raise ErfscopeError(
            f"device {asked!r} cannot be used here ({text}); `erfscope doctor` lists the devices, auto chooses one"
        ) from error
    return device


def _distinct(results: list[Result]) -> tuple[Result, ...]:
    """Results whose ids differ, since ids name files."""
    taken: set[str] = set()
    distinct = []
    for result in results:
        names = (result.id, *(f"{result.id}-{number}" for number in range(2, len(results) + 2)))
        # Some file systems do not tell capitals apart.
        name = next(name for name in names if name.lower() not in taken)
        taken.add(name.lower())
        distinct.append(result if name == result.id else replace(result, id=name))
    return tuple(distinct)


def _settings(model: Any, options: Options) -> dict[str, Any]:
    """What was asked for, as JSON values."""
    kept = {name: value for name, value in options.items() if name not in ("progress", "images")}
    images = options.get("images")
    kept["images"] = images if images is None or _are_paths(images) else f"{type(images).__name__}"
    asked = model if isinstance(model, str | list) else getattr(model, "spec", type(model).__name__)
    return {"model": plain(asked), **plain({**fields(settings_of(options, convention="jacobian")), **kept})}

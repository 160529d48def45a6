"""From a model and pictures to results: the one loop over images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from erfscope.attribution.gradient import Draw, gradient_draws
from erfscope.averaging import Averaging
from erfscope.conclusion import Run, conclude, map_of
from erfscope.convention import convention_of
from erfscope.erfmap import FloatArray
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.feed import Feed
from erfscope.measures import with_errors
from erfscope.memory import OVERHEAD, available_bytes
from erfscope.result import Result
from erfscope.settings import Settings
from erfscope.subject import Subject, model_failed
from erfscope.unit import resolve

#: Called with (images done, images in all).
Progress = Callable[[int, int], None]


def measure(
    subject: Subject, feed: Feed, settings: Settings, *, layer: str | None = None, progress: Progress | None = None
) -> list[Result]:
    """Measure the units of one layer on every input of ``feed``.

    Args:
        subject: The model, already on the device and in the dtype asked for.
        feed: The inputs.
        settings: Everything else.
        layer: Layer name; the settings' or the model's default layer if None.
        progress: Called after every batch.

    Returns:
        One result per unit, in the order asked for.

    Raises:
        ErfscopeError: unknown layer, unit, convention or method, or an unreadable picture without ``keep_going``.
        MeasurementError: the model fails, or the layer has no spatial map.
    """
    run = _start(subject, feed, settings, layer or settings.layer or subject.adapter.default_layer)
    done = 0
    for indices in _batches(run):
        x, images = _load(run, indices)
        if images:
            _add(run, x, images)
        done += len(indices)
        if progress is not None:
            progress(done, feed.n)
        if settings.until_se is not None and _settled(run, settings.until_se):
            break
    return [conclude(run, number, done) for number in range(len(run.units))]


def _start(subject: Subject, feed: Feed, settings: Settings, layer: str) -> Run:
    if feed.n < 1:
        raise ErfscopeError("there is no picture to measure on")
    if settings.amp_dtype is not None and settings.method != "gradient":
        raise ErfscopeError("amp-dtype is for the method gradient only; Captum's methods run in the model's own dtype")
    convention = convention_of(settings.convention)
    space = subject.layer(layer).shape[2:]
    centre = subject.recording.default_unit(layer, settings.wrt)
    units = resolve(settings.unit, space, centre, layer=layer)
    trfs = [subject.trf(layer, unit.index, settings.wrt) for unit in units]
    averages = [Averaging(convention, feed.n, trf.reference_px, trf) for trf in trfs]
    draws: int | str = settings.draws or max(1, math.ceil(8 / feed.n))
    return Run(
        subject=subject,
        feed=feed,
        settings=settings,
        convention=convention,
        layer=layer,
        units=units,
        trfs=trfs,
        averages=averages,
        draws=draws if convention.random else 1,
    )


def _batches(run: Run) -> Iterator[Sequence[int]]:
    """Indices, batch by batch."""
    size = _batch_size(run)
    for start in range(0, run.feed.n, size):
        yield range(start, min(start + size, run.feed.n))


def _batch_size(run: Run) -> int:
    """How many pictures go through the model at a time; Captum's methods take one by one.

    The user's number, else about as many pixels as sixteen pictures of 224 x 224 have, in at most half of the memory there is.

    Raises:
        MeasurementError: there is no memory for a single picture, or for a batch of the user's size.
    """
    size = run.subject.adapter.preprocess.size
    asked = run.settings.batch_size if run.settings.method == "gradient" else 1
    wanted = min(run.feed.n, asked or max(1, min(16, 16 * 224 * 224 // max(math.prod(size), 1))))
    device, dtype = _home(run)
    amp = getattr(torch, run.settings.amp_dtype) if run.settings.amp_dtype else None
    there = available_bytes(device)
    counted = run.subject.sample_bytes(run.layer, run.settings.wrt, device=device, dtype=dtype, amp_dtype=amp)
    if there is None or not counted:
        return wanted
    each = math.ceil(OVERHEAD * counted)
    text = f"of {'x'.join(map(str, size))} needs about {{}} of memory, but there are {_gib(there)}; use a smaller"
    if each > there:
        raise MeasurementError(f"one picture {text.format(_gib(each))} --input-size")
    if asked is not None and wanted * each > there:
        raise MeasurementError(f"a batch of {wanted} pictures {text.format(_gib(wanted * each))} --batch-size, {there // each} at most")
    return wanted if asked is not None else max(1, min(wanted, there // 2 // each))


def _gib(count: int) -> str:
    size = count / 2**30
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


def _home(run: Run) -> tuple[torch.device, torch.dtype]:
    """Where inputs must lie, and in which dtype: the model's own."""
    parameter = next((p for p in run.subject.adapter.module.parameters() if p.is_floating_point()), None)
    if parameter is None:
        return torch.device("cpu"), getattr(torch, run.settings.dtype)
    return parameter.device, parameter.dtype


def _load(run: Run, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Inputs that can be read, on the model's device, and their indices."""
    loaded: list[Tensor] = []
    images: list[int] = []
    for index in indices:
        try:
            loaded.append(run.feed.batch([index]))
            images.append(index)
        except ErfscopeError:
            if not run.settings.keep_going:
                raise
            run.unreadable.append(index)
    if not loaded:
        return torch.empty(0), []
    device, dtype = _home(run)
    return torch.cat(loaded).to(device=device, dtype=dtype), images


def _add(run: Run, x: Tensor, images: list[int]) -> None:
    """Add one batch to the averages, unit by unit."""
    pending: list[FloatArray] = []
    current = 0
    try:
        for draw in _draws(run, x, images):
            if draw.unit != current:
                _flush(run, current, images, pending)
                current, pending = draw.unit, []
            pending.append(draw.maps.numpy())
            if draw.unit not in run.ratios and (ratio := _ratio(draw)) is not None:
                run.ratios[draw.unit] = ratio
    except ErfscopeError:
        raise
    except Exception as error:  # anything a model may raise
        raise model_failed(run.subject.label, run.subject.adapter, error) from error
    _flush(run, current, images, pending)


def _draws(run: Run, x: Tensor, images: list[int]) -> Iterator[Draw]:
    settings, yardstick = run.settings, len(run.ratios) < len(run.units)
    if settings.method == "gradient":
        amp = getattr(torch, settings.amp_dtype) if settings.amp_dtype else None
        return gradient_draws(
            run.subject.adapter,
            x,
            run.units,
            run.convention,
            layer=run.layer,
            wrt=settings.wrt,
            images=images,
            seed=settings.seed,
            draws=run.draws,  # type: ignore[arg-type]
            yardstick=yardstick,
            amp_dtype=amp,
        )
    from erfscope.attribution.captum_methods import captum_draws

    return captum_draws(
        run.subject.adapter,
        x,
        run.units,
        run.convention,
        method=settings.method,
        layer=run.layer,
        wrt=settings.wrt,
        images=images,
        seed=settings.seed,
        draws=int(run.draws),
        yardstick=yardstick,
    )


def _flush(run: Run, unit: int, images: list[int], draws: list[FloatArray]) -> None:
    for position, image in enumerate(images):
        run.averages[unit].add(image, [draw[position] for draw in draws])


def _ratio(draw: Draw) -> float | None:
    """How large the gradient is against one with random signs, for the first image that has a gradient; None if none has."""
    norms = draw.norms.numpy()
    yardstick = norms if draw.yardstick is None else draw.yardstick.numpy()
    usable = np.flatnonzero(np.isfinite(norms) & np.isfinite(yardstick) & (norms > 0))
    if not usable.size:
        return None
    norm, random = float(norms[usable[0]]), float(yardstick[usable[0]])
    # Two channels alike may cancel with random signs and not with the readout's.
    return norm / random if random > 0 else math.inf


def _settled(run: Run, target: float) -> bool:
    """Whether the relative standard error of every unit's r50 is below the target."""
    for number, average in enumerate(run.averages):
        if average.groups < 4:
            return False
        r50 = with_errors(map_of(run, number), average.leave_one_out(), ["r50"], groups=average.groups)["r50"]
        if r50.se is None or not isinstance(r50.value, float) or r50.se > target * r50.value:
            return False
    return True

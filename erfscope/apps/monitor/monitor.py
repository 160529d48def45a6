"""``ErfMonitor``: measure a model now and then while it is trained, within a budget of time."""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from erfscope.core import (
    ErfscopeError,
    Images,
    ModuleAdapter,
    OpenModel,
    Options,
    Report,
    Request,
    Result,
    is_input,
    measure,
    open_images,
    open_model,
    report_of,
    rows,
    unknown,
)
from erfscope.show import with_error

Live = nn.Module | ModuleAdapter


def part_of(model: nn.Module, part: str | None) -> nn.Module:
    """The network of that name inside a model; the model itself where ``part`` is None.

    Raises:
        ErfscopeError: there is no such part.
    """
    try:
        return model if part is None else model.get_submodule(part)
    except AttributeError as error:
        raise ErfscopeError(f"{type(model).__name__} has no part {part!r}: {error}") from error


#: Called with the scalars of a measurement and its step, e.g. ``lambda scalars, step: wandb.log(scalars, step=step)``.
Log = Callable[[dict[str, float], int], object]
#: Options that change the module, or that a measurement in a training cannot have.
_NOT_HERE = (
    "insert", "alpha", "checkpoint", "model_kwargs", "unsafe_load", "device", "dtype", "weights", "shard", "verify",
    "halo", "resume", "stop",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One measurement during training."""

    step: int
    result: Result
    #: Its duration.
    seconds: float


class ErfMonitor:
    """Measures one unit of a model every so many steps.

    The model is left as it was found, gradients, running statistics, training flags and random states (PyTorch's,
    NumPy's and Python's) included; autocast and inference mode around the call change nothing. Wrappers are
    opened: DistributedDataParallel, an average of weights (EMA), ``torch.compile``. Compiled modules run uncompiled
    here and stay compiled, and activations are kept where the training recomputes them (``torch.utils.checkpoint``).
    Under ``torch.distributed`` only rank 0 measures; the others return at once.

        monitor = erfscope.ErfMonitor(model, "val/", every=5, samples=8, input_size=224)
        for epoch in range(100):
            train(model)
            monitor.step(epoch)
        monitor.report().save("erf-while-training/")
    """

    def __init__(
        self,
        model: Live,
        images: Any = None,
        *,
        every: int = 1,
        budget: float | str | None = None,
        log: Log | None = None,
        quiet: bool = False,
        **options: Any,
    ) -> None:
        """Check the options; nothing is measured yet.

        Args:
            model: The module that is trained, or a wrapper of it; or what :func:`erfscope.wrap` made of one that is
                called in its own way.
            images: As for :func:`erfscope.analyze`; synthetic images if left out.
            every: Measure at the steps that this divides.
            budget: What measuring may take in all: seconds, or a share of the time since the monitor was made, such as
                ``"2%"``. Steps at which a measurement, as long as the last one, would exceed it are skipped. None
                for no limit.
            log: Called after each measurement with its scalars (:meth:`Result.scalars`) and the step.
            quiet: Print nothing; else one line per measurement on stderr, with the seconds it took.
            **options: Those of :func:`erfscope.analyze` that concern the image, the unit and the measurement. Without
                ``samples`` it takes 20 synthetic images, which for a large model is slow: 4 to 8 will do for a trend.

        Raises:
            ErfscopeError: an option that does not exist, or that a monitor does not have.
        """
        if not isinstance(model, nn.Module | ModuleAdapter):
            raise ErfscopeError(
                f"a monitor follows a live nn.Module, not {type(model).__name__}; erfscope.analyze takes a spec"
            )
        self._request = _request(options if images is None else {**options, "images": images})
        self.model, self.every, self.log, self.quiet = model, _whole("every", every, least=1), log, quiet
        self.moments: list[Moment] = []
        self._seconds, self._share = _budget(budget)
        self._made = time.perf_counter()
        self._ready: tuple[OpenModel, Images] | None = None  # recorded once: an edited model needs another monitor
        self._is_skipping = False

    def step(self, step: int, *, force: bool = False) -> Result | None:
        """Measure, if this step is one to measure at.

        Args:
            step: Number of the step or epoch.
            force: Measure whatever ``every`` and the budget say, as at the end of a training.

        Returns:
            The result; None where nothing was measured. A model that gives nothing usable is a result whose status says
            why.

        Raises:
            ErfscopeError: the model has no such layer or unit, or the step is no whole number.
        """
        step = _whole("step", step)
        if not _is_first_rank() or (not force and (step % self.every or not self._affordable())):
            return None
        start = time.perf_counter()
        result = self._measure(step)
        seconds = time.perf_counter() - start
        self.moments.append(Moment(step=step, result=result, seconds=seconds))
        if not self.quiet:
            print(_line(self.moments[-1]), file=sys.stderr)
        if self.log is not None and result.ok:
            self.log(result.scalars(), step)
        return result

    @property
    def seconds(self) -> float:
        """Duration of all measurements together."""
        return sum(moment.seconds for moment in self.moments)

    def report(self) -> Report:
        """All measurements as a report: one row per step, for tables, figures and pages.

        Raises:
            ErfscopeError: nothing was measured.
        """
        if not self.moments:
            raise ErfscopeError("nothing was measured yet; call step() first, on rank 0")
        results, steps = [moment.result for moment in self.moments], [moment.step for moment in self.moments]
        return report_of(results, self._request, model=self.model, steps=steps)

    def _affordable(self) -> bool:
        """Whether another measurement, as long as the last one, stays within the budget; the first one always does."""
        if not self.moments:
            return True
        spent = self.seconds + self.moments[-1].seconds
        allowed = min(self._seconds, self._share * (time.perf_counter() - self._made))
        if spent > allowed and not self._is_skipping and not self.quiet:
            print(
                f"erfscope: steps are skipped: measuring took {self.seconds:.1f} s so far, and another one would exceed"
                " its budget",
                file=sys.stderr,
            )
        self._is_skipping = spent > allowed
        return spent <= allowed

    def _measure(self, step: int) -> Result:
        if self._ready is None:
            model = open_model(self.model, self._request)
            self._ready = model, open_images(self._request, model)
        model, images = self._ready
        results = measure(rows({model.label: model}, self._request), self._request, images)
        references = [result.wrt for result in results]
        if len({*references}) > 1:
            every = ", ".join(references)
            raise ErfscopeError(
                f"a monitor follows one reference, wrt={references[0]!r}, say; make one for each of {every}"
            )
        if len(results) != 1:
            unit = self._request.settings.unit
            raise ErfscopeError(
                f"a monitor follows one unit, and {unit!r} are {len(results)}; make one monitor for each"
            )
        return replace(results[0], label=f"{results[0].label} @ {step}", step=step)


def _request(options: Mapping[str, Any]) -> Request:
    """The options, none of which a monitor does not have, or asks for several results."""
    known = [name for name in Options.__annotations__ if name not in _NOT_HERE]
    for name in options:
        if name in _NOT_HERE:
            raise ErfscopeError(f"a monitor has no option {name}: it measures the given model as it is")
        if name not in known:
            raise unknown("option", name, known, where="a monitor", limit=len(known))
    request = Request.parse(options)
    for name in request.several():
        raise ErfscopeError(f"a monitor follows one unit, and {name} asks for several; make one monitor for each")
    return request


def _is_first_rank() -> bool:
    distributed: Any = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def _budget(budget: float | str | None) -> tuple[float, float]:
    """Seconds in all, and a share of the time since the monitor was made; infinite where there is no limit."""
    text = str(budget).strip()
    try:
        if budget is None:
            return float("inf"), float("inf")
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not number > 0:
        raise ErfscopeError(
            f"cannot read the budget {budget!r}; write seconds, such as 60, or a share of the time, such as '2%'"
        )
    return (float("inf"), number / 100) if text.endswith("%") else (number, float("inf"))


def _line(moment: Moment) -> str:
    result = moment.result
    r50 = result.measures.get("r50")
    text = result.error or result.status
    if result.ok and r50 is not None and r50.value is not None:
        text = f"r50 {with_error(r50.value, r50.se)} {'px' if is_input(result.wrt) else 'cells'}"
    elif result.ok:
        text = ", ".join(f"{name} {with_error(m.value, m.se)}" for name, m in list(result.measures.items())[:3])
    return f"erfscope: step {moment.step}: {text} ({moment.seconds:.1f} s)"


def _whole(name: str, value: object, *, least: int | None = None) -> int:
    """A whole number, Python's or NumPy's.

    Raises:
        ErfscopeError: anything else, or less than the least.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise ErfscopeError(f"{name} is a whole number, not {value!r}")
    if least is not None and number < least:
        raise ErfscopeError(f"{name} must be at least {least}, not {number}")
    return number

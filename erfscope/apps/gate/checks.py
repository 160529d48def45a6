"""The CI gate: ``check`` measures models and compares them with a baseline, ``compare_to_baseline`` compares what was
measured."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack, get_args

import torch

from erfscope.apps.gate import baseline as baselines
from erfscope.apps.gate.acceptance import Missing, entry_to_store, settled, with_halo
from erfscope.apps.gate.baseline import SETTINGS_CHANGED, BaselineEntry, entry_of
from erfscope.apps.gate.compare import compare_entries
from erfscope.apps.gate.observed import Observed, observe
from erfscope.apps.gate.sample_sizes import growth_notice, is_enough, more_images, sizes
from erfscope.apps.gate.tolerance import (
    Tolerance,
    is_absolute_length,
    pointless,
    refuse_beyond,
    refuse_pointless,
    tolerances,
)
from erfscope.apps.gate.verdict import PYTHON, CheckAdvice, CheckReport, Verdict
from erfscope.core import ErfscopeError, Model, Options, Request, Result, open_model, unknown
from erfscope.show import check_target


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """One check: what is measured, and how far it may move."""

    #: By default its label, or what the model is called.
    name: str = ""
    model: Model
    #: By measure, as words or ready; None for the defaults.
    tolerances: Mapping[str, object] | None = None
    #: Those of ``erfscope.analyze``.
    options: Options = field(default_factory=Options)
    #: What to do with what is found, where the check is run.
    advice: CheckAdvice = PYTHON
    #: The longest halo that tiles may need on any side, in input pixels; None guards none.
    longest_halo: int | None = None

    def __post_init__(self) -> None:
        is_named = isinstance(self.model, str | Path)
        called = self.model if is_named else getattr(self.model, "spec", type(self.model).__name__)
        object.__setattr__(self, "name", self.name or self.options.get("label") or str(called))


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

    Where the images of ``samples`` do not decide, more are added, twice as many each time, as far as the baseline has
    them: up to 16 times, as many as the noise asks for when it is written.

    On the CPU unless ``device`` says otherwise. A spec's weights are its pretrained ones, its checkpoint's or, with
    ``weights="random"``, random ones; nothing falls back.

    Args:
        model: A spec, an adapter or a live module, as for :func:`erfscope.analyze`.
        name: Of the baseline's entry; the label, or what the model is called, if None.
        baseline: The baseline file.
        tolerances: By measure, such as ``{"r50": "-5%", "far_mass": "-0.02"}``; see :func:`erfscope.gate.parse`.
            r50, r90 and far_mass with -5 % each if None, or 1 % both ways where weights and structure are the same.
        update: Write what is found into the baseline.
        missing: What to do where the baseline has no such entry: ``"refuse"``, ``"write"`` one and still not pass, or
            ``"accept"`` what is found; None writes where there is no file at all, and refuses otherwise.
        trf_only: Compare the structure only, which needs no weights.
        longest_halo: The longest halo in input pixels that tiles may need on any side, see :func:`erfscope.tile`; it is
            that of ``layer``, or of what the model returns. None guards none.
        **options: As for :func:`erfscope.analyze`, each with one value, without ``until_se`` and ``shard``.

    Returns:
        The verdict, with ``word``, ``text`` and ``exit_code``.

    Raises:
        ErfscopeError: an option, a tolerance or the baseline cannot be used, or a tolerance guards nothing. What is
            wrong with the model is a verdict, not an error.
    """
    request = CheckRequest(
        name=name or "",
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
        result: What :func:`erfscope.analyze` gave, or :func:`erfscope.read`, over any of the numbers of images that the
            baseline has.
        baseline: The baseline file.
        name: Of the entry; the result's label if None.
        tolerances: As for :func:`check`.

    Raises:
        ErfscopeError: a tolerance or the baseline cannot be used.
    """
    own = name or result.label
    expected = baselines.read(Path(baseline)).get(own)
    allowed = _parsed(tolerances)
    refuse_pointless(allowed or {}, expected)
    result.compute(allowed or ())
    verdict = compare_entries(entry_of(result), expected, name=own, tolerances=allowed)
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
    if missing not in (None, *get_args(Missing)):
        raise unknown("missing", str(missing), get_args(Missing))
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
    prepared = [_checked(request, None if update else known.get(request.name)) for request in requests]
    verdicts: list[Verdict] = []
    accepted: dict[str, BaselineEntry] = {}
    for check, (request, allowed) in zip(requests, prepared, strict=True):
        expected = known.get(check.name)
        is_written = update or (expected is None and policy != "refuse")
        observed = observe(check.model, request, allowed, trf_only=trf_only)
        obtained = observed.entry if not is_written else _with_more(observed, allowed)
        found = _verdict(check, observed, expected, allowed, trf_only=trf_only, is_decided=not is_written)
        found = _to_write(found, obtained, allowed) if is_written else found
        found = settled(found, update=update, policy=policy, path=path, trf_only=trf_only)
        if obtained.unusable is None and is_written:
            accepted[check.name] = entry_to_store(obtained, expected, trf_only=trf_only)
        if check.longest_halo is not None:
            found = with_halo(found, check.model, request, check.longest_halo)
        verdicts.append(found)
    if accepted:
        baselines.update(path, accepted)
    return CheckReport(verdicts=tuple(verdicts), baseline=path, written=tuple(accepted))


def _checked(check: CheckRequest, expected: BaselineEntry | None) -> tuple[Request, dict[str, Tolerance] | None]:
    """Read the options and the tolerances, and refuse what needs no measurement to be refused."""
    try:
        request = Request.parse({"device": "cpu", **check.options})
        for name in request.several():
            raise ErfscopeError(f"a check is of one result, and {name} asks for several; write one check for each")
        if request.settings.until_se is not None:
            raise ErfscopeError("until_se would measure another number of images each time; a check takes --samples")
        if request.settings.shard is not None:
            raise ErfscopeError("a shard is a part of a measurement, and a check needs the whole; leave shard out")
        request.refuse_weights(check.model)
        allowed = _parsed(check.tolerances)
        refuse_pointless(allowed or {}, expected)
        _refuse_beyond_input(check.model, request, allowed or {}, expected)
        return request, allowed
    except ErfscopeError as error:
        raise ErfscopeError(f"check {check.name!r}: {error}") from error


def _refuse_beyond_input(
    model: Model, request: Request, allowed: Mapping[str, Tolerance], expected: BaselineEntry | None
) -> None:
    """Refuse tolerances of lengths that no ERF within an image has. The model says the size where nothing else does;
    volumes and sequences, and pixels with a spacing, have other units."""
    if request.building.keys() & {"axes", "spacing"} or not any(map(is_absolute_length, allowed, allowed.values())):
        return
    size: Sequence[int] = () if expected is None else expected.protocol["input_size"]
    if not size:
        with contextlib.suppress(ErfscopeError):  # what is wrong with the model is a verdict
            size = open_model(model, request, with_numbers=False).input_size
    if len(size) == 2:
        refuse_beyond(allowed, size)


def _parsed(given: Mapping[str, object] | None) -> dict[str, Tolerance] | None:
    return tolerances(given) if given else None


def _verdict(
    check: CheckRequest,
    first: Observed,
    expected: BaselineEntry | None,
    allowed: Mapping[str, Tolerance] | None,
    *,
    trf_only: bool,
    is_decided: bool,
) -> Verdict:
    """The verdict over the first images, or where these do not decide over more, as many as the baseline has.

    Args:
        check: The check.
        first: What was found over the first images.
        expected: The baseline's entry.
        allowed: The tolerances.
        trf_only: Whether only the structure is compared.
        is_decided: Whether more images are worth it: nothing is written.
    """
    number = first.entry.protocol.get("samples", 0)
    known = expected.more if expected is not None and is_decided else ()
    more = [look for look in known if look.samples > number]

    def compared(observed: Observed) -> Verdict:
        found = compare_entries(
            observed.entry,
            expected,
            name=check.name,
            tolerances=allowed,
            structure_only=trf_only,
            looks=1 + len(more),
            advice=check.advice,
        )
        return replace(found, result=observed.result)

    found, seen = compared(first), 0
    for look in more:
        if not found.is_noisy:
            break
        observed = first.over(look.samples)
        later = None if observed is None else compared(observed)
        if later is None or later.cause == SETTINGS_CHANGED:
            text = f"the baseline has {look.samples} images, and they are not those that are here now"
            return replace(found, notices=(*found.notices, text))
        found, seen = later, look.samples
    text = f"more images were added: {seen} of at most {more[-1].samples}" if seen else ""
    return replace(found, notices=(*found.notices, text)) if text else found


def _with_more(first: Observed, allowed: Mapping[str, Tolerance] | None) -> BaselineEntry:
    """What is written into a baseline: measured over more and more images, until the noise allows nearly every check to
    be decided."""
    last = first
    more = []
    for samples in sizes(first.entry.protocol.get("samples", 0)):
        if is_enough(last.entry, allowed):
            break
        later = first.over(samples)
        if later is None or later.entry.unusable is not None:
            break
        more.append(more_images(later.entry))
        last = later
        if more[-1].samples < samples:
            break
    return replace(first.entry, more=tuple(more))


def _to_write(found: Verdict, obtained: BaselineEntry, allowed: Mapping[str, Tolerance] | None) -> Verdict:
    """The verdict on what is written, with a notice on the number of its images."""
    notices = [
        pointless(name, each, obtained.measures[name])
        for name, each in (allowed or {}).items()
        if name in obtained.measures
    ]
    found = replace(found, notices=(*found.notices, *filter(None, notices)))
    last = obtained.more[-1].samples if obtained.more else None
    text = growth_notice(obtained, is_enough=is_enough(obtained.over(last), allowed))
    return replace(found, obtained=obtained, notices=(*found.notices, text) if text else found.notices)

"""One entry of a baseline: the settings, what was found, and on which machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta

from erfscope.environment import environment
from erfscope.gate import structure as structures
from erfscope.gate.structure import Structure
from erfscope.maps.accumulator import GROUPS, Over
from erfscope.measures import MEASURES, MeasureValue
from erfscope.results.comparability import CONDITIONS, Condition, Use
from erfscope.results.json_values import plain, to_json
from erfscope.results.result import Result

#: Settings as they were asked for: a result holds none of them, or only what they led to.
ASKED = ("layer", "unit", "model_kwargs")
#: The cause of a verdict on an entry that was measured under other settings.
SETTINGS_CHANGED = "settings changed"
#: Significant digits that are stored: float32 has no more, and a diff of two baselines can be read.
DIGITS = 7


class Question(TypedDict):
    """The settings of every check."""

    model: str
    insert: str | None
    wrt: str
    input_size: Sequence[int]


class Protocol(Question, total=False):
    """The settings of a check; those from the convention on exist only where images were shown."""

    #: As they were asked for.
    layer: str | None
    unit: str
    model_kwargs: Mapping[str, Any] | None
    convention: str
    method: str
    alpha: float | None
    stimuli: str
    samples: Annotated[int, Meta(ge=1)]
    draws: int | str
    seed: int
    dtype: str
    amp_dtype: str | None
    #: "own" are identified by their hash.
    weights: Literal["random", "random-raw", "own"]
    #: Options that are not the default, by name.
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMeasure:
    """One measure as a baseline keeps it."""

    #: None where the measure does not exist for the map.
    value: float | None
    #: Standard error; None where there is none.
    se: float | None
    #: Usable images, or draws where the error is over draws.
    n: Annotated[int, Meta(ge=0)]
    over: Over
    #: Values without one group of images (or draws) each.
    leave_one_out: Annotated[tuple[float, ...], Meta(max_length=GROUPS)] = ()

    def as_measured(self, name: str) -> MeasureValue:
        """The value as a measured one, for the statistics of differences."""
        return MeasureValue(value=self.value, se=self.se, leave_one_out=self.leave_one_out, kind=MEASURES[name].kind)


class UsedWeights(TypedDict, total=False):
    """The source of a model's weights; empty where none were needed."""

    source: str
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEntry:
    """All that a baseline keeps of one check, or that a check finds."""

    #: The settings; only entries of the same settings can be compared.
    protocol: Mapping[str, Any] = field(default_factory=dict)
    structure: Structure | None = None
    weights: UsedWeights = field(default_factory=UsedWeights)
    measures: Mapping[str, BaselineMeasure] = field(default_factory=dict)
    #: Versions, device, threads, hash of the first image's pixels: they may differ.
    recorded: Mapping[str, str | int | None] = field(default_factory=dict)
    #: Why there is nothing to compare. Such an entry is never stored.
    unusable: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, options that are not the default among them."""
        asked = dict(self.protocol)
        options: Mapping[str, Any] = asked.pop("options", {})
        return asked | {
            name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in options.items()
        }

    def to_json(self) -> dict[str, Any]:
        """The entry that ``schema/baseline-1.json`` describes."""
        return {name: value for name, value in sorted(to_json(self).items()) if name != "unusable"}


def entry_of(
    result: Result, *, asked: Mapping[str, Any] | None = None, names: Sequence[str] | None = None
) -> BaselineEntry:
    """The entry of a result.

    Args:
        result: The result.
        asked: :data:`ASKED` as they were asked for.
        names: The measures to keep; all numbers if None.

    Returns:
        The entry, ``unusable`` where the result is not ok or some images gave NaN.
    """
    result.compute(names or ())
    kept = [name for name in (result.measures if names is None else names) if name in result.measures]
    return BaselineEntry(
        protocol={**_protocol(result), **(asked or {})},
        structure=structures.structure_of(result),
        weights={"source": result.weights.source, "sha256": result.weights.sha256},
        measures={name: _recorded(result, name) for name in kept if not isinstance(result[name].value, str)},
        recorded=_circumstances(result),
        unusable=_unusable(result),
    )


def _unusable(result: Result) -> str | None:
    broken = next((finding.text for finding in result.findings if finding.code == "nan_images"), None)
    return None if result.ok and broken is None else result.error or broken or f"the result is {result.status}"


def protocol_conditions(*, measured: bool) -> list[Condition]:
    """The conditions of a protocol: those of every one, and where images were shown the others too."""
    return [each for each in CONDITIONS if each.gate and (measured or each.uses & Use.STRUCTURE)]


def _protocol(result: Result) -> dict[str, Any]:
    """The settings that a result holds; a model that failed was shown no images, and has none of theirs."""
    measured = result.input.n_images > 0
    found = {each.gate: plain(each.of(result)) for each in protocol_conditions(measured=measured)}
    return {**found, "options": plain(result.options)} if measured and result.options else found


def _recorded(result: Result, name: str) -> BaselineMeasure:
    measure, pictures = result[name], result.input
    drawn = pictures.n_draws if isinstance(pictures.n_draws, int) else 1
    return BaselineMeasure(
        value=_rounded(measure.value),
        se=_rounded(measure.se),
        n=drawn if result.se_over == "draws" else pictures.n_images - pictures.n_dead,
        over=result.se_over,
        leave_one_out=tuple(float(f"{value:.{DIGITS}g}") for value in measure.leave_one_out),
    )


def _rounded(value: object) -> float | None:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else None


def _circumstances(result: Result) -> dict[str, Any]:
    """Versions, device and the like, which may differ from one machine to the next, as a flat mapping."""
    around = environment()
    found = {**around["versions"], **{name: around[name] for name in ("python", "system", "threads")}}
    found |= {"device": result.device, "transform": result.input.transform}
    if result.picture is not None:
        found["pixels"] = hashlib.sha256(np.asarray(result.picture).tobytes()).hexdigest()
    return found

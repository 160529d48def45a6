"""One entry of a baseline: what was asked, what was found, and on what."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from erfscope.environment import environment
from erfscope.gate import structure as structures
from erfscope.gate.structure import Structure
from erfscope.measures import MEASURES, MeasureValue
from erfscope.results.json_values import fields, plain
from erfscope.results.result import Result
from erfscope.stimuli import KINDS

#: What every protocol says, and what it says besides where pictures were shown.
ASKED = ("model", "insert", "wrt", "input_size")
MEASURED = ("alpha", "amp_dtype", "convention", "draws", "dtype", "method", "samples", "seed", "stimuli", "weights")
#: Significant digits that are stored: float32 has no more, and a diff of two baselines can be read.
DIGITS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMeasure:
    """One measure as a baseline keeps it."""

    #: None where the measure does not exist for the map.
    value: float | None
    #: Standard error; None where there is none.
    se: float | None
    #: Usable pictures, or draws where the error is over draws.
    n: int
    #: "images" or "draws".
    over: str
    #: Values without one group of pictures (or draws) each, at most ten.
    leave_one_out: tuple[float, ...] = ()

    def as_measured(self, name: str) -> MeasureValue:
        """The value as the statistics take it."""
        return MeasureValue(value=self.value, se=self.se, leave_one_out=self.leave_one_out, kind=MEASURES[name].kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Everything that is kept of one check, or was found by one."""

    #: What was asked; only the same questions can be compared.
    protocol: Mapping[str, Any] = field(default_factory=dict)
    structure: Structure | None = None
    #: "source" and "sha256" of the weights; empty where none were needed.
    weights: Mapping[str, str | None] = field(default_factory=dict)
    measures: Mapping[str, BaselineMeasure] = field(default_factory=dict)
    #: Versions, device, threads, hash of the first picture's pixels: they may differ.
    recorded: Mapping[str, Any] = field(default_factory=dict)
    #: Why there is nothing to compare. Such an entry is never stored.
    unusable: str | None = None

    def to_json(self) -> dict[str, Any]:
        """What ``schema/baseline-1.json`` describes as an entry."""
        document: dict[str, Any] = plain(
            {
                "measures": {name: fields(found) for name, found in self.measures.items()},
                "protocol": self.protocol,
                "recorded": self.recorded,
                "structure": None if self.structure is None else self.structure.to_json(),
                "weights": self.weights,
            }
        )
        return document


def from_json(document: Mapping[str, Any]) -> Entry:
    """A stored entry.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the document is not of this format.
    """
    found = {name: _recorded_from(name, measure) for name, measure in document["measures"].items()}
    protocol = {**document["protocol"]}
    missing = [key for key in (*ASKED, *(MEASURED if found else ())) if key not in protocol]
    if missing or (found and "sha256" not in document["weights"]):
        raise ValueError(f"the protocol lacks {', '.join(missing) or 'the weights'}")
    return Entry(
        protocol=protocol,
        structure=structures.from_json(document["structure"]),
        weights=dict(document["weights"]),
        measures=found,
        recorded=dict(document["recorded"]),
    )


def _recorded_from(name: str, measure: Mapping[str, Any]) -> BaselineMeasure:
    """A stored measure, seen to be what it should be: what is no number would pass every comparison."""
    values = measure["leave_one_out"]
    if not isinstance(values, list):
        raise TypeError(f"leave_one_out of {name} is no list")
    for value in (measure["value"], measure["se"], *values):
        if value is not None and not (structures.is_number(value)):
            raise TypeError(f"{name} holds {value!r}, which is no finite number")
    if None in values or not isinstance(measure["n"], int) or measure["over"] not in ("images", "draws"):
        raise TypeError(f"{name} is damaged")
    return BaselineMeasure(**{**measure, "leave_one_out": tuple(values)})


def entry_of(result: Result, *, asked: Mapping[str, Any] | None = None, names: Sequence[str] | None = None) -> Entry:
    """What a check keeps of a result.

    Args:
        result: The result.
        asked: Parts of the protocol that a result does not know, or knows only as what became of them: "layer" and "unit" as they were
            asked for, "model_kwargs".
        names: The measures to keep; all numbers if None.

    Returns:
        The entry, ``unusable`` where the result is not ok or some pictures gave NaN.
    """
    kept = [name for name in (result.measures if names is None else names) if name in result.measures]
    return Entry(
        protocol={**_protocol(result), **(asked or {})},
        structure=structures.structure_of(result),
        weights={"source": result.weights.source, "sha256": result.weights.sha256},
        measures={name: _recorded(result, name) for name in kept if not isinstance(result[name].value, str)},
        recorded=_circumstances(result),
        unusable=_unusable(result),
    )


def _unusable(result: Result) -> str | None:
    broken = next((finding.text for finding in result.warnings if finding.code == "nan_images"), None)
    return None if result.ok and broken is None else result.error or broken or f"the result is {result.status}"


def _protocol(result: Result) -> dict[str, Any]:
    """What was asked, as far as a result knows."""
    question = {"input_size": list(result.input.size), "insert": result.insert, "model": result.model, "wrt": result.wrt}
    if result.input.n_images == 0:
        # A model that failed has seen no pictures, whatever was asked for.
        return question
    source = result.input.source
    # Random weights that differ in what is switched on show different things; any others are the model's own, to be told by their hash.
    weights = result.weights.source if result.weights.source in ("random", "random-raw") else "own"
    return {
        **question,
        "alpha": result.alpha,
        "amp_dtype": result.amp_dtype,
        "convention": result.convention,
        "draws": result.input.n_draws,
        "dtype": result.dtype,
        "method": result.method,
        "samples": result.input.n_images,
        "seed": result.seed,
        # Pictures drawn by a rule are told by the rule, others by their hash.
        "stimuli": f"{source}, version {KINDS[source].version}" if source in KINDS else f"{source} {result.input.sha256}",
        "weights": weights,
    }


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
    """What may differ from one machine to the next, flat."""
    around = environment()
    found = {**around["versions"], **{name: around[name] for name in ("python", "system", "threads")}}
    found |= {"device": result.device, "transform": result.input.transform}
    if result.picture is not None:
        found["pixels"] = hashlib.sha256(np.asarray(result.picture).tobytes()).hexdigest()
    return found

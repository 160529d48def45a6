"""The comparison of what was found with what is expected: one pure function, for the command, the tests and Python
alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from erfscope.errors import ErfscopeError
from erfscope.gate.entry import ASKED, BaselineEntry, protocol_conditions
from erfscope.gate.judge import MeasureVerdict, judge, shown_word
from erfscope.gate.measure_range import check_tolerance_guards
from erfscope.gate.structure import StructureChange, changes
from erfscope.gate.tolerance import Tolerance, defaults
from erfscope.geometry.names import IMAGE
from erfscope.results.result import Result

Word = Literal["pass", "fail", "cannot tell", "new", "updated"]
#: Exit codes; of several verdicts a failure counts first.
EXIT_CODES: dict[str, int] = {"fail": 1, "cannot tell": 3, "pass": 0, "new": 0, "updated": 0}
#: Questions about the structure alone; the others are about the measurement.
STRUCTURAL = (*ASKED, *(condition.gate for condition in protocol_conditions(measured=False)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one check."""

    name: str
    word: Word
    #: Whether what was found became a baseline entry just now, where there was none.
    created: bool = False
    #: What changed, or why it is inconclusive, in a few words: "model changed".
    cause: str
    #: What differs in the structure.
    structure: tuple[StructureChange, ...] = ()
    #: Every guarded measure.
    measures: tuple[MeasureVerdict, ...] = ()
    #: Why nothing, or only the structure, could be compared; "" where everything was.
    reason: str = ""
    #: What does not count against the model, but should be known.
    notices: tuple[str, ...] = ()
    #: The command that accepts what was found; "" where there is nothing to accept.
    accept: str = ""
    obtained: BaselineEntry
    #: None where the baseline has no such entry.
    expected: BaselineEntry | None = None
    #: The measurement itself, with its map; None where only the structure was looked at, or nothing could be measured.
    result: Result | None = None

    @property
    def shown(self) -> str:
        """The verdict as people read it; ``word`` is what code and JSON have."""
        return "baseline created" if self.created else shown_word(self.word)

    @property
    def ok(self) -> bool:
        """Whether nothing stands against the model."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0, 1 where it fails, 3 where it is inconclusive."""
        return EXIT_CODES[self.word]

    @property
    def text(self) -> str:
        """The verdict in plain text: obtained, expected and tolerance of every measure, and the accepting command."""
        from erfscope.gate.text import verdict_lines

        return "\n".join(line.text for line in verdict_lines(self))

    @property
    def needed(self) -> int | None:
        """How many samples would settle what is inconclusive for its noise; None where nothing is, or no number
        would."""
        return max((measure.needed for measure in self.measures if measure.needed is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        from erfscope.gate.document import verdict_to_json

        return verdict_to_json(self)


def compare(
    obtained: BaselineEntry,
    expected: BaselineEntry | None,
    *,
    name: str,
    tolerances: Mapping[str, Tolerance] | None = None,
    structure_only: bool = False,
    accept: str = "",
) -> Verdict:
    """Compare what was found with what a baseline holds.

    Args:
        obtained: What was found.
        expected: The baseline's entry; None if it has none.
        name: Of the check.
        tolerances: By measure; r50, r90 and far_mass by default, -5 % each, or 1 % both ways where weights and
            structure are the same.
        structure_only: Whether nothing was to be measured.
        accept: The command that accepts what was found.

    Returns:
        "fail" where the structure or a measure fails, else "cannot tell" (shown as "inconclusive") where anything could
        not be compared, else "pass".

    Raises:
        ErfscopeError: a tolerance guards nothing where the baseline has these values.
    """
    if expected is None:
        return _without_baseline(obtained, name, accept)
    asked = list(_questions(obtained, expected))
    shape: list[StructureChange] = []
    if obtained.structure and expected.structure and not any(question.key in STRUCTURAL for question in asked):
        shape = list(changes(obtained.structure, expected.structure))
    verdicts: list[MeasureVerdict] = []
    if obtained.unusable is None and not asked and obtained.measures:
        verdicts = list(
            _measures(obtained, expected, tolerances or defaults(same_weights=_same_model(obtained, expected, shape)))
        )
    reason = obtained.unusable or "; ".join(question.text for question in asked)
    if not reason and obtained.structure is None:
        reason = "the result does not say which unit of which layer it is of"
    elif not reason and not structure_only and not obtained.measures:
        reason = "nothing was measured that could be compared"
    word = _word({*(change.verdict for change in shape), *(measure.word for measure in verdicts)}, reason)
    return Verdict(
        name=name,
        word=word,
        cause=_cause(obtained, expected, shape, verdicts, asked),
        structure=tuple(shape),
        measures=tuple(verdicts),
        reason=reason,
        notices=(*_notices(shape, verdicts), *(() if asked else _circumstances(obtained, expected))),
        accept="" if word == "pass" or obtained.unusable is not None else accept,
        obtained=obtained,
        expected=expected,
    )


def _without_baseline(obtained: BaselineEntry, name: str, accept: str) -> Verdict:
    """What was found where there is nothing to compare it with."""
    usable = obtained.unusable is None
    return Verdict(
        name=name,
        word="cannot tell",
        cause="no baseline entry" if usable else "no usable result",
        reason=obtained.unusable or "the baseline has no such entry",
        accept=accept if usable else "",
        obtained=obtained,
    )


def _notices(shape: Sequence[StructureChange], verdicts: Sequence[MeasureVerdict]) -> Iterator[str]:
    """What moved the way that nobody guards."""
    yield from (change.text for change in shape if change.verdict == "notice")
    yield from (measure.notice for measure in verdicts if measure.notice)


def _same_model(obtained: BaselineEntry, expected: BaselineEntry, shape: Sequence[StructureChange]) -> bool:
    """Whether both were measured with the very same weights in the same structure, so that only the measurement can
    have moved."""
    ours, theirs = obtained.weights.get("sha256"), expected.weights.get("sha256")
    return ours is not None and ours == theirs and not shape


@dataclass(frozen=True, slots=True)
class _Question:
    """A part of the protocol that is not as it was."""

    key: str
    obtained: Any
    expected: Any

    @property
    def text(self) -> str:
        return f"{self.key.replace('_', ' ')} is {_shown(self.obtained)} and was {_shown(self.expected)}"


def _questions(obtained: BaselineEntry, expected: BaselineEntry) -> Iterator[_Question]:
    """Where the two protocols differ; what one of them does not know is not compared."""
    known = {*obtained.protocol} & {*expected.protocol} - {"options"}
    # An option that is not named has its default.
    options = (
        {*obtained.questions, *expected.questions} - {*obtained.protocol, *expected.protocol}
        if "method" in known
        else set()
    )
    for key in sorted(known | options):
        if obtained.questions.get(key) != expected.questions.get(key):
            yield _Question(key, obtained.questions.get(key), expected.questions.get(key))
    ours, theirs = obtained.structure, expected.structure
    if ours is not None and theirs is not None:
        # Where one side does not know what was asked for, what became of it must do.
        if not ("layer" in obtained.protocol and "layer" in expected.protocol) and ours.layer != theirs.layer:
            yield _Question("layer", ours.layer, theirs.layer)
        if not ("unit" in obtained.protocol and "unit" in expected.protocol) and ours.unit != theirs.unit:
            yield _Question("unit", list(ours.unit), list(theirs.unit))


def _measures(
    obtained: BaselineEntry, expected: BaselineEntry, tolerances: Mapping[str, Tolerance]
) -> Iterator[MeasureVerdict]:
    for name, tolerance in tolerances.items():
        yield judge(
            name, tolerance, obtained.measures.get(name), expected.measures.get(name), size=_reference_size(expected)
        )


def objections(tolerances: Mapping[str, Tolerance], expected: BaselineEntry) -> dict[str, str]:
    """Why some tolerances guard nothing where a baseline has these values, by measure; see
    :mod:`erfscope.gate.measure_range`."""
    found: dict[str, str] = {}
    for name, tolerance in tolerances.items():
        recorded = expected.measures.get(name)
        try:
            if recorded is not None and recorded.value is not None:
                check_tolerance_guards(name, tolerance, recorded.value, size=_reference_size(expected))
        except ErfscopeError as error:
            found[name] = str(error)
    return found


def _reference_size(entry: BaselineEntry) -> Sequence[int] | None:
    """Spatial size of the reference, where that is the image."""
    size = entry.protocol.get("input_size")
    known = (
        entry.protocol.get("wrt") == IMAGE
        and isinstance(size, list)
        and all(isinstance(side, int | float) for side in size)
    )
    return size if known else None


def _word(found: set[str], reason: str) -> Word:
    if "fail" in found:
        return "fail"
    return "cannot tell" if reason or "cannot tell" in found else "pass"


def _cause(
    obtained: BaselineEntry,
    expected: BaselineEntry,
    shape: list[StructureChange],
    verdicts: list[MeasureVerdict],
    asked: list[_Question],
) -> str:
    if any(change.verdict == "fail" for change in shape):
        return "structure changed"
    if obtained.unusable is not None:
        return "no usable result"
    if asked:
        return "protocol changed"
    if any(change.verdict == "cannot tell" for change in shape):
        return "TRF is only bounded"
    if not verdicts:
        return "structure unchanged" if not shape else "structure changed, which is no failure"
    same = _same_model(obtained, expected, shape)
    if any(measure.word == "fail" for measure in verdicts):
        return "measurement changed, with the same weights" if same else "model changed"
    if any(measure.word == "cannot tell" for measure in verdicts):
        return "same weights, and too noisy to tell" if same else "model changed, and too noisy to tell"
    return "same weights" if same else "model changed, within the tolerances"


def _circumstances(obtained: BaselineEntry, expected: BaselineEntry) -> Iterator[str]:
    """One line on what was measured with something else."""
    keys = sorted({*obtained.recorded} & {*expected.recorded})
    moved = [key for key in keys if obtained.recorded[key] != expected.recorded[key]]
    if moved:
        texts = (f"{key} {_shown(obtained.recorded[key])} (was {_shown(expected.recorded[key])})" for key in moved)
        yield f"measured with {', '.join(texts)}"
    pairs = [
        (obtained.measures[name], expected.measures[name]) for name in obtained.measures if name in expected.measures
    ]
    if any(ours.n != theirs.n for ours, theirs in pairs):
        ours, theirs = next(pair for pair in pairs if pair[0].n != pair[1].n)
        yield f"{ours.n} {ours.over} could be used, {theirs.n} in the baseline"


def _shown(value: Any) -> str:
    if value is None:
        return "the default"
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    # A hash is told apart by its beginning.
    return " ".join(word[:12] if len(word) == 64 else word for word in text.split(" "))

"""The comparison of what was found with what is expected: one pure function, for the command, the tests and Python
alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from erfscope.apps.gate.baseline import ASKED, SETTINGS_CHANGED, BaselineEntry, BaselineQuestion
from erfscope.apps.gate.judge import MeasureVerdict, has_moved, judge
from erfscope.apps.gate.structure import StructureChange, changes
from erfscope.apps.gate.tolerance import Tolerance, defaults
from erfscope.apps.gate.verdict import PYTHON, CheckAdvice, Verdict

#: The share of a measure that rounding moves at most, from one batch size or number of threads to another: in float32
#: it flips single ReLU gates. Images are noise in types with fewer digits.
ROUNDING = {"float64": 1e-6, "float32": 2e-3}
#: Settings that decide the structure; the others decide the measurement.
STRUCTURAL = (*ASKED, *BaselineQuestion.__annotations__)


def compare_entries(
    obtained: BaselineEntry,
    expected: BaselineEntry | None,
    *,
    name: str,
    tolerances: Mapping[str, Tolerance] | None = None,
    structure_only: bool = False,
    looks: int = 1,
    advice: CheckAdvice = PYTHON,
) -> Verdict:
    """Compare what was found with what a baseline holds.

    Args:
        obtained: What was found.
        expected: The baseline's entry, which may be over several numbers of images; None if it has none.
        name: Of the check.
        tolerances: By measure; r50, r90 and far_mass by default, -5 % each, or 1 % both ways where weights and
            structure are the same.
        structure_only: Whether nothing was to be measured.
        looks: How often the check may be decided, over more and more images, of which this is one time.
        advice: What to do with what was found.

    Returns:
        "fail" where the structure or a measure fails, else "cannot tell" (shown as "inconclusive") where anything could
        not be compared, else "pass".
    """
    accept = "" if obtained.unusable is not None else advice.accept
    if expected is None:
        cause = "no baseline entry" if obtained.unusable is None else "no usable result"
        reason = obtained.unusable or "the baseline has no such entry"
        return Verdict(
            name=name, word="cannot tell", cause=cause, reason=reason, accept=accept, advice=advice, obtained=obtained
        )
    expected = expected.over(obtained.protocol.get("samples"))
    asked = list(_setting_changes(obtained, expected))
    shape: list[StructureChange] = []
    if obtained.structure and expected.structure and not any(each.key in STRUCTURAL for each in asked):
        shape = list(changes(obtained.structure, expected.structure))
    model = _Sameness.of(obtained, expected, shape)
    verdicts: list[MeasureVerdict] = []
    has_place = obtained.structure is None or bool(obtained.structure.center_px)
    allowed = tolerances or defaults(same_weights=model.is_same, has_place=has_place)
    if obtained.unusable is None and not asked and obtained.measures:
        verdicts = [
            judge(
                measure,
                tolerance,
                obtained.measures.get(measure),
                expected.measures.get(measure),
                measures=len(allowed),
                looks=looks,
                rounding=model.rounding,
            )
            for measure, tolerance in allowed.items()
        ]
    reason = obtained.unusable or "; ".join(each.text for each in asked)
    if not reason and obtained.structure is None:
        reason = "the result names no unit of a layer"
    elif not reason and not structure_only and not obtained.measures:
        reason = "nothing was measured that could be compared"
    words = {*(change.verdict for change in shape), *(measure.word for measure in verdicts)}
    is_open = bool(reason) or "cannot tell" in words
    # Changes in the unguarded direction, and those of operations.
    notices = [change.text for change in shape if change.verdict == "notice"]
    notices += [measure.notice for measure in verdicts if measure.notice]
    return Verdict(
        name=name,
        word="fail" if "fail" in words else "cannot tell" if is_open else "pass",
        cause=_cause(obtained, shape, verdicts, model, settings_changed=bool(asked)),
        structure=tuple(shape),
        measures=tuple(verdicts),
        reason=reason,
        notices=(*notices, *(() if asked else _circumstances(obtained, expected))),
        accept=accept if "fail" in words or is_open else "",
        advice=advice,
        has_default_tolerances=not tolerances,
        obtained=obtained,
        expected=expected,
    )


def is_same_structure(obtained: BaselineEntry, expected: BaselineEntry) -> bool:
    """Whether two entries are of one structure, found with the same settings."""
    if obtained.structure is None or expected.structure is None or any(_setting_changes(obtained, expected)):
        return False
    return not any(changes(obtained.structure, expected.structure))


@dataclass(frozen=True, slots=True)
class _Sameness:
    """What two entries have in common, and so what can have moved a measure."""

    #: Whether weights and shape are the same, so that only the code or the measurement can have moved.
    is_same: bool
    #: Whether other operations were recorded.
    has_other_operations: bool
    #: What changed where the model is not the same, in a few words.
    other: str
    #: The share of a measure that rounding may move, where nothing else does: the same weights saw the same images.
    rounding: float | None
    #: Whether versions, the device and the like are others.
    has_other_environment: bool

    @classmethod
    def of(cls, obtained: BaselineEntry, expected: BaselineEntry, shape: Sequence[StructureChange]) -> Self:
        """Compare two entries, whose structure has changed so."""
        sha256, protocol = obtained.weights.get("sha256"), obtained.protocol
        same_weights = sha256 is not None and sha256 == expected.weights.get("sha256")
        pixels = [each.recorded.get("pixels") for each in (obtained, expected)]
        is_exact = same_weights and bool(obtained.recorded) and pixels[0] == pixels[1] and not protocol.get("amp_dtype")
        is_other = any(change.is_operation for change in shape)
        rounding = ROUNDING.get(protocol.get("dtype", "")) if is_exact else None
        return cls(
            is_same=same_weights and all(change.is_operation for change in shape),
            has_other_operations=is_other,
            other=_other_model(obtained, expected, shape),
            rounding=0.0 if is_other and rounding is not None else rounding,
            has_other_environment=any(_circumstances(obtained, expected)),
        )

    def changed(self, verdicts: Sequence[MeasureVerdict]) -> str:
        """What changed of a model whose weights are the same, if that is known: operations that were recorded, or else
        the code around them, where the same images have moved a measure by more than rounding does; "" for nothing."""
        if not self.is_same or self.has_other_operations:
            return "operations changed" if self.is_same else ""
        if self.rounding is None or not any(has_moved(each, self.rounding) for each in verdicts):
            return ""
        return "code or environment changed" if self.has_other_environment else "code changed"


@dataclass(frozen=True, slots=True)
class _SettingChange:
    """A setting that is not as it was."""

    key: str
    obtained: Any
    expected: Any

    @property
    def text(self) -> str:
        return f"{self.key.replace('_', ' ')} is {_shown(self.obtained)} and was {_shown(self.expected)}"


def _setting_changes(obtained: BaselineEntry, expected: BaselineEntry) -> Iterator[_SettingChange]:
    """Settings that differ; a setting that only one of the two entries has is not compared."""
    known = {*obtained.protocol} & {*expected.protocol} - {"options"}
    # An option that is not named has its default.
    options = (
        {*obtained.settings, *expected.settings} - {*obtained.protocol, *expected.protocol}
        if "method" in known
        else set()
    )
    for key in sorted(known | options):
        if obtained.settings.get(key) != expected.settings.get(key):
            yield _SettingChange(key, obtained.settings.get(key), expected.settings.get(key))
    ours, theirs = obtained.structure, expected.structure
    if ours is not None and theirs is not None:
        # Where one entry lacks the setting, the layers and units that were measured are compared.
        if not ("layer" in obtained.protocol and "layer" in expected.protocol) and ours.layer != theirs.layer:
            yield _SettingChange("layer", ours.layer, theirs.layer)
        if not ("unit" in obtained.protocol and "unit" in expected.protocol) and ours.unit != theirs.unit:
            yield _SettingChange("unit", list(ours.unit), list(theirs.unit))


def _cause(
    obtained: BaselineEntry,
    shape: list[StructureChange],
    verdicts: list[MeasureVerdict],
    model: _Sameness,
    *,
    settings_changed: bool,
) -> str:
    if any(change.verdict == "fail" for change in shape):
        return "structure changed"
    if obtained.unusable is not None:
        return "no usable result"
    if settings_changed:
        return SETTINGS_CHANGED
    if any(change.verdict == "cannot tell" for change in shape):
        return "TRF is only bounded"
    if not verdicts:
        if not _has_moved(shape) and any(change.is_operation for change in shape):
            return "operations changed"
        return "structure changed (allowed)" if shape else "structure unchanged"
    words = {measure.word for measure in verdicts}
    changed = model.changed(verdicts)
    if "fail" in words:
        return f"{changed or 'measurement changed'}, with the same weights" if model.is_same else model.other
    if any(measure.expected is None for measure in verdicts):
        return "measures are missing in the baseline"
    if any(measure.is_open and measure.limit is not None for measure in verdicts):
        return f"{(changed or 'same weights') if model.is_same else model.other}, and too noisy to tell"
    if any(measure.is_open and measure.difference is None and measure.se is None for measure in verdicts):
        return "a measure cannot be compared"
    if not model.is_same or changed:
        return f"{changed or model.other}, within the tolerances"
    return "same weights"


def _has_moved(shape: Sequence[StructureChange]) -> bool:
    """Whether a shape, a stride, a centre or a TRF is another one; a layer of another name and operations are not."""
    return any(not change.is_operation and change.what != "layer" for change in shape)


def _other_model(obtained: BaselineEntry, expected: BaselineEntry, shape: Sequence[StructureChange]) -> str:
    """What changed of a model, in a few words: its structure, or only its weights where all operations are known."""
    if _has_moved(shape):
        return "structure changed"
    hashes = [each.weights.get("sha256") for each in (obtained, expected)]
    known = [each.structure.operations if each.structure else {} for each in (obtained, expected)]
    is_other = None not in hashes and hashes[0] != hashes[1]
    return "weights changed" if is_other and known[0] and known[0] == known[1] and not shape else "model changed"


def _circumstances(obtained: BaselineEntry, expected: BaselineEntry) -> Iterator[str]:
    """Other differences between the two measurements: versions, the device, the number of images."""
    keys = sorted({*obtained.recorded} & {*expected.recorded})
    texts = [
        f"{key} {_shown(obtained.recorded[key])} (was {_shown(expected.recorded[key])})"
        for key in keys
        if obtained.recorded[key] != expected.recorded[key]
    ]
    if texts:
        yield f"measured with {', '.join(texts)}"
    pairs = [(ours, expected.measures[name]) for name, ours in obtained.measures.items() if name in expected.measures]
    for ours, theirs in [pair for pair in pairs if pair[0].n != pair[1].n][:1]:
        yield f"{ours.n} {ours.over} could be used, {theirs.n} in the baseline"


def _shown(value: Any) -> str:
    if value is None:
        return "the default"
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    # The first digits identify a hash.
    return " ".join(word[:12] if len(word) == 64 else word for word in text.split(" "))

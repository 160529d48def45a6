"""The comparison of what was found with what is expected: one pure function, for the command, the tests and Python
alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from erfscope.gate.baseline import ASKED, SETTINGS_CHANGED, BaselineEntry, protocol_conditions
from erfscope.gate.judge import MeasureVerdict, Tolerance, defaults, judge
from erfscope.gate.structure import StructureChange, changes
from erfscope.gate.verdict import PYTHON, Advice, Verdict

#: Settings that decide the structure; the others decide the measurement.
STRUCTURAL = (*ASKED, *(condition.gate for condition in protocol_conditions(measured=False)))


def compare(
    obtained: BaselineEntry,
    expected: BaselineEntry | None,
    *,
    name: str,
    tolerances: Mapping[str, Tolerance] | None = None,
    structure_only: bool = False,
    looks: int = 1,
    advice: Advice = PYTHON,
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
    sha256 = obtained.weights.get("sha256")
    # With these, only the measurement can have moved.
    same_model = sha256 is not None and sha256 == expected.weights.get("sha256") and not shape
    verdicts: list[MeasureVerdict] = []
    has_place = obtained.structure is None or bool(obtained.structure.center_px)
    allowed = tolerances or defaults(same_weights=same_model, has_place=has_place)
    if obtained.unusable is None and not asked and obtained.measures:
        verdicts = [
            judge(
                measure,
                tolerance,
                obtained.measures.get(measure),
                expected.measures.get(measure),
                measures=len(allowed),
                looks=looks,
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
    # Changes in the unguarded direction.
    notices = [change.text for change in shape if change.verdict == "notice"]
    notices += [measure.notice for measure in verdicts if measure.notice]
    return Verdict(
        name=name,
        word="fail" if "fail" in words else "cannot tell" if is_open else "pass",
        cause=_cause(obtained, shape, verdicts, settings_changed=bool(asked), same_model=same_model),
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
    *,
    settings_changed: bool,
    same_model: bool,
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
        return "structure changed (allowed)" if shape else "structure unchanged"
    words = {measure.word for measure in verdicts}
    if "fail" in words:
        return "measurement changed, with the same weights" if same_model else "model changed"
    if any(measure.expected is None for measure in verdicts):
        return "measures are missing in the baseline"
    if "cannot tell" in words:
        return "same weights, and too noisy to tell" if same_model else "model changed, and too noisy to tell"
    return "same weights" if same_model else "model changed, within the tolerances"


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

"""``--explain``: what each number means, with its formula and source."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from erfscope.convention import CONVENTIONS
from erfscope.measures import MEASURES
from erfscope.report import Report

WHAT = (
    "An effective receptive field (ERF) says how strongly each pixel moves one unit of a feature map: the gradient of a readout of that "
    "unit with respect to the input, averaged over pictures. It is not a quality score: a larger one is not better, and a smaller one not "
    "worse. It shows influence, not what the model looks for, and unlike a class activation map it belongs to a location, not to a class."
)
GUIDE = (
    ("comparing models", "--convention jacobian; context_r50 and far_mass, which leave the unit's own cell out"),
    ("against RepLKNet's tables", "--convention replknet; the `published` block of the JSON"),
    ("against OpenERF", "--convention kim; the `published` block of the JSON"),
    ("Luo's closed forms", "--convention energy; sigma_row and sigma_col"),
    ("theorems on signed influence", "--convention signed, 16 pictures or more"),
)


#: How a measure answers to a larger ERF.
WIDER = {1: "grows with the ERF", -1: "shrinks as the ERF grows", None: "says nothing of size"}


def explanation(report: Report | None) -> RenderableType:
    """The conventions and measures of a run, or of all where there is none, with a guide to their use."""
    conventions = list(CONVENTIONS) if report is None else list(dict.fromkeys(result.convention for result in report))
    used = set(MEASURES) if report is None else {name for result in report for name in result.measures}
    parts: list[RenderableType] = [Text(), Text(WHAT), Text()]
    for name in conventions:
        convention = CONVENTIONS.get(name)
        if convention is not None:
            parts.append(_entry(name, f"shown as {convention.scale}", convention.source))
            parts.append(_indented(f"readout {convention.readout_text}; contribution {convention.contribution_text}"))
    parts.append(Text())
    for name, measure in MEASURES.items():
        if name in used:
            unit = f"in {measure.unit}, " if measure.unit else ""
            parts.append(_entry(name, f"{unit}{WIDER[measure.wider]}", measure.source))
            parts.append(_indented(measure.formula))
    if report is None:
        parts.append(Text())
        for purpose, advice in GUIDE:
            parts += [Text(purpose, style="bold"), _indented(advice)]
    parts.append(Text())
    parts.append(Text("Errors are delete-one-group jackknife standard errors over at most ten groups of pictures (or draws).", style="dim"))
    return Group(*parts)


def _entry(name: str, facts: str, source: str) -> Text:
    text = Text(name, style="bold")
    text.append(f"  {facts}", style="not bold")
    text.append(f"  [{source}]", style="not bold dim")
    return text


def _indented(words: str) -> Padding:
    return Padding(Text(words), (0, 0, 0, 4))

"""``--explain``: what each number means, with its formula and source."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
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


def explanation(report: Report | None) -> RenderableType:
    """The conventions and measures of a run, or of all where there is none, with a guide to their use."""
    conventions = list(CONVENTIONS) if report is None else list(dict.fromkeys(result.convention for result in report))
    used = set(MEASURES) if report is None else {name for result in report for name in result.measures}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_lines=False)
    for name in ("measure", "in", "wider", "formula", "source"):
        table.add_column(name, overflow="fold", no_wrap=name in ("measure", "in"))
    for name, measure in MEASURES.items():
        if name in used:
            wider = {1: "larger", -1: "smaller", None: "–"}[measure.wider]
            table.add_row(name, measure.unit or "–", wider, Text(measure.formula), Text(measure.source, style="dim"))
    parts: list[RenderableType] = [Text(), Text(WHAT), Text(), _conventions(conventions), table]
    if report is None:
        guide = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for purpose, advice in GUIDE:
            guide.add_row(Text(purpose, style="bold"), Text(advice))
        parts += [guide]
    parts.append(Text("Errors are delete-one-group jackknife standard errors over at most ten groups of pictures (or draws).", style="dim"))
    return Group(*parts)


def _conventions(names: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("convention", "readout at the unit", "contribution of a pixel", "shown as", "source"):
        table.add_column(name, overflow="fold", no_wrap=name == "convention")
    for name in names:
        convention = CONVENTIONS.get(name)
        if convention is not None:
            table.add_row(
                name,
                Text(convention.readout_text),
                Text(convention.contribution_text),
                convention.scale,
                Text(convention.source, style="dim"),
            )
    return table

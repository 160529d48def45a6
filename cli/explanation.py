"""What commands of their own print: verdicts, explanations of measures, and tables of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from erfscope.core.answer.convention import CONVENTIONS, Convention
from erfscope.core.answer.measures import MEASURES, Measure
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result
from erfscope.show.command.console import Screen
from erfscope.show.view.cells import unit_of
from erfscope.show.view.sentences import ERRORS, GUIDE, RATIOS, SYMBOLS, THREE_AXES, WHAT, methods_sentence
from erfscope.show.view.words import WIDER


def explanation(report: Report | None) -> RenderableType:
    """The conventions and measures of a run, or of all where there is none; the guide to their use; and the run's
    methods section."""
    conventions = list(CONVENTIONS) if report is None else list(dict.fromkeys(result.convention for result in report))
    used = set(MEASURES) if report is None else {name for result in report for name in result.measures}
    parts: list[RenderableType] = [Text(), Text(WHAT)]
    parts += _heading("Conventions" if len(conventions) > 1 else "Convention")
    for name in conventions:
        if name in CONVENTIONS:
            parts += _convention(CONVENTIONS[name])
    if used:
        parts += [
            *_heading("Measures"),
            Text(f"{SYMBOLS} {THREE_AXES}"),
            Text(RATIOS),
            *_measures([MEASURES[name] for name in MEASURES if name in used], list(report or ())),
            Text(),
            Text(ERRORS),
        ]
    parts += _heading("What to use when")
    for purpose, advice in GUIDE:
        parts += [Text(purpose, style="bold"), _indented(advice)]
    if report is not None and len(report):
        parts += _heading("For a paper")
        parts += [Text(methods_sentence(report))]
    return Group(*parts)


def guide() -> int:
    """Print everything that can be explained without a run; the exit code, 0."""
    Screen().print(explanation(None))
    return 0


def _convention(convention: Convention) -> Iterator[RenderableType]:
    yield _entry(convention.name, f"shown as {convention.scale}", convention.source)
    yield _indented(f"readout {convention.readout_text}; contribution {convention.contribution_text}")
    yield _indented(f"not for {convention.not_for}", style="dim")


def _measures(measures: list[Measure], results: Sequence[Result]) -> Iterator[RenderableType]:
    """One entry each; what several must not be used for stands once, below the last of them."""
    alike: list[str] = []
    for place, measure in enumerate(measures):
        units = {unit_of(measure.name, result) for result in results}
        unit = units.pop() if len(units) == 1 else measure.unit
        yield _entry(
            measure.name,
            f"in {unit}, {WIDER[measure.wider]}" if measure.unit else WIDER[measure.wider],
            measure.source,
        )
        yield _indented(measure.formula)
        alike.append(measure.name)
        if place + 1 == len(measures) or measure.not_for != measures[place + 1].not_for:
            if measure.not_for:
                which = f"{', '.join(alike)}: " if len(alike) > 1 else ""
                yield _indented(f"{which}not for {measure.not_for}", style="dim")
            alike = []


def _heading(words: str) -> list[RenderableType]:
    return [Text(), Text(words, style="bold underline")]


def _entry(name: str, facts: str, source: str) -> Text:
    text = Text(name, style="bold")
    text.append(f"  {facts}", style="not bold")
    text.append(f"  [{source}]", style="not bold dim")
    return text


def _indented(words: str, style: str = "") -> Padding:
    return Padding(Text(words, style=style), (0, 0, 0, 4))

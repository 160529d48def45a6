"""Captions of figures for LaTeX: what a figure shows, and under which conditions, in a sentence or two."""

from __future__ import annotations

import re
from collections.abc import Sequence

from erfscope.results.result import Result
from erfscope.view.latex_text import escaped
from erfscope.view.words import cells_note, error_words, listed, names, shared

#: Millimetres: a wider figure spans both columns of a paper.
COLUMN = 90.0


def latex_figure(
    results: Sequence[Result], shown: str, file: str, *, colour: str, contours: Sequence[float], width_mm: float
) -> str:
    """A figure environment with its caption, for a paper.

    Args:
        results: What the figure shows.
        shown: What this kind of figure shows.
        file: Name of the image's file.
        colour: Text of what the colours of its maps stand for; "" for a figure without maps.
        contours: Per cents of the ERF whose highest-density regions are outlined.
        width_mm: Width of the image.
    """
    drawn = [result for result in results if result.map is not None or result.ok] or list(results)
    common = [condition.alone for condition in shared(drawn).values()]
    what = shown if drawn[1:] else shown.replace("Effective receptive fields", "Effective receptive field")
    sentences = [f"{what} of {listed(names(drawn))}.", f"Conditions: {'; '.join(common)}."]
    if colour:
        sentences.append(
            f"Colour: {colour}; circles around the unit: radii that hold 50 % (full) and 90 % (dashed) of the ERF."
        )
        if contours:
            regions = listed(f"{each:g} %" for each in contours)
            sentences.append(f"Outlines: highest-density regions of {regions}, of the map smoothed.")
    sentences += filter(None, [cells_note(drawn)])
    sentences += [f"{words[:1].upper()}{words[1:]}." for words in error_words(drawn, "±")]
    cut = [name for name, result in zip(names(drawn), drawn, strict=True) if _is_cut(result)]
    if cut:
        sentences.append(f"Input too small for {listed(cut)}: sizes are underestimates.")
    name = "figure*" if width_mm > COLUMN else "figure"
    # LaTeX cannot escape every character in labels and names of files.
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", file)
    renamed = [] if plain == file else [f"% Rename the file to {plain}: LaTeX takes no other characters."]
    stem = plain.rpartition(".")[0]
    lines = [rf"\begin{{{name}}}", r"  \centering", rf"  \includegraphics[width={width_mm:.0f}mm]{{{plain}}}"]
    lines += [rf"  \caption{{{escaped(' '.join(sentences))}}}", rf"  \label{{fig:{stem}}}", rf"\end{{{name}}}", ""]
    return "\n".join([*renamed, *lines])


def _is_cut(result: Result) -> bool:
    """Whether the input cuts off so much of the ERF that its sizes are underestimates."""
    return any(finding.code == "clipped" for finding in result.findings)

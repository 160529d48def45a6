"""What the errors of results are over, in words."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.core.answer.result import Result
from erfscope.show.view.words import main_radii, nouns


def error_words(results: Sequence[Result], sign: str) -> list[str]:
    """The kind of the errors of r50 and r90, after the ``sign`` that shows them, or why there are none."""
    over = dict.fromkeys(
        result.se_over for result in results for measure in main_radii(result).values() if measure.se is not None
    )
    named = (nouns(results) if each == "images" else each for each in over)
    return [f"{sign} standard error over {' and '.join(named)}"] if over else list(filter(None, [no_errors(results)]))


def no_errors(results: Sequence[Result]) -> str:
    """The reason why no result has errors of its r50 and r90; "" where one has, or none has these radii."""
    errors = [measure.se for result in results for measure in main_radii(result).values()]
    text = f"no errors: fewer than four groups of {nouns(results)} or draws"
    return text if errors and set(errors) == {None} else ""


def errors_note(results: Sequence[Result]) -> str:
    """Why there are no errors, or that some are over draws alone; "" for errors over images."""
    over_draws = any(r.se_over == "draws" and any(m.se is not None for m in r.measures.values()) for r in results)
    return no_errors(results) or (f"± is over random draws: other {nouns(results)} are not in it" if over_draws else "")


def errors_over(result: Result) -> str:
    """What ± of a result is over."""
    images, draws, noun = result.input.n_images - result.input.n_dead, result.input.n_draws, result.input.noun
    if result.se_over == "images":
        return f"± over {images} {noun}s"
    of = f"one {noun}; other {noun}s are" if images == 1 else f"the {images} {noun}s; others are"
    # Where all that were given are taken, --samples brings no more.
    are_all = result.input.text_kind != "count" or result.input.source == "array"
    are_all |= any(finding.code == "fewer_images" for finding in result.findings)
    more = f"give 8 {noun}s or more" if are_all else "add --samples 8"
    return f"± over {draws} draws of random signs for {of} not in it: {more}"

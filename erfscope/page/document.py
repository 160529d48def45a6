"""The page of a report: one file that needs nothing else, and reaches for nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from erfscope.attribution.convention import CONVENTIONS
from erfscope.figures.draw import default_kind, png_bytes
from erfscope.figures.style import DEFAULT_SCALE, SCALES, check_scale
from erfscope.measures import MEASURES
from erfscope.page.cards import cards
from erfscope.page.charts import BOTTOM, HEIGHT, LEFT, RIGHT, SPLIT, TOP, WIDTH, ranges
from erfscope.page.pictures import png_uri, ramp_uri, views
from erfscope.page.rows import about, result_table
from erfscope.page.words import extremes, labels, reasons, shared, summary, title, unranked, warnings_first
from erfscope.printable import printable
from erfscope.results.report import Report
from erfscope.tables.columns import plane_note
from erfscope.tables.methods_section import methods_paragraphs

#: Pixels of a map's longer side, for reports of at most so many results: pages of 12 stay below 5 MB, of 60 below 10
#: MB.
PIXELS = ((4, 320), (12, 168), (30, 128), (60, 100))
FEWEST_PIXELS = 80


def html(report: Report, *, scale: str = DEFAULT_SCALE) -> str:
    """A report as one self-contained page.

    Every number on it is the JSON's own: elements with ``data-json`` hold the JSON pointer to it in
    :meth:`Report.to_json`, and ``data-value`` the number at full precision beside the rounded text.

    Args:
        report: Results, usable or not.
        scale: The scale of the maps when the page is opened, as for :func:`erfscope.figures.draw.figure_of`; a switch
            changes it.

    Returns:
        The page's text, to be written as UTF-8.

    Raises:
        ErfscopeError: unknown scale.
    """
    check_scale(scale)
    document, names = report.to_json(), labels(report)
    drawn = views(report.results, longest=pixels_for(len(report)))
    text: str = template("page.html.j2").render(
        title=title(report),
        summary=summary(report),
        report=report,
        shared=shared(report),
        shouts=warnings_first(report),
        extremes=extremes(document, report),
        unranked=unranked(report),
        in_plane=plane_note(report.results),
        reasons=reasons(report),
        ranges=ranges(document, report.results, names),
        table=result_table(document, report, names)
        if len(report) > 1 and any(result.measures for result in report)
        else None,
        cards=cards(document, report, names, drawn),
        positions=[png_uri(png_bytes([r], "positions")) if default_kind([r]) == "positions" else None for r in report],
        scale=scale,
        side_by_side=sum(view is not None for view in drawn) > 1,
        spans=["own", "shared"] if sum(view is not None for view in drawn) > 1 else ["own"],
        ramps={
            signed: ramp_uri(signed=signed)
            for signed in (False, True)
            if any(view and view.signed is signed for view in drawn)
        },
        methods=methods_paragraphs(report),
        conventions=[CONVENTIONS[name] for name in dict.fromkeys(r.convention for r in report) if name in CONVENTIONS],
        definitions=_definitions(report),
        facts=list(_settings(document)),
        **_assets(),
    )
    return text


def _assets() -> dict[str, object]:
    """Style and script, which are files of this package, and the hash that lets this script run and no other."""
    script = _text("script.js").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": Markup(_text("style.css").strip()), "script": Markup(script), "script_hash": digest}


def pixels_for(count: int) -> int:
    """Pixels of a map's longer side in a report of so many results."""
    return next((pixels for most, pixels in PIXELS if count <= most), FEWEST_PIXELS)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("erfscope.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.globals["scales"] = list(SCALES)
    environment.globals["drawing"] = {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "split": SPLIT, "bottom": BOTTOM,
    }  # fmt: skip
    return environment


def template(name: str) -> Any:
    """A template of the page."""
    return _environment().get_template(name)


def _finalize(value: object) -> object:
    """Text as it goes onto the page: characters that turn the direction of what follows, or steer a terminal, become
    question marks."""
    return printable(value, keep="\n") if isinstance(value, str) and not isinstance(value, Markup) else value


def _text(name: str) -> str:
    return (files("erfscope.page") / "templates" / name).read_text(encoding="utf-8")


def _definitions(report: Report) -> list[tuple[str, str]]:
    used = {name for result in report for name in result.measures}
    return [(name, about(name)) for name in MEASURES if name in used]


def _settings(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was asked for, and what it was measured with."""
    environment = document["environment"]
    for package, version in environment.get("versions", {}).items():
        if version is not None:
            yield package, str(version)
    for name, value in environment.items():
        if name != "versions":
            yield name, str(value)
    for name, value in document["settings"].items():
        if value is not None:
            yield name, ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)

"""Tables for a paper: what all rows share stands in the caption, and no name breaks a format. tests/figures compiles
the same tables with a real LaTeX."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import made_up
import pytest

from erfscope import MEASURES, Report
from erfscope.core import Finding
from erfscope.core.answer.measures import SHOWN
from erfscope.core.values.model_facts import Weights
from erfscope.show import printable
from erfscope.show.view.sentences import quiet_line
from erfscope.show.view.table import escaped
from erfscope.show.view.tables import latex_figure, symbol

HOSTILE = ("50%_of {all} $ & #1 ~x^2 \\end{table}", "[red]*bold", "*starred", "<b>|</b>")
HOSTILE += ("± – ≤ × µ → …", "a\\\\b", "x" * 90)


REPORTS = {name: getattr(made_up, name) for name in ("inner", "four", "stages", "host_and_block", "fallback")} | {
    "one": lambda: made_up.report(made_up.result()),
    "hostile": lambda: made_up.report(
        *(made_up.result(label, error=label, status=s) for s in ("ok", "error") for label in HOSTILE)
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_table_is_written_as_it_was(golden, name):
    for format_ in ("latex", "markdown"):
        golden(f"{name}-{format_}", REPORTS[name]().table(format=format_))
    if name == "one":
        golden("measures-latex", REPORTS[name]().table(list(MEASURES), format="latex"))


def rows_of(report: Report, measures: list[str] | None = None) -> list[dict[str, str]]:
    """A Markdown table, read."""
    lines = [line for line in report.table(measures).splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_what_all_rows_share_stands_in_the_caption_which_explains_what_occurs_and_csv_has_it_all():
    heads = list(rows_of(made_up.four())[0])
    assert heads[:4] == ["model", "layer", "TRF (px)", "r50 (px)"]
    assert not {"weights", "input (px)", "unit", "convention", "status"} & set(heads)
    caption = next(line for line in made_up.four().table().splitlines() if line.startswith("Effective"))
    assert "pretrained weights; input 224x224 px; unit 3,3; convention jacobian (amplitude)" in caption
    assert "input 224$\\times$224 px" in latex_of(made_up.four())
    heads = list(rows_of(made_up.stages())[0])
    assert heads[:3] == ["model", "layer", "TRF (px)"]
    assert not {"unit", "stride (px)", "params (M)", "GMACs"} & set(heads)
    columns = made_up.stages().table(format="csv").splitlines()[0].split(",")
    assert {"unit", "stride_px", "parameters", "gmacs"} <= set(columns)
    short = latex_of(made_up.report(made_up.result(), made_up.result("other")), ["far_mass"])
    said = ("side of the theoretical receptive field", "holds half", "global operation")
    assert [words in short for words in said] == [True, False, False]
    inner = latex_of(made_up.four(), ["context_r50"])
    assert "$r_{50}$: radius that holds half of the ERF; context $r_{50}$: r50 without the unit" in inner
    assert "TRF: side of the theoretical receptive field; TRF all (n): the TRF covers the whole input" in inner


def latex_of(report: Report, measures: list[str] | None = None) -> str:
    return report.table(measures, format="latex")


def test_a_table_for_which_no_measures_are_named_has_four_columns_at_most():
    named = [replace(result, insert="gcn") for result in made_up.four().results]
    report = made_up.report(*named, *made_up.stages().results, replace(made_up.result(), convention="luo"))
    for each in (report, *(make() for make in REPORTS.values())):
        text = latex_of(each)
        head = re.search(r"(?s)toprule\n(.*?)\\\\\n", text)
        assert 3 <= len(re.findall(r"(?<!\\)&", head[1])) + 1 <= 4
        assert "\\begin{table}\n" in text
    assert "layer, unit, convention &" in re.sub(" +", " ", latex_of(report))
    assert "layer4, 3,3, luo" in latex_of(report)
    assert "TRF" not in latex_of(made_up.stages())
    far = {"far_mass": made_up.result().measures["far_mass"]}
    assert "far mass" in latex_of(made_up.report(replace(made_up.result(), measures=far)))
    # More than four are set over both columns of a page.
    assert "\\begin{table}\n" in latex_of(made_up.four(), ["r50"])
    wide = latex_of(made_up.four(), ["r50", "r90"])
    assert "\\begin{table*}\n" in wide
    assert wide.endswith("\\end{table*}\n")


def test_what_differs_stays_a_column_units_are_those_of_the_map_and_no_error_has_no_sign():
    first = made_up.result()
    sizes = [replace(first.input, size=(side, side)) for side in (224, 384)]
    for column, other, expected in (
        ("unit", replace(first, id="next", unit=replace(first.unit, index=(0, 0))), ["3,3", "0,0"]),
        ("input (px)", made_up.result("other", input=sizes[1]), ["224x224", "384x384"]),
        ("weights", made_up.result("other", weights=Weights(source="given")), ["pretrained", "as provided"]),
    ):
        assert [row[column] for row in rows_of(made_up.report(first, other))] == expected
    assert "r50 (cells)" in rows_of(made_up.inner())[0]
    assert "stride 4 cells; TRF 27 cells" in made_up.inner().table()
    mixed = made_up.report(made_up.result(), *made_up.inner().results)
    assert "r50" in rows_of(mixed)[0]
    assert "in cells of the map" in mixed.table()
    report = made_up.report(made_up.result(sizes={"r50": (62.0, None)}))
    assert rows_of(report, ["r50"])[0]["r50 (px)"] == "62.0"
    assert "±" not in report.table(["r50"])
    assert "\\pm" not in latex_of(report, ["r50"])
    assert "$62.0$" in latex_of(report, ["r50"])


def test_a_degenerate_result_has_no_numbers_in_a_paper_and_notes_have_letters_beyond_the_alphabet():
    error = "the gradient is zero for all 4 images"
    report = made_up.report(made_up.result(), made_up.result("flat", status="degenerate", error=error))
    assert [row["r50 (px)"] for row in rows_of(report)] == ["62.0 ± 0.6", "–"]
    assert report.table().splitlines()[-1] == f"(a) {error}"
    report = made_up.report(*(made_up.broken(f"m{place}") for place in range(30)))
    notes = re.findall(r"(?m)^\((\w+)\) Input", report.table())
    assert notes[:2] + notes[25:28] == ["a", "b", "z", "aa", "ab"]
    assert len(set(notes)) == 30


def test_no_name_adds_a_cell_a_row_or_a_link_to_markdown():
    for label in HOSTILE:
        report = made_up.report(made_up.result(label), made_up.result("other"))
        rows = rows_of(report, ["r50"])
        assert len(rows) == 2
        assert rows[0]["r50 (px)"] == "62.0 ± 0.6"
        assert "<" not in report.table()
    report = made_up.report(made_up.result("[x](javascript:1)"), made_up.result("![a][b]"))
    assert re.findall(r"(?<!\\)\[", report.table()) == []
    assert "| \\[x](javascript:1) " in report.table()


def test_every_special_character_is_escaped_and_no_control_character_reaches_a_paper():
    assert escaped("a_b & 50% of #1 {x} $y$") == "a\\_b \\& 50\\% of \\#1 \\{x\\} \\$y\\$"
    assert escaped("\\~^") == "\\textbackslash{}\\textasciitilde{}\\textasciicircum{}"
    assert escaped("3 ± 1 – x") == "3 $\\pm$ 1 -- x"
    assert escaped("[x") == "{}[x"
    assert escaped("--wrt a---b -–") == "-{}-wrt a-{}-{}-b -{}--"
    result = made_up.result("a\x1b]0;title\x07b\u202ec")
    figure = latex_figure([result], "ERF", "a.pdf", words_on=(), has_maps=False, is_wide=False)
    for text in (figure, *(made_up.report(result).table(format=kind) for kind in ("latex", "markdown"))):
        assert "a?]0;title?b?c" in text.replace("\\", "")
    assert printable(figure, keep="\n") == figure


def test_headers_are_those_of_a_paper():
    names = ["r50", "context_r90", "sigma_row", "gaussian_sigma_col", "side50", "gaussian_r2", "erf_trf", "luo_size"]
    assert [symbol(name) for name in names] == [
        *("$r_{50}$", "context $r_{90}$", "$\\sigma_{\\mathrm{row}}$", "gaussian $\\sigma_{\\mathrm{col}}$"),
        *("side$_{50}$", "gaussian $R^2$", "ERF/TRF", "luo size"),
    ]
    assert len({symbol(name) for name in MEASURES}) == len(MEASURES)
    assert set(SHOWN) <= set(MEASURES)


@pytest.mark.parametrize("format", ["markdown", "latex"])
def test_a_note_on_the_units_own_cell_names_columns_only_where_the_table_has_them(format):
    text = "40% of the ERF is the unit's own cell; compare context_r50 and far_mass"
    own = Finding(code="own_cell_dominated", text=text)
    report = Report(results=(replace(made_up.result(), findings=(own,)),))
    short, whole = (
        report.table(names, format=format).replace("\\allowbreak{}", "").replace("\\", "")
        for names in (["r50", "r90"], ["r50", "context_r50", "far_mass"])
    )
    assert "40% of the ERF is the unit's own cell" in short
    assert "compare" not in short
    assert text.removeprefix("40% ") in whole


def test_every_table_and_the_quiet_line_say_what_errors_are_over():
    one = made_up.result("one", se_over="draws", input=replace(made_up.result().input, n_images=1, n_draws=8))
    several = made_up.result("several")
    for result, quiet, caption in (
        (one, "± over 8 draws of random signs for one image", "over random draws (other images are not in it)."),
        (several, "± over 4 images", "over images."),
    ):
        report = made_up.report(result)
        assert f"r50 62.0 ± 0.6 px ({quiet}" in quiet_line(result)
        for format in ("markdown", "latex"):
            assert caption in report.table(format=format).replace("\\allowbreak{}", "")
        (row,) = csv.DictReader(io.StringIO(report.table(format="csv")))
        assert row["se_over"] == result.se_over
    (row,) = csv.DictReader(io.StringIO(made_up.report(made_up.broken()).table(format="csv")))
    assert row["se_over"] == ""

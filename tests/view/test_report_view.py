"""One view of a report: every output has every fact, in the same words and digits."""

from __future__ import annotations

import html
import re

import made_up
import pytest

from erfscope import MEASURES
from erfscope.core import Finding
from erfscope.core.answer.measures import SHOWN
from erfscope.show import GLOSS, brief
from erfscope.show.view.report_view import report_view

FINDING = Finding(code="clipped", text="input too small: 73% lies outside")


def report():
    """Three models, of which one failed and one has a finding; lengths of the second need two decimals."""
    small = made_up.result("small", sizes={"r50": (7.3, 0.05), "r90": (96.0, 2.0)}, trf=made_up.field(43, stride=8))
    return made_up.report(made_up.result(findings=(FINDING,)), small, made_up.broken())


OUTPUTS = {
    "terminal": str,
    "markdown": lambda report: report.table(),
    "latex": lambda report: report.table(SHOWN, format="latex"),
    "plain": lambda report: report.table(format="plain"),
    "notebook": lambda report: report._repr_html_(),
}


def read(output: str) -> str:
    """What an output says, without what its format needs."""
    text = re.sub(r"<[^>]*>", " ", html.unescape(OUTPUTS[output](report())))
    for mark, sign in (("$\\times$", "x"), ("$\\pm$", "±"), ("$", ""), ("\\", ""), (" & ", " ± "), ("±", " ± ")):
        text = text.replace(mark, sign)
    return " ".join(text.split())


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_output_says_what_rows_share_what_was_found_why_a_row_failed_and_digits_by_errors(output):
    text = read(output)
    facts = ["pretrained weights", "224x224 px", "jacobian (amplitude)", "4 synthetic images (dead leaves)", "seed 0"]
    facts += [FINDING.text, "Input height (224) doesn't match model (256)", "r50 without the unit's own cell"]
    numbers = ["62.0 ± 0.6", "105.2 ± 0.4", "7.30 ± 0.05", "96 ± 2"]
    assert [fact for fact in [*(facts if output != "plain" else []), *numbers] if fact not in text] == []


#: Values and errors of which printing all decimals of the errors would take five digits and more.
LONG = {
    "r50": ((186.25, 0.013), "186.2"),
    "r90": ((1234.56, 0.24), "1235"),
    "context_r50": ((12345.6, 234.5), "12350 ± 230"),
    "erf_trf": ((0.123456, 0.0000123), "0.1235"),
}


@pytest.mark.parametrize("output", [name for name in OUTPUTS if name != "latex"])
def test_no_output_has_more_than_four_significant_digits(output):
    sizes = {name: number for name, (number, _) in LONG.items()}
    result = made_up.result(sizes=sizes)
    told = re.sub(r"<[^>]*>", " ", OUTPUTS[output](made_up.report(result, made_up.result("other", sizes=sizes))))
    text = " ".join(html.unescape(told).replace("±", " ± ").split())
    assert [shown for _, shown in LONG.values() if shown not in text] == []


def test_every_number_of_a_view_is_at_its_pointer_in_the_json_and_places_have_four_digits_at_most():
    shown = report()
    document = shown.to_json()
    for row in report_view(shown).rows:
        for cell in (*row.cells.values(), *(size.cell for size in row.sizes), *(size.of_input for size in row.sizes)):
            for part in filter(None, (cell, cell.error, cell.difference)):
                if part.pointer:
                    value = document
                    for key in part.pointer.split("/")[1:]:
                        value = value[int(key)] if isinstance(value, list) else value[key]
                    assert value == part.value
    assert [brief(place) for place in (95.5, 111.66667, 1234.56, 54321.0)] == ["95.5", "111.7", "1235", "54320"]


def test_a_finding_of_several_rows_stands_once_several_of_one_kind_are_said_and_a_notice_is_left_to_single_results():
    rows = [made_up.result("net", layer=layer, findings=(FINDING,)) for layer in ("layer3", "layer4")]
    view = report_view(made_up.report(*rows))
    (note,) = view.notes
    assert (note.code, note.rows) == ("clipped", (0, 1))
    assert view.note_text(note) == f"net · layer3: {FINDING.text} (and 1 more row of this model)"
    table = made_up.report(*rows).table()
    assert (table.count(FINDING.text), table.count("net (a)")) == (1, 2)
    findings = tuple(Finding(code="model", text=text) for text in ("one", "two"))
    view = report_view(made_up.report(made_up.result(findings=findings)))
    assert [(note.text, note.rows) for note in view.notes] == [("one", (0,)), ("two", (0,))]
    result = made_up.result(findings=(Finding(code="reactivated", text="8 residual branches"),))
    assert [note.code for note in report_view(made_up.report(result)).notes] == ["reactivated"]
    assert report_view(made_up.report(result, made_up.result("other"))).notes == ()


def test_csv_has_the_codes_of_all_findings_and_a_gloss_is_short_and_names_columns():
    header, row, *_ = report().table(format="csv").splitlines()
    assert header.endswith(",findings,error")
    assert row.endswith(",clipped,")
    assert all(len(text.split()) <= 8 for text in GLOSS.values()), GLOSS
    assert set(GLOSS) - set(MEASURES) == {"input_share", "stride", "TRF", "halo", "params", "GMACs"}

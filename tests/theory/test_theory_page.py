"""The page on the theory is complete and true: its functions, blocks, errata, tests and numbers are those of the
code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from erfscope import influence, theory
from erfscope.apps.lab.studies.theorems import CASES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
#: Of every table of results.
RESULTS = ("label", "result", "function", "block", "source", "errata")
ERRATA = ("id", "printed", "right", "established by")
ERRATUM = re.compile(r"\bE\d-\d\d\b")


def rows(*columns: str) -> list[dict[str, str]]:
    """Rows of all tables of the page that have these columns."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.MULTILINE):
        cells = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in table.splitlines()]
        if cells[0] == columns:
            found += [dict(zip(columns, row, strict=True)) for row in cells[2:]]
    assert found
    return found


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def texts(*folders: str) -> dict[Path, str]:
    return {
        file: file.read_text(encoding="utf-8") for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))
    }


def cited(text: str) -> set[str]:
    """Erratum ids in a text, those within "E4-01 to E4-08" included."""
    inner = {
        f"{paper}-{number:02}"
        for paper, first, last in re.findall(r"\b(E\d)-(\d\d) to \1-(\d\d)", text)
        for number in range(int(first), int(last))
    }
    return inner | set(ERRATUM.findall(text))


def test_every_function_of_the_tables_exists_and_every_name_of_the_theory_is_on_the_page():
    tabled = {name for row in rows(*RESULTS) for name in names(row["function"])}
    assert tabled <= set(theory.__all__)
    functions = {
        name
        for name in theory.__all__
        if callable(getattr(theory, name)) and not isinstance(getattr(theory, name), type)
    }
    assert functions - tabled == {"agreement"}  # no closed form
    assert set(theory.__all__) - set(names(PAGE)) == set()
    assert all(row["function"] for row in rows(*RESULTS))


def test_labels_are_unique_and_what_the_code_cites_is_in_the_repository():
    labels = [row["label"] for row in rows(*RESULTS)]
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"[A-F]\d+", label) for label in labels)
    for file, text in texts("erfscope", "adapters", "cli").items():
        for group in re.findall(r"docs/theory\.md, ((?:[A-Z]\d+\b(?!-)(?:, )?)+)", re.sub(r"\s+", " ", text)):
            assert set(re.findall(r"[A-Z]\d+", group)) <= set(labels), file
    for file, text in texts("erfscope", "adapters", "cli").items():
        assert "THEORY" not in text, file
        for page in re.findall(r"\bdocs/\w+\.md\b", text):
            assert (ROOT / page).is_file(), file


@pytest.mark.slow
def test_every_erratum_that_is_cited_is_explained_once():
    ids = [row["id"] for row in rows(*ERRATA)]
    assert len(set(ids)) == len(ids)
    assert all(row[column] for row in rows(*ERRATA) for column in ERRATA)
    everywhere = cited(PAGE).union(*(cited(text) for text in texts("erfscope", "adapters", "cli", "tests").values()))
    assert len(everywhere) > 40
    assert everywhere == set(ids)
    beside_results = {name for row in rows(*RESULTS) for name in ERRATUM.findall(row["errata"])}
    assert beside_results == set(ids)


def test_errata_are_established_by_tests_and_rows_of_the_study_that_exist():
    known = {case.name for case in CASES}.union(
        *(re.findall(r"^def (test_\w+)\(", text, re.MULTILINE) for text in texts("tests").values())
    )
    for row in rows(*ERRATA):
        assert names(row["established by"]), row["id"]
        assert set(names(row["established by"])) <= known, row["id"]


def test_the_numbers_of_the_page_on_theory():
    # After a final norm the sum over output channels is constant: not even the absolute values that `luo` takes are
    # left.
    x, norm = (
        torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        torch.nn.LayerNorm(8).double(),
    )
    scale = influence(norm, x).values.max()
    assert all(np.abs(influence(norm, x, convention).values).max() < 1e-14 * scale for convention in ("luo", "signed"))
    # The floors under the correlation: the mean of |2 X_p X_i| over an angle that is uniform, and the root mean square.
    angle = 2 * np.pi * (np.arange(100_000) + 0.5) / 100_000
    for rho, floor, root in ((0.0, 1.273, 2.0), (0.5, None, None), (1.0, 2.0, 3.464)):
        absolute = 4 / np.pi * (np.sqrt(1 - rho**2) + rho * np.arcsin(rho))
        # X = R (cos t, rho cos t + sqrt(1 - rho^2) sin t) with E[R^2] = 2.
        direct = np.mean(4 * np.abs(np.cos(angle) * (rho * np.cos(angle) + np.sqrt(1 - rho**2) * np.sin(angle))))
        assert absolute == pytest.approx(direct, rel=1e-8)
        pair = np.array([[1.0, rho], [rho, 1.0]])
        spread = np.sqrt(theory.dot_attention_random_weights(pair).variance[0, 1])
        assert spread == pytest.approx(2 * np.sqrt(1 + 2 * rho**2), rel=1e-14)
        assert theory.dot_attention_mean(pair, [[1]], [[1]], [[1]])[0, 1] == 2 * rho
        assert floor is None or (absolute, spread) == (pytest.approx(floor, abs=5e-4), pytest.approx(root, abs=5e-4))
    # E1-12: three strides at the beginning; dilations anywhere.
    early = theory.strided_dilated_stack([3] * 15, [2] * 3 + [1] * 12)
    assert (early.trf_px, early.sigma_px) == (207, pytest.approx(22.935, abs=5e-4))
    one, other = (
        theory.strided_dilated_stack([3] * 15, dilations=rates)
        for rates in ([2, 4, 8] + [1] * 12, [1] * 12 + [8, 4, 2])
    )
    np.testing.assert_allclose(one.kernel, other.kernel, rtol=1e-12)

"""Words that users no longer read stay away: from messages, help, findings, golden files, the README and the
documentation."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from erfscope.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
#: What users read no more -> what they read instead.
GONE = {
    r"\bInsist\b": "To require pretrained weights",
    r"branch(es)? (that are )?zero at initialisation were switched on": "residual branches start at zero; switched on",
    r"branches that are zero at initialisation|[Zz]ero-initiali[sz]ed (residual )?branch": (
        "residual branches that start at zero"
    ),
    r"\btheoretical fields?\b": "theoretical receptive field (TRF), TRF",
    r"\bmakes? (the|a) field\b": "the TRF covers the whole input",
    r"\b(the|a) field (is|are|shrank|grew|shrinks|grows|everything)\b": "the TRF ...",
    r"\bfield is everything\b|\bTRF everything\b": "the TRF covers the whole input (global operation: NAME)",
    r"cannot (be )?run without numbers": "has data-dependent control flow; traced once with random input",
    r"computed without the cone": "cropping disabled",
    r"uses numbers that may depend": "may depend on the position",
    r"CANNOT TELL|Cannot tell is|\d cannot tell\b|\*cannot tell\*": "INCONCLUSIVE, or BASELINE CREATED",
    r"\bminus (first|host)\b": "Δ vs first",
    r"strongest 0\.1 ?%": "clipped at the 99.9th percentile",
    r"\bpictures? of (leaves|noise|correlated noise|mid-grey|an impulse|a grating)\b": "synthetic images (dead leaves)",
    r"\bsynthetic \w+ pictures?\b": "synthetic images (dead leaves)",
    r"\bgiven weights\b": "weights as provided",
    r"share of the field shrinks": "its fraction of the TRF shrinks as 1/sqrt(depth)",
    r"Luo(['’]|&#39;)s (size over|ratio)": "ERF width / TRF width",
    r"set to 1 or drawn anew|identity at its (initialisation|start)": "starts without effect; re-initialised",
    r"shrinks the sizes": "input too small: sizes are underestimates",
    r"(stands?|those) (on|of) no place": "has no image position",
    r"which then decides r50|more than 30 ?% (of the map )?is the unit": (
        "the unit's own cell holds over 30 % and sets r50"
    ),
    r"takes stored folders": "compare saved results: erfscope compare DIR1 DIR2",
    r"is its whole reference": "maps are not to one scale",
    r"[Uu]se (a result|it) all the same": "accept despite this finding",
    r"(no more than )?a comparison\b.{0,40} speaks for": "checked only on the measured images",
    r"layer and unit is no number|TRF is no expectation": "always state layer and unit; the ERF rarely fills the TRF",
    r"[Nn]othing is decided, which is said": "inconclusive if noise gives NaN",
    r"\bwhose books\b": "shards with inconsistent image counts",
}
PICTURE = r"\b[Pp]ictures?\b"
#: Names in code that are not read as prose.
NAMES = re.compile(r"(?<!\S)\S*\bpictures?\.py\b|[\"'`]+picture[\"'`]+")
#: Parameters that are called so, as docstrings list them.
PARAMETER = re.compile(r"^\s+pictures?: ", flags=re.MULTILINE)


def sources() -> list[Path]:
    """The package's modules, each once: ``erfscope/adapters`` and ``erfscope/cli`` are links to the folders beside
    it."""
    found = [path for room in ("erfscope", "adapters", "cli") for path in sorted((ROOT / room).rglob("*.py"))]
    return [path for path in found if not any(parent.is_symlink() for parent in path.parents)]


@cache
def literals(path: Path) -> list[tuple[int, str]]:
    """Every string of a module with its line: literals that stand side by side are one, and what is formatted in leaves
    a gap."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    return [(node.lineno, _said(node)) for node in ast.walk(tree) if _is_text(node) and id(node) not in inside]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _said(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr)
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def pages() -> Iterator[tuple[str, str]]:
    """What is read beside the code: the README, the documentation with its screenshots, titles, golden files and
    notebooks."""
    for path in (
        ROOT / "README.md",
        ROOT / "mkdocs.yml",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "tests/golden").iterdir()),
    ):
        yield path.name, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        yield path.name, re.sub(r'"image/png": "[^"]*"|base64,[\w+/=]*', "", path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "docs").glob("*.svg")):
        yield path.name, html.unescape(re.sub(r"<[^>]+>", " ", path.read_text(encoding="utf-8"))).replace("\xa0", " ")


def helps() -> Iterator[tuple[str, str]]:
    """What --help says, of erfscope and of every command."""
    for words in ([], *([name] for name in cli.commands)):
        shown = CliRunner().invoke(cli, [*words, "--help-all" if words in (["analyze"], ["compare"]) else "--help"])
        assert shown.exit_code == 0
        yield " ".join(["erfscope", *words]), shown.output
    for name, command in cli.commands.items():
        # Without the frame around it, which may stand between two words.
        yield (
            name,
            "\n".join([command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]),
        )


def flat(text: str) -> str:
    """Text on one line: a phrase may be wrapped anywhere."""
    return " ".join(text.split())


def found_in(pattern: str, text: str) -> list[str]:
    """Where a phrase stands, with some of what is around it."""
    line = flat(text)
    return [line[max(0, match.start() - 50) : match.end() + 50] for match in re.finditer(pattern, line)]


@pytest.mark.parametrize("phrase", GONE)
def test_no_text_of_the_package_says_what_is_said_otherwise_now(phrase):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {where}"
        for path in sources()
        for line, text in literals(path)
        for where in found_in(phrase, text)
    ]
    assert not found, f"say {GONE[phrase]!r} instead: {found}"


@pytest.mark.parametrize("phrase", GONE)
def test_no_page_and_no_golden_file_says_what_is_said_otherwise_now(phrase):
    found = [f"{name}: {where}" for name, text in pages() for where in found_in(phrase, text)]
    assert not found, f"say {GONE[phrase]!r} instead: {found}"


def test_no_page_and_no_golden_file_speaks_of_pictures():
    assert not [f"{name}: {where}" for name, text in pages() for where in found_in(PICTURE, NAMES.sub("", text))]


def test_no_help_text_speaks_of_pictures_or_says_what_is_said_otherwise_now():
    texts = list(helps())
    assert {"erfscope", "erfscope analyze", "erfscope check", "erfscope layers", "erfscope study"} <= {
        name for name, _ in texts
    }
    assert not [
        f"{name}: {where}" for name, text in texts for phrase in (PICTURE, *GONE) for where in found_in(phrase, text)
    ]


def test_no_sentence_of_the_package_speaks_of_pictures():
    """Findings, errors and docstrings; a string without a space is a name for code."""
    found = []
    for path in sources():
        for line, text in literals(path):
            if " " in text:
                prose = PARAMETER.sub("", NAMES.sub("", text))
                found += [f"{path.relative_to(ROOT)}:{line}: {where}" for where in found_in(PICTURE, prose)]
    assert not found


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        (r"\btheoretical fields?\b", "the theoretical\n  field is 43 px"),
        (r"\bminus (first|host)\b", "  minus first   -54.7"),
        (PICTURE, "20 pictures (dead leaves)"),
    ],
)
def test_phrases_are_found_across_lines(phrase, text):
    assert found_in(phrase, text)

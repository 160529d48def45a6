"""The faults of benchmarks/mutants.py are what they say, and a test that fails sees one."""

import ast
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import mutants
from mutant_kinds import Fault, faulty_trees, marked
from mutant_reach import RecordedTests


def faults_of(source: str, kind: str | None = None) -> list[Fault]:
    return [fault for fault, _ in faulty_trees(source, "a.py", "maps") if kind in (None, fault.kind)]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("operator", "a = b + c // d", {"a = b - c // d", "a = b + c * d"}),
        ("operator", "a += b", {"a -= b"}),
        ("bound", "a = b[1:c, 0] + b[-1]", {"a = b[2:c, 0] + b[-1]", "a = b[1:c, 1] + b[-1]", "a = b[1:c, 0] + b[-2]"}),
        ("bound", "a = [b for b in range(2, c) if b > 5]",
         {"a = [b for b in range(3, c) if b > 5]", "a = [b for b in range(2, c) if b > 6]"}),
        ("comparison", "a = b < c == d", {"a = b <= c == d", "a = b < c != d"}),
        ("condition", "a = b if not c else d", {"a = b if c else d"}),
        ("connective", "a = b and c", {"a = b or c"}),
        ("term", "a = b * c - d", {"a = b * c", "a = -d", "a = b - d", "a = c - d"}),
        ("term", "a = b and c", {"a = b", "a = c"}),
        ("axes", "a = f(b, c, d)", {"a = f(c, b, d)", "a = f(b, d, c)"}),
        ("axes", "a = b.sum(1) + f(b, dim=-1)", {"a = b.sum(0) + f(b, dim=-1)", "a = b.sum(1) + f(b, dim=-2)"}),
        ("axes", "a = (b, c)", {"a = (c, b)"}),
        ("branch", "if a:\n    b()\nelse:\n    c()", {"if False:"}),
        ("default", "def f(a, b=1, *, c=False, d=None): ...",
         {"def f(a, b=2, *, c=False, d=None):", "def f(a, b=1, *, c=True, d=None):"}),
        ("option", "a = f(b, c=d, **e)", {"a = f(b, **e)"}),
        ("statement", "for a in b:\n    c.append(a)\n    d += 1\n    continue", {"pass"}),
        ("extreme", "a = max(b, any(c), d.amin())",
         {"a = min(b, any(c), d.amin())", "a = max(b, all(c), d.amin())", "a = max(b, any(c), d.amax())"}),
    ],
)  # fmt: skip
def test_a_fault_changes_what_its_kind_says_and_nothing_else(kind, before, after):
    assert {fault.after for fault in faults_of(before, kind)} == after


def test_kinds_have_faults_of_statements_that_are_computed_alone():
    source = '''
"""Of 1 + 1."""
from a import b
__all__ = ["c", "d"]
if TYPE_CHECKING:
    from e import f
@g(h=1)
def i(j: "k[1]", l: m[0]) -> n[2]:
    """Of 2 + 2."""
    raise o(p + 1, q=2)
'''
    assert faults_of(source) == []


def test_each_fault_is_of_one_place_and_is_undone():
    source = Path(mutants.__file__).with_name("mutant_kinds.py").read_text()
    plain = ast.unparse(ast.parse(source))
    faults = []
    for fault, tree in faulty_trees(source, "a.py", "maps"):
        if fault.kind in ("comparison", "default"):
            assert ast.unparse(tree) != plain
        faults.append(fault)
    assert ast.unparse(tree) == plain
    assert len({fault.id for fault in faults}) == len(faults)
    assert len({fault.kind for fault in faults}) > 8


def test_a_draw_is_that_of_its_seed_with_all_kinds_alike():
    faults = faults_of(Path(mutants.__file__).with_name("mutant_reach.py").read_text())
    first = mutants.draw(faults, 20, 0)
    assert mutants.draw(faults[::-1], 20, 0) == first
    assert mutants.draw(faults, 20, 1) != first
    counts = [sum(fault.kind == kind for fault in first) for kind in {fault.kind for fault in faults}]
    assert max(counts) - min(counts) <= 1


def test_a_fault_is_the_same_where_lines_have_moved():
    source = "def f(a, b):\n    return a + b\n"
    assert [each.id for each in faults_of(f"\n\n{source}")] == [each.id for each in faults_of(source)]


def test_functions_say_that_they_are_entered():
    entered = []
    space = {"mark": entered.append}
    source = (
        'class A:\n    def b(self):\n        "Text."\n        def c(): raise KeyError\n        return c\ndef d(): 1\n'
    )
    exec(compile(marked(source, "a.py", "mark"), "a.py", "exec"), space)
    with pytest.raises(KeyError):
        space["A"]().b()()
    assert entered == ["a.py::A.b", "a.py::A.b.c"]
    assert space["A"].b.__doc__ == "Text."


def test_quick_tests_come_first_and_a_fixture_counts_for_all_that_share_it(tmp_path):
    lines = [
        {"shared": "t.py::fixture", "entered": ["a.py::f"]},
        {"test": "t.py::slow", "seconds": 9, "failed": False, "shares": ["t.py::fixture"], "entered": []},
        {"test": "t.py::quick", "seconds": 1, "failed": False, "shares": ["t.py::fixture"], "entered": ["a.py::g"]},
        {"test": "t.py::long", "seconds": 99, "failed": False, "shares": ["t.py::fixture"], "entered": []},
        {"test": "u.py::other", "seconds": 5, "failed": False, "shares": [], "entered": ["a.py::f"]},
        {"test": "u.py::broken", "seconds": 1, "failed": True, "shares": [], "entered": ["a.py::f"]},
    ]
    (tmp_path / "1.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tests = RecordedTests(tmp_path)
    fault = {"id": "", "room": "maps", "file": "a.py", "line": 1, "kind": "", "before": "", "after": ""}
    assert tests.chosen(Fault(**fault, function="f"), 20) == ["t.py::quick", "u.py::other", "t.py::slow"]
    assert tests.chosen(Fault(**fault, function="f"), 8) == ["t.py::quick", "u.py::other"]
    assert tests.chosen(Fault(**fault, function="g"), 20) == ["t.py::quick"]
    assert tests.chosen(Fault(**fault, function=""), 0.5) == []


@pytest.mark.more
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fault_is_seen_by_the_test_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    source = "def total(a, b):\n    return a + b\n"
    (tmp_path / "tiny.py").write_text(source)
    names = ("test_of_zero", "test_first", "test_before", "test_of_two")
    tests = [f"test_tiny.py::{name}" for name in names]
    (tmp_path / "test_tiny.py").write_text(
        "from tiny import total\n"
        "def test_of_zero(): assert total(3, 0) == 3\n"
        "def test_first(): test_first.is_over = True\n"
        "def test_before(): assert not hasattr(test_first, 'is_over')\n"
        "def test_of_two(): assert total(3, 2) == 5, 'wrong'\n"
        "def test_of_none(): raise KeyError\n"
    )
    (fault,) = [each for each, _ in faulty_trees(source, "tiny.py", "maps") if each.kind == "operator"]
    seconds = dict.fromkeys(tests, 0.1)
    line = mutants.show(fault, tests, seconds, identity=False)
    assert (line["seen"], line["by"], line["imported"]) == (True, "test_tiny.py::test_of_two", True)
    assert line["why"] == "AssertionError: wrong"
    line = mutants.show(fault, tests, seconds, identity=True)
    assert (line["seen"], line["by"], line["why"]) == (False, "", "")
    assert (tmp_path / "tiny.py").read_text() == source

"""What is public of the gate, as ``erfscope.gate``: baselines, tolerances, the comparison and its verdict."""

from erfscope.apps.gate.baseline import FILE, BaselineEntry, BaselineMeasure, baseline_bytes, entry_of, read, update
from erfscope.apps.gate.compare import compare_entries
from erfscope.apps.gate.judge import MeasureVerdict, judge
from erfscope.apps.gate.structure import Structure, StructureChange, changes, structure, structure_of
from erfscope.apps.gate.tolerance import GUARDED, Tolerance, defaults, from_pairs, parse, tolerances
from erfscope.apps.gate.verdict import CheckAdvice, CheckReport, Verdict

__all__ = [
    "FILE",
    "GUARDED",
    "BaselineEntry",
    "BaselineMeasure",
    "CheckAdvice",
    "CheckReport",
    "MeasureVerdict",
    "Structure",
    "StructureChange",
    "Tolerance",
    "Verdict",
    "baseline_bytes",
    "changes",
    "compare_entries",
    "defaults",
    "entry_of",
    "from_pairs",
    "judge",
    "parse",
    "read",
    "structure",
    "structure_of",
    "tolerances",
    "update",
]

"""A baseline, a comparison with it, a verdict.

May import: ``show`` and below, not ``view`` and ``figures``.
"""

from erfscope.gate.baseline import FILE, BaselineEntry, BaselineMeasure, baseline_bytes, entry_of, read, update
from erfscope.gate.compare import compare
from erfscope.gate.judge import MeasureVerdict, judge
from erfscope.gate.structure import Structure, StructureChange, changes, structure, structure_of
from erfscope.gate.tolerance import GUARDED, Tolerance, defaults, from_pairs, parse, tolerances
from erfscope.gate.verdict import CheckAdvice, CheckReport, Verdict

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
    "compare",
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

"""The public functions: they compose models, engine and outputs.

May import: everything below.
"""

from erfscope.adapters.requested import Model
from erfscope.api.analysis import analyze, sweep
from erfscope.api.comparison import compare
from erfscope.api.gate import check, check_all, compare_to_baseline
from erfscope.api.halo import halo_budget
from erfscope.api.isolated import compare_isolated
from erfscope.api.shards import merge
from erfscope.api.structure import layers, theoretical
from erfscope.api.tile import tile

__all__ = [
    "Model",
    "analyze",
    "check",
    "check_all",
    "compare",
    "compare_isolated",
    "compare_to_baseline",
    "halo_budget",
    "layers",
    "merge",
    "sweep",
    "theoretical",
    "tile",
]

"""The public functions: they compose the core and the adapters. The only room of the core that looks outward."""

from erfscope.api.asking import layers, theoretical
from erfscope.api.checking import check, check_all, compare_to_baseline
from erfscope.api.comparing import compare
from erfscope.api.isolating import compare_isolated
from erfscope.api.measuring import analyze, sweep
from erfscope.api.merging import merge
from erfscope.api.opening import Model
from erfscope.api.repeating import Repeated, repeat

__all__ = [
    "Model",
    "Repeated",
    "analyze",
    "check",
    "check_all",
    "compare",
    "compare_isolated",
    "compare_to_baseline",
    "layers",
    "merge",
    "repeat",
    "sweep",
    "theoretical",
]

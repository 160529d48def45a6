"""The public functions: they compose the core and the adapters. The only room of the core that looks outward."""

from erfscope.api.asking import layers, theoretical
from erfscope.api.checking import check, check_all, compare_to_baseline
from erfscope.api.comparing import compare
from erfscope.api.measuring import analyze, sweep
from erfscope.api.merging import merge
from erfscope.api.opening import Model

__all__ = ["Model", "analyze", "check", "check_all", "compare", "compare_to_baseline", "layers", "merge", "sweep", "theoretical"]

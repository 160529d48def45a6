"""A call in a process of its own, with a limit of time and memory.

May import: ``model_errors`` and below.
"""

from erfscope.isolation.processes import Limits, Outcome, run_alone

__all__ = ["Limits", "Outcome", "run_alone"]

"""Models measured in processes of their own, so that a crash, a hang or a lack of memory costs one row and not the run."""

from erfscope.isolation.journal import Journal
from erfscope.isolation.processes import Limits, Outcome, Processes

__all__ = ["Journal", "Limits", "Outcome", "Processes"]

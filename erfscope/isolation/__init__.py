"""One task per process, and a journal of them.

May import: ``storage`` and below.
"""

from erfscope.isolation.journal import Journal
from erfscope.isolation.processes import Limits, Outcome, Processes

__all__ = ["Journal", "Limits", "Outcome", "Processes"]

"""Processes that share a run; which images are whose.

May import: ``answer`` and below.
"""

from erfscope.core.run.parallel.process_group import (
    SINGLE,
    ProcessGroup,
    RankGone,
    current,
    distributed,
    is_member,
    single_process,
)

__all__ = ["SINGLE", "ProcessGroup", "RankGone", "current", "distributed", "is_member", "single_process"]

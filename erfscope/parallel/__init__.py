"""Processes that share a run; which images are whose.

May import: ``maps`` and below.
"""

from erfscope.parallel.process_group import (
    SINGLE,
    ProcessGroup,
    RankGone,
    current,
    distributed,
    is_member,
    single_process,
)

__all__ = ["SINGLE", "ProcessGroup", "RankGone", "current", "distributed", "is_member", "single_process"]

"""The union of the shards of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from erfscope.core.answer import merge as merging
from erfscope.core.answer.report import Report
from erfscope.core.answer.storage.files import read


def merge(shards: Sequence[str | Path | Report]) -> Report:
    """The union of the shards of one run: its numbers up to rounding.

    Args:
        shards: Folders that ``--shard i/n -o DIR`` (or ``shard="i/n"`` and :meth:`Report.save`) wrote, or the reports
            themselves, in any order.

    Returns:
        The report of the whole run: the one that a single process would have made, to rounding in the last places of
            float64.

    Raises:
        ErfscopeError: not a report, or one that is no shard.
        MeasurementError: a shard is missing or there twice, or shards come from different runs.
    """
    return merging.merge([shard if isinstance(shard, Report) else read(shard) for shard in shards])

"""Rows of the tables in ``benchmarks/tables``, as CSV on stdout."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable


def print_row(cells: Iterable[object]) -> None:
    """Print one row, at once."""
    csv.writer(sys.stdout, lineterminator="\n").writerow(cells)
    sys.stdout.flush()

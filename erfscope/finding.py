"""What must be said of a model, a map or its images."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a reader of the numbers must know."""

    code: str
    text: str

"""What the schemas of PyTorch's operations say."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What the schema of an operation says; reading the schema itself takes longer than noting a call."""

    #: Name without namespace, e.g. "convolution" or "add_".
    name: str
    #: The arguments with their defaults, None where there is none.
    defaults: dict[str, Any]
    #: The arguments that the operation writes into.
    written: frozenset[str]
    #: Whether it returns a view of its argument.
    is_view: bool
    #: Whether it writes into anything.
    is_mutable: bool


@functools.cache
def signature_of(func: torch._ops.OpOverload) -> Signature:
    """The signature of an operation, read once per process."""
    schema = func._schema
    arguments = list(schema.arguments)
    shows = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return Signature(
        name=schema.name.split("::")[1],
        defaults={a.name: a.default_value for a in arguments},
        written=frozenset(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write),
        is_view=shows or schema.name == "aten::_unsafe_view",
        is_mutable=bool(schema.is_mutable),
    )

"""Packages whose public names are loaded at their first use, so that importing one imports neither torch nor timm."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any


def names_of_stub(package: str) -> tuple[list[str], Callable[[str], Any]]:
    """The public names of a package and what loads one, as ``__getattr__`` of a module does: its stub
    ``__init__.pyi``, which type checkers read, imports each from where it is.

    Names that are modules themselves, such as ``theory``, can be loaded and are none of the public names.
    """
    stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    homes = {
        name.name: str(node.module) for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names
    }

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = None if homes[name] == package else import_module(homes[name])
        return getattr(home, name) if hasattr(home, name) else import_module(f"{homes[name]}.{name}")

    return sorted(homes), load

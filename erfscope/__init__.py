"""erfscope: how far does a vision model really look?

Positions are (row, col), origin top-left, pixel centres at integers, everywhere. Sizes in pixels are pixels of the
model's input.

    import erfscope
    result = erfscope.analyze("resnet18", images="x.png")
    float(result["r50"]), result["r50"].se, result.map.values

Importing this package imports neither torch nor timm: public names are loaded at their first use.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import Any

from erfscope.core.answer import outputs as _made

__version__ = "0.1.0"

if not (Path(__file__).parent / "cli").is_dir() and (Path(__file__).parent.parent / "cli" / "main.py").is_file():
    # In a checkout without symbolic links, as git makes on Windows, `cli` and `adapters` beside this file are text
    # files.
    __path__.append(str(Path(__file__).parent.parent))

_STUB = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
#: Name -> the module that it is loaded from, as ``__init__.pyi`` imports it: the one table of the public names.
_HOMES = {name.name: str(node.module) for node in _STUB.body if isinstance(node, ast.ImportFrom) for name in node.names}
#: Rooms among them, by name.
_ROOMS = {name: home for name, home in _HOMES.items() if home in (__name__, f"{__name__}.apps", f"{__name__}.apps.lab")}

__all__ = sorted({*_HOMES} - {*_ROOMS})


def _outputs() -> Any:
    from erfscope.show.outputs import ShownOutputs

    return ShownOutputs()


_made.made_by(_outputs)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"{_ROOMS[name]}.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'erfscope' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *_ROOMS, *__all__})

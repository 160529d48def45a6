"""erfscope: how far does a vision model really look?

Positions are (row, col), origin top-left, pixel centres at integers, everywhere. Sizes in pixels are pixels of the
model's input.

    import erfscope
    result = erfscope.analyze("resnet18", images="x.png")
    float(result["r50"]), result["r50"].se, result.map.values

Importing this package imports neither torch nor timm: public names are loaded at their first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erfscope.core.answer import outputs as _made
from erfscope.core.values.lazy import names_of_stub

__version__ = "1.0.0"

if not (Path(__file__).parent / "cli").is_dir() and (Path(__file__).parent.parent / "cli" / "main.py").is_file():
    # In a checkout without symbolic links, as git makes on Windows, `cli` and `adapters` beside this file are text
    # files.
    __path__.append(str(Path(__file__).parent.parent))

_names, __getattr__ = names_of_stub(__name__)
#: Rooms that can be loaded by name, and are none of the public names.
_ROOMS = ("adapters", "core", "gate", "show", "studies", "theory")
__all__ = [name for name in _names if name not in _ROOMS]


def _outputs() -> Any:
    from erfscope.show.outputs import ShownOutputs

    return ShownOutputs()


_made.made_by(_outputs)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *_names})

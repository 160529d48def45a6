"""erfscope: how far does a vision model really look?

Positions are (row, col), origin top-left, pixel centres at integers, everywhere. A size in pixels is in pixels of the model's input.

    import erfscope
    result = erfscope.analyze("resnet18", images="x.png")
    float(result["r50"]), result["r50"].se, result.map.values

Importing this package imports neither torch nor timm: names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erfscope.errors import ErfscopeError, ErfWarning, FallbackWarning, MeasurementError

if TYPE_CHECKING:
    from erfscope.adapters import wrap
    from erfscope.api import analyze, check, compare, compare_isolated, compare_to_baseline, layers, merge, repeat, sweep, theoretical
    from erfscope.attribution.captum_methods import ErfAttribution
    from erfscope.attribution.convention import CONVENTIONS, Convention
    from erfscope.attribution.readout import UnitReadout
    from erfscope.geometry.receptive_field import Trf
    from erfscope.influence_matrix import Influence, influence
    from erfscope.maps.erf_map import ErfMap
    from erfscope.measures import MEASURES, Measure
    from erfscope.monitoring import ErfMonitor
    from erfscope.options.keywords import Options
    from erfscope.parallel import distributed
    from erfscope.results.report import Report
    from erfscope.results.result import Result
    from erfscope.storage.reports import read

__version__ = "0.1.0"

if not (Path(__file__).parent / "cli").is_dir() and (Path(__file__).parent.parent / "cli" / "main.py").is_file():
    # A checkout without symbolic links, as git makes on Windows: there `cli` and `adapters` beside this file are small texts.
    __path__.append(str(Path(__file__).parent.parent))

_HOMES = {
    "wrap": "erfscope.adapters",
    "analyze": "erfscope.api",
    "check": "erfscope.api",
    "compare": "erfscope.api",
    "compare_isolated": "erfscope.api",
    "compare_to_baseline": "erfscope.api",
    "layers": "erfscope.api",
    "loaded_model": "erfscope.engine.model",
    "merge": "erfscope.api",
    "repeat": "erfscope.api",
    "sweep": "erfscope.api",
    "theoretical": "erfscope.api",
    "ErfAttribution": "erfscope.attribution.captum_methods",
    "CONVENTIONS": "erfscope.attribution.convention",
    "Convention": "erfscope.attribution.convention",
    "ErfMap": "erfscope.maps.erf_map",
    "ErfMonitor": "erfscope.monitoring",
    "Influence": "erfscope.influence_matrix",
    "influence": "erfscope.influence_matrix",
    "MEASURES": "erfscope.measures",
    "Measure": "erfscope.measures",
    "Options": "erfscope.options",
    "distributed": "erfscope.parallel",
    "UnitReadout": "erfscope.attribution.readout",
    "Report": "erfscope.results.report",
    "read": "erfscope.storage.reports",
    "Result": "erfscope.results.result",
    "Trf": "erfscope.geometry.receptive_field",
}

#: Sub-packages that can be used as attributes right after ``import erfscope``.
_ROOMS = ("adapters", "api", "gate", "studies", "theory")

__all__ = [
    "CONVENTIONS",
    "MEASURES",
    "Convention",
    "ErfAttribution",
    "ErfMap",
    "ErfMonitor",
    "ErfWarning",
    "ErfscopeError",
    "FallbackWarning",
    "Influence",
    "Measure",
    "MeasurementError",
    "Options",
    "Report",
    "Result",
    "Trf",
    "UnitReadout",
    "analyze",
    "check",
    "compare",
    "compare_isolated",
    "compare_to_baseline",
    "distributed",
    "influence",
    "layers",
    "merge",
    "read",
    "repeat",
    "sweep",
    "theoretical",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"erfscope.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'erfscope' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The table of the sources of models. The module that a row names holds two functions: ``build`` builds the model of a
spec, ``store`` finds its pretrained weights. Imports no torch.

To add one: a row here, which ``load``, the help, ``erfscope doctor`` and ``--config`` read, and its two functions; both
tables of ``docs/weights.md``; its package in ``pyproject.toml`` and ``core/system/environment.py`` and its loggers in
``adapters/libraries.py``; the specs in the README. A library that declares its own layers or geometry also gets a
subclass of ``ModuleAdapter``, as ``adapters/timm_model.py`` is. Unusual inputs or outputs need ``wrap(forward=...)``
alone, unusual orders of axes nothing: try ``erfscope layers`` first."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erfscope.adapters.sources.source import Source, SourceOptions
    from erfscope.adapters.weights.weights import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """One source of models."""

    #: The forms of its specs, for the help and for refusals.
    specs: str
    #: A regular expression for its specs; the first row that matches builds the model.
    pattern: str
    #: The module of this folder that has both functions.
    module: str
    #: Whether a spec names code, which runs when the model is built; other sources read files and run none of theirs.
    runs_code: bool = False

    def build(self, spec: str, options: SourceOptions) -> Source:
        """Build the model of a spec."""
        source: Source = self._module().build(spec, options)
        return source

    def store(self, spec: str) -> Store | None:
        """Where the pretrained weights of a spec lie; None where the model comes with its weights."""
        found: Store | None = self._module().store(spec)
        return found

    def _module(self) -> Any:
        return importlib.import_module(f"erfscope.adapters.sources.{self.module}")


#: Every source, in the order of the help. The last one takes what no other does.
KINDS = (
    SourceKind(
        specs="a timm name (`resnet18`, `resnet18.a1_in1k`, `hf-hub:owner/name`, `local-dir:path`)",
        pattern=r"(hf-hub|hf_hub|local-dir):.*|[^:]*(?<!\.pt2)",
        module="timm_models",
    ),
    SourceKind(specs="`torchvision:NAME`", pattern="torchvision:.*", module="torchvision_models"),
    SourceKind(specs="`transformers:NAME`", pattern="transformers:.*", module="transformers_models"),
    SourceKind(specs="`path/model.pt2`", pattern=r".*\.pt2", module="exported"),
    SourceKind(
        specs="`package.module:factory` or `path/file.py:factory`", pattern=".*", module="factory", runs_code=True
    ),
)
#: The forms of all specs, for sentences.
SPECS = ", ".join(kind.specs for kind in KINDS)


def kind_of(spec: str) -> SourceKind:
    """Return the source of a spec without its label."""
    return next(kind for kind in KINDS if re.fullmatch(kind.pattern, spec, re.DOTALL | re.IGNORECASE))

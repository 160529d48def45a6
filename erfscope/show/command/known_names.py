"""The model names that a shell offers: those in timm's files, since importing timm takes seconds."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import rich_click as click
from click.shell_completion import CompletionItem

from erfscope.show.command.console import File

#: How timm's files register a model.
REGISTERED = re.compile(r"@register_model\s+def (\w+)")


class ModelName(File):
    """Any text; a shell offers the names of timm's models, and files where none fits."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the names that begin as the value does; timm is not imported."""
        found = [CompletionItem(name) for name in names_in_timm() if name.startswith(incomplete)]
        return found or super().shell_complete(ctx, param, incomplete)


def names_in_timm() -> list[str]:
    """Return the names that timm's files register; none where timm is not installed."""
    timm = importlib.util.find_spec("timm")
    files = Path(timm.origin).parent.glob("models/*.py") if timm is not None and timm.origin else ()
    return [name for file in sorted(files) for name in REGISTERED.findall(file.read_text(encoding="utf-8"))]

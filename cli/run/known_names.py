"""The names that timm knows, kept in a file so that listing them need not import it, which takes seconds."""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.metadata
import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import rich_click as click
from click.shell_completion import CompletionItem
from platformdirs import user_cache_path

import erfscope
from erfscope.cli.console import File


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """timm's model names as one installation has them, in timm's order."""

    #: The state that they depend on: versions, timm's folder, and the time of the last change to its models.
    origin: dict[str, str]
    names: list[str]
    #: Names with pretrained weights, with their tags.
    pretrained: list[str]


class ModelName(File):
    """Any text; a shell offers the model names that were listed last, and files where none fits."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the names that begin as the value does, with tags once there is a dot; timm is not imported."""
        kept = _kept(_file())
        names = [] if kept is None else kept.pretrained if "." in incomplete else kept.names
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return found or super().shell_complete(ctx, param, incomplete)


def model_names(pattern: str | None = None, *, pretrained: bool = False) -> list[str]:
    """Return what :func:`erfscope.adapters.sources.catalogue.model_names` returns, from a file of the user's cache
    where that is current.

    A file that is missing, damaged or of another installation is replaced; the names are found without one that cannot
    be read or written."""
    known = _known_model_names()
    names = known.pretrained if pretrained else known.names
    if not pattern:
        return list(names)
    wild = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    base, _, tag = wild.partition(".")
    # A pattern without a tag means every tag, as in timm's list_models.
    wanted = [wild, f"{base}.*"] if pretrained and not tag else [wild]
    found = {name for each in wanted for name in fnmatch.filter(names, each)}
    return [name for name in names if name in found]


def _known_model_names() -> KnownNames:
    origin, file = _origin(), _file()
    if origin is not None and (kept := _kept(file)) is not None and kept.origin == origin and kept.names:
        return kept
    from erfscope.adapters.sources import catalogue

    known = KnownNames(
        origin=origin or {}, names=catalogue.model_names(), pretrained=catalogue.model_names(pretrained=True)
    )
    if origin is not None:
        _keep(known, file)
    return known


def _file() -> Path:
    return user_cache_path("erfscope", appauthor=False) / "models.json"


def _kept(file: Path) -> KnownNames | None:
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
        return msgspec.json.decode(file.read_bytes(), type=KnownNames)
    return None


def _keep(known: KnownNames, file: Path) -> None:
    from erfscope.errors import ErfscopeError
    from erfscope.storage.writing import write_bytes

    with contextlib.suppress(OSError, ErfscopeError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, msgspec.json.encode(asdict(known)), force=True)


def _origin() -> dict[str, str] | None:
    """The state that the names depend on; None if it cannot be found, so that nothing is kept."""
    try:
        spec = importlib.util.find_spec("timm")
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent
        versions = {name: importlib.metadata.version(name) for name in ("timm", "torch", "torchvision")}
        changed = str((folder / "models").stat().st_mtime_ns)
    except (importlib.metadata.PackageNotFoundError, ImportError, ValueError, OSError):
        return None
    return {"erfscope": erfscope.__version__, **versions, "folder": str(folder), "changed": changed}

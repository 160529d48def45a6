"""``erfscope --version``: the version, and the commit where that is no release."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import erfscope


def version_text() -> str:
    """``1.0.0`` of a release, else ``1.0.0, commit 0123456``."""
    commit = _installed_from() or _checked_out(Path(erfscope.__file__).resolve().parents[1])
    return erfscope.__version__ + (f", commit {commit[:10]}" if commit else "")


def _installed_from() -> str | None:
    """The commit that pip installed, as it notes it (PEP 610)."""
    try:
        noted = distribution("erfscope").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    commit: str | None = json.loads(noted or "{}").get("vcs_info", {}).get("commit_id")
    return commit


def _checked_out(folder: Path) -> str | None:
    """The commit of a checkout that holds the package itself; None at the tag of its version."""
    if not (folder / ".git").exists():
        return None
    found = []
    for words in (["rev-parse", "HEAD"], ["tag", "--points-at", "HEAD"]):
        try:
            done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        found.append(done.stdout.strip())
    return None if f"v{erfscope.__version__}" in found[1].split() else found[0]

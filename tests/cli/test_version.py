"""``erfscope --version``: of a release the version alone, of anything else its commit too."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import erfscope
from erfscope.cli import version


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "erfscope").mkdir()
    monkeypatch.setattr(erfscope, "__file__", str(tmp_path / "erfscope" / "__init__.py"))
    monkeypatch.setattr(version, "_installed_from", lambda: None)
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    return tmp_path


def test_a_checkout_says_its_commit_and_at_its_tag_the_version_alone(checkout):
    commit = git(checkout, "rev-parse", "HEAD")
    assert version.version_text() == f"{erfscope.__version__}, commit {commit[:10]}"
    git(checkout, "tag", "v0.0.1")
    assert version.version_text() == f"{erfscope.__version__}, commit {commit[:10]}"
    git(checkout, "tag", f"v{erfscope.__version__}")
    assert version.version_text() == erfscope.__version__


def test_what_pip_installed_from_a_repository_says_its_commit(monkeypatch):
    noted = json.dumps({"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef"}})
    monkeypatch.setattr(version, "distribution", lambda _: type("D", (), {"read_text": lambda _s, _n: noted})())
    assert version.version_text() == f"{erfscope.__version__}, commit 0123456789"


def test_without_git_and_without_a_checkout_it_is_the_version(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert version.version_text() == erfscope.__version__
    monkeypatch.setattr(erfscope, "__file__", "/nowhere/erfscope/__init__.py")
    assert version.version_text() == erfscope.__version__


def test_the_command_prints_it(command):
    code, out, _ = command("--version")
    assert code == 0
    assert out.startswith(f"erfscope, version {erfscope.__version__}")

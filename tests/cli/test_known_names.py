"""The model names that a shell offers are those that timm lists."""

from __future__ import annotations

import importlib.util

import pytest

from erfscope.adapters.sources import catalogue
from erfscope.show.command.known_names import names_in_timm


def test_the_names_in_the_files_of_timm_are_those_that_it_lists():
    assert sorted(names_in_timm()) == sorted(catalogue.model_names())


def test_an_installation_without_timm_has_no_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert names_in_timm() == []

"""The pytest plugin: the fixture ``erf_regression`` compares a model's ERF with what is stored beside the test.

Loaded by every pytest run where erfscope is installed, so that it imports nothing heavy until the fixture is used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pytest

from erfscope.core import ErfscopeError

if TYPE_CHECKING:
    from erfscope.apps.gate.verdict import Verdict
    from erfscope.core import Model, Options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--erf-update``."""
    text = "Store what erf_regression finds as what is expected from now on, and pass."
    parser.getgroup("erfscope").addoption("--erf-update", action="store_true", default=False, help=text)


@pytest.fixture
def erf_regression(request: pytest.FixtureRequest) -> ErfRegression:
    """Compares a model's effective receptive field with what is stored beside the test:
    ``erf_regression.check(model)``."""
    return ErfRegression(request)


class ErfRegression:
    """The fixture ``erf_regression``.

    Args:
        request: The test that asks.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._checked: set[str] = set()

    @property
    def file(self) -> Path:
        """The file of this test's numbers: in a folder named after the test's file, in a file named after the
        test."""
        asked = "-".join(self._request.node.nodeid.split("::")[1:])
        name = re.sub(r"[^][A-Za-z0-9._-]+", "_", asked).strip("._")[:120] or "test"
        if name != asked:
            # Another test may differ in what no file name has.
            name += f"-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"
        return self._request.path.with_suffix("") / f"{name}.json"

    def check(
        self,
        model: Model,
        *,
        name: str | None = None,
        tolerances: Mapping[str, object] | None = None,
        **analyze_options: Unpack[Options],
    ) -> Verdict:
        """Measure a model and compare it with what is stored; the test fails where it does not pass.

        Where nothing is stored yet, what is found is stored and the test fails once, so that it is reviewed.
        ``--erf-update`` stores and passes, pytest-regressions' ``--force-regen`` stores and fails.

        Args:
            model: A spec, an adapter or a live module, as for :func:`erfscope.analyze`.
            name: What to call it, where one test checks several models or settings; what the model is called if None.
            tolerances: By measure, such as ``{"r50": "-5%"}``; see :func:`erfscope.check`.
            **analyze_options: Those of :func:`erfscope.analyze`, each with one value.

        Returns:
            The verdict, a pass.

        Raises:
            ErfscopeError: an option, a tolerance or the stored file cannot be used.
        """
        from erfscope.apps.gate.checks import CheckRequest, check_all
        from erfscope.apps.gate.verdict import CheckAdvice

        option = self._request.config.getoption
        regenerate = bool(option("force_regen", False))
        command = f"pytest '{self._request.node.nodeid}' --erf-update"
        advice = CheckAdvice(
            accept=command,
            allow=f"`{command}` stores and passes at once",
            keep="name this check: erf_regression.check(model, name=...)",
        )
        asked = CheckRequest(
            name=name or "", model=model, tolerances=tolerances, options=analyze_options, advice=advice
        )
        if asked.name in self._checked:
            raise ErfscopeError(
                f"this test checks {asked.name!r} twice; give each check a name: erf_regression.check(model, name=...)"
            )
        self._checked.add(asked.name)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ErfscopeError(
                f"cannot make the folder {self.file.parent} for what is expected: {error.strerror or error}"
            ) from error
        update = regenerate or bool(option("erf_update"))
        verdict = check_all([asked], baseline=self.file, update=update, missing="write").verdicts[0]
        self._note(asked.name, verdict)
        if regenerate or not verdict.ok:
            pytest.fail(verdict.text, pytrace=False)
        return verdict

    def _note(self, label: str, verdict: Verdict) -> None:
        """Put the numbers into the test's properties, which reports such as JUnit's XML show."""
        notes: dict[str, Any] = {"verdict": verdict.word}
        for measure, found in verdict.obtained.measures.items():
            notes |= {measure: found.value, f"{measure}_se": found.se}
        self._request.node.user_properties += [
            (f"erf.{label}.{key}", value) for key, value in notes.items() if value is not None
        ]

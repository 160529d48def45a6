"""Studies: theorems, figures and tables of the literature, reproduced from fixed seeds at a size that fits two CPU cores.

To add one, write a module with ``study(asked: Asked) -> Findings`` and a row in :data:`STUDIES`.
"""

from __future__ import annotations

import importlib
import time

from erfscope.errors import unknown
from erfscope.studies.study import Asked, Column, Findings, Progress, Study, StudyResult

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            name="theorems",
            source="Nicolicioiu & Duta; Luo et al. 2016; Knyazev et al. 2019; Neumeier et al.; Brody et al. 2022; and others",
            shows="closed forms of ERFs, against the engine and the blocks",
            seconds=20,
            home="erfscope.studies.theorems",
        ),
    )
}

__all__ = ["STUDIES", "Asked", "Column", "Findings", "Study", "StudyResult", "run"]


def run(name: str, *, seed: int = 0, quick: bool = False, progress: Progress | None = None) -> StudyResult:
    """Run one study.

    Args:
        name: One of :data:`STUDIES`.
        seed: Of all random numbers in it.
        quick: Smaller cases and fewer samples: a few seconds.
        progress: Called with (text, how many done, how many in all).

    Returns:
        What was found; ``passed`` says whether every claim held.

    Raises:
        ErfscopeError: no study of that name, or a seed below 0.
    """
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    asked = Asked(seed=seed, quick=quick, progress=progress)
    start = time.perf_counter()
    findings = importlib.import_module(STUDIES[name].home).study(asked)
    seconds = time.perf_counter() - start
    return StudyResult(study=name, seed=seed, quick=quick, seconds=seconds, findings=findings)

"""Studies: theorems, figures and tables of the literature, reproduced from fixed seeds at a size that fits two CPU cores.

To add one, write a module with ``study(asked: Asked) -> Findings`` and a row in :data:`STUDIES`.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path

from erfscope.errors import ErfscopeError, unknown
from erfscope.studies.picture import Chart, Curve, Picture, Shown
from erfscope.studies.study import Asked, Column, Effort, Findings, Progress, Study, StudyResult

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            name="theorems",
            source="Nicolicioiu & Duta; Luo et al. 2016; Knyazev et al. 2019; Neumeier et al.; Brody et al. 2022; and others",
            shows="closed forms of ERFs, against the engine and the blocks",
            seconds=20,
            quick_seconds=8,
            home="erfscope.studies.theorems",
        ),
    )
}

__all__ = ["STUDIES", "Asked", "Chart", "Column", "Curve", "Effort", "Findings", "Picture", "Shown", "Study", "StudyResult", "run"]


def run(
    name: str,
    *,
    seed: int = 0,
    effort: Effort = "full",
    data: str | Path | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> StudyResult:
    """Run one study.

    Args:
        name: One of :data:`STUDIES`.
        seed: Of all random numbers in it.
        effort: ``"full"``, at most ten minutes on two cores; ``"quick"``, less than one; ``"smoke"``, a few seconds.
        data: A folder with the papers' own data set, for the studies that can take one.
        cache: A folder where trained nets are kept, so that a run that was cut off goes on where it was; None for nowhere.
        progress: Called with (text, how many done, how many in all).

    Returns:
        What was found; ``passed`` says whether every claim held.

    Raises:
        ErfscopeError: no study of that name, no such folder of data, or a seed below 0.
    """
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    if data is not None and not Path(data).is_dir():
        raise ErfscopeError(f"there is no folder {str(data)!r} with data; leave it out to use data that is made here")
    folders = {key: None if folder is None else Path(folder) for key, folder in (("data", data), ("cache", cache))}
    asked = Asked(seed=seed, effort=effort, progress=progress, **folders)
    start = time.perf_counter()
    findings = importlib.import_module(STUDIES[name].home).study(asked)
    seconds = time.perf_counter() - start
    return StudyResult(study=name, seed=seed, effort=effort, seconds=seconds, findings=findings)

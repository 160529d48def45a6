"""All models of timm at random weights, each in a process of its own: one per architecture before variants, smallest
first.

    python benchmarks/zoo.py --budget 60m -o DIR
    python benchmarks/zoo.py --budget 60m -o DIR --resume

``DIR/rows.jsonl`` has one line per measured model, ``DIR/counts.jsonl`` the numbers of parameters, ``DIR/table.md``
what both say. A model that crashes, hangs or takes too much memory is a row; one that the budget cut off is none, and
is measured by the next run."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zoo_lines import Lines
from zoo_table import report, spoken

from erfscope import ErfscopeError
from erfscope.core.answer.storage.json_format import result_to_json
from erfscope.core.run.isolated import measure_alone
from erfscope.core.run.processes import GRACE_S, Limits, Outcome, run_alone

#: Share of the budget within which parameters are counted. Models that are not counted by then come after those that
#: are.
COUNTING = 0.25
#: Seconds kept free at the end: a process that is asked to stop may take its grace.
RESERVE = GRACE_S + 5
#: What every model is asked. Two images say where a field is, not how large to the pixel.
ASKED: dict[str, Any] = {"weights": "random", "samples": 2, "draws": 2, "measures": ["r50", "context_r50"]}
#: What an entry point begins with, with the word for a port before it, and the numbers and letters after that which say
#: how large it is.
_PREFIX, _SIZE = re.compile(r"(?:(?:tf|dm|test|legacy|ese)_)?[^_]+"), re.compile(r"\d+[a-z]{0,2}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of timm."""

    name: str
    #: timm's module that has it.
    module: str
    #: Number of its parameters; None if not counted.
    parameters: int | None = None

    @property
    def family(self) -> tuple[str, str]:
        """Its module and the word that its entry point begins with, without its size."""
        found = _PREFIX.match(self.name)
        return self.module, _SIZE.sub("", found[0] if found else self.name)


@dataclass(slots=True)
class Budget:
    """Seconds that may be spent, from now on."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self.began

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.seconds - self.spent


def plan(models: Iterable[Model]) -> list[tuple[int, Model]]:
    """The order of the models, each with its round, smallest first in every round.

    Returns:
        (round, model): 1 for the smallest model of each of timm's modules, 2 for the smallest one of each family that
        has none in round 1, 3 for the rest. Models without a count come last in their round.
    """
    modules: set[str] = set()
    families: set[tuple[str, str]] = set()
    rounds: dict[int, list[Model]] = {1: [], 2: [], 3: []}
    for model in sorted(models, key=lambda m: (m.parameters is None, m.parameters or 0, m.name)):
        number = 1 if model.module not in modules else 2 if model.family not in families else 3
        modules.add(model.module)
        families.add(model.family)
        rounds[number].append(model)
    return [(number, model) for number, found in rounds.items() for model in found]


def in_turn(models: Sequence[Model]) -> list[Model]:
    """The models so that every family has its first one early, then every family its second one, and so on."""
    seen: dict[tuple[str, str], int] = {}
    turns = []
    for model in models:
        seen[model.family] = seen.get(model.family, 0) + 1
        turns.append((seen[model.family], model))
    return [model for _, model in sorted(turns, key=lambda pair: pair[0])]


def timm_models() -> list[Model]:
    """All models that timm can build without the network."""
    import timm
    from timm.models import _registry

    return [Model(name=name, module=_registry._model_to_module[name]) for name in timm.list_models()]


def parameters_of(name: str) -> int:
    """How many parameters a model of timm has; nothing is allocated."""
    import timm
    import torch

    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return sum(parameter.numel() for parameter in timm.create_model(name, pretrained=False).parameters())


def counted(
    models: Sequence[Model], journal: Lines, budget: Budget, count: Callable[[str], int] = parameters_of
) -> list[Model]:
    """The models with their numbers of parameters, as far as they are noted or can be counted within their share of the
    budget."""
    for model in in_turn(models):
        if model.name in journal.models:
            continue
        if budget.spent > COUNTING * budget.seconds:
            break
        try:
            found: int | None = count(model.name)
        except Exception:  # what is wrong with it will be said when it is measured
            found = None
        journal.add({"model": model.name, "parameters": found})
    noted = journal.models
    return [Model(name=m.name, module=m.module, parameters=noted.get(m.name, {}).get("parameters")) for m in models]


def begun(folder: Path, asked: Mapping[str, Any], *, anew: bool) -> tuple[Lines, Lines]:
    """The rows and the counts of a new folder, or of one that was begun.

    Raises:
        ErfscopeError: the folder is not new, holds something else, or was begun with other settings.
    """
    rows, counts = folder / "rows.jsonl", folder / "counts.jsonl"
    if rows.is_file() and anew:
        raise ErfscopeError(f"{folder} was begun already; go on with --resume, or name another folder")
    if not rows.is_file() and folder.is_dir() and any(folder.iterdir()):
        raise ErfscopeError(f"{folder} holds something else already; name another folder")
    return Lines(rows, {"settings": dict(asked), "timm": version("timm")}), Lines(counts, {"timm": version("timm")})


def measure_all(
    order: Sequence[tuple[int, Model]],
    journal: Lines,
    budget: Budget,
    limits: Limits,
    asked: Mapping[str, Any],
    said: Callable[[Mapping[str, Any]], None],
    run: Callable[..., Outcome] = run_alone,
) -> None:
    """Measure what is not noted yet, until all is done or the budget is spent; each row is noted at once.

    Args:
        order: Of :func:`plan`.
        journal: Takes the rows.
        budget: Kept: no model is begun, and one that is under way is ended, when only :data:`RESERVE` seconds are left.
        limits: Of time and memory, per model.
        asked: Options of ``erfscope.compare``.
        said: Is told every new row.
        run: Measures a model in a process of its own.
    """
    for number, model in order:
        if model.name in journal.models:
            continue
        if budget.left <= RESERVE:
            break
        what = (model.name, model.name, model.name, dict(asked))
        outcome = run(measure_alone, *what, limits=limits, stop=lambda: budget.left <= RESERVE)
        if budget.left > RESERVE:
            row = {"model": model.name, "module": model.module, "round": number, "parameters": model.parameters}
            row |= {"seconds": round(outcome.seconds, 2), **found(outcome)}
            journal.add(row)
            said(row)


def found(outcome: Outcome) -> dict[str, Any]:
    """What a process has given of a model, as the part of its row that is about the result."""
    if outcome.error is not None:
        return {"status": "error", "error": outcome.error}
    (result,) = map(result_to_json, outcome.value)
    row = {
        "status": result["status"],
        "error": result["error"],
        "input_px": result["input"]["size"],
        "layer": result["layer"],
    }
    if result["trf"]:
        names = {"size_px": "trf_px", "local_size_px": "local_trf_px", "global_by": "global_by", "exact": "trf_exact"}
        row |= {ours: result["trf"][theirs] for theirs, ours in names.items()}
    if result["unit"]:
        row |= {name: result["unit"][name] for name in ("stride_px", "center_exact")}
    row |= {name: measure["value"] for name, measure in (result["measures"] or {}).items() if name in ASKED["measures"]}
    return row | {"findings": [finding["code"] for finding in result["warnings"]]}


def run(folder: Path, *, budget_s: float, anew: bool, limits: Limits, input_size: int | None = None) -> int:
    """Measure as many of timm's models as the budget allows, and write the table.

    Args:
        folder: Where the rows are noted.
        budget_s: Seconds for everything.
        anew: Whether the folder must be new.
        limits: Of time and memory, per model.
        input_size: Common side of all inputs in pixels; every model's own size if None.

    Returns:
        How many of the rows are not ok.
    """
    budget = Budget(budget_s)
    asked = ASKED | ({} if input_size is None else {"input_size": [input_size, input_size]})
    journal, counts = begun(folder, asked, anew=anew)
    models = counted(timm_models(), counts, budget)
    print(
        f"{sum(m.parameters is not None for m in models)} of {len(models)} models counted in {budget.spent:.0f} s",
        flush=True,
    )
    if budget.left > RESERVE:
        # The imports of the server are no model's seconds.
        run_alone(id, 0, limits=Limits())
        measure_all(plan(models), journal, budget, limits, asked, lambda row: print(spoken(row), flush=True))
    rows = list(journal.models.values())
    (folder / "table.md").write_text(report(rows, models), encoding="utf-8")
    ok = [row["status"] for row in rows].count("ok")
    print(f"{ok} of {len(rows)} ok, {len(models) - len(rows)} not run, {budget.spent:.0f} s; {folder / 'table.md'}")
    return len(rows) - ok

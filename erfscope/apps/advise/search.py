"""The search of a design: candidates of a model, what each costs, and how it is measured."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from erfscope import analyze
from erfscope.apps.advise.candidates import Candidate, joined, narrower, parts_of, wider
from erfscope.apps.advise.halving import Trial, difference, fill, settle
from erfscope.apps.advise.outcome import REACH, Search
from erfscope.apps.advise.structure import NetStructure
from erfscope.apps.advise.target import HALO, Bound
from erfscope.apps.advise.verdict import FRESH, LOOKS, finalists
from erfscope.core import ErfscopeError, Model, OpenModel, Request, Result, halo_of, mass_beyond, open_model, to_json
from erfscope.show import write

#: The file in a folder that keeps what a search has measured, and its form.
KEPT, KEPT_SCHEMA = "search.json", "erfscope.search/3"
#: Images of each draw of a search, and the front's members that are put together where none reaches the target.
IMAGES, JOINED = 4, 5
#: Times that edits are put together.
ROUNDS = 2
#: The part of the time in which finalists are chosen; what is left decides whether they reach the target.
CHOOSING_TIME = 0.5


def draw_seed(seed: int, draw: int) -> int:
    """The seed of one draw: draws of one search, and those of searches with other seeds, share none."""
    return int(np.random.SeedSequence((seed, draw)).generate_state(1)[0])


class SearchRun:
    """One search: the candidates of a model, and how each is measured."""

    def __init__(
        self,
        model: Model,
        loaded: OpenModel,
        request: Request,
        options: Mapping[str, Any],
        *,
        goal: Bound,
        budget: tuple[Bound, ...],
        kept: Mapping[str, Any],
        seconds: float,
    ) -> None:
        if several := request.several():
            raise ErfscopeError(f"a search is about one layer and setting; give one {' and one '.join(several)}")
        self.model, self.loaded, self.request, self.kept = model, loaded, request, kept
        self.given = {name: value for name, value in options.items() if name != "stop"}
        self.options = {name: value for name, value in self.given.items() if name not in ("weights", "checkpoint")}
        self.seconds = seconds
        self.search = Search(
            target=goal,
            budget=budget,
            layer=request.layers[0] or loaded.default_layer,
            measure=REACH if goal.name == HALO else goal.name,
            price=HALO if goal.name == HALO else "gmacs",
            trials=(),
            is_settled=False,
            draws_weights=isinstance(model, str),
            spec=model if isinstance(model, str) else "",
            base=tuple(map(str, self._inserted(Candidate()) or ())),
            input_size=loaded.input_size,
        )
        self.own_halo: float | None = None
        #: What was measured, by candidate and draw, and of smaller halos the r50 beside it and by draw what of the
        #: model's own map lies beyond each distance.
        self.known: dict[str, dict[int, float]] = {}
        self.r50: dict[str, dict[int, float]] = {}
        self.beyond: dict[int, list[float]] = {}
        self.count = 0
        self._resume()
        self.end = clock.monotonic() + seconds
        self.chosen = self._part()
        loaded.layer(self.search.layer)

    @property
    def measure(self) -> str:
        """The measure that results are asked for."""
        return "r50" if self.search.measure == REACH else self.search.measure

    def _is_late(self) -> bool:
        return self.request.stop() or clock.monotonic() > self.end

    def _part(self) -> float:
        """When the part of the time that is left is over in which finalists are chosen."""
        return self.end - (1 - CHOOSING_TIME) * (self.end - clock.monotonic())

    def _is_chosen(self) -> bool:
        """Whether it is time to decide, which halos need none for."""
        return self._is_late() or (self.search.price != HALO and clock.monotonic() > self.chosen)

    def run(self, structure: NetStructure) -> Search:
        """Try the candidates, and the best of them put together where none reaches the target."""
        # What cannot be measured is refused.
        if not self.known.get(Candidate().text):
            self._measure(Candidate(), 0)
        found = replace(self.search, trials=tuple(self._trials([Candidate()])))
        self.own_halo = found.own.costs.get(HALO)
        settled = settle(found.trials, self._measure, stop=self._is_chosen)
        if settled and found.seems_met(found.own):
            self._decide(found, [found.own], stop=self._is_chosen)
        if found.meets(found.own):
            return replace(found, is_settled=settled)
        first, by = self._candidates(structure)
        found = replace(found, trials=(*found.trials, *self._trials(first)), bypassed=by)
        self.chosen = self._part()
        for number in range(1 + ROUNDS):
            wanted = [each for each in found.trials if self._is_wanted(each, found)]
            settled = settle(wanted, self._measure, stop=self._is_chosen)
            found = replace(found, is_settled=settled)
            if number == ROUNDS or self._is_chosen() or any(found.seems_met(e) and e.candidate.edits for e in wanted):
                break
            chosen = [each.candidate for each in self._best(found) if each.candidate.edits]
            known = {each.candidate for each in found.trials}
            more = [each for each in joined(chosen[-JOINED:], first) if each not in known]
            found = replace(found, trials=(*found.trials, *self._trials(more)))
        found = replace(found, is_complete=not self._is_chosen())
        if found.price != HALO:
            allowed = [*filter(found.is_allowed, found.trials)]
            self._decide(found, finalists(allowed, found.own, found.target), stop=self._is_late)
        self.request.progress("measuring candidates", int(self.seconds), int(self.seconds))
        return replace(found, on_weights=self._on_weights(found))

    def _candidates(self, structure: NetStructure) -> tuple[list[Candidate], tuple[str, ...]]:
        """The variants of one edit, and the parts that skip connections pass by."""
        module, variants = self.loaded.module, narrower if self.search.price == HALO else wider
        by = self.loaded.passed_by(self.search.layer, parts_of(structure, module))
        return variants(structure, module), by

    def _decide(self, found: Search, tested: Sequence[Trial], *, stop: Callable[[], bool]) -> None:
        """Give candidates fresh draws until it is known whether they reach the target, or the time is up: one after the
        other, the best first, so that a little time decides a few; the model as it is as many, for paired
        differences."""
        for look, each in product(LOOKS, tested):
            if found.is_open(each) and not fill([found.own, each], FRESH[: 2 * look], self._measure, stop=stop):
                return

    def _best(self, found: Search) -> list[Trial]:
        """The candidates that are put together, the best last."""
        if found.price != HALO:
            gains = {id(each): difference(each, found.own) for each in found.trials}
            good = [each for each in found.trials if gains[id(each)][0] > gains[id(each)][1] and not each.failure]
            return sorted(filter(found.keeps_budget, good), key=lambda each: gains[id(each)][0])
        known = [each for each in found.trials if each.costs[HALO] is not None]
        return sorted(known, key=lambda each: each.price, reverse=True)

    def _is_wanted(self, trial: Trial, found: Search) -> bool:
        """Whether a candidate is worth its draws: the model as it is always, others within the budget and the halo."""
        if trial is found.own:
            return True
        return not trial.failure and (found.meets(trial) if found.price == HALO else found.keeps_budget(trial))

    def _trials(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """The candidates with what they cost, from their recorded passes."""
        found = []
        for done, candidate in enumerate(candidates):
            if done and self._is_late():
                break
            self.request.progress("counting what candidates cost", done, len(candidates))
            costs: dict[str, float | None] = dict.fromkeys(("gmacs", "params", "memory", HALO))
            failure = ""
            sizes = (candidate.size or self.request.sizes[0],)
            own = replace(self.request, insert=self._inserted(candidate), sizes=sizes)
            try:
                loaded = open_model(self.model, own, with_numbers=False)
                costs |= {"gmacs": loaded.cost.gmacs, "params": loaded.cost.parameters}
                costs["memory"] = loaded.forward_bytes
                if self.search.price == HALO:
                    costs[HALO] = self._halo(own)
                loaded.layer(self.search.layer)
            except ErfscopeError as error:
                failure = str(error)
            price = costs[self.search.price]
            trial = Trial(
                candidate=candidate,
                costs=costs,
                price=float("inf") if price is None else price,
                order=self.count,
                failure=failure,
            )
            self.count += 1
            trial.values |= self.known.get(candidate.text, {})
            if self.search.measure == REACH:
                trial.r50 = self.r50.setdefault(candidate.text, {})
            found.append(trial)
        self.request.progress("counting what candidates cost", len(candidates), len(candidates))
        return found

    def _inserted(self, candidate: Candidate) -> list[Any] | None:
        """The edits of a candidate, after those that the model is asked for with."""
        asked = self.request.insert or []
        return [*(asked if isinstance(asked, list) else [asked]), *candidate.edits] or None

    def _halo(self, request: Request) -> float | None:
        """The largest side of the halo of the output, in cells; None where tiles are not possible."""
        halo = halo_of(self.model, request)
        return None if halo.blockers or not halo.px else float(max(max(sides) for sides in halo.px))

    def _measure(self, candidate: Candidate, draw: int) -> float:
        """The measure of a candidate under one draw of images, and of weights where these are random."""
        if self.search.measure == REACH:
            found = self._reach(candidate, draw)
        else:
            found = self.search.sign * self._analyze(candidate, draw)[1]
        self.known.setdefault(candidate.text, {})[draw] = found
        self._keep()
        return found

    def _analyze(self, candidate: Candidate, draw: int) -> tuple[Result, float]:
        seed = draw_seed(int(self.options.get("seed") or 0), draw)
        own = {"samples": IMAGES, **self.options, "seed": seed, "layer": self.search.layer, "progress": None}
        own |= {"measures": [self.measure], "insert": self._inserted(candidate)}
        if self.search.draws_weights:
            own["weights"] = "random"
        if candidate.size:
            own["input_size"] = candidate.size
        spent = min(self.seconds, self.seconds - (self.end - clock.monotonic()))
        self.request.progress("measuring candidates", int(spent), int(self.seconds))
        result = analyze(self.model, **own)
        value = result[self.measure].value
        if not isinstance(value, float):
            raise ErfscopeError(f"{self.measure} of {candidate.typed} is {value or 'not known'}")
        return result, value

    def _reach(self, candidate: Candidate, draw: int) -> float:
        """What a candidate keeps of the reach, see :data:`REACH`."""
        own, ours, halo = self._beyond(Candidate(), draw), self._beyond(candidate, draw), self.own_halo
        pairs = [*zip(ours, own, strict=False)][1 : None if halo is None else int(halo) + 1]
        return float(np.mean([min(1.0, share / whole) for share, whole in pairs if whole > 0] or [1.0]))

    def _beyond(self, candidate: Candidate, draw: int) -> Sequence[float]:
        """The shares of a candidate's map beyond each distance; those of the model as it is are kept."""
        is_own = candidate == Candidate()
        if is_own and draw in self.beyond:
            return self.beyond[draw]
        result, r50 = self._analyze(candidate, draw)
        assert result.map is not None
        self.r50.setdefault(candidate.text, {})[draw] = r50
        beyond: list[float] = mass_beyond(result.map).tolist()
        if is_own:
            self.beyond[draw] = beyond
        return beyond

    def _asked(self) -> dict[str, Any]:
        """What values of different runs must agree in."""
        search, loaded = self.search, self.loaded
        known: dict[str, Any] = {
            "model": loaded.label,
            "input_size": loaded.input_size,
            "layer": search.layer,
        }
        known |= {"measure": search.measure, "weights": None if search.draws_weights else loaded.weights.sha256}
        found: dict[str, Any] = to_json(known | {k: str(v) for k, v in sorted(self.options.items()) if k != "progress"})
        return found

    def _resume(self) -> None:
        """Take over what an earlier run has measured."""
        if self.kept["resume"] is None:
            return
        path = Path(self.kept["resume"]) / KEPT
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if (document["schema"], document["asked"]) != (KEPT_SCHEMA, self._asked()):
                raise ErfscopeError(
                    f"the search in {path.parent} was of another model or other options; use another folder"
                )
            self.known, self.r50 = (
                {text: {int(draw): float(value) for draw, value in each.items()} for text, each in held.items()}
                for held in (document["values"], document["r50"])
            )
            self.beyond = {int(draw): [*map(float, beyond)] for draw, beyond in document["beyond"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{path.name} cannot be read" if path.parent.exists() else "the folder does not exist"
            raise ErfscopeError(f"there is no search to go on with in {path.parent}: {why}") from error

    def _keep(self) -> None:
        if self.kept["keep_in"] is None:
            return
        folder = Path(self.kept["keep_in"])
        folder.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {
            "schema": KEPT_SCHEMA,
            "asked": self._asked(),
            "values": self.known,
            "r50": self.r50,
        }
        document["beyond"] = self.beyond
        write(folder / KEPT, document, force=True)

    def _on_weights(self, found: Search) -> dict[str, tuple[float | None, float | None]]:
        """Paired differences on the weights of a checkpoint, of edits that keep them usable."""
        if not found.draws_weights or not (self.given.get("checkpoint") or self.given.get("weights") == "pretrained"):
            return {}
        own, *kept = Candidate(), *(each.candidate for each in found.front if each.candidate.keeps_weights)
        values = {}
        for candidate in (own, *kept) if kept else ():
            given = {**self.given, "layer": found.layer, "measures": [self.measure]}
            given["insert"] = self._inserted(candidate)
            values[candidate.text] = analyze(self.model, **given)[self.measure]
        return {each.text: values[each.text].minus(values[own.text]) for each in kept}

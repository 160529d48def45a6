"""``erfscope.advise``: what it searches, what it leaves behind, and what it goes on with."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path

import measured_once
import numpy as np
import pytest
import torch
from nets import Does, conv
from torch import nn
from torch.nn import functional

import erfscope
from erfscope import ErfscopeError
from erfscope.apps.advise import search as search_module
from erfscope.apps.advise.candidates import Candidate, joined, narrower, parts_of, wider
from erfscope.apps.advise.halving import CHOOSING
from erfscope.apps.advise.search import draw_seed
from erfscope.apps.advise.target import parse_budget, parse_target
from erfscope.apps.advise.verdict import FRESH

pytestmark = pytest.mark.usefixtures("memory_unplanned")

SOURCE = """
from torch import nn

def stack():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
"""
OPTIONS = {"input_size": 24, "samples": 2}


def stack() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))


class Calls:
    """Counts the draws that are measured, and interrupts the one after so many."""

    def __init__(self, most: int = 10_000) -> None:
        self.most, self.seen, self.run = most, list[tuple[object, int]](), measured_once.analyze

    def __call__(self, model, **options):
        if len(self.seen) == self.most:
            raise KeyboardInterrupt
        size = options["input_size"]
        self.seen.append((*(options["insert"] or []), size, options.get("seed", 0)))
        return self.run(model, **options)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    monkeypatch.setattr(search_module, "analyze", found)
    # Blocks are the slowest candidates.
    monkeypatch.setattr("erfscope.apps.advise.candidates.WIDE_BLOCKS", ())
    return found


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return "nets.py:stack"


def values(search) -> dict[str, dict[int, float]]:
    return {each.candidate.text: each.values for each in search.trials}


def state_of(module: nn.Module) -> list[object]:
    hooks = [(m._forward_hooks.copy(), m._forward_pre_hooks.copy(), m.training, id(m)) for m in module.modules()]
    weights = [(id(p), p.requires_grad, p.grad, p.detach().clone().tolist()) for p in module.parameters()]
    attributes = [(m.kernel_size, m.dilation, m.padding) for m in module.modules() if isinstance(m, nn.Conv2d)]
    return [hooks, weights, attributes, torch.get_rng_state().tolist(), torch.is_grad_enabled()]


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["settled", "stopped", "interrupted"])
def test_a_live_module_is_left_as_it_was_found(calls, ends):
    calls.run = erfscope.analyze
    module = stack().train()
    module[0].eval()
    module[2].bias.requires_grad_(False)
    before = state_of(module)
    more = {}
    if ends == "interrupted":
        calls.most = 6
        with pytest.raises(KeyboardInterrupt):
            erfscope.advise(module, target="halo<=1", **OPTIONS)
    else:
        if ends == "stopped":
            more["stop"] = lambda: len(calls.seen) >= 6
        search = erfscope.advise(module, target="halo<=1", **OPTIONS, **more).search
        assert search.is_settled is (ends == "settled")
        assert ends == "settled" or len(calls.seen) == 6
    assert state_of(module) == before


def test_a_target_that_the_model_meets_ends_the_search_after_its_own_draws(calls):
    search = erfscope.advise(stack(), target="r50>=0.5", **OPTIONS).search
    # Four draws, then as many that decide, and that report.
    draws = [*CHOOSING[:4], *FRESH[:8]]
    assert calls.seen == [(24, draw_seed(0, draw)) for draw in draws]
    assert (len(search.trials), search.is_settled, search.meets(search.own)) == (1, True, True)
    assert search.front == [search.own]


def test_a_halo_that_is_small_already_is_met_without_candidates(calls):
    search = erfscope.advise(stack(), target="halo<=2", **OPTIONS).search
    assert search.value(search.own) == 2
    assert len(search.trials) == 1


@pytest.mark.slow
def test_smaller_kernels_make_a_smaller_halo(calls):
    search = erfscope.advise(stack(), target="halo<=1", **OPTIONS).search
    assert {each.candidate.text: search.value(each) for each in search.trials} == {
        "the model as it is": 2,
        "0: kernel=1": 1,
        "2: kernel=1": 1,
    }
    assert [search.meets(each) for each in search.trials] == [False, True, True]
    assert search.hidden() == []
    # A third of the multiply-adds is in the first layer.
    gmacs = [24 * 24 * each / 1e9 for each in (108 + 144, 12 + 144, 108 + 16)]
    assert [each.costs["gmacs"] for each in search.trials] == pytest.approx(gmacs)
    assert [each.costs["params"] for each in search.trials] == [260, 260 - 96, 260 - 128]


@pytest.mark.slow
def test_a_killed_search_measures_the_rest_alone_and_ends_as_one_in_one_go(calls, tmp_path):
    module = stack()
    whole = erfscope.advise(module, target="halo<=1", **OPTIONS)
    in_one_go, calls.seen = calls.seen, []
    calls.most = 7
    with pytest.raises(KeyboardInterrupt):
        erfscope.advise(module, target="halo<=1", keep_in=tmp_path / "kept", **OPTIONS)
    calls.most = 10_000
    for _ in range(2):
        again = erfscope.advise(
            module, target="halo<=1", keep_in=tmp_path / "kept", resume=tmp_path / "kept", **OPTIONS
        )
        # The second time nothing is left to measure.
        assert calls.seen == in_one_go
        assert values(again.search) == values(whole.search)
        assert again.to_json() == whole.to_json()
        assert str(again) == str(whole)


@pytest.mark.slow
def test_a_search_killed_while_it_decides_measures_no_draw_twice_and_ends_as_one_in_one_go(calls, tmp_path):
    module, asked = stack(), {"target": "r50>=3.2", "budget": "gmacs<=+0%", **OPTIONS}
    whole = erfscope.advise(module, **asked)
    in_one_go, calls.seen = calls.seen, []
    fresh = {draw_seed(0, draw) for draw in FRESH}
    assert in_one_go[-1][-1] in fresh
    calls.most = len(in_one_go) - 3
    with pytest.raises(KeyboardInterrupt):
        erfscope.advise(module, keep_in=tmp_path, **asked)
    calls.most = 10_000
    again = erfscope.advise(module, keep_in=tmp_path, resume=tmp_path, **asked)
    assert calls.seen == in_one_go
    assert len({*calls.seen}) == len(calls.seen)
    assert again.to_json() == whole.to_json()


@pytest.mark.slow
def test_a_search_goes_on_with_its_own_options_and_weights_only(calls, tmp_path):
    module, folder = stack(), {"keep_in": tmp_path, "resume": tmp_path}
    with pytest.raises(ErfscopeError, match=r"there is no search to go on with in .*: search.json cannot be read"):
        erfscope.advise(module, target="r50>=1", **OPTIONS, **folder)
    erfscope.advise(module, target="r50>=1", keep_in=tmp_path, **OPTIONS)
    # Another target of the same measure needs no new draws.
    seen = len(calls.seen)
    erfscope.advise(module, target="r50>=0.5", **OPTIONS, **folder)
    assert len(calls.seen) == seen
    others = [{"samples": 3}, {"seed": 1}, {"layer": "0"}, {"input_size": 32}, {"target": "r90>=0.5"}]
    for other in others:
        with pytest.raises(ErfscopeError, match="another model or other options; use another folder"):
            erfscope.advise(module, **{"target": "r50>=0.5", **OPTIONS, **folder, **other})
    changed = copy.deepcopy(module)
    with torch.no_grad():
        changed[0].weight.mul_(2)
    with pytest.raises(ErfscopeError, match="another model or other options"):
        erfscope.advise(changed, target="r50>=0.5", **OPTIONS, **folder)
    kept = json.loads((tmp_path / "search.json").read_text())
    damaged = [
        {**kept, name: held} for name in ("values", "r50", "beyond") for held in ([], {"a": 1}, {"0": {"x": "y"}})
    ]
    without = [{key: held for key, held in kept.items() if key != name} for name in ("values", "r50", "beyond")]
    for text in ("", "[]", '{"asked": {}}', *map(json.dumps, (*damaged, *without))):
        (tmp_path / "search.json").write_text(text)
        with pytest.raises(ErfscopeError, match="cannot be read"):
            erfscope.advise(module, target="r50>=0.5", **OPTIONS, **folder)


@pytest.mark.slow
def test_a_budget_leaves_out_what_costs_more(calls):
    search = erfscope.advise(stack(), target="r50>=4", budget=["gmacs<=1x", "params<=+0%"], **OPTIONS).search
    measured = [each.candidate for each in search.trials if each.values]
    assert [each.text for each in measured] == [
        *("the model as it is", "0: dilation=2", "0: dilation=4", "2: dilation=2", "2: dilation=4"),
    ]
    met = [each for each in search.trials if search.meets(each)]
    assert met
    assert {each.candidate.keeps_weights for each in met} == {True}
    # The candidate is the model of the line that is shown for it.
    assert met[0].candidate.python.startswith('erfscope.edited(model, "')


@pytest.mark.slow
def test_draws_of_a_spec_have_weights_of_their_own_and_a_checkpoint_is_measured_after_it(calls, spec):
    torch.manual_seed(1)
    torch.save(stack().state_dict(), "trained.pt")
    # What the model is asked for with belongs to the model as it is.
    options = {**OPTIONS, "insert": ["0: dilation=2"], "checkpoint": "trained.pt"}
    search = erfscope.advise(spec, target="r50>=6", budget="gmacs<=+0%", **options).search
    assert search.draws_weights
    (best, *_) = [each for each in search.trials if search.meets(each)]
    for each in (search.own, best):
        for draw, value in [*each.values.items()][::5]:
            model = erfscope.adapters.load(spec, weights="random", seed=draw_seed(0, draw), input_size=24)
            model = erfscope.edited(model, "0: dilation=2", *each.candidate.edits)
            found = erfscope.analyze(model, samples=2, seed=draw_seed(0, draw), measures=["r50"])
            assert found["r50"].value == pytest.approx(value)
    # On the trained weights, edits that keep them usable.
    assert {*search.on_weights} == {each.candidate.text for each in search.front if each.candidate.keeps_weights}
    trained = stack()
    trained.load_state_dict(torch.load("trained.pt"))
    pair = [
        erfscope.analyze(erfscope.edited(trained, "0: dilation=2", *edits), measures=["r50"], **OPTIONS)["r50"].value
        for edits in (best.candidate.edits, ())
    ]
    assert search.on_weights[best.candidate.text][0] == pytest.approx(pair[0] - pair[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": "gmacs<=2x"}, "a budget bounds a search, and none is asked for"),
        ({"target": "r50"}, "cannot read --target 'r50'"),
        ({"target": "halo>=5"}, "a halo is to be small"),
        ({"target": "r51>=5"}, "unknown name in --target 'r51'.*did you mean 'r50'"),
        ({"target": "r50>=5", "budget": ["flops<=2x"]}, "unknown name in --budget 'flops'; there is: gmacs, params"),
        ({"target": "r50>=5", "budget": ["gmacs>=2x"]}, "a budget is an upper limit"),
        ({"target": "r50>=5", "budget": ["gmacs<=+2"]}, "after . stands a percentage"),
        ({"target": "r50>=5", "layer": "nothing"}, "unknown layer 'nothing'"),
        ({"target": "r50>=5", "layer": ["0", "2"]}, "a search is about one layer"),
        pytest.param(
            {"target": "best_shape>=5"}, "best_shape of the model as it is is gaussian", marks=pytest.mark.slow
        ),
        ({"nothing": 5}, "unknown option 'nothing'"),
    ],
)
def test_what_cannot_be_searched_is_refused(options, words):
    with pytest.raises(ErfscopeError, match=words):
        erfscope.advise(stack(), **{**OPTIONS, **options})


def test_targets_and_budgets_are_numbers_or_parts_of_the_models_own():
    target = parse_target(" r50 >= 120 ")
    assert (target.text, target.holds(120, 1), target.holds(119.9, 1), target.holds(None, 1)) == (
        *("r50>=120", True, False, False),
    )
    assert parse_target("halo<=1e2").limit(5) == 100
    assert parse_target("r50>=1.5x").limit(10) == 15
    for text, limit in {"gmacs<=+10%": 11, "params<=2x": 20, "memory<=0.5x": 5, "gmacs<=3.5": 3.5}.items():
        bound = parse_budget(text)
        assert bound.limit(10) == pytest.approx(limit)
        assert bound.holds(limit * 0.999, 10)
        assert not bound.holds(limit * 1.001, 10)
    # A part of what is not known is not known.
    assert not parse_budget("memory<=2x").holds(5, None)


def test_candidates_are_of_the_stages_or_of_the_outermost_parts_of_lists(monkeypatch):
    monkeypatch.setattr("erfscope.apps.advise.candidates.WIDE_BLOCKS", ())
    module = nn.Sequential()
    module.stem = nn.Conv2d(3, 4, 7, 2, 3)
    module.blocks = nn.Sequential(*(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(2)))
    module.head = nn.Conv2d(4, 2, 1)
    found = erfscope.advise(module, input_size=32).structure
    assert parts_of(found, module) == ["stem", "blocks", "head"]
    assert [each.text for each in wider(found, module)] == [
        "input 64x64",
        *("stem: dilation=2", "stem: dilation=4", "stem: kernel=9", "stem: kernel=11"),
        *("stem: stride=1", "stem: stride=1, dilation=2"),
        *("blocks: dilation=2", "blocks: dilation=4", "blocks: kernel=5", "blocks: kernel=7"),
    ]
    assert [each.text for each in narrower(found, module)] == ["stem: kernel=1", "stem: kernel=3", "blocks: kernel=1"]
    # Each can be made.
    for each in (*wider(found, module)[1:], *narrower(found, module)):
        assert isinstance(erfscope.edited(module, *each.edits), nn.Sequential)


def test_two_candidates_are_one_where_their_places_differ():
    every = [Candidate(edits=(text,)) for text in ("a: kernel=5", "a: dilation=2", "gc@b", "b.c: stride=1")]
    size = Candidate(size=(64, 64))
    both = joined([every[2], every[0], every[1], size], every)
    # In the order of the candidates; not two edits of one place, and not the size.
    assert {each.edits for each in both} == {("a: kernel=5", "gc@b"), ("a: dilation=2", "gc@b")}
    assert joined(both[:1] * 2, every) == []
    (three,) = joined([both[0], every[3]], every)
    assert len(three.edits) == 3


@pytest.mark.slow
def test_an_advice_shows_itself_and_its_json_is_valid(calls):
    advice = erfscope.advise(stack(), target="halo<=1", measure=True, **OPTIONS)
    document = json.loads(json.dumps(advice.to_json(), allow_nan=False))
    assert document["schema"] == "erfscope.advice/1"
    # The ReLU between the convolutions can widen nothing.
    assert [each["layer"] for each in document["depth"]["results"]] == ["0", "2"]
    assert "2 layers measured over 2 synthetic images" in str(advice)
    assert document["search"]["candidates"][0]["edit"] == "the model as it is"
    assert str(advice).splitlines()[0].startswith("Sequential at 24x24 px: none of 2 layers is unproductive")
    assert "halo<=1: halo is 2 px; met with the least loss of reach by --insert '0: kernel=1', which" in " ".join(
        str(advice).split()
    )
    assert "<pre" in advice._repr_html_()
    assert repr(advice) == "<advice on Sequential>"
    with pytest.raises(ErfscopeError, match="nothing was searched"):
        erfscope.advise(stack(), input_size=24).figure()


def shares_beyond(module: nn.Module, seed: int, halo: int, insert: list[str] | None = None) -> list[float]:
    """What of a map lies so many cells away or more, for 1, 2, ... up to the halo, cell by cell."""
    result = erfscope.analyze(module, seed=seed, layer="output", insert=insert, measures="r50", **OPTIONS)
    (row, col), values = result.map.center_px, result.map.values
    cells = [(((y - row) ** 2 + (x - col) ** 2) ** 0.5, value) for (y, x), value in np.ndenumerate(values)]
    return [sum(value for away, value in cells if away >= least) / values.sum() for least in range(1, halo + 1)]


@pytest.mark.slow
def test_a_smaller_halo_is_judged_by_what_of_the_erf_stays_beyond_each_distance(calls):
    module = stack()
    search = erfscope.advise(module, target="halo<=1", **OPTIONS).search
    assert set(search.own.values.values()) == {1.0}
    own = functools.cache(lambda draw: shares_beyond(module, draw_seed(0, draw), 2))
    for trial in search.trials[1:]:
        for draw, kept in trial.values.items():
            smaller = shares_beyond(module, draw_seed(0, draw), 2, [*trial.candidate.edits])
            expected = np.mean([min(1, ours / theirs) for ours, theirs in zip(smaller, own(draw), strict=True)])
            assert kept == pytest.approx(expected, rel=1e-6)


def unet(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One level down, and up again beside its skip."""
    skip = m.enc(x)
    deep = functional.interpolate(m.mid(functional.max_pool2d(skip, 4)), scale_factor=4)
    return m.dec(torch.cat([skip, 1e-3 * deep], 1))


@pytest.mark.slow
def test_what_a_skip_connection_hides_from_r50_is_said_and_judged_by_the_reach(calls):
    parts = {"enc": conv(3, 4), "mid": conv(4, 4, 5), "dec": conv(8, 4)}
    advice = erfscope.advise(Does(unet, **parts), target="halo<=9", input_size=32, samples=2)
    search, text = advice.search, " ".join(str(advice).split())
    assert search.bypassed == ("mid",)
    cut = next(each for each in search.met() if each.candidate.edits == ("mid: kernel=1",))
    assert search.r50(cut)[1][0] == pytest.approx(0, abs=0.01)
    assert search.measured(cut)[0] < 0.9
    assert "r50 is blind here: skip connections pass by mid, and edits of these change it by less than 1 %" in text
    assert advice.to_json()["search"]["measure"] == "reach"

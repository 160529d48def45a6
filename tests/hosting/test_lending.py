"""A live module is measured by one thread at a time, and handed back as it was: buffers, attributes, training flags."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import pickle
import random
import threading
from collections import Counter, namedtuple
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import erfscope
from erfscope.adapters.eager import eager
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.hosting.default_dtype import default_dtype
from erfscope.hosting.lending import Snapshot, _awaited, _in_use, lend_modules, lock_modules
from erfscope.hosting.random_states import random_states

ASKED = {"input_size": 24, "samples": 3, "measures": "r50", "convention": "luo"}


class Small(nn.Module):
    """Two convolutions with a norm and dropout between them."""

    def __init__(self, seed: int = 0, width: int = 4):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.a, self.n, self.b = nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, 2, 1)

    def forward(self, x):
        return self.b(nn.functional.dropout(self.n(self.a(x)), 0.2, self.training).relu())


class Keeping(Small):
    """Counts its passes in a buffer, an attribute, a list and a cache, and has statistics that follow what it sees."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("last", torch.zeros(2))
        self.passes, self.history, self.cache, self.table = 0, [], {}, torch.zeros(3)

    def forward(self, x):
        self.passes += 1
        self.history.append(self.passes)
        self.cache[tuple(x.shape)] = x.detach().mean()
        self.count += 1
        self.last = self.last + 1
        self.table.data.add_(1)
        y = self.a(x)
        self.seen.mul_(0.9).add_(0.1 * y.detach().mean((0, 2, 3)))
        self.made_here = y.shape
        return self.b((y + self.seen.view(-1, 1, 1)).relu())


def state(module):
    """All that can be seen of a module, numbers copied."""
    attributes = {k: copy.deepcopy(v) for k, v in vars(module).items() if k in ("passes", "history", "cache", "table", "made_here")}
    flags = [(m.training, tuple(p.requires_grad for p in m.parameters(recurse=False))) for m in module.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
    return repr((attributes, flags, hooks)), {k: v.clone() for k, v in module.state_dict().items()}


def assert_same(before, after):
    assert before[0] == after[0]
    assert before[1].keys() == after[1].keys()
    assert all(torch.equal(before[1][name], after[1][name]) for name in before[1])


@pytest.mark.parametrize("ask", ["analyze", "compare", "layers", "theoretical", "check", "monitor"])
def test_buffers_and_attributes_that_forward_changes_are_put_back(ask, tmp_path):
    model = Keeping().train()
    buffers, before = dict(model.named_buffers()), state(model)
    if ask == "monitor":
        erfscope.ErfMonitor(model, quiet=True, **ASKED).step(0)
    elif ask == "compare":
        erfscope.compare({"one": model, "two": Small()}, **ASKED)
    elif ask == "check":
        erfscope.check(model, baseline=tmp_path / "b.json", name="x", missing="write", **ASKED)
    elif ask == "analyze":
        assert any("keeps a state in" in finding.text for finding in erfscope.analyze(model, **ASKED).warnings)
    else:
        getattr(erfscope, ask)(model, input_size=24)
    assert_same(before, state(model))
    assert all(dict(model.named_buffers())[name] is tensor for name, tensor in buffers.items())


def test_they_are_put_back_where_the_measurement_fails():
    class Failing(Keeping):
        def forward(self, x):
            y = super().forward(x)
            if self.passes > 2 and not x.is_meta:
                raise ValueError("enough")
            return y

    model = Failing()
    before = state(model)
    assert not erfscope.analyze(model, **ASKED).ok
    assert_same(before, state(model))


def test_an_unchanged_module_is_not_written_to():
    """Versions of buffers count writes: none happens where nothing has changed."""
    model = Small().eval()
    versions = {name: tensor._version for name, tensor in model.state_dict(keep_vars=True).items()}
    erfscope.analyze(model, **ASKED)
    assert versions == {name: tensor._version for name, tensor in model.state_dict(keep_vars=True).items()}


def test_a_cache_of_the_measured_weights_does_not_outlive_the_measurement():
    """A model that caches what it computed of its weights would otherwise evaluate with those of the time when it was measured."""

    class Caching(Small):
        cached = None

        def forward(self, x):
            if not self.training and self.cached is None:
                self.cached = self.a.weight.detach() * 2
            return nn.functional.conv2d(x, self.a.weight * 2 if self.training else self.cached, stride=2, padding=1)

    model = Caching().train()
    erfscope.analyze(model, **ASKED)
    with torch.no_grad():
        model.a.weight.zero_()
        assert model.eval()(torch.ones(1, 3, 24, 24)).abs().max() == 0


def test_a_snapshot_names_what_has_changed():
    model = Keeping().eval()
    snapshot = Snapshot(model)
    assert snapshot.changed() == []
    model(torch.zeros(1, 3, 24, 24))
    assert set(snapshot.changed()) == {"count", "seen", "last", "passes", "history", "cache", "table", "made_here"}
    snapshot.put_back()
    assert snapshot.changed() == []
    with torch.no_grad():
        model.a.weight.add_(1)
    assert snapshot.changed() == ["a.weight"]


class Meter:
    """An object of the model's own code."""

    def __init__(self):
        self.count, self.total, self.owner = 0, torch.zeros(1), self

    def __call__(self, y):
        self.count += 1
        self.total += y.sum()


Pair = namedtuple("Pair", "count table")
WAYS = {
    "an expanded buffer": (lambda: {"base": (base := torch.zeros(1)), "seen": base.expand(5)}, lambda m: m.base.add_(1)),
    "a buffer with other numbers": (lambda: {"seen": torch.zeros(2)}, lambda m: setattr(m.seen, "data", torch.ones(5))),
    "a buffer of another type": (lambda: {"seen": torch.zeros(2)}, lambda m: setattr(m.seen, "data", torch.ones(2).double())),
    "a resized buffer": (lambda: {"seen": torch.zeros(0)}, lambda m: m.seen.resize_(3).fill_(1)),
    "a transposed buffer": (lambda: {"seen": torch.zeros(2, 3)}, lambda m: m.seen.t_()),
    "a view of a buffer": (lambda: {"seen": (seen := torch.zeros(6)), "part": seen[2:4]}, lambda m: m.part.add_(1)),
    "a sparse buffer": (lambda: {"seen": torch.eye(3).to_sparse()}, lambda m: m.seen.mul_(2)),
    "a vector in a frozen parameter": (
        lambda: {"u": nn.Parameter(torch.ones(4), requires_grad=False)},
        lambda m: setattr(m.u, "data", m.u.data * 2),
    ),
    "a gradient in an attribute": (lambda: {"table": torch.zeros(4)}, lambda m: m.table.add_(m.b.bias)),
    "an array": (lambda: {"table": np.zeros(3)}, lambda m: m.table.__iadd__(1)),
    "a counter": (lambda: {"table": Counter()}, lambda m: m.table.update("x")),
    "a named tuple": (lambda: {"table": Pair([0], {})}, lambda m: (m.table.count.append(1), m.table.table.update(x=2))),
    "an object": (lambda: {"table": [Meter()]}, lambda m: m.table[0](m.b.bias.detach())),
    "plain data": (lambda: {"table": SimpleNamespace(count=0)}, lambda m: setattr(m.table, "count", m.table.count + 1)),
    "a generator": (lambda: {"g": torch.Generator().manual_seed(1)}, lambda m: torch.rand(1, generator=m.g)),
    "a generator of NumPy's": (lambda: {"g": np.random.default_rng(1)}, lambda m: m.g.random()),
    "an old generator of NumPy's": (lambda: {"g": np.random.RandomState(1)}, lambda m: m.g.rand()),
    "a generator of Python's": (lambda: {"g": random.Random(1)}, lambda m: m.g.random()),
}


def picture_of(value, depth=0):
    """All that can be seen of a value, as a text."""
    if isinstance(value, torch.Tensor):
        return repr((id(value), value.dtype, value.shape, value.requires_grad, value.is_leaf, value.detach().to_dense().tolist()))
    if isinstance(value, torch.Generator):
        return repr(value.get_state().tolist())
    if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
        return repr(pickle.dumps(value))
    if isinstance(value, dict):
        return repr({key: picture_of(item, depth + 1) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return repr([picture_of(item, depth + 1) for item in value])
    return picture_of(vars(value), depth + 1) if isinstance(value, Meter | SimpleNamespace) and depth < 4 else repr(value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("samples", [1, 2])
def test_whatever_a_pass_changes_in_whatever_way_is_named_and_put_back(way, samples):
    make, change = WAYS[way]

    class Changing(Small):
        def forward(self, x):
            if not x.is_meta:
                change(self)
            return super().forward(x)

    model = Changing()
    for name, value in make().items():
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter) and name != "table":
            model.register_buffer(name, value)
        else:
            setattr(model, name, value)
    before, snapshot = picture_of(vars(model)), Snapshot(model)
    assert snapshot.changed() == []
    with torch.no_grad() if way != "a gradient in an attribute" else contextlib.nullcontext():
        model(torch.zeros(1, 3, 24, 24))
    assert snapshot.changed()
    assert picture_of(vars(model)) != before
    snapshot.put_back()
    assert picture_of(vars(model)) == before
    assert snapshot.changed() == []
    result = erfscope.analyze(model, **{**ASKED, "samples": samples})
    assert result.ok, result.error
    assert picture_of(vars(model)) == before


HIDDEN = {
    "an attribute": (lambda part: part, lambda held: held),
    "a list": (lambda part: [part], lambda held: held[0]),
    "a tuple in a dictionary": (lambda part: {"one": (part,)}, lambda held: held["one"][0]),
    "an object": (lambda part: SimpleNamespace(teacher=part), lambda held: held.teacher),
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_module_that_is_held_but_no_part_is_put_back(where):
    """It stays in training mode, as a teacher may that shall not be among the parameters."""
    hide, find = HIDDEN[where]

    class Holding(Small):
        def forward(self, x):
            return self.b(find(self.held)(self.a(x)))

    model, norm = Holding(), nn.Sequential(nn.BatchNorm2d(4))
    vars(model)["held"] = hide(norm)
    before, snapshot = picture_of(vars(norm[0])), Snapshot(model)
    assert snapshot.changed() == []
    model(torch.ones(2, 3, 24, 24))
    assert "held.0.running_mean" in snapshot.changed()
    snapshot.put_back()
    assert picture_of(vars(norm[0])) == before
    assert erfscope.analyze(model, **ASKED).ok
    assert picture_of(vars(norm[0])) == before


class Merging(Small):
    """Adds what it learns to its weights for evaluation, and takes it away for training."""

    def __init__(self):
        super().__init__(width=128)
        self.base = nn.Parameter(torch.randn(128, 128, 3, 3, generator=torch.Generator().manual_seed(2)), requires_grad=False)
        self.learnt, self.merged = nn.Parameter(torch.full((128, 1, 1, 1), 0.3)), False

    def train(self, mode=True):
        if self.merged is mode:
            self.base.data += -self.learnt if mode else self.learnt
            self.merged = not mode
        return super().train(mode)

    def forward(self, x):
        weight = self.base if self.merged else self.base + self.learnt
        return nn.functional.conv2d(self.a(x).relu(), weight, padding=1)


def test_weights_that_a_model_merges_for_evaluation_are_taken_apart_again_bit_for_bit():
    model = Merging().train()
    before, expected = state(model), erfscope.analyze(copy.deepcopy(model).eval(), **ASKED).map.values
    for _ in range(2):
        np.testing.assert_array_equal(erfscope.analyze(model, **ASKED).map.values, expected)
        assert_same(before, state(model))
        assert not model.merged


def test_parameters_need_gradients_as_before_whatever_a_pass_says():
    class Turning(Small):
        def forward(self, x):
            self.b.requires_grad_(False)
            self.large.requires_grad_(True)
            return super().forward(x)

    model = Turning()
    model.large = nn.Parameter(torch.zeros(300, 300), requires_grad=False)
    before = state(model)
    assert erfscope.analyze(model, **ASKED).ok
    assert_same(before, state(model))


def test_a_measurement_between_forward_and_backward_does_not_disturb_the_graph():
    class Counting(Small):
        def forward(self, x):
            self.scale.data += 1
            return super().forward(x) * self.scale

    model = Counting()
    model.scale = nn.Parameter(torch.ones(()), requires_grad=False)
    loss = model(torch.ones(2, 3, 24, 24)).square().mean()
    erfscope.analyze(model, **ASKED)
    loss.backward()
    assert float(model.scale) == 2


def test_an_unchanged_model_of_sparse_tables_and_arrays_is_not_said_to_change():
    model = Small()
    model.register_buffer("table", torch.eye(3).to_sparse())
    model.numbers, model.draws, model.meter = np.full(3, np.nan), np.random.RandomState(1), Meter()
    assert not [finding for finding in erfscope.analyze(model, **ASKED).warnings if finding.code == "not_repeatable"]


def test_one_picture_is_enough_to_see_that_a_model_draws_from_a_generator_of_its_own():
    class Noisy(Small):
        def forward(self, x):
            return super().forward(x) + torch.rand(1, generator=self.draws).to(x.device)

    model = Noisy()
    model.draws = torch.Generator().manual_seed(1)
    assert any("keeps a state in draws" in f.text for f in erfscope.analyze(model, **{**ASKED, "samples": 1}).warnings)


def test_a_lazy_module_is_asked_to_run_first():
    with pytest.raises(ErfscopeError, match="lazy parameters without a shape"):
        erfscope.analyze(nn.Sequential(nn.LazyConv2d(4, 3)), **ASKED)


def results(model, times=1, **asked):
    return [erfscope.analyze(model, **{**ASKED, **asked}).map.values for _ in range(times)]


def test_threads_that_measure_one_module_get_what_one_thread_gets():
    model = Small().train()
    before = state(model)
    layers = ["a", "n", "b"]
    alone_values = {layer: results(model, layer=layer)[0] for layer in layers}
    with ThreadPoolExecutor(6) as pool:
        asked = [layer for layer, _ in itertools.product(layers, range(4))]
        found = list(pool.map(lambda layer: results(model, layer=layer)[0], asked))
    for layer, values in zip(asked, found, strict=True):
        np.testing.assert_array_equal(values, alone_values[layer])
    assert_same(before, state(model))
    assert not _in_use


def test_threads_that_measure_a_module_and_its_part_do_too():
    whole = nn.Sequential(Small(), nn.Conv2d(4, 4, 3)).train()
    before = state(whole)
    expected = results(whole)[0], results(whole[0])[0]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: results((whole, whole[0])[i % 2])[0], range(8)))
    for i, values in enumerate(found):
        np.testing.assert_array_equal(values, expected[i % 2])
    assert_same(before, state(whole))


def test_threads_that_draw_the_weights_of_a_named_model_get_what_one_thread_gets():
    def measured(_number=0):
        result = erfscope.analyze("test_resnet", weights="random", input_size=64, samples=2, measures=["r50"], device="cpu")
        return result.weights.sha256, float(result["r50"])

    before = random_states()
    with ThreadPoolExecutor(5) as pool:
        assert set(pool.map(measured, range(5))) == {measured()}
    assert random_states() == before


def test_two_modules_are_measured_side_by_side():
    """Each thread waits inside its model for the other one's pass: one lock for all modules would never end."""
    meeting = threading.Barrier(2, timeout=60)

    class Meeting(Small):
        met = False

        def forward(self, x):
            if not x.is_meta and not type(self).met:
                meeting.wait()
            return super().forward(x)

    models = [type("Left", (Meeting,), {})(), type("Right", (Meeting,), {})()]

    def once(model):
        with lock_modules(model):
            model(torch.zeros(1, 3, 24, 24))
            type(model).met = True
        return erfscope.analyze(model, **ASKED).ok

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(once, models))


def test_a_thread_that_holds_a_part_does_not_wait_for_the_rest_for_ever():
    one, two = Small(), Small()
    held, tried = threading.Event(), threading.Event()

    def other():
        with lend_modules(two):
            held.set()
            tried.wait(60)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(other)
        held.wait(60)
        with lend_modules(one), pytest.raises(MeasurementError, match="by another thread"), lend_modules(nn.ModuleList([one, two])):
            pass
        tried.set()
        done.result()
    assert not _in_use


def test_threads_that_wait_for_each_others_modules_do_not_wait_for_ever():
    models, meeting = (Small(), Small()), threading.Barrier(2, timeout=60)

    def both(own, other):
        with lend_modules(own):
            meeting.wait()
            try:
                with lend_modules(other):
                    return "measured"
            except MeasurementError as error:
                return str(error)

    with ThreadPoolExecutor(2) as pool:
        said = sorted(pool.map(both, models, models[::-1]))
    assert said[0] == "measured"
    assert "waits for a model of this thread" in said[1]
    assert not _in_use
    assert not _awaited


def test_what_another_thread_trains_is_checkpointed_as_before():
    """Inside the block another thread's checkpoint still runs its function twice, this thread's once."""
    runs = {"here": 0, "there": 0}

    def train(where):
        def function(x):
            runs[where] += 1
            return x.sin()

        x = torch.ones(2, requires_grad=True)
        for reentrant in (True, False):
            torch.utils.checkpoint.checkpoint(function, x, use_reentrant=reentrant).sum().backward()

    with eager(), ThreadPoolExecutor(1) as pool:
        pool.submit(train, "there").result()
        train("here")
    assert runs == {"here": 2, "there": 4}


@pytest.mark.slow
def test_what_another_thread_trains_is_compiled_as_before():
    compiled = {"here": 0, "there": 0}

    def run(where):
        def backend(graph, _inputs):
            compiled[where] += 1
            return graph.forward

        torch.compile(lambda x: x.sin() + 1, backend=backend)(torch.ones(2))

    import torch._dynamo

    with eager(), ThreadPoolExecutor(1) as pool:
        pool.submit(run, "there").result()
        run("here")
    assert compiled == {"here": 0, "there": 1}


def test_another_default_type_is_this_threads_alone():
    with default_dtype(torch.float64), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (torch.zeros(1).dtype, torch.get_default_dtype())).result() == (torch.float32, torch.float32)
        assert torch.zeros(1).dtype == torch.float64


MAKERS = {
    "zeros": lambda: torch.zeros(3),
    "floats": lambda: torch.tensor([1.0, 2.0]),
    "integers": lambda: torch.tensor([1, 2]),
    "float32 array": lambda: torch.as_tensor(np.ones(2, np.float32)),
    "arange": lambda: torch.arange(3),
    "arange of floats": lambda: torch.arange(0, 1, 0.5),
    "quotient": lambda: torch.arange(3) / 7,
    "root": lambda: torch.arange(3).sqrt(),
    "power": lambda: torch.arange(3) ** 0.5,
    "linspace": lambda: torch.linspace(0, 1, 3),
    "random": lambda: torch.rand(2),
    "normal": lambda: torch.normal(0.0, 1.0, (2,)),
    "full": lambda: torch.full((2,), 1.5),
    "full of integers": lambda: torch.full((2,), 1),
    "like float32": lambda: torch.ones_like(torch.zeros(2, dtype=torch.float32)),
    "cast": lambda: torch.arange(3).float(),
    "condition": lambda: torch.where(torch.tensor([True]), 1.0, 0.0),
    "window": lambda: torch.hann_window(4),
    "one hot": lambda: nn.functional.one_hot(torch.arange(3)),
    "named type": lambda: torch.ones(2, dtype=torch.float32),
}


@pytest.mark.parametrize("name", MAKERS)
def test_it_gives_what_the_process_wide_one_gives(name):
    torch.set_default_dtype(torch.float64)
    try:
        expected = MAKERS[name]()
    finally:
        torch.set_default_dtype(torch.float32)
    with default_dtype(torch.float64):
        found = MAKERS[name]()
    assert found.dtype == expected.dtype
    if name not in ("random", "normal"):
        torch.testing.assert_close(found, expected, rtol=1e-15, atol=0)


def test_a_lent_module_can_be_freed():
    model = Small()
    with lend_modules(model):
        pass
    import weakref

    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None

"""Recordings: what they hold, what they leave alone, and what they say."""

import functools
import logging
import threading
import warnings
import weakref

import pytest
import torch
from nets import Does
from replay import assert_marks_are_what_hooks_see, assert_same_derivative, replay
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from erfscope.core.graph.in_words import operations_in_words
from erfscope.core.graph.record import RecordingError, record
from erfscope.core.system.containers import tensors_of


def conv_then(then):
    """A convolution, and a function of what it gives."""
    return Does(lambda m, x: m.then(m.conv(x)), conv=nn.Conv2d(3, 4, 3, padding=1), then=then)


def images(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def autocast(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = nn.functional.conv2d(x.float(), m.a.weight.float())
    with torch.no_grad():
        scale = y.float().square().mean()
    return m.b(y.to(x.dtype)) * scale


def nets():
    attention = nn.TransformerEncoderLayer(12, 3, batch_first=True)
    return {
        "in place": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()), (9, 9)),
        "autocast and no_grad": (Does(autocast, a=nn.Conv2d(3, 3, 3), b=nn.Conv2d(3, 3, 3)), (9, 9)),
        "attention": (nn.Sequential(nn.Flatten(2), attention, nn.Linear(12, 1)), (3, 4)),
        "spectral_norm by hooks": (nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)).eval(), (9, 9)),
        "detach": (conv_then(lambda y: y * y.detach().sin()), (5, 5)),
        "lstm": (
            Does(lambda m, x: m.lstm(x.flatten(2))[0], lstm=nn.LSTM(9, 4, bidirectional=True)),
            (3, 3),
        ),
    }


@pytest.mark.parametrize("name", nets())
@pytest.mark.parametrize("batch", [1, 3])
def test_values_and_gradients_of_a_graph_are_the_modules(name, batch):
    module, space = nets()[name]
    module = module.double().eval()
    x = images(batch, 3, *space)
    graph = record(module, (x,))
    assert (graph.by, graph.unfaithful) == ("shapes", ())
    assert_same_derivative(graph, module, x)


class Pair(nn.Module):
    def forward(self, x, other):
        return x * 2, (x + other).relu_()


def shared(m, x):
    """Modules that have no operation of their own, give tuples and dictionaries, or are called twice."""
    a, b = m.pair(m.twice(m.same(x)), other=m.off(x))
    return m.named({"a": m.twice(a.relu_()), "list": [b]})


def test_every_call_of_every_module_is_found_by_name_as_hooks_see_it():
    named = Does(lambda _, given: {"sum": given["a"] + given["list"][0], "nested": {"first": given["a"]}})
    parts = {"same": nn.Identity(), "off": nn.Dropout(0.5), "twice": nn.Conv2d(3, 3, 3), "unused": nn.Linear(2, 2)}
    parts["twice"].padding = (1, 1)
    module, x = Does(shared, **parts, pair=Pair(), named=named).double().eval(), images(2, 3, 8, 8)
    graph = record(module, (x,))
    assert {"", "same", "off", "twice@0", "twice@1", "pair", "named"} == graph.marks.keys()
    assert graph.marks["pair"].outputs.keys() == {(0,), (1,)}
    assert graph.marks["pair"].inputs.keys() == {(0,), ("other",)}
    assert graph.marks["named"].inputs.keys() == {(0, "a"), (0, "list", 0)}
    assert graph.marks[""].outputs.keys() == {("sum",), ("nested", "first")}
    assert graph.marks["same"].outputs[()] is graph.inputs[0]
    assert_marks_are_what_hooks_see(graph, module, x)


def test_live_nodes_are_those_that_depend_on_an_input():
    module = conv_then(lambda y: y + torch.arange(4.0).sin()[:, None, None])
    graph = record(module, (torch.rand(1, 3, 4, 4),))
    values = [replay(graph, module, torch.rand(1, 3, 4, 4)) for _ in range(2)]
    for node in graph.nodes:
        assert torch.equal(*(found[node] for found in values)) is (node not in graph.live), node


def test_weights_may_change_after_a_recording():
    module, x = conv_then(torch.sin).double(), images(1, 3, 5, 5)
    module.table, module.kept = torch.ones(4, 1, 1).double(), {"scale": [torch.full((), 2.0).double()]}
    module.then = lambda y: y * module.table * module.kept["scale"][0]
    graph = record(module, (x,))
    assert {"conv.weight", "conv.bias"} <= set(graph.held.values()) <= tensors_of(module).keys()
    with torch.no_grad():
        module.conv.weight.mul_(3)
    module.conv.bias = nn.Parameter(torch.zeros(4).double())
    assert_same_derivative(graph, module, x)


def keeping(m, x):
    """A forward pass that keeps what it computes, counts its calls and may fail."""
    m.calls += 1
    m.kept = m.conv(x)
    m.list.append(m.kept)
    m.conv.told = 1
    m.register_forward_hook(lambda *_: None)
    if m.fails:
        raise ValueError("no such size\nmore of it")
    return m.kept.relu() if m.kept.sum() > -1e9 else m.kept


@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_as_found(fails):
    module = Does(keeping, conv=nn.Conv2d(3, 3, 3), calls=torch.zeros((), dtype=torch.long), list=[], fails=fails)
    before = [{**vars(part)} for part in module.modules()]
    x, state = torch.rand(1, 3, 5, 5), torch.get_rng_state()
    copied = x.clone()
    if fails:
        with pytest.raises(RecordingError, match=r"^ValueError: no such size$"):
            record(module, (x,))
    else:
        assert record(module, (x,)).by == "path taken"
    assert [{**vars(part)} for part in module.modules()] == before
    assert not module.calls
    assert not module.list
    assert not module._forward_hooks
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, copied)
    assert "__init__" not in vars(BackwardCFunction)


def test_hooks_that_are_set_are_part_of_the_pass():
    module, x, seen = conv_then(torch.sin).double(), images(1, 3, 5, 5), []
    module.conv.register_forward_hook(lambda _m, _a, out: out * 2)
    module.conv.register_forward_pre_hook(lambda _m, args: (args[0] + 1,))
    module.register_forward_hook(lambda _m, _a, out: seen.append(type(out)))
    graph = record(module, (x,))
    assert_same_derivative(graph, module, x)
    assert_marks_are_what_hooks_see(graph, module, x)
    assert seen[-1] is Tensor
    assert len(module.conv._forward_hooks) == 1


def test_a_module_without_numbers_is_recorded_like_one_with_them():
    def then(y):
        return y + torch.arange(4.0)[:, None, None]

    graph = record(conv_then(then), (torch.rand(2, 3, 6, 6),))
    with torch.device("meta"):
        empty, x = conv_then(then), torch.rand(2, 3, 6, 6)
    other = record(empty, (x,))
    assert [str(node.target) for node in graph.nodes] == [str(node.target) for node in other.nodes]
    assert [node.meta["val"].shape for node in graph.nodes] == [node.meta["val"].shape for node in other.nodes]


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_a_recording_is_the_same_whatever_mode_it_is_asked_for_in(around):
    with around():
        module, x = conv_then(torch.sin).double(), images(1, 3, 5, 5)
        graph = record(module, (x,))
    assert not any(node.meta["no_grad"] for node in graph.nodes)
    assert torch.equal(replay(graph, module, x)[graph.marks[""].outputs[()]], module(x))


class Two(nn.Module):
    def forward(self, pair, *, scale):
        return pair[0] * pair[1] * scale


def test_keywords_and_several_inputs_are_inputs():
    x, y, scale = (torch.rand(2, 2) for _ in range(3))
    graph = record(Two(), ((x, y),), {"scale": scale})
    assert torch.equal(replay(graph, Two(), x, y, scale)[graph.marks[""].outputs[()]], x * y * scale)


def test_what_branches_on_values_is_recorded_along_its_path():
    module, x = (
        conv_then(lambda y: (y if y.sum() > 0 else -y)[:, :, : int(y.argmax() * 0 + 2)]).double(),
        images(2, 3, 5, 5),
    )
    graph = record(module, (x,))
    assert graph.by == "path taken"
    assert_same_derivative(graph, module, x)
    assert_marks_are_what_hooks_see(graph, module, x)
    with pytest.raises(RecordingError, match="asks for numbers"), torch.device("meta"):
        record(conv_then(module.then), (torch.rand(2, 3, 5, 5),))


class Fivefold(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


def with_tensor_hook(y):
    y.retain_grad()
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 2)
    return y


def without_gradients(y):
    with torch.no_grad():
        y.mul_(2)
    return y


def backward_hooked():
    module = nn.Identity()
    module.register_full_backward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("then", "reasons"),
    [
        (torch.sin, ()),
        (nn.Dropout(0.5).eval(), ()),
        (lambda y: y if torch.compiler.is_compiling() else y * 3, ()),
        (Fivefold.apply, ("the model has a hand-written backward pass (Fivefold)",)),
        (with_tensor_hook, ("the model reads requires_grad", "the model sets hooks on gradients")),
        (nn.Dropout(0.5), ("then draws random numbers",)),
        (lambda y: y + torch.randn_like(y), ("the model draws random numbers",)),
        (lambda y: y.uniform_(), ("the model draws random numbers",)),
        (without_gradients, ("the model writes in place without gradients",)),
        (backward_hooked(), ("then has backward hooks",)),
    ],
)
def test_what_a_graph_does_not_hold_is_said(then, reasons):
    found = record(conv_then(then), (torch.rand(1, 3, 5, 5),)).unfaithful
    assert tuple(each.text for each in found) == reasons


def test_a_question_for_gradients_is_answered_as_with_an_input_that_has_them():
    module, x = conv_then(lambda y: y * 2 if y.requires_grad else y * 3).double(), images(1, 3, 4, 4)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    assert_same_derivative(record(module, (x,)), module, x)


@functools.cache
def grid(side):
    return torch.arange(side).sin(), {"rows": [torch.ones(side)]}


@pytest.mark.slow
def test_functions_that_keep_what_they_give_keep_no_tensor_without_numbers():
    module, x = conv_then(lambda y: y * grid(5)[0] + grid(5)[1]["rows"][0]), torch.rand(1, 3, 5, 5)
    grid.cache_clear()
    graph = record(module, (x,))
    assert type(grid(5)[0]) is Tensor
    assert torch.equal(module(x), replay(graph, module, x)[graph.marks[""].outputs[()]])


def test_a_pass_that_fails_keeps_no_tensor_and_collects_no_garbage(monkeypatch):
    made = []
    monkeypatch.setattr("erfscope.core.graph.record.gc.collect", lambda: made.append("collected"))

    def wide(m, x):
        rows = torch.linspace(-1, 1, x.shape[2]).to(x)
        made.append(weakref.ref(rows))
        return m.conv(torch.cat([x, rows[:, None].expand(len(x), 1, *x.shape[2:])], 1))

    with pytest.raises(RecordingError, match="to have 3 channels, but got 4"):
        record(Does(wide, conv=nn.Conv2d(3, 4, 3)), (torch.zeros(1, 3, 5, 5, device="meta"),))
    assert [each() for each in made] == [None]


def test_four_threads_at_once_are_right():
    sides, found = (3, 4, 5, 6), {}
    modules = [nn.Sequential(*(nn.Conv2d(side, side, 3, padding=1) for _ in range(8)), nn.Flatten()) for side in sides]
    inputs = [torch.rand(2, side, side, side) for side in sides]
    start = threading.Barrier(len(sides))

    def work(number):
        start.wait()
        found[number] = [record(modules[number], (inputs[number],)) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(sides))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, module in enumerate(modules):
        for graph in found[number]:
            out = replay(graph, module, inputs[number])[graph.marks[""].outputs[()]]
            assert torch.equal(out, module(inputs[number]))


def test_nothing_is_printed_or_warned_of_and_what_cannot_be_copied_is_refused(capfd):
    def then(y):
        warnings.warn("careful", stacklevel=1)
        logging.getLogger("torch.export").error("a thousand lines")
        return y.view(7, 7)

    with pytest.raises(RecordingError, match=r"^shape .* is invalid for input of size 100$") as caught:
        record(conv_then(then), (torch.rand(1, 3, 5, 5),))
    assert "\n" not in str(caught.value)
    module = conv_then(torch.sin)
    module.lock = threading.Lock()
    with pytest.raises(RecordingError, match="cannot pickle"):
        record(module, (torch.rand(1, 3, 5, 5),))
    assert capfd.readouterr() == ("", "")
    assert not logging.getLogger("torch.export").disabled


def test_operations_of_the_model_itself_are_named_by_the_module_whose_result_they_read():
    net = Does(lambda m, x: m.a(x * 2) * 3 + m.b(x) * 5, a=nn.Conv2d(3, 3, 1), b=nn.Conv2d(3, 3, 1))
    graph = record(net, (torch.zeros(1, 3, 4, 4),))
    *_, last = (node for node in graph.nodes if node.op == "call_function")
    found = operations_in_words(graph, last)
    assert {where: texts for where, texts in found.items() if where not in "ab"} == {
        "before a": ("mul other=2",),
        "behind a": ("mul other=3", "add"),
        "behind b": ("mul other=5",),
    }

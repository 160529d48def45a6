"""Claims about what a person has in a variable: it is measured, or refused in one line that says what to do."""

from __future__ import annotations

import copy
import warnings
from functools import cache
from typing import ClassVar

import pytest
import torch
from nets import Does, conv
from one_line import one_line
from torch import nn

import erfscope
from erfscope.adapters.live_objects import unwrapped

pytestmark = pytest.mark.usefixtures("memory_unplanned")
#: Of :func:`net`, by arithmetic.
TRF, CENTRE = (7, 7), (16.0, 16.0)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(conv(3, 6, s=2), nn.ReLU(), conv(6, 6)).eval()


def example(images: int = 1) -> torch.Tensor:
    return torch.randn(images, 3, 32, 32, generator=torch.Generator().manual_seed(1))


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.net = inner

    def forward(self, x):
        return self.net(x)


class Trainer(Outer):
    """``train`` starts a training and ``eval`` an evaluation, as ultralytics' ``YOLO`` has it."""

    calls: ClassVar[list[str]] = []

    def train(self, trainer=None, **settings):
        self.calls.append("train")
        return {"epochs": 100}

    def eval(self, data=None):
        self.calls.append("eval")


class Epochs(Trainer):
    def train(self, mode="full", epochs=10):
        self.calls.append("train")


class Uncallable(nn.Module):
    """Averaged weights, or a model with a trainer around it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.model = inner


class Cached(Outer):
    """PyTorch's contract, with a cache that lasts until ``train``."""

    cache: object = None

    def train(self, mode: bool = True):
        self.cache = None
        return super().train(mode)

    def forward(self, x):
        self.cache = self.net[0].weight * 1
        return super().forward(x)


def lazy_after_a_call() -> nn.Module:
    module = nn.Sequential(nn.LazyConv2d(6, 3, stride=2, padding=1), nn.ReLU(), nn.LazyConv2d(6, 3, padding=1))
    module(example())
    return module


def with_train_attribute() -> nn.Module:
    module = Outer(net())
    module.train = True
    return module


def exported(module: nn.Module, images: int = 1, **options):
    return torch.export.export(module, (example(images),), **options)


def dynamic():
    batch, *sides = (torch.export.Dim(name, min=least) for name, least in (("b", 2), ("h", 8), ("w", 8)))
    return exported(Outer(net()), 2, dynamic_shapes=({0: batch, 2: sides[0], 3: sides[1]},))


MEASURED = {
    "lazy, after a call": lazy_after_a_call,
    "exported": lambda: exported(Outer(net())),
    "exported, dynamic": dynamic,
    "module of an exported program": lambda: exported(net()).module(),
    "part of an exported program": lambda: Outer(exported(net()).module()),
    "traced by fx": lambda: torch.fx.symbolic_trace(net()),
    "compiled part": lambda: Outer(torch.compile(net())),
    "compiled and data-parallel": lambda: torch.compile(nn.DataParallel(net())),
    "data-parallel part": lambda: Outer(nn.DataParallel(Outer(nn.DataParallel(net())))),
    "averaged": lambda: torch.optim.swa_utils.AveragedModel(net()),
    "no forward, one part": lambda: Uncallable(net()),
    "train() trains": lambda: Trainer(net()),
    "train() of a part trains": lambda: Outer(Trainer(net())),
    "train(mode) trains": lambda: Epochs(net()),
    "train is no method": with_train_attribute,
    "train() clears a cache": lambda: Cached(net()),
}


def made(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of deprecated names
        return make()


OPTIONS = {"input_size": 32, "measures": "r50"}


@cache
def expected() -> float:
    return float(erfscope.analyze(net(), samples=3, dtype="float64", **OPTIONS)["r50"])


@pytest.mark.parametrize("name", MEASURED)
def test_an_object_is_measured_as_the_module_in_it(name):
    Trainer.calls.clear()
    model = made(MEASURED[name])
    result = erfscope.analyze(model, samples=3, dtype="float64", **OPTIONS)
    assert result.ok, result.error
    assert (result.trf.size_px, result.trf.center_px, result.trf.exact) == (TRF, CENTRE, True)
    if name != "lazy, after a call":  # whose weights are others
        assert float(result["r50"]) == pytest.approx(expected(), rel=1e-9)
    assert Trainer.calls == []


@pytest.mark.parametrize("is_training", [False, True])
def test_flags_are_put_back_without_a_train_of_another_kind(is_training):
    model = Outer(Trainer(net()))
    model.net.net[1].training = is_training
    before = [part.training for part in model.modules()]
    erfscope.analyze(model, samples=1, **OPTIONS)
    assert [part.training for part in model.modules()] == before
    copy.deepcopy(model)  # nothing is left in it that a copy would stumble over
    cached = Cached(net())
    erfscope.analyze(cached, samples=1, plain=True, **OPTIONS)
    assert cached.cache is None


def test_the_copy_without_wrappers_shares_every_tensor_and_leaves_the_model_alone():
    model = Outer(nn.DataParallel(net()))
    plain = unwrapped(model)
    assert [name for name, _ in plain.named_parameters()] == [
        name.replace("module.", "") for name, _ in model.named_parameters()
    ]
    assert all(a is b for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert isinstance(model.net, nn.DataParallel)


def quantised_statically() -> nn.Module:
    quantization = torch.ao.quantization
    module = nn.Sequential(quantization.QuantStub(), net(), quantization.DeQuantStub()).eval()
    module.qconfig = quantization.get_default_qconfig("x86")
    prepared = quantization.prepare(module)
    prepared(example())
    return quantization.convert(prepared)


def quantised_dynamically() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Linear(32, 32))
    return torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)


def half_loaded() -> nn.Module:
    module = net()
    module[2] = nn.Conv2d(6, 6, 3, padding=1, device="meta")
    return module


class Sharded(nn.Parameter):
    pass


def sharded() -> nn.Module:
    module = net()
    module[2].weight = Sharded(module[2].weight.detach())
    return module


Sharded.__name__ = "DTensor"
REFUSED = {
    "lazy": (lambda: nn.Sequential(nn.LazyConv2d(6, 3)), ["'0'", "lazy", "call the model once"]),
    "lazy part": (lambda: Outer(nn.Sequential(net(), nn.LazyBatchNorm2d())), ["'net.1'", "call the model once"]),
    "quantised": (quantised_statically, ["quantised", "give the float model"]),
    "quantised dynamically": (quantised_dynamically, ["'1'", "quantised", "give the float model"]),
    "scripted": (lambda: torch.jit.script(net()), ["TorchScript", "torch.export"]),
    "frozen": (lambda: torch.jit.freeze(torch.jit.script(net())), ["TorchScript", "torch.export"]),
    "scripted part": (lambda: Outer(torch.jit.trace(net(), example())), ["'net'", "TorchScript", "torch.export"]),
    "sharded": (sharded, ["'2'", "sharded over processes", "get_model_state_dict"]),
    "no forward, several parts": (lambda: nn.ModuleList([net(), net()]), ["model.PART", "erfscope.wrap"]),
    "half loaded": (half_loaded, ["2 of its 4 parameters", "'2.weight'", "load them"]),
    "a class": (lambda: nn.Conv2d, ["Conv2d is a class", "calling it"]),
    "a state_dict": (lambda: net().state_dict(), ["state_dict", "load"]),
    "a function": (lambda: lambda x: x, ["erfscope.wrap"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_object_that_cannot_be_measured_is_refused_with_what_to_do(name):
    make, words = REFUSED[name]
    model = made(make)
    text = one_line(lambda: erfscope.analyze(model, samples=1, **OPTIONS)["r50"])
    assert all(word in text for word in words), text


def test_programs_that_cannot_be_taken_apart_or_train_are_refused(monkeypatch):
    training = exported(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train(), 2)
    one_line(lambda: erfscope.theoretical(training), r"exported in training mode; call model.eval\(\)")
    program = exported(Outer(net()))

    def unflatten(_program):
        """As PyTorch 2.6 fails, of a sequence alone."""
        raise RuntimeError("Child module '0' is not a descendant")

    monkeypatch.setattr(torch.export, "unflatten", unflatten)
    one_line(lambda: erfscope.theoretical(program), "export a model that has it as a part: Child module")


def test_sparse_weights_have_no_hash():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(2), nn.Linear(1024, 16))
    module[2].weight = nn.Parameter(module[2].weight.detach().to_sparse())
    assert erfscope.wrap(module, input_size=32).weights.sha256 is None


def beside(m, x):
    """Not the cause of a zero gradient: another path has one."""
    y = m.net(x)
    return nn.functional.relu(y - y.detach().abs() - 1)


@pytest.mark.parametrize(
    ("forward", "cause"),
    [
        (
            torch.no_grad()(lambda m, x: m.net(x)),
            "conv2d in net.0 runs without gradients, as under torch.no_grad(); take that out",
        ),
        (torch.inference_mode()(lambda m, x: m.net(x)), "conv2d in net.0 runs without gradients"),
        (lambda m, x: m.net(x).detach() * 2, "detach has no gradient; take it out, or measure a layer before it"),
        (
            lambda m, x: m.net(torch.from_numpy(x.detach().cpu().numpy())),
            "a gradient may end where its operations leave PyTorch",
        ),
        (beside, "; try another layer or unit"),
    ],
)
def test_the_cause_of_a_zero_gradient_is_named(forward, cause):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", erfscope.ErfWarning)
        result = erfscope.analyze(Does(forward, net=net()), samples=2, **OPTIONS)
    assert result.status == "degenerate"
    assert cause in result.error


def test_waveforms_without_a_channel_axis_lead_to_wrap():
    """They are (B, T), as wav2vec 2.0 takes them."""
    wave = Does(lambda m, x: m.conv(x[:, None]), conv=nn.Conv1d(1, 6, 10, stride=5))
    for options in ({"images": torch.randn(1, 400)}, {"input_size": (400,), "in_chans": 1}):
        try:
            text = erfscope.analyze(wave, samples=1, **options).error
        except erfscope.ErfscopeError as error:
            text = str(error)
        assert "erfscope.wrap(model, forward=lambda m, x: m(x[:, 0]), in_chans=1, input_size=(T,))" in text
    # What that message says to do works.
    model = erfscope.wrap(wave, forward=lambda m, x: m(x[:, 0]), in_chans=1, input_size=(400,))
    assert erfscope.theoretical(model).size_px == (10,)
    assert erfscope.analyze(model, images=torch.randn(1, 400)[:, None], samples=1).ok

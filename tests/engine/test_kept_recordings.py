"""A model that is measured again is not recorded again, unless anything of it that decides its operations is another."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import erfscope
from erfscope.engine import recorded

SHIFT = 0


def shifted(x: Tensor) -> Tensor:
    return torch.roll(x, SHIFT, -1) + torch.roll(x, SHIFT, -2)


class Net(nn.Module):
    """Every kind of thing that an edit may change."""

    shift = 0

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GELU())
        self.last = nn.Conv2d(4, 4, 3, padding=1)
        self.step = 1
        self.settings = {"shift": [0]}
        self.forms = [lambda y: y]
        self.register_buffer("order", torch.arange(12))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.forms[0](self.second(self.first(x)))
        y = torch.roll(y, self.settings["shift"][0] + self.shift, -1)
        y = shifted(y)[..., self.order, :]
        return self.last(self.drop(y))[..., :: self.step, :: self.step]


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were recorded."""
    found: list[str] = []
    run = recorded.RecordedModel._run_recorded
    monkeypatch.setattr(recorded.RecordedModel, "_run_recorded", lambda self: (found.append(self._label), run(self))[1])
    monkeypatch.setattr(recorded, "_kept", type(recorded._kept)())
    return found


def measured(net: nn.Module, **options: object) -> erfscope.Result:
    return erfscope.analyze(
        net, **{"input_size": (12, 12), "samples": 2, "layer": "output", "convention": "luo", "measures": "r50", **options}
    )


def plain(net: nn.Module) -> Tensor:
    """The oracle: the gradient of the same unit on the same images, by hand."""
    return torch.tensor(measured(net, cone=False).map.values)


def second(net: Net) -> None:
    net.second[1] = nn.Conv2d(4, 4, 5, padding=2)


def hook(net: Net) -> None:
    net.second.register_forward_hook(lambda _module, _args, y: torch.roll(y, 2, -1))


def closure(net: Net) -> None:
    shift = 3
    net.forms[0] = lambda y: torch.roll(y, shift, -1)


EDITS: dict[str, Callable[[Net], object]] = {
    "a part is another": second,
    "a part has gone": lambda net: setattr(net, "second", nn.Identity()) or setattr(net, "last", nn.Conv2d(4, 4, 1)),
    "a hyper-parameter of a part": lambda net: setattr(net.last, "dilation", (2, 2)) or setattr(net.last, "padding", (2, 2)),
    "an attribute": lambda net: setattr(net, "step", 2),
    "an entry deep inside": lambda net: net.settings["shift"].__setitem__(0, 2),
    "an attribute of the class": lambda net: setattr(type(net), "shift", 2),
    "a function": closure,
    "a global of its file": lambda net: globals().__setitem__("SHIFT", 2),
    "the numbers of an index": lambda net: net.order.copy_(torch.arange(11, -1, -1)),
    "a hook": hook,
    "forward of one object": lambda net: setattr(net, "forward", lambda x: net.last(net.first(x))),
    "forward of the class": lambda net: setattr(type(net), "forward", lambda self, x: self.last(self.first(x))),
    "parameters of another shape": lambda net: setattr(net.second, "0", nn.Conv2d(4, 4, 7, padding=3)),
    "memory format": lambda net: net.to(memory_format=torch.channels_last),
    "requires_grad": lambda net: net.first.weight.requires_grad_(False),
    "the mode of a part": lambda net: net.drop.train(),
    "the dtype": lambda net: net.double(),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_model_is_recorded_again(edit, recordings, monkeypatch):
    torch.manual_seed(0)
    kind = type("Net", (Net,), {"forward": Net.forward})
    net = kind().eval()
    monkeypatch.setitem(globals(), "SHIFT", 0)
    measured(net)
    measured(net)
    assert len(recordings) == 1
    EDITS[edit](net)
    found = measured(net)
    assert len(recordings) == 2
    assert torch.allclose(torch.tensor(found.map.values), plain(net), rtol=0, atol=1e-9 + 1e-5 * float(found.map.values.max()))


def test_weights_inputs_and_settings_record_nothing_again(recordings):
    net = Net().eval()
    measured(net)
    with torch.no_grad():
        net.first.weight.mul_(2)
    net.load_state_dict({name: tensor.clone() for name, tensor in net.state_dict().items()})
    measured(net, samples=3, convention="jacobian", unit="corner", seed=4)
    measured(net, layer="second")
    assert len(recordings) == 1
    measured(net, input_size=(14, 12), layer="second")
    assert len(recordings) == 2


def test_a_step_of_training_records_nothing_again(recordings):
    """It moves weights, running statistics and the counter of batches."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)).train()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        net(torch.randn(2, 3, 12, 12)).square().mean().backward()
        optimizer.step()
        measured(net)
    assert net[1].num_batches_tracked == 2
    assert len(recordings) == 1


def test_what_no_structure_shows_is_found_by_the_path(recordings):
    """A file that the forward reads, say: the measured pass calls other functions than the recorded one did."""
    mode = {"kind": 0}

    class Foreign:
        __module__ = "elsewhere"

        def kind(self) -> int:
            return mode["kind"]

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.asked = nn.Conv2d(3, 3, 3, padding=1), Foreign()

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.conv(self.conv(y).relu()) if self.asked.kind() else y

    net = Asking().eval()
    before = measured(net)
    mode["kind"] = 1
    after = measured(net)
    assert len(recordings) == 2
    assert [stop - first for first, stop in before.trf.clipped_box_px] == [2, 2]
    assert [stop - first for first, stop in after.trf.clipped_box_px] == [6, 6]


def test_a_model_that_is_measured_is_not_kept_alive():
    net = Net().eval()
    measured(net)
    ref = weakref.ref(net)
    del net
    gc.collect()
    assert ref() is None
    assert len(recorded._kept) <= recorded.KEPT


def elsewhere(**names: object) -> ModuleType:
    """A file that the model's own imports."""
    made = ModuleType("elsewhere")
    made.__dict__.update(names)
    return made


class Slotted:
    __slots__ = ("shift",)

    def __init__(self) -> None:
        self.shift = 0


CONSTANTS = elsewhere(SHIFT=0, settings={"shift": 0})
VARIABLE: ContextVar[int] = ContextVar("shift", default=0)
LOCAL = threading.local()
LOCAL.shift = 0
SLOTTED = Slotted()

#: What a forward may read that is no part of the model: how it is read, and how it is set.
OUTSIDE: dict[str, tuple[Callable[[nn.Module], int], Callable[[nn.Module, int], object]]] = {
    "a constant of another file": (lambda _: CONSTANTS.SHIFT, lambda _, shift: setattr(CONSTANTS, "SHIFT", shift)),
    "a table of another file": (lambda _: CONSTANTS.settings["shift"], lambda _, shift: CONSTANTS.settings.update(shift=shift)),
    "the environment": (lambda _: int(os.environ.get("SHIFT", "0")), lambda _, shift: os.environ.update(SHIFT=str(shift))),
    "a context variable": (lambda _: VARIABLE.get(), lambda _, shift: VARIABLE.set(shift)),
    "a variable of the thread": (lambda _: LOCAL.shift, lambda _, shift: setattr(LOCAL, "shift", shift)),
    "a global object": (lambda _: SLOTTED.shift, lambda _, shift: setattr(SLOTTED, "shift", shift)),
    "a held object with slots": (lambda net: net.held.shift, lambda net, shift: setattr(net.held, "shift", shift)),
    "a flag of PyTorch": (
        lambda _: 3 * (torch.get_float32_matmul_precision() == "high"),
        lambda _, shift: torch.set_float32_matmul_precision("high" if shift else "highest"),
    ),
}


class Outside(nn.Module):
    def __init__(self, read: Callable[[nn.Module], int]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.read, self.held = read, Slotted()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).roll(self.read(self), -1).tanh())


@pytest.mark.parametrize("what", OUTSIDE)
def test_what_a_forward_reads_elsewhere_is_noticed(what, recordings):
    read, write = OUTSIDE[what]
    net = Outside(read).eval()
    unit = {"unit": (6, 6), "layer": "output", "input_size": (12, 12)}
    monitor = erfscope.ErfMonitor(net, torch.randn(1, 3, 12, 12), quiet=True, convention="luo", measures="r50", **unit)
    write(net, 0)
    try:
        for step, (shift, box) in enumerate(((0, (4, 8)), (3, (1, 5)), (3, (1, 5)))):
            write(net, shift)
            assert erfscope.theoretical(net, **unit).box_px[1] == box
            found = measured(net, unit=(6, 6))
            assert found.trf.box_px[1] == box
            assert torch.allclose(torch.tensor(found.map.values), torch.tensor(measured(net, unit=(6, 6), cone=False).map.values))
            followed = monitor.step(step)
            assert followed.trf.box_px[1] == box
            columns = followed.map.values.sum(0).nonzero()[0]
            assert (columns.min(), columns.max()) == box
    finally:
        write(net, 0)
        os.environ.pop("SHIFT", None)
    # One for each of the two values, of the calls and of the monitor, which may label the model otherwise.
    assert len(recordings) <= 4


class Force(nn.Module):
    """A map that is a gradient itself, as the forces of an energy are."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.requires_grad_()
            (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return force.roll(CONSTANTS.SHIFT, -1)


def test_a_forward_that_takes_gradients_is_noticed_too(recordings, monkeypatch):
    net = Force().double().eval()
    for shift in (0, 3, 3):
        monkeypatch.setattr(CONSTANTS, "SHIFT", shift)
        found = measured(net, unit=(6, 6))
        assert torch.allclose(torch.tensor(found.map.values), plain(net))
        assert len(recordings) == 1 + (shift > 0)


def fails(call: Callable[[], Tensor]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


#: What a forward may ask of a tensor that a norm, a product or an activation has made.
ASKED: dict[str, Callable[[Tensor], bool]] = {
    "gradients": lambda y: nn.functional.gelu(y).requires_grad,
    "a leaf": lambda y: not nn.functional.gelu(y).is_leaf,
    "the graph": lambda y: nn.functional.gelu(y).grad_fn is not None,
    "strides": lambda y: nn.functional.gelu(y.permute(0, 2, 3, 1)).stride(-1) != 1,
    "order of memory": lambda y: nn.functional.gelu(y.contiguous(memory_format=torch.channels_last)).is_contiguous(
        memory_format=torch.channels_last
    ),
    "what a product refuses": lambda y: fails(lambda: nn.functional.linear(y, y.new_ones(5, 7))),
    "what a norm refuses": lambda y: fails(lambda: nn.functional.layer_norm(y, (7,))),
}


class Asking(Outside):
    """Reads a number that is no part of it only where it has asked."""

    def __init__(self, asks: Callable[[Tensor], bool]) -> None:
        super().__init__(lambda _: CONSTANTS.SHIFT)
        self.asks = asks

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(y.roll(self.read(self) if self.asks(y) else 0, -1).tanh())


@pytest.mark.parametrize("what", ASKED)
def test_a_change_behind_a_question_is_noticed(what, recordings, monkeypatch):
    net = Asking(ASKED[what]).eval()
    for shift, box in ((0, (4, 8)), (0, (4, 8)), (3, (1, 5))):
        monkeypatch.setattr(CONSTANTS, "SHIFT", shift)
        found = measured(net, unit=(6, 6))
        assert found.trf.box_px[1] == box
        assert torch.allclose(torch.tensor(found.map.values), torch.tensor(measured(net, unit=(6, 6), cone=False).map.values))
    assert len(recordings) == 2

"""Tables that a forward pass keeps outside of its module are the caller's: no tensor of a measurement stays in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import erfscope

BY_SIZE: dict[tuple[int, ...], Tensor] = {}
NESTED: dict[str, list[Tensor]] = {"ramps": []}
MEMO: list[Tensor] = []
RAMP: Tensor | None = None


class Holder:
    def __init__(self) -> None:
        self.ramp: Tensor | None = None


HOLDER = Holder()


def ramp(y: Tensor) -> Tensor:
    return torch.linspace(0.5, 1, y.shape[-1], device=y.device, dtype=y.dtype)


class Net(nn.Module):
    of_class: ClassVar[dict[int, Tensor]] = {}
    attribute: Tensor | None = None

    def __init__(self, table: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.table = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), table

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(y * self.table(y))


def of_file(y: Tensor) -> Tensor:
    key = tuple(y.shape[2:])
    if key not in BY_SIZE:
        BY_SIZE[key] = ramp(y)
    return BY_SIZE[key]


def nested(y: Tensor) -> Tensor:
    if not NESTED["ramps"]:
        NESTED["ramps"].append(ramp(y))
    return NESTED["ramps"][0]


def memo(y: Tensor) -> Tensor:
    if not MEMO:
        MEMO.append(ramp(y))
    return MEMO[0]


def rebound(y: Tensor) -> Tensor:
    global RAMP
    if RAMP is None:
        RAMP = ramp(y)
    return RAMP


def of_class(y: Tensor) -> Tensor:
    return Net.of_class.setdefault(y.shape[-1], ramp(y)) if y.shape[-1] not in Net.of_class else Net.of_class[y.shape[-1]]


def attribute(y: Tensor) -> Tensor:
    if Net.attribute is None:
        Net.attribute = ramp(y)
    return Net.attribute


def of_function(y: Tensor) -> Tensor:
    if not hasattr(of_function, "ramp"):
        of_function.ramp = ramp(y)
    return of_function.ramp


def default(y: Tensor, kept: dict[str, Tensor] = {}) -> Tensor:
    if "ramp" not in kept:
        kept["ramp"] = ramp(y)
    return kept["ramp"]


def of_object(y: Tensor) -> Tensor:
    if HOLDER.ramp is None:
        HOLDER.ramp = ramp(y)
    return HOLDER.ramp


#: How a table is kept, and what is in it.
TABLES: dict[Callable[[Tensor], Tensor], Callable[[], list[Tensor | None]]] = {
    of_file: lambda: list(BY_SIZE.values()),
    nested: lambda: NESTED["ramps"],
    memo: lambda: MEMO,
    rebound: lambda: [RAMP],
    of_class: lambda: list(Net.of_class.values()),
    attribute: lambda: [Net.attribute],
    of_function: lambda: [getattr(of_function, "ramp", None)],
    default: lambda: list(default.__defaults__[0].values()),
    of_object: lambda: [HOLDER.ramp],
}


@pytest.fixture
def empty():
    def clear() -> None:
        global RAMP
        for table in (BY_SIZE, NESTED["ramps"], MEMO, Net.of_class, default.__defaults__[0]):
            table.clear()
        RAMP = Net.attribute = HOLDER.ramp = None
        vars(of_function).clear()

    clear()
    yield
    clear()


def by_autograd(net: nn.Module, x: Tensor) -> np.ndarray:
    leaf = x.clone().requires_grad_(True)
    found = torch.autograd.grad(net(leaf)[0, :, 6, 6].relu().sum(), leaf)[0].relu().sum((0, 1))
    return (found / found.sum()).numpy()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_of_a_measurement_stays_in_a_table(table, dtype, empty):
    torch.manual_seed(0)
    net, x = Net(table).eval(), torch.randn(2, 3, 12, 12)
    asked = {"input_size": (12, 12), "layer": "output"}
    assert erfscope.theoretical(net, **asked).size_px == (5, 5)
    assert all(each is None for each in TABLES[table]())
    result = erfscope.analyze(net, images=x, unit=(6, 6), convention="replknet", measures="r50", dtype=dtype, **asked)
    assert result.status == "ok"
    assert all(each is None for each in TABLES[table]())
    each = [by_autograd(net, image[None]) for image in x]
    assert result.map.values.sum() == pytest.approx(1)
    assert np.abs(result.map.values - each[0]).max() < np.abs(each[0] - each[1]).max() + 1e-6  # a mean of the two
    assert all(each.device.type == "cpu" and each.dtype == torch.float32 for each in TABLES[table]())


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_what_a_table_holds_already_stays(table, empty):
    net, x = Net(table).eval(), torch.randn(1, 3, 12, 12)
    net(x)
    (before,) = TABLES[table]()
    for _ in range(2):
        result = erfscope.analyze(net, images=x, input_size=(12, 12), layer="output", convention="replknet", measures="r50", unit=(6, 6))
        (after,) = TABLES[table]()
        assert after is before
        assert result.status == "ok"
        np.testing.assert_allclose(result.map.values, by_autograd(net, x), atol=1e-6)


def test_a_training_goes_on_beside_a_monitor(empty):
    net = Net(of_file)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    monitor = erfscope.ErfMonitor(net, torch.randn(1, 3, 12, 12), quiet=True, measures="r50", input_size=(12, 12))
    for step in range(2):
        assert monitor.step(step).status == "ok"
        net(torch.randn(2, 3, 12, 12)).square().sum().backward()
        optimizer.step()
    assert [each.device.type for each in BY_SIZE.values()] == ["cpu"]


def test_what_holds_no_tensor_is_left_to_the_model(empty):
    seen: list[int] = []
    globals()["SEEN"] = seen
    try:

        def counting(y: Tensor) -> Tensor:
            globals()["SEEN"].append(1)
            return ramp(y)

        erfscope.theoretical(Net(counting).eval(), input_size=(12, 12), layer="output")
        assert seen
    finally:
        del globals()["SEEN"]

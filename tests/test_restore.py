"""What a measurement hands back as found: modules, and PyTorch's state; and one call at a time for one module."""

from __future__ import annotations

import gc
import random
import threading
import weakref

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope
from erfscope.core.system.restore import restored, seed_generators

WORDS = {"samples": 2, "input_size": (16, 16), "layer": "output", "measures": "r50"}


class Net(nn.Module):
    """A forward that changes all that is handed back, and may then raise."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("count", torch.zeros(1))
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.register_buffer("extra", torch.ones(1))
        self.norm.training = True
        self.conv.bias.grad = torch.ones_like(self.conv.bias)
        self.norm.register_forward_hook(lambda *_: None)
        torch.rand(1)
        np.random.rand()  # noqa: NPY002
        random.random()
        y = self.norm(self.conv(x))
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        if self.error is not None and not x.is_meta:
            raise self.error
        return y


def state(net: nn.Module) -> list[object]:
    """All that is handed back, as values that can be compared."""
    return [
        [part.training for part in net.modules()],
        [(name, p.requires_grad, None if p.grad is None else p.grad.tolist()) for name, p in net.named_parameters()],
        [(name, buffer.tolist()) for name, buffer in net.named_buffers()],
        [[len(vars(part)[name]) for name in vars(part) if name.endswith("_hooks")] for part in net.modules()],
        (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()),  # noqa: NPY002
        (torch.get_default_dtype(), torch.is_grad_enabled()),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "training"),
    [(None, True), (None, False), (ValueError("no"), True), (KeyboardInterrupt(), False)],
    ids=["training", "ok", "error", "Ctrl-C"],
)
def test_a_module_and_pytorch_are_as_found(error, training):
    net = Net(error).train(training)
    net.norm.training = not training
    net.conv.weight.grad = torch.full_like(net.conv.weight, 3.0)
    before = state(net)
    interrupted = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if interrupted else restored():
        erfscope.analyze(net, **WORDS, in_chans=3, errors="row")
    assert state(net) == before


@pytest.mark.slow
def test_what_a_model_derives_from_its_weights_for_evaluation_does_not_outlive_the_measurement():
    """LeViT keeps a table of attention biases in evaluation mode, until its own train() is called."""
    net = timm.create_model("levit_128s").train()
    erfscope.analyze(net, samples=1, measures="r50", layer="stages.0")
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("attention_biases"):
                parameter.normal_()
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    fresh = timm.create_model("levit_128s")
    fresh.load_state_dict(net.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), fresh.eval()(x))


def in_threads(*calls):
    """What each of these calls gives, each in a thread of its own."""
    found: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda n=n, call=call: found.__setitem__(n, call())) for n, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [found[n] for n in range(len(calls))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adapter", "module"])
def test_threads_that_measure_one_model_take_turns(kind):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 4, 5, padding=2)
    ).train()
    model = erfscope.wrap(net, input_size=(16, 16)) if kind == "adapter" else net
    words = [
        {"samples": n, "layer": layer, "measures": "r50", "input_size": (16, 16)}
        for n in (1, 3)
        for layer in ("0", "3")
    ]
    alone = [erfscope.analyze(model, **w).map.values for w in words]
    for found, expected in zip(
        in_threads(*(lambda w=w: erfscope.analyze(model, **w).map.values for w in words)), alone, strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert all(part.training for part in net.modules())


def test_threads_that_compare_two_models_in_either_order_both_end():
    nets = [nn.Sequential(nn.Conv2d(3, 2, 3, padding=1)) for _ in range(2)]

    def compared(*models):
        return len(erfscope.compare(list(models), samples=1, input_size=(16, 16), measures="r50"))

    assert in_threads(lambda: compared(*nets), lambda: compared(*reversed(nets))) == [2, 2]


@pytest.mark.slow
def test_threads_draw_the_weights_that_a_seed_names():
    def drawn():
        return erfscope.analyze("test_resnet", samples=1, weights="random", input_size=32).weights.sha256

    assert in_threads(*[drawn] * 4) == [drawn()] * 4


def test_seeded_numbers_are_those_of_the_seed_and_leave_the_generators():
    before = torch.get_rng_state()
    with seed_generators(3):
        drawn = torch.rand(4)
    assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_a_lent_module_can_be_freed():
    net = nn.Sequential(nn.Dropout())
    with restored(net):
        F.relu(net(torch.ones(1)))
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None

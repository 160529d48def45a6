"""Casts and constants in every spelling, unbatched operations and loops over images, against plain autograd."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import Does
from oracle import plain_gradient
from torch import nn

import erfscope

SIZE = (10, 12)
KERNEL = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16


def blurred(x, kernel):
    return F.conv2d(x, kernel.expand(x.shape[1], 1, *kernel.shape), padding=1, groups=x.shape[1])


def off(module, x, layer="output", *, pick=lambda y: y, unit=(4, 5), **options):
    """How far the map of a unit is from that by plain autograd, and the result."""
    at = (slice(None), slice(None), *unit)
    rows = [plain_gradient(module, one, lambda y: pick(y)[at], layer)[0].abs().sum(0) for one in x.split(1)]
    truth = torch.stack(rows).mean(0).double()
    words = {"layer": layer, "unit": unit, "convention": "luo", "measures": "r50", "images": x}
    result = erfscope.analyze(erfscope.wrap(module, input_size=SIZE, in_chans=x.shape[1]), **words, **options)
    return float(np.abs(result.map.values - (truth / truth.sum()).numpy()).sum()), result


CASTS = {
    "type_as": lambda m, x: m.kernel.type_as(x),
    "to(other)": lambda m, x: m.kernel.to(x),
    "type(dtype)": lambda m, x: m.kernel.type(x.dtype),
    "to(dtype=)": lambda m, x: m.kernel.to(device=x.device, dtype=x.dtype),
    "new_tensor": lambda m, x: x.new_tensor([[0.0, 1, 0], [1, 2, 1], [0, 1, 0]]),
    "new_zeros": lambda m, x: x.new_zeros(3, 3).fill_(0.25),
    "torch.tensor": lambda m, x: torch.tensor([[0.0, 1, 0], [1, 2, 1], [0, 1, 0]], dtype=x.dtype),
    "numpy": lambda m, x: torch.from_numpy(np.eye(3, dtype=np.float32)).type_as(x),
    "buffer": lambda m, x: m.buffer.to(x.dtype),
    "in a dict": lambda m, x: m.held["kernel"][0].type_as(x),
    "view_as": lambda m, x: m.kernel.type_as(x).flatten().view_as(x[0, 0, :3, :3]),
    "expand_as": lambda m, x: m.kernel[:1].type_as(x).expand_as(x[0, 0, :3, :3]),
}


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_in_the_dtype_of_the_input_is_no_part_of_the_field(cast, dtype):
    held = {"kernel": KERNEL.clone(), "held": {"kernel": [KERNEL.clone()]}}
    module = Does(lambda m, x: blurred(x, CASTS[cast](m, x)), **held).eval()
    module.register_buffer("buffer", KERNEL.clone(), persistent=False)
    x = torch.randn(2, 3, *SIZE, dtype=dtype)
    found, result = off(module, x, dtype=str(dtype).removeprefix("torch."), verify=True)
    assert found <= (1e-9 if dtype == torch.float64 else 1e-5)
    assert result.dtype == str(dtype).removeprefix("torch.")
    assert result.trf.exact
    assert result.trf.size_px == (3, 3)
    assert result.verification.holds


@pytest.mark.parametrize(
    "cast",
    [
        lambda x: torch.sigmoid(x.float()).to(x),
        lambda x: torch.sigmoid(x.float()).type_as(x.mean((2, 3))),
        lambda x: torch.sigmoid(x.float()).to(x[:, :1, :2, :2]),
    ],
    ids=["to(other)", "type_as another shape", "to another shape"],
)
def test_a_cast_reads_nothing_of_the_tensor_that_names_the_dtype(cast):
    torch.manual_seed(0)
    module = Does(lambda m, x: m.conv(cast(m.conv(x))), conv=nn.Conv2d(3, 3, 3, padding=1)).double().eval()
    found, result = off(module, torch.randn(2, 3, *SIZE, dtype=torch.float64))
    assert found <= 1e-7  # the sigmoid is that of float32
    assert result.trf.size_px == (5, 5)


@pytest.mark.slow
def test_a_branch_on_a_constant_is_followed_and_has_tiles_and_one_on_the_input_is_not():
    def checked(m, x):
        assert bool((torch.tensor([1.0, 2.0]) > 0).all())
        return blurred(x, KERNEL.to(x))

    assert erfscope.wrap(Does(checked), input_size=SIZE, in_chans=3).recording.needed_numbers == ""
    plan = erfscope.tile(erfscope.wrap(Does(checked), input_size=32, in_chans=3), 8)
    x = torch.randn(3, 40, 44)
    torch.testing.assert_close(
        erfscope.run_tiled(Does(checked).eval(), x, plan), Does(checked)(x[None])[0], rtol=0, atol=1e-6
    )
    looks = Does(lambda m, x: blurred(x, KERNEL.to(x)) if x.max() < 1e9 else x)
    assert erfscope.wrap(looks, input_size=SIZE).recording.needed_numbers
    weighs = Does(lambda m, x: m.conv(x) if m.conv.weight.max() < 1e9 else x, conv=nn.Conv2d(3, 3, 3, padding=1))
    assert erfscope.wrap(weighs, input_size=SIZE).recording.needed_numbers  # a training changes weights


LOOPS = {
    "for": lambda m, x: torch.cat([m.head(each[None]) for each in m.body(x)]),
    "unbind": lambda m, x: torch.stack([m.head(each) for each in m.body(x).unbind(0)]),
    "range": lambda m, x: torch.cat([m.head(m.body(x[i : i + 1])) for i in range(len(x))]),
    "split": lambda m, x: torch.cat([m.head(each) for each in torch.split(m.body(x), 1)]),
    "chunk": lambda m, x: torch.cat([m.head(each) for each in m.body(x).chunk(len(x))]),
    "a list": lambda m, x: [m.head(each[None]) for each in m.body(x)],
}


@pytest.mark.parametrize(
    ("loop", "layer"),
    [(loop, layer) for loop in LOOPS for layer in ("body", "head", "output") if (loop, layer) != ("a list", "output")],
)
def test_a_head_that_runs_for_each_image_has_the_map_of_plain_autograd(loop, layer):
    torch.manual_seed(0)
    parts = {"body": nn.Conv2d(3, 4, 3, padding=1), "head": nn.Conv2d(4, 5, 3, padding=1)}
    module = Does(LOOPS[loop], **parts).double().eval()
    x = torch.randn(2, 3, *SIZE, dtype=torch.float64)
    found, result = off(module, x, layer, pick=lambda y: y if y.dim() == 4 else y[None], verify=True)
    assert found <= 1e-9
    assert result.trf.exact
    assert result.trf.size_px == ((3, 3) if layer == "body" else (5, 5))


@pytest.mark.slow
def test_images_one_behind_the_other_are_tokens_of_a_grid():
    def forward(m, x):
        y = m.body(x)
        tokens = m.head(torch.cat([each.flatten(1).T for each in y])[None])
        return torch.stack([each.T.unflatten(1, SIZE) for each in tokens[0].split(SIZE[0] * SIZE[1])])

    torch.manual_seed(0)
    module = Does(forward, body=nn.Conv2d(3, 4, 3, padding=1), head=nn.Linear(4, 5)).double().eval()
    x = torch.randn(2, 3, *SIZE, dtype=torch.float64)
    for layer in ("head", "output"):
        found, result = off(
            module, x, layer, pick=lambda y: y if y.dim() == 4 else y[0].T.unflatten(1, SIZE)[None], verify=True
        )
        assert found <= 1e-9
        assert result.trf.size_px == (3, 3)


@pytest.mark.parametrize(
    "part", [nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(3, 4, 2, 2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)], ids=str
)
def test_an_operation_on_one_image_without_a_batch_is_the_one_on_a_batch(part):
    alone, batched = (
        erfscope.theoretical(Does(does), layer="output", unit=(2, 3), input_size=SIZE, in_chans=3)
        for does in (lambda m, x: torch.stack([part(each) for each in x]), lambda m, x: part(x))
    )
    assert alone == batched

"""A plan is run with what it was made of: an adapter in the way in which it is called and measured."""

import pytest
import torch
from torch import nn

import erfscope
from erfscope import ErfscopeError


class Returns(nn.Module):
    """Maps in a container, of an image and a number that scales it; in one to three axes."""

    def __init__(self, axes):
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1]
        self.body = nn.Sequential(conv(3, 4, 3, padding=1), norm(4), nn.ReLU(), conv(4, 5, 3, padding=1))

    def forward(self, x, scale=None):
        y = self.body(x)
        y = y if scale is None else y * scale.view(-1, *[1] * (y.dim() - 1))
        return {"maps": [y, 2 * y]}


def whole(module, x, **more):
    """The second map, in evaluation mode."""
    flags = module.training
    module.eval()
    with torch.no_grad():
        found = module(x[None], **more)["maps"]
    module.train(flags)
    return [each[0] for each in found]


@pytest.mark.parametrize(
    ("axes", "size", "side"), [(1, (40,), (90,)), (2, 32, (48, 56)), (3, (16, 16, 16), (20, 24, 22))]
)
@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_the_tiles_of_an_adapter_are_the_whole_output(axes, size, side, training):
    torch.manual_seed(0)
    module = Returns(axes).train(training)
    x = torch.randn(3, *side)
    examples = torch.zeros(1, 3, *((size,) * 2 if isinstance(size, int) else size))
    scale = torch.tensor([1.5])
    first, second = whole(module, x)
    first_scaled, _ = whole(module, x, scale=scale)
    with torch.no_grad():
        inner = module.body[0](x[None])[0]
    called = erfscope.wrap(module, forward=lambda m, images: m(images)["maps"][1], input_size=size, in_chans=3)
    plain = erfscope.wrap(module, input_size=size, in_chans=3)
    given = erfscope.wrap(module, inputs={"x": examples, "scale": scale})
    for adapter, layer, expected in (
        (called, None, second),
        (called, "body.0", inner),
        (plain, None, first),
        (plain, "output[maps][1]", second),
        (given, None, first_scaled),
    ):
        plan = erfscope.tile(adapter, 8, layer=layer)
        out = erfscope.run_tiled(adapter, x, plan, batch_size=3)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        assert module.training is training
        assert all(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.slow
def test_a_stage_of_a_timm_model_is_tiled_by_its_adapter():
    adapter = erfscope.adapters.load("resnet18", weights="random", input_size=64)
    x = torch.randn(3, 96, 96)
    out = erfscope.run_tiled(adapter, x, erfscope.tile(adapter, 32, layer="layer1"))
    net = adapter.module.eval()
    with torch.no_grad():
        expected = net.layer1(net.maxpool(net.act1(net.bn1(net.conv1(x[None])))))[0]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_another_module_than_the_plan_is_of_is_refused_with_what_to_run():
    module = Returns(2).eval()
    adapter = erfscope.wrap(module, forward=lambda m, x: m(x)["maps"][0], input_size=32)
    with pytest.raises(ErfscopeError, match=r"returned dict; run what the plan was made of, the adapter"):
        erfscope.run_tiled(module, torch.randn(3, 48, 48), erfscope.tile(adapter, 8))

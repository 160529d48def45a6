"""Every stage and block of four architectures takes a block, and every named block goes into each of them."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from one_line import one_line
from oracle import output_of

from erfscope import adapters
from erfscope.adapters.blocks import BLOCKS
from erfscope.adapters.insertion import insert, places

pytestmark = pytest.mark.slow

#: Small inputs, few channels and few of the blocks that repeat, so that all places are tried within seconds.
MODELS = {
    "resnet18": (64, {"channels": (16, 16, 32, 32)}),
    "convnext_tiny": (64, {"depths": (2, 2, 3, 2), "dims": (16, 16, 24, 32)}),
    "vit_tiny_patch16_224": (64, {"embed_dim": 48, "num_heads": 3}),
    "swin_tiny_patch4_window7_224": (112, {"depths": (2, 2, 2, 2), "embed_dim": 24}),
}
_BLOCK = re.compile(r"(layer\d|blocks|(stages|layers)\.\d\.blocks)\.\d+")
#: How many places each has.
COUNTS = {"resnet18": 13, "convnext_tiny": 13, "vit_tiny_patch16_224": 12, "swin_tiny_patch4_window7_224": 12}
#: One block after the other, so that each place is tried and each block goes into every model.
ROWS = [
    (model, number % count, list(BLOCKS)[number % len(BLOCKS)])
    for model, count in COUNTS.items()
    for number in range(max(count, len(BLOCKS)))
]


@cache
def host(model: str):
    """A model, its places, an image, and its map of that image."""
    side, few = MODELS[model]
    adapter = adapters.load(model, weights="random", input_size=(side, side), model_kwargs=few)
    x = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    wanted = [name for name in places(adapter) if name in adapter.stages or _BLOCK.fullmatch(name)]
    return adapter, wanted, x, output_of(adapter.module, x, adapter.default_layer).detach()


@pytest.mark.parametrize("model", MODELS)
def test_places_are_the_stages_and_blocks_and_come_with_a_refusal(model):
    adapter, wanted, *_ = host(model)
    assert len(wanted) == COUNTS[model]
    text = one_line(lambda: insert(adapter, "gcn", "nowhere"), "unknown insertion point 'nowhere'")
    assert adapter.stages[-1] in text


@pytest.mark.parametrize(("model", "number", "block"), ROWS)
def test_a_block_goes_in_changes_the_map_and_lets_gradients_through(model, number, block):
    adapter, wanted, x, before = host(model)
    leaf = x.clone().requires_grad_()
    found = output_of(insert(adapter, block, wanted[number]).module, leaf, adapter.default_layer)
    assert found.shape == before.shape
    assert not torch.equal(found.detach(), before)
    torch.manual_seed(0)
    (gradient,) = torch.autograd.grad((found * torch.randn_like(found)).sum(), leaf)
    assert torch.isfinite(gradient).all()
    assert gradient.any()
    assert torch.equal(output_of(adapter.module, x, adapter.default_layer), before)

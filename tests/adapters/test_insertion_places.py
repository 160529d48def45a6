"""Every stage and block of four architectures takes a block, and every named block goes into each of them."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch

from erfscope import ErfscopeError, adapters
from erfscope.adapters import ModuleAdapter
from erfscope.adapters.blocks import BLOCKS
from erfscope.adapters.insertion import insert, places

pytestmark = pytest.mark.slow

#: Small inputs, few channels and few of the blocks that repeat, so that all places are tried within seconds.
MODELS = {
    "resnet18": (64, {"channels": (16, 16, 32, 32)}),
    "convnext_tiny": (64, {"depths": (2, 2, 3, 2), "dims": (16, 16, 24, 32)}),
    "vit_tiny_patch16_224": (64, {"embed_dim": 48, "num_heads": 3}),
    "swin_tiny_patch4_window7_224": (112, {"depths": (2, 2, 4, 2), "embed_dim": 24}),
}
_BLOCK = re.compile(r"(layer\d|blocks|(stages|layers)\.\d\.blocks)\.\d+")


@cache
def host(model: str) -> ModuleAdapter:
    side, few = MODELS[model]
    return adapters.load(model, weights="random", input_size=(side, side), model_kwargs=few)


@cache
def wanted(model: str) -> list[str]:
    return [name for name in places(host(model)) if name in host(model).stages or _BLOCK.fullmatch(name)]


#: How many places each has.
COUNTS = {"resnet18": 13, "convnext_tiny": 13, "vit_tiny_patch16_224": 12, "swin_tiny_patch4_window7_224": 14}
#: One block after the other, so that each place is tried and each block goes into every model.
ROWS = [
    (model, number % count, list(BLOCKS)[number % len(BLOCKS)])
    for model, count in COUNTS.items()
    for number in range(max(count, len(BLOCKS)))
]


def test_places_are_the_stages_and_blocks():
    assert {model: len(wanted(model)) for model in MODELS} == COUNTS


@pytest.mark.parametrize(("model", "number", "block"), ROWS)
def test_a_block_goes_in_changes_the_map_and_lets_gradients_through(model, number, block):
    adapter, place = host(model), wanted(model)[number]
    size = adapter.preprocess.size
    x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    before = adapter.features(x, adapter.site(adapter.default_layer)).map
    new = insert(adapter, block, place)
    leaf = x.clone().requires_grad_()
    features = new.features(leaf, new.site(adapter.default_layer)).map
    assert features.shape == before.shape
    assert not torch.equal(features.detach(), before)
    torch.manual_seed(0)
    (gradient,) = torch.autograd.grad((features * torch.randn_like(features)).sum(), leaf)
    assert torch.isfinite(gradient).all()
    assert gradient.any()
    assert torch.equal(adapter.features(x, adapter.site(adapter.default_layer)).map, before)


@pytest.mark.parametrize("model", MODELS)
def test_a_list_of_places_comes_with_a_refusal(model):
    with pytest.raises(ErfscopeError, match="unknown insertion point 'nowhere'") as error:
        insert(host(model), "gcn", "nowhere")
    assert host(model).stages[-1] in str(error.value)

"""Blocks inserted into models: a new model around the host's weights, at places that hold a map."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
from loaded import adapter_of
from nets import Does, conv
from one_line import one_line
from torch import Tensor, nn

import erfscope
from erfscope.adapters.insertion import Insertion, insert, parse, places
from erfscope.core import Request
from erfscope.core.run.blocks import with_blocks
from erfscope.core.run.models import load_model
from erfscope.core.values.layout import Layout

pytestmark = pytest.mark.usefixtures("memory_unplanned")
QUICK = {"samples": 2, "measures": "r50"}


class Blend(nn.Module):
    """x + the mean of all positions: every cell sees every other."""

    def __init__(self, channels: int = 1, strength: float = 1.0) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 1, bias=False)
        self.strength = strength

    def forward(self, x: Tensor) -> Tensor:
        return x + self.strength * self.mix(x).mean((-2, -1), keepdim=True)


class Image(Blend):
    """Its name is that of the reference."""


class Closed(nn.Module):
    """x + a branch whose last norm starts at zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.conv(x))


def net():
    torch.manual_seed(0)
    return nn.Sequential(conv(3, 8), nn.Tanh(), nn.Sequential(conv(8, 8, s=2), nn.Tanh()), conv(8, 4))


@pytest.fixture(scope="module")
def resnet():
    return adapter_of("test_resnet", input_size=64)


def test_the_new_model_is_the_host_with_the_block_after_the_place_and_the_host_is_untouched():
    host, block, x = net(), Blend(8), torch.randn(2, 3, 16, 16)
    before, keys = host(x), list(host.state_dict())
    inserted = insert(host, block, "1", input_size=(16, 16))
    torch.testing.assert_close(inserted(x), host[3](host[2](block(host[1](host[0](x))))), rtol=0, atol=0)
    assert torch.equal(host(x), before)
    assert list(host.state_dict()) == keys
    assert not any(module._forward_hooks for module in host.modules())
    assert inserted[0].weight is host[0].weight
    assert set(keys) < set(inserted.state_dict())
    # The block is saved and trained with the model, and copies have one of their own.
    inserted(x).sum().backward()
    (name,) = [name for name, _ in inserted.named_parameters() if name.endswith("block.mix.weight")]
    assert inserted.get_parameter(name).grad is not None
    other = copy.deepcopy(inserted)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert inserted(x).any()
    assert not other(x).any()


@pytest.mark.slow
def test_the_field_becomes_global_and_the_local_one_stays(resnet):
    inserted = insert(resnet, Blend, resnet.stages[1])
    host, new = erfscope.theoretical(resnet), erfscope.theoretical(inserted)
    assert (host.is_global, new.is_global) == (False, True)
    assert new.local_size_px == host.local_size_px
    names = [row.name for row in erfscope.layers(resnet, insert=(Blend, resnet.stages[1])).rows]
    assert names.index("blend") < names.index(resnet.stages[1])


@pytest.mark.slow
def test_tokens_are_folded_and_prefix_tokens_pass_by():
    vit = adapter_of("test_vit", input_size=64)
    place = places(vit)[vit.stages[0]]
    assert place.layout.grid == place.space
    block = Blend(place.channels)
    insertion = Insertion(block, place.layout, place.space)
    prefix, count = place.layout.prefix, place.space[0] * place.space[1]
    tokens = torch.randn(2, prefix + count, place.channels)
    out = insertion(tokens)
    assert torch.equal(out[:, :prefix], tokens[:, :prefix])
    plane = tokens[:, prefix:].transpose(1, 2).reshape(2, place.channels, *place.space)
    torch.testing.assert_close(out[:, prefix:], block(plane).flatten(2).transpose(1, 2))
    one_line(lambda: insertion(tokens[:, :-1]), "insert it again for this input size")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["test_resnet", "test_vit", "test_convnext"])
def test_alpha_zero_leaves_the_map_of_the_host_bit_equal(model):
    adapter = adapter_of(model, input_size=64)
    for plain in (False, True):
        host, zero = erfscope.sweep(adapter, insert=(Blend, list(places(adapter))[-3]), alpha=0, plain=plain, **QUICK)
        assert zero.alpha == 0
        assert np.array_equal(zero.map.values, host.map.values)


def test_alpha_blends_the_block_in_whatever_works_in_place():
    insertion = Insertion(Blend(3, strength=2.0), Layout(), (5, 5), alpha=0.25).double()
    x = torch.randn(1, 3, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(insertion(x), 0.75 * x + 0.25 * insertion.block(x))
    half = Insertion(Does(lambda m, x: torch.relu_(x.mul_(2))), Layout(), (5, 5), alpha=0.5)
    torch.testing.assert_close(half(x.clone()), x + 0.5 * (torch.relu(2 * x) - x))


@pytest.mark.slow
def test_a_block_that_is_closed_at_its_start_is_switched_on_and_that_is_said(resnet):
    place, opened = resnet.stages[1], resnet.weights.reactivated
    result = erfscope.analyze(resnet, insert=(Closed, place), **QUICK)
    said = [finding.text for finding in result.findings if finding.code == "identity"]
    assert any("starts without effect; re-initialised" in text for text in said)
    assert result.weights.reactivated == opened + 1
    # A given module is used as it is, in the mode in which it is.
    block = Closed(places(resnet)[place].channels).train()
    assert any("changes nothing" in remark.text for remark in insert(resnet, block, place).remarks)
    options = {"weights": "random-raw", "input_size": 64, **QUICK}
    raw = erfscope.analyze("test_resnet", insert=(Closed, "stages[1]"), **options)
    assert any("changes nothing" in finding.text for finding in raw.findings)
    assert not block.norm.weight.any()
    assert block.training


@pytest.mark.slow
def test_rows_come_in_pairs_and_the_block_adds_to_its_host():
    resnet = adapter_of("test_resnet")
    report = erfscope.sweep(resnet, insert=(Blend, "stages[2]"), alpha=[0, 1], samples=2)
    host, _, one = report
    assert [row.host for row in report] == [None, host.id, host.id]
    assert [row.alpha for row in report] == [None, 0.0, 1.0]
    assert (host.insert, one.insert) == (None, "blend@stages[2]")
    none, at_zero, at_one = report.differences()
    assert none == {}
    assert all(change == 0 for change, _ in at_zero.values())
    assert at_one["far_mass"][0] > 0
    assert one.cost.parameters == host.cost.parameters + places(resnet)[resnet.stages[2]].channels ** 2
    assert one.cost.gmacs > host.cost.gmacs


@pytest.mark.slow
def test_the_input_of_a_block_is_the_place_of_its_host(resnet):
    options = {"insert": (Blend, "stages[1]"), **QUICK}
    report = erfscope.sweep(resnet, wrt="image,blend:in", dtype="float64", **options)
    assert [row.wrt for row in report] == ["image", "image", resnet.stages[1], "blend:in"]
    ids = [row.id for row in report]
    assert len(set(ids)) == 4
    assert [row.host for row in report] == [None, ids[0], None, ids[2]]
    assert report[2].map.values.shape == report[3].map.values.shape
    assert report.compared_with(report[3]) is report[2]
    (part,) = erfscope.sweep(resnet, wrt="blend", **options)
    assert part.host is None
    assert part.insert is not None


@pytest.mark.slow
def test_several_blocks_go_in_at_once_and_one_after_the_other(resnet):
    first, second = resnet.stages[1], resnet.stages[2]
    wanted = [(Blend, first), (Closed, first), (Blend, second)]
    result = erfscope.analyze(resnet, insert=wanted, **QUICK)
    assert result.insert == f"blend@{first}, closed@{first}, blend@{second}"
    adapter = resnet
    for block, at in wanted:
        adapter = insert(adapter, block, at)
    assert adapter.inserted == {"blend": first, "closed": first, "blend_2": second}
    named = insert(resnet, Image, "stages[1]")
    assert list(named.inserted) == ["image_2"]
    assert erfscope.theoretical(named).reference_px == (64, 64)


@pytest.mark.slow
def test_compare_shows_every_model_with_and_without_the_block():
    models = ["test_resnet", "test_convnext"]
    report = erfscope.compare(models, weights="random", insert=(Blend, "stages[1]"), input_size=96, **QUICK)
    assert [row.label for row in report] == [f"{name}{more}" for name in models for more in ("", " + blend")]
    assert report.compared_with(report[3]) is report[2]
    assert report.compared_with(report[2]) is report[0]


def test_a_clip_goes_through_a_block_for_clips():
    host = nn.Sequential(nn.Conv3d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv3d(4, 4, 3, padding=1))
    adapter = erfscope.wrap(host, input_size=(4, 12, 12))
    inserted = insert(adapter, Does(lambda m, x: x + x.mean(2, keepdim=True)), "1")
    assert places(adapter)["1"].space == (4, 12, 12)
    trf, own = (erfscope.theoretical(each, layer="2") for each in (inserted, adapter))
    assert trf.size_px[1:] == own.size_px[1:] == (5, 5)
    assert trf.size_px[0] == 4


def wrapped(forward, **parts):
    return erfscope.wrap(Does(forward, **parts), input_size=(8, 8))


def twice():
    return wrapped(lambda m, x: m.part(m.part(x)), part=nn.Sequential(conv(3, 3), nn.Tanh()))


def pair():
    return wrapped(lambda m, x: m.pair(m.conv(x))[0], conv=conv(3, 3), pair=Does(lambda m, x: [x, x]))


def first_pass_alone():
    """Runs alone, as it is tried, and not again."""
    passes = []

    def once(_, x):
        passes.append(x)
        if len(passes) > 1:
            raise ValueError("enough")
        return x + 1

    return Does(once)


@pytest.mark.parametrize(
    ("block", "at", "words"),
    [
        (Blend, "layer9", "unknown insertion point 'layer9'"),
        (Blend, "stages[9]", "there is no stages"),
        (Blend, "global_pool", "no block can be inserted at 'global_pool'"),
        (lambda channels: nn.Conv2d(channels, channels + 1, 1), "stages[1]", "must keep the shape"),
        (lambda channels: nn.Conv2d(channels, channels, 2), "stages[1]", "must keep the shape"),
        (lambda channels: nn.Conv2d(channels + 1, channels, 1), "stages[1]", "fails on a map of"),
        (lambda channels: channels, "stages[1]", "a block is an nn.Module"),
        (Blend(3), None, "name the place of the block"),
        (first_pass_alone(), "layer1", r"with does at 'layer1' the model does not run: .*enough"),
    ],
)
def test_what_cannot_be_inserted_is_refused_in_one_line(resnet, block, at, words):
    one_line(lambda: insert(resnet, block, at), words)


def test_other_refusals_of_blocks_are_one_line(resnet):
    for at in ("part", "part.0"):
        one_line(lambda at=at: insert(twice(), Blend(3), at), "runs 2 times per forward pass")
    one_line(lambda: insert(pair(), Blend(3), "pair"), "returns a container of tensors; choose one of: conv")
    for text in ("nonlocal", "@layer2", "nonlocal@", "nonlocal@layer2:", "nonlocal@layer2:heads", "nonlocal@a:1=2"):
        one_line(lambda text=text: parse(text), "cannot read")
    one_line(lambda: erfscope.analyze(resnet, alpha=0.5), "none is inserted")
    for alpha in (float("nan"), "much", []):
        one_line(lambda alpha=alpha: insert(resnet, Blend, "stages[1]", alpha=alpha), "alpha")
    # Also options whose names are those of erfscope's own functions.
    for name in ("seed", "alpha", "at", "wake", "in_channels", "input_size"):
        call = lambda name=name: erfscope.analyze(resnet, samples=1, insert=f"gcn@layer3:{name}=3")  # noqa: E731
        one_line(call, f"unknown option '{name}' in block gcn")


@pytest.mark.parametrize(
    ("text", "block", "at", "options"),
    [
        ("nonlocal@layer2", "nonlocal", "layer2", {}),
        ("nonlocal@layer2:heads=4,mode=dot_product", "nonlocal", "layer2", {"heads": 4, "mode": "dot_product"}),
        ("gcn@stages.1:links=((0, 1), (2, 3)),k=3", "gcn", "stages.1", {"links": ((0, 1), (2, 3)), "k": 3}),
        ("my.blocks:Mix@layer3:scale=0.5,file=a/b", "my.blocks:Mix", "layer3", {"scale": 0.5, "file": "a/b"}),
        ("gc@stages[1]:a=false,b=No,c=none", "gc", "stages[1]", {"a": False, "b": False, "c": None}),
    ],
)
def test_the_words_of_the_command_line_are_read(text, block, at, options):
    wish = parse(text)
    assert (wish.block, wish.at, dict(wish.options)) == (block, at, options)


MIX = """
from torch import nn

class Mix(nn.Module):
    def __init__(self, channels, strength=1.0):
        super().__init__()
        self.strength = strength

    def forward(self, x):
        return x + self.strength * x.mean((2, 3), keepdim=True)
"""


@pytest.mark.slow
def test_the_command_shows_host_and_block(tmp_path, command):
    (tmp_path / "mine.py").write_text(MIX)
    options = ("analyze", "test_resnet", "--weights", "random", "--samples", "2", "--input-size", "64", "--insert")
    args = (*options, f"{tmp_path}/mine.py:Mix@stages[2]:strength=4")
    code, out, err = command(*args, "--json")
    assert code == 0, err
    host, row = json.loads(out)["results"]
    assert row["host"] == row["differences"]["to"] == host["id"]
    assert row["insert"].endswith("mine.py:Mix@stages[2]:strength=4")
    assert row["trf"]["global"]
    code, out, err = command(*args, "--format", "plain", "--alpha", "0,1")
    assert (code, "Δ vs host" in out) == (0, True), err
    code, out, err = command(*options, "gcm@stages[2]")
    assert (code, "gcn" in err, "Traceback" in err) == (2, True, False)


@pytest.mark.slow
def test_links_to_the_opposite_leave_the_unit_where_it_is():
    for size, unit in ((96, (1, 1)), (160, (0, 1))):
        adapter = adapter_of("test_resnet", input_size=size)
        host, mirrored = (
            erfscope.theoretical(adapter, insert=i, unit=unit) for i in (None, "gcn@layer3:links=opposite")
        )
        assert mirrored.center_px == host.center_px
        assert mirrored.center_inexact_reason == host.center_inexact_reason
        assert mirrored.exact
        assert mirrored.size_px[0] > host.size_px[0]


def test_roots_that_run_their_children_do_not_run_the_block_twice():
    def chain(m, x):
        for part in m.children():
            x = part(x)
        return x

    host, block, x = Does(chain, a=conv(3, 3), b=conv(3, 3)), Blend(3), torch.randn(1, 3, 8, 8)
    inserted = insert(host, block, "a", input_size=8)
    torch.testing.assert_close(inserted(x), host.b(block(host.a(x))), rtol=0, atol=0)
    assert any(name.endswith("blend") for name, _ in inserted.named_modules())


@pytest.mark.slow
def test_features_only_models_take_blocks():
    host = timm.create_model("test_resnet", features_only=True).eval()
    x = torch.randn(1, 3, 64, 64)
    inserted = insert(host, Blend(192), "layer3", input_size=64)
    before, after = host(x), inserted(x)
    torch.testing.assert_close(after[-1], host["layer4"](after[-2]))
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[-2], after[-2])


@pytest.mark.slow
def test_hooks_of_the_host_see_the_map_with_the_block():
    host, seen = net(), []
    host[1].register_forward_hook(lambda _m, _args, output: seen.append(output))
    inserted = insert(insert(host, Blend(8), "1", input_size=(16, 16)), Closed(8), "1", input_size=(16, 16))
    x = torch.randn(1, 3, 16, 16)
    seen.clear()
    inserted(x)
    first, second = [module for module in inserted.modules() if isinstance(module, Insertion)]
    torch.testing.assert_close(seen[0], second(first(host[1](host[0](x)))))


@pytest.mark.slow
def test_measuring_in_another_dtype_leaves_the_host_alone(resnet):
    adapter = insert(resnet, Blend, "stages[1]")
    assert erfscope.analyze(adapter, dtype="float64", samples=1, measures="r50").dtype == "float64"
    assert {parameter.dtype for parameter in resnet.module.parameters()} == {torch.float32}


@pytest.mark.slow
def test_two_blocks_of_one_kind_have_weights_of_their_own():
    request = Request.parse({"insert": ["gcn@layer3", "gcn@layer3"]})
    loaded = load_model("test_resnet", request, size=(64, 64), weights="random")
    (variant,) = with_blocks(loaded, request)
    named = [(n, p) for n, p in variant.adapter.module.named_parameters() if p.dim() > 1]
    first, second = (next(p for n, p in named if n.startswith(f"{name}.")) for name in ("gcn", "gcn_2"))
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_waking_a_block_is_seeded_and_leaves_the_callers_numbers_alone(resnet):
    def zero_conv(channels: int) -> nn.Module:
        part = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(part.weight)
        nn.init.zeros_(part.bias)
        return Does(lambda m, x: x + m.conv(x), conv=part)

    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        found.append(insert(resnet, zero_conv, "stages[1]").weights.sha256)
        assert torch.equal(torch.get_rng_state(), state)
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_block_that_fails_later_is_a_row_and_one_that_takes_one_image_is_measured_so(resnet):
    fussy = Does(lambda m, x: x[:, :, 1:] if type(x) is Tensor and x.grad_fn is not None else x)
    single = Does(lambda m, x: x * 2 if len(x) == 1 else x[:, :, 1:])
    options = {"samples": 4, "batch_size": 4, "plain": True, "measures": "r50"}
    report, other = (erfscope.sweep(resnet, insert=[(block, "stages[1]")], **options) for block in (fussy, single))
    assert [row.status for row in report] == ["ok", "error"]
    assert "must keep the shape" in report[1].error
    assert [row.status for row in other] == ["ok", "ok"]
    assert "one_by_one" in [finding.code for finding in other[1].findings]


@pytest.mark.slow
def test_in_place_operations_behind_a_block_are_no_problem():
    block = nn.Sequential(nn.Conv2d(64, 64, 1), nn.ReLU())
    adapter = adapter_of("resnet18", input_size=64)
    assert erfscope.analyze(adapter, samples=1, insert=[(block, "bn1")], measures="r50").ok


@pytest.mark.slow
def test_submodules_can_be_reached_right_after_the_import():
    code = "import erfscope as e; print(type(e.adapters.blocks.NonLocal(8)).__name__, e.adapters.load.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["NonLocal", "load"], done.stderr

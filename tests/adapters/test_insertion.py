"""Blocks inserted into models: a new model around the host's weights, at places that hold a map."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import erfscope
from erfscope import ErfscopeError, adapters
from erfscope.adapters.insertion import Insertion, insert, parse, places
from erfscope.cli.main import main
from erfscope.core.values.layout import Layout

pytestmark = pytest.mark.usefixtures("memory_unplanned")


class Blend(nn.Module):
    """x + the mean of all positions: every cell sees every other."""

    def __init__(self, channels: int = 1, strength: float = 1.0) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 1, bias=False)
        self.strength = strength

    def forward(self, x: Tensor) -> Tensor:
        return x + self.strength * self.mix(x).mean((-2, -1), keepdim=True)


class Closed(nn.Module):
    """x + a branch whose last norm starts at zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.conv(x))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Tanh(),
        nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Tanh()),
        nn.Conv2d(8, 4, 3, padding=1),
    )


@pytest.fixture(scope="module")
def resnet():
    return adapters.load("test_resnet", weights="random", input_size=(64, 64))


@pytest.fixture(scope="module")
def vit():
    return adapters.load("test_vit", weights="random")


def test_the_new_model_is_the_host_with_the_block_after_the_place():
    host = net()
    block = Blend(8)
    x = torch.randn(2, 3, 16, 16)
    inserted = insert(host, block, "1", input_size=(16, 16))
    torch.testing.assert_close(inserted(x), host[3](host[2](block(host[1](host[0](x))))), rtol=0, atol=0)


def test_the_host_is_untouched_and_shares_its_weights():
    host = net()
    x = torch.randn(1, 3, 16, 16)
    before, keys = host(x), list(host.state_dict())
    inserted = insert(host, Blend(8), "2", input_size=(16, 16))
    assert torch.equal(host(x), before)
    assert list(host.state_dict()) == keys
    assert not any(module._forward_hooks for module in host.modules())
    assert inserted[0].weight is host[0].weight
    assert set(keys) < set(inserted.state_dict())


def test_the_block_is_saved_and_trained_with_the_model():
    inserted = insert(net(), Blend(8), "2", input_size=(16, 16))
    inserted(torch.randn(1, 3, 16, 16)).sum().backward()
    names = [name for name, parameter in inserted.named_parameters() if name.endswith("block.mix.weight")]
    assert len(names) == 1
    assert inserted.get_parameter(names[0]).grad is not None


def test_copies_have_a_block_of_their_own():
    inserted = insert(net(), Blend(8), "2", input_size=(16, 16))
    other = copy.deepcopy(inserted)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    x = torch.randn(1, 3, 16, 16)
    assert inserted(x).any()
    assert not other(x).any()


@pytest.mark.slow
def test_the_field_becomes_global_and_the_local_one_stays(resnet):
    inserted = insert(resnet, Blend, "layer2" if "layer2" in resnet.layer_names else resnet.stages[-2])
    host, new = erfscope.theoretical(resnet), erfscope.theoretical(inserted)
    assert not host.is_global
    assert new.is_global
    assert new.local_size_px == host.local_size_px
    names = [row.name for row in erfscope.layers("test_resnet", insert=(Blend, resnet.stages[1])).rows]
    assert names.index("blend") < names.index(resnet.stages[1])


@pytest.mark.slow
def test_tokens_are_folded_and_prefix_tokens_pass_by(vit):
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
    with pytest.raises(ErfscopeError, match="insert it again for this input size"):
        insertion(tokens[:, :-1])


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("model", ["test_resnet", "test_vit", "test_convnext"])
def test_alpha_zero_leaves_the_map_of_the_host_bit_equal(model, plain):
    options = {"weights": "random", "samples": 2, "measures": "r50", "plain": plain}
    host = erfscope.analyze(model, **options)
    place = list(places(adapters.load(model, weights="random")))[-3]
    zero = erfscope.analyze(model, insert=(Blend, place), alpha=0, **options)
    assert zero.alpha == 0
    assert np.array_equal(zero.map.values, host.map.values)


def test_alpha_blends_the_block_in():
    insertion = Insertion(Blend(3, strength=2.0), Layout(), (5, 5), alpha=0.25)
    x = torch.randn(1, 3, 5, 5, dtype=torch.float64)
    insertion.double()
    torch.testing.assert_close(insertion(x), 0.75 * x + 0.25 * insertion.block(x))


@pytest.mark.slow
def test_a_block_that_is_closed_at_its_start_is_switched_on_and_that_is_said(resnet):
    result = erfscope.analyze(
        "test_resnet", weights="random", input_size=64, insert=(Closed, resnet.stages[1]), samples=2
    )
    said = [finding.text for finding in result.findings if finding.code == "identity"]
    assert any("starts without effect; re-initialised" in text for text in said)
    assert result.weights.reactivated == adapters.load("test_resnet", weights="random").weights.reactivated + 1


@pytest.mark.slow
def test_a_given_module_is_used_as_it_is(resnet):
    place = resnet.stages[1]
    block = Closed(places(resnet)[place].channels)
    inserted = insert(resnet, block, place)
    assert not block.norm.weight.any()
    assert any("changes nothing" in remark.text for remark in inserted.remarks)


@pytest.mark.slow
def test_random_raw_weights_leave_a_closed_block_closed():
    result = erfscope.analyze("test_resnet", weights="random-raw", insert=(Closed, "stages[1]"), samples=2)
    assert any("changes nothing" in finding.text for finding in result.findings)


@pytest.mark.slow
def test_rows_come_in_pairs_and_the_block_adds_to_its_host(resnet):
    report = erfscope.sweep("test_resnet", weights="random", insert=(Blend, "stages[2]"), alpha=[0, 1], samples=4)
    host, _, one = report
    assert [row.host for row in report] == [None, host.id, host.id]
    assert [row.alpha for row in report] == [None, 0.0, 1.0]
    assert host.insert is None
    assert one.insert == "blend@stages[2]"
    none, at_zero, at_one = report.differences()
    assert none == {}
    assert all(change == 0 for change, _ in at_zero.values())
    assert at_one["far_mass"][0] > 0
    assert one.cost.parameters == host.cost.parameters + places(resnet)[resnet.stages[2]].channels ** 2
    assert one.cost.gmacs > host.cost.gmacs


@pytest.mark.slow
def test_the_input_of_a_block_is_the_place_of_its_host():
    report = erfscope.sweep(
        "test_resnet", weights="random", insert=(Blend, "stages[1]"), wrt="image,blend:in", samples=2, dtype="float64"
    )
    assert [row.wrt for row in report] == [
        "image",
        "image",
        adapters.load("test_resnet", weights="random").stages[1],
        "blend:in",
    ]
    ids = [row.id for row in report]
    assert len(set(ids)) == 4
    assert [row.host for row in report] == [None, ids[0], None, ids[2]]
    assert report[2].map.values.shape == report[3].map.values.shape
    assert report.compared_with(report[3]) is report[2]
    (part,) = erfscope.sweep("test_resnet", weights="random", insert=(Blend, "stages[1]"), wrt="blend", samples=2)
    assert part.host is None
    assert part.insert is not None


@pytest.mark.slow
def test_several_blocks_go_in_at_once_and_one_after_the_other(resnet):
    first, second = resnet.stages[1], resnet.stages[2]
    wanted = [(Blend, first), (Closed, first), (Blend, second)]
    result = erfscope.analyze("test_resnet", weights="random", insert=wanted, samples=2)
    assert result.insert == f"blend@{first}, closed@{first}, blend@{second}"
    adapter = resnet
    for block, at in wanted:
        adapter = insert(adapter, block, at)
    assert adapter.inserted == {"blend": first, "closed": first, "blend_2": second}


@pytest.mark.slow
def test_compare_shows_every_model_with_and_without_the_block():
    report = erfscope.compare(
        ["test_resnet", "test_convnext"], weights="random", insert=(Blend, "stages[1]"), samples=2, input_size=96
    )
    assert [row.label for row in report] == [
        "test_resnet",
        "test_resnet + blend",
        "test_convnext",
        "test_convnext + blend",
    ]
    assert report.compared_with(report[3]) is report[2]
    assert report.compared_with(report[2]) is report[0]


def test_a_clip_goes_through_a_block_for_clips():
    class Frames(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.mean(2, keepdim=True)

    host = nn.Sequential(nn.Conv3d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv3d(4, 4, 3, padding=1))
    adapter = erfscope.wrap(host, input_size=(4, 12, 12))
    inserted = insert(adapter, Frames(), "1")
    assert places(adapter)["1"].space == (4, 12, 12)
    trf, host_trf = (
        erfscope.theoretical(inserted, layer="2"),
        erfscope.theoretical(host, layer="2", input_size=(4, 12, 12)),
    )
    assert trf.size_px[1:] == host_trf.size_px[1:] == (5, 5)
    assert trf.size_px[0] == 4


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
    ],
)
def test_what_cannot_be_inserted_is_refused_in_one_line(resnet, block, at, words):
    with pytest.raises(ErfscopeError, match=words) as error:
        insert(resnet, block, at)
    assert "\n" not in str(error.value)


def test_a_place_inside_a_repeated_module_is_refused():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.part(self.part(x))

    adapter = erfscope.wrap(Twice(), input_size=(8, 8))
    for at in ("part", "part.0"):
        with pytest.raises(ErfscopeError, match="runs 2 times per forward pass"):
            insert(adapter, Blend(3), at)


def test_a_module_that_returns_several_tensors_is_no_place():
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [x, x]

    class Host(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pair = nn.Conv2d(3, 3, 3, padding=1), Pair()

        def forward(self, x: Tensor) -> Tensor:
            return self.pair(self.conv(x))[0]

    with pytest.raises(ErfscopeError, match="returns a container of tensors; choose one of: conv"):
        insert(erfscope.wrap(Host(), input_size=(8, 8)), Blend(3), "pair")


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


@pytest.mark.parametrize(
    "text", ["nonlocal", "@layer2", "nonlocal@", "nonlocal@layer2:", "nonlocal@layer2:heads", "nonlocal@layer2:1=2"]
)
def test_other_words_are_refused(text):
    with pytest.raises(ErfscopeError, match="cannot read"):
        parse(text)


def test_an_alpha_without_a_block_or_that_is_no_number_is_refused(resnet):
    with pytest.raises(ErfscopeError, match="none is inserted"):
        erfscope.analyze("test_resnet", weights="random", alpha=0.5)
    for alpha in (float("nan"), "much", []):
        with pytest.raises(ErfscopeError, match="alpha"):
            insert(resnet, Blend, "stages[1]", alpha=alpha)


@pytest.mark.slow
def test_the_command_shows_host_and_block(tmp_path, capsys):
    def run_cli(arguments: list[str]) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        found = capsys.readouterr()
        return stop.value.code, found.out, found.err

    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\nclass Mix(nn.Module):\n    def __init__(self, channels, strength=1.0):\n       "
        " super().__init__()\n        self.strength = strength\n\n    def forward(self, x):\n        return x +"
        " self.strength * x.mean((2, 3), keepdim=True)\n"
    )
    args = [
        "analyze",
        "test_resnet",
        "--weights",
        "random",
        "--samples",
        "2",
        "--insert",
        f"{tmp_path}/mine.py:Mix@stages[2]:strength=4",
    ]
    code, out, err = run_cli([*args, "--json"])
    assert code == 0, err
    host, row = json.loads(out)["results"]
    assert row["host"] == host["id"]
    assert row["insert"].endswith("mine.py:Mix@stages[2]:strength=4")
    assert row["differences"]["to"] == host["id"]
    assert row["trf"]["global"]
    code, out, err = run_cli([*args, "--format", "plain", "--alpha", "0,1"])
    assert code == 0, err
    assert "Δ vs host" in out
    code, out, err = run_cli(["analyze", "test_resnet", "--weights", "random", "--insert", "gcm@stages[2]"])
    assert code == 2
    assert "gcn" in err
    assert "Traceback" not in err


class Image(Blend):
    """Its name is that of the reference."""


@pytest.mark.slow
def test_a_block_named_like_a_reference_gets_another_name(resnet):
    adapter = insert(resnet, Image, "stages[1]")
    assert list(adapter.inserted) == ["image_2"]
    assert erfscope.theoretical(adapter).reference_px == (64, 64)


@pytest.mark.slow
def test_links_to_the_opposite_leave_the_unit_where_it_is():
    for size, unit in ((96, (1, 1)), (160, (0, 1))):
        options = {"input_size": size, "unit": unit}
        host, mirrored = (
            erfscope.theoretical("test_resnet", insert=i, **options) for i in (None, "gcn@layer3:links=opposite")
        )
        assert mirrored.center_px == host.center_px
        assert mirrored.center_inexact_reason == host.center_inexact_reason
        assert mirrored.exact
        assert mirrored.size_px[0] > host.size_px[0]


def test_roots_that_run_their_children_do_not_run_the_block_twice():
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            for part in self.children():
                x = part(x)
            return x

    host, block, x = Chain(), Blend(3), torch.randn(1, 3, 8, 8)
    inserted = insert(host, block, "a", input_size=8)
    torch.testing.assert_close(inserted(x), host.b(block(host.a(x))), rtol=0, atol=0)
    assert any(name.endswith("blend") for name, _ in inserted.named_modules())


@pytest.mark.slow
def test_features_only_models_take_blocks():
    timm = pytest.importorskip("timm")
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
    assert erfscope.analyze(adapter, dtype="float64", samples=1).dtype == "float64"
    assert {parameter.dtype for parameter in resnet.module.parameters()} == {torch.float32}


@pytest.mark.slow
def test_two_blocks_of_one_kind_have_weights_of_their_own():
    from erfscope.core import Request
    from erfscope.core.run.blocks import with_blocks
    from erfscope.core.run.models import load_model

    request = Request.parse({"insert": ["gcn@layer3", "gcn@layer3"]})
    loaded = load_model("test_resnet", request, size=(64, 64), weights="random")
    (variant,) = with_blocks(loaded, request)
    weights = [
        next(p for n, p in variant.adapter.module.named_parameters() if n.startswith(f"{name}.") and p.dim() > 1)
        for name in ("gcn", "gcn_2")
    ]
    first, second = weights
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_waking_a_block_is_seeded_and_leaves_the_callers_numbers_alone(resnet):
    class ZeroConv(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(channels, channels, 1)
            nn.init.zeros_(self.conv.weight)
            nn.init.zeros_(self.conv.bias)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.conv(x)

    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        found.append(insert(resnet, ZeroConv, "stages[1]").weights.sha256)
        assert torch.equal(torch.get_rng_state(), state)
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_given_block_keeps_its_mode(resnet):
    block = Closed(places(resnet)[resnet.stages[1]].channels).train()
    insert(resnet, block, "stages[1]")
    assert block.training


@pytest.mark.slow
@pytest.mark.parametrize("option", ["seed", "alpha", "at", "wake", "in_channels", "input_size"])
def test_options_that_no_block_has_are_refused_whatever_their_name(option):
    with pytest.raises(ErfscopeError, match=f"unknown option '{option}' in block gcn"):
        erfscope.analyze("test_resnet", weights="random", samples=1, insert=f"gcn@layer3:{option}=3")


@pytest.mark.slow
def test_a_block_that_fails_later_is_a_row():
    class Fussy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :, 1:] if type(x) is Tensor and x.grad_fn is not None else x

    report = erfscope.sweep(
        "test_resnet", weights="random", samples=4, batch_size=4, insert=[(Fussy(), "stages[1]")], plain=True
    )
    assert [row.status for row in report] == ["ok", "error"]
    assert "must keep the shape" in report[1].error


@pytest.mark.slow
def test_a_block_that_fails_inside_the_model_is_told_why():
    class Once(nn.Module):
        """Runs alone, as it is tried, and not again."""

        def __init__(self):
            super().__init__()
            self.passes = 0

        def forward(self, x):
            self.passes += 1
            if self.passes > 1:
                raise ValueError("enough")
            return x + 1

    with pytest.raises(ErfscopeError, match=r"with once at 'layer1' the model does not run: .*enough"):
        insert(adapters.load("resnet18", weights="random"), Once(), at="layer1")


@pytest.mark.slow
def test_a_block_that_takes_one_image_is_measured_so_and_that_is_said():
    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if len(x) == 1 else x[:, :, 1:]

    report = erfscope.sweep(
        "test_resnet", weights="random", samples=4, batch_size=4, insert=[(Single(), "stages[1]")], plain=True
    )
    assert [row.status for row in report] == ["ok", "ok"]
    assert "one_by_one" in [finding.code for finding in report[1].findings]


@pytest.mark.slow
def test_in_place_operations_around_a_block_are_no_problem(resnet):
    class Greedy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu_(x.mul_(2))

    x = torch.randn(1, 3, 5, 5)
    half = Insertion(Greedy(), Layout(), (5, 5), alpha=0.5)
    torch.testing.assert_close(half(x.clone()), x + 0.5 * (torch.relu(2 * x) - x))
    result = erfscope.analyze(
        "resnet18",
        weights="random",
        input_size=64,
        samples=1,
        insert=[(nn.Sequential(nn.Conv2d(64, 64, 1), nn.ReLU()), "bn1")],
    )
    assert result.ok


@pytest.mark.slow
def test_the_room_of_blocks_is_there_without_an_import():
    import subprocess
    import sys

    code = "from erfscope import adapters\nprint(adapters.blocks.NonLocal(8).__class__.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "NonLocal", done.stderr

"""Blocks by name: every one keeps the shape, trains, copies, and says what it does not take; and what the core sees of
them."""

import copy

import pytest
import torch
from torch import nn

import erfscope
from erfscope import ErfscopeError
from erfscope.adapters.blocks import (
    BLOCKS,
    GAT,
    GCN,
    GIN,
    ChebNet,
    ChebyGIN,
    GATv2,
    GridGraph,
    NonLocal,
    Pipeline,
    SelfAttention,
    make,
)

pytestmark = pytest.mark.usefixtures("memory_unplanned")

C = 8
VARIANTS = [(name, {}) for name in BLOCKS] + [
    ("nonlocal", {"mode": "dot_product", "heads": 2, "sub_sample": True}),
    ("nonlocal", {"mode": "gaussian", "window": 3}),
    ("nonlocal", {"mode": "concatenation", "norm": False}),
    ("attention", {"heads": 4, "inner": 8, "layers": 3, "mode": "dot_product", "over_n": False}),
    ("attention", {"window": 3, "act": "gelu", "residual": False}),
    ("gcn", {"graph": "grid8", "links": "opposite", "normalisation": "symmetric", "self_weight": True}),
    ("gcn", {"graph": "full", "zero_init": True}),
    ("gcn", {"graph": "knn", "k": 3, "self_loops": False}),
    ("gcn", {"links": "opposite"}),
    ("gcn", {"graph": torch.ones(35, 35)}),
    ("gat", {"heads": 4}),
    ("gat", {"heads": 3, "concat": False, "graph": "full"}),
    ("gatv2", {"heads": 4, "share_weights": True, "dropout": 0.5}),
    ("gatv2", {"graph": "knn"}),
    ("gin", {"train_eps": True}),
    ("cheb", {"K": 4, "lambda_max": "exact"}),
    ("chebygin", {"K": 1, "hidden_channels": 16}),
    ("gc", {"fuse_add": False, "fuse_scale": True}),
    ("large_kernel", {"kernel_size": 15}),
    ("topk", {"ratio": 10, "nonlinearity": "softmax"}),
    ("threshold", {"threshold": 0.0}),
]
NAMES = [f"{name}-{number}" for number, (name, _) in enumerate(VARIANTS)]
every = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=NAMES)


def seeded(name, options):
    torch.manual_seed(0)
    return make(name, C, **options)


def picture(*shape, dtype=torch.float32):
    return torch.randn(*(shape or (2, C, 7, 5)), dtype=dtype, generator=torch.Generator().manual_seed(1))


@every
def test_a_block_keeps_the_shape_and_every_gradient_is_finite(name, options):
    block, x = seeded(name, options), picture().requires_grad_()
    y = block(x)
    assert y.shape == x.shape
    gradients = torch.autograd.grad((y * y).sum(), [x, *block.parameters()], allow_unused=True)
    assert gradients[0] is not None
    assert all(g is None or bool(g.isfinite().all()) for g in gradients)


@every
def test_a_block_runs_without_numbers_in_double_precision_and_as_a_copy(name, options):
    block, x = seeded(name, options).eval(), picture()
    y = block(x)
    meta = copy.deepcopy(block).to("meta")
    assert meta(x.to("meta")).shape == x.shape
    with torch.device("meta"):
        assert make(name, C, **options).to("meta")(torch.empty(2, C, 7, 5)).shape == x.shape
    twin = copy.deepcopy(block)
    torch.manual_seed(99)
    other = make(name, C, **options).eval()
    other.load_state_dict(block.state_dict())
    for same in (twin, other):
        assert torch.equal(same(x), y)
    double = twin.double()(x.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), y, rtol=1e-3, atol=1e-4)


@every
def test_video_is_taken_frame_by_frame(name, options):
    block, clip = seeded(name, options).double().eval(), picture(2, C, 3, 7, 5, dtype=torch.float64)
    y = block(clip)
    assert y.shape == clip.shape
    for t in range(3):
        torch.testing.assert_close(y[:, :, t], block(clip[:, :, t]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_says_what_it_is_and_takes_no_other_option(name):
    entry = BLOCKS[name]
    assert len(entry.description) < 120
    assert "\n" not in entry.description
    assert len(set(entry.options)) == len(entry.options)
    with pytest.raises(ErfscopeError, match=f"unknown option 'colour' in block {name}; there is: {entry.options[0]}"):
        make(name, C, colour=3)


def test_pipelines_hold_their_layers_on_the_inner_channels():
    block = make("gatv2", 64, heads=4, layers=3, graph="grid8")
    assert isinstance(block, Pipeline)
    assert [tuple(layer.att.shape) for layer in block.layers] == [(1, 4, 8)] * 3
    assert all(len(layer.graph.offsets) == 8 for layer in block.layers)
    assert isinstance(block.act, nn.ELU)
    attention = make("attention", 64)
    assert [type(layer) for layer in attention.layers] == [SelfAttention] * 2
    assert attention.layers[0].query.in_features == 32
    assert isinstance(attention.act, nn.Identity)


def test_a_graph_that_was_made_is_used_by_all_layers():
    graph = GridGraph(8)
    assert all(layer.graph is graph for layer in make("gcn", C, graph=graph).layers)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nonlocl", {}, "unknown block 'nonlocl'; there is: nonlocal, .*did you mean 'nonlocal'"),
        ("gcn", {"grph": "full"}, "unknown option 'grph' in block gcn; .*did you mean 'graph'"),
        ("attention", {"graph": "full"}, "unknown option 'graph' in block attention"),
        ("gcn", {"graph": "grid5"}, "unknown graph 'grid5'"),
        ("gcn", {"layers": 0}, "layers must be a whole number of at least 1"),
        ("gcn", {"layers": "two"}, "layers must be a whole number of at least 1, and is 'two'"),
        ("gat", {"heads": 5}, "5 heads do not divide inner = 32"),
        ("nonlocal", {"heads": "many"}, "heads must be a whole number of at least 1, and is 'many'"),
        ("cheb", {"lambda_max": None}, "block cheb cannot be made with lambda_max=None: TypeError"),
        ("torch.nn:Lynear", {}, "unknown name 'Lynear' in torch.nn"),
        ("no.such.module:Block", {}, "there is no Python module 'no' for no.such.module:Block"),
        ("nothing.py:Block", {}, "there is no Python file 'nothing.py'"),
        ("torch.nn:ReLU", {"colour": 3}, "torch.nn:ReLU failed with colour=3: TypeError"),
        ("torch:float32", {}, "torch:float32 is of type dtype; it must be a function, a class"),
        ("builtins:bool", {}, "builtins:bool returned bool; it must return an nn.Module"),
    ],
)
def test_what_makes_no_block_is_refused_in_one_line(name, options, words):
    with pytest.raises(ErfscopeError, match=words) as caught:
        make(name, C, **options)
    assert "\n" not in str(caught.value)


def test_a_class_of_the_users_own_is_called_with_the_channels_first(tmp_path, monkeypatch):
    assert isinstance(make("torch.nn:BatchNorm2d", C, eps=0.1), nn.BatchNorm2d)
    code = """
from torch import nn
class Mix(nn.Conv2d):
    def __init__(self, width, *, k=3):
        super().__init__(width, width, k, 1, k // 2)
"""
    (tmp_path / "own_blocks.py").write_text(code)
    assert make(f"{tmp_path}/own_blocks.py:Mix", C, k=5).weight.shape == (C, C, 5, 5)
    monkeypatch.chdir(tmp_path)
    assert make("own_blocks:Mix", C).weight.shape == (C, C, 3, 3)


def field(block, size=(31, 33), layer="1"):
    return erfscope.theoretical(nn.Sequential(nn.Conv2d(3, C, 3, 1, 1), block), layer=layer, input_size=size)


@pytest.mark.parametrize(
    ("block", "side"),
    [
        (lambda: GCN(C, C, 1), 5),
        (lambda: GCN(C, C, 4), 11),
        (lambda: GCN(C, C, 2, graph="grid8", normalisation="symmetric"), 7),
        (lambda: GCN(C, C, 2, graph=GridGraph(self_loops=False), normalisation="none", self_weight=True), 7),
        (lambda: GIN(C), 5),
        (lambda: GAT(C, 2, 2), 5),
        (lambda: GATv2(C, 2, 2, graph="grid8"), 5),
        (lambda: ChebNet(C, C, 4), 9),
        (lambda: ChebyGIN(C, C, 1), 5),
        (lambda: SelfAttention(C, window=5), 7),
        (lambda: NonLocal(C, mode="dot_product", window=7), 9),
        (lambda: make("gcn", C, layers=3), 9),
        (lambda: make("large_kernel", C), 9),
    ],
)
def test_blocks_on_a_grid_have_an_exact_local_field(block, side):
    trf = field(block())
    assert (trf.size_px, trf.exact, trf.is_global) == ((side, side), True, False)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nonlocal", {}),
        ("attention", {"mode": "dot_product"}),
        ("gcn", {"graph": "full"}),
        ("gc", {}),
        ("threshold", {}),
    ],
)
def test_blocks_over_the_whole_map_have_a_global_field(name, options):
    trf = field(make(name, C, **options))
    assert trf.is_global
    assert trf.size_px == (31, 33)


def test_the_field_of_a_linked_grid_holds_the_far_cells():
    model = nn.Sequential(nn.Conv2d(3, C, 1), GCN(C, C, 1, graph=GridGraph(links="opposite")))
    trf = erfscope.theoretical(model, layer="1", unit=(2, 3), input_size=(12, 14))
    assert trf.exact
    assert trf.clipped_box_px == ((1, 9), (2, 10))


def test_what_the_features_decide_is_said_not_to_be_known():
    assert not field(GCN(C, C, 1, graph="knn")).exact
    assert not field(make("topk", C)).exact


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("gcn", {}), ("gcn", {"normalisation": "symmetric"}), ("gatv2", {"heads": 2})]
)
def test_what_a_unit_sees_is_cropped_exactly_around_a_block(name, options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, C, 3, 2, 1), make(name, C, inner=4, **options), nn.Conv2d(C, C, 3, 1, 1))
    x = torch.randn(1, 3, 32, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for unit in ("centre", "corner"):
        cropped, whole = (
            erfscope.analyze(
                net.double(), images=x, layer="2", unit=unit, draws=1, dtype="float64", measures="r50", plain=plain
            )
            for plain in (False, True)
        )
        torch.testing.assert_close(torch.tensor(cropped.map.values), torch.tensor(whole.map.values), rtol=0, atol=1e-12)

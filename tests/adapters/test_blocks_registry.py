"""Blocks by name: every one keeps the shape, trains, copies, and says what it does not take; and what the core sees of
them."""

import copy

import numpy as np
import pytest
import torch
from one_line import one_line
from torch import nn

import erfscope
from erfscope.adapters import blocks
from erfscope.adapters.blocks import BLOCKS, GCN, GridGraph, NonLocal, SelfAttention, as_graph, make

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
def test_a_block_keeps_the_shape_has_gradients_and_runs_without_numbers_in_double_and_as_a_copy(name, options):
    block, x = seeded(name, options), picture().requires_grad_()
    y = block(x)
    assert y.shape == x.shape
    gradients = torch.autograd.grad((y * y).sum(), [x, *block.parameters()], allow_unused=True)
    assert gradients[0] is not None
    assert all(g is None or bool(g.isfinite().all()) for g in gradients)
    block.eval()
    y, meta = block(x), copy.deepcopy(block).to("meta")
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
    # A video is taken frame by frame.
    clip = picture(2, C, 3, 7, 5, dtype=torch.float64)
    found = twin(clip)
    assert found.shape == clip.shape
    for t in range(3):
        torch.testing.assert_close(found[:, :, t], twin(clip[:, :, t]), rtol=0, atol=1e-12)


def test_every_block_says_what_it_is_and_takes_no_other_option():
    for name, entry in BLOCKS.items():
        assert len(entry.description) < 120
        assert "\n" not in entry.description
        assert len(set(entry.options)) == len(entry.options)
        words = f"unknown option 'colour' in block {name}; there is: {entry.options[0]}"
        one_line(lambda name=name: make(name, C, colour=3), words)


def test_pipelines_hold_their_layers_on_the_inner_channels():
    block = make("gatv2", 64, heads=4, layers=3, graph="grid8")
    assert isinstance(block, blocks.Pipeline)
    assert [tuple(layer.att.shape) for layer in block.layers] == [(1, 4, 8)] * 3
    assert all(len(layer.graph.offsets) == 8 for layer in block.layers)
    assert isinstance(block.act, nn.ELU)
    attention = make("attention", 64)
    assert [type(layer) for layer in attention.layers] == [SelfAttention] * 2
    assert attention.layers[0].query.in_features == 32
    assert isinstance(attention.act, nn.Identity)
    graph = GridGraph(8)
    assert all(layer.graph is graph for layer in make("gcn", C, graph=graph).layers)


def made(name, **options):
    return lambda: make(name, C, **options)


def full():
    return as_graph(np.ones((3, 3)))


SQUARE = torch.ones(1, C, 5, 4)
REFUSED = [
    (made("nonlocl"), "unknown block 'nonlocl'; there is: nonlocal, .*did you mean 'nonlocal'"),
    (made("gcn", grph="full"), "unknown option 'grph' in block gcn; .*did you mean 'graph'"),
    (made("attention", graph="full"), "unknown option 'graph' in block attention"),
    (made("gcn", graph="grid5"), "unknown graph 'grid5'; there is: grid4, grid8, full, knn"),
    (made("gcn", layers=0), "layers must be a whole number of at least 1"),
    (made("gcn", layers="two"), "layers must be a whole number of at least 1, and is 'two'"),
    (made("gat", heads=5), "5 heads do not divide inner = 32"),
    (made("nonlocal", heads="many"), "heads must be a whole number of at least 1, and is 'many'"),
    (made("cheb", lambda_max=None), "block cheb cannot be made with lambda_max=None: TypeError"),
    (made("torch.nn:Lynear"), "unknown name 'Lynear' in torch.nn"),
    (made("no.such.module:Block"), "there is no Python module 'no' for no.such.module:Block"),
    (made("nothing.py:Block"), "there is no Python file 'nothing.py'"),
    (made("torch.nn:ReLU", colour=3), "torch.nn:ReLU failed with colour=3: TypeError"),
    (made("torch:float32"), "torch:float32 is of type dtype; it must be a function, a class"),
    (made("builtins:bool"), "builtins:bool returned bool; it must return an nn.Module"),
    (lambda: GCN(C, 4, 0), "num_layers must be a whole number of at least 1, and is 0"),
    (lambda: GCN(C, 0, 2), "every number of channels must be a whole number of at least 1"),
    (lambda: GCN(C, 4, 2, act="rely"), "unknown activation 'rely'; .*did you mean 'relu'"),
    (lambda: GCN(C, 4, 2, normalisation="rows"), "unknown normalisation 'rows'"),
    (lambda: GCN(C, 4, 2)(SQUARE[0]), r"takes maps \(B, C, H, W\) or video"),
    (lambda: blocks.ChebNet(C, 2, 0), "K must be a whole number of at least 1"),
    (lambda: blocks.ChebNet(C, 2, lambda_max="largest"), "lambda_max is a positive number or 'exact', not 'largest'"),
    (lambda: blocks.ChebNet(C, 2, lambda_max=0), "lambda_max is a positive number or 'exact', not 0"),
    (
        lambda: blocks.ChebNet(C, 2, lambda_max="exact", graph=torch.ones(20, 20).triu())(SQUARE),
        "needs a symmetric adjacency",
    ),
    (lambda: blocks.ChebNet(C, 2, lambda_max="exact", graph="knn")(SQUARE), "depend on the input"),
    (lambda: blocks.ChebyGIN(C, 2, aggregation="max"), "unknown aggregation 'max'"),
    (lambda: blocks.GATv2(C, 2, heads=0), "heads must be a whole number"),
    (lambda: blocks.Pipeline(6, nn.Identity, layers=0), "layers must be a whole number"),
    (lambda: SelfAttention(4, heads=3), "3 heads do not divide out_channels = 4"),
    (lambda: SelfAttention(4, heads=2, key_channels=3), "2 heads do not divide key_channels = 3"),
    (lambda: SelfAttention(C, mode="dot"), "unknown mode 'dot'; there is: softmax, dot_product"),
    (lambda: SelfAttention(C, window=4), "a window around a cell has an odd side, not 4"),
    (lambda: SelfAttention(C, window=3, mask=torch.ones(9, 9)), "a window or a mask, not both"),
    (lambda: SelfAttention(C, mask=torch.ones(9)), "this one has shape"),
    (
        lambda: SelfAttention(C, mask=torch.ones(3, 3))(SQUARE),
        "the mask is 3x3, and the map has 20 cells that see 20",
    ),
    (lambda: NonLocal(C, mode="gausian"), "unknown mode 'gausian'; .*did you mean 'gaussian'"),
    (lambda: NonLocal(4, heads=3), "3 heads do not divide inter_channels = 2"),
    (lambda: NonLocal(5, 2, "gaussian", 2), "2 heads do not divide in_channels = 5"),
    (lambda: NonLocal(C, sub_sample=True, window=3), "give window or sub_sample, not both"),
    (lambda: NonLocal(C, mode="concatenation", heads=2), "has one head and no window"),
    (lambda: NonLocal(C, sub_sample=True)(torch.ones(1, C, 1, 5)), "and the map has only 1x5"),
    (lambda: blocks.LargeKernel(C, kernel_size=4), "kernel_size must be odd"),
    (lambda: blocks.global_context(C, fuse_add=False), "both are off"),
    (lambda: blocks.TopKPooling(C, 1.5), "ratio is a share of the cells"),
    (lambda: blocks.TopKPooling(C, 0), "ratio is a share of the cells"),
    (lambda: blocks.TopKPooling(C, nonlinearity="relu"), "unknown nonlinearity 'relu'"),
    (lambda: blocks.ThresholdPooling(C, 1.0), "threshold is a share of attention"),
    (lambda: GridGraph(6), "a grid has 4 or 8 neighbours, not 6"),
    (lambda: GridGraph(links="oposite"), "links are 'opposite', and other graphs an adjacency; got 'oposite'"),
    (lambda: as_graph("full", links="opposite"), "links are those of a grid"),
    (lambda: as_graph("grid4", k=3), "k is the number of nearest neighbours"),
    (lambda: as_graph(blocks.FullGraph(), self_loops=False), "belong to the class of the graph"),
    (lambda: blocks.NearestGraph(0), "k must be a whole number of at least 1, and is 0"),
    (
        lambda: blocks.NearestGraph(20).on(SQUARE),
        "20 nearest neighbours were asked for on a map of 20 nodes; ask for at most 19",
    ),
    (lambda: blocks.NearestGraph().adjacency(5, 4), "depend on the input; call adjacency_of"),
    (lambda: as_graph(np.ones((3, 4))), r"an adjacency is square, \(n, n\); this one has shape \(3, 4\)"),
    (lambda: as_graph(-np.eye(3)), r"not negative; A\[0, 0\] is -1.0 \(3 such\)"),
    (lambda: as_graph([[0, float("nan")], [1, 0]]), r"A\[0, 1\] is nan"),
    (lambda: as_graph([[0, float("inf")], [1, 0]]), r"A\[0, 1\] is inf"),
    (lambda: as_graph(torch.full((2, 2), 3e38)), "finite degrees"),
    (lambda: as_graph(torch.ones(3, 3, device="meta")), "needs numbers"),
    (lambda: full().mix(SQUARE), "the adjacency is 3x3, and a map of 5x4 has 20 nodes"),
    (lambda: full().neighbours(SQUARE), "the adjacency is 3x3"),
    (lambda: full().adjacency(5, 4), "the adjacency is 3x3"),
    (
        lambda: GridGraph().mix(SQUARE, "rows"),
        "unknown normalisation 'rows'; there is: none, row, symmetric .did you mean 'row'",
    ),
    (
        lambda: blocks.on_nodes(nn.Identity(), 5, 4)(torch.ones(7, 2)),
        r"a grid of 5x4 takes node features \(20, c\), and got shape \(7, 2\)",
    ),
]


@pytest.mark.parametrize(("attempt", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_makes_no_block_layer_or_graph_is_refused_in_one_line(attempt, words):
    one_line(attempt, words)


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
        (lambda: blocks.GIN(C), 5),
        (lambda: blocks.GAT(C, 2, 2), 5),
        (lambda: blocks.GATv2(C, 2, 2, graph="grid8"), 5),
        (lambda: blocks.ChebNet(C, C, 4), 9),
        (lambda: blocks.ChebyGIN(C, C, 1), 5),
        (lambda: SelfAttention(C, window=5), 7),
        (lambda: NonLocal(C, mode="dot_product", window=7), 9),
        (lambda: make("gcn", C, layers=3), 9),
        (lambda: make("large_kernel", C), 9),
    ],
)
def test_blocks_on_a_grid_have_an_exact_local_field(block, side):
    trf = field(block())
    assert (trf.size_px, trf.exact, trf.is_global) == ((side, side), True, False)


def test_blocks_over_the_whole_map_have_a_global_field():
    wide = {"nonlocal": {}, "attention": {"mode": "dot_product"}, "gcn": {"graph": "full"}, "gc": {}, "threshold": {}}
    for name, options in wide.items():
        trf = field(make(name, C, **options))
        assert (trf.is_global, trf.size_px) == (True, (31, 33))


def test_fields_of_far_cells_and_of_what_the_features_decide():
    model = nn.Sequential(nn.Conv2d(3, C, 1), GCN(C, C, 1, graph=GridGraph(links="opposite")))
    trf = erfscope.theoretical(model, layer="1", unit=(2, 3), input_size=(12, 14))
    assert trf.exact
    assert trf.clipped_box_px == ((1, 9), (2, 10))
    assert not field(GCN(C, C, 1, graph="knn")).exact
    assert not field(make("topk", C)).exact


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("gcn", {}), ("gcn", {"normalisation": "symmetric"}), ("gatv2", {"heads": 2})]
)
def test_what_a_unit_sees_is_cropped_exactly_around_a_block(name, options):
    net = nn.Sequential(nn.Conv2d(3, C, 3, 2, 1), make(name, C, inner=4, **options), nn.Conv2d(C, C, 3, 1, 1))
    x = torch.randn(1, 3, 32, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    options = {"images": x, "layer": "2", "unit": ["centre", "corner"], "draws": 1, "dtype": "float64"}
    cropped, whole = (erfscope.sweep(net.double(), measures="r50", plain=plain, **options) for plain in (False, True))
    for one, other in zip(cropped, whole, strict=True):
        np.testing.assert_allclose(one.map.values, other.map.values, rtol=0, atol=1e-12)

"""Fields of real models against published numbers, and of small nets against closed forms."""

import pytest
import timm
import torch
import torch.nn.functional as F
from nets import Does
from nets.parts import attention, conv
from oracle import FIRST, Seen, check, positive
from releases import needs_meta_transformers
from torch import nn

import erfscope
from erfscope import ErfscopeError
from erfscope.core.graph.field import Fields
from erfscope.core.graph.positions import GraphPositions
from erfscope.core.graph.record import record
from erfscope.core.values.layout import Layout


class Model:
    """A timm model without numbers, recorded on two images."""

    def __init__(self, name, size=224, **options):
        with torch.device("meta"):
            module = timm.create_model(name, **options).eval()
        self.graph = record(module, (torch.empty(2, 3, size, size, device="meta"),))
        self.positions = GraphPositions(self.graph)
        self.fields = Fields(self.positions, self.positions.image, FIRST)

    def layer(self, name):
        (node,) = self.graph.marks[name].outputs.values()
        return node, self.positions.reading(node).layout

    def trf(self, name, unit=None, wrt=None):
        node, layout = self.layer(name)
        fields = self.fields if wrt is None else Fields(self.positions, *self.layer(wrt), name=wrt)
        return fields.trf(node, layout, fields.nearest_unit(node, layout) if unit is None else unit)


def test_a_resnet_unit_sits_at_32_u_and_its_box_is_not_clipped():
    model = Model("resnet18")
    field = model.trf("layer4", (3, 3))
    assert field.box_px == ((-121, 313), (-121, 313))
    assert field.clipped_box_px == ((0, 223), (0, 223))
    assert all(model.trf("layer4", (u, 6 - u)).center_px == (32.0 * u, 32.0 * (6 - u)) for u in range(7))
    inner = model.trf("layer4", (3, 3), wrt="layer3")
    assert (inner.reference_px, inner.size_px) == (
        (14, 14),
        (15, 15),
    )  # 3x3 stride 2, then three 3x3: 1 + 2 + 3 * 2 * 2
    assert (inner.stride_px, inner.center_px, inner.all_paths) == ((2.0, 2.0), (6.0, 6.0), True)
    assert model.trf("layer3", (3, 3), wrt="layer3").box_px == ((3, 3), (3, 3))
    assert not model.trf("layer1.0", (8, 8), wrt="layer1.0.conv1").all_paths


@pytest.mark.slow
def test_squeeze_excite_is_global_with_a_local_size():
    field = Model("efficientnet_b0").trf("blocks")
    assert (field.size_px, field.box_px, field.local_size_px) == ((224, 224), ((0, 223), (0, 223)), (851, 851))
    assert field.global_by == "global average pooling (blocks.0.0.se)"
    assert field.center_px == (96.0, 96.0)


@needs_meta_transformers
def test_a_vision_transformer_is_global_and_its_unit_is_a_patch():
    model = Model("vit_tiny_patch16_224")
    _node, layout = model.layer("blocks.5")
    assert layout == Layout(dims=(1,), grid=(14, 14), prefix=1)
    field = model.trf("blocks.5", (7, 6))
    assert (field.center_px, field.local_size_px) == ((119.5, 103.5), (16, 16))
    assert field.global_by == "softmax attention (blocks.0.attn)"
    inner = model.trf("blocks.5", (7, 6), wrt="blocks.3")
    assert (inner.size_px, inner.local_box_px) == ((14, 14), ((7, 7), (6, 6)))
    assert (inner.global_by, inner.all_paths) == ("softmax attention (blocks.4.attn)", True)


@pytest.mark.slow
def test_swin_sees_its_windows_and_becomes_global_where_one_window_is_the_map():
    model = Model("swin_tiny_patch4_window7_224")
    first = model.trf("layers.0.blocks.0", (30, 30))
    assert (first.box_px, first.center_px) == (((112, 139), (112, 139)), (121.5, 121.5))  # tokens 28 to 34
    # Shifted by 3: tokens 24 to 30 (31 starts the next window), which lie in the windows 21 to 27 and 28 to 34.
    assert model.trf("layers.0", (30, 30)).box_px == ((84, 139), (84, 139))
    last = model.trf("layers.3", (3, 3))
    assert (last.global_by, last.center_px) == ("softmax attention (layers.3.blocks.0.attn)", (111.5, 111.5))
    assert last.exact


@pytest.mark.parametrize("side", [1, 2])
def test_a_map_of_few_units_keeps_its_size_beyond_the_borders(side):
    field = Model("resnet18", 32 * side).trf("layer4", (0, 0))
    assert (field.size_px, field.box_px) == ((435, 435), ((-217, 217), (-217, 217)))
    assert field.clipped_box_px == ((0, 32 * side - 1), (0, 32 * side - 1))


def test_the_shortcuts_of_a_resnet_d_lie_half_a_cell_beside_its_convolutions():
    field = Model("resnet26d").trf("layer2", (3, 3))
    assert (field.center_exact, field.center_px) == (False, (24.0, 24.0))
    assert "puts unit 0 at 0 px" in field.center_inexact_reason
    assert "puts unit 0 at 2 px" in field.center_inexact_reason  # half of the 4 px between the units of layer1


def test_paths_that_disagree_give_no_exact_centre():
    def forward(net, x):
        return x + F.interpolate(net.down(x), scale_factor=2)

    field = Seen(Does(forward, down=conv(3, 2)), (64, 64)).trf((32, 32))
    assert (field.center_exact, field.center_px) == (False, (32.0, 32.0))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_after_up_sampling_units_lie_evenly_between_those_of_the_coarse_map(mode):
    """Unit i of the coarse map sits at 8 i, and half-pixel centres put 8 units around each."""
    seen = Seen(nn.Sequential(conv(3, 8), conv(), nn.Upsample(scale_factor=8, mode=mode)), (64, 64))
    assert all((f := seen.trf((u, u))).center_exact and f.center_px == (u - 3.5, u - 3.5) for u in (0, 29, 48, 63))
    assert seen.fields.nearest_unit(seen.node, seen.layout) == (35, 35)


@pytest.mark.parametrize(("size", "unit"), [(8, 4), (7, 3), (9, 4), (1, 0)])
def test_of_two_central_units_the_one_with_the_larger_index_is_taken(size, unit):
    seen = Seen(conv(), (size, size))
    assert seen.fields.nearest_unit(seen.node, seen.layout) == (unit, unit)


THREE = {name: conv(1, padding=0) for name in "qkv"}


def non_local(net, x):
    q, k, v = (part(x).flatten(2) for part in (net.q, net.k, net.v))
    return x + ((q.transpose(1, 2) @ k) @ v.transpose(1, 2)).transpose(1, 2).view_as(x)


def cross_covariance(net, x):
    q, k, v = (part(x).flatten(2) for part in (net.q, net.k, net.v))
    return x + ((q @ k.transpose(1, 2)).softmax(-1) @ v).view_as(x)


def both(net, x):
    y = net.conv(x)
    return y * y.mean(3, keepdim=True) * y.mean(2, keepdim=True)


def fourier(net, x):
    return x + torch.fft.irfft2(torch.fft.rfft2(net.conv(x)) * net.gate.weight, s=x.shape[2:])


def pooled_attention(net, x):
    """NextViT: keys and values from tokens pooled in runs that cut through rows."""
    y = net.conv(x)
    tokens = y.flatten(2).transpose(1, 2)
    few = F.avg_pool1d(y.flatten(2), 6).transpose(1, 2)
    return y + attention(tokens, few, few).transpose(1, 2).reshape(y.shape)


GATE = {"conv": conv(), "gate": conv(1, padding=0)}
GLOBAL = {
    "squeeze-excite": (
        Does(lambda n, x: (y := n.conv(x)) * n.gate(y.mean((2, 3), keepdim=True)).sigmoid(), **GATE),
        "global average pooling",
        (3, 3),
    ),
    "max gate": (Does(lambda n, x: n.conv(x) * x.logsumexp((2, 3), keepdim=True), conv=conv()), "logsumexp", (3, 3)),
    "group norm": (
        Does(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=nn.GroupNorm(2, 2)),
        "group norm (norm)",
        (3, 3),
    ),
    "instance norm": (
        Does(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=nn.InstanceNorm2d(2)),
        "batch or instance norm",
        (3, 3),
    ),
    "layer norm over positions": (
        Does(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=nn.LayerNorm((2, 12, 8))),
        "layer norm",
        (3, 3),
    ),
    "dot-product non-local": (Does(non_local, **THREE), "dot-product attention", (1, 1)),
    "cross-covariance": (Does(cross_covariance, **THREE), "softmax attention", (1, 1)),
    "Fourier": (Does(fourier, conv=conv(), gate=nn.Linear(5, 12)), "Fourier transform", (1, 1)),
    "pooled tokens": (Does(pooled_attention, conv=conv()), "softmax attention", (3, 3)),
    "token mixing": (
        Does(lambda n, x: x + n.linear(n.conv(x).flatten(2)).view_as(x), conv=conv(), linear=nn.Linear(96, 96)),
        "token mixing (linear)",
        (1, 1),
    ),
    "rows and columns": (Does(both, conv=conv()), "global average pooling", (3, 3)),
    "columns after rows": (
        Does(lambda n, x: torch.softmax((y := n.conv(x)) + y.mean(2, keepdim=True), 3), conv=conv()),
        "softmax over positions",
        (3, 3),
    ),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_a_global_operation_is_named_and_left_out_of_the_local_size(name):
    module, words, local = GLOBAL[name]
    field = check(module, (12, 8), gates=False, global_by=words).trf((5, 4))
    assert (field.box_px, field.local_size_px) == (((0, 11), (0, 7)), local)
    assert (field.center_px, field.center_exact) == ((5.0, 4.0), True)


def test_attention_along_one_axis_is_global_along_that_axis_only():
    def forward(net, x):
        y = net.conv(x).permute(0, 2, 3, 1)
        return (x.permute(0, 2, 3, 1) + attention(y, y, y)).permute(0, 3, 1, 2)

    field = check(Does(forward, conv=conv()), (12, 9), gates=False).trf((5, 4))
    assert (field.box_px, field.local_box_px) == (((4, 6), (0, 8)), ((4, 6), (3, 5)))


def test_batch_norm_is_global_in_training_and_local_in_evaluation():
    net = Does(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=nn.BatchNorm2d(2))
    seen = check(net, (12, 8), train=True, gates=False, global_by="batch or instance norm")
    assert seen.trf((5, 4)).local_size_px == (3, 3)
    assert Seen(net, (12, 8)).trf((5, 4)).global_by is None


def test_frames_folded_into_the_batch_keep_their_axis():
    """(B, C, T, H, W) through a 2-D convolution frame by frame, then one over time."""

    def forward(net, x):
        b, c, t, h, w = x.shape
        y = net.frame(x.transpose(1, 2).reshape(b * t, c, h, w))
        return net.time(y.view(b, t, *y.shape[1:]).transpose(1, 2))

    net = Does(forward, frame=conv(3, 2), time=nn.Conv3d(2, 2, (3, 1, 1), padding=(1, 0, 0)))
    assert check(net, (6, 12, 10)).trf((2, 3, 2)).box_px == ((1, 3), (5, 7), (3, 5))


def along_rows(net, x):
    y, _ = net.recurrent(net.conv(x).permute(0, 2, 3, 1).flatten(0, 1))
    return y.view(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)


RECURRENT = {
    "LSTM": nn.LSTM(2, 3, batch_first=True),
    "GRU": nn.GRU(2, 3, num_layers=2, batch_first=True),
    "RNN": nn.RNN(2, 3, batch_first=True),
    "LSTM both ways": nn.LSTM(2, 3, batch_first=True, bidirectional=True),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_sees_what_came_before_or_everything(name):
    check(Does(along_rows, conv=conv(), recurrent=RECURRENT[name]), (5, 9), gates=False)


@pytest.mark.parametrize("module", [nn.LSTM(2, 3, batch_first=True), nn.Identity()], ids=["LSTM", "cumsum"])
def test_nothing_is_read_before_the_first_cell(module):
    def forward(net, x):
        tokens = x.flatten(2).transpose(1, 2)
        y = net.recurrent(tokens)
        return (y[0] if isinstance(y, tuple) else y.cumsum(1)).transpose(1, 2)

    assert erfscope.theoretical(Does(forward, recurrent=module), input_size=(9,), in_chans=2, unit=(3,)).size_px == (4,)


#: What is not understood, and along how many of the two axes that leaves everything to be read.
UNKNOWN = {
    "grid_sampler": (
        lambda n, x: F.grid_sample((y := n.conv(x)), y[:, :2].permute(0, 2, 3, 1), align_corners=False),
        2,
    ),
    "gather": (lambda n, x: (y := n.conv(x)).gather(2, y.argsort(2)), 1),
    "sort": (lambda n, x: n.conv(x).sort(2)[0], 1),
    "topk": (lambda n, x: n.conv(x).topk(5, 2)[0], 1),
    "scatter": (lambda n, x: (y := n.conv(x)).scatter(2, torch.zeros_like(y, dtype=torch.int64)[:, :, :1], 1.0), 1),
    "as_strided": (lambda n, x: n.conv(x).as_strided((len(x), 2, 6, 12), (288, 144, 24, 1)), 2),
    "view": (lambda n, x: n.conv(x).reshape(-1, 2, 9, 16), 0),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_understood_widens_the_box_and_is_named(name):
    forward, axes = UNKNOWN[name]
    seen = Seen(Does(forward, conv=conv()), (12, 12), layout=FIRST)
    for unit in ((0, 0), (3, 5), (4, 11)):
        field, support = seen.trf(unit), seen.support(unit)
        boxes = zip(field.clipped_box_px, support or (), strict=False)
        assert all(first <= low and high <= last for (first, last), (low, high) in boxes)
        assert (field.exact, field.global_by) == (not axes, None)
        assert not axes or name in field.inexact_by
        assert all(box == (0, 11) for box in field.box_px[:axes])


@pytest.mark.parametrize("options", [{"is_causal": True}, {"attn_mask": torch.ones(30, 30, dtype=torch.bool).tril()}])
def test_masked_attention_is_an_upper_bound(options):
    def forward(net, x):
        tokens = net.conv(x).flatten(2).transpose(1, 2)[:, None]
        return F.scaled_dot_product_attention(tokens, tokens, tokens, **options)[:, 0].transpose(1, 2).reshape(x.shape)

    field = Seen(Does(forward, conv=conv()), (6, 5)).trf((2, 2))
    assert field.inexact_by == ("attention mask",)
    assert field.global_by == "softmax attention"


def test_a_mask_on_scores_makes_an_upper_bound():
    def forward(net, x):
        tokens = net.conv(x).flatten(2).transpose(1, 2)
        scores = tokens @ tokens.transpose(1, 2)
        closed = torch.ones(scores.shape[1:], dtype=torch.bool, device=x.device).triu(1)
        return (scores.masked_fill(closed, float("-inf")).softmax(-1) @ tokens).transpose(1, 2).reshape(x.shape)

    field = Seen(Does(forward, conv=conv()), (6, 5)).trf((2, 2))
    assert not field.exact
    assert field.box_px == ((0, 5), (0, 4))


def test_runs_of_tokens_reach_from_the_first_to_the_last_of_their_cells():
    """20 runs of 9 tokens of 15 columns: run 3 is the end of row 1 and the beginning of row 2."""
    net = Does(lambda n, x: F.avg_pool1d(n.conv(x).flatten(2), 9).view(-1, 2, 4, 5), conv=conv(1, padding=0))
    seen = Seen(positive(net), (12, 15), layout=FIRST)
    assert seen.support((0, 3)) == ((1, 2), (0, 14))
    box = seen.trf((0, 3)).clipped_box_px
    assert all(first <= low and high <= last for (first, last), (low, high) in zip(box, seen.support((0, 3))))


def test_tokens_of_a_running_sum_over_a_list_are_an_upper_bound():
    net = Does(lambda n, x: n.conv(x).flatten(2).cumsum(2).transpose(1, 2), conv=conv())
    seen = Seen(positive(net), (6, 5), layout=Layout(dims=(1,), grid=(6, 5)))
    box = seen.trf((3, 4)).clipped_box_px
    assert all(first <= low and high <= last for (first, last), (low, high) in zip(box, seen.support((3, 4))))


def test_a_unit_that_reads_nothing_but_padding_has_no_field():
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ConvTranspose2d(2, 2, 1, 2, output_padding=1))
    seen = Seen(net, (6, 6))
    assert seen.trf((4, 4)).size_px == (3, 3)
    with pytest.raises(ErfscopeError, match="no path leads from 'image' to unit"):
        seen.trf((5, 5))


@pytest.mark.parametrize("size", [20, 21, 22, 23])
def test_where_strides_do_not_divide_the_size_only_cells_that_are_read_count(size):
    check(nn.Sequential(nn.Conv2d(2, 2, 3, 3), nn.Conv2d(2, 2, 3, padding=1)), (size, size))


@pytest.mark.parametrize(
    ("module", "space"),
    [
        (
            nn.Sequential(
                nn.Conv1d(2, 2, 3, 2, 1), nn.ConvTranspose1d(2, 2, 3, 3, 1, 1, dilation=2), nn.Conv1d(2, 2, 3)
            ),
            (17,),
        ),
        (nn.Sequential(nn.ConvTranspose3d(2, 2, 3, 2, 1, 1), nn.Conv3d(2, 2, 3, 2, 1)), (4, 5, 6)),
        (nn.Sequential(nn.AvgPool1d(3, 2, 1, ceil_mode=True), nn.Conv1d(2, 2, 3, padding=1)), (18,)),
        (nn.Sequential(nn.AvgPool3d(2, 2, 0, ceil_mode=True), nn.Conv3d(2, 2, 3, padding=1)), (5, 6, 7)),
        (nn.Sequential(nn.ReflectionPad3d(1), nn.Conv3d(2, 2, 3)), (4, 5, 6)),
        (nn.Sequential(nn.ReplicationPad1d(3), nn.Conv1d(2, 2, 3)), (11,)),
        (nn.Sequential(nn.CircularPad1d(3), nn.Conv1d(2, 2, 3)), (11,)),
        (nn.Sequential(nn.Conv3d(2, 2, 3, padding=1, padding_mode="circular")), (4, 5, 6)),
        (nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), nn.AdaptiveAvgPool1d(5)), (13,)),
        (nn.Sequential(nn.Conv3d(2, 2, 1), nn.AdaptiveAvgPool3d((3, 2, 4))), (5, 6, 7)),
        (nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), nn.Upsample(scale_factor=2, mode="linear")), (9,)),
        (nn.Sequential(nn.Conv3d(2, 2, 1), nn.Upsample(scale_factor=2, mode="trilinear")), (4, 5, 3)),
    ],
    ids=str,
)
def test_every_kind_of_window_in_one_and_three_dimensions(module, space):
    check(module, space)

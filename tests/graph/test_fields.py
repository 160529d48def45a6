"""Theoretical receptive fields: against published numbers, brute force, and what follows by hand."""

import itertools

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from nets import Does
from nets.parts import attention, conv, over_windows, parts
from oracle import FIRST, Seen, check, load, positive
from releases import needs_meta_transformers
from torch import nn

import erfscope
from erfscope import ErfscopeError
from erfscope.core.values.layout import Layout


def of(name, space, **options):
    """A timm model built on the meta device."""
    with torch.device("meta"):
        return load(timm.create_model(name, **options), space)


def seen(module, space, **options):
    """The only layer of interest of a small net of two channels."""
    return load(module.eval(), space, 2, **options).site("output")


def holds(box, support):
    return all(first <= low and high <= last for (first, last), (low, high) in zip(box, support or (), strict=False))


@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (5, 0)])
def test_the_oracle_sees_exactly_the_window_of_one_convolution(kernel, padding):
    support = Seen(positive(nn.Conv2d(2, 3, kernel, padding=padding)), (12, 10)).support((4, 3))
    assert support == ((4 - padding, 4 - padding + kernel - 1), (3 - padding, 3 - padding + kernel - 1))


# --- small nets, by hand


class DownAndUp(nn.Module):
    """Residual blocks whose branch halves the map and doubles it again: its middle lags behind the shortcut's."""

    def __init__(self, depth, scales=2):
        super().__init__()
        self.downs = nn.ModuleList(conv(3, scales) for _ in range(depth))
        self.up = nn.Upsample(scale_factor=scales)

    def forward(self, x):
        for down in self.downs:
            x = x + self.up(down(x))
        return x


def pooled_bins(n, x):
    """Means over 3 x 3 bins beside the map that they are of, both interpolated with aligned corners, as in PSPNet.

    Where the bins' centre lies more than a stride from the middle of a unit's share of the image, the centre is the
    map's: centres jump."""
    y = n.stem(x)
    bins = F.interpolate(F.adaptive_avg_pool2d(y, 3), size=y.shape[2:], mode="bilinear", align_corners=True)
    return F.interpolate(torch.cat([bins, y], 1), size=x.shape[2:], mode="bilinear", align_corners=True)


def finer_joined(n, x):
    fine = n.fine(x)
    return fine + F.interpolate(n.coarse(fine), size=fine.shape[2:])


def pooled_beside(n, x):
    """Both paths give every unit the same centre."""
    return x + F.interpolate(n.conv(F.avg_pool2d(x, 2)), scale_factor=2, mode="bilinear")


def along_one_axis(n, x):
    y = n.conv(x).permute(0, 2, 3, 1)
    return (x.permute(0, 2, 3, 1) + attention(y, y, y)).permute(0, 3, 1, 2)


def both_scaled(n, x):
    """Unit i of the coarse map sits at 8 i, and half-pixel centres put 8 units around each."""
    return nn.Sequential(conv(3, 8), conv(), nn.Upsample(scale_factor=8, mode=x))


def stack(count, padding=1):
    return nn.Sequential(*(conv(3, 1, padding) for _ in range(count)))


HAND = [
    *((stack(n), (9, 9), (4, 4), {"size_px": (2 * n + 1,) * 2}) for n in (1, 5, 20)),
    (stack(9, 0), (32, 32), (0, 13), {"center_exact": True, "center_px": (9.0, 22.0)}),
    (
        nn.Sequential(nn.Conv2d(2, 2, 4, 4), nn.ConvTranspose2d(2, 2, 2, 2)),
        (32, 32),
        (6, 7),
        {"stride_px": (2.0, 2.0), "box_px": ((12, 15), (12, 15))},
    ),
    # Unit 4 and 5 both sit over coarse unit 2, which reads the fine units 3 to 5.
    (
        Does(finer_joined, fine=nn.Conv2d(2, 2, 4, 4), coarse=conv(3, 2)),
        (32, 32),
        (4, 5),
        {"stride_px": (4.0, 4.0), "box_px": ((12, 23), (12, 23))},
    ),
    *(
        (Does(pooled_beside, conv=conv()), (64, 64), u, {"center_exact": True, "center_px": (float(u[0]), float(u[1]))})
        for u in ((31, 31), (32, 32), (0, 63))
    ),
    *(
        (DownAndUp(5), (64, 64), u, {"center_exact": False, "center_px": (float(u[0]), float(u[1]))})
        for u in ((32, 32), (33, 33), (20, 41))
    ),
    *(
        (both_scaled(None, mode), (64, 64), (u, u), {"center_exact": True, "center_px": (u - 3.5,) * 2})
        for mode in ("nearest", "bilinear", "bicubic")
        for u in (0, 29, 63)
    ),
    (
        nn.Sequential(nn.Conv2d(2, 4, 16, 16), nn.Upsample(scale_factor=2, mode="bilinear")),
        (96, 96),
        (5, 6),
        {"center_px": (43.5, 51.5), "center_exact": True, "stride_px": (8.0, 8.0), "offset_px": (3.5, 3.5)},
    ),
    # A rolled map stays as the model holds it.
    (
        nn.Sequential(conv(1, padding=0), Does(lambda _, x: x.roll((3, -5), (2, 3)))),
        (24, 24),
        (10, 4),
        {"box_px": ((7, 7), (9, 9)), "center_px": (7.0, 9.0)},
    ),
    (
        nn.Sequential(conv(7, 2, 3), nn.MaxPool2d(3, 2, 1), conv()),
        (2**18, 2**18),
        (2**15, 2**15),
        {"size_px": (19, 19), "center_px": (2.0**17, 2.0**17)},
    ),
]


@pytest.mark.parametrize(("module", "space", "unit", "expected"), HAND)
def test_a_field_is_what_follows_by_hand(module, space, unit, expected):
    field = seen(module, space).trf(unit)
    assert {name: getattr(field, name) for name in expected} == expected


def test_the_middle_of_the_box_is_not_the_centre_where_branches_disagree():
    (first, last), _ = seen(DownAndUp(5), (64, 64)).trf((32, 32)).box_px
    assert abs((first + last) / 2 - 32) > 1
    reason = seen(DownAndUp(1), (64, 64)).trf((32, 32)).center_inexact_reason
    assert "downs.0" in reason or "up" in reason
    assert "puts unit 0 at 0 px" in reason
    assert "puts unit 0 at -0.5 px" in reason


@pytest.mark.slow
def test_the_map_of_such_a_net_peaks_where_the_centre_says():
    torch.manual_seed(0)
    result = erfscope.analyze(DownAndUp(5), unit=(32, 32), input_size=(64, 64), samples=4, draws=8, layer="output")
    peak = divmod(int(result.map.values.argmax()), 64)
    assert max(abs(p - c) for p, c in zip(peak, result.map.center_px, strict=True)) <= 1


@pytest.mark.parametrize(("scales", "words"), [((1, 2), "along the width"), ((2, 1), "along the height"), ((2, 2), "")])
def test_the_axis_along_which_branches_disagree_is_named_where_others_agree(scales, words):
    reason = seen(DownAndUp(1, scales), (64, 64)).trf((32, 32)).center_inexact_reason
    assert "puts unit 0 at" in reason
    assert reason.endswith(f", {words} alone") if words else "along" not in reason


@pytest.mark.parametrize(("size", "unit"), [(8, 4), (7, 3), (9, 4), (1, 0)])
def test_of_two_central_units_the_one_with_the_larger_index_is_taken(size, unit):
    assert seen(conv(), (size, size)).nearest_unit() == (unit, unit)
    assert size != 8 or seen(both_scaled(None, "nearest"), (64, 64)).nearest_unit() == (35, 35)


@pytest.mark.parametrize("size", [40, 64])
def test_the_default_unit_is_the_nearest_of_all_where_centres_are_not_evenly_spaced(size):
    site = seen(Does(pooled_bins, stem=conv(3, 8)), (size, size))
    off = [abs(site.trf((unit, 0)).center_px[0] - (size - 1) / 2) for unit in range(size)]
    nearest = max(unit for unit in range(size) if off[unit] <= min(off) + 1e-9)
    assert site.nearest_unit() == (nearest, nearest)


def test_a_pooled_map_is_global_with_its_centre_in_the_middle():
    field = seen(nn.Sequential(conv(3, 1, 0), nn.AdaptiveAvgPool2d(1)), (12, 9), layout="NCHW").trf((0, 0))
    assert (field.global_by, field.center_px) == ("global average pooling (1)", (5.5, 4.0))
    assert field.local_size_px == (12, 9)


def test_attention_along_one_axis_is_global_along_that_axis_only():
    field = check(Does(along_one_axis, conv=conv()), (12, 9), gates=False).trf((5, 4))
    assert (field.box_px, field.local_box_px) == (((4, 6), (0, 8)), ((4, 6), (3, 5)))


def test_batch_norm_is_global_in_training_and_local_in_evaluation():
    net = Does(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=nn.BatchNorm2d(2))
    found = check(net, (12, 8), train=True, gates=False, global_by="batch or instance norm")
    assert found.trf((5, 4)).local_size_px == (3, 3)
    assert Seen(net, (12, 8)).trf((5, 4)).global_by is None


def test_frames_folded_into_the_batch_keep_their_axis():
    """(B, C, T, H, W) through a 2-D convolution frame by frame, then one over time."""

    def forward(net, x):
        y = net.frame(x.transpose(1, 2).flatten(0, 1))
        return net.time(y.unflatten(0, (len(x), -1)).transpose(1, 2))

    net = Does(forward, frame=conv(3, 2), time=nn.Conv3d(2, 2, (3, 1, 1), padding=(1, 0, 0)))
    assert check(net, (6, 12, 10)).trf((2, 3, 2)).box_px == ((1, 3), (5, 7), (3, 5))


def test_what_is_summed_over_windows_is_read_by_the_same_place_in_each():
    field = check(Does(over_windows, **parts()), (12, 15), global_by="sum over positions").trf((4, 5))
    assert (field.clipped_box_px, field.local_size_px) == (((1, 10), (2, 14)), (1, 1))


@pytest.mark.parametrize("module", [nn.LSTM(2, 3, batch_first=True), nn.Identity()], ids=["LSTM", "cumsum"])
def test_nothing_is_read_before_the_first_cell(module):
    def forward(net, x):
        y = net.recurrent(x.flatten(2).transpose(1, 2))
        return (y[0] if isinstance(y, tuple) else y.cumsum(1)).transpose(1, 2)

    assert erfscope.theoretical(Does(forward, recurrent=module), input_size=(9,), in_chans=2, unit=(3,)).size_px == (4,)


def test_a_unit_that_reads_nothing_but_padding_has_no_field():
    found = Seen(nn.Sequential(conv(), nn.ConvTranspose2d(2, 2, 1, 2, output_padding=1)), (6, 6))
    assert found.trf((4, 4)).size_px == (3, 3)
    with pytest.raises(ErfscopeError, match="no path leads from 'image' to unit"):
        found.trf((5, 5))


RRELU = {"evaluation": lambda n, y: F.rrelu(y), "training": lambda n, y: F.rrelu(y, training=True)}


@pytest.mark.parametrize("name", RRELU)
def test_the_field_goes_through_what_an_operation_returns_that_also_writes_to_an_argument(name):
    """What is done lies on the longer of two ways: without it the field is 5 pixels wide, with it 11."""
    net = Does(
        lambda n, x: n.last((y := n.first(x)) + n.wide(RRELU[name](n, y))),
        first=conv(),
        wide=conv(7, padding=3),
        last=conv(),
    )
    found = Seen(net, (32, 32))
    assert found.trf((16, 16)).exact
    assert found.trf((16, 16)).box_px == ((11, 21), (11, 21)) == found.support((16, 16))
    row = erfscope.sweep(net, input_size=(32, 32), in_chans=2, samples=1, layer="last")[0]
    unproved = "gradient_unproved" in {finding.code for finding in row.findings}
    assert unproved is (name == "training"), "nothing is random in evaluation mode"


# --- small nets, by brute force


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
    few = F.avg_pool1d(y.flatten(2), 6).transpose(1, 2)
    return y + attention(y.flatten(2).transpose(1, 2), few, few).transpose(1, 2).reshape(y.shape)


THREE = {name: conv(1, padding=0) for name in "qkv"}
GATE = {"conv": conv(), "gate": conv(1, padding=0)}
#: What is done, its parts, words of the result, and the local size.
GLOBAL = {
    "squeeze-excite": (
        lambda n, x: (y := n.conv(x)) * n.gate(y.mean((2, 3), keepdim=True)).sigmoid(),
        GATE,
        "global average pooling",
        3,
    ),
    "max gate": (lambda n, x: n.conv(x) * x.logsumexp((2, 3), keepdim=True), GATE, "logsumexp", 3),
    "group norm": (lambda n, x: n.norm(n.conv(x)), {**GATE, "norm": nn.GroupNorm(2, 2)}, "group norm (norm)", 3),
    "instance norm": (
        lambda n, x: n.norm(n.conv(x)),
        {**GATE, "norm": nn.InstanceNorm2d(2)},
        "batch or instance norm",
        3,
    ),
    "layer norm over positions": (lambda n, x: F.layer_norm(n.conv(x), x.shape[1:]), GATE, "layer norm", 3),
    "dot-product non-local": (non_local, THREE, "dot-product attention", 1),
    "cross-covariance": (cross_covariance, THREE, "softmax attention", 1),
    "Fourier": (fourier, {"conv": conv(), "gate": nn.Linear(5, 12)}, "Fourier transform", 1),
    "pooled tokens": (pooled_attention, GATE, "softmax attention", 3),
    "token mixing": (
        lambda n, x: x + n.linear(n.conv(x).flatten(2)).view_as(x),
        {"conv": conv(), "linear": nn.Linear(96, 96)},
        "token mixing (linear)",
        1,
    ),
    "rows and columns": (both, GATE, "global average pooling", 3),
    "columns after rows": (
        lambda n, x: torch.softmax((y := n.conv(x)) + y.mean(2, keepdim=True), 3),
        GATE,
        "softmax over positions",
        3,
    ),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_a_global_operation_is_named_and_left_out_of_the_local_size(name):
    function, held, words, local = GLOBAL[name]
    field = check(Does(function, **held), (12, 8), gates=False, global_by=words).trf((5, 4))
    assert (field.box_px, field.local_size_px) == (((0, 11), (0, 7)), (local, local))
    assert (field.center_px, field.center_exact) == ((5.0, 4.0), True)


def along_rows(net, x):
    y, _ = net.recurrent(net.conv(x).permute(0, 2, 3, 1).flatten(0, 1))
    return y.view(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)


CHECKED = [
    *((Does(along_rows, conv=conv(), recurrent=kind(2, 3, batch_first=True)), (5, 9)) for kind in (nn.LSTM, nn.RNN)),
    (Does(along_rows, conv=conv(), recurrent=nn.GRU(2, 3, num_layers=2, batch_first=True)), (5, 9)),
    (Does(along_rows, conv=conv(), recurrent=nn.LSTM(2, 3, batch_first=True, bidirectional=True)), (5, 9)),
    # Where strides do not divide the size only cells that are read count.
    *((nn.Sequential(nn.Conv2d(2, 2, 3, 3), conv()), (size, size)) for size in (20, 21, 22)),
    # Every kind of window in one and three dimensions.
    (
        nn.Sequential(nn.Conv1d(2, 2, 3, 2, 1), nn.ConvTranspose1d(2, 2, 3, 3, 1, 1, dilation=2), nn.Conv1d(2, 2, 3)),
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
]


@pytest.mark.parametrize(("module", "space"), CHECKED, ids=str)
def test_a_field_is_what_a_change_of_the_input_shows(module, space):
    check(module, space, gates=not isinstance(module, Does))


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
    found = Seen(Does(forward, conv=conv()), (12, 12), layout=FIRST)
    for unit in ((0, 0), (3, 5), (4, 11)):
        field = found.trf(unit)
        assert holds(field.clipped_box_px, found.support(unit))
        assert (field.exact, field.global_by) == (not axes, None)
        assert not axes or name in field.inexact_by
        assert all(box == (0, 11) for box in field.box_px[:axes])


def masked_scores(net, x):
    tokens = net.conv(x).flatten(2).transpose(1, 2)
    scores = tokens @ tokens.transpose(1, 2)
    closed = torch.ones(scores.shape[1:], dtype=torch.bool, device=x.device).triu(1)
    return (scores.masked_fill(closed, float("-inf")).softmax(-1) @ tokens).transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize(
    "options", [{"is_causal": True}, {"attn_mask": torch.ones(30, 30, dtype=torch.bool).tril()}, {}]
)
def test_masked_attention_is_an_upper_bound(options):
    def fused(net, x):
        tokens = net.conv(x).flatten(2).transpose(1, 2)[:, None]
        return F.scaled_dot_product_attention(tokens, tokens, tokens, **options)[:, 0].transpose(1, 2).reshape(x.shape)

    field = Seen(Does(fused if options else masked_scores, conv=conv()), (6, 5)).trf((2, 2))
    assert not field.exact
    assert field.box_px == ((0, 5), (0, 4))
    assert not options or (field.inexact_by, field.global_by) == (("attention mask",), "softmax attention")


@pytest.mark.parametrize(
    ("function", "space", "layout", "unit"),
    [
        # 20 runs of 9 tokens of 15 columns: run 3 is the end of row 1 and the beginning of row 2.
        (lambda n, x: F.avg_pool1d(n.one(x).flatten(2), 9).view(-1, 2, 4, 5), (12, 15), FIRST, (0, 3)),
        # A running sum over a list of tokens.
        (lambda n, x: n.conv(x).flatten(2).cumsum(2).mT, (6, 5), Layout(dims=(1,), grid=(6, 5)), (3, 4)),
    ],
)
def test_runs_of_tokens_have_an_upper_bound(function, space, layout, unit):
    found = Seen(positive(Does(function, conv=conv(), one=conv(1, padding=0))), space, layout=layout)
    assert unit != (0, 3) or found.support(unit) == ((1, 2), (0, 14))
    assert holds(found.trf(unit).clipped_box_px, found.support(unit))


# --- public models


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer", "size"),
    [
        ("resnet18", "layer4", 435),
        ("resnet34", "layer4", 899),
        ("resnet50", "layer4", 427),
        ("resnet101", "layer4", 971),
        ("resnet152", "layer4", 1451),
        ("wide_resnet50_2", "layer4", 427),
        ("vgg16", "features.30", 212),
        ("convnext_tiny", "stages.3", 1688),
    ],
)
def test_published_sizes(name, layer, size):
    """Kim et al. 2023, table 1, for the ResNets; VGG-16 after pool5; ConvNeXt-T by the formula of its layers."""
    site = of(name, (224, 288)).site(layer)
    field = site.trf(site.nearest_unit())
    assert field.size_px == field.local_size_px == (size, size)
    assert (field.exact, field.center_exact, field.global_by) == (True, True, None)
    assert field.stride_px == (32.0, 32.0)
    if name == "convnext_tiny":  # a unit sits at 32 u and 15 and a half
        assert (site.trf((2, 5)).center_px, site.nearest_unit()) == ((79.5, 175.5), (3, 4))


def test_a_resnet_unit_sits_at_32_u_and_its_box_is_not_clipped():
    model = of("resnet18", (224, 224))
    site = model.site("layer4")
    assert site.trf((3, 3)).box_px == ((-121, 313), (-121, 313))
    assert site.trf((3, 3)).clipped_box_px == ((0, 223), (0, 223))
    assert all(site.trf((u, 6 - u)).center_px == (32.0 * u, 32.0 * (6 - u)) for u in range(7))
    inner = model.site("layer4", "layer3").trf((3, 3))
    # 3x3 stride 2, then three 3x3: 1 + 2 + 3 * 2 * 2
    assert (inner.reference_px, inner.size_px) == ((14, 14), (15, 15))
    assert (inner.stride_px, inner.center_px, inner.all_paths) == ((2.0, 2.0), (6.0, 6.0), True)
    assert model.site("layer3", "layer3").trf((3, 3)).box_px == ((3, 3), (3, 3))
    assert model.site("layer4.1.bn2", "layer4.1:in").trf((3, 3)).size_px == (5, 5)
    assert not model.site("layer1.0", "layer1.0.conv1").trf((8, 8)).all_paths
    assert model.site("layer1.0", "layer1.0:in").trf((8, 8)).all_paths


@pytest.mark.parametrize("side", [1, 2])
def test_a_map_of_few_units_keeps_its_size_beyond_the_borders(side):
    field = of("resnet18", (32 * side, 32 * side)).site("layer4").trf((0, 0))
    assert (field.size_px, field.box_px) == ((435, 435), ((-217, 217), (-217, 217)))
    assert field.clipped_box_px == ((0, 32 * side - 1), (0, 32 * side - 1))


def test_the_shortcuts_of_a_resnet_d_lie_half_a_cell_beside_its_convolutions():
    field = of("resnet26d", (64, 64)).site("layer2").trf((3, 3))
    assert (field.center_exact, field.center_px) == (False, (24.0, 24.0))
    assert "puts unit 0 at 0 px" in field.center_inexact_reason
    assert "puts unit 0 at 2 px" in field.center_inexact_reason  # half of the 4 px between the units of layer1


@pytest.mark.slow
def test_squeeze_excite_is_global_with_a_local_size():
    site = of("efficientnet_b0", (224, 224)).site("blocks.6")
    field = site.trf(site.nearest_unit())
    assert (field.size_px, field.box_px, field.local_size_px) == ((224, 224), ((0, 223), (0, 223)), (851, 851))
    assert (field.global_by, field.center_px) == ("global average pooling (blocks.0.0.se)", (96.0, 96.0))


@needs_meta_transformers
@pytest.mark.slow
def test_a_transformers_stages_are_maps_and_references():
    """timm permutes a block's tokens into a map only after the block; later blocks go on from the tokens."""
    model = of("vit_tiny_patch16_224", (224, 192), img_size=(224, 192))
    (stage,) = (layer for layer in model.recording.layers if layer.name == "blocks.5")
    assert (stage.stage, stage.shape) == (True, (1, 192, 14, 12))
    assert model.site("blocks.5").nearest_unit() == (7, 6)
    field = model.site("blocks.5").trf((7, 6))
    assert (field.center_px, field.local_size_px) == ((16 * 7 + 7.5, 16 * 6 + 7.5), (16, 16))
    assert (field.exact, field.global_by) == (True, "softmax attention (blocks.0.attn)")
    for layer, first in (("blocks.5", 4), ("blocks.4.mlp.fc1", 4)):
        inner = model.site(layer, "blocks.3").trf((7, 6))
        assert (inner.size_px, inner.local_box_px, inner.all_paths) == ((14, 12), ((7, 7), (6, 6)), True)
        assert inner.global_by == f"softmax attention (blocks.{first}.attn)"
    with torch.inference_mode():
        again = of("vit_tiny_patch16_224", (224, 192), img_size=(224, 192))
        assert again.site("blocks.5").trf((7, 6)) == field


@pytest.mark.slow
def test_swin_sees_its_windows_and_becomes_global_where_one_window_is_the_map():
    model = of("swin_tiny_patch4_window7_224", (224, 224))
    first = model.site("layers.0.blocks.0").trf((30, 30))
    assert (first.box_px, first.center_px) == (((112, 139), (112, 139)), (121.5, 121.5))  # tokens 28 to 34
    # Shifted by 3: tokens 24 to 30 (31 starts the next window), which lie in the windows 21 to 27 and 28 to 34.
    assert model.site("layers.0").trf((30, 30)).box_px == ((84, 139), (84, 139))
    last = model.site("layers.3").trf((3, 3))
    assert (last.global_by, last.center_px) == ("softmax attention (layers.3.blocks.0.attn)", (111.5, 111.5))
    assert last.exact


@pytest.mark.slow
@pytest.mark.parametrize("size", [224, 225, 230])
def test_padding_computed_from_the_size_gives_whole_boxes_of_one_size(size):
    site = of("tf_mobilenetv3_small_minimal_100", (size, size)).site("blocks.5")
    boxes = [site.trf((u, u)) for u in range(site.space[0])]
    assert {box.local_size_px for box in boxes} == {boxes[0].local_size_px}
    assert {box.stride_px for box in boxes} == {(32.0, 32.0)}
    centers = [box.center_px[0] for box in boxes]
    assert {b - a for a, b in itertools.pairwise(centers)} == {32.0}
    nearest = min(range(len(boxes)), key=lambda u: (abs(centers[u] - (size - 1) / 2), -u))
    assert site.nearest_unit() == (nearest, nearest)


@pytest.mark.slow
def test_a_pyramids_finest_map_follows_its_lateral_path():
    """Top-down paths come in steps of 32 pixels; the lateral one puts unit u near 4u."""
    fpn = torchvision.models.detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    site = load(fpn, (224, 224)).site("output[0]")
    assert all(abs(site.trf((u, u)).center_px[0] - 4 * u) <= 4 for u in range(12, 44))


#: Families whose windows, token lists and pooled keys took rules of their own, by what they are global.
FAMILIES = {
    "mobilevitv2_050": (128, "stages.4", "group norm (stages.2.1.transformer.0.norm1)"),
    "nextvit_small": (224, "stages.3", "softmax attention (stages.1.blocks.3.e_mhsa)"),
    "halonet26t": (256, "final_conv", "softmax attention (stages.3.1.self_attn)"),
    "botnet26t_256": (256, "final_conv", "softmax attention (stages.2.1.self_attn)"),
    "efficientvim_m1": (224, "stages.2.blocks.1.ffn", "softmax over positions (stages.0.blocks.0.mixer)"),
    "hieradet_small": (256, "blocks.15", "softmax attention (blocks.4.attn)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_operation_of_a_family_is_understood(name):
    side, layer, global_by = FAMILIES[name]
    model = of(name, (side, side))
    field = model.site(layer).trf(model.site(layer).nearest_unit())
    assert field.exact, field.inexact_by
    assert field.global_by == global_by
    assert field.clipped_box_px == ((0, side - 1), (0, side - 1))
    if name == "halonet26t":
        # One block of 8 units of 16 pixels and two more on either side; a 3x3 convolution and the first layers around
        # them.
        inner = model.site("stages.2.1.self_attn", "stages.2.1.self_attn:in").trf((9, 9))
        assert (inner.clipped_box_px, inner.center_px) == (((6, 15), (6, 15)), (9.0, 9.0))
    if name == "hieradet_small":  # it halves the map inside windows of 8, of which a unit reads one
        assert model.site("blocks.1", "blocks.0").trf((9, 9)).box_px == ((16, 23), (16, 23))


@pytest.mark.slow
def test_paths_half_a_stride_apart_give_no_exact_centre():
    """LowFormer's attention works on a map of half the size and comes back up; without it unit u sits at a multiple of
    the stride."""
    model = of("lowformer_b0", (224, 224))
    for layer, stride in (("stages.2", 16), ("stages.3", 32)):
        site = model.site(layer)
        fields = [site.trf((u, u)) for u in range(site.space[0])]
        assert all(field.center_px[0] == stride * u for u, field in enumerate(fields) if field.center_exact)
        assert not all(field.center_exact for field in fields)
    assert model.site("stages.1").trf((7, 7)).center_exact


# --- layers, references, errors


def test_a_reference_is_the_value_at_that_moment_not_what_an_in_place_operation_makes_of_it_later():
    def forward(n, x):
        y = n.a(x)
        y.add_(n.b(x))
        return n.c(y)

    model = load(Does(forward, a=conv(), b=conv(), c=conv()), (16, 16), 2)
    assert model.site("a").trf((8, 8)).size_px == (3, 3)
    assert model.site("c", "a").trf((8, 8)).size_px == (3, 3)
    assert not model.site("c", "a").trf((8, 8)).all_paths
    assert model.site("c", "c:in").trf((8, 8)).all_paths


def test_errors_say_what_was_asked_and_what_there_is():
    model = of("resnet18", (64, 64))
    for asked, words in (
        (("layer5",), r"unknown layer 'layer5'.*did you mean 'layer"),
        (("layer4", "imag"), r"unknown reference 'imag'.*did you mean 'image'"),
        (("layer2", "layer4"), "layer 'layer2' does not depend on 'layer4'"),
        (("fc",), r"layer 'fc' holds no spatial map: its output has shape \(1, 1000\)"),
    ):
        with pytest.raises(ErfscopeError, match=words):
            model.site(*asked).trf((0, 0))
    with pytest.raises(ErfscopeError, match=r"unit \(2, 0\) lies outside the map of layer4, which has 2x2 units"):
        model.site("layer4").trf((2, 0))


def test_errors_of_the_callers_own_forward_pass_through():
    def forward(module, x):
        raise ErfscopeError("mine")

    with pytest.raises(ErfscopeError, match="mine"):
        _ = erfscope.wrap(conv(), input_size=(8, 8), forward=forward).recording


def test_pytorchs_fused_encoder_is_seen_through_and_its_switch_is_left_as_it_was():
    net = Does(
        lambda n, x: n.layer(n.patch(x).flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, (4, 4)),
        patch=nn.Conv2d(2, 8, 4, 4),
        layer=nn.TransformerEncoderLayer(8, 2, batch_first=True),
    )
    before = torch.backends.mha.get_fastpath_enabled()
    field = seen(net, (16, 16)).trf((2, 1))
    assert (field.exact, field.local_box_px) == (True, ((8, 11), (4, 7)))
    assert field.global_by is not None
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_layers_come_in_the_order_of_execution_with_their_stages():
    by_name = {layer.name: layer for layer in of("resnet18", (64, 64)).recording.layers}
    names = [*by_name]
    assert names.index("layer1.0.conv1") < names.index("layer1.0") < names.index("layer1") < names.index("layer4")
    assert not any(name.endswith(":in") or name == "image" for name in names)
    assert by_name["layer4"].shape == (1, 512, 2, 2)
    assert "fc" not in by_name

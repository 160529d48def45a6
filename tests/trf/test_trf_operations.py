"""Every operation with a rule against the support of the gradient."""

import pytest
import torch
import torch.nn.functional as F
from test_trf_oracle import check, corners_and_middle, covers, opened, recorded, support_of
from torch import nn

from erfscope.geometry.layout import Layout

LAST = Layout(order="channels_last")


class Net(nn.Module):
    """Parts by name and a forward that uses them: f(parts, x)."""

    def __init__(self, f, **parts):
        super().__init__()
        self.f = f
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.f(self, x)


def conv(kernel=3, stride=1, padding=1, dilation=1, groups=1, width=2):
    return nn.Conv2d(2, width, kernel, stride, padding, dilation, groups)


def windows(x, size):
    """(B, H, W, C) -> (B * windows, size * size, C)"""
    b, h, w, c = x.shape
    return x.view(b, h // size, size, w // size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, c)


def unwindows(x, size, h, w):
    c = x.shape[-1]
    return x.view(-1, h // size, w // size, size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, c)


def attention(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


def window_attention(net, x):
    """One block of Swin: shift, windows of 4, attention, back, skip."""
    y = net.conv(x).permute(0, 2, 3, 1)
    y = torch.roll(y, (-2, -2), (1, 2))
    t = windows(y, 4)
    t = attention(net.q(t), net.k(t), net.v(t))
    y = torch.roll(unwindows(t, 4, *x.shape[2:]), (2, 2), (1, 2))
    return x + y.permute(0, 3, 1, 2)


def merged(net, x):
    """Swin's patch merging: 2 x 2 positions become channels, a norm and a linear layer follow; channels last all
    along."""
    x = x.permute(0, 2, 3, 1)
    b, h, w, c = x.shape
    x = x.reshape(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)
    return net.linear(net.norm(x)).permute(0, 3, 1, 2)


def halves_by_slices(net, x):
    parts = [x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    return net.conv(torch.cat(parts, 1))


def written_in_place(net, x):
    """A padded buffer filled through views, then changed through another view of it."""
    y = net.conv(x)
    buffer = y.new_zeros(1, 2, y.shape[2] + 2, y.shape[3])
    buffer[:, :, 1:-1].copy_(y)
    buffer[:, :, 0] = y[:, :, 3]
    view = buffer.transpose(2, 3)
    view[:, :, 2:4, 1:-1] += net.wide(y)[:, :, :, 2:4].transpose(2, 3)
    buffer.mul_(2)
    return net.last(buffer)


def later_write(net, x):
    """A view taken before its base is overwritten shows the new values."""
    y = net.conv(x)
    view = y[:, :, 2:-2]
    y.add_(net.wide(x))
    return view


def fold_unfold(net, x):
    y = F.unfold(net.conv(x), 3, padding=1, stride=2)
    return F.fold(net.mix(y.transpose(1, 2)).transpose(1, 2), x.shape[2:], 3, padding=1, stride=2)


def halo(net, x):
    """Keys from overlapping windows, as in HaloNet."""
    y = F.pad(net.conv(x), [1, 1, 1, 1]).unfold(2, 6, 4).unfold(3, 6, 4)
    return y.sum((-1, -2))


def pixels_by_hand(net, x):
    y = net.wide(x)
    b, _, h, w = y.shape
    y = y.view(b, 2, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, 2, h * 2, w * 2)
    return net.conv(y)


def pixels_down_by_hand(net, x):
    b, c, h, w = x.shape
    y = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, c * 4, h // 2, w // 2)
    return net.conv(y)


def shuffled(net, x):
    """ShuffleNet: split, one half through a convolution, joined, channels shuffled."""
    a, b = net.conv(x).chunk(2, 1)
    y = torch.cat([a, net.one(b)], 1)
    return y.view(1, 2, 1, *y.shape[2:]).transpose(1, 2).flatten(1, 2)


def axial(net, x):
    """Attention along rows only: global along one axis."""
    y = net.conv(x).permute(0, 2, 3, 1)
    return (x.permute(0, 2, 3, 1) + attention(y, y, y)).permute(0, 3, 1, 2)


def both(net, x):
    y = net.conv(x)
    rows, cols = y.mean(3, keepdim=True), y.mean(2, keepdim=True)
    return y * rows * cols


def stacked_and_unbound(net, x):
    a, b = torch.stack([net.conv(x), net.wide(x)], 2).unbind(2)
    return a + b


CASES = {
    "chain": (Net(lambda n, x: n.b(n.a(x)), a=conv(5, 2, 2), b=conv(3)), (23, 18)),
    "dilated": (Net(lambda n, x: n.b(n.a(x)), a=conv(3, padding=2, dilation=2), b=conv(3)), (20, 21)),
    "grouped, no padding": (Net(lambda n, x: n.b(n.a(x)), a=conv(3, 2, 0, groups=2), b=conv(3)), (21, 19)),
    "residual": (Net(lambda n, x: n.c(x + n.b(n.a(x))), a=conv(), b=conv(), c=conv(3, 2)), (17, 16)),
    "in place": (Net(lambda n, x: n.a(x).add_(n.b(x)).mul_(2.0).relu_(), a=conv(), b=conv(5, padding=2)), (12, 13)),
    "branches": (
        Net(lambda n, x: n.c(torch.cat([n.a(x), n.b(x)], 1)), a=conv(), b=conv(7, padding=3), c=nn.Conv2d(4, 2, 1)),
        (20, 17),
    ),
    "average pooling": (Net(lambda n, x: F.avg_pool2d(n.a(x), 3, 2, 1), a=conv()), (19, 20)),
    "ceil mode": (Net(lambda n, x: F.avg_pool2d(n.a(x), 3, 2, ceil_mode=True), a=conv()), (18, 15)),
    "transposed k4 s2 p1": (Net(lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(2, 2, 4, 2, 1), b=conv()), (9, 8)),
    "transposed k3 s2 p1": (Net(lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(2, 2, 3, 2, 1, 1), b=conv()), (9, 8)),
    "transposed dilated": (
        Net(lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(2, 2, 3, 2, 2, 1, dilation=2), b=conv(5, padding=2)),
        (9, 8),
    ),
    "transposed of strided": (
        Net(lambda n, x: x + n.b(n.a(x)), a=conv(4, 2, 1), b=nn.ConvTranspose2d(2, 2, 4, 2, 1)),
        (12, 14),
    ),
    "nearest": (Net(lambda n, x: n.a(F.interpolate(x, scale_factor=2)), a=conv()), (7, 9)),
    "nearest to a size": (Net(lambda n, x: n.a(F.interpolate(x, (17, 13))), a=conv()), (7, 9)),
    "nearest exact": (Net(lambda n, x: n.a(F.interpolate(x, (17, 5), mode="nearest-exact")), a=conv()), (7, 9)),
    "bilinear": (Net(lambda n, x: F.interpolate(n.a(x), scale_factor=2, mode="bilinear"), a=conv()), (7, 9)),
    "bilinear to a size": (Net(lambda n, x: F.interpolate(n.a(x), (5, 20), mode="bilinear"), a=conv()), (7, 9)),
    "aligned corners": (
        Net(lambda n, x: F.interpolate(n.a(x), (13, 17), mode="bilinear", align_corners=True), a=conv()),
        (7, 9),
    ),
    "bicubic": (Net(lambda n, x: F.interpolate(n.a(x), scale_factor=2, mode="bicubic"), a=conv()), (9, 11)),
    "antialiased": (
        Net(lambda n, x: F.interpolate(n.a(x), (5, 7), mode="bilinear", antialias=True), a=conv()),
        (20, 21),
    ),
    "adaptive pooling": (Net(lambda n, x: F.adaptive_avg_pool2d(n.a(x), (3, 4)), a=conv()), (11, 10)),
    "pixel shuffle": (Net(lambda n, x: n.b(F.pixel_shuffle(n.a(x), 2)), a=conv(width=8), b=conv()), (7, 8)),
    "pixel unshuffle": (Net(lambda n, x: n.a(F.pixel_unshuffle(x, 2)), a=nn.Conv2d(8, 2, 3, padding=1)), (14, 12)),
    "pixel shuffle by hand": (Net(pixels_by_hand, wide=conv(width=8), conv=conv()), (7, 8)),
    "pixel unshuffle by hand": (Net(pixels_down_by_hand, conv=nn.Conv2d(8, 2, 3, padding=1)), (14, 12)),
    "zero padding": (Net(lambda n, x: n.a(F.pad(x, (2, 1, 0, 1))), a=conv(3, 2, 0)), (14, 14)),
    "reflection": (Net(lambda n, x: n.a(F.pad(n.a(x), (1, 1, 1, 1), mode="reflect")), a=conv()), (10, 11)),
    "replication": (Net(lambda n, x: n.a(F.pad(n.a(x), (3, 3, 3, 3), mode="replicate")), a=conv()), (10, 11)),
    "circular padding": (Net(lambda n, x: n.a(x), a=nn.Conv2d(2, 2, 5, padding=2, padding_mode="circular")), (12, 13)),
    "padding same": (Net(lambda n, x: n.a(x), a=nn.Conv2d(2, 2, 3, padding="same", dilation=2)), (12, 13)),
    "shifted windows": (
        Net(window_attention, conv=conv(1, padding=0), q=nn.Linear(2, 2), k=nn.Linear(2, 2), v=nn.Linear(2, 2)),
        (12, 16),
    ),
    "patch merging": (Net(merged, norm=nn.LayerNorm(8), linear=nn.Linear(8, 3)), (12, 16)),
    "halves by slices": (Net(halves_by_slices, conv=nn.Conv2d(8, 2, 3, padding=1)), (12, 14)),
    "channels-last linear": (
        Net(lambda n, x: n.b(n.a(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)), a=nn.Linear(2, 2), b=conv()),
        (9, 8),
    ),
    "written in place": (Net(written_in_place, conv=conv(), wide=conv(5, padding=2), last=conv()), (11, 12)),
    "written later": (Net(later_write, conv=conv(1, padding=0), wide=conv(5, padding=2)), (14, 12)),
    "unfold and fold": (Net(fold_unfold, conv=conv(), mix=nn.Linear(18, 18)), (11, 12)),
    "overlapping windows": (Net(halo, conv=conv()), (16, 12)),
    "shuffled channels": (Net(shuffled, conv=conv(), one=nn.Conv2d(1, 1, 5, padding=2)), (12, 13)),
    "flipped": (Net(lambda n, x: n.a(x.flip(3)), a=conv(3, 2)), (12, 13)),
    "transposed axes": (Net(lambda n, x: n.b(n.a(x) + x.transpose(2, 3)), a=conv(), b=conv()), (12, 12)),
    "stacked": (Net(stacked_and_unbound, conv=conv(), wide=conv(5, padding=2)), (12, 13)),
    "side by side": (Net(lambda n, x: torch.cat([n.a(x), n.b(x)], 2), a=conv(), b=conv(5, padding=2)), (8, 9)),
    "tiled": (Net(lambda n, x: n.a(x.repeat(1, 1, 1, 2)[..., :9]), a=conv()), (8, 9)),
    "repeated cells": (Net(lambda n, x: n.b(n.a(x).repeat_interleave(2, dim=3)), a=conv(), b=conv()), (8, 9)),
    "einsum": (
        Net(lambda n, x: torch.einsum("bchw,dc->bdhw", n.a(x), n.b.weight), a=conv(), b=nn.Linear(2, 3)),
        (8, 9),
    ),
    "where and clamp": (
        Net(lambda n, x: torch.where(n.a(x) > 0, n.b(x), n.a(x)).clamp(-1e9, 1e9), a=conv(), b=conv(5, padding=2)),
        (12, 11),
    ),
    "norm over channels": (
        Net(lambda n, x: n.a(F.layer_norm(x.permute(0, 2, 3, 1), (2,)).permute(0, 3, 1, 2)), a=conv()),
        (9, 8),
    ),
    "frozen batch norm": (Net(lambda n, x: n.a(n.b(x)), a=conv(), b=nn.BatchNorm2d(2)), (9, 8)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_box_is_the_support_of_the_gradient(name):
    module, space = CASES[name]
    module = opened(module)
    for child in module.modules():
        if (
            isinstance(child, nn.Linear) and child.out_features == 2
        ):  # attention that is not uniform, norms that do not cancel
            nn.init.normal_(child.weight, generator=torch.Generator().manual_seed(3))
    check(module, space, open_gates=False)


def squeezed(net, x):
    y = net.conv(x)
    return y * net.gate(y.mean((2, 3), keepdim=True)).sigmoid()


def tokens(net, x):
    """A vision transformer's block with a class token."""
    t = net.patch(x).flatten(2).transpose(1, 2)
    t = torch.cat([net.cls.expand(1, -1, -1), t], 1) + net.position
    q, k, v = net.qkv(net.norm(t)).reshape(1, t.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, t.shape[1], 8)
    return t + y


TOKENS = Net(tokens, patch=nn.Conv2d(2, 8, 4, 4), norm=nn.LayerNorm(8), qkv=nn.Linear(8, 24))
TOKENS.cls = nn.Parameter(torch.randn(1, 1, 8))
TOKENS.position = nn.Parameter(torch.randn(1, 13, 8))


def non_local(net, x):
    q, k, v = (part(x).flatten(2) for part in (net.q, net.k, net.v))
    y = (q.transpose(1, 2) @ k).div(q.shape[-1]) @ v.transpose(1, 2)
    return x + y.transpose(1, 2).view_as(x)


def cross_covariance(net, x):
    q, k, v = (part(x).flatten(2) for part in (net.q, net.k, net.v))
    return x + ((q @ k.transpose(1, 2)).softmax(-1) @ v).view_as(x)


def fourier(net, x):
    return x + torch.fft.irfft2(torch.fft.rfft2(net.conv(x)) * net.gate.weight, s=x.shape[2:])


def mixed_tokens(net, x):
    y = net.conv(x).flatten(2)
    return x + net.linear(y).view_as(x)


THREE = {"q": conv(1, padding=0), "k": conv(1, padding=0), "v": conv(1, padding=0)}
GLOBAL = {
    "squeeze-excite": (Net(squeezed, conv=conv(), gate=conv(1, padding=0)), "global average pooling", (3, 3)),
    "max gate": (Net(lambda n, x: n.conv(x) * x.logsumexp((2, 3), keepdim=True), conv=conv()), "logsumexp", (3, 3)),
    "group norm": (
        Net(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=nn.GroupNorm(2, 2)),
        "group norm (norm)",
        (3, 3),
    ),
    "instance norm": (
        Net(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=nn.InstanceNorm2d(2)),
        "batch or instance norm",
        (3, 3),
    ),
    "layer norm over positions": (
        Net(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=nn.LayerNorm((2, 12, 8))),
        "layer norm",
        (3, 3),
    ),
    "dot-product non-local": (Net(non_local, **THREE), "dot-product attention", (1, 1)),
    "cross-covariance": (Net(cross_covariance, **THREE), "softmax attention", (1, 1)),
    "Fourier": (Net(fourier, conv=conv(), gate=nn.Linear(5, 12)), "Fourier transform", (1, 1)),
    "token mixing": (Net(mixed_tokens, conv=conv(), linear=nn.Linear(96, 96)), "token mixing (linear)", (1, 1)),
    "rows and columns": (Net(both, conv=conv()), "global average pooling", (3, 3)),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_a_global_operation_is_named_and_left_out_of_the_local_size(name):
    module, words, local = GLOBAL[name]
    recording = check(module, (12, 8), open_gates=False, global_by=words)
    field = recording.trf("out", (5, 4))
    assert field.box_px == ((0, 11), (0, 7))
    assert field.local_size_px == local
    assert field.center_px == (5.0, 4.0)
    assert field.center_exact


def test_attention_on_tokens_is_global_and_the_unit_keeps_its_patch():
    grid = Layout(order="tokens", grid=(3, 4), prefix=1)
    recording = check(TOKENS, (12, 16), layout=grid, open_gates=False, global_by="softmax attention")
    field = recording.trf("out", (1, 2))
    assert field.local_box_px == ((4, 7), (8, 11))
    assert field.center_px == (5.5, 9.5)
    assert field.stride_px == (4.0, 4.0)


def test_batch_norm_is_global_in_training_and_local_in_evaluation():
    net = Net(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=nn.BatchNorm2d(2))
    assert check(net, (12, 8), train=True, open_gates=False, global_by="batch or instance norm").trf(
        "out", (5, 4)
    ).local_size_px == (3, 3)
    assert recorded(net, (12, 8)).trf("out", (5, 4)).global_by is None


def test_attention_along_one_axis_is_global_along_that_axis_only():
    recording = check(Net(axial, conv=conv()), (12, 9), open_gates=False)
    field = recording.trf("out", (5, 4))
    assert field.box_px == ((4, 6), (0, 8))
    assert field.local_box_px == ((4, 6), (3, 5))
    assert field.global_by is None


SELECTIVE = {
    "max pooling": Net(lambda n, x: F.max_pool2d(n.conv(x), 3, 2, 1), conv=conv()),
    "dilated max pooling": Net(lambda n, x: F.max_pool2d(n.conv(x), 3, 2, 1, dilation=2, ceil_mode=True), conv=conv()),
    "adaptive max pooling": Net(lambda n, x: F.adaptive_max_pool2d(n.conv(x), 5), conv=conv()),
    "cropped": Net(lambda n, x: n.conv(n.conv(x)[:, :, 3:-2, 2:]), conv=conv()),
    "negative padding": Net(lambda n, x: n.conv(F.pad(x, (-2, 0, 1, -3))), conv=conv()),
}


@pytest.mark.parametrize("name", SELECTIVE)
def test_the_box_covers_operations_that_pick_or_crop(name):
    check(SELECTIVE[name], (14, 13), equal=False)


def test_a_slice_of_tokens_by_rows_is_a_slice_of_the_map():
    net = Net(lambda n, x: n.conv(x).flatten(2)[:, :, 18:54].view(1, 2, 4, 9), conv=conv())
    field = recorded(net, (8, 9)).trf("out", (1, 4))
    assert field.exact
    assert field.box_px == ((2, 4), (3, 5))


@pytest.mark.parametrize(
    ("module", "space", "box"),
    [
        (nn.Sequential(nn.Conv1d(2, 2, 3, 2, 1), nn.Conv1d(2, 2, 3, padding=1)), (32,), ((11, 17),)),
        (
            nn.Sequential(nn.Conv3d(2, 2, (3, 1, 3), (1, 2, 2), (1, 0, 1)), nn.Conv3d(2, 2, 3, padding=1)),
            (8, 15, 16),
            ((2, 6), (4, 8), (3, 9)),
        ),
    ],
)
def test_one_and_three_axes_work_alike(module, space, box):
    recording = check(module, space)
    unit = (7,) if len(space) == 1 else (4, 3, 3)
    assert recording.trf("out", unit).box_px == box


def test_frames_folded_into_the_batch_keep_their_axis():
    """(B, C, T, H, W) through a 2-D convolution frame by frame, then one over time."""

    def forward(net, x):
        b, c, t, h, w = x.shape
        y = net.frame(x.transpose(1, 2).reshape(b * t, c, h, w))
        return net.time(y.view(b, t, *y.shape[1:]).transpose(1, 2))

    net = Net(forward, frame=conv(3, 2), time=nn.Conv3d(2, 2, (3, 1, 1), padding=(1, 0, 0)))
    recording = check(net, (6, 12, 10))
    assert recording.trf("out", (2, 3, 2)).box_px == ((1, 3), (5, 7), (3, 5))


#: What is not understood, and along how many of the two axes that leaves everything to be read.
UNKNOWN = {
    "grid_sampler_2d": lambda n, x: F.grid_sample(n.conv(x), n.conv(x)[:, :2].permute(0, 2, 3, 1), align_corners=False),
    "index": lambda n, x: n.conv(x)[:, :, torch.tensor([3, 1, 0, 2], device=x.device)],
    "index_select": lambda n, x: n.conv(x).index_select(2, torch.tensor([3, 1, 0, 2], device=x.device)),
    "gather": lambda n, x: n.conv(x).gather(
        2, torch.arange(11, -1, -1, device=x.device).view(1, 1, 12, 1).expand(1, 2, 12, 12)
    ),
    "sort": lambda n, x: n.conv(x).sort(2)[0],
    "topk": lambda n, x: n.conv(x).topk(5, 2)[0],
    "scatter": lambda n, x: n.conv(x).scatter(2, torch.zeros(1, 2, 1, 12, dtype=torch.int64, device=x.device), 1.0),
    "as_strided": lambda n, x: n.conv(x).as_strided((1, 2, 6, 12), (288, 144, 24, 1)),
    "view": lambda n, x: n.conv(x).reshape(1, 2, 9, 16),
}


#: Those that leave the second axis alone.
ALONG = {"index", "index_select", "gather", "sort", "topk"}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_understood_widens_the_box_and_is_named(name):
    net = opened(Net(UNKNOWN[name], conv=conv()))
    recording = recorded(net, (12, 12))
    (shape,) = (entry.shape for entry in recording.layers if entry.name == "out")
    for unit in corners_and_middle(shape[2:]):
        field = recording.trf("out", unit)
        support = support_of(net, (12, 12), unit)
        assert support is None or covers(field.clipped_box_px, support)
        assert not field.exact
        assert field.inexact_by == (name,)
        assert field.global_by is None
        assert field.box_px[0] == (0, 11)
        assert field.box_px[1] == ((unit[1] - 1, unit[1] + 1) if name in ALONG else (0, 11))
    field = recording.trf("out", tuple(s // 2 for s in shape[2:]))
    natural = tuple((s // 2 + 0.5) * 12 / s - 0.5 for s in shape[2:])
    assert field.center_px == ((natural[0], shape[3] // 2) if name in ALONG else natural)
    assert not field.center_exact

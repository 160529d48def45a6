"""Adversarial nets of other kinds: resizing, pyramids, containers, sequences, batches that mix, chance, in-place work,
control flow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nets import SIZE, Does, Positions, along, conv, net, plane, table

H, W = SIZE
HERE = plane()
HALF = (H // 2, W // 2)


# --- resizing: centres by coordinates


def up(x: Tensor, how: str, align: bool | None = None) -> Tensor:
    """Twice as large."""
    return F.interpolate(x, scale_factor=2, mode=how, align_corners=align)


@net("resize", plane(-0.5, 1.0))
def bilinear_up_of_a_strided_map():
    """A stride-2 map whose cell u stands at 2u, bilinear by two: unit u at u - 0.5."""
    return Does(lambda m, x: m.out(up(m.stem(x).tanh(), "bilinear", False)), stem=conv(s=2), out=conv(4))


@net("resize", plane(0, (2 * 15 / 31, 2 * 19 / 39)))
def bilinear_up_with_aligned_corners():
    """A stride-2 map, bilinear by two with aligned corners: the step is 2 (n - 1) / (2 n - 1)."""
    return Does(lambda m, x: m.out(up(m.stem(x).tanh(), "bilinear", True)), stem=conv(s=2), out=conv(4))


@net("resize", plane(centre=lambda i: (2 * (i[0] // 2), 2 * (i[1] // 2)), slack=0.51))
def nearest_up():
    """A stride-2 map, doubled by nearest neighbours."""
    return Does(lambda m, x: m.out(up(m.stem(x).tanh(), "nearest")), stem=conv(s=2), out=conv(4, k=1))


@net("resize", plane(-0.5, 1.0, slack=0.51))
def transposed_by_four():
    """A stride-2 map, transposed convolution 4/2/1: unit u at u - 0.5."""
    return Does(lambda m, x: m.out(m.stem(x).tanh()), stem=conv(s=2), out=nn.ConvTranspose2d(4, 4, 4, 2, 1))


@net("resize", plane(1, 2.0, HALF))
def padded_as_by_tensorflow():
    """SAME padding: 3 x 3 at stride 2 padded below and right only."""
    return Does(lambda m, x: m.out(m.stem(F.pad(x, (0, 1, 0, 1))).tanh()), stem=nn.Conv2d(3, 4, 3, 2), out=conv(4))


@net("resize", plane(exact=False))
def strided_and_back():
    """x + up(conv at stride 2): the branches disagree by half a pixel."""
    return Does(lambda m, x: m.stem(x) + up(m.low(m.stem(x).tanh()), "bilinear", False), stem=conv(), low=conv(4, s=2))


@net("resize", plane((32 / 48 / 2 - 0.5, 40 / 48 / 2 - 0.5), (32 / 48, 40 / 48), (48, 48)))
def resizes_its_input_to_a_square():
    """The model resizes its input to 48 x 48, as detectors do."""
    return Does(
        lambda m, x: m.body(F.interpolate(x, (48, 48), mode="bilinear", align_corners=False)),
        body=nn.Sequential(conv(), nn.Tanh(), conv(4)),
    )


@net("resize", plane(((H / 7 - 1) / 2, (W / 7 - 1) / 2), (H / 7, W / 7), (7, 7), exact=None, slack=0.51))
def pooled_to_seven():
    """Adaptive pooling to 7 x 7, which divides neither side."""
    return Does(lambda m, x: m.out(F.adaptive_avg_pool2d(m.stem(x).tanh(), 7)), stem=conv(), out=conv(4))


@net("resize", plane(exact=None))
def max_pooled_and_unpooled():
    """Max-pooling, and unpooling to where the maxima were."""

    def forward(m, x):
        y, where = F.max_pool2d(m.stem(x).tanh(), 2, return_indices=True)
        return m.out(F.max_unpool2d(y, where, 2) + m.stem(x))

    return Does(forward, stem=conv(), out=conv(4))


@net("resize", plane(centre=lambda i: tuple(2 * (side // 2) + 0.5 for side in i), slack=0.51))
def pixel_shuffle():
    """PixelUnshuffle and PixelShuffle by two."""
    return Does(
        lambda m, x: m.out(F.pixel_shuffle(m.mid(F.pixel_unshuffle(m.stem(x), 2)).tanh(), 2)),
        stem=conv(),
        mid=conv(16, 16, 1),
        out=conv(4, k=1),
    )


class UNet(nn.Module):
    """Three levels: two times down by pooling, and up again with skips."""

    def __init__(self, *, align: bool) -> None:
        super().__init__()
        self.one, self.two, self.three = conv(), conv(4), conv(4)
        self.back, self.last, self.align = conv(8), conv(8), align

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x).tanh()
        two = self.two(F.avg_pool2d(one, 2)).tanh()
        three = self.three(F.avg_pool2d(two, 2)).tanh()
        two = self.back(torch.cat([two, up(three, "bilinear", self.align)], 1)).tanh()
        return self.last(torch.cat([one, up(two, "bilinear", self.align)], 1))


@net("U-Net", HERE)
def unet_bilinear():
    """A U-Net with bilinear up-sampling: every branch stands on the unit's own pixel."""
    return UNet(align=False)


@net("U-Net", plane(exact=False))
def unet_aligned():
    """A U-Net with aligned corners: the branches disagree away from the middle."""
    return UNet(align=True)


class Pyramid(nn.Module):
    """Three levels at strides 1, 2 and 4 (of 2 x 2 patches), coarse ones added to fine ones."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv(), nn.Conv2d(4, 4, 2, 2), nn.Conv2d(4, 4, 2, 2)])
        self.side = nn.ModuleList(conv(4) for _ in range(3))

    def forward(self, x: Tensor) -> object:
        maps = []
        for down in self.down:
            x = down(x).tanh()
            maps.append(x)
        tops = [self.side[2](maps[2])]
        for level in (1, 0):
            tops.insert(0, self.side[level](maps[level]) + up(tops[0], "bilinear", False))
        return dict(zip(("p0", "p1", "p2"), tops, strict=True))


#: Of the three levels, and of the convolutions that they came from.
LEVELS = [
    plane(offset, step, grid, layer=layer)
    for level, (grid, offset, step) in enumerate([((H, W), 0, 1), (HALF, 0.5, 2), ((H // 4, W // 4), 1.5, 4)])
    for layer in (f"output[p{level}]", f"side.{level}")
]


@net("pyramid", *LEVELS)
def pyramid_as_a_dict():
    """A dict of three maps."""
    return Pyramid()


@net("pyramid", plane(layer="output[backbone][levels][0]"))
def map_deep_in_containers():
    """A map that is made by a function after the last module, in a list in a dict in a dict."""
    pooled = {"kernel_size": 3, "stride": 1, "padding": 1}
    return Does(lambda m, x: {"backbone": {"levels": [F.avg_pool2d(m.stem(x).tanh(), **pooled)]}}, stem=conv())


@net("pyramid", HERE)
def branches_of_three_dilations():
    """Three dilations and the mean of the image, concatenated (ASPP)."""

    def forward(m, x):
        y = m.stem(x).tanh()
        mean = F.interpolate(m.pool(y.mean((2, 3), keepdim=True)), y.shape[2:], mode="bilinear", align_corners=False)
        return m.out(torch.cat([*(branch(y) for branch in m.branches), mean], 1).tanh())

    branches = nn.ModuleList(nn.Conv2d(4, 2, 3, padding=d, dilation=d) for d in (1, 3, 6))
    return Does(forward, stem=conv(), branches=branches, pool=conv(4, 2, 1), out=conv(8))


# --- sequences

LENGTH = 48


def line(offset: float = 0, step: float = 1, length: int = LENGTH, axes: str = "BLC", **more: object) -> Positions:
    """Units of a sequence (B, L, C), (B, C, L) or (L, B, C)."""
    picks = {"BLC": lambda y, i: y[:, i[0]], "BCL": lambda y, i: y[:, :, i[0]], "LBC": lambda y, i: y[i[0]]}
    return Positions(grid=(length,), pick=picks[axes], centre=along(offset, step, 1), **more)  # type: ignore[arg-type]


SEQUENCE = {"size": (LENGTH,), "channels": 5}


class Causal(nn.Module):
    """A small language model on embeddings (B, C, L): causal attention, scores of a vocabulary (B, L, V)."""

    def __init__(self, vocabulary: int, channels: int = 5) -> None:
        super().__init__()
        self.embed, self.table = nn.Linear(channels, 8), table(LENGTH, 8)
        self.q, self.k, self.v, self.head = (nn.Linear(8, o) for o in (8, 8, 8, vocabulary))

    def forward(self, x: Tensor) -> Tensor:
        t = self.embed(x.transpose(1, 2)) + self.table[: x.shape[2]]
        t = t + F.scaled_dot_product_attention(self.q(t), self.k(t), self.v(t), is_causal=True)
        return self.head(t.tanh())


@net("sequence", line(), **SEQUENCE)
def causal_scores():
    """Scores (B, L, V) whose vocabulary of 50 looks like the length of 48."""
    return Causal(50)


@net("sequence", line(), **SEQUENCE)
def causal_scores_of_as_many_words():
    """Scores (B, L, V) with V = L."""
    return Causal(LENGTH)


@net("sequence", line(-7, axes="BCL"), **SEQUENCE)
def causal_convolutions():
    """Dilated convolutions that look back only, 14 samples in all: by receptive-field arithmetic unit u stands at u -
    7."""

    def forward(m, x):
        for d, layer in zip((1, 2, 4), m.layers, strict=True):
            x = layer(F.pad(x, (2 * d, 0))).tanh()
        return m.out(x)

    layers = nn.ModuleList(nn.Conv1d(5, 5, 3, dilation=d) for d in (1, 2, 4))
    return Does(forward, layers=layers, out=nn.Conv1d(5, 4, 1))


@net("sequence", line(), **SEQUENCE)
def recurrent():
    """An LSTM in both directions."""
    return Does(
        lambda m, x: m.out(m.lstm(x.transpose(1, 2))[0]),
        lstm=nn.LSTM(5, 6, batch_first=True, bidirectional=True),
        out=nn.Linear(12, 7),
    )


@net("sequence", line(axes="LBC"), **SEQUENCE)
def time_first():
    """A GRU that works time first and returns (L, B, C)."""
    return Does(lambda m, x: m.out(m.gru(x.permute(2, 0, 1))[0]), gru=nn.GRU(5, 6), out=nn.Linear(6, 7))


@net("sequence", line(), **SEQUENCE)
def selective_scan():
    """A state whose decay depends on the input (Mamba)."""

    def forward(m, x):
        t = m.embed(x.transpose(1, 2))
        decay, state, rows = m.decay(t).sigmoid(), torch.zeros_like(t[:, 0]), []
        for i in range(t.shape[1]):
            state = decay[:, i] * state + (1 - decay[:, i]) * t[:, i]
            rows.append(state)
        return m.out(torch.stack(rows, 1).tanh())

    return Does(forward, embed=nn.Linear(5, 6), decay=nn.Linear(6, 6), out=nn.Linear(6, 7))


@net("sequence", Positions(grid=(LENGTH,), pick=lambda y, i: y[:, 1 + i[0]], centre=along(0, 1, 1)), **SEQUENCE)
def class_token_before_a_line():
    """A class token before the samples."""

    def forward(m, x):
        t = torch.cat([m.token.expand(len(x), -1, -1), m.embed(x.transpose(1, 2))], 1)
        return m.out(t + F.scaled_dot_product_attention(m.q(t), t, t))

    return Does(forward, token=table(1, 1, 6), embed=nn.Linear(5, 6), q=nn.Linear(6, 6), out=nn.Linear(6, 7))


@net("sequence", expected="refused", tokens=12, **SEQUENCE)
def queries_on_a_line():
    """Twelve learned queries read a line of 48 samples."""

    def forward(m, x):
        t = m.embed(x.transpose(1, 2))
        return m.out(F.scaled_dot_product_attention(m.queries.expand(len(x), -1, -1), t, t))

    return Does(forward, queries=table(1, 12, 6), embed=nn.Linear(5, 6), out=nn.Linear(6, 7))


@net("sequence", HERE, dtype="float32")
def lstm_with_float32_states():
    """An LSTM along the columns is given float32 zeros, so that it cannot run in float64 at all."""

    def forward(m, x):
        rows = x.permute(0, 2, 3, 1).flatten(0, 1)
        y, _ = m.lstm(rows, (torch.zeros(1, len(rows), 6), torch.zeros(1, len(rows), 6)))
        return m.out(y.view(len(x), H, W, 6).permute(0, 3, 1, 2))

    return Does(forward, lstm=nn.LSTM(3, 6, batch_first=True), out=conv(6))


# --- batches that mix


@net("batch", HERE, mixes_batch=True)
def attention_over_the_batch():
    """Images attend to each other."""

    def forward(m, x):
        y = m.stem(x).tanh()
        t = y.mean((2, 3))[None]
        return m.out(y + F.scaled_dot_product_attention(t, t, t)[0][..., None, None])

    return Does(forward, stem=conv(), out=conv(4))


@net("batch", HERE, mixes_batch=True)
def linear_layer_over_a_flattened_batch():
    """A gate is made from the first image of the batch."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh() * m.stem(x)[:1].mean((2, 3), keepdim=True).sigmoid()),
        stem=conv(),
        out=conv(4),
    )


# --- chance


@net("chance", HERE, expected="noisy")
def dropout_left_on():
    """Functional dropout with training=True."""
    return Does(lambda m, x: m.out(F.dropout(m.stem(x).tanh(), 0.5, training=True)), stem=conv(), out=conv(4))


@net("chance", HERE)
def constant_noise():
    """Noise from a generator of its own, seeded anew in every pass: always the same."""

    def forward(m, x):
        noise = torch.randn(H, W, generator=torch.Generator().manual_seed(0)).to(x)
        return m.out((m.stem(x) + noise[: x.shape[2], : x.shape[3]]).tanh())

    return Does(forward, stem=conv(), out=conv(4))


# --- in place


@net("in place", HERE)
def activation_in_place():
    """An activation in place on what a shortcut reads."""

    def forward(m, x):
        y = m.stem(x)
        z = F.leaky_relu(y, 0.2, inplace=True)
        return m.out(z) + y

    return Does(forward, stem=conv(), out=conv(4))


@net("in place", plane(exact=None))
def columns_overwritten():
    """Every second column is overwritten with its neighbour's square."""

    def forward(m, x):
        y = m.stem(x).tanh().clone()
        y[..., ::2] = m.stem(x)[..., 1::2].square()
        return m.out(y)

    return Does(forward, stem=conv(), out=conv(4))


@net("in place", HERE)
def output_scaled_after_the_layer():
    """The last layer's output is scaled in place, by a table, after the layer returned."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh()).mul_(m.table), stem=conv(), out=conv(4), table=torch.rand(1, 1, H, W) + 0.5
    )


# --- control flow


@net("control", plane(exact=None))
def branch_by_brightness():
    """Bright images take another branch than dark ones, one by one."""

    def forward(m, x):
        return torch.cat([m.out((m.one if p.mean() > 0.2 else m.two)(p[None]).tanh()) for p in x])

    return Does(forward, one=conv(), two=conv(k=7), out=conv(4))


@net("control", HERE)
def detached_context():
    """The mean over the image gates the features, but no gradient goes through it."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh() * (1 + 5 * m.stem(x).detach().mean((2, 3), keepdim=True))),
        stem=conv(),
        out=conv(4),
    )


@net("control", HERE, is_recorded=False)
def checkpointed():
    """The middle is computed again in the backward pass."""
    return Does(
        lambda m, x: m.out(checkpoint(m.body, m.stem(x), use_reentrant=False)),
        stem=conv(), body=nn.Sequential(nn.Tanh(), conv(4), nn.Tanh()), out=conv(4),
    )  # fmt: skip


@net("control", plane(), keeps=True)
def makes_a_table_once():
    """A table is made at the first call and kept: later passes call less."""

    def forward(m, x):
        y = m.stem(x)
        if getattr(m, "table", None) is None or m.table.shape != y.shape[-2:]:
            m.table = torch.linspace(0.5, 1.5, y.shape[-1], device=y.device, dtype=y.dtype).expand(y.shape[-2:])
        return m.out((y * m.table).tanh())

    return Does(forward, stem=conv(), out=conv(4))

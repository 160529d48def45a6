"""Adversarial nets whose layer is a plane of features: position tables, gathers, coordinates, flows, rolls, norms,
hooks, reshapes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from nets import SIZE, Does, channels_last, conv, kind_of, net, plane, table

H, W = SIZE
HERE = plane()


# --- tables of positions


@net("table", HERE)
def multiplied_table():
    """A table of positions scales the features."""
    return Does(lambda m, x: m.out((m.stem(x) * m.table).tanh()), stem=conv(), table=table(1, 4, H, W), out=conv(4))


@net("table", HERE)
def sliced_table():
    """A table that is too large is cut to size; the sum opens its gates on bright areas only."""

    def forward(m, x):
        y = F.avg_pool2d(x, 5, 1, 2).sum(1, keepdim=True)
        return m.out(F.relu(y + m.table[..., : x.shape[2], : x.shape[3]]))

    return Does(forward, table=nn.Parameter(-2 - torch.rand(1, 4, 64, 64)), out=conv(4))


@net("table", HERE)
def interpolated_table():
    """A 7 x 7 table is resized to the features."""
    return Does(
        lambda m, x: m.out(F.gelu(m.stem(x) + F.interpolate(m.table, x.shape[2:], mode="bicubic"))),
        stem=conv(), table=table(1, 4, 7, 7), out=conv(4),
    )  # fmt: skip


@net("table", plane(0, 2, (16, 20)))
def table_read_with_a_stride():
    """Every second entry of a table belongs to a cell."""
    return Does(
        lambda m, x: m.out((m.stem(x) * m.table[..., ::2, ::2]).tanh()),
        stem=conv(s=2),
        table=table(1, 4, H, W),
        out=conv(4),
    )


@net("table", HERE)
def table_among_the_channels():
    """A table is concatenated as channels."""
    return Does(
        lambda m, x: m.out(torch.cat([m.stem(x), m.table.expand(len(x), -1, -1, -1)], 1).tanh().square()),
        stem=conv(), table=table(1, 2, H, W), out=conv(6),
    )  # fmt: skip


@net("table", HERE)
def table_of_the_border():
    """A table is zero but at the border, where it closes every gate."""
    border = torch.zeros(1, 1, H, W)
    border[..., :3], border[..., -3:], border[..., :3, :], border[..., -3:, :] = (-9,) * 4
    return Does(lambda m, x: m.out(F.softplus(m.stem(x) + m.border)), stem=conv(), border=border, out=conv(4))


@net("table", HERE)
def table_of_kernels():
    """Every position has a kernel of its own (a locally connected layer)."""

    def forward(m, x):
        columns = F.unfold(m.stem(x), 3, padding=1).view(len(x), 4, 9, *x.shape[2:])
        return m.out((columns * m.kernels).sum(2).tanh())

    return Does(forward, stem=conv(), kernels=table(1, 4, 9, H, W), out=conv(4))


# --- gathers


def _flipped(index):
    return index[0], W - 1 - index[1]


@net("gather", plane(centre=_flipped, exact=None))
def columns_selected_backwards():
    """A constant index reverses the columns."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh().index_select(3, m.index)),
        stem=conv(),
        index=torch.arange(W).flip(0),
        out=conv(4, k=1),
    )


PERMUTED = torch.randperm(W, generator=torch.Generator().manual_seed(5)).tolist()


@net("gather", plane(centre=lambda i: (i[0], PERMUTED[i[1]])), expected="either", tokens=None)
def columns_permuted():
    """A constant index permutes the columns, so that a unit's place is no offset + unit * stride."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh()[..., m.index]), stem=conv(), index=torch.tensor(PERMUTED), out=conv(4, k=1)
    )


@net("gather", plane(0, (1, 2), (H, W // 2)))
def every_second_column():
    """A constant index keeps every second column."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh().index_select(3, m.index)),
        stem=conv(),
        index=torch.arange(0, W, 2),
        out=conv(4),
    )


@net("gather", plane(exact=False), expected="either", by_shape=True)
def columns_sorted_by_brightness():
    """Columns are gathered in an order that the image decides."""

    def forward(m, x):
        y = m.stem(x).tanh()
        order = y.mean((1, 2)).argsort(-1)
        return m.out(y.gather(3, order[:, None, None].expand_as(y)))

    return Does(forward, stem=conv(), out=conv(4))


@net("gather", plane(centre=lambda i: (i[0] // 2, i[1] // 2), grid=(2 * H, 2 * W), slack=0.26))
def cells_repeated_by_index():
    """Up-sampling by an index that repeats each row and column."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh()[:, :, m.rows][..., m.cols]),
        stem=conv(), rows=torch.arange(2 * H) // 2, cols=torch.arange(2 * W) // 2, out=conv(4, k=1),
    )  # fmt: skip


@net("gather", plane(exact=None))
def codebook():
    """Features are replaced by the nearest entry of a codebook, with a straight-through gradient."""

    def forward(m, x):
        y = m.stem(x)
        codes = m.codes[(y.permute(0, 2, 3, 1).unsqueeze(-2) - m.codes).square().sum(-1).argmin(-1)].permute(0, 3, 1, 2)
        return m.out((y + (codes - y).detach()).tanh())

    return Does(forward, stem=conv(), codes=table(7, 4), out=conv(4))


@net("gather", plane(1.5, 2, (15, 19)))
def strided_windows():
    """Windows of 4 x 4 pixels at every second one, made by Tensor.unfold, reduced by weights of their own."""

    def forward(m, x):
        y = m.stem(x).tanh().unfold(2, 4, 2).unfold(3, 4, 2)
        return torch.einsum("bcrsij,ocij->bors", y, m.weight)

    return Does(forward, stem=conv(), weight=table(4, 4, 4, 4))


# --- coordinate channels


def _grid(x: Tensor) -> Tensor:
    """Rows and columns (B, 2, H, W), in pixels."""
    axes = [torch.arange(side, **kind_of(x)) for side in x.shape[2:]]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).expand(len(x), 2, *x.shape[2:])


@net("coordinates", HERE)
def absolute_coordinates():
    """Row and column in pixels are channels."""
    return Does(lambda m, x: m.out(m.stem(torch.cat([x, 0.05 * _grid(x)], 1)).sin()), stem=conv(5), out=conv(4))


@net("coordinates", HERE)
def coordinates_by_counting_ones():
    """Columns are numbered by a running sum over ones."""
    return Does(
        lambda m, x: m.out(m.stem(x) * (torch.ones_like(x[:, :1]).cumsum(3) / 7).sin()), stem=conv(), out=conv(4)
    )


@net("coordinates", HERE)
def odd_and_even_columns():
    """Odd columns are computed otherwise than even ones."""
    return Does(
        lambda m, x: m.out(torch.where(_grid(x)[:, 1:] % 2 == 0, m.stem(x).tanh(), m.other(x))),
        stem=conv(),
        other=conv(k=5),
        out=conv(4),
    )


@net("coordinates", HERE)
def upper_and_lower_half():
    """The upper half is computed otherwise than the lower one, split by the size of the input."""

    def forward(m, x):
        half = x.shape[2] // 2
        y = m.stem(x).tanh()
        return m.out(torch.cat([m.upper(y[:, :, :half]), m.lower(y[:, :, half:])], 2))

    return Does(forward, stem=conv(), upper=conv(4), lower=conv(4, k=5), out=conv(4))


# --- flows


def _unit_grid(x: Tensor) -> Tensor:
    return F.affine_grid(torch.eye(2, 3, **kind_of(x)).expand(len(x), 2, 3), list(x.shape), align_corners=False)


@net("flow", plane((0, 8), 1), expected="either", by_shape=True)
def shifting_flow():
    """grid_sample moves everything by eight columns."""

    def forward(m, x):
        y = m.stem(x).tanh()
        shift = torch.tensor([2 * 8 / y.shape[3], 0], **kind_of(x))
        return m.out(F.grid_sample(y, _unit_grid(y) + shift, align_corners=False, padding_mode="border"))

    return Does(forward, stem=conv(), out=conv(4))


@net("flow", plane(exact=False), expected="either", by_shape=True)
def predicted_flow():
    """Where to sample is predicted from the image."""

    def forward(m, x):
        y = m.stem(x).tanh()
        return m.out(F.grid_sample(y, _unit_grid(y) + 0.4 * m.flow(x).tanh().permute(0, 2, 3, 1), align_corners=False))

    return Does(forward, stem=conv(), flow=conv(3, 2, 5), out=conv(4))


@net("flow", HERE, expected="either")
def deformable_convolution():
    """Offsets of a deformable convolution are predicted."""

    def forward(m, x):
        y = m.stem(x).tanh()
        return m.out(torchvision.ops.deform_conv2d(y, 2 * m.offset(y), m.weight, padding=1))

    return Does(forward, stem=conv(), offset=conv(4, 18), weight=table(4, 4, 3, 3), out=conv(4))


# --- roll, flip, turn


@net("turn", plane(centre=lambda i: ((i[0] - 3) % H, (i[1] + 5) % W)), expected="either")
def rolled():
    """Rolled features: every unit but those at two borders is 3 rows below and 5 columns left of its place."""
    return Does(lambda m, x: m.out(m.stem(x).tanh().roll((3, -5), (2, 3))), stem=conv(), out=conv(4, k=1))


@net("turn", plane(centre=lambda i: (H - 1 - i[0], i[1]), exact=None))
def upside_down():
    """The input is turned upside down."""
    return Does(lambda m, x: m.out(m.stem(x.flip(2)).tanh()), stem=conv(), out=conv(4))


@net("turn", HERE)
def mean_over_a_mirrored_copy():
    """The mean of what an image and its mirrored copy give (test-time augmentation)."""
    return Does(
        lambda m, x: (m.body(x) + m.body(x.flip(3)).flip(3)) / 2, body=nn.Sequential(conv(), nn.Tanh(), conv(4))
    )


@net("turn", plane(exact=False))
def sum_with_its_mirror_image():
    """Features and their own mirror image: a unit stands in two places."""
    return Does(lambda m, x: m.stem(x).tanh() + m.other(x).flip(3), stem=conv(), other=conv())


@net("turn", plane(centre=lambda i: (i[1], W - 1 - i[0]), grid=(W, H)), expected="either", by_shape=True)
def turned_by_a_quarter():
    """rot90: rows run along the input's columns."""
    return Does(lambda m, x: m.out(torch.rot90(m.stem(x).tanh(), 1, (2, 3))), stem=conv(), out=conv(4, k=1))


# --- norms


def normed(norm: nn.Module, last: bool = False) -> nn.Module:
    """Convolution, norm, tanh, convolution; the norm works channels-last if ``last``."""

    def forward(m, x):
        y = m.stem(x)
        return m.out((m.norm(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if last else m.norm(y)).tanh())

    return Does(forward, stem=conv(), norm=norm, out=conv(4))


@net("norm", HERE)
def batch_norm():
    """BatchNorm with running statistics."""
    return normed(nn.BatchNorm2d(4))


@net("norm", HERE, mixes_batch=True)
def batch_norm_without_running_statistics():
    """track_running_stats=False takes the batch's own statistics in evaluation mode too."""
    return normed(nn.BatchNorm2d(4, track_running_stats=False))


@net("norm", HERE, mixes_batch=True)
def batch_norm_by_hand():
    """Mean and variance over batch and space, by hand."""
    return normed(
        Does(
            lambda m, y: (
                (y - y.mean((0, 2, 3), keepdim=True)) / (y.var((0, 2, 3), keepdim=True, unbiased=False) + 1e-3).sqrt()
            )
        )
    )


@net("norm", HERE, mixes_batch=True)
def gate_with_the_mean_over_the_batch():
    """A gate per row is centred over the batch."""

    def forward(m, x):
        y = m.stem(x)
        return m.out(y * m.norm(y.mean(3).flatten(1, 2)).view(len(x), 4, -1, 1).sigmoid())

    class OverRows(nn.Module):
        def forward(self, rows):
            return (rows - 0.3 * rows.mean(0)).tanh()

    return Does(forward, stem=conv(), norm=OverRows(), out=conv(4))


@net("norm", HERE)
def instance_norm():
    """InstanceNorm: global over space."""
    return normed(nn.InstanceNorm2d(4, affine=True))


@net("norm", HERE)
def group_norm():
    """GroupNorm: global over space."""
    return normed(nn.GroupNorm(2, 4))


@net("norm", HERE)
def layer_norm_over_channels():
    """LayerNorm over channels, channels last."""
    return normed(nn.LayerNorm(4), last=True)


@net("norm", HERE)
def layer_norm_over_space():
    """LayerNorm over channels and space, with a table of weights."""
    return normed(nn.LayerNorm([4, H, W]))


@net("norm", channels_last(), convention="jacobian")
def ends_in_a_norm_over_channels():
    """A map, channels last, whose last operation is an RMS norm: the plain sum of its channels says little."""
    return Does(lambda m, x: m.norm(m.stem(x).tanh().permute(0, 2, 3, 1)), stem=conv(), norm=nn.RMSNorm(4))


@net("norm", HERE)
def weight_norm():
    """A convolution under weight normalisation (a parametrisation)."""
    return Does(lambda m, x: m.out(m.stem(x).tanh()), stem=nn.utils.parametrizations.weight_norm(conv()), out=conv(4))


@net("norm", HERE)
def softmax_over_space():
    """Features are weighted by a softmax over all positions."""
    return normed(Does(lambda m, y: y + 50 * y.flatten(2).softmax(-1).view_as(y)))


# --- hooks


def three(middle: nn.Module | None = None) -> nn.Sequential:
    """Convolution, tanh, convolution, tanh, convolution."""
    return nn.Sequential(conv(), nn.Tanh(), middle or conv(4), nn.Tanh(), conv(4))


@net("hook", HERE)
def forward_hook_with_a_table():
    """A forward hook multiplies a layer's output by a table."""
    body, weight = three(), torch.randn(1, 4, H, W)
    body[2].register_forward_hook(lambda m, args, y: y * weight.to(y)[..., : y.shape[2], : y.shape[3]])
    return body


@net("hook", plane(exact=None))
def forward_hook_with_a_mirror():
    """A forward hook adds the mirrored output, then a second one takes it away again."""
    body = three()
    body[2].register_forward_hook(lambda m, args, y: y + y.flip(3))
    body[3].register_forward_hook(lambda m, args, y: (y + y.flip(3)) / 2)
    body[2].register_forward_hook(lambda m, args, y: y / (1 + y.square().mean((2, 3), keepdim=True)))
    return Does(lambda m, x: m.body(x) * 0.1 + m.skip(x), body=body, skip=conv(k=5))


@net("hook", HERE)
def pre_hook_that_pads():
    """A forward pre-hook pads by reflection, and the convolution itself does not."""
    body = three(nn.Conv2d(4, 4, 5))
    body[2].register_forward_pre_hook(lambda m, args: (F.pad(args[0], (2, 2, 2, 2), mode="reflect"),))
    return body


@net("hook", HERE)
def tensor_hook_that_normalises():
    """A tensor hook, set in the forward pass, divides the gradient by its largest value and adds its mirror image."""

    def forward(m, x):
        y = m.stem(x).tanh()
        if y.requires_grad:
            y.register_hook(lambda g: (g + 0.3 * g.flip(3)) / (g.abs().amax() + 1e-6))
        return m.out(y)

    return Does(forward, stem=conv(), out=conv(4, k=5))


@net("hook", HERE)
def full_backward_hook():
    """A full backward hook changes what goes back through a layer."""
    body = three()
    body[2].register_full_backward_hook(
        lambda m, inputs, outputs: (inputs[0] * torch.arange(inputs[0].shape[3]).to(inputs[0]),)
    )
    return body


class _Smeared(torch.autograd.Function):
    """The identity, with a gradient that is not its own."""

    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, g):
        return g + g.mean((2, 3), keepdim=True)


@net("hook", HERE, is_recorded=False)
def function_with_another_gradient():
    """An autograd function whose backward pass is global while its forward pass is the identity."""
    return Does(lambda m, x: m.out(_Smeared.apply(m.stem(x).tanh())), stem=conv(), out=conv(4))


# --- reshapes that mix axes


@net("reshape", plane(exact=False, grid=(W, H)), expected="either", by_shape=True)
def rows_sheared_by_a_view():
    """(H, W) is read as (W, H) without moving anything: rows run across rows."""
    return Does(lambda m, x: m.out(m.stem(x).tanh().reshape(len(x), 4, W, H)), stem=conv(), out=conv(4))


@net("reshape", plane(exact=None), mixes_batch=True)
def batch_folded_into_rows():
    """Images are put below each other, so that a convolution sees the next one's first rows."""

    def forward(m, x):
        y = m.stem(x).tanh()
        tall = y.transpose(0, 1).flatten(1, 2).unsqueeze(0)
        return m.out(m.mid(tall).view(4, len(x), H, W).transpose(0, 1))

    return Does(forward, stem=conv(), mid=conv(4, k=5), out=conv(4))


@net("reshape", plane(0.5, 2, (16, 20)))
def space_folded_into_channels():
    """Space to depth by hand."""

    def forward(m, x):
        y = m.stem(x).tanh()
        return m.out(y.view(len(x), 4, H // 2, 2, W // 2, 2).permute(0, 1, 3, 5, 2, 4).flatten(1, 3))

    return Does(forward, stem=conv(), out=conv(16))


@net("reshape", plane(centre=lambda i: (i[0], i[1] // 4), exact=False, grid=(H, 4 * W), slack=0.51), by_shape=True)
def channels_folded_into_columns():
    """The channels of a cell stand beside each other in its row, as if they were finer cells."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh().permute(0, 2, 3, 1).flatten(2).unsqueeze(1)),
        stem=conv(),
        out=nn.Conv2d(1, 4, 3, padding=1),
    )


@net("reshape", HERE)
def windows_in_the_batch():
    """Windows of 8 x 8 lie along the batch axis, and are convolved each by itself."""

    def forward(m, x):
        y = m.stem(x).tanh().view(len(x), 4, H // 8, 8, W // 8, 8).permute(0, 2, 4, 1, 3, 5).reshape(-1, 4, 8, 8)
        y = m.mid(y).view(len(x), H // 8, W // 8, 4, 8, 8).permute(0, 3, 1, 4, 2, 5).reshape(len(x), 4, H, W)
        return m.out(y)

    return Does(forward, stem=conv(), mid=conv(4, k=5), out=conv(4))


@net("reshape", HERE)
def channels_shuffled():
    """Channels are shuffled between grouped convolutions."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh().view(len(x), 2, 2, H, W).transpose(1, 2).flatten(1, 2)),
        stem=conv(),
        out=conv(4, groups=2),
    )


@net("reshape", plane(exact=None), by_shape=True)
def filter_in_frequencies():
    """A learned filter multiplies the Fourier transform."""
    return Does(
        lambda m, x: m.out(torch.fft.irfft2(torch.fft.rfft2(m.stem(x).tanh()) * m.filter, s=(H, W))),
        stem=conv(), filter=nn.Parameter(torch.rand(4, H, W // 2 + 1)), out=conv(4),
    )  # fmt: skip


@net("reshape", HERE)
def running_sum_over_columns():
    """A running mean along the rows: everything to the left is seen."""
    return Does(lambda m, x: m.out((m.stem(x).tanh().cumsum(3) / 5).sin()), stem=conv(), out=conv(4))


@net("reshape", channels_last(0, 2, (16, 20)))
def channels_last_that_look_like_a_width():
    """A map, channels last, with as many channels as columns."""
    return Does(lambda m, x: m.stem(x).tanh().permute(0, 2, 3, 1) @ m.out, stem=conv(o=20, s=2), out=table(20, 20))

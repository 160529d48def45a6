"""Adversarial nets whose layer is a plane of features: position tables, gathers, coordinates, flows, rolls, norms,
hooks, reshapes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torchvision
from adversarial_nets import SIZE, Does, channels_last, conv, kind_of, net, plane, table
from torch import Tensor, nn

H, W = SIZE
HERE = plane()


# --- tables of positions


@net("table", HERE)
def added_table():
    """A table of positions is added to the features."""
    return Does(lambda m, x: m.out((m.stem(x) + m.table).tanh()), stem=conv(), table=table(1, 4, H, W), out=conv(4))


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
def table_sliced_by_the_width_of_features():
    """Only the columns of a table are cut, to the width of what it is added to."""
    return Does(
        lambda m, x: F.gelu(F.avg_pool2d(m.stem(x), 7, 1, 3) - 1 + m.table[: x.shape[-1]]),
        stem=conv(),
        table=table(64),
        out=conv(4),
    )


@net("table", HERE)
def interpolated_table():
    """A 7 x 7 table is resized to the features."""
    return Does(
        lambda m, x: m.out(F.gelu(m.stem(x) + F.interpolate(m.table, x.shape[2:], mode="bicubic"))),
        stem=conv(), table=table(1, 4, 7, 7), out=conv(4),
    )  # fmt: skip


@net("table", HERE)
def sinusoidal_positions():
    """Sines of row and column are made in the forward pass."""

    def forward(m, x):
        rows = torch.arange(x.shape[2], **kind_of(x)).view(1, 1, -1, 1)
        cols = torch.arange(x.shape[3], **kind_of(x)).view(1, 1, 1, -1)
        return m.out((m.stem(x) + (rows / 3).sin() * (cols / 5).cos()).tanh())

    return Does(forward, stem=conv(), out=conv(4))


@net("table", HERE)
def table_gated_by_the_picture():
    """How bright the whole image is decides how much the table counts."""
    return Does(
        lambda m, x: m.out((m.stem(x) + m.table * (4 * x.mean((1, 2, 3), keepdim=True)).sigmoid()).tanh()),
        stem=conv(), table=table(1, 4, H, W), out=conv(4),
    )  # fmt: skip


@net("table", HERE)
def table_gated_by_the_neighbourhood():
    """The table counts where the neighbourhood is bright, which noise never is."""

    def forward(m, x):
        y = m.stem(x)
        bright = (20 * (F.avg_pool2d(x.mean(1, keepdim=True), 7, 1, 3) - 0.7)).sigmoid()
        return m.out(y * (0.1 + bright * m.table))

    return Does(forward, stem=conv(), table=table(1, 4, H, W), out=conv(4))


@net("table", HERE)
def embeddings_of_rows_and_columns():
    """Row and column are looked up in two embeddings."""

    def forward(m, x):
        rows, cols = (
            m.rows(torch.arange(x.shape[2], device=x.device)),
            m.cols(torch.arange(x.shape[3], device=x.device)),
        )
        return m.out((m.stem(x) + (rows[:, None] + cols[None]).permute(2, 0, 1)).tanh())

    return Does(forward, stem=conv(), rows=nn.Embedding(50, 4), cols=nn.Embedding(50, 4), out=conv(4))


@net("table", HERE)
def table_cut_from_its_middle():
    """Where a table is cut depends on the size of the input."""

    def forward(m, x):
        h, w = x.shape[2:]
        top, left = (64 - h) // 2, (64 - w) // 2
        return m.out((m.stem(x) * m.table[..., top : top + h, left : left + w]).tanh())

    return Does(forward, stem=conv(), table=table(1, 4, 64, 64), out=conv(4))


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


@net("gather", HERE)
def columns_permuted_and_back():
    """A constant index permutes the columns between two convolutions, and its inverse puts them back."""
    return Does(
        lambda m, x: m.out(m.mid(m.stem(x).tanh()[..., m.index]).tanh()[..., m.index.argsort()]),
        stem=conv(), mid=conv(4, k=1), index=torch.tensor(PERMUTED), out=conv(4),
    )  # fmt: skip


@net("gather", plane(0, (1, 2), (H, W // 2)))
def every_second_column():
    """A constant index keeps every second column."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh().index_select(3, m.index)),
        stem=conv(),
        index=torch.arange(0, W, 2),
        out=conv(4),
    )


@net("gather", plane(exact=False), expected="either")
def columns_sorted_by_brightness():
    """Columns are gathered in an order that the image decides."""

    def forward(m, x):
        y = m.stem(x).tanh()
        order = y.mean((1, 2)).argsort(-1)
        return m.out(y.gather(3, order[:, None, None].expand_as(y)))

    return Does(forward, stem=conv(), out=conv(4))


@net("gather", plane(exact=False), expected="either")
def rows_taken_where_the_picture_says():
    """Each row is read from one nearby that depends on the features there."""

    def forward(m, x):
        y = m.stem(x).tanh()
        rows = torch.arange(y.shape[2], device=x.device).view(1, 1, -1, 1)
        index = (rows + (3 * y).round().long()).clamp(0, y.shape[2] - 1)
        return m.out(torch.take_along_dim(y, index, 2) + y)

    return Does(forward, stem=conv(), out=conv(4))


@net("gather", plane(centre=lambda i: (i[0] // 2, i[1] // 2), grid=(2 * H, 2 * W), slack=0.26))
def cells_repeated_by_index():
    """Up-sampling by an index that repeats each row and column."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh()[:, :, m.rows][..., m.cols]),
        stem=conv(), rows=torch.arange(2 * H) // 2, cols=torch.arange(2 * W) // 2, out=conv(4, k=1),
    )  # fmt: skip


@net("gather", plane(exact=None))
def scattered_and_put_back():
    """Columns are scattered to other places, computed on, and put back."""

    def forward(m, x):
        y = m.stem(x).tanh()
        away = torch.zeros_like(y).index_copy(3, m.index, y)
        return m.out(m.mid(away).tanh().index_select(3, m.index))

    return Does(forward, stem=conv(), mid=conv(4, k=1), index=torch.tensor(PERMUTED), out=conv(4))


@net("gather", plane(exact=None))
def codebook():
    """Features are replaced by the nearest entry of a codebook, with a straight-through gradient."""

    def forward(m, x):
        y = m.stem(x)
        codes = m.codes[(y.permute(0, 2, 3, 1).unsqueeze(-2) - m.codes).square().sum(-1).argmin(-1)].permute(0, 3, 1, 2)
        return m.out((y + (codes - y).detach()).tanh())

    return Does(forward, stem=conv(), codes=table(7, 4), out=conv(4))


@net("gather", HERE)
def kernels_by_unfolding():
    """A dilated convolution made of unfolded columns."""

    def forward(m, x):
        y = m.stem(x).tanh()
        return (m.kernel @ F.unfold(y, 3, dilation=2, padding=2)).view(len(x), 4, *x.shape[2:])

    return Does(forward, stem=conv(), kernel=table(4, 36))


@net("gather", plane(1.5, 2, (15, 19)))
def strided_windows():
    """Windows of 4 x 4 pixels at every second one, made by Tensor.unfold, reduced by weights of their own."""

    def forward(m, x):
        y = m.stem(x).tanh().unfold(2, 4, 2).unfold(3, 4, 2)
        return torch.einsum("bcrsij,ocij->bors", y, m.weight)

    return Does(forward, stem=conv(), weight=table(4, 4, 4, 4))


# --- coordinate channels


def _grid(x: Tensor, low: float | None = None) -> Tensor:
    """Rows and columns (B, 2, H, W), in pixels or from ``low`` to 1."""
    h, w = x.shape[2:]
    axes = [torch.arange(s, **kind_of(x)) if low is None else torch.linspace(low, 1, s, **kind_of(x)) for s in (h, w)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).expand(len(x), 2, h, w)


@net("coordinates", HERE)
def absolute_coordinates():
    """Row and column in pixels are channels."""
    return Does(lambda m, x: m.out(m.stem(torch.cat([x, 0.05 * _grid(x)], 1)).sin()), stem=conv(5), out=conv(4))


@net("coordinates", HERE)
def normalised_coordinates():
    """Row and column from -1 to 1 are channels."""
    return Does(lambda m, x: m.out(m.stem(torch.cat([x, _grid(x, -1)], 1)).sin()), stem=conv(5), out=conv(4))


@net("coordinates", HERE)
def radial_coordinate():
    """The distance to the middle of the image is a channel."""
    return Does(
        lambda m, x: m.out(m.stem(torch.cat([x, 4 * _grid(x, -1).norm(dim=1, keepdim=True)], 1)).sin()),
        stem=conv(4),
        out=conv(4),
    )


@net("coordinates", HERE)
def spotlight():
    """Features are kept in a disc in the middle of the image."""
    return Does(
        lambda m, x: m.out(m.stem(x) * (1.6 - _grid(x, -1).norm(dim=1, keepdim=True)).clamp(min=0)),
        stem=conv(),
        out=conv(4),
    )


@net("coordinates", HERE)
def coordinates_by_counting_ones():
    """Columns are numbered by a running sum over ones."""
    return Does(
        lambda m, x: m.out(m.stem(x) * (torch.ones_like(x[:, :1]).cumsum(3) / 7).sin()), stem=conv(), out=conv(4)
    )


@net("coordinates", HERE)
def fourier_features():
    """Sines of random frequencies of the coordinates meet the image in a product."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh() * (torch.einsum("fk,bkhw->bfhw", m.freq, 3 * _grid(x, -1))).sin()),
        stem=conv(), freq=torch.randn(4, 2), out=conv(4),
    )  # fmt: skip


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


def _unit_grid(x: Tensor, align: bool = False) -> Tensor:
    return F.affine_grid(torch.eye(2, 3, **kind_of(x)).expand(len(x), 2, 3), list(x.shape), align_corners=align)


@net("flow", HERE, expected="either")
def identity_flow():
    """grid_sample with the identity."""
    return Does(
        lambda m, x: m.out(F.grid_sample(m.stem(x).tanh(), _unit_grid(m.stem(x)), align_corners=False)),
        stem=conv(),
        out=conv(4),
    )


@net("flow", plane((0, 8), 1), expected="either")
def shifting_flow():
    """grid_sample moves everything by eight columns."""

    def forward(m, x):
        y = m.stem(x).tanh()
        shift = torch.tensor([2 * 8 / y.shape[3], 0], **kind_of(x))
        return m.out(F.grid_sample(y, _unit_grid(y) + shift, align_corners=False, padding_mode="border"))

    return Does(forward, stem=conv(), out=conv(4))


@net("flow", plane(exact=False), expected="either")
def predicted_flow():
    """Where to sample is predicted from the image."""

    def forward(m, x):
        y = m.stem(x).tanh()
        return m.out(F.grid_sample(y, _unit_grid(y) + 0.4 * m.flow(x).tanh().permute(0, 2, 3, 1), align_corners=False))

    return Does(forward, stem=conv(), flow=conv(3, 2, 5), out=conv(4))


@net("flow", plane(exact=False), expected="either")
def spatial_transformer():
    """One affine transform of the whole image is predicted from its mean."""

    def forward(m, x):
        y = m.stem(x).tanh()
        theta = torch.eye(2, 3, **kind_of(x)) + 0.3 * m.theta(y.mean((2, 3))).view(-1, 2, 3)
        return m.out(F.grid_sample(y, F.affine_grid(theta, list(y.shape), align_corners=True), align_corners=True))

    return Does(forward, stem=conv(), theta=nn.Linear(4, 6), out=conv(4))


@net("flow", plane(centre=lambda i: (H - 1 - i[0], W - 1 - i[1])), expected="either")
def flow_that_turns_by_half():
    """grid_sample turns the features by 180 degrees."""
    return Does(
        lambda m, x: m.out(F.grid_sample(m.stem(x).tanh(), -_unit_grid(m.stem(x)), align_corners=False)),
        stem=conv(),
        out=conv(4, k=1),
    )


@net("flow", HERE, expected="either")
def deformable_convolution():
    """Offsets of a deformable convolution are predicted."""

    def forward(m, x):
        y = m.stem(x).tanh()
        return m.out(torchvision.ops.deform_conv2d(y, 2 * m.offset(y), m.weight, padding=1))

    return Does(forward, stem=conv(), offset=conv(4, 18), weight=table(4, 4, 3, 3), out=conv(4))


@net("flow", HERE, expected="either")
def table_of_flow():
    """A learned table says where each cell samples."""

    def forward(m, x):
        y = m.stem(x).tanh()
        return m.out(y + F.grid_sample(y, _unit_grid(y) + m.flow, align_corners=False, mode="bilinear"))

    return Does(forward, stem=conv(), flow=nn.Parameter(0.05 * torch.randn(1, H, W, 2)), out=conv(4))


@net("flow", plane((-0.5 + H / 4 + 0.25, -0.5 + W / 4 + 0.25), 0.5), expected="either")
def flow_that_zooms():
    """grid_sample reads the middle of the image twice as large."""
    return Does(
        lambda m, x: m.out(F.grid_sample(m.stem(x).tanh(), _unit_grid(m.stem(x)) / 2, align_corners=False)),
        stem=conv(),
        out=conv(4),
    )


# --- roll, flip, turn


@net("turn", plane(centre=lambda i: ((i[0] - 3) % H, (i[1] + 5) % W)), expected="either")
def rolled():
    """Rolled features: every unit but those at two borders is 3 rows below and 5 columns left of its place."""
    return Does(lambda m, x: m.out(m.stem(x).tanh().roll((3, -5), (2, 3))), stem=conv(), out=conv(4, k=1))


@net("turn", HERE)
def rolled_and_back():
    """Rolled features are computed on, and rolled back."""
    return Does(
        lambda m, x: m.out(m.mid(m.stem(x).roll((3, -5), (2, 3))).tanh().roll((-3, 5), (2, 3))),
        stem=conv(),
        mid=conv(4),
        out=conv(4),
    )


@net("turn", plane(centre=lambda i: (H - 1 - i[0], i[1]), exact=None))
def upside_down():
    """The input is turned upside down."""
    return Does(lambda m, x: m.out(m.stem(x.flip(2)).tanh()), stem=conv(), out=conv(4))


@net("turn", HERE)
def flipped_and_back():
    """Features are computed on a mirrored copy, and mirrored back."""
    return Does(lambda m, x: m.out(m.mid(m.stem(x).flip(3)).tanh().flip(3)), stem=conv(), mid=conv(4), out=conv(4))


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


@net("turn", plane(exact=False))
def sum_with_a_rolled_copy():
    """Features and the same rolled by half the width."""
    return Does(lambda m, x: m.stem(x).tanh() + m.other(x).roll(W // 2, 3), stem=conv(), other=conv())


@net("turn", plane(centre=lambda i: (i[1], W - 1 - i[0]), grid=(W, H)), expected="either")
def turned_by_a_quarter():
    """rot90: rows run along the input's columns."""
    return Does(lambda m, x: m.out(torch.rot90(m.stem(x).tanh(), 1, (2, 3))), stem=conv(), out=conv(4, k=1))


@net("turn", plane(centre=lambda i: (i[1], i[0]), grid=(W, H)), expected="either")
def rows_and_columns_swapped():
    """Rows and columns are swapped, so that a width looks like a height."""
    return Does(lambda m, x: m.out(m.stem(x).tanh().transpose(2, 3)), stem=conv(), out=conv(4, k=1))


@net("turn", plane(0, 1, (32, 32)), size=(32, 32))
def mean_over_quarter_turns():
    """The mean over the four quarter turns, each turned back."""
    return Does(
        lambda m, x: torch.stack([torch.rot90(m.body(torch.rot90(x, k, (2, 3))), -k, (2, 3)) for k in range(4)]).mean(
            0
        ),
        body=nn.Sequential(conv(), nn.Tanh(), conv(4)),
    )


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
def functional_batch_norm():
    """F.batch_norm(training=True) in the forward pass."""
    return normed(Does(lambda m, y: F.batch_norm(y, None, None, m.weight, None, training=True), weight=table(4)))


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
def instance_norm_with_running_statistics():
    """InstanceNorm with running statistics is local in evaluation mode."""
    return normed(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))


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


@net("norm", HERE)
def layer_norm_over_columns():
    """LayerNorm over the width only: global along one axis."""
    return normed(nn.LayerNorm(W))


@net("norm", channels_last(), convention="jacobian")
def ends_in_a_norm_over_channels():
    """A map, channels last, whose last operation is an RMS norm: the plain sum of its channels says little."""
    return Does(lambda m, x: m.norm(m.stem(x).tanh().permute(0, 2, 3, 1)), stem=conv(), norm=nn.RMSNorm(4))


@net("norm", HERE)
def rms_norm():
    """RMS over channels."""
    return normed(nn.RMSNorm(4), last=True)


@net("norm", HERE)
def rms_over_space():
    """RMS over space, by hand."""
    return normed(Does(lambda m, y: y / (y.square().mean((2, 3), keepdim=True) + 1e-3).sqrt()))


@net("norm", HERE)
def local_response_norm():
    """Local response normalisation over neighbouring channels."""
    return normed(nn.LocalResponseNorm(3, alpha=1.0))


@net("norm", HERE)
def local_contrast_norm():
    """Each cell is divided by the deviation of its neighbourhood."""

    def forward(m, y):
        mean = F.avg_pool2d(y, 7, 1, 3)
        return (y - mean) / (F.avg_pool2d((y - mean).square(), 7, 1, 3) + 0.1).sqrt()

    return normed(Does(forward))


@net("norm", HERE)
def global_response_norm():
    """Channels compete by their norm over space (ConvNeXt V2)."""

    def forward(m, y):
        norm = y.norm(dim=(2, 3), keepdim=True)
        return y + m.weight.view(1, -1, 1, 1) * y * norm / (norm.mean(1, keepdim=True) + 1e-3)

    return normed(Does(forward, weight=table(4)))


@net("norm", HERE)
def weight_norm():
    """A convolution under weight normalisation (a parametrisation)."""
    return Does(lambda m, x: m.out(m.stem(x).tanh()), stem=nn.utils.parametrizations.weight_norm(conv()), out=conv(4))


@net("norm", HERE)
def spectral_norm():
    """A convolution under spectral normalisation, whose power iteration moves only in training."""
    return Does(lambda m, x: m.out(m.stem(x).tanh()), stem=nn.utils.parametrizations.spectral_norm(conv()), out=conv(4))


@net("norm", HERE)
def standardised_weights():
    """A convolution that standardises its weights in the forward pass."""

    def forward(m, x):
        w = m.stem.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True)
        return m.out(F.conv2d(x, w, padding=1).tanh())

    return Does(forward, stem=conv(), out=conv(4))


@net("norm", HERE, mixes_batch=True)
def contrast_over_the_batch():
    """The batch's mean image is partly taken away."""
    return normed(Does(lambda m, y: y - 0.5 * y.mean(0, keepdim=True)))


@net("norm", HERE, mixes_batch=True)
def scaled_by_the_largest_of_the_batch():
    """Everything is divided by the largest number in the batch."""
    return normed(Does(lambda m, y: 4 * y / y.abs().amax()))


@net("norm", HERE)
def scaled_by_the_range_of_the_picture():
    """Minimum and maximum of each image are mapped to 0 and 1."""

    def forward(m, y):
        low, high = y.amin((2, 3), keepdim=True), y.amax((2, 3), keepdim=True)
        return (y - low) / (high - low + 0.1)

    return normed(Does(forward))


@net("norm", HERE)
def softmax_over_space():
    """Features are weighted by a softmax over all positions."""
    return normed(Does(lambda m, y: y + 50 * y.flatten(2).softmax(-1).view_as(y)))


@net("norm", HERE)
def unit_length_over_channels():
    """Every cell has unit length."""
    return normed(Does(lambda m, y: F.normalize(y, dim=1, eps=1e-3)))


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
def forward_hook_that_pools():
    """A forward hook takes away the mean over the image."""
    body = three()
    body[2].register_forward_hook(lambda m, args, y: y - y.mean((2, 3), keepdim=True))
    return body


@net("hook", HERE)
def tensor_hook_with_a_table():
    """A tensor hook, set in the forward pass, multiplies the gradient by a table."""

    def forward(m, x):
        y = m.stem(x).tanh()
        if y.requires_grad:
            y.register_hook(lambda g: g * m.table[..., : g.shape[2], : g.shape[3]])
        return m.out(y)

    return Does(forward, stem=conv(), table=torch.rand(1, 1, H, W) + 0.2, out=conv(4, k=5))


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


@net("hook", HERE)
def full_backward_pre_hook():
    """A full backward pre-hook smears the gradient over each row."""
    body = three()
    body[2].register_full_backward_pre_hook(lambda m, outputs: (outputs[0] + outputs[0].mean(3, keepdim=True),))
    return body


class _Smeared(torch.autograd.Function):
    """The identity, with a gradient that is not its own."""

    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, g):
        return g + g.mean((2, 3), keepdim=True)


@net("hook", HERE)
def function_with_another_gradient():
    """An autograd function whose backward pass is global while its forward pass is the identity."""
    return Does(lambda m, x: m.out(_Smeared.apply(m.stem(x).tanh())), stem=conv(), out=conv(4))


# --- reshapes that mix axes


@net("reshape", plane(exact=False, grid=(W, H)), expected="either")
def rows_sheared_by_a_view():
    """(H, W) is read as (W, H) without moving anything: rows run across rows."""
    return Does(lambda m, x: m.out(m.stem(x).tanh().reshape(len(x), 4, W, H)), stem=conv(), out=conv(4))


@net("reshape", plane(exact=None))
def sheared_and_back():
    """(H, W) is read as (W, H), computed on, and read back."""
    return Does(
        lambda m, x: m.out(m.mid(m.stem(x).tanh().reshape(len(x), 4, W, H)).reshape(len(x), 4, H, W)),
        stem=conv(),
        mid=conv(4),
        out=conv(4),
    )


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


@net("reshape", plane(centre=lambda i: tuple(2 * (side // 2) + 0.5 for side in i), slack=0.51))
def pixel_shuffle_by_hand():
    """Depth to space by hand, of a map at stride 2."""

    def forward(m, x):
        y = m.stem(x).tanh()
        return m.out(y.view(len(x), 4, 2, 2, H // 2, W // 2).permute(0, 1, 4, 2, 5, 3).reshape(len(x), 4, H, W))

    return Does(forward, stem=nn.Conv2d(3, 16, 2, 2), out=conv(4, k=1))


@net("reshape", plane(centre=lambda i: (i[0], i[1] // 4), exact=False, grid=(H, 4 * W), slack=0.51))
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
def rows_in_the_batch():
    """Rows lie along the batch axis, and see themselves only."""

    def forward(m, x):
        y = m.stem(x).tanh().permute(0, 2, 1, 3).flatten(0, 1)
        return m.out(m.mid(y).view(len(x), H, 4, W).permute(0, 2, 1, 3))

    return Does(forward, stem=conv(), mid=nn.Conv1d(4, 4, 7, padding=3), out=conv(4))


@net("reshape", HERE)
def every_third_pixel_in_the_batch():
    """A dilated convolution by folding phases into the batch."""

    def forward(m, x):
        y = (
            m.stem(x)
            .tanh()
            .view(len(x), 4, H // 2, 2, W // 2, 2)
            .permute(0, 3, 5, 1, 2, 4)
            .reshape(-1, 4, H // 2, W // 2)
        )
        return m.out(m.mid(y).view(len(x), 2, 2, 4, H // 2, W // 2).permute(0, 3, 4, 1, 5, 2).reshape(len(x), 4, H, W))

    return Does(forward, stem=conv(), mid=conv(4), out=conv(4))


@net("reshape", plane(exact=None))
def channels_and_columns_swapped():
    """A convolution runs over rows and channels while the columns are its channels."""
    return Does(
        lambda m, x: m.out(m.mid(m.stem(x).tanh().transpose(1, 3)).transpose(1, 3)),
        stem=conv(),
        mid=conv(W, W),
        out=conv(4),
    )


@net("reshape", plane(centre=lambda i: ((i[0] + H // 2) % H, (i[1] + W // 2) % W)), expected="either")
def quadrants_swapped():
    """The four quadrants change places."""

    def forward(m, x):
        y = torch.cat(m.stem(x).tanh().chunk(2, 2)[::-1], 2)
        return m.out(torch.cat(y.chunk(2, 3)[::-1], 3))

    return Does(forward, stem=conv(), out=conv(4, k=1))


@net("reshape", HERE)
def channels_shuffled():
    """Channels are shuffled between grouped convolutions."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh().view(len(x), 2, 2, H, W).transpose(1, 2).flatten(1, 2)),
        stem=conv(),
        out=conv(4, groups=2),
    )


@net("reshape", HERE)
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


@net("reshape", plane(exact=False), expected="either")
def sorted_over_columns():
    """Every row is sorted."""
    return Does(lambda m, x: m.out(m.stem(x).tanh().sort(3).values), stem=conv(), out=conv(4))


@net("reshape", channels_last(0, 2, (16, 20)))
def channels_last_that_look_like_a_width():
    """A map, channels last, with as many channels as columns."""
    return Does(lambda m, x: m.stem(x).tanh().permute(0, 2, 3, 1) @ m.out, stem=conv(o=20, s=2), out=table(20, 20))


@net("reshape", plane(0, 2, (16, 16)), size=(32, 32))
def channels_first_that_look_like_a_width():
    """A map, channels first, with as many channels as rows and columns."""
    return Does(lambda m, x: m.out(m.stem(x).tanh()), stem=conv(o=16, s=2), out=conv(16, 16))


@net("reshape", HERE)
def mixer_over_space():
    """A linear layer over all positions is added to the features."""
    return Does(
        lambda m, x: m.out(m.stem(x).tanh() + 0.1 * m.mixer(m.stem(x).flatten(2)).view(len(x), 4, H, W)),
        stem=conv(), mixer=nn.Linear(H * W, H * W), out=conv(4),
    )  # fmt: skip

"""Operations inside windows, on lists of tokens and cell by cell: the box is still the support of the gradient."""

import pytest
import torch
import torch.nn.functional as F
from test_trf_operations import Net, attention, conv
from test_trf_oracle import check, corners_and_middle, covers, opened, recorded, support_of
from torch import nn

from erfscope.errors import ErfscopeError
from erfscope.geometry.layout import Layout
from erfscope.trf import record as recording
from erfscope.trf.tapes.composites import CompositeMode
from erfscope.trf.tapes.recorder import Recorder

SPACE = (12, 15)


def blocks(x, rows, cols):
    """(B, C, H, W) -> (B * windows, C, rows, cols)"""
    b, c, h, w = x.shape
    return x.view(b, c, h // rows, rows, w // cols, cols).permute(0, 2, 4, 1, 3, 5).reshape(-1, c, rows, cols)


def unblocks(y, rows, cols):
    """Back, for ``rows`` times ``cols`` windows of whatever size they now are."""
    _, c, h, w = y.shape
    return y.view(1, rows, cols, c, h, w).permute(0, 3, 1, 4, 2, 5).reshape(1, c, rows * h, cols * w)


def inside_windows(function):
    return lambda net, x: net.last(unblocks(function(net, blocks(net.first(x), 4, 5)), 3, 3))


def across_windows(net, x):
    """A convolution over windows, cell by cell: to the map it is dilated by the window's size."""
    y = x.view(1, 2, 3, 4, 3, 5).permute(0, 3, 5, 1, 2, 4).reshape(20, 2, 3, 3)
    y = net.conv(y).view(1, 4, 5, 2, 3, 3).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(1, 2, 12, 15)


def global_queries(net, x):
    """GCViT: the same queries, made from a coarse map, in every window."""
    y = net.conv(x)
    coarse = F.avg_pool2d(y, (3, 3)).flatten(2).transpose(1, 2)
    tokens = blocks(y, 4, 5).flatten(2).transpose(1, 2)
    return unblocks(
        attention(net.q(coarse).repeat(9, 1, 1), net.k(tokens), tokens).transpose(1, 2).reshape(-1, 2, 4, 5), 3, 3
    )


def patches(net, x):
    """MobileViTv2: 1x1 convolutions on (B, C, cells of a patch, patches)."""
    y = x.view(1, 2, 4, 3, 5, 3).permute(0, 1, 3, 5, 2, 4).reshape(1, 2, 9, 20)
    y = net.first(y).view(1, 2, 3, 3, 4, 5).permute(0, 1, 4, 2, 5, 3).reshape(1, 2, 12, 15)
    return net.last(y)


def over_windows(net, x):
    """MobileViTv2's context: every place in a patch is summed over all patches, and read by that place in each."""
    y = net.first(x).view(1, 2, 4, 3, 5, 3).permute(0, 1, 3, 5, 2, 4).reshape(1, 2, 9, 20)
    y = y * y.sum(3, keepdim=True)
    return y.view(1, 2, 3, 3, 4, 5).permute(0, 1, 4, 2, 5, 3).reshape(1, 2, 12, 15)


def pooled_rows(net, x):
    """Pooling a list of tokens by windows of a third of a row."""
    return net.last(F.avg_pool1d(net.conv(x).flatten(2), 5).view(1, 2, 12, 3))


def relative(net, x):
    """HaloNet's scores from relative positions along rows."""
    y = net.conv(x).permute(0, 2, 3, 1)
    _, h, w, _ = y.shape
    scores = F.pad(net.scores(y).reshape(h, w, 2 * w - 1), [0, 1]).flatten(1)
    scores = F.pad(scores, [0, w - 1]).reshape(-1, w + 1, 2 * w - 1)[:, :w, w - 1 :]
    return net.out(scores.reshape(1, h, w, w)).permute(0, 3, 1, 2)


def row_by_row(join):
    def forward(net, x):
        y = net.conv(x)
        return net.last(join([y[:, :, i] * (i + 1) for i in range(y.shape[2])]))

    return forward


def cells(net, x):
    """A recurrence by hand: each row adds half of the one before."""
    rows = list(net.conv(x).unbind(2))
    for i in range(1, len(rows)):
        rows[i] = rows[i] + rows[i - 1] / 2
    return torch.stack(rows, 2)


CASES = {
    "convolution inside windows": inside_windows(lambda n, y: n.inner(y)),
    "average pooling inside windows": inside_windows(lambda n, y: F.avg_pool2d(y, 2, padding=1)),
    "padding inside windows": inside_windows(lambda n, y: F.pad(y, (1, 0, 0, 1))),
    "convolution across windows": across_windows,
    "patches": patches,
    "pooled rows": pooled_rows,
    "relative positions": relative,
    "rows stacked": row_by_row(lambda rows: torch.stack(rows, 2)),
    "rows joined": row_by_row(lambda rows: torch.cat([row[:, :, None] for row in rows], 2)),
    "rows that add up": cells,
    "running sum": lambda n, x: n.conv(x).cumsum(2),
    "running product from behind": lambda n, x: n.conv(x).flip(3).cumprod(3).flip(3),
    "nothing joined": lambda n, x: torch.cat([n.conv(x)[:, :, :0], n.conv(x)], 2),
    "channels shuffled": lambda n, x: F.channel_shuffle(n.conv(x), 2),
    "windows that overlap": lambda n, x: n.conv(x).unfold(2, 5, 3).unfold(3, 3, 2).mean((-1, -2)),
    "reflected": lambda n, x: F.pad(n.conv(x), (2, 3, 4, 1), mode="reflect"),
    "wrapped": lambda n, x: F.pad(n.conv(x), (2, 3, 4, 1), mode="circular"),
    "shifted": lambda n, x: torch.roll(n.conv(x), (5, -4), (2, 3)),
}


def parts():
    torch.manual_seed(0)
    return {
        "conv": conv(),
        "first": conv(1, padding=0),
        "last": conv(),
        "inner": conv(3, 2),
        "scores": nn.Linear(2, 29),
        "out": nn.Linear(15, 2),
        "q": nn.Linear(2, 2),
        "k": nn.Linear(2, 2),
    }


@pytest.mark.parametrize("name", CASES)
def test_the_cells_that_are_read_are_the_support_of_the_gradient(name):
    check(Net(CASES[name], **parts()), SPACE)


def test_queries_that_are_the_same_in_all_windows_read_the_window_and_their_own_part_of_the_map():
    recording = check(Net(global_queries, **parts()), SPACE, equal=True)
    field = recording.trf("out", (0, 0))
    assert field.clipped_box_px == (
        (0, 4),
        (0, 5),
    )  # the window, and one more cell for the convolution; the query's part lies in it
    assert recording.trf("out", (11, 0)).clipped_box_px == ((7, 11), (0, 5))


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
        (
            nn.Sequential(nn.Conv2d(2, 2, 3), nn.ConvTranspose2d(2, 2, 3, 2, 2, 1, dilation=2), nn.Conv2d(2, 2, 5)),
            (9, 10),
        ),
        (nn.Sequential(nn.AvgPool1d(3, 2, 1, ceil_mode=True), nn.Conv1d(2, 2, 3, padding=1)), (18,)),
        (nn.Sequential(nn.AvgPool3d(2, 2, 0, ceil_mode=True), nn.Conv3d(2, 2, 3, padding=1)), (5, 6, 7)),
        (nn.Sequential(nn.ReflectionPad1d(3), nn.Conv1d(2, 2, 3)), (11,)),
        (nn.Sequential(nn.ReflectionPad3d(1), nn.Conv3d(2, 2, 3)), (4, 5, 6)),
        (nn.Sequential(nn.ReplicationPad1d(3), nn.Conv1d(2, 2, 3)), (11,)),
        (nn.Sequential(nn.ReplicationPad3d(2), nn.Conv3d(2, 2, 3)), (4, 5, 6)),
        (nn.Sequential(nn.CircularPad1d(3), nn.Conv1d(2, 2, 3)), (11,)),
        (nn.Sequential(nn.Conv3d(2, 2, 3, padding=1, padding_mode="circular")), (4, 5, 6)),
        (nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), nn.AdaptiveAvgPool1d(5)), (13,)),
        (nn.Sequential(nn.Conv3d(2, 2, 1), nn.AdaptiveAvgPool3d((3, 2, 4))), (5, 6, 7)),
        (nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), nn.Upsample(scale_factor=2, mode="linear")), (9,)),
        (nn.Sequential(nn.Conv3d(2, 2, 1), nn.Upsample(scale_factor=2, mode="trilinear")), (4, 5, 3)),
    ],
    ids=str,
)
def test_every_kind_of_convolution_pooling_and_padding_in_one_to_three_dimensions(module, space):
    check(module, space)


def test_what_is_summed_over_windows_is_read_by_the_same_place_in_each():
    field = check(Net(over_windows, **parts()), SPACE, global_by="sum over positions").trf("out", (4, 5))
    assert field.clipped_box_px == ((1, 10), (2, 14))
    assert field.local_size_px == (1, 1)


def pooled_attention(net, x):
    """NextViT: keys and values from tokens pooled in runs that cut through rows."""
    y = net.conv(x)
    tokens = y.flatten(2).transpose(1, 2)
    few = F.avg_pool1d(y.flatten(2), 9).transpose(1, 2)
    return y + attention(net.q(tokens), net.k(few), few).transpose(1, 2).reshape(y.shape)


def test_attention_to_pooled_tokens_is_global_and_named_where_it_happens():
    net = Net(pooled_attention, **parts())
    field = check(net, (12, 15), global_by="softmax attention").trf("out", (5, 4))
    assert field.local_size_px == (3, 3)
    assert field.center_px == (5.0, 4.0)


def test_runs_of_tokens_reach_from_the_first_to_the_last_of_their_cells():
    """20 runs of 9 tokens of 15 columns: run 3 is the end of row 1 and the beginning of row 2."""
    net = Net(lambda n, x: F.avg_pool1d(n.first(x).flatten(2), 9).view(1, 2, 4, 5), **parts())
    field = recorded(net, SPACE).trf("out", (0, 3))
    support = support_of(opened(net), SPACE, (0, 3))
    assert support == ((1, 2), (0, 14))
    assert covers(field.clipped_box_px, support)


def masked(net, x):
    tokens = net.conv(x).flatten(2).transpose(1, 2)
    scores = tokens @ tokens.transpose(1, 2)
    closed = torch.ones(scores.shape[1:], dtype=torch.bool, device=x.device).triu(1)
    return (scores.masked_fill(closed, float("-inf")).softmax(-1) @ tokens).transpose(1, 2).reshape(x.shape)


def test_a_mask_on_attention_makes_an_upper_bound():
    field = recorded(Net(masked, **parts()), (6, 5)).trf("out", (2, 2))
    assert not field.exact
    assert field.inexact_by == ("masked_fill",)
    assert field.box_px == ((0, 5), (0, 4))


@pytest.fixture
def composites(monkeypatch):
    """Recording with composite operations noted as one."""

    class Both(Recorder):
        def __init__(self, tape):
            super().__init__(tape)
            self.whole = CompositeMode(tape)

        def __enter__(self):
            super().__enter__()
            self.whole.__enter__()

        def __exit__(self, *error):
            self.whole.__exit__(*error)
            super().__exit__(*error)

    monkeypatch.setattr(recording, "Recorder", Both)


def along_rows(net, x):
    y = net.conv(x).permute(0, 2, 3, 1)
    y, _ = net.recurrent(y.flatten(0, 1))
    return y.view(1, *x.shape[2:], -1).permute(0, 3, 1, 2)


RECURRENT = {
    "LSTM": nn.LSTM(2, 3, batch_first=True),
    "GRU": nn.GRU(2, 3, num_layers=2, batch_first=True),
    "RNN": nn.RNN(2, 3, batch_first=True),
    "LSTM both ways": nn.LSTM(2, 3, batch_first=True, bidirectional=True),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_sees_what_came_before_or_everything(name):
    check(Net(along_rows, recurrent=RECURRENT[name], **parts()), (5, 9), open_gates=False)


@pytest.mark.parametrize("name", RECURRENT)
def test_as_one_operation_a_recurrent_layer_can_be_left_out(name, composites):
    recorded_ = check(Net(along_rows, recurrent=RECURRENT[name], **parts()), (5, 9), open_gates=False)
    field = recorded_.trf("out", (2, 4))
    assert field.local_box_px == ((1, 3), (3, 5))
    assert field.clipped_box_px == ((1, 3), (0, 8 if "both" in name else 5))


def test_recurrent_layers_along_rows_and_columns_are_global_by_name(composites):
    def forward(net, x):
        rows = along_rows(net, x)
        columns = along_rows(net, x.transpose(2, 3)).transpose(2, 3)
        return rows + columns + along_rows(net, columns[:, :2])

    net = Net(forward, recurrent=nn.LSTM(2, 3, batch_first=True, bidirectional=True), **parts())
    assert check(net, (6, 6), open_gates=False, global_by="LSTM over positions (recurrent)").trf(
        "out", (2, 3)
    ).local_size_px == (5, 5)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"attn_mask": torch.ones(30, 30, dtype=torch.bool).tril()}])
def test_masked_attention_in_its_fused_form_is_an_upper_bound(options, composites):
    def forward(net, x):
        tokens = net.conv(x).flatten(2).transpose(1, 2)[:, None]
        given = {
            name: value.to(x.device) if isinstance(value, torch.Tensor) else value for name, value in options.items()
        }
        return F.scaled_dot_product_attention(tokens, tokens, tokens, **given)[:, 0].transpose(1, 2).reshape(x.shape)

    field = recorded(Net(forward, **parts()), (6, 5)).trf("out", (2, 2))
    assert field.inexact_by == ("attention mask",)
    assert field.global_by == "softmax attention"


def test_a_unit_that_reads_nothing_but_padding_has_no_field():
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ConvTranspose2d(2, 2, 1, 2, output_padding=1))
    field = recorded(net, (6, 6))
    assert field.trf("out", (4, 4)).size_px == (3, 3)
    with pytest.raises(ErfscopeError, match="no path leads from 'image' to unit"):
        field.trf("out", (5, 5))


@pytest.mark.parametrize("size", [20, 21, 22, 23])
def test_where_strides_do_not_divide_the_size_only_cells_that_are_read_count(size):
    """A last window that does not fit is not taken, so that the last columns are read by none."""
    net = opened(nn.Sequential(nn.Conv2d(2, 2, 3, 3), nn.Conv2d(2, 2, 3, padding=1)))
    found = recorded(net, (size, size))
    (shape,) = (entry.shape for entry in found.layers if entry.name == "out")
    for unit in corners_and_middle(shape[2:]):
        assert found.trf("out", unit).clipped_box_px == support_of(net, (size, size), unit)


def test_tokens_of_a_running_sum_over_a_list_are_an_upper_bound():
    net = Net(lambda n, x: n.conv(x).flatten(2).cumsum(2).transpose(1, 2), **parts())
    layout = Layout(order="tokens", grid=SPACE)
    field = recorded(net, SPACE, layouts={"out": layout}).trf("out", (3, 4))
    assert field.inexact_by == ("cumsum",)
    assert covers(field.clipped_box_px, support_of(opened(net), SPACE, (3, 4), layout=layout))

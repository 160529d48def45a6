"""Which dimensions of a tensor are the map's, and where its units stand, of tensors that models make on the way."""

import math

import pytest
import torch
from nets import Does
from oracle import Seen, plain_gradient
from torch import Tensor, nn

import erfscope
from erfscope import MeasurementError
from erfscope.core.values.layout import Layout

SIZE = (8, 12)
PATCH = nn.Conv2d(2, 6, 1)


def tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def windows(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, rows of windows, columns of them, 4, 4, C)."""
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)


def put_back(x: Tensor, b: int, h: int, w: int) -> Tensor:
    return x.reshape(b, h // 4, w // 4, 4, 4, -1).permute(0, 5, 1, 3, 2, 4).reshape(b, -1, h, w)


HELD = {
    "channels first": (lambda x: x, Layout()),
    "channels last": (lambda x: x.permute(0, 2, 3, 1), Layout(dims=(1, 2))),
    "one channel without a dimension": (lambda x: x.mean(1), Layout(dims=(1, 2))),
    "channels in two dimensions": (lambda x: x.unflatten(1, (2, 3)), Layout(dims=(3, 4))),
    "tokens": (tokens, Layout(dims=(1,), grid=SIZE)),
    "tokens first": (lambda x: tokens(x).transpose(0, 1), Layout(dims=(0,), batch_dim=1, grid=SIZE)),
    "tokens last": (lambda x: x.flatten(2), Layout(dims=(2,), grid=SIZE)),
    "tokens of heads": (lambda x: tokens(x).unflatten(2, (2, 3)).transpose(1, 2), Layout(dims=(2,), grid=SIZE)),
    "tokens between others": (
        lambda x: torch.cat([torch.ones(len(x), 2, 6), tokens(x), torch.ones(len(x), 3, 6)], 1),
        Layout(dims=(1,), grid=SIZE, prefix=2, suffix=3),
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_a_map_is_read_off_the_dimensions_that_the_image_goes_along_and_put_back_into_them(name):
    function, layout = HELD[name]
    seen = Seen(Does(lambda n, x: function(n.patch(x)), patch=PATCH), SIZE)
    assert seen.layout == layout
    field = seen.trf((3, 5))
    assert (field.center_px, field.center_exact, field.box_px) == ((3.0, 5.0), True, ((3, 3), (5, 5)))
    plane = torch.randn(2, 6, *SIZE)
    held = function(plane)
    found = layout.to_map(held)
    assert tuple(found.shape) == layout.map_shape(held.shape)
    if found.shape == plane.shape:
        torch.testing.assert_close(found, plane)
    torch.testing.assert_close(layout.from_map(found, held), held)
    cells = held[torch.meshgrid(*map(torch.as_tensor, layout.unit_box(held.shape, (3, 5))), indexing="ij")]
    torch.testing.assert_close(cells.flatten().sort()[0], found[..., 3, 5].flatten().sort()[0])


NO_MAP = {
    "windows in the batch": lambda x: windows(x).reshape(-1, 16, x.shape[1]),
    "windows beside each other": lambda x: windows(x).flatten(1, 2).flatten(2, 3),
    "tokens in the batch": lambda x: tokens(x).flatten(0, 1),
    "tokens window by window": lambda x: windows(x).reshape(len(x), -1, x.shape[1]),
    "tokens in another order": lambda x: tokens(x)[:, torch.randperm(96, generator=torch.Generator().manual_seed(0))],
    "a token among the others": lambda x: torch.cat(
        [tokens(x)[:, :48], torch.ones(len(x), 1, 6), tokens(x)[:, 48:]], 1
    ),
    "channels in the batch": lambda x: x.reshape(-1, 1, *x.shape[2:]).squeeze(1),
    "products of tokens": lambda x: tokens(x) @ x.flatten(2),
}


@pytest.mark.parametrize("name", NO_MAP)
def test_other_orders_are_no_map(name):
    seen = Seen(Does(lambda n, x: NO_MAP[name](n.patch(x)), patch=PATCH), SIZE, layout=Layout())
    layout, reason, is_open = seen.positions.reading(seen.node)
    if name == "products of tokens":  # its rows are tokens, and its columns channels of them
        assert layout == Layout(dims=(1,), grid=SIZE)
    else:
        assert (layout, is_open) == (None, False)
        assert "form no grid" in reason


PUT_BACK = {
    "windows": lambda x: put_back(2 * windows(x).reshape(-1, 16, 6), len(x), *SIZE),
    "windows of one row": lambda x: (
        x.reshape(len(x), 6, 8, 3, 4).transpose(2, 3).reshape(-1, 8, 4).reshape(len(x), 6, 3, 8, 4).transpose(2, 3)
    ).reshape(x.shape),
    "windows as tokens": lambda x: put_back(windows(x).reshape(len(x), 6, -1, 6), len(x), *SIZE),
    "cells at a distance": lambda x: (
        x.reshape(len(x), 6, 4, 2, 4, 3).permute(0, 3, 5, 2, 4, 1).flatten(0, 2).flatten(1, 2)
        .reshape(len(x), 2, 3, 4, 4, 6).permute(0, 5, 3, 1, 4, 2).reshape(x.shape)
    ),
    "patches in channels": lambda x: nn.functional.pixel_shuffle(nn.functional.pixel_unshuffle(x, 2), 2),
    "another order and back": lambda x: tokens(x)[:, ORDER][:, ORDER.argsort()].transpose(1, 2).unflatten(2, SIZE),
}  # fmt: skip
ORDER = torch.randperm(math.prod(SIZE), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", PUT_BACK)
def test_what_is_taken_apart_and_put_back_stands_where_it_stood(name):
    seen = Seen(Does(lambda n, x: PUT_BACK[name](n.patch(x)), patch=PATCH), SIZE)
    for unit in ((0, 0), (3, 5), (7, 11)):
        field = seen.trf(unit)
        assert (field.center_px, field.center_exact) == ((float(unit[0]), float(unit[1])), True)


def test_a_plane_with_its_axes_crossed_keeps_the_order_of_the_tensor():
    seen = Seen(Does(lambda n, x: n.patch(x).transpose(2, 3), patch=PATCH), SIZE)
    assert seen.layout == Layout()
    field = seen.trf((5, 3))
    assert field.box_px == ((3, 3), (5, 5))
    assert not field.center_exact


def test_a_shortcut_says_where_shifted_windows_stand_which_do_not():
    def shifted(x):
        return put_back(windows(x.roll((-2, -2), (2, 3))).reshape(-1, 16, 6), len(x), *SIZE).roll((2, 2), (2, 3))

    alone = Seen(Does(lambda n, x: shifted(n.patch(x)), patch=PATCH), SIZE).trf((3, 5))
    assert (alone.center_exact, alone.center_px) == (False, (3.0, 5.0))
    assert "share a window" in alone.center_inexact_reason
    both = Seen(Does(lambda n, x: (y := n.patch(x)) + shifted(y), patch=PATCH), SIZE).trf((3, 5))
    assert (both.center_exact, both.center_px) == (True, (3.0, 5.0))


def test_states_of_a_recurrence_that_stand_at_several_steps_are_read_by_their_shape():
    def scan(net, x):
        state, rows = torch.zeros(len(x), 6), []
        for step in range(x.shape[2]):
            state = torch.tanh(net.inner(state) + net.outer(x[:, :, step]))
            rows.append(state)
        return torch.stack(rows, 2)

    net = Does(scan, inner=nn.Linear(6, 6), outer=nn.Linear(2, 6))
    seen = Seen(net, (7,), layout=Layout())
    assert seen.positions.reading(seen.node).is_open
    field = seen.trf((4,))
    assert (field.clipped_box_px, field.center_px, field.center_exact) == (((0, 4),), (4.0,), False)


MOVED_INSIDE = {
    "flipped": lambda x: x.unflatten(2, (2, 4)).flip(3).flatten(2, 3),
    "rolled": lambda x: x.unflatten(2, (2, 4)).roll(1, 3).flatten(2, 3),
    "turned": lambda x: x.reshape(len(x), 6, 2, 4, 3, 4).transpose(3, 5).reshape(x.shape),
    "in another order": lambda x: put_back(
        windows(x).reshape(-1, 16, 6)[:, torch.arange(15, -1, -1)], len(x), *SIZE
    ),
    "cropped": lambda x: windows(x)[:, :, :, 1:3, 1:3].permute(0, 5, 1, 3, 2, 4).reshape(len(x), 6, 4, 6),
    "as if channels were cells": lambda x: nn.functional.pixel_shuffle(nn.functional.pixel_unshuffle(x, 4), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED_INSIDE)
def test_cells_that_were_moved_inside_windows_are_not_said_to_stand_where_they_stood(name):
    seen = Seen(Does(lambda n, x: MOVED_INSIDE[name](n.patch(x)), patch=PATCH), SIZE)
    for unit in ((0, 2), (3, 5)):
        field = seen.trf(unit)
        assert not field.center_exact
        assert field.clipped_box_px == seen.support(unit)


def test_phases_that_were_pooled_apart_stand_in_the_middle_of_what_they_read():
    def pooled(x):
        b, c, h, w = x.shape
        phases = x.reshape(b, c, h // 2, 2, w // 2, 2).permute(3, 5, 0, 1, 2, 4).reshape(-1, c, h // 2, w // 2)
        phases = nn.functional.avg_pool2d(phases, 2).reshape(2, 2, b, c, h // 4, w // 4)
        return phases.permute(2, 3, 4, 0, 5, 1).reshape(b, c, h // 2, w // 2)

    field = Seen(Does(lambda n, x: pooled(n.patch(x)), patch=PATCH), SIZE).trf((1, 2))
    assert (field.clipped_box_px, field.center_px, field.center_exact) == (((1, 3), (4, 6)), (2.0, 5.0), True)


def test_channels_that_were_put_below_each_other_are_no_rows():
    net = Does(lambda n, x: n.patch(x).reshape(len(x), 6, 2, 4, 12).reshape(len(x), 12, 4, 12), patch=PATCH)
    seen = Seen(net, SIZE, layout=Layout())
    assert seen.positions.reading(seen.node).layout is None
    assert seen.trf((1, 3)).clipped_box_px == seen.support((1, 3)) == ((1, 5), (3, 3))
    flat = Seen(Does(lambda n, x: n.patch(x).flatten(1, 2), patch=PATCH), SIZE, layout=Layout(dims=(1, 2)))
    assert flat.positions.reading(flat.node).layout is None


def test_what_is_put_before_a_map_is_padding_and_one_row_of_tokens_stands_where_it_is():
    field = Seen(Does(lambda n, x: tokens(n.patch(x))[:, 12:24], patch=PATCH), SIZE).trf((0, 4))
    assert (field.center_px, field.center_exact, field.box_px) == ((1.0, 4.0), True, ((1, 1), (4, 4)))
    rows = Does(lambda n, x: n.out(torch.cat([x.new_zeros(len(x), 6, 2, 12), n.patch(x)], 2)), patch=PATCH)
    rows.out = nn.Conv2d(6, 4, 3)
    field = Seen(rows, SIZE).trf((4, 5))
    assert (field.center_px, field.center_exact, field.box_px) == ((3.0, 6.0), True, ((2, 4), (5, 7)))
    line = Does(lambda n, x: n.out(torch.cat([x.new_zeros(len(x), 2, 2), x], 2)), out=nn.Conv1d(2, 4, 3))
    seen = Seen(line, (20,))
    assert (seen.layout, seen.grid) == (Layout(), (20,))
    assert (seen.trf((7,)).center_px, seen.trf((7,)).center_exact) == ((6.0,), True)


@pytest.mark.parametrize("move", [lambda y: y.roll(1, 2), lambda y: y.flip(3)])
def test_channels_of_a_map_and_of_another_order_of_it_have_no_middle(move):
    net = Does(lambda n, x: torch.cat([y := n.patch(x), move(y)], 1), patch=PATCH)
    assert not Seen(net, SIZE).trf((0, 5)).center_exact


@pytest.mark.parametrize("token", ["behind", "before"])
def test_a_map_beside_a_token_goes_on_beyond_its_own_end_alone(token):
    """The padded end of a line stands where the map goes on, and beyond the token nothing does, also once it is
    rolled to the other end."""

    def forward(net, x):
        parts = [net.patch(x), torch.ones(len(x), 6, 1)]
        line = torch.cat(parts if token == "behind" else parts[::-1], 2)
        return torch.roll(net.wide(line), -1 if token == "behind" else 1, 2)

    net = Does(forward, patch=nn.Conv1d(2, 6, 1), wide=nn.Conv1d(6, 6, 3, padding=2))
    seen = Seen(net, (24,), layout=Layout())
    centers = seen.positions.places(seen.node)[0].table
    if token == "behind":
        assert centers[-1] == -1.0
        assert not torch.isfinite(torch.as_tensor(centers[-3:-1])).any()
    else:
        assert centers[0] == 24.0
        assert not torch.isfinite(torch.as_tensor(centers[1:3])).any()


def test_of_frames_in_the_batch_it_is_said_how_they_become_an_axis() -> None:
    net = Does(lambda n, x: n.frame(x.transpose(1, 2).flatten(0, 1)).mean((2, 3)), frame=nn.Conv2d(2, 3, 3))
    with pytest.raises(MeasurementError, match=r"'frame', .* parts of each image, such as frames\): wrap the"):
        erfscope.theoretical(net, in_chans=2, input_size=(4, 6, 8))


@pytest.mark.parametrize("has_class", [False, True])
def test_all_frames_of_a_place_side_by_side_have_the_map_of_plain_autograd(has_class):
    """Patches of every frame with a class token; then tokens (h w T) behind one class token, as TimeSformer makes them:
    that of the first frames of the batch."""

    def forward(m, x):
        batch, _, frames, *_ = x.shape
        tokens, first = m.patch(x.transpose(1, 2).flatten(0, 1)).flatten(2).mT, None
        if has_class:
            tokens = torch.cat([m.token.expand(len(tokens), -1, -1), tokens], 1)
            first, tokens = tokens[:batch, 0].unsqueeze(1), tokens[:, 1:]
        count = tokens.shape[1]
        tokens = tokens.reshape(batch, frames, count, 4).permute(0, 2, 1, 3).reshape(batch * count, frames, 4)
        tokens = tokens + m.mix(tokens.mT).mT.tanh()
        tokens = tokens.view(batch, count, frames, 4).reshape(batch, count * frames, 4)
        return tokens if first is None else torch.cat([first, tokens], 1)

    parts = {"patch": nn.Conv2d(3, 4, 2, 2), "mix": nn.Conv1d(4, 4, 3, padding=1)}
    net = Does(forward, **parts, token=nn.Parameter(torch.randn(1, 1, 4))).double().eval()
    clips, words = torch.randn(2, 3, 3, 8, 12, dtype=torch.float64), {"convention": "luo", "measures": "r50"}
    result = erfscope.analyze(net, images=clips, input_size=(3, 8, 12), unit=(0, 2, 4), dtype="float64", **words)
    assert (result.unit.map_shape, result.unit.center_px) == ((4, 3, 4, 6), (0, 4.5, 8.5))
    assert result.unit.center_exact
    assert result.trf.clipped_box_px == ((0, 1), (4, 5), (8, 9))
    gradient = plain_gradient(net, clips, lambda y: y[:, has_class + (2 * 6 + 4) * 3])
    assert torch.equal(torch.from_numpy(result.map.values != 0), gradient.abs().sum((0, 1)) != 0)


def test_a_map_of_tokens_in_another_order_goes_back_where_it_was():
    layout = Layout(dims=(1,), grid=(3, 4, 5), order=(1, 2, 0), prefix=2, suffix=1)
    tokens = torch.arange(2.0 * 63 * 7).view(2, 63, 7)
    cells = layout.to_map(tokens)
    assert cells.shape == (2, 7, 3, 4, 5)
    assert torch.equal(layout.from_map(cells, tokens), tokens)
    for unit in ((0, 0, 0), (2, 1, 3)):
        (spot,) = layout.unit_box(tokens.shape, unit)[1]
        assert torch.equal(tokens[:, spot], cells[:, :, *unit])
        assert spot == 2 + (unit[1] * 5 + unit[2]) * 3 + unit[0]

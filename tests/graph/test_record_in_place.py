"""Operations in place and writes to views: tensors mean what they hold, and gradients are autograd's."""

import random

import pytest
import torch
from nets import Does
from replay import assert_same_derivative
from torch import nn

from erfscope.core.graph.graph import name_of
from erfscope.core.graph.record import RecordingError, record


def program_of(function):
    return Does(lambda _, x: function(x * 1.0))


def write_to_a_row(y):
    y[:, 1].mul_(2)
    return y


def write_through_a_view(y):
    y.transpose(1, 2).reshape(3, 16)[0].zero_()  # a copy: nothing is written to y
    y.transpose(1, 2)[1].sin_()
    return y


def read_an_older_view(y):
    view = y[..., ::2].expand(2, 3, 4, 2)
    y.mul_(3)
    return view + y[..., 1::2]


def write_to_a_view_of_a_view(y):
    view = y.view(12, 4)[2:5].T
    view[1:3] = view[:1].clone().cos()
    return torch.cat([y.flatten(), view.flatten()])


def write_to_a_part(y):
    y.diagonal(0, 0, 2)[1:].add_(1)
    return y.square()


def mixed_types(y):
    y[0] = torch.arange(16).reshape(4, 4)
    y[:, 0].mul_(torch.tensor([2.0, 3.0, 4.0]).half()[:, None])
    return y.sum(0)


def write_to_what_a_dropout_gives_back(y):
    given = nn.functional.dropout(y, 0.5, training=False)
    given += 1
    return y + given


def write_to_a_view_by_letters(y):
    torch.einsum("aij->ija", y).mul_(3)
    return y


def write_by_a_mask(y):
    y[y.detach() > 0] = 0.5
    y.masked_fill_(torch.arange(4) == 2, 1.5)
    return y


def write_with_out(y):
    total = torch.zeros_like(y)
    torch.mul(y.detach(), 2, out=total)
    return y * total


def write_to_a_table(y):
    table = torch.zeros(4, 4, dtype=y.dtype)
    table[:, 1], table[2] = 2.0, torch.arange(4.0).double()
    return y * table


PROGRAMS = [function for name, function in [*globals().items()] if name.startswith(("write_", "read_", "mixed_"))]


def images():
    return torch.randn(3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_write_is_seen_by_all_that_look_into_the_same_memory(program):
    graph = record(program_of(program), (images(),))
    assert graph.by == "shapes"
    assert_same_derivative(graph, program_of(program), images())


def test_a_write_where_numbers_say_so_is_followed_along_the_path_taken():
    def program(y):
        y[int(y.detach().sum(0).argmax()) % 3].mul_(2)
        return y

    graph = record(program_of(program), (images(),))
    assert graph.by == "path taken"
    assert_same_derivative(graph, program_of(program), images())


def test_a_write_to_a_part_reads_the_part_alone_and_what_nobody_reads_is_not_kept():
    names = [name_of(node) for node in record(program_of(write_to_a_row), (images(),)).nodes]
    assert "select_scatter" in names
    assert not any(name.endswith("_") for name in names)
    names = [name_of(node) for node in record(program_of(lambda y: y.permute(1, 2, 0).relu_()), (images(),)).nodes]
    assert names == ["input_0", "mul", "permute", "relu"]


@pytest.mark.parametrize(
    "program",
    [
        lambda y: y.unsqueeze_(0),
        lambda y: y.unfold(-1, 2, 1).add_(1),
        lambda y: torch._foreach_add_([y, y + 1], 1) or y,
    ],
    ids=["shape", "overlap", "several"],
)
def test_a_write_that_cannot_be_followed_is_refused(program):
    with pytest.raises(RecordingError, match=r"^NotFollowedError: "):
        record(program_of(program), (images(),))


VIEWS = [
    lambda r, t: t.select(dim := r.randrange(t.dim()), r.randrange(-t.shape[dim], t.shape[dim])),
    lambda r, t: t.narrow(
        dim := r.randrange(t.dim()), first := r.randrange(t.shape[dim]), r.randint(1, t.shape[dim] - first)
    ),
    lambda r, t: t[..., ::2],
    lambda r, t: t.transpose(0, -1),
    lambda r, t: t.permute(*r.sample(range(t.dim()), t.dim())),
    lambda r, t: t.reshape(-1),
    lambda r, t: t.unsqueeze(r.randrange(t.dim() + 1)),
    lambda r, t: t.squeeze(),
    lambda r, t: t.split(2, -1)[0],
    lambda r, t: t.unbind(0)[-1],
    lambda r, t: torch.diagonal(t, 0, 0, -1) if t.dim() > 1 else t,
    lambda r, t: t.view_as(t),
    lambda r, t: t.movedim(0, -1),
]
COPIES = [lambda r, t: t.sin(), lambda r, t: t.clone(), lambda r, t: t.contiguous(), lambda r, t: t.flip(0)]
WRITES = [
    lambda r, t: t.mul_(1.1),
    lambda r, t: t.sin_(),
    lambda r, t: t.copy_(t.cos() * 1.2),
    lambda r, t: t.copy_(torch.arange(t.shape[-1])),
    lambda r, t: t.copy_(t.flip(0)),
    lambda r, t: t.zero_(),
    lambda r, t: t.clamp_(-1, 1),
    lambda r, t: t.index_fill_(0, torch.tensor([0]), 0.4),
    lambda r, t: t.masked_fill_(torch.arange(t.numel()).reshape(t.shape) % 3 == 0, 0.7),
    lambda r, t: t.__setitem__((..., slice(0, 1)), t[..., -1:].clone() * 2),
]


def random_program(seed):
    """Up to 14 views, copies and writes; the sum of all tensors, each cell with its own weight."""

    def run(y):
        r, pool = random.Random(seed), [y]
        for _ in range(r.randint(3, 14)):
            tensor, kind = r.choice(pool), r.choices((VIEWS, COPIES, WRITES), (9, 3, 8))[0]
            if tensor.dim() and tensor.numel() < 5000:
                made = r.choice(kind)(r, tensor)
                pool += [] if kind is WRITES else [made]
        return sum((each.reshape(-1) * torch.linspace(1, 2, each.numel(), dtype=y.dtype)).sum() for each in pool)

    return program_of(run)


def is_valid(module, x):
    """Whether autograd takes the program: it refuses writes to some views."""
    try:
        module(x.clone().requires_grad_(True)).backward()
    except RuntimeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_random_programs_are_what_autograd_makes_of_them(part):
    valid = [
        program for seed in range(part * 60, part * 60 + 60) if is_valid(program := random_program(seed), images())
    ]
    assert len(valid) > 15
    for program in valid:
        graph = record(program, (images(),))
        assert graph.by == "shapes"
        assert_same_derivative(graph, program, images())

"""Operations on random shapes, each called in a random way."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from nets import Does

from erfscope.core.graph.graph import Numbers
from erfscope.core.graph.record import record
from erfscope.core.system.containers import tensors_of


def random_conv(r, dims):
    """A convolution of a random kind: (function, shape of its input)."""
    kernel, stride, dilation = ([r.randint(1, 3) for _ in range(dims)] for _ in range(3))
    padding, groups = [r.randint(0, 2) for _ in range(dims)], r.choice([1, 2])
    weight = torch.rand(2 * groups, 3, *kernel, dtype=torch.float64) + 0.5
    function = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    shape = [2, 3 * groups, *(r.randint(7, 9) for _ in range(dims))]
    return lambda x: function(x, weight, None, stride, padding, dilation, groups), shape


def transposed(r, dims):
    kernel, stride, dilation = ([r.randint(1, 3) for _ in range(dims)] for _ in range(3))
    padding = [r.randint(0, min(2, d * (k - 1))) for k, d in zip(kernel, dilation, strict=True)]
    weight = torch.rand(2, 3, *kernel, dtype=torch.float64) + 0.5
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    shape = [2, 2, *(r.randint(3, 5) for _ in range(dims))]
    return lambda x: function(x, weight, None, stride, padding, 0, 1, dilation), shape


def pooled(r, dims):
    kernel = [r.randint(1, 3) for _ in range(dims)]
    stride, padding = [r.randint(1, 3) for _ in range(dims)], [r.randint(0, k // 2) for k in kernel]
    ceil, function = r.random() < 0.5, (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    return lambda x: function(x, kernel, stride, padding, ceil), [2, 2, *(r.randint(6, 9) for _ in range(dims))]


def resized(r, mode, **more):
    dims = {"linear": 1, "trilinear": 3}.get(mode, 2)
    size = [r.randint(2, 13) for _ in range(dims)]
    return lambda x: F.interpolate(x, size, mode=mode, **more), [2, 2, *(r.randint(3, 7) for _ in range(dims))]


def padded(r, mode):
    amounts = [r.randint(0, 3) for _ in range(4)]
    return lambda x: F.pad(x, amounts, mode=mode), [2, 2, r.randint(4, 6), r.randint(4, 6)]


def random_shape(r, low=1, high=4, rank=None):
    return [r.randint(low, high) for _ in range(rank or r.randint(2, 4))]


def reshaped(r):
    """Dimensions merged, or split."""
    fine = [r.randint(1, 3) for _ in range(5)]
    cuts = sorted(r.sample(range(1, 5), 2))
    coarse = [int(np.prod(fine[a:b])) for a, b in zip([0, *cuts], [*cuts, 5], strict=True)]
    old, new = (fine, coarse) if r.random() < 0.5 else (coarse, fine)
    return lambda x: x.reshape(new), old


def permuted(r):
    shape = random_shape(r)
    return (lambda order: lambda x: x.permute(order))(r.sample(range(len(shape)), len(shape))), shape


def sliced(r):
    shape = random_shape(r, 3, 6)
    dim, start, step = r.randrange(len(shape)), r.randint(-2, 2), r.randint(1, 3)
    return lambda x: x[(slice(None),) * dim + (slice(start, None, step),)], shape


def rolled(r):
    shape = random_shape(r, 2, 5)
    return (lambda s, d: lambda x: torch.roll(x, (s, -1), (d, 0)))(r.randint(-7, 7), r.randrange(len(shape))), shape


def joined(r):
    shape = random_shape(r)
    dim = r.randrange(len(shape))
    return lambda x: torch.cat([x * 2, torch.zeros_like(x), x.flip(dim)], dim), shape


def stacked(r):
    shape = random_shape(r)
    return (lambda dim: lambda x: torch.stack([torch.zeros_like(x), x], dim))(r.randint(0, len(shape))), shape


def unfolded(r):
    dim, size, step = r.randrange(3), r.randint(1, 3), r.randint(1, 3)
    return lambda x: x.unfold(dim, size, step), [r.randint(4, 7) for _ in range(3)]


def columns(r):
    kernel, dilation, padding, stride = r.randint(1, 3), r.randint(1, 2), r.randint(0, 2), r.randint(1, 3)
    return lambda x: F.unfold(x, kernel, dilation, padding, stride), [2, 2, r.randint(5, 7), r.randint(5, 7)]


def folded(r):
    kernel, stride, side = r.randint(1, 3), r.randint(1, 3), r.randint(4, 7)
    count = (side + 2 - kernel) // stride + 1
    return lambda x: F.fold(x, side, kernel, 1, 1, stride), [2, 2 * kernel**2, count**2]


def reshuffled(r, up):
    k, side = r.randint(2, 3), r.randint(2, 3)
    shape = [2, 2 * k * k, side, side] if up else [2, 2, side * k, side * k]
    return (lambda x: F.pixel_shuffle(x, k)) if up else (lambda x: F.pixel_unshuffle(x, k)), shape


def chosen(r):
    shape = random_shape(r, 2, 5)
    dim, index = r.randrange(len(shape)), torch.tensor([r.randint(0, 1) for _ in range(r.randint(1, 5))])
    return lambda x: x.index_select(dim, index), shape


def written(r):
    side, start, step = r.randint(5, 8), r.randint(0, 2), r.randint(1, 2)

    def forward(x):
        y = x * 1
        y[:, start::step] = x[:, start::step].flip(1) * 2
        return y

    return forward, [2, side]


#: Operation -> given random numbers, a function that calls it in a random way, and the shape of its input. What a rule
#: says of each is compared with derivatives, and a part of its output with the whole.
OPERATIONS = {
    **{f"conv{n}d": lambda r, n=n: random_conv(r, n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": lambda r, n=n: transposed(r, n) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": lambda r, n=n: pooled(r, n) for n in (1, 2, 3)},
    **{mode: lambda r, m=mode: resized(r, m) for mode in ("nearest", "nearest-exact", "linear", "bilinear", "bicubic")},
    "trilinear": lambda r: resized(r, "trilinear"),
    "aligned": lambda r: resized(r, "bilinear", align_corners=True),
    "antialiased": lambda r: resized(r, "bilinear", antialias=True),
    **{f"pad {mode}": lambda r, m=mode: padded(r, m) for mode in ("constant", "reflect", "replicate", "circular")},
    "adaptive": lambda r: ((lambda o: lambda x: F.adaptive_avg_pool2d(x, o))([r.randint(1, 6), 2]), [2, 2, 7, 5]),
    "reshape": reshaped,
    "permute": permuted,
    "slice": sliced,
    "roll": rolled,
    "flip": lambda r: (lambda x: x.flip(0, -1), random_shape(r)),
    "real": lambda r: (lambda x: torch.complex(x, x).real + torch.complex(x, 2 * x).imag, random_shape(r)),
    "rot90": lambda r: ((lambda k: lambda x: torch.rot90(x, k, (1, 2)))(r.randint(0, 3)), [2, 3, 4, 2]),
    "cat": joined,
    "stack": stacked,
    "expand": lambda r: (lambda x: x.expand(3, 2, 4), [2, 1] if r.random() < 0.5 else [1, 2, 1]),
    "repeat": lambda r: (lambda x: x.repeat(2, 1, 3), random_shape(r, rank=2)),
    "repeat_interleave": lambda r: ((lambda n: lambda x: x.repeat_interleave(n, 1))(r.randint(2, 3)), random_shape(r)),
    "select": lambda r: (lambda x: x[:, 1], random_shape(r, 2)),
    "unbind": lambda r: (lambda x: x.unbind(1)[1], random_shape(r, 2)),
    "split": lambda r: (lambda x: x.split(2, 1)[-1], random_shape(r, 3)),
    "chunk": lambda r: (lambda x: x.chunk(2, 0)[0], random_shape(r, 2)),
    "unfold": unfolded,
    "im2col": columns,
    "col2im": folded,
    "pixel_shuffle": lambda r: reshuffled(r, True),
    "pixel_unshuffle": lambda r: reshuffled(r, False),
    "channel_shuffle": lambda r: (lambda x: F.channel_shuffle(x, 2), [2, 6, 2, 3]),
    "index_select": chosen,
    "slice_scatter": written,
    "mean": lambda r: (
        (lambda d, k: lambda x: x.mean(d, keepdim=k))(r.choice([0, 1, (0, 2)]), r.random() < 0.5),
        [2, 3, 4],
    ),
    "softmax": lambda r: ((lambda d: lambda x: x.softmax(d))(r.randrange(3)), [2, 3, 4]),
    "layer_norm": lambda r: (lambda x: F.layer_norm(x, x.shape[1:]), [2, 3, 4]),
    "cumsum": lambda r: ((lambda d: lambda x: x.cumsum(d))(r.randrange(3)), [2, 3, 4]),
    "glu": lambda r: (lambda x: F.glu(x, 1), [2, 4, 3]),
    "linear": lambda r: (lambda x: x @ torch.ones(4, 5, dtype=x.dtype), [2, 3, 4]),
    "matmul": lambda r: (lambda x: x @ x.transpose(-2, -1), [2, 3, 4]),
    "attention": lambda r: (lambda x: F.scaled_dot_product_attention(x, x, x), [2, 2, 3, 4]),
    "einsum": lambda r: (lambda x: torch.einsum("bij,bkj->bki", x, x + 1), [2, 3, 4]),
    "einsum by an ellipsis": lambda r: (lambda x: torch.einsum("...i,...ji->...j", x, x[..., None, :] + 1), [2, 3, 4]),
    "einsum of one index": lambda r: (lambda x: torch.einsum("bij,bij->bji", x, x[:, :1]), [2, 3, 4]),
    "broadcast_tensors": lambda r: (
        (lambda k: lambda x: torch.broadcast_tensors(x[:, :1], x[:1])[k])(r.randrange(2)),
        [2, 3, 4],
    ),
    "linalg_norm": lambda r: ((lambda d: lambda x: torch.linalg.norm(x, dim=d))(r.choice([0, -1, (1, 2)])), [2, 3, 4]),
    "squeeze": lambda r: (lambda x: x.unsqueeze(1).squeeze(2), [2, 1, 3]),
}


class RecordedOperation:
    """An operation recorded on a random shape; the same for the same seed."""

    def __init__(self, name, seed):
        self.random = random.Random(f"{name} {seed}")
        self.forward, shape = OPERATIONS[name](self.random)
        module = Does(lambda _, x: self.forward(x))
        self.x = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        self.graph = record(module, (self.x,))
        self.numbers = Numbers(self.graph, tensors_of(module))
        (self.node,) = self.graph.marks[""].outputs.values()

"""Operations that mix positions: reductions, softmax, norms, running sums, recurrent layers, transforms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, fx

from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.rules.moves import along
from erfscope.core.graph.rules.parts import PartStep, PartValues, run_as_it_is, runs
from erfscope.core.graph.rules.reading import (
    ABSENT,
    Call,
    Dims,
    Edge,
    Shape,
    Taps,
    Whole,
    dim_of,
    dims_of,
    is_tensor,
    others_read_whole,
    pointwise,
    rule,
    taps,
)
from erfscope.core.system.precision import without_cudnn

#: Names of reductions in results, by operation.
REDUCTIONS = {
    "mean": "global average pooling",
    "prod": "product over positions",
    "aminmax": "global min and max pooling",
    "argmax": "argmax over positions",
    "argmin": "argmin over positions",
    "logsumexp": "logsumexp over positions",
    **dict.fromkeys(("sum", "nansum"), "sum over positions"),
    **dict.fromkeys(("amax", "max"), "global max pooling"),
    **dict.fromkeys(("amin", "min"), "global min pooling"),
    **dict.fromkeys(("median", "nanmedian"), "median over positions"),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), "variance over positions"),
    **dict.fromkeys(("linalg_norm", "linalg_vector_norm", "norm", "frobenius_norm"), "norm over positions"),
    **dict.fromkeys(("all", "any", "count_nonzero"), "reduction over positions"),
}
#: Where a running sum's dimension is longer, all of it counts as read.
LONGEST = 4096
#: Scores at or below this are those of closed gates.
MASKED_SCORE = -1e4


@rule("argmax", "argmin", has_derivative=False)
@rule("mean", "sum", "logsumexp", "linalg_norm", "linalg_vector_norm", "norm", normalises=True)
@rule("var", "std", "var_mean", "std_mean", normalises=True)
@rule(*REDUCTIONS)
def reduction(call: Call) -> list[Edge] | None:
    """Reductions over some or all dimensions."""
    x = call.tensor()
    rank = len(shape_of(x))
    if is_tensor(call.args.get("other")):  # max(a, b), elementwise
        return pointwise(call)
    dims = dims_of(call.args.get("dim"), rank)
    return [Edge(source=x, steps=(reduced(shape_of(x), call.shape, dims),), mixing=REDUCTIONS[call.name])]


def reduced(source: Shape, shape: Shape, dims: tuple[int, ...]) -> Dims:
    """The step of a reduction, which may keep the dimensions with one index."""
    kept = iter(range(len(source)))
    reads = tuple(Whole() if i in dims else i if len(shape) == len(source) else next(kept) for i in range(len(source)))
    return Dims(reads, shape)


def mix(call: Call, dims: tuple[int, ...], words: str) -> Edge:
    """An edge that keeps all positions and mixes along some dimensions."""
    return along(call, call.tensor(), {dim: Whole(same=dim) for dim in dims}, mixing=words)[0]


def parameters(call: Call, names: tuple[str, ...], dims: tuple[int, ...]) -> list[Edge]:
    """Edges to weights and biases whose dimensions are these of the output."""
    found = [call.args[name] for name in names if is_tensor(call.args.get(name))]
    return [Edge(source=each, steps=(Dims(dims, call.shape),), secondary=True) for each in found]


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax", "softmin", normalises=True)
def softmax(call: Call) -> list[Edge] | None:
    """Softmax along one dimension."""
    return [mix(call, dims_of(call.args["dim"], len(call.shape)), "softmax over positions")]


@rule("cummax", "cummin")
@rule("cumsum", "cumprod", "logcumsumexp", makes_dim=True)
def running(call: Call) -> list[Edge] | None:
    """Running sums read what lies before a position along their dimension."""
    x, dim = call.tensor(), dim_of(call.args["dim"], len(call.shape))
    words = f"{call.name} over positions"
    if shape_of(x)[dim] > LONGEST:
        return [mix(call, (dim,), words)]
    return along(call, x, {dim: up_to(dim, shape_of(x)[dim])}, mixing=words)


def up_to(dim: int, size: int) -> Taps:
    """Taps of everything up to a position."""
    spots = np.arange(size)
    before = np.where(spots[None] <= spots[:, None], spots[None], ABSENT)
    return taps(dim, size, before, center=spots.astype(float), scale=1)


@rule("instance_norm", normalises=True)
@rule("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
def batch_norm(call: Call) -> list[Edge] | None:
    """Batch or instance normalisation: with stored statistics elementwise, else by the statistics of the whole batch or
    of each map.
    """
    own = call.args.get("training", call.args.get("use_input_stats"))
    over = (*([0] if "batch" in call.name else []), *range(2, len(call.shape))) if own else ()
    words = "batch or instance norm by the map's own statistics"
    return [mix(call, over, words), *parameters(call, ("weight", "bias", "running_mean", "running_var"), (1,))]


@rule("group_norm", normalises=True)
def group_norm(call: Call) -> list[Edge] | None:
    """Group normalisation reads a group of channels at all positions."""
    over = tuple(range(1, len(call.shape)))
    return [mix(call, over, "group norm"), *parameters(call, ("weight", "bias"), (1,))]


@rule("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm", normalises=True)
def layer_norm(call: Call) -> list[Edge] | None:
    """Layer and RMS normalisation over the last dimensions."""
    if call.output:
        return None
    over = tuple(range(len(call.shape) - len(call.args["normalized_shape"]), len(call.shape)))
    return [mix(call, over, "layer norm over positions"), *parameters(call, ("weight", "bias"), over)]


@rule("glu", makes_dim=True)
def glu(call: Call) -> list[Edge] | None:
    """Gated linear unit: one half of a dimension gates the other."""
    x, dim = call.tensor(), dim_of(call.args["dim"], len(call.shape))
    half = np.arange(call.shape[dim])
    pairs: Taps = taps(dim, 2 * half.size, np.stack([half, half + half.size], 1), center=half.astype(float), scale=1)
    return along(call, x, {dim: pairs})


@rule("lstm", "gru", "rnn_tanh", "rnn_relu", stateful=True)
def recurrent(call: Call) -> list[Edge] | None:
    """A recurrent layer over (L, B, C), or (B, L, C): an output reads what lies before it, or all where both
    directions are read.
    """
    x = call.tensor("input")
    along_, across = (1, 0) if call.args.get("batch_first") else (0, 1)
    words = {"lstm": "LSTM", "gru": "GRU"}.get(call.name, "RNN") + " over positions"
    if len(shape_of(x)) != 3:
        return None
    if call.output:  # the state after the last step: (layers, B, C)
        last = tuple(1 if i == across else Whole() for i in range(3))
        return [Edge(source=x, steps=(Dims(last, call.shape),), mixing=words), *others_read_whole(call, x)]
    read: int | Whole | Taps = Whole(same=along_)
    if not call.args.get("bidirectional") and shape_of(x)[along_] <= LONGEST:
        read = up_to(along_, shape_of(x)[along_])
    reads = tuple(read if i == along_ else i if i == across else Whole() for i in range(3))
    return [Edge(source=x, steps=(Dims(reads, call.shape),), mixing=words), *others_read_whole(call, x)]


@runs("lstm", "gru", "rnn_tanh", "rnn_relu")
def run_recurrent(step: PartStep, values: PartValues) -> Tensor:
    """A recurrent layer, of which cuDNN has no gradient in evaluation mode."""
    with without_cudnn():
        return run_as_it_is(step, values)


@rule("fft_fft", "fft_fft2", "fft_fftn", "fft_rfft", "fft_rfft2", "fft_rfftn")
@rule("fft_ifft", "fft_ifft2", "fft_ifftn", "fft_irfft", "fft_irfft2", "fft_irfftn")
def fourier(call: Call) -> list[Edge] | None:
    """A Fourier transform reads its dimensions wholly."""
    x, rank = call.tensor(), len(call.shape)
    few = (-2, -1) if call.name.endswith("2") else None if call.name.endswith("n") else -1
    dims = dims_of(call.args.get("dim") or few, rank)
    return along(call, x, dict.fromkeys(dims, Whole()), mixing="Fourier transform")


@runs("batch_norm", "instance_norm", "cudnn_batch_norm", "miopen_batch_norm")
def run_batch_norm(step: PartStep, values: PartValues) -> Tensor:
    """A frozen batch norm as the scale and the shift that it is.

    On the CPU, PyTorch's gradient of a batch norm mixes up the positions where the gradient that arrives lies in memory
    in another order than the input (seen in PyTorch 2.15): one by the map's own statistics gets it in the input's.
    """
    call = step.call
    if call.args.get("training", call.args.get("use_input_stats")):
        out = run_as_it_is(step, values)
        if out.requires_grad:
            out.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
        return out
    scale, shift = values.weights or scale_and_shift(call, values.of)
    shape = (1, -1, *(1,) * (len(step.part) - 2))
    x = values.of(call.tensor())
    return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(x.dtype)


def scale_and_shift(call: Call, tensor: Callable[[fx.Node], Tensor]) -> tuple[Tensor, Tensor]:
    """Scale and shift of a frozen batch norm, (C,), computed in float64."""
    names = ("running_mean", "running_var", "weight", "bias")
    mean, variance, weight, bias = (None if (node := call.args.get(name)) is None else tensor(node) for name in names)
    assert mean is not None
    assert variance is not None
    scale = torch.rsqrt(variance.double() + call.args["eps"])
    scale = scale if weight is None else scale * weight.double()
    shift = -mean.double() * scale if bias is None else bias.double() - mean.double() * scale
    return scale.to(variance.dtype), shift.to(variance.dtype)

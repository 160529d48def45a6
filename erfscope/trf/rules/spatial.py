"""Convolution, pooling, padding, interpolation, pixel shuffling and unfolding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

from erfscope.trf.axes.axis_layout import AxisFactor, AxisLayout, other
from erfscope.trf.axes.factor_maps import Regrid
from erfscope.trf.axes.index_maps import Adaptive, Border, IndexMap, TransposedWindow, Window
from erfscope.trf.axes.resize_maps import Kind, Resize, SmoothResize
from erfscope.trf.edges.basic import full_edge
from erfscope.trf.edges.resampling import Resampling, resample, resample_list
from erfscope.trf.graph import AxisRead, Edge, RuleOutput
from erfscope.trf.rules.concatenation import ConcatenatedPart, with_extra_tokens
from erfscope.trf.rules.registry import Answer, Call, depends_on_all, rule


def _per_dim(values: int | Sequence[int], count: int) -> list[int]:
    """One value per spatial dimension; a single one stands for all."""
    entries = [values] if isinstance(values, int) else list(values)
    return entries * count if len(entries) == 1 else entries


def _sliding_window(out: int, kernel: int, stride: int, padding: int, dilation: int) -> Resampling:
    index_map = partial(Window, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    return Resampling(out, index_map, stride, dilation * (kernel - 1) / 2 - padding)


def _transposed_window(out: int, kernel: int, stride: int, padding: int, dilation: int) -> Resampling:
    index_map = partial(TransposedWindow, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    return Resampling(out, index_map, 1 / stride, -(dilation * (kernel - 1) / 2 - padding) / stride)


@rule("convolution", "_convolution", "conv1d", "conv2d", "conv3d")
def convolution(call: Call) -> Answer:
    """Convolution, grouped, dilated or transposed."""
    node = call.node("input")
    weight = call.args["weight"]
    if node is None or len(node.shape) != len(call.shape):
        return depends_on_all(call)
    count = len(call.shape) - 2
    strides, paddings, dilations = (_per_dim(call.args[key], count) for key in ("stride", "padding", "dilation"))
    transposed = bool(call.args.get("transposed", False))
    changes = {}
    for i in range(count):
        kernel = weight.shape[2 + i]
        if (kernel, strides[i], call.shape[2 + i]) == (1, 1, node.shape[2 + i]):
            continue  # positions stay where they are, whatever they are positions of
        window = _transposed_window if transposed else _sliding_window
        changes[2 + i] = window(call.shape[2 + i], kernel, strides[i], paddings[i], dilations[i])
    made = resample(node, call.shape, changes, mixed=[1], mixing_name="convolution over stacked positions")
    if made is None:
        return depends_on_all(call)
    more = tuple(
        full_edge(extra) for extra in call.live if extra is not node
    )  # weights that were computed from the image
    return made._replace(
        edges=made.edges + more, mixing_name="weights computed from the whole map" if more else made.mixing_name
    )


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d")
@rule("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def pooling(call: Call) -> Answer:
    """Average and maximum pooling; ceil mode only makes the output longer."""
    node = call.live[0]
    count = int(call.name[8])
    kernels = _per_dim(call.args["kernel_size"], count)
    strides = _per_dim(call.args.get("stride") or kernels, count)
    paddings, dilations = _per_dim(call.args["padding"], count), _per_dim(call.args.get("dilation", 1), count)
    changes = {}
    for i, dim in enumerate(range(len(call.shape) - count, len(call.shape))):
        changes[dim] = _sliding_window(call.shape[dim], kernels[i], strides[i], paddings[i], dilations[i])
    made = resample(node, call.shape, changes) or resample(node, call.shape, changes, mixed=_channel(call, count))
    last = len(call.shape) - 1
    if made is None and kernels[:-1] == strides[:-1] == [1] * (count - 1) and not any(paddings) and dilations[-1] == 1:
        made = resample_list(node, last, call.shape[last], kernels[-1], strides[-1])
    return made or depends_on_all(call)


def _channel(call: Call, count: int) -> list[int]:
    """The channel dimension, whose factors of an axis cannot be told apart once that axis has moved."""
    dim = len(call.shape) - count - 1
    return [dim] if dim >= 0 else []


@rule(
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"
)
@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_pooling(call: Call) -> Answer:
    """Pooling to a given size; to one cell it is global."""
    node = call.live[0]
    count = len(call.args["output_size"])
    lead = len(call.shape) - count
    single = [dim for dim in range(lead, len(call.shape)) if call.shape[dim] == 1 and node.shape[dim] > 1]
    changes = {
        dim: _adaptive_resampling(node.shape[dim], call.shape[dim])
        for dim in range(lead, len(call.shape))
        if dim not in single
    }
    mixing_name = f"global {'max' if 'max' in call.name else 'average'} pooling"
    return resample(node, call.shape, changes, mixed=single, mixing_name=mixing_name) or depends_on_all(call)


def _adaptive_resampling(size: int, out: int) -> Resampling:
    """Adaptive pooling along one dimension; windows of unequal length have no even centres."""
    scale = size / out
    doubt = "" if not size % out else f"adaptive pooling of {size} to {out} cells has windows of unequal length"
    return Resampling(out, partial(Adaptive, out=out), scale, (scale - 1) / 2, doubt=doubt)


@rule("constant_pad_nd")
def constant_padding(call: Call) -> Answer:
    """Padding with a constant; negative amounts crop."""
    node = call.live[0]
    long = [dim for dim, (n, m) in enumerate(zip(node.shape, call.shape, strict=True)) if n != m]
    if len(long) == 1 and len(node.layout.dims[long[0]]) > 1:  # a list of tokens: constants put beside it
        before = call.args["pad"][2 * (len(call.shape) - 1 - long[0])]
        holder = ConcatenatedPart(node, before, node.shape[long[0]])
        return with_extra_tokens(call, long[0], [holder], holder) or depends_on_all(call)
    return _pad(call, lambda size, before: Window(size, 1, 1, before))


@rule(
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
)
def border_padding(call: Call) -> Answer:
    """Padding that mirrors the map or repeats its border."""
    return _pad(call, partial(Border, reflect=call.name.startswith("reflection")))


def _pad(call: Call, index_map: Callable[[int, int], IndexMap]) -> Answer:
    amounts = call.args["pad"] if "pad" in call.args else call.args["padding"]
    rank = len(call.shape)
    changes = {}
    for i in range(len(amounts) // 2):
        dim, before = rank - 1 - i, amounts[2 * i]
        if before or amounts[2 * i + 1]:
            changes[dim] = Resampling(
                call.shape[dim], partial(lambda size, before: index_map(size, before), before=before), shift=-before
            )
    return resample(call.live[0], call.shape, changes) or depends_on_all(call)


KINDS: dict[str, Kind] = {
    "nearest": "nearest",
    "_nearest_exact": "nearest_exact",
    "linear": "linear",
    "bicubic": "cubic",
}


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
@rule("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa")
def interpolation(call: Call) -> Answer:
    """Interpolation of every kind."""
    node = call.live[0]
    align = bool(call.args.get("align_corners", False))
    changes = {}
    keys = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[len(call.shape) - 2]
    for dim, key in enumerate(keys, start=2):
        size, out = node.shape[dim], call.shape[dim]
        given = call.args.get(key)
        if align:
            scale = (size - 1) / (out - 1) if out > 1 else 0.0
        else:
            scale = 1 / given if given else size / out
        shift, doubt = (0.0, "") if align else _first_source(out, scale, call.name)
        changes[dim] = Resampling(
            out, partial(_resize, scale=scale, name=call.name, align=align), scale or float(size), shift, doubt=doubt
        )
    return resample(node, call.shape, changes) or resample(node, call.shape, changes, mixed=[1]) or depends_on_all(call)


def _first_source(out: int, scale: float, name: str) -> tuple[float, str]:
    """Where cell 0 of an interpolated axis has its centre, and why that is not exact: half a cell in, and for nearest
    neighbours what rounding down takes off on the average, which is the same for all cells where cells are only
    repeated or left out."""
    if "nearest" not in name:
        return (scale - 1) / 2, ""
    p, q = Fraction(scale).limit_denominator(max(out, 1)).as_integer_ratio()
    doubt = f"nearest neighbours repeat cells unevenly, {p} for {q}" if p > 1 and q > 1 else ""
    if "exact" in name:
        return scale / 2 - ((q - 1) / (2 * q) if p % 2 == 0 else 0.5), doubt
    return -(q - 1) / (2 * q), doubt


def _resize(size: int, scale: float, name: str, align: bool) -> IndexMap:
    if name.endswith("_aa"):
        width = {"_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 4}.get(name, 6)
        return SmoothResize(size, scale, width)
    kind: Kind = (
        "nearest_exact"
        if "exact" in name
        else "nearest"
        if "nearest" in name
        else "cubic"
        if "cubic" in name
        else "linear"
    )
    return Resize(size, scale, kind, align)


@rule("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(call: Call) -> Answer:
    """Channels become positions, or positions channels."""
    node = call.live[0]
    rank = len(call.shape)
    up = call.name == "pixel_shuffle"
    k = call.args["upscale_factor" if up else "downscale_factor"]
    index_map = partial(Regrid, over=k, under=1) if up else partial(Regrid, over=1, under=k)
    scale, shift = (1 / k, (1 - k) / (2 * k)) if up else (k, (k - 1) / 2)
    along = {dim: Resampling(call.shape[dim], index_map, scale, shift) for dim in (rank - 2, rank - 1)}
    return resample(node, call.shape, along, mixed=[rank - 3]) or depends_on_all(call)


@rule("im2col")
def im2col(call: Call) -> Answer:
    """``F.unfold``: every window's cells become channels, windows become one list."""
    node = call.live[0]
    if len(node.shape) != 4:
        return depends_on_all(call)
    kernel, dilation, padding, stride = (call.args[key] for key in ("kernel_size", "dilation", "padding", "stride"))
    counts = [(node.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    changes = {2 + i: _sliding_window(counts[i], kernel[i], stride[i], padding[i], dilation[i]) for i in (0, 1)}
    made = resample(node, (node.shape[0], call.shape[1], *counts), changes, mixed=[1])
    if made is None:
        return depends_on_all(call)
    batch, channels, rows, cols = made.layout.dims
    return made._replace(layout=AxisLayout(made.layout.axes, (batch, channels, (*rows, *cols))))


@rule("col2im")
def col2im(call: Call) -> Answer:
    """``F.fold``: every window's cells are added up where they came from."""
    node = call.live[0]
    last = node.layout.dims[-1]
    numbers = [
        f.axis for f in last if isinstance(f, AxisFactor) and f.axis != -1 and f.size == node.layout.size_of(f.axis)
    ]
    if len(node.shape) != 3 or len(last) != 2 or len(numbers) != 2:
        return depends_on_all(call)
    kernel, dilation, padding, stride = (call.args[key] for key in ("kernel_size", "dilation", "padding", "stride"))
    axes, reads = {}, {}
    for i, axis in enumerate(numbers):
        old, window = (
            node.layout.axis(axis),
            _transposed_window(call.shape[2 + i], kernel[i], stride[i], padding[i], dilation[i]),
        )
        axes[axis] = window.resample_axis(old, window.size)
        reads[axis] = AxisRead(axis, window.index_map(old.size))
    dims = (
        node.layout.dims[0],
        other(call.shape[1]),
        *((AxisFactor(axis, 1, call.shape[2 + i]),) for i, axis in enumerate(numbers)),
    )
    layout = AxisLayout(node.layout.with_axes(axes).axes, dims)
    return RuleOutput(layout, (Edge(node, None, False).with_reads(reads),))

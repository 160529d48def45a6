"""What a crop costs, multiply-adds and memory, from the shapes of its parts; and what operations do to a gradient on
its way back."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, fx

from erfscope.core.graph.graph import RecordedGraph, name_of, shape_of, value
from erfscope.core.graph.places import describe, module_of
from erfscope.core.graph.rules.parts import Part, PartStep
from erfscope.core.graph.rules.products import attention, einsum, linear, product
from erfscope.core.graph.rules.reading import OPERATIONS, UNNAMED, Call, Rule, call_of
from erfscope.core.graph.rules.windows import convolution
from erfscope.core.graph.run import Crop
from erfscope.core.graph.site import Site

T = TypeVar("T")
FLOAT64 = INT64 = 8
#: Operations that only move elements.
MOVES = frozenset(name for name, known in OPERATIONS.items() if known.moves)
#: Operations whose backward pass needs neither what they took nor what they gave.
_KEEP_NOTHING = frozenset(
    (
        *("add", "sub", "rsub", "neg", "mean", "sum", "linear", "batch_norm", "cat", "stack", "pad", "constant_pad_nd"),
        *("to", "_to_copy", "clone", "contiguous", "alias", "detach"),
    )
)
#: Operations whose backward pass needs what they gave.
_KEEP_RESULT = frozenset(("relu", "sigmoid", "tanh", "exp", "softmax", "_softmax", "log_softmax", "sqrt", "rsqrt"))
#: Operations that move elements and copy them.
_COPIES = frozenset(
    (
        *("cat", "concat", "concatenate", "stack", "roll", "flip", "repeat", "repeat_interleave", "pixel_shuffle"),
        *("tile", "rot90", "index_select", "pixel_unshuffle", "contiguous", "clone", "reflection_pad2d"),
    )
)
_VIEWS = MOVES - _COPIES
_NEED_NOT = _KEEP_NOTHING | _KEEP_RESULT | MOVES


def giga_multiply_adds(graph: RecordedGraph) -> float:
    """Multiply-adds of one image through the whole graph, in 10^9."""
    images = shape_of(graph.inputs[0])[0]
    return sum(multiply_adds(node, math.prod(shape_of(node))) for node in graph.live) / images / 1e9


def _cached(count: Callable[[Crop], T]) -> Callable[[Crop], T]:
    """Count once for each crop."""
    counted: WeakKeyDictionary[Crop, T] = WeakKeyDictionary()

    @functools.wraps(count)
    def looked_up(crop: Crop) -> T:
        if crop not in counted:
            counted[crop] = count(crop)
        return counted[crop]

    return looked_up


@_cached
def cropped_giga_multiply_adds(crop: Crop) -> tuple[float, float]:
    """Those of a crop for one image, and those of the same operations whole."""
    whole = sum(multiply_adds(step.node, math.prod(shape_of(step.node))) for step in crop.steps)
    return giga_multiply_adds_of(crop.steps) / crop.images, whole / shape_of(crop.graph.inputs[0])[0] / 1e9


def giga_multiply_adds_of(steps: Iterable[PartStep]) -> float:
    """Multiply-adds of operations on the parts of all images that go through together, in 10^9."""
    return sum(multiply_adds(step.node, _cells(step.part)) for step in steps) / 1e9


def multiply_adds(node: fx.Node, cells: int) -> int:
    """Multiply-adds of an operation that makes so many cells of its output; 0 for all but products."""
    count = _PER_CELL.get(OPERATIONS.get(name_of(node).rstrip("_"), UNNAMED).reads)
    return 0 if count is None else cells * count(call_of(node))


def _of_convolution(call: Call) -> int:
    """Of a transposed one on the average of all cells."""
    weight, taken = shape_of(call.args["weight"]), shape_of(call.args["input"])[2:]
    if not call.args.get("transposed", "transpose" in call.name):
        return math.prod(weight[1:])
    inputs: int = weight[0] // call.args["groups"]
    return inputs * math.prod(weight[2:]) * math.prod(taken) // math.prod(call.shape[2:])


def _of_product(call: Call) -> int:
    rows: fx.Node = call.args.get("mat1") or call.args.get("batch1") or call.args["self"]
    return shape_of(rows)[-1]


def _of_attention(call: Call) -> int:
    """Of queries with keys, and of weights with values."""
    keys, features = shape_of(call.args["key"])[-2:]
    return keys + keys * features // max(shape_of(call.args["value"])[-1], 1)


def _of_equation(call: Call) -> int:
    terms, _, out = call.args["equation"].replace(" ", "").partition("->")
    operands = call.args["tensors"]
    sizes = {
        letter: side
        for term, each in zip(terms.split(","), operands, strict=True)
        for letter, side in zip(term, shape_of(each), strict=False)
    }
    return math.prod(side for letter, side in sizes.items() if letter not in out) if len(operands) > 1 else 0


#: Rule of an operation -> multiply-adds for each cell of its output.
_PER_CELL: dict[Rule, Callable[[Call], int]] = {
    convolution: _of_convolution,
    linear: lambda call: shape_of(call.args["weight"])[-1],
    product: _of_product,
    attention: _of_attention,
    einsum: _of_equation,
}


@_cached
def pass_bytes(crop: Crop) -> int:
    """Bytes alive at once for each image, at the worst moment of a pass and of one backward pass after it, with what it
    keeps kept for another one.

    Counted are what operations keep for the backward pass, the operation that takes most, the image and its copy, and
    the gradient of the reference with its float64 copy and the square of that. Parameters, scratch memory of kernels
    and holes in the heap are not.
    """
    needing = {source for step in crop.steps if step.call.name not in _NEED_NOT for source in step.needed}
    kept = most = 0
    depends = {*crop.references}
    for step in crop.steps:
        size = _bytes(step.node, step.part)
        most = max(most, size + sum(_bytes(node, part) for node, part in step.needed.items() if node in crop.parts))
        if not depends.isdisjoint(step.needed):
            depends.add(step.node)
            kept += size * (step.node in needing or step.call.name in _KEEP_RESULT)
            kept += INT64 * _cells(step.part) * step.call.name.startswith("max_pool")
    image = _bytes(crop.graph.inputs[0], crop.parts.get(crop.graph.inputs[0], ()))
    last = 0
    for node in crop.references:
        reference = image if node is crop.graph.inputs[0] else _bytes(node, ()) or image
        last += reference + 2 * FLOAT64 * reference // value(node).dtype.itemsize
    total: int = (2 * image + kept + max(2 * most, last)) // crop.images
    return total


def forward_bytes(graph: RecordedGraph) -> int:
    """Bytes of one image's tensors alive at once, at the worst moment of a forward pass without gradients: views take
    none, and a tensor lives until it, or a view of it, was read last.
    """
    owner, last = dict[fx.Node, fx.Node](), dict[fx.Node, int]()
    for number, node in enumerate(graph.nodes):
        reads = [each for each in node.all_input_nodes if each in graph.live]
        views = node not in graph.inputs and name_of(node) in _VIEWS and reads
        owner[node] = owner[reads[0]] if views else node
        last |= {owner[each]: number for each in (*reads, node)}
    ends: dict[int, int] = {}
    alive = most = 0
    for number, node in enumerate(graph.nodes):
        if node in graph.live and owner[node] is node and isinstance(value(node), Tensor):
            alive += _bytes(node, ())
            ends[last[node]] = ends.get(last[node], 0) + _bytes(node, ())
        most = max(most, alive)
        alive -= ends.pop(number, 0)
    return most // shape_of(graph.inputs[0])[0]


def _cells(part: Part) -> int:
    return math.prod(len(each) for each in part)


def _bytes(node: fx.Node, part: Part) -> int:
    itemsize: int = value(node).dtype.itemsize
    return itemsize * (_cells(part) if part else math.prod(shape_of(node)))


def may_cancel(site: Site) -> bool:
    """Whether the gradient of a sum of channels may be rounding noise: some operation normalises, or may do so."""
    calls = [call_of(node) for node in site.operations]
    return any(call.operation.normalises or ("batch_norm" in call.name and call.args.get("training")) for call in calls)


def unproved_operations(site: Site) -> dict[str, str]:
    """Operations whose gradient may not be their derivative, each with the name of its module, in the order of
    execution."""
    found = dict[str, str]()
    for node in site.operations:
        call = call_of(node)
        if not call.operation.has_derivative:
            found[describe(node, call.name)] = module_of(node)
        elif node.meta["no_grad"]:
            found[describe(node, f"{call.name} without gradients")] = module_of(node)
        elif node.meta.get("draws"):
            found[describe(node, "random numbers")] = module_of(node)
    return found | {each.text: each.module for each in site.recording.graph.unfaithful if each.kind != "random"}


def gradient_cut(site: Site) -> tuple[str, bool] | None:
    """The first operation without a gradient where every path to a layer has one, and whether gradients are switched
    off there, as by ``torch.no_grad``; None where a path has none."""
    reached, cut = {site.fields.reference}, None
    for node in site.operations:
        if reached.isdisjoint(node.all_input_nodes):
            continue
        if not node.meta["no_grad"] and call_of(node).operation.has_derivative:
            reached.add(node)
        else:
            cut = cut or node
    return None if cut is None or site.operations[-1] in reached else (describe(cut), cut.meta["no_grad"])

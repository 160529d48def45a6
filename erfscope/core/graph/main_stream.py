"""The main stream of a model: what its output is computed from, and what every path to it passes through."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from torch import fx

from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.named import NamedTensor
from erfscope.core.graph.recording import Recording
from erfscope.core.graph.rules.reading import COPIES, Dims, Whole, call_of
from erfscope.core.values.names import OUTPUT

P = ParamSpec("P")
T = TypeVar("T")


def kept(find: Callable[Concatenate[Recording, P], T]) -> Callable[Concatenate[Recording, P], T]:
    """Keep what a function finds of a recording as long as that."""
    found: WeakKeyDictionary[Recording, T] = WeakKeyDictionary()

    @functools.wraps(find)
    def look_up(recording: Recording, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if recording not in found:
            found[recording] = find(recording, *args, **kwargs)
        return found[recording]

    return look_up


class Stream(NamedTuple):
    """The main stream of a model: what its output is computed from."""

    #: Name of the output that counts; None where nothing is returned.
    output: str | None
    #: Whether that is a map.
    is_dense: bool
    #: Maps in a container that the model returns, the one that counts first.
    items: list[str]
    #: Every node that the output is computed from.
    reached: set[fx.Node]
    #: The nodes that every path from the image to an output passes through.
    trunk: set[fx.Node]
    #: The last map on the trunk before the output that counts, with a name or without.
    deepest: NamedTensor | None


@kept
def main_stream(recording: Recording) -> Stream:
    """The main stream of a model."""
    seen, positions = recording.modules, recording.positions
    returned = {name: each for name, each in seen.items() if is_output(name) and is_live(recording, each)}
    # A loss reads the image beside all layers, so that none of them would be on the trunk.
    outputs = {name: each.node for name, each in returned.items() if each.shape or len(returned) == 1}
    separate = separate_outputs(recording)
    output = next(iter(separate or outputs), None)
    trunk = trunk_of(recording, list(outputs.values()))
    reached = positions.ancestors(outputs[output]) if output is not None else set(positions.edges)
    on_trunk = sorted((trunk & reached) - {positions.image}, key=positions.order.__getitem__, reverse=True)
    tensors = (NamedTensor(node=node, shape=shape_of(node), stage=False, order=0, calls=1) for node in on_trunk)
    return Stream(
        output=output,
        is_dense=output is not None and recording.reading_of_tensor(seen[output]).layout is not None,
        items=separate[:1] or [name for name in outputs if name.startswith(f"{OUTPUT}[")],
        reached=reached,
        trunk=trunk,
        deepest=next((each for each in tensors if is_usable(recording, each)), None),
    )


def separate_outputs(recording: Recording) -> list[str]:
    """The maps in a container that the model returns from which no other of them is computed, the one of fewest
    positions first.

    The stages of a feature extractor come from one another, so that the last is left alone, as of the results of a loop
    that uses the same weights again; the levels of a pyramid of features do not. There are none where the first output
    is no map: that output is the layer then, and maps are returned beside it.
    """
    seen = recording.modules
    outputs = [name for name, each in seen.items() if name.startswith(f"{OUTPUT}[") and is_live(recording, each)]
    maps = [name for name in outputs if is_usable(recording, seen[name])]
    if not maps or maps[0] != outputs[0]:
        return []
    spans = {name: _span(recording, seen[name]) for name in maps}
    # The state of a recurrence, which stands where the last steps do, is no level.
    maps = [name for name in maps if spans[name] >= max(spans.values()) / 2]
    order = recording.positions.order
    # A stage may be returned through a norm or in another order of dimensions, which the next one does not see; of
    # those that are the same but for this, the first computed counts.
    values = {name: skip_moves(recording, _skip_pointwise(recording, seen[name].node)) for name in maps}
    first = {values[name]: name for name in sorted(maps, key=lambda name: -order[seen[name].node])}
    alone = [
        name
        for value, name in first.items()
        if not any(value in recording.positions.ancestors(other) for other in first if other is not value)
        and not any(_runs_again(recording, seen[name], seen[other]) for other in maps)
    ]

    def count_positions(name: str) -> int:
        layout = recording.reading_of_tensor(seen[name]).layout
        return 0 if layout is None else math.prod(layout.space(seen[name].shape))

    return sorted((name for name in maps if name in alone), key=count_positions)


def _runs_again(recording: Recording, seen: NamedTensor, other: NamedTensor) -> bool:
    """Whether another tensor of the same shape is made with all weights of a tensor, and some of them once more, as in
    a later pass of a loop."""
    if seen.shape != other.shape:
        return False
    mine, theirs = (_count_uses(recording, each.node) for each in (seen, other))
    return mine <= theirs and any(theirs[weight] > count for weight, count in mine.items())


def _count_uses(recording: Recording, node: fx.Node) -> Counter[fx.Node]:
    """How often each weight is used for a tensor together with what depends on the image."""
    above = recording.positions.ancestors(node)
    return Counter(
        given for each in above for given in each.all_input_nodes if given.op == "placeholder" and given not in above
    )


def is_output(name: str) -> bool:
    """Whether a name means what the model returns, or an item of it."""
    return name.partition("[")[0] == OUTPUT


def is_live(recording: Recording, seen: NamedTensor) -> bool:
    """Whether a tensor depends on the image."""
    return seen.node in recording.graph.live


def is_usable(recording: Recording, seen: NamedTensor) -> bool:
    """Whether a tensor is a map of more than one position, made once."""
    layout = recording.reading_of_tensor(seen).layout
    if layout is None or not is_live(recording, seen) or seen.calls > 1:
        return False
    # A clip may be down to one frame; a plane of one row is a line of text, say.
    return math.prod(layout.space(seen.shape)[-2:]) > 1


def skip_moves(recording: Recording, node: fx.Node) -> fx.Node:
    """The tensor of which another is a view or a copy."""
    edges = recording.positions.edges
    while len(found := edges.get(node, [])) == 1 and ((call := call_of(node)).operation.moves or call.name in COPIES):
        node = found[0].source
    return node


def _skip_pointwise(recording: Recording, node: fx.Node) -> fx.Node:
    """The value that a tensor was made from by operations that leave every position where it is, such as activations
    and norms of channels, and by moves around them."""
    edges = recording.positions.edges
    node = skip_moves(recording, node)
    while len(found := edges.get(node, [])) == 1 and shape_of(found[0].source) == shape_of(node):
        places = recording.positions.places(found[0].source)
        for step in found[0].steps:
            for dim, read in enumerate(step.reads if isinstance(step, Dims) else ()):
                moves = any(place.varies_along(dim) for place in places)
                if read != dim and not (isinstance(read, Whole) and read.same == dim and not moves):
                    return node
        node = found[0].source
    return node


def trunk_of(recording: Recording, outputs: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that every path from the image to one of these passes through."""
    if not outputs:
        return set()
    order, edges = recording.positions.order, recording.positions.edges
    readers: dict[fx.Node, int] = dict.fromkeys(outputs, max(order[node] for node in outputs))
    stack = list(readers)
    while stack:
        node = stack.pop()
        for edge in edges.get(node, []):
            if edge.source not in readers:
                stack.append(edge.source)
            readers[edge.source] = max(readers.get(edge.source, 0), order[node])
    found, reach = set(), 0
    for node in sorted(readers, key=order.__getitem__):
        if reach <= order[node]:
            found.add(node)
        reach = max(reach, readers[node])
    return found


def _span(recording: Recording, seen: NamedTensor) -> float:
    """The share of the image, along all axes, that the units of a map stand in."""
    places = recording.positions.places(seen.node)[:-1]
    sides = zip(places, recording.positions.space, strict=True)
    return math.prod(
        float(np.ptp(place.table) + abs(place.slope)) / side for place, side in sides if len(place.table) > 1
    )

"""Which norms can be folded into the convolution before them: read off the recorded pass."""

from __future__ import annotations

from collections import defaultdict

from torch import nn

from erfscope.cone.cone import FoldedBatchNorm
from erfscope.cone.crops import readers_of
from erfscope.cone.trace import Trace
from erfscope.trf.graph import Node

#: Where the word "training" stands in what ``native_batch_norm`` was told: after whether gradients were recorded.
TRAINING = 6
#: Where "transposed" stands in what ``convolution`` was told.
TRANSPOSED = 7


def folds(trace: Trace, module: nn.Module) -> tuple[FoldedBatchNorm, ...]:
    """Pairs of a convolution and the frozen BatchNorm that alone reads its output, each run once."""
    if trace.map is None or trace.changed_by:
        return ()
    users = _users(trace)
    found = []
    for made, readers in readers_of(trace.map).items():
        if made.name != "convolution" or made.arguments[TRANSPOSED] or made is trace.reference or len(readers) != 1:
            continue
        (read,) = readers
        if _frozen(read) and trace.outputs.get(made.module) is made and trace.inputs.get(read.module) is made:
            fold = FoldedBatchNorm(made.module, read.module)
            own = _own(trace, made, read, module.get_submodule(fold.convolution), module.get_submodule(fold.norm))
            if own and [users[own[0]], users[own[1]]] == [{(made.name, made.edges[0].source)}, {(read.name, made)}]:
                found.append(fold)
    return tuple(found)


def _own(trace: Trace, made: Node, read: Node, convolution: nn.Module, norm: nn.Module) -> tuple[object, object] | None:
    """The convolution's weight and the norm's variance, where both use their own parameters as they are; else None."""
    weights = [convolution._parameters.get(name) for name in ("weight", "bias")]
    gains = [*map(norm._parameters.get, ("weight", "bias")), *map(norm._buffers.get, ("running_mean", "running_var"))]
    own = [[trace.tape.provenance(t) for t in tensors if t is not None] for tensors in (weights, gains)]
    if [list(made.constants), list(read.constants)] != own or getattr(norm, "eps", None) != read.arguments[-1]:
        return None
    return own[0][0], own[1][-1]


def _users(trace: Trace) -> dict[object, set[tuple[object, ...]]]:
    """By the numbers that operations read beside the image: the operations, by name and sources, as a norm has three
    outputs."""
    found = defaultdict[object, set[tuple[object, ...]]](set)
    for node in trace.tape.nodes:
        for constant in node.constants:
            found[constant].add((node.name, *(edge.source for edge in node.edges)))
    return found


def _frozen(node: Node) -> bool:
    """Whether an operation is a BatchNorm that uses its running statistics."""
    return node.name == "_native_batch_norm_legit_no_training" or (
        node.name == "native_batch_norm" and node.arguments[TRAINING] is False
    )

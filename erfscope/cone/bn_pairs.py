"""Which norms can be folded into the convolution before them: read off the recorded pass."""

from __future__ import annotations

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
    found = []
    for node, readers in readers_of(trace.map).items():
        if (
            node.name != "convolution"
            or node.arguments[TRANSPOSED]
            or node is trace.reference
            or len(readers) != 1
            or not _frozen(readers[0])
        ):
            continue
        if trace.outputs.get(node.module) is node and trace.inputs.get(readers[0].module) is node:
            fold = FoldedBatchNorm(node.module, readers[0].module)
            if _ordinary(trace, node, readers[0], module.get_submodule(fold.convolution), module.get_submodule(fold.norm)):
                found.append(fold)
    return tuple(found)


def _ordinary(trace: Trace, made: Node, read: Node, convolution: nn.Module, norm: nn.Module) -> bool:
    """Whether both use their own parameters as they are, and nobody else uses them on the image."""
    weights = [convolution._parameters.get(name) for name in ("weight", "bias")]
    gains = [*map(norm._parameters.get, ("weight", "bias")), *map(norm._buffers.get, ("running_mean", "running_var"))]
    own = [[trace.tape.provenance(t) for t in tensors if t is not None] for tensors in (weights, gains)]
    if [list(made.constants), list(read.constants)] != own or getattr(norm, "eps", None) != read.arguments[-1]:
        return False
    # A norm has three outputs, each of them a node.
    users = [
        {(node.name, *(edge.source for edge in node.edges)) for node in trace.tape.nodes if key in node.constants}
        for key in (own[0][0], own[1][-1])
    ]
    return users == [{(made.name, made.edges[0].source)}, {(read.name, made)}]


def _frozen(node: Node) -> bool:
    """Whether an operation is a BatchNorm that uses its running statistics."""
    return node.name == "_native_batch_norm_legit_no_training" or (node.name == "native_batch_norm" and node.arguments[TRAINING] is False)

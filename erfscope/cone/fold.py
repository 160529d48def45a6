"""Which norms can be folded into the convolution before them: read off the recorded pass."""

from __future__ import annotations

from erfscope.cone.choose import readers_of
from erfscope.cone.cone import Fold
from erfscope.cone.trace import Trace
from erfscope.trf.graph import Node

#: Where the word "training" stands among the arguments of ``native_batch_norm``.
TRAINING = 5


def folds(trace: Trace) -> tuple[Fold, ...]:
    """Pairs of a convolution and the frozen BatchNorm that alone reads its output, each run once."""
    if trace.map is None:
        return ()
    found = []
    for node, readers in readers_of(trace.map).items():
        if node.name != "convolution" or node is trace.reference or len(readers) != 1 or not _frozen(readers[0]):
            continue
        if trace.outputs.get(node.module) is node and trace.inputs.get(readers[0].module) is node:
            found.append(Fold(node.module, readers[0].module))
    return tuple(found)


def _frozen(node: Node) -> bool:
    """Whether an operation is a BatchNorm that uses its running statistics."""
    return node.name == "_native_batch_norm_legit_no_training" or (node.name == "native_batch_norm" and node.told[TRAINING] is False)

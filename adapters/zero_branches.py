"""Residual branches that start at zero, and what to do about them, in words."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from erfscope.adapter import Weights
from erfscope.adapters.weights.reactivate import untrained
from erfscope.finding import Finding

#: How many of them are named.
NAMED = 3
#: What helps, by where the weights come from; each of these can be done.
FIXES = {
    "given": "measure it trained, or switch them on with erfscope.adapters.reactivate.reactivate(model)",
    "random-raw": "--weights random switches them on",
    "factory": "load trained weights with --checkpoint FILE, or let the factory set these to one",
    "checkpoint": "the checkpoint holds them so: load one of a trained model",
    "exported": "export the model with trained weights",
}


def zero_branches(module: nn.Module, weights: Weights) -> Iterator[Finding]:
    """What is to be said of a model whose norms and gains leave residual branches switched off.

    Args:
        module: The model as it is measured; it is not changed.
        weights: Where its numbers come from.

    Yields:
        One finding with their number, some names and the fix; none where no branch is off.
    """
    names = untrained(module)
    if not names:
        return
    count = f"{len(names)} residual branch{'es start' if len(names) > 1 else ' starts'} at zero"
    some = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    fix = FIXES.get(weights.source, "load weights of a trained model")
    text = f"{count} ({some}), so that the ERF is that of the skip path: {fix}"
    yield Finding(code="zero_branches", text=text)

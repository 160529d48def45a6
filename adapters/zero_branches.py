"""Residual branches that start at zero, and what to do about them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from erfscope.adapters.weights.reactivate import untrained
from erfscope.core.values.finding import Finding
from erfscope.core.values.model_facts import Weights

#: How many branches the finding names.
NAMED = 3
#: Source of the weights -> what the user can do.
FIXES = {
    "given": "measure it trained, or switch them on with erfscope.adapters.reactivate.reactivate(model)",
    "random-raw": "measure with --weights random, which switches them on",
    "factory": "load trained weights with --checkpoint FILE, or let the factory set these to one",
    "checkpoint": "the checkpoint holds these zeros: load one of a trained model",
    "exported": "export the model with trained weights",
}


def zero_branches(module: nn.Module, weights: Weights) -> Iterator[Finding]:
    """Find the residual branches that norms and gains of a model switch off.

    Args:
        module: The model as it is measured; it is not changed.
        weights: Where its numbers come from.

    Yields:
        One finding with their number, some names and the fix; none where every branch is on.
    """
    names = untrained(module)
    if not names:
        return
    count = f"{len(names)} residual branch{'es start' if len(names) > 1 else ' starts'} at zero"
    some = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    fix = FIXES.get(weights.source, "load weights of a trained model")
    text = f"{count} ({some}), so that the ERF is that of the skip path: {fix}"
    yield Finding(code="zero_branches", text=text)

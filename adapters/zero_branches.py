"""Residual branches that start at zero, and what to do about them, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from erfscope.adapter import Weights
from erfscope.adapters.state import borrowed
from erfscope.adapters.weights.reactivate import untrained
from erfscope.finding import Finding

#: How many of them are named.
NAMED = 3
#: What helps gains and norms, by where the weights come from; each of these can be done.
FIXES = {
    "given": "measure it trained, or switch them on with erfscope.adapters.reactivate.reactivate(model)",
    "random-raw": "--weights random switches them on",
    "factory": "load trained weights with --checkpoint FILE, or let the factory set these to one",
    "checkpoint": "the checkpoint holds them so: load one of a trained model",
    "exported": "export the model with trained weights",
}
TRAINED = "load weights of a trained model"
#: What helps layers whose weights are all zero: there is no one number to set them to.
LAYERS = "measure it trained, or draw them anew with model.get_submodule(NAME).reset_parameters()"
ADDITIONS = frozenset(
    {"add", "add_", "__add__", "__iadd__", "__radd__", "sub", "sub_", "__sub__", "__isub__", "__rsub__"}
)


def zero_branches(module: nn.Module, weights: Weights, run: Callable[[], object] | None = None) -> Iterator[Finding]:
    """What is to be said of a model whose residual branches are still switched off; the model is not changed.

    Args:
        module: The model as it is measured.
        weights: Where its numbers come from.
        run: Runs it on an input. Without it layers whose weights are all zero are not looked at: only a forward pass
            shows whether what they give is added to something, or opens a gate half.

    Yields:
        One finding with their number, some names and the fix; none where no branch is off.
    """
    gains = untrained(module)
    layers = added_zeros(module, run) if run is not None else []
    names = [*gains, *layers]
    if not names:
        return
    count = f"{len(names)} residual branch{'es start' if len(names) > 1 else ' starts'} at zero"
    some = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    fixes = [FIXES.get(weights.source, TRAINED)] if gains else []
    if layers:
        fixes.append(LAYERS if weights.source == "given" else TRAINED)
    yield Finding(
        code="zero_branches",
        text=f"{count} ({some}), so that the ERF is that of the skip path: {'; '.join(dict.fromkeys(fixes))}",
    )


def added_zeros(module: nn.Module, run: Callable[[], object]) -> list[str]:
    """Names of the linear layers and convolutions, weights and bias all zero, whose zeros are added to a map of the
    same shape.

    Args:
        module: Any model with numbers.
        run: Runs it on an input; called only where the model has such layers.
    """
    closed = {id(layer.weight): name for name, layer in module.named_modules() if _is_zero(layer)}
    if not closed:
        return []
    with borrowed(module), torch.no_grad(), _Additions(closed) as seen:
        run()
    return [name for name in closed.values() if name in seen.added]


def _is_zero(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Linear | _ConvNd) or layer.weight.is_meta:
        return False
    # The first filter tells of almost every layer that it is not, in no time.
    if layer.weight[:1].any():
        return False
    return not layer.weight.any() and (layer.bias is None or not layer.bias.any())


class _Additions(TorchFunctionMode):
    """Follows the zeros that some layers give, through whatever leaves them zero, to where they are added to something
    else."""

    def __init__(self, layers: Mapping[int, str]) -> None:
        """``layers`` are names by the identity of the layer's weight."""
        super().__init__()
        self.added: set[str] = set()
        self._layers = layers
        #: Tensors of zeros by identity, kept lest that is given to a later one, and the layers that they come from.
        self._zeros: dict[int, tuple[Tensor, frozenset[str]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, and see what it does to zeros."""
        given = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]
        sources = {id(tensor): self._sources(tensor) for tensor in given}
        every = frozenset[str]().union(*sources.values())
        shapes = {id(tensor): tensor.shape for tensor in given}
        other = any(not sources[id(t)] and t.is_floating_point() and bool(t.any()) for t in given) if every else False
        out = func(*args, **(kwargs or {}))
        if not every or not isinstance(out, Tensor) or not out.is_floating_point():
            return out
        if getattr(func, "__name__", "") in ADDITIONS and other:
            self.added |= {name for key, names in sources.items() for name in names if shapes[key] == out.shape}
        elif not out.any():
            self._zeros[id(out)] = (out, every)
        return out

    def _sources(self, tensor: Tensor) -> frozenset[str]:
        if id(tensor) in self._layers:
            return frozenset({self._layers[id(tensor)]})
        known = self._zeros.get(id(tensor))
        # Something may have been written to it since.
        return known[1] if known is not None and known[0] is tensor and not tensor.any() else frozenset()

"""Which module's derivative is not the true one: each is compared, where it stands in the model, with how its output moves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from erfscope.adapter import OUTPUT, Adapter
from erfscope.attribution.gradient import guarded, in_double
from erfscope.maps.trust import Probe, are_off

#: Draws of noise on the image, of each sigma, and of weights on a module's outputs for each.
DRAWS, WEIGHTS = 4, 2
#: The tensors that went into a module, and those that came out.
_Pass = tuple[list[Tensor], list[Tensor]]
#: A change of an output that is larger than this share of its norm is none of rounding.
ROUNDING = 1e-5


def first_wrong_module(adapter: Adapter, x: Tensor, sigmas: Sequence[float]) -> str | None:
    """The name of the innermost module, in the order of execution, whose output moves otherwise than its derivative says.

    A module is compared where it stands: on the inputs that the model gives it while noise moves the image.

    Args:
        adapter: The model.
        x: An image, (1, C_in, *space), where the model lies.
        sigmas: Standard deviations of the noise, in those of the image.

    Returns:
        ``"output"`` where it is the model's own forward and none of its modules; None where every module's derivative is right.
    """
    ran = _modules_that_run(adapter, x)
    if OUTPUT in ran and not _wrong(adapter, x, sigmas, [OUTPUT]):
        return None
    found = OUTPUT
    while parts := _parts(ran, found):
        wrong = _wrong(adapter, x, sigmas, parts)
        if not wrong:
            break
        found = wrong[0]
    return found


def _modules_that_run(adapter: Adapter, x: Tensor) -> list[str]:
    """Names of the modules that a forward pass calls, in the order of their calls."""
    ran: dict[str, None] = {}
    with ExitStack() as stack:
        for name, module in adapter.module.named_modules():
            handle = module.register_forward_pre_hook(lambda _module, _args, name=name: ran.setdefault(name or OUTPUT))
            stack.callback(handle.remove)
        _run(adapter, x)
    return list(ran)


def _parts(ran: Sequence[str], around: str) -> list[str]:
    """The modules that run inside another one and inside no third one between."""
    inside = [name for name in ran if name != OUTPUT and (around == OUTPUT or name.startswith(f"{around}."))]
    return [name for name in inside if not any(name.startswith(f"{other}.") for other in inside)]


def _run(adapter: Adapter, x: Tensor) -> None:
    with guarded(x.device), torch.no_grad():
        adapter.visit(x.clone(), lambda *_, **__: None)


def _wrong(adapter: Adapter, x: Tensor, sigmas: Sequence[float], names: Sequence[str]) -> list[str]:
    """Those of the modules whose derivative is not the true one."""
    modules = dict(adapter.module.named_modules())
    watched = [_Watched(modules["" if name == OUTPUT else name], seed) for seed, name in enumerate(names)]
    with ExitStack() as stack:
        for each in watched:
            stack.enter_context(each)
        _run(adapter, x)
        spread = float(in_double(x).std()) or 1.0
        for sigma, draw in product(sigmas, range(DRAWS)):
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(draw), dtype=torch.float64).to(x)
            for sign in (1, -1):
                for each in watched:
                    each.start()
                _run(adapter, x + sign * sigma * spread * noise)
    return [name for name, each in zip(names, watched, strict=True) if each.is_wrong(sigmas)]


class _Watched:
    """A module whose first call in each pass is looked at: its derivative is taken in the first pass, and how it moves in the others."""

    def __init__(self, module: nn.Module, seed: int) -> None:
        self._module, self._seed = module, seed
        self._passes: list[_Pass] = [([], [])]
        self._calls, self._again = 0, False
        #: By draw of weights on the outputs, these weights, and the gradient of their sum with respect to each input.
        self._weights: list[list[Tensor]] = []
        self._gradients: list[list[Tensor]] = []

    def __enter__(self) -> None:
        before = self._module.register_forward_pre_hook(self._before, with_kwargs=True)
        self._handles = before, self._module.register_forward_hook(self._after, with_kwargs=True)

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def start(self) -> None:
        """Begin another pass."""
        self._passes.append(([], []))
        self._calls = 0

    def _before(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._again:
            return
        self._calls += 1
        if self._calls == 1:
            # Clones, since a module may work in place on what it gets.
            self._given = tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
            self._passes[-1][0].extend(_floats(self._given))

    def _after(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        if self._again or self._calls != 1:
            return
        self._passes[-1][1].extend(tensor.detach().clone() for tensor in _floats(output))
        if len(self._passes) == 1:
            self._again = True
            try:
                self._differentiate()
            finally:
                self._again = False

    def _differentiate(self) -> None:
        """Call the module once more on what it was given, and take gradients of random sums of its outputs."""
        leaves = [tensor.requires_grad_(True) for tensor in _floats(self._given)]
        with torch.enable_grad():
            args, kwargs = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf, self._given)
            outputs = _floats(self._module(*args, **kwargs))
            for draw in range(WEIGHTS):
                generator = torch.Generator().manual_seed(1000 * self._seed + draw)
                weights = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out) for out in outputs]
                terms = [(weight * out).sum() for weight, out in zip(weights, outputs, strict=True) if out.requires_grad]
                found = torch.autograd.grad(terms, leaves, retain_graph=True, allow_unused=True) if terms else [None] * len(leaves)
                zeros = (torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True))
                self._weights.append([weight.detach() for weight in weights])
                self._gradients.append([g.detach() for g in zeros])

    def is_wrong(self, sigmas: Sequence[float]) -> bool:
        """Whether the outputs move otherwise than the derivative says, beyond rounding, chance and curvature."""
        size = sum(float(in_double(out).square().sum()) for out in self._passes[0][1]) ** 0.5
        pairs = list(zip(self._passes[1::2], self._passes[2::2], strict=True))
        by_sigma = [(sigma, *self._changes(pairs[at * DRAWS : (at + 1) * DRAWS])) for at, sigma in enumerate(sigmas)]
        scales = [(sum(value**2 for value in predicted) / max(len(predicted), 1)) ** 0.5 for _, predicted, _ in by_sigma]
        if not all(scale > 0 for scale in scales):
            return any(abs(value) > ROUNDING * size for _, _, found in by_sigma for value in found)
        draws = tuple(draw for draw in range(DRAWS) for _ in range(WEIGHTS))
        return are_off(
            [
                Probe(
                    sigma=sigma,
                    images=draws,
                    predicted=tuple(value / scale for value in predicted),
                    found=tuple(value / scale for value in found),
                    shares=(1.0,) * len(draws),
                )
                for scale, (sigma, predicted, found) in zip(scales, by_sigma, strict=True)
            ]
        )

    def _changes(self, pairs: Sequence[tuple[_Pass, _Pass]]) -> tuple[list[float], list[float]]:
        """The changes of weighted sums of the outputs that are predicted, and those that are found."""
        predicted, found = [], []
        for plus, minus in pairs:
            for weights, gradients in zip(self._weights, self._gradients, strict=True):
                predicted.append(_change(gradients, plus[0], minus[0]))
                found.append(_change(weights, plus[1], minus[1]))
        return predicted, found


def _floats(value: Any) -> list[Tensor]:
    """The tensors of real numbers in what a module takes or gives."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _change(weights: Sequence[Tensor], plus: Sequence[Tensor], minus: Sequence[Tensor]) -> float:
    """Half the difference of weighted sums of tensors."""
    pairs = zip(weights, plus, minus, strict=True)
    return sum(float((in_double(w) * (in_double(a) - in_double(b))).sum()) for w, a, b in pairs) / 2

"""Which module's derivative is not the true one: each is compared, where it stands in the model, with how its output
moves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from erfscope.adapter import Adapter
from erfscope.attribution.gradient import guarded, in_double
from erfscope.engine.trust.noise import JITTER
from erfscope.environment import ran_out
from erfscope.maps.probe import Probe, are_off

#: Draws of noise on the image, of each sigma, and of weights on a module's outputs for each.
DRAWS, WEIGHTS = 4, 2
#: A change of an output that is larger than so many rounding errors of its norm is none of rounding, and what is missed
#: of a change none of the module's own.
ROUNDINGS, OWN_ROUNDINGS = 80, 4
#: The name that PyTorch gives the whole model among its modules.
_WHOLE = ""


def first_wrong_module(adapter: Adapter, x: Tensor, sigmas: Sequence[float]) -> str | None:
    """The name of the innermost module, in the order of execution, whose output moves otherwise than its derivative
    says.

    A module is compared where it stands: on the inputs that the model gives it while noise moves the image. Where none
        of those that stand
    side by side is wrong, their parts are compared: what is wrong in a branch may be little of the sum that it ends in.

    Args:
        adapter: The model.
        x: An image, (1, C_in, *space), where the model lies.
        sigmas: Standard deviations of the noise, in those of the image.

    Returns:
        ``""`` where it is the model's own forward and none of its modules; None where every module's derivative is
        right.
    """
    ran = _modules_that_run(adapter, x)
    found, asked = (None, [_WHOLE]) if _WHOLE in ran else (_WHOLE, _parts(ran, _WHOLE))
    while asked:
        if wrong := _wrong(adapter, x, sigmas, asked):
            found, asked = wrong[0], _parts(ran, wrong[0])
        else:
            asked = [part for name in asked for part in _parts(ran, name)]
    return found


def _modules_that_run(adapter: Adapter, x: Tensor) -> list[str]:
    """Names of the modules that a forward pass calls, in the order of their calls."""
    ran: dict[str, None] = {}
    with ExitStack() as stack:
        for name, module in adapter.module.named_modules():
            handle = module.register_forward_pre_hook(lambda _module, _args, name=name: ran.setdefault(name))
            stack.callback(handle.remove)
        _run(adapter, x)
    return list(ran)


def _parts(ran: Sequence[str], around: str) -> list[str]:
    """The modules that run inside another one and inside no third one between."""
    inside = [name for name in ran if name != _WHOLE and (around == _WHOLE or name.startswith(f"{around}."))]
    return [name for name in inside if not any(name.startswith(f"{other}.") for other in inside)]


def _run(adapter: Adapter, x: Tensor) -> None:
    with guarded(x.device), torch.no_grad():
        adapter.run(x.clone())


def _wrong(adapter: Adapter, x: Tensor, sigmas: Sequence[float], names: Sequence[str]) -> list[str]:
    """Those of the modules whose derivative is not the true one."""
    modules = dict(adapter.module.named_modules())
    watched = [_Watched(modules[name], seed) for seed, name in enumerate(names)]
    spread = float(in_double(x).std()) or 1.0
    x = x + JITTER * spread * _normal(x, DRAWS)
    with ExitStack() as stack:
        for each in watched:
            stack.enter_context(each)
        _run(adapter, x)
        for sigma, draw, sign in product(sigmas, range(DRAWS), (1, -1)):
            for each in watched:
                each.start()
            _run(adapter, x + sign * sigma * spread * _normal(x, draw))
    return [name for name, each in zip(names, watched, strict=True) if each.is_wrong(sigmas)]


def _normal(like: Tensor, seed: int) -> Tensor:
    """Standard normal numbers of the shape of a tensor of real numbers, the same whatever its type."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(like)


class _Watched:
    """A module whose first call in each pass is looked at: its derivative is taken in the first pass, and how it moves
    in the others."""

    def __init__(self, module: nn.Module, seed: int) -> None:
        self._module, self._seed = module, seed
        #: By pass after the first, the sums of the inputs and of the outputs, one for each draw of weights.
        self._sums: list[tuple[list[float], list[float]]] = []
        self._calls, self._again = 0, False
        #: By draw of weights on the outputs, these weights, and the gradient of their sum with respect to each input.
        self._weights: list[list[Tensor]] = []
        self._gradients: list[list[Tensor]] = []

    def __enter__(self) -> None:
        # Before hooks that change the inputs, which run again when the module is called again.
        before = self._module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
        self._handles = before, self._module.register_forward_hook(self._after, with_kwargs=True)

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def start(self) -> None:
        """Begin another pass."""
        self._sums.append(([], []))
        self._calls = 0

    def _before(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._again:
            return
        self._calls += 1
        if self._calls == 1 and not self._sums:
            # Clones, since a module may work in place on what it gets.
            self._given = _mapped((args, kwargs), lambda tensor: tensor.detach().clone())
        elif self._calls == 1:
            self._sums[-1][0].extend(_weighted(self._gradients, [*_real_tensors((args, kwargs))]))

    def _after(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        if self._again or self._calls != 1:
            return
        found = [*_real_tensors(output)]
        if self._sums:
            self._sums[-1][1].extend(_weighted(self._weights, found))
            return
        eps = max((torch.finfo(tensor.dtype).eps for tensor in found), default=0.0)
        self._rounding = eps * sum(float(in_double(tensor.detach()).square().sum()) for tensor in found) ** 0.5
        self._again = True
        try:
            self._differentiate()
        except Exception as error:  # a module may fail in any way where it is called once more: it is not compared
            if ran_out(error):
                raise
            self._weights, self._gradients = [], []
        finally:
            self._again = False

    def _differentiate(self) -> None:
        """Call the module once more on what it was given, and take gradients of random sums of its outputs."""
        leaves: list[Tensor] = []

        def as_leaf(tensor: Tensor) -> Tensor:
            if not _has_derivative(tensor):
                return tensor
            leaves.append(_real(tensor).clone().requires_grad_(True))
            # The module may work in place on it, which a leaf does not allow.
            return torch.view_as_complex(leaves[-1]).clone() if tensor.is_complex() else leaves[-1].clone()

        with torch.enable_grad():
            args, kwargs = _mapped(self._given, as_leaf)
            outputs = [*_real_tensors(self._module(*args, **kwargs))] if leaves else []
            for draw in range(WEIGHTS if outputs else 0):
                weights = [
                    _normal(out.detach(), 1000 * (self._seed + 1) + 100 * draw + at) for at, out in enumerate(outputs)
                ]
                terms = [
                    (weight * out).sum() for weight, out in zip(weights, outputs, strict=True) if out.requires_grad
                ]
                found = (
                    torch.autograd.grad(terms, leaves, retain_graph=True, allow_unused=True)
                    if terms
                    else [None] * len(leaves)
                )
                zeros = (torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True))
                self._weights.append(weights)
                self._gradients.append([g.detach() for g in zeros])
        del self._given

    def is_wrong(self, sigmas: Sequence[float]) -> bool:
        """Whether the outputs move otherwise than the derivative says, beyond rounding, chance and curvature."""
        if any(len(sums) != WEIGHTS for of_pass in self._sums for sums in of_pass):
            return False
        by_sigma = [(sigma, *self._changes(2 * DRAWS * at)) for at, sigma in enumerate(sigmas)]
        scales = [(sum(value**2 for value in predicted) / len(predicted)) ** 0.5 for _, predicted, _ in by_sigma]
        if not all(scale > 0 for scale in scales):
            return any(abs(value) > ROUNDINGS * self._rounding for _, _, found in by_sigma for value in found)
        missed = (abs(b - a) for _, predicted, found in by_sigma for a, b in zip(predicted, found, strict=True))
        if all(value <= OWN_ROUNDINGS * self._rounding for value in missed):
            return False
        draws = tuple(draw for draw in range(DRAWS) for _ in range(WEIGHTS))
        probes = [
            Probe(
                sigma=sigma,
                images=draws,
                predicted=tuple(value / scale for value in predicted),
                found=tuple(value / scale for value in found),
                shares=(1.0,) * len(draws),
            )
            for scale, (sigma, predicted, found) in zip(scales, by_sigma, strict=True)
        ]
        return are_off(probes)

    def _changes(self, first: int) -> tuple[list[float], list[float]]:
        """The changes of weighted sums of the outputs that are predicted, and those that are found, by the draws from a
        pass on."""
        pairs = [(self._sums[at], self._sums[at + 1]) for at in range(first, first + 2 * DRAWS, 2)]
        predicted, found = (
            [(a - b) / 2 for plus, minus in pairs for a, b in zip(plus[at], minus[at], strict=True)] for at in (0, 1)
        )
        return predicted, found


def _mapped(value: Any, of: Callable[[Tensor], Tensor]) -> Any:
    """The same with other tensors, in containers and dataclasses."""

    def leaf(each: Any) -> Any:
        if isinstance(each, Tensor):
            return of(each)
        if not _is_data(each):
            return each
        other = copy.copy(each)
        for field in fields(each):
            object.__setattr__(other, field.name, _mapped(getattr(each, field.name), of))
        return other

    return tree_map(leaf, value)


def _real_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of numbers that have derivatives in what a module takes or gives, complex ones as pairs of real
    numbers."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor) and _has_derivative(leaf):
            yield _real(leaf)
        elif _is_data(leaf):
            yield from _real_tensors([getattr(leaf, field.name) for field in fields(leaf)])


def _is_data(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type | nn.Module)


def _has_derivative(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and (tensor.is_floating_point() or tensor.is_complex())


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _weighted(weights: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor]) -> list[float]:
    """By draw, the weighted sum of tensors; none where these are others than in the first pass."""
    if any([w.shape for w in drawn] != [tensor.shape for tensor in tensors] for drawn in weights):
        return []
    return [
        sum(float((in_double(w) * in_double(t.detach())).sum()) for w, t in zip(drawn, tensors, strict=True))
        for drawn in weights
    ]

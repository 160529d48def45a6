"""The numbers of small tensors that do not depend on the image, such as tables of indices, in a pass that has no
numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from erfscope.copies import LARGEST, STANDS_FOR


class Constants:
    """Computes again, with numbers, what a pass without them computes from constants."""

    def __init__(self) -> None:
        #: By id the tensor, kept so that its id stays its own, and its numbers; None where they are not known.
        self._known: dict[int, tuple[Tensor, Tensor | None]] = {}

    def numbers(self, tensor: Tensor) -> Tensor | None:
        """The numbers of a constant on the CPU; None where they are not known."""
        if id(tensor) in self._known:
            return self._known[id(tensor)][1]
        found = tensor if not tensor.is_meta else getattr(tensor, STANDS_FOR, None)
        # Tensors of another type, such as those that only pretend to have numbers, have none to give.
        is_plain = type(found) in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
        return found.detach().cpu() if isinstance(found, Tensor) and is_plain and found.numel() <= LARGEST else None

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> None:
        """Note an operation on constants that has just run without numbers."""
        outs = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor)]
        given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        if func._schema.is_mutable:
            for tensor in given:
                self._forget(tensor)
            return
        if (
            not outs
            or not outs[0].is_meta
            or sum(t.numel() for t in outs) > LARGEST
            or torch.Tag.nondeterministic_seeded in func.tags
        ):
            return
        if any(self.numbers(tensor) is None for tensor in given):
            return
        made = self._compute(func, args, kwargs)
        for tensor, value in zip(outs, made, strict=False):
            self._known[id(tensor)] = (tensor, value)

    def _compute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        def with_numbers(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self.numbers(value)
            return torch.device("cpu") if isinstance(value, torch.device) else value

        with _disable_current_modes(), torch.no_grad():
            try:
                found = func(*tree_map(with_numbers, args), **tree_map(with_numbers, kwargs))
            except (
                RuntimeError,
                TypeError,
                NotImplementedError,
                IndexError,
                ValueError,
            ):  # what has no kernel there is not known
                return []
        return [t for t in tree_flatten(found)[0] if isinstance(t, Tensor)]

    def _forget(self, tensor: Tensor) -> None:
        """Numbers that were overwritten, and those of every view of them."""
        old = self.numbers(tensor)
        self._known[id(tensor)] = (tensor, None)
        if old is None:
            return
        for key, (kept, value) in self._known.items():
            if value is not None and value.untyped_storage().data_ptr() == old.untyped_storage().data_ptr():
                self._known[key] = (kept, None)

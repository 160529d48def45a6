"""Bytes that a forward pass keeps for its gradient, read from the autograd graph: no pass of its own is needed, nor
numbers."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from erfscope.adapter import Features

FLOAT64 = 8
#: The formula that attention is taken through where there are no numbers, and only there, ends with it; kernels that
#: are run make no table.
_OF_ATTENTION = "SafeSoftmaxBackward0"
#: Nodes between it and the products before and after it.
_BETWEEN = 6
#: Nodes whose gradients are made whole before they are summed over what was broadcast.
_BROADCASTING = ("MulBackward", "DivBackward", "WhereBackward", "PowBackward")
#: So many of the operations that take most are kept: those of the others are smaller.
_OPERATIONS = 32


@dataclass(slots=True)
class _Storages:
    """Storages that were counted, and the bytes of those that were new."""

    known: set[int]
    total: int = 0
    #: Keeps what was counted alive, so that no other storage gets its address.
    held: list[torch.UntypedStorage] = field(default_factory=list)

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.known:
            self.known.add(storage._cdata)
            self.held.append(storage)
            self.total += storage.nbytes()


class LargestOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it the operations are noted whose inputs and outputs take most memory, whether they are part of the graph
    or not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._heap: list[tuple[int, int, dict[int, int]]] = []
        self._count = 0
        self._recent: deque[dict[int, int]] = deque(maxlen=_BETWEEN)
        #: Storages of the tables of attention, which the kernels that are run do not make.
        self._tables: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = {s._cdata: s.nbytes() for s in map(_storage, tree_leaves((args, kwargs, out))) if s is not None}
        self._recent.append(sizes)
        if func is torch.ops.aten._safe_softmax.default:
            self._tables |= {
                key for each in self._recent for key, size in each.items() if size == out.untyped_storage().nbytes()
            }
        self._count += 1
        entry = sum(sizes.values()), self._count, sizes
        (heapq.heappush if len(self._heap) < _OPERATIONS else heapq.heappushpop)(self._heap, entry)
        return out

    def most(self, known: set[int]) -> int:
        """Return the bytes of the operation that takes most, without the storages that are known."""
        return max(
            (sum(size for key, size in sizes.items() if key not in known | self._tables) for _, _, sizes in self._heap),
            default=0,
        )


def _storage(value: object) -> torch.UntypedStorage | None:
    """The memory of a tensor; None for anything else, and for tensors that have none of their own, as some
    subclasses."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    try:
        return value.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def pass_bytes(features: Features, x: Tensor, module: nn.Module, operations: LargestOperations) -> int:
    """Bytes alive at once, at the worst moment of a pass and of one backward pass after it, with the graph kept for
    another one.

    Counted are what the graph keeps, each memory once; beside that the gradients that wait in the backward pass, or the
    operation that takes most, whatever is more; the image and the engine's copy of it; and the gradient of the
    reference with its float64 copy and the square of that. Parameters and buffers, scratch memory of kernels and holes
    in the heap are not. Attention counts as the kernel that it is run by, which keeps no table.

    Args:
        features: Of a pass with gradients.
        x: The input of that pass.
        module: The model that ran.
        operations: What was noted of the pass.
    """
    own = {
        storage._cdata
        for tensor in (*module.parameters(), *module.buffers())
        if (storage := _storage(tensor)) is not None
    }
    kept = _Storages({*own, x.untyped_storage()._cdata})
    kept.add(features.map)
    nodes = _nodes(features.map)
    tables, inside, outputs = _attention(nodes)
    for tensor in (each for node in nodes for each in _saved(node)):
        storage = _storage(tensor)
        if storage is not None and storage._cdata not in tables:
            kept.add(tensor)
    image = x.numel() * x.element_size()
    last = prod(features.reference.shape) * (x.element_size() + 2 * FLOAT64)
    return 2 * image + kept.total + outputs + max(_waiting(nodes, inside), last, operations.most(kept.known | tables))


def _attention(nodes: list[Any]) -> tuple[set[int], set[Any], int]:
    """Return the storages of the tables that attention makes without numbers alone, the nodes with such gradients, and
    the outputs' bytes.

    The kernels that are run keep their outputs instead.
    """
    tables, inside, outputs = set[int](), set[Any](), 0
    if not torch.backends.cuda.flash_sdp_enabled():  # type: ignore[no-untyped-call]
        return tables, inside, outputs
    for node in nodes:
        after = _chain(node.next_functions[0][0]) if node.name().startswith("BmmBackward") else []
        if not after or after[-1].name() != _OF_ATTENTION:
            continue
        before = _chain(after[-1].next_functions[0][0])
        if not before or not before[-1].name().startswith("BmmBackward"):
            continue  # a mask that has a gradient: no kernel takes it
        saved = [*_saved(after[-1]), node._saved_self] if hasattr(node, "_saved_self") else [*_saved(after[-1])]
        tables |= {
            storage._cdata for tensor in saved if tensor is not None and (storage := _storage(tensor)) is not None
        }
        inside |= {*after, *before}
        outputs += _gradient_bytes(node)
    return tables, inside, outputs


def _chain(node: Any) -> list[Any]:
    """Nodes from this one to the next product or softmax, one after the other; none where the way parts before."""
    found: list[Any] = []
    while node is not None and len(found) < _BETWEEN:
        found.append(node)
        if node.name().startswith("BmmBackward") or node.name() == _OF_ATTENTION:
            return found
        following = [each for each, _ in node.next_functions if each is not None]
        node = following[0] if len(following) == 1 else None
    return []


def _nodes(tensor: Tensor) -> list[Any]:
    """The autograd graph behind a tensor, in the order of its backward pass."""
    found: set[Any] = set()
    todo = [torch.autograd.graph.get_gradient_edge(tensor).node] if tensor.requires_grad else []
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [following for following, _ in node.next_functions if following is not None]
    return sorted(found, key=lambda node: -node._sequence_nr())


#: By the kind of node the attributes that may hold a tensor of the forward pass.
_ATTRIBUTES: dict[type, tuple[str, ...]] = {}


def _saved(node: Any) -> Iterator[Tensor]:
    """The tensors that a node keeps; none of a frozen batch norm, which is run as the affine map that it is."""
    kind = type(node)
    if kind.__name__.endswith("BatchNormBackward0") and not getattr(node, "_saved_training", True):
        return
    if kind not in _ATTRIBUTES:
        _ATTRIBUTES[kind] = tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")
    for name in _ATTRIBUTES[kind]:
        try:
            value = getattr(node, name)
        except RuntimeError:  # changed in place since, or let go of
            continue
        yield from (each for each in tree_leaves(value) if isinstance(each, Tensor))
    # What a function written by hand keeps beside what it saves.
    yield from (each for each in tree_leaves(dict(getattr(node, "__dict__", {}))) if isinstance(each, Tensor))


def _waiting(nodes: list[Any], none: set[Any]) -> int:
    """The largest sum of gradients that wait at once: each from the first node that adds to it until its own node has
    run.

    Args:
        nodes: In the order of the backward pass.
        none: Those whose gradients are never made.
    """
    waiting, now, peak = dict[Any, int](), 0, 0
    for node in nodes:
        following = [each for each, _ in node.next_functions if each is not None]
        for each in (node, *following):
            if each not in waiting:
                waiting[each] = 0 if each in none else _gradient_bytes(each)
                now += waiting[each]
        whole = node.name().startswith(_BROADCASTING) and any(waiting[each] < waiting[node] for each in following)
        peak = max(peak, now + (waiting[node] if whole else 0))
        now -= waiting[node]
    return peak


def _gradient_bytes(node: Any) -> int:
    """Bytes of the gradients that a node is given; none where it hands on the memory that it gets."""
    return sum(prod(data.shape) * data.dtype.itemsize for data in node._input_metadata)

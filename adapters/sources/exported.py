"""Exported programs (``*.pt2``) as models: their modules come back through ``torch.export.unflatten``, and hooks on
them fire."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from erfscope.adapter import Weights
from erfscope.adapters.libraries import silence_libraries
from erfscope.adapters.module import Forward, ModuleAdapter
from erfscope.adapters.state import borrowed, hooked
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.geometry.box import size_text
from erfscope.model_errors import errors_as_one_line, first_line

_AGAIN = "export it again"
#: Where these operations take whether the model is in training mode.
_TRAINING = {
    torch.ops.aten.batch_norm.default: 5,
    torch.ops.aten.dropout.default: 2,
    torch.ops.aten.feature_dropout.default: 2,
}
#: Checks of what was true of the example input: its dtype, and bounds of its size.
_CHECKS = (
    "_assert_tensor_metadata",
    "_assert_scalar",
    "_assert_async",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
)
#: Conversions, of which those to the dtype that a tensor has already are left out.
_CONVERSIONS = ("to.dtype", "to.dtype_layout", "_to_copy.default", "type_as.default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An exported program as a module, and what it takes."""

    module: nn.Module
    #: ``forward(module, x)``.
    forward: Forward
    weights: Weights
    channels: int
    #: Spatial size of the example input.
    size: tuple[int, ...]
    #: Whether each spatial side may differ, and between what bounds.
    bounds: tuple[tuple[float, float], ...]
    #: How many images may go through at a time; None for any number.
    at_once: int | None


def open_program(path: Path, *, unsafe: bool = False) -> Program:
    """The model in a .pt2 file.

    Its modules have the names they had when it was exported; one that was called several times is there once per call,
    as ``NAME@1`` and so on.

    Args:
        path: What ``torch.export.save`` wrote.
        unsafe: Whether the file may run code that it brings: PyTorch cannot read it otherwise.

    Returns:
        The module in its exported dtype, and the inputs it takes.

    Raises:
        ErfscopeError: no such file, one that is not trusted, damaged,
            of another kind, or a program that cannot be measured: without one floating-point input,
            exported in training mode, for a fixed batch of more than one, or without gradients.
    """
    program = _loaded(path, unsafe)
    shape = _input_shape(program, path)
    _refuse_training(program, path)
    with errors_as_one_line(f"{str(path)!r} holds a program that torch cannot turn into modules"), silence_libraries():
        module = torch.export.unflatten(program)
    spec = program.call_spec.in_spec
    with torch.no_grad():
        _freed(module)
    batch, channels, *space = (_bounds(side, program) for side in shape)
    if batch[0] > 1:
        raise ErfscopeError(
            f"{str(path)!r} takes batches of {_range(batch)} only; {_AGAIN} with a batch of 1, or with dynamic_shapes"
        )
    if channels[0] != channels[1]:
        raise ErfscopeError(f"{str(path)!r} leaves its number of channels open; {_AGAIN} with that fixed")

    def forward(net: nn.Module, x: Tensor) -> Any:
        args, kwargs = torch.utils._pytree.tree_unflatten([x], spec)
        return net(*args, **kwargs)

    size = tuple(_example(side) for side in shape[2:])
    _refuse_dead(module, forward, (1, _example(shape[1]), *size), path)
    return Program(
        module=module,
        forward=forward,
        weights=Weights(source="exported", sha256=_sha256(path), origin=str(path)),
        channels=_example(shape[1]),
        size=size,
        bounds=tuple(space),
        at_once=None if math.isinf(batch[1]) else int(batch[1]),
    )


class ProgramAdapter(ModuleAdapter):
    """An exported program: any module of it is a layer, and no more images go through at a time than it was exported
    for."""

    def __init__(self, module: nn.Module, *, forward: Forward, at_once: int | None, **common: Any) -> None:
        def run(net: nn.Module, x: Tensor) -> Any:
            # Shapes may be asked for a batch of any size: what cannot be run so then says it by itself.
            if at_once is not None and x.shape[0] > at_once and not x.is_meta:
                text = f"was exported for at most {at_once} image{'s' * (at_once != 1)} at a time, not {x.shape[0]}"
                hint = f"{_AGAIN} with dynamic_shapes, or use the method gradient with --batch-size {at_once}"
                raise MeasurementError(f"{text}; {hint}", model=self.spec)
            return forward(net, x)

        super().__init__(module, forward=run, **common)
        #: How many images may go through at a time; None for any number.
        self.at_once = at_once


def checked_size(program: Program, asked: tuple[int, ...] | None, spec: str) -> tuple[int, ...]:
    """The input size asked for, or the example's, if the program takes it.

    Raises:
        ErfscopeError: it takes another.
    """
    size = program.size if asked is None else asked * len(program.size) if len(asked) == 1 else asked
    if len(size) != len(program.size) or any(
        not low <= side <= high for side, (low, high) in zip(size, program.bounds, strict=True)
    ):
        takes = " by ".join(_range(bounds) for bounds in program.bounds)
        raise ErfscopeError(
            f"{spec!r} was exported for inputs of {takes}, not {'x'.join(map(str, size))}; {_AGAIN} with dynamic_shapes"
        )
    return size


def _loaded(path: Path, unsafe: bool) -> torch.export.ExportedProgram:
    if not path.is_file():
        raise ErfscopeError(f"there is no exported program {str(path)!r}")
    if not unsafe:
        raise ErfscopeError(
            f"{str(path)!r} is an exported program, which may run code when torch reads it; if you trust the file, say"
            " so: --unsafe-load"
        )
    try:
        with silence_libraries():
            return torch.export.load(str(path))
    except Exception as error:  # files of other versions fail in many ways
        fix = "write it with this version of torch, torch.export.save(program, FILE)"
        raise ErfscopeError(
            f"torch {torch.__version__} cannot read {str(path)!r} ({first_line(error)[:120]}); {fix}"
        ) from error


def _input_shape(program: torch.export.ExportedProgram, path: Path) -> tuple[Any, ...]:
    """Shape of the one input, with symbols for the sides that may differ."""
    names = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    if len(nodes) != 1:
        raise ErfscopeError(
            f"{str(path)!r} takes {len(nodes)} inputs, {', '.join(map(str, names[:4]))}; {_AGAIN} as a model of one"
        )
    value = nodes[0].meta.get("val")
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__
        raise ErfscopeError(
            f"{str(path)!r} takes an input of {kind}, which has no gradients; {_AGAIN} as a model of floating-point"
            " images"
        )
    if not 3 <= value.ndim <= 5:
        raise ErfscopeError(
            f"{str(path)!r} takes an input of {value.ndim} axes; an image has four, (batch, channels, height, width)"
        )
    return tuple(value.shape)


def _refuse_training(program: torch.export.ExportedProgram, path: Path) -> None:
    for node in _nodes(program.graph_module):
        target: Any = node.target
        place = _TRAINING.get(target)
        changes = program.graph_signature.buffers_to_mutate
        if changes or (place is not None and len(node.args) > place and node.args[place] is True):
            raise ErfscopeError(
                f"{str(path)!r} was exported in training mode ({node.name}); call model.eval() first and {_AGAIN}"
            )


def _nodes(module: nn.Module) -> Iterator[fx.Node]:
    """Every node of a program, or of its modules."""
    for each in module.modules():
        graph = getattr(each, "graph", None)
        if isinstance(graph, fx.Graph):
            yield from list(graph.nodes)


def _freed(module: Any) -> None:
    """Free the modules of what ties them to the example input: checks of its dtype and size, and tensors without
    numbers."""
    module.check_input_constraints = False  # what is fed is checked before, see checked_size
    for node in _nodes(module):
        name = str(node.target).removeprefix("aten.")
        if node.op == "call_function" and name.partition(".")[0] in _CHECKS:
            node.graph.erase_node(node)
        elif node.op == "call_function" and name in _CONVERSIONS and _keeps_dtype(node):
            source: Any = node.args[0]
            node.replace_all_uses_with(source)
            node.graph.erase_node(node)
    for each in module.modules():
        if isinstance(getattr(each, "graph", None), fx.Graph):
            for node in each.graph.nodes:
                node.meta = {}
            each.graph.eliminate_dead_code()
            each.finalize()


def _keeps_dtype(node: fx.Node) -> bool:
    before = node.args[0].meta.get("val") if isinstance(node.args[0], fx.Node) else None
    after = node.meta.get("val")
    return isinstance(before, Tensor) and isinstance(after, Tensor) and before.dtype == after.dtype


def _refuse_dead(module: nn.Module, forward: Forward, shape: tuple[int, ...], path: Path) -> None:
    """Refuse a program none of whose modules passes a gradient on, such as one that computes in integers."""
    alive: list[bool] = []

    def note(_module: nn.Module, _args: object, output: object) -> None:
        alive.extend(item.requires_grad for item in torch.utils._pytree.tree_leaves(output) if isinstance(item, Tensor))

    first = next((p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()), None)
    x = torch.zeros(shape, dtype=None if first is None else first.dtype, device=None if first is None else first.device)
    handles = (each.register_forward_hook(note) for each in module.modules())
    with (
        borrowed(module),
        hooked(handles),
        torch.enable_grad(),
        errors_as_one_line(f"{str(path)!r} fails on an input of {size_text(shape)}"),
    ):
        forward(module, x.requires_grad_(True))
    if not any(alive):
        raise ErfscopeError(
            f"{str(path)!r} has no gradients: it computes in integers or under no_grad; export the model before that is"
            " done"
        )


def _bounds(side: Any, program: torch.export.ExportedProgram) -> tuple[float, float]:
    """Least and greatest length of a side."""
    if isinstance(side, int):
        return side, side
    found = program.range_constraints.get(side.node.expr)
    if found is None:  # an expression of other sides
        return _example(side), _example(side)
    # torch treats every length above 1 alike, and writes 2 where the export said nothing.
    low, high = float(found.lower), float(found.upper)
    return (1 if low <= 2 else low), (high if high < 2**31 else math.inf)


def _example(side: Any) -> int:
    """A side's length in the example input."""
    return int(side) if isinstance(side, int) else int(side.node.hint)


def _range(bounds: tuple[float, float]) -> str:
    low, high = bounds
    return f"{low:.0f}" if low == high else f"{low:.0f} and more" if math.isinf(high) else f"{low:.0f} to {high:.0f}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

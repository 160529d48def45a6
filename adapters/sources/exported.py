"""Exported programs (``*.pt2``) as models."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from erfscope.adapters.libraries import silence_libraries
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.preprocess import input_config
from erfscope.adapters.sources.source import Source, SourceOptions
from erfscope.adapters.weights.weights import sha256
from erfscope.core.system.model_errors import errors_as_one_line, first_line
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.model_facts import Weights


def build(spec: str, options: SourceOptions) -> Source:
    """Build the model in a .pt2 file, as ``torch.export.save`` writes it.

    Raises:
        ErfscopeError: no such file, one that is not trusted, one that torch cannot read; options, or as
            :func:`source_of`.
    """
    if options.model_kwargs:
        raise ErfscopeError(
            f"is an exported program: it takes no options ({', '.join(options.model_kwargs)})", model=spec
        )
    path = Path(spec)
    program = _program_in(path, unsafe=options.unsafe_load)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return source_of(program, spec, options, Weights(source="exported", sha256=digest, origin=spec))


def store(_spec: str) -> None:
    """No store: a program holds its weights."""


def source_of(
    program: ExportedProgram,
    spec: str,
    options: SourceOptions,
    weights: Weights | None = None,
    example_inputs: Any = None,
) -> Source:
    """The model in an exported program, for the channels and the size that it was exported for, or that are asked for.

    Its modules have the names they had when it was exported; one that was called several times is there once per call,
    as ``NAME@1`` and so on.

    Args:
        program: In evaluation mode.
        spec: Its name in messages.
        options: Input size and channels, where its shapes are dynamic.
        weights: Where its weights come from; given with the program if None.
        example_inputs: Its arguments where it takes several; those that it was exported with if None.

    Raises:
        ErfscopeError: a program in training mode, one of several inputs without an example of them, or an input that it
            does not take.
    """
    names = program.graph_signature.user_inputs
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    is_image = len(inputs) == 1 and isinstance(inputs[0], Tensor) and inputs[0].ndim >= 3
    examples = example_inputs if example_inputs is not None or is_image else _exported_with(program)
    if not is_image and examples is None:
        takes = ", ".join(map(str, names))
        text = f"takes {takes}; give an example of each: erfscope.wrap(program, example_inputs=(...))"
        raise ErfscopeError(text, model=spec)
    if any(node.target is torch.ops.aten.batch_norm.default and node.args[5] for node in program.graph.nodes):
        raise ErfscopeError("was exported in training mode; call model.eval() first and export it again", model=spec)
    if examples is not None:
        first = next((each.shape[0] for each in inputs if isinstance(each, Tensor) and each.ndim > 3), None)
        module = _unflattened(program, spec)
        return Source(
            module=module,
            spec=spec,
            weights=weights or Weights(source="given", sha256=sha256(module)),
            notes=_unused(program),
            adapter=functools.partial(ModuleAdapter, most_images=first if isinstance(first, int) else None),
            example_inputs=examples,
            forward=_named_call(examples, [str(name) for name in names]),
        )
    batch, *sides = inputs[0].shape
    channels, size = options.in_chans or sides[0], options.input_size or tuple(sides[1:])
    size = size * (len(sides) - 1) if len(size) == 1 else size
    if len(sides) != len(size) + 1 or any(
        isinstance(side, int) and side != asked for side, asked in zip(sides, (channels, *size), strict=True)
    ):
        raise ErfscopeError(
            f"was exported for {sides[0]} input channels at {'x'.join(map(str, sides[1:]))}, not {channels} at"
            f" {'x'.join(map(str, size))}; export it again with dynamic_shapes",
            model=spec,
        )
    module = _unflattened(program, spec)
    words = {"input_size": tuple(map(int, (channels, *size)))}
    return Source(
        module=module,
        spec=spec,
        weights=weights or Weights(source="given", sha256=sha256(module)),
        config=input_config(words, mean=options.mean, std=options.std),
        adapter=functools.partial(ModuleAdapter, most_images=batch if isinstance(batch, int) else None),
    )


def _named_call(examples: Any, names: Sequence[str]) -> Callable[..., Any] | None:
    """A call by position, whose parameters are called as those of the module that was exported; None where an argument
    is a container, or has its name already."""
    if isinstance(examples, Mapping | Tensor) or len(examples) != len(names):
        return None

    def forward(module: nn.Module, *args: Any) -> Any:
        return module(*args)

    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, kind) for name in ("module", *names)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return forward


def _exported_with(program: ExportedProgram) -> Any:
    """The arguments that a program was exported with, by position or by keyword; None where it has both or none."""
    args, keywords = program.example_inputs or ((), {})
    return None if bool(args) == bool(keywords) else args or keywords


def _unused(program: ExportedProgram) -> tuple[str, ...]:
    """A sentence about arguments that a program takes and does not use."""
    names = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    unused = ", ".join(node.name for node in nodes if not node.users)
    text = f"the program does not use {unused}; torch.export merges arguments that are one tensor: give one to each"
    return (text,) if unused else ()


def _unflattened(program: ExportedProgram, spec: str) -> nn.Module:
    with errors_as_one_line("its modules cannot be told apart; export a model that has it as a part", model=spec):
        module = torch.export.unflatten(program)
    _forget_example(module)
    return module


def _program_in(path: Path, *, unsafe: bool) -> ExportedProgram:
    if not path.is_file():
        raise ErfscopeError(f"there is no exported program {str(path)!r}")
    if not unsafe:
        raise ErfscopeError(
            f"{str(path)!r} is an exported program, which may run code when torch reads it; if you trust the file, add"
            " --unsafe-load"
        )
    try:
        with silence_libraries():
            return torch.export.load(str(path))
    except Exception as error:  # files of other versions fail in many ways
        fix = "write it with this version of torch, torch.export.save(program, FILE)"
        raise ErfscopeError(
            f"torch {torch.__version__} cannot read {str(path)!r} ({first_line(error)[:120]}); {fix}"
        ) from error


def _forget_example(module: Any) -> None:
    """Drop what a program keeps of its example input: checks of dtype and size, and tensors that cannot be copied."""
    module.check_input_constraints = False
    for graph in [part.graph for part in module.modules() if hasattr(part, "graph")]:
        for node in list(graph.nodes):
            node.meta.clear()
            if node.op == "call_function" and "_assert_" in str(node.target):
                graph.erase_node(node)

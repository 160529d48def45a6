"""Functions, classes and modules of the user's own code, by dotted name or by file."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import importlib.util
import operator
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from erfscope.adapters.live_objects import refuse_unmeasurable, unwrapped
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.sources.kinds import SPECS
from erfscope.adapters.sources.source import Source, SourceOptions
from erfscope.adapters.weights.weights import sha256
from erfscope.core.system.model_errors import errors_as_one_line
from erfscope.core.system.restore import restored, seed_generators
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.input_size import is_size
from erfscope.core.values.model_facts import Weights

#: Why the weights of a factory are not known to be trained.
NO_CHECKPOINT = "no checkpoint was given"


def build(spec: str, options: SourceOptions) -> Source:
    """Build a model by the user's own code: a module, a pair of it and example inputs, or what :func:`erfscope.wrap`
    makes; see :func:`run`."""
    made = _run(spec, (), seed=options.seed, kwargs=options.model_kwargs)
    is_wrapped, is_pair = isinstance(made, ModuleAdapter), isinstance(made, tuple) and len(made) == 2
    given, examples = made if is_pair else (made.module if is_wrapped else made, None)
    if not isinstance(given, nn.Module) or (is_pair and not isinstance(examples, tuple | list | Mapping | Tensor)):
        raise ErfscopeError(
            f"returned {_called(made)}; it must return an nn.Module, a pair (module, example_inputs), or what"
            " erfscope.wrap makes of a module",
            model=spec,
        )
    module = unwrapped(given)
    refuse_unmeasurable(module, spec)
    weights = Weights(source="factory", sha256=sha256(module), seed=options.seed, origin=spec, reason=NO_CHECKPOINT)
    if not is_wrapped:
        config = options.input_config(module, spec) if examples is None else None
        return Source(module=module, spec=spec, weights=weights, config=config, example_inputs=examples)
    asked = [name for name in ("in_chans", "mean", "std") if getattr(options, name) is not None]
    if options.input_size is not None and not is_size(options.input_size, made.preprocess.size):
        asked.insert(0, "input_size")
    if asked:
        raise ErfscopeError(f"returns what erfscope.wrap makes; give {asked[0]} to erfscope.wrap", model=spec)

    def adapter(_module: nn.Module, **_options: Any) -> ModuleAdapter:
        found: ModuleAdapter = copy.copy(made)
        found.spec, found.weights = spec, weights
        return found

    return Source(module=module, spec=spec, weights=weights, adapter=adapter)


def _called(made: object) -> str:
    """What a function has returned, by the types of its parts."""
    parts = ", ".join(type(each).__name__ for each in made) if isinstance(made, tuple) else ""
    return f"({parts})" if parts else type(made).__name__


def store(_spec: str) -> None:
    """No store: a factory brings the weights that it makes."""


def run(spec: str, *arguments: object, seed: int, kwargs: Mapping[str, object]) -> nn.Module:
    """Build the block that ``package.module:factory`` or ``path/file.py:factory`` names.

    The working directory (for a file: its folder) comes first on ``sys.path`` meanwhile, and torch, numpy and
    ``random`` are seeded; both are put back afterwards (:func:`erfscope.core.system.restore.restored`).

    Args:
        spec: Names a function or a class, which is called, or an ``nn.Module``, which is returned as it is.
        *arguments: Passed to a function or class.
        seed: Seed of the generators.
        kwargs: Passed to a function or class.

    Returns:
        The module.

    Raises:
        ErfscopeError: no such file, module or name, code that fails, or a result that is no ``nn.Module``.
    """
    made = _run(spec, arguments, seed=seed, kwargs=kwargs)
    if not isinstance(made, nn.Module):
        raise ErfscopeError(f"returned {type(made).__name__}; it must return an nn.Module", model=spec)
    return made


def _run(spec: str, arguments: Sequence[object], *, seed: int, kwargs: Mapping[str, object]) -> Any:
    where, _, name = spec.rpartition(":")
    is_file = where.endswith(".py")
    folder = Path(where).parent.resolve() if is_file else Path.cwd()
    # A file's own name: two files called model.py are two modules, and neither hides an installed one.
    digest = hashlib.sha256(os.fsencode(Path(where).resolve())).hexdigest()[:8]
    own_name = f"{Path(where).stem}_{digest}" if is_file else None
    with _first_on_path(folder, own_name), restored(), seed_generators(seed):
        owner = _load_module(where, spec) if own_name is None else _load_file(Path(where), own_name)
        try:
            target = operator.attrgetter(name)(owner)
        except AttributeError as error:
            names = [each for each, value in vars(owner).items() if callable(value) or isinstance(value, nn.Module)]
            raise unknown("name", name, [each for each in names if not each.startswith("_")], where=where) from error
        return _call(target, spec, arguments, kwargs)


def _call(target: object, spec: str, arguments: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    if isinstance(target, nn.Module):
        if kwargs:
            raise ErfscopeError(f"is a module, not a function: it takes no options ({', '.join(kwargs)})", model=spec)
        return target
    if not callable(target):
        raise ErfscopeError(
            f"is of type {type(target).__name__}; it must be a function, a class or an nn.Module", model=spec
        )
    with errors_as_one_line("failed", kwargs, model=spec):
        return target(*arguments, **kwargs)


def _load_module(where: str, spec: str) -> ModuleType:
    if not all(part.isidentifier() for part in where.split(".")):
        forms = SPECS.replace("`", "")
        raise ErfscopeError(f"unknown model {spec!r}: nothing begins with {where!r} and a colon; a model is {forms}")
    importlib.invalidate_caches()
    with errors_as_one_line(f"importing {where} failed"):
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name and f"{where}.".startswith(f"{error.name}."):
                raise ErfscopeError(
                    f"there is no Python module {error.name!r} for {spec}, neither in {Path.cwd()} nor installed"
                ) from error
            raise


def _load_file(path: Path, name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, path.resolve())
    if not path.is_file() or found is None:
        raise ErfscopeError(f"there is no Python file {str(path)!r}")
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    with errors_as_one_line(f"importing {path} failed"):
        # What Python keeps compiled is stale where a source of the same length is saved again within one second.
        exec(compile(path.read_bytes(), str(module.__file__), "exec"), module.__dict__)
    return module


@contextlib.contextmanager
def _first_on_path(folder: Path, only: str | None) -> Iterator[None]:
    """Put a folder first on ``sys.path``.

    Afterwards forget the modules that were imported from the folder, all but ``only``, if that is given: the
    ``layers.py`` beside one ``model.py`` is not the one beside the next."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        for name in set(sys.modules) - before - {only} if only else ():
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().is_relative_to(folder):
                del sys.modules[name]

"""A user's checkpoint file into a model: everything that matters fits, or nothing is loaded."""

from __future__ import annotations

import argparse
import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from erfscope.adapter import Weights
from erfscope.adapters.libraries import silence_libraries
from erfscope.adapters.weights.conversion import converted, oddity
from erfscope.adapters.weights.torchscript import is_torchscript
from erfscope.adapters.weights.weights import sha256
from erfscope.errors import ErfscopeError, refuse_broken_link
from erfscope.model_errors import first_line

#: Where weights stand in a checkpoint, in timm's order: an average of the training's weights (EMA) before the plain
#: ones.
AVERAGED = ("state_dict_ema", "model_ema")
PLAIN = ("state_dict", "model")
#: Counts training steps; no inference depends on it, and old checkpoints lack it.
_IRRELEVANT = "num_batches_tracked"
_WANTED = (
    "a checkpoint holds tensors by name, as torch.save(model.state_dict(), FILE) writes them, at its top level or as "
    f"{', '.join(map(repr, (*AVERAGED, *PLAIN)))} (the first of these that it has)"
)

_PLAIN_TENSORS = "save plain tensors with the model's own numbers, torch.save(model.state_dict(), FILE)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Where a checkpoint and a model disagree."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    misshaped: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.misshaped)


def load_checkpoint(
    module: nn.Module, path: str | Path, *, needed: Callable[[str], bool], unsafe: bool = False
) -> Weights:
    """Put the weights of a file into a model, in place.

    Args:
        module: The model. Unchanged if this raises.
        path: .safetensors, or .pth, .pt, .bin and the like, read with ``weights_only=True``: code in a pickle is never
            executed.
        needed: Whether the layer that is measured depends on a key of the model's ``state_dict``.
        unsafe: Read pickles of anything, a whole model among them, and so run the code in them.

    Returns:
        Where the numbers come from; ``ignored_keys`` counts the file's keys that were not used. Of a file that holds
        averaged weights beside plain ones the averaged are taken, and ``origin`` names their entry.

    Raises:
        ErfscopeError: the file cannot be read, no key fits, or a needed key is missing, extra or mis-shaped.
    """
    file = Path(path)
    with torch.inference_mode(False):
        # A module's extra state may be anything.
        own = {key: value for key, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    tensors, entry = _read(file, unsafe)
    state = _without_prefix(tensors, own)
    misfit = _misfit(own, state)
    asked = Misfit(
        missing=tuple(key for key in misfit.missing if needed(key)),
        extra=tuple(key for key in misfit.extra if _touches(module, key, own, needed)),
        misshaped=tuple(key for key in misfit.misshaped if needed(key)),
    )
    fitting = [key for key in state if key in own and key not in misfit.misshaped]
    if asked or not fitting:
        raise ErfscopeError(_complaint(file, module, asked if fitting else misfit, own, state))
    ready, lossy = _converted(fitting, state, own)
    if refused := [key for key in lossy if needed(key) or not ready]:
        more = f", and {len(refused) - 1} more entries likewise" if len(refused) > 1 else ""
        raise ErfscopeError(
            f"checkpoint {str(file)!r} cannot be used: {refused[0]} {lossy[refused[0]]}{more}; {_PLAIN_TENSORS}"
        )
    origin = str(path) if entry is None else f"{path}, entry {entry}"
    ignored = len(misfit.extra) + len(misfit.misshaped) + len(lossy)
    with _undone_if_it_fails({key: own[key] for key in ready}, file):
        for key, value in ready.items():
            own[key].data.copy_(value)
        return Weights(source="checkpoint", sha256=sha256(module), origin=origin, ignored_keys=ignored)


def _converted(
    keys: Iterable[str], state: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The numbers of these keys, ready to be copied, and of the others why they cannot be."""
    ready: dict[str, Tensor] = {}
    lossy: dict[str, str] = {}
    for key in keys:
        try:
            ready[key] = converted(state[key], own[key])
        except ValueError as error:
            lossy[key] = str(error)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            lossy[key] = f"is a tensor of a kind that PyTorch cannot turn into a plain one ({first_line(error)})"
    return ready, lossy


@contextlib.contextmanager
def _undone_if_it_fails(changed: Mapping[str, Tensor], file: Path) -> Iterator[None]:
    """Put the numbers of tensors back if what is done inside fails: a tensor may share its memory with itself, say."""
    with torch.no_grad():
        before = {key: tensor.data.clone() for key, tensor in changed.items()}
        try:
            yield
        except Exception as error:
            for key, tensor in changed.items():
                with contextlib.suppress(RuntimeError):
                    tensor.data.copy_(before[key])
            raise ErfscopeError(
                f"checkpoint {str(file)!r} cannot be put into the model: {first_line(error)}; {_PLAIN_TENSORS}"
            ) from error


def _read(file: Path, unsafe: bool) -> tuple[dict[str, Tensor], str | None]:
    """The weights in a file, and the entry of averaged ones where it holds plain ones too."""
    refuse_broken_link(file)
    if is_torchscript(file):
        raise ErfscopeError(
            f"checkpoint {str(file)!r} is a TorchScript archive, a program with its weights; {_PLAIN_TENSORS}"
        )
    if file.is_dir():
        raise ErfscopeError(
            f"checkpoint {str(file)!r} is a directory; name the file in it, or give local-dir:{file} as the model"
        )
    if not file.is_file():
        raise ErfscopeError(f"checkpoint {str(file)!r} does not exist")
    from timm.models import clean_state_dict, load_state_dict

    try:
        with silence_libraries():
            content = (
                load_state_dict(str(file), device="cpu") if file.suffix == ".safetensors" else _unpickled(file, unsafe)
            )
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and not unsafe:
            # Without a global that it refuses, the safe unpickler cannot tell other pickles from damage.
            state = (
                "holds more than tensors"
                if "Unsupported global" in str(error)
                else "is damaged or holds more than tensors"
            )
            save = "save the weights alone, torch.save(model.state_dict(), FILE)"
            fix = f"code in it is never run unasked; {save}, or add --unsafe-load if you trust it"
            raise ErfscopeError(f"checkpoint {str(file)!r} {state}; {fix}") from error
        # What an unpickler trips over in another kind of file means nothing to a reader.
        reason = "" if isinstance(error, LookupError | AttributeError | TypeError) else f": {first_line(error)}"
        raise ErfscopeError(
            f"checkpoint {str(file)!r} cannot be read as .safetensors or .pth{reason}; {_WANTED}"
        ) from error
    found, entry = _chosen(content)
    tensors = clean_state_dict(_named(file, found)) if isinstance(found, Mapping) else {}
    if not tensors:
        has = (
            ", ".join(map(repr, list(found)[:3])) or "nothing"
            if isinstance(found, Mapping)
            else f"a {type(found).__name__}"
        )
        raise ErfscopeError(f"checkpoint {str(file)!r} holds no weights: it has {has}; {_WANTED}")
    return tensors, entry


def _named(file: Path, found: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The tensors among entries, by name; a number is its own name."""
    named: dict[str, Tensor] = {}
    for key, value in found.items():
        if not isinstance(value, Tensor):
            continue
        if str(key) in named:
            raise ErfscopeError(
                f"checkpoint {str(file)!r} has two entries called {str(key)!r}, text and number; {_WANTED}"
            )
        if value.is_nested or is_lazy(value):
            raise ErfscopeError(f"checkpoint {str(file)!r} cannot be used: {key} {oddity(value)}; {_PLAIN_TENSORS}")
        named[str(key)] = value
    return named


def _chosen(content: Any) -> tuple[Any, str | None]:
    """What of a file's content timm takes for the weights, and the name of averaged ones that stand beside plain
    ones."""
    found = content if isinstance(content, dict) else {}
    entries = [name for name in (*AVERAGED, *PLAIN) if isinstance(found.get(name), Mapping | nn.Module)]
    chosen = content[entries[0]] if entries else content
    beside_plain = bool(entries) and entries[0] in AVERAGED and entries[-1] in PLAIN
    return chosen.state_dict() if isinstance(chosen, nn.Module) else chosen, entries[0] if beside_plain else None


def _unpickled(file: Path, unsafe: bool) -> Any:
    """What a pickle holds; code in it is run, once, where that was asked for."""
    # timm's own checkpoints hold the arguments of their training.
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(file, map_location="cpu", weights_only=not unsafe)


def _without_prefix(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Strip the prefix (``module.``, ``model.backbone.``, ...) that all keys share, as far as more keys then match."""
    shared: list[str] = []
    for segments in zip(*(key.split(".")[:-1] for key in state), strict=False):
        if len(set(segments)) > 1:
            break
        shared.append(segments[0])
    prefixes = [".".join((*shared[:depth], "")) if depth else "" for depth in range(len(shared) + 1)]
    best = max(prefixes, key=lambda prefix: sum(key.removeprefix(prefix) in own for key in state))
    return {key.removeprefix(best): value for key, value in state.items()}


def _misfit(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Misfit:
    # A tensor that two names share is often saved under one of them.
    supplied = {(own[key].data_ptr(), own[key].shape) for key in state if key in own}
    return Misfit(
        missing=tuple(
            key
            for key in own
            if key not in state and (own[key].data_ptr(), own[key].shape) not in supplied and _counts(key)
        ),
        extra=tuple(key for key in state if key not in own and _counts(key)),
        misshaped=tuple(key for key in own if key in state and own[key].shape != state[key].shape),
    )


def _counts(key: str) -> bool:
    return not key.endswith(_IRRELEVANT)


def _touches(module: nn.Module, key: str, own: Iterable[str], needed: Callable[[str], bool]) -> bool:
    """Whether an extra key would belong to a needed part: a further parameter of one of its modules, or a further block
    of its sequence."""
    parent, _, leaf = key.rpartition(".")
    path, owner = _nearest(module, parent)
    if path == parent:
        # Not a buffer that the model works out by itself, such as Swin's relative_position_index in old files.
        is_new = not isinstance(getattr(owner, leaf, None), Tensor)
        return is_new and any(needed(each) for each in own if each.rpartition(".")[0] == path)
    is_sequence = isinstance(owner, nn.Sequential | nn.ModuleList | nn.ModuleDict)
    return is_sequence and any(needed(each) for each in own if each.startswith(f"{path}." if path else ""))


def _nearest(module: nn.Module, path: str) -> tuple[str, nn.Module]:
    """The module at ``path``, or the innermost one on the way to it."""
    names = path.split(".") if path else []
    for count, name in enumerate(names):
        child = module._modules.get(name)
        if child is None:
            return ".".join(names[:count]), module
        module = child
    return path, module


def _complaint(
    file: Path, module: nn.Module, misfit: Misfit, own: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> str:
    shapes = [f"{key} {tuple(state[key].shape)} for {tuple(own[key].shape)}" for key in misfit.misshaped]
    kinds = [("missing", misfit.missing), ("extra", misfit.extra), ("mis-shaped", shapes)]
    found = "; ".join(f"{kind}: {_three(keys)}" for kind, keys in kinds if keys)
    if any(key in own for key in state):
        fix = (
            "build the model as it was trained (--model-kwargs, --input-size), or choose a --layer that needs none of"
            " these"
        )
    else:
        fix = "no key matches: it is another model's, or its keys need renaming"
    return f"checkpoint {str(file)!r} does not fit {type(module).__name__}: {found}; {fix}"


def _three(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")

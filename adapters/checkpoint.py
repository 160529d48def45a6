"""A user's checkpoint file into a model: everything that matters fits, or nothing is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from erfscope.adapter import Weights
from erfscope.adapters.foreign import first_line, quiet
from erfscope.adapters.weights import sha256
from erfscope.errors import ErfscopeError

#: Counts training steps; no inference depends on it, and old checkpoints lack it.
_IRRELEVANT = "num_batches_tracked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Where a checkpoint and a model disagree."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    misshaped: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.misshaped)


def load_checkpoint(module: nn.Module, path: str | Path, *, needed: Callable[[str], bool]) -> Weights:
    """Put the weights of a file into a model, in place.

    Args:
        module: The model. Unchanged if this raises.
        path: .safetensors, or .pth, .pt, .bin and the like, read with ``weights_only=True``: code in a pickle is never executed.
        needed: Whether the layer that is measured depends on a key of the model's ``state_dict``.

    Returns:
        Where the numbers come from; ``ignored_keys`` counts the file's keys that were not used.

    Raises:
        ErfscopeError: the file cannot be read, no key fits, or a needed key is missing, extra or mis-shaped.
    """
    file = Path(path)
    own = module.state_dict()
    state = _without_prefix(_read(file), own)
    misfit = _misfit(own, state)
    asked = Misfit(
        missing=tuple(key for key in misfit.missing if needed(key)),
        extra=tuple(key for key in misfit.extra if _touches(module, key, own, needed)),
        misshaped=tuple(key for key in misfit.misshaped if needed(key)),
    )
    fitting = [key for key in state if key in own and key not in misfit.misshaped]
    if asked or not fitting:
        raise ErfscopeError(_complaint(file, module, asked if fitting else misfit, own, state))
    # Copied key by key, not by load_state_dict: that would have changed some tensors by the time it finds that another does not fit.
    with torch.no_grad():
        for key in fitting:
            own[key].copy_(state[key])
    return Weights(source="checkpoint", sha256=sha256(module), origin=str(path), ignored_keys=len(misfit.extra) + len(misfit.misshaped))


def _read(file: Path) -> dict[str, Tensor]:
    if file.is_dir():
        raise ErfscopeError(f"checkpoint {str(file)!r} is a directory; name the file in it, or give local-dir:{file} as the model")
    if not file.is_file():
        raise ErfscopeError(f"checkpoint {str(file)!r} does not exist")
    from timm.models import load_state_dict

    try:
        with quiet():
            content = load_state_dict(str(file), device="cpu", weights_only=True)
    except Exception as error:
        if "weights_only" in str(error):
            # Without a global that it refuses, the safe unpickler cannot tell other pickles from damage.
            state = "holds more than tensors" if "Unsupported globals" in str(error) else "is damaged or holds more than tensors"
            fix = "code in it is never run; save the weights alone: torch.save(model.state_dict(), FILE)"
            raise ErfscopeError(f"checkpoint {str(file)!r} {state}; {fix}") from error
        raise ErfscopeError(f"checkpoint {str(file)!r} cannot be read as .safetensors or .pth: {first_line(error)}") from error
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        entries = ", ".join(map(repr, list(content)[:3])) or "nothing"
        raise ErfscopeError(f"checkpoint {str(file)!r} holds no weights at its top level, 'state_dict' or 'model'; it has {entries}")
    return tensors


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
        missing=tuple(key for key in own if key not in state and (own[key].data_ptr(), own[key].shape) not in supplied and _counts(key)),
        extra=tuple(key for key in state if key not in own and _counts(key)),
        misshaped=tuple(key for key in own if key in state and own[key].shape != state[key].shape),
    )


def _counts(key: str) -> bool:
    return not key.endswith(_IRRELEVANT)


def _touches(module: nn.Module, key: str, own: Iterable[str], needed: Callable[[str], bool]) -> bool:
    """Whether an extra key would belong to a needed part: a further parameter of one of its modules, or a further block of its sequence."""
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


def _complaint(file: Path, module: nn.Module, misfit: Misfit, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    shapes = [f"{key} {tuple(state[key].shape)} for {tuple(own[key].shape)}" for key in misfit.misshaped]
    kinds = [("missing", misfit.missing), ("extra", misfit.extra), ("mis-shaped", shapes)]
    found = "; ".join(f"{kind}: {_three(keys)}" for kind, keys in kinds if keys)
    if any(key in own for key in state):
        fix = "build the model as it was trained (--model-kwargs, --input-size), or choose a --layer that needs none of these"
    else:
        fix = "no key matches: it is another model's, or its keys need renaming"
    return f"checkpoint {str(file)!r} does not fit {type(module).__name__}: {found}; {fix}"


def _three(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")

"""Load a user's checkpoint file into a model; all that the measured layer depends on must fit."""

from __future__ import annotations

import argparse
import pickle
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from erfscope.adapters.libraries import silence_libraries
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.weights.weights import sha256
from erfscope.core.system.model_errors import first_line
from erfscope.core.values.errors import ErfscopeError, refuse_broken_link, unknown
from erfscope.core.values.model_facts import Weights
from erfscope.core.values.printable import listed_up_to

#: Where weights stand in a checkpoint, in timm's order: an average of the training's weights (EMA) before plain ones.
AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "params_ema", "ema")
ENTRIES = (*AVERAGED, "state_dict", "model_state_dict", "model")
#: Counts training steps. Inference does not depend on it, and old checkpoints lack it.
_COUNTER = "num_batches_tracked"
_WANTED = (
    "a checkpoint holds tensors by name, as torch.save(model.state_dict(), FILE) writes them, at its top level or as "
    f"{', '.join(map(repr, ENTRIES))} (the first of these that it has)"
)


def load_checkpoint(
    module: nn.Module, path: str | Path, *, needed: Callable[[str], bool], unsafe: bool = False
) -> Weights:
    """Put the weights of a file into a model, in place.

    Args:
        module: The model. Unchanged if the file does not fit it.
        path: .safetensors, or .pth, .pt, .bin and the like, read with ``weights_only=True``: code in a pickle is never
            executed.
        needed: Whether the layer that is measured depends on a key of the model's ``state_dict``.
        unsafe: Read pickles of anything, a whole model among them, and so run the code in them.

    Returns:
        Where the numbers come from; ``ignored_keys`` counts the file's keys that were not used, and ``reason`` names
        some. Of a file that holds averaged weights these are taken, and ``origin`` names their entry or prefix.

    Raises:
        ErfscopeError: the file cannot be read, no key fits, a needed key is missing, extra or mis-shaped, or several
            copies of the model are in it.
    """
    file = Path(path)
    # A module's extra state may be anything.
    own = {key: value for key, value in module.state_dict().items() if isinstance(value, Tensor)}
    tensors, entry = _read(file, unsafe, own)
    prefix, inside = _prefix(tensors, own, file)
    state = {inside + key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
    fitting = {key: value for key, value in state.items() if key in own and value.shape == own[key].shape}
    if misfit := _misfit(module, own, state, fitting, needed):
        raise ErfscopeError(f"checkpoint {str(file)!r} does not fit {type(module).__name__}: {misfit}")
    module.load_state_dict(fitting, strict=False)
    origin = f"{path}, entry {entry}" if entry in AVERAGED else str(path)
    origin += f", keys {prefix}*" if _is_averaged(prefix) else ""
    used = {prefix + key.removeprefix(inside) for key in fitting}
    ignored = [key for key in tensors if key not in used and _counts(key)]
    names = f"not used: {listed_up_to(3, ignored)}" if ignored else None
    return Weights(source="checkpoint", sha256=sha256(module), origin=origin, ignored_keys=len(ignored), reason=names)


def _read(file: Path, unsafe: bool, own: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str | None]:
    """The weights in a file by name, and the entry that holds them; of entries with other names those that hold weights
    of the model."""
    from safetensors.torch import load_file

    refuse_broken_link(file)
    if file.is_dir():
        raise ErfscopeError(
            f"checkpoint {str(file)!r} is a directory; name the file in it, or give local-dir:{file} as the model"
        )
    if not file.is_file():
        raise ErfscopeError(f"checkpoint {str(file)!r} does not exist")
    if zipfile.is_zipfile(file) and _claims_more(file):
        raise ErfscopeError(
            f"checkpoint {str(file)!r} is packed: it claims more bytes than it has, which torch.save never writes;"
            " unpack it, or save it again"
        )
    try:
        # timm's own checkpoints hold the arguments of their training.
        with silence_libraries(), torch.serialization.safe_globals([argparse.Namespace]):
            is_safe = file.suffix == ".safetensors"
            content = load_file(file) if is_safe else torch.load(file, map_location="cpu", weights_only=not unsafe)
    except pickle.UnpicklingError as error:
        fix = "save the weights alone, torch.save(model.state_dict(), FILE), or add --unsafe-load if you trust it"
        raise ErfscopeError(
            f"checkpoint {str(file)!r} is damaged or holds more than tensors; erfscope runs no code in it: {fix}"
        ) from error
    except ImportError as error:
        text = (
            f"checkpoint {str(file)!r} needs the code of its model ({first_line(error)}): put its folder on PYTHONPATH"
        )
        raise ErfscopeError(f"{text}, or save the weights alone, torch.save(model.state_dict(), FILE)") from error
    except Exception as error:  # an unpickler fails in many ways on other kinds of files
        text = f"checkpoint {str(file)!r} cannot be read as .safetensors or .pth: it is damaged, or no checkpoint"
        raise ErfscopeError(
            f"{text} ({type(error).__name__}); save it as torch.save(model.state_dict(), FILE)"
        ) from error
    return _weights_in(content, file, own)


def _weights_in(content: Any, file: Path, own: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str | None]:
    """The weights in what a file holds, and the entry that holds them."""
    entries = content if isinstance(content, Mapping) else {}
    # A tensor alone is a number of the training, such as the decay of an average.
    held_by = {name: each for name in ENTRIES if isinstance(each := entries.get(name), Mapping | nn.Module)}
    entry = next((name for name, each in held_by.items() if any(True for _ in _nested({"": each}))), None)
    held = content if entry is None else content[entry]
    named = held.state_dict() if isinstance(held, nn.Module) else held if isinstance(held, Mapping) else {}
    named = {key: value for key, value in named.items() if isinstance(key, str)}
    tensors = _cleaned({key: value for key, value in named.items() if isinstance(value, Tensor)})
    if not tensors and _hits(inner := _cleaned(dict(_nested(named))), own):
        tensors = inner
    if not tensors:
        has = ", ".join(repr(key[:60]) for key in list(named)[:3]) or f"a {type(held).__name__}"
        raise ErfscopeError(f"checkpoint {str(file)!r} holds no weights: it has {has}; {_WANTED}")
    return tensors, entry


def _claims_more(file: Path) -> bool:
    """Whether an archive says that it holds more than its own size: torch.save packs nothing."""
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(member.file_size for member in archive.infolist()) > file.stat().st_size
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def _nested(entries: Mapping[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in mappings inside each other and in modules, with all names on the way to them."""
    for name, held in entries.items():
        inner = held.state_dict() if isinstance(held, nn.Module) else held
        if isinstance(inner, Tensor):
            yield str(name), inner
        elif isinstance(inner, Mapping):
            yield from ((f"{name}.{key}", tensor) for key, tensor in _nested(inner))


def _cleaned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without what DDP and the compiler put before names, or into them."""
    from timm.models import clean_state_dict

    cleaned: Mapping[str, Tensor] = clean_state_dict(dict(state))
    return {key.replace("_orig_mod.", ""): value for key, value in cleaned.items()}


#: What stands before the keys of a file and not of a model, and the other way round.
Prefixes = tuple[str, str]


def _hits(state: Mapping[str, Tensor], own: Mapping[str, Tensor], *, of_any_shape: bool = False) -> Counter[Prefixes]:
    """How many tensors fit by name and shape under each pair of prefixes, or by name alone."""
    shared = [head for head in _heads(next(iter(own), "")) if all(key.startswith(head) for key in own)]
    return Counter(
        (head, inside)
        for key, value in state.items()
        for head in _heads(key)
        for inside in shared
        if (mine := own.get(inside + key[len(head) :])) is not None
        and (of_any_shape or mine.shape == value.shape)
        and _counts(key)
    )


def _heads(key: str) -> list[str]:
    """The beginnings of a dotted name: "", "model.", "model.backbone."."""
    return ["", *(key[: place + 1] for place, letter in enumerate(key) if letter == ".")]


def _prefix(state: Mapping[str, Tensor], own: Mapping[str, Tensor], file: Path) -> Prefixes:
    """The prefixes under which most tensors fit: what stands beside them in the file is another part of a training.

    Of equally many copies of a model that are not alike, the averaged one (EMA) counts, as of entries.

    Raises:
        ErfscopeError: there are several, and not one of them is averaged.
    """
    # Of a model that was built with other sizes, it may be that nothing fits by shape.
    hits, count = _hits(state, own), sum(map(_counts, own))
    if not hits:
        named = _hits(state, own, of_any_shape=True)
        hits = Counter({pair: number for pair, number in named.items() if 2 * number > count})
    if not hits:
        return "", ""
    most = hits.most_common(1)[0][1]
    probe = next(key for key in own if _counts(key))
    found = {head + probe.removeprefix(inside): (head, inside) for (head, inside), n in hits.items() if n == most}
    copies = list[Prefixes]()
    for pair in sorted(found.values(), key=lambda pair: (len(pair[0]), len(pair[1]))):
        if not any(_is_same(state, own, pair, other) for other in copies):
            copies.append(pair)
    averaged = [pair for pair in copies if _is_averaged(pair[0])]
    if len(copies) > 1 and len(averaged) != 1 and 2 * most > count:
        names = " and ".join(f"{head}*" if head else "no prefix" for head, _ in copies)
        raise ErfscopeError(
            f"checkpoint {str(file)!r} holds the model {len(copies)} times, under {names}; save the one that is meant:"
            f" torch.save({{k.removeprefix(P): v for k, v in state.items() if k.startswith(P)}}, FILE), with P ="
            f" {copies[0][0]!r} or {copies[1][0]!r}"
        )
    return (averaged or copies)[0]


def _is_same(state: Mapping[str, Tensor], own: Mapping[str, Tensor], pair: Prefixes, other: Prefixes) -> bool:
    """Whether the same numbers stand under two pairs of prefixes, as of one module that has two names."""
    one, two = ([state.get(head + key.removeprefix(inside)) for key in own] for head, inside in (pair, other))
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in zip(one, two, strict=True))


def _is_averaged(prefix: str) -> bool:
    return not {"ema", "averaged", "swa"}.isdisjoint(re.split(r"[._]", prefix))


def _misfit(
    module: nn.Module,
    own: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    fitting: Mapping[str, Tensor],
    needed: Callable[[str], bool],
) -> str:
    """Describe where a checkpoint and the needed part of a model disagree, and what to do; "" where they agree."""
    if not fitting:  # name every key
        needed = bool
    # A tensor that two names share is often saved under one of them.
    supplied = {own[key].data_ptr() for key in state if key in own}
    missing = [key for key in own if key not in state and own[key].data_ptr() not in supplied and _counts(key)]
    misshaped = [key for key in own if key in state and key not in fitting]
    misfits = {
        "missing": [key for key in missing if needed(key)],
        "extra": [
            key
            for key in state
            if key not in own and _counts(key) and (not fitting or _affects_layer(module, key, own, needed))
        ],
        "mis-shaped": [f"{k} {tuple(state[k].shape)} for {tuple(own[k].shape)}" for k in misshaped if needed(k)],
    }
    fix = (
        "build the model as it was trained (--model-kwargs, --input-size), or choose a --layer that needs none of these"
    )
    if not any(key in own for key in state):
        fix = "no key matches: it is another model's, or its keys need renaming"
    found = "; ".join(f"{kind}: {listed_up_to(3, keys)}" for kind, keys in misfits.items() if keys)
    return f"{found}; {fix}" if found else ""


def _counts(key: str) -> bool:
    return not key.endswith(_COUNTER)


def _affects_layer(module: nn.Module, key: str, own: Iterable[str], needed: Callable[[str], bool]) -> bool:
    """Whether an extra key would belong to a needed part: a further parameter of one of its modules, or a further block
    of its sequence."""
    path, owner = "", module
    *names, leaf = key.split(".")
    for name in names:
        if name not in owner._modules:
            is_sequence = isinstance(owner, nn.Sequential | nn.ModuleList | nn.ModuleDict)
            return is_sequence and any(needed(each) for each in own if each.startswith(path))
        path, owner = f"{path}{name}.", owner.get_submodule(name)
    # Not a buffer that the model works out by itself, such as Swin's relative_position_index in old files.
    is_new = not isinstance(getattr(owner, leaf, None), Tensor)
    return is_new and any(needed(each) for each in own if each.rpartition(".")[0] == path.removesuffix("."))


def needed_keys(adapter: ModuleAdapter, layer: str) -> set[str]:
    """Find the keys of the state dict that ``layer`` depends on in the recorded pass; all keys where there is none.

    Raises:
        ErfscopeError: unknown layer.
        MeasurementError: the model fails on an input of its size.
    """
    recording, state = adapter.recording, adapter.module.state_dict(keep_vars=True)
    seen = recording.find(layer)
    if seen is None:
        raise unknown("layer", layer, adapter.layer_names, where=adapter.spec)
    if not recording.graph.held:
        return set(state)
    reached, stack = set[fx.Node](), [seen.node]
    while stack:
        node = stack.pop()
        if node not in reached:
            reached.add(node)
            stack.extend(node.all_input_nodes)
    held, tensors = recording.graph.held, adapter.tensors()
    used = {id(tensors[held[node]]) for node in reached if node in held}
    return {name for name, tensor in state.items() if id(tensor) in used}

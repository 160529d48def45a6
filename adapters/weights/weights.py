"""Give a model its numbers: all pretrained, from the cache or the network, or all random, from a seed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlparse

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from erfscope.adapters.libraries import silence_libraries
from erfscope.adapters.timm_internals import hub_from_cache
from erfscope.adapters.weights.reactivate import reactivate
from erfscope.core.system.environment import available_bytes
from erfscope.core.system.model_errors import first_line
from erfscope.core.system.restore import seed_generators
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.model_facts import Source, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Where the pretrained weights of one model lie."""

    #: Name of the model in messages.
    name: str
    #: Hub name, URL or file; None where no pretrained weights exist.
    origin: str | None
    #: URL of the host that serves them; None where they are on this disk.
    host: str | None = None
    #: Whether they seem to be in the local cache.
    cached: bool = False
    #: Where they are read from: a folder of the hub's cache or a file of ``torch.hub``'s; None where no host serves
    #: them.
    place: Path | None = None
    #: The command that fetches them into the cache of a machine with a network; "" where no host serves them.
    fetch: str = ""


def url_store(name: str, url: str | None, *, fetch: str) -> Store:
    """Store of weights that are named by a URL, as torchvision's are; cached where ``torch.hub`` puts them."""
    if not url:
        return Store(name=name, origin=None)
    parts = urlparse(url)
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(parts.path).name
    host = f"{parts.scheme}://{parts.netloc}"
    return Store(name=name, origin=url, host=host, cached=file.is_file(), place=file, fetch=fetch)


def hub_store(name: str, repo: str, file: str | None = None, *, fetch: str | None = None) -> Store:
    """Store of weights on the Hugging Face hub, cached in its own cache.

    Args:
        name: Name of the model in messages.
        repo: ``owner/name``, with ``@revision`` or without.
        file: Name of the weights' file; None for timm's default names.
        fetch: The command that fetches them; None for the hub's own.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.file_download import repo_folder_name

    repo_id, _, revision = repo.partition("@")
    names = [file, f"{Path(file).stem}.safetensors"] if file else ["model.safetensors", "pytorch_model.bin"]
    cached = any(isinstance(try_to_load_from_cache(repo_id, each, revision=revision or None), str) for each in names)
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type="model")
    fetch = fetch or f"hf download {repo_id}" + (f" --revision {revision}" if revision else "")
    return Store(name=name, origin=repo, host=constants.ENDPOINT, cached=cached, place=folder, fetch=fetch)


def ways(store: Store) -> str:
    """Say in few words what to do about weights that cannot be fetched."""
    target = store.place
    if target is None:
        return "use --weights random" + (" or --checkpoint FILE" if store.origin is None else "")
    other = f"put {target.name} into {target.parent}, or use --checkpoint FILE, local-dir:PATH or --weights random"
    return f"connect to {store.host}, {other}{hint(store.name)}"


def hint(model: str) -> str:
    """Name the command that says how to fetch a model's weights on another machine."""
    return f" (erfscope doctor --fix-hint {model} says how)"


def remedy(store: Store) -> str:
    """Say in one line how to fetch weights on another machine and bring them here."""
    target = store.place
    if target is None:
        return f"no pretrained weights exist for {store.name}; use --checkpoint FILE, or --weights random"
    is_url = "://" in str(store.origin)
    where, variable = (store.origin, "TORCH_HOME") if is_url else (f"{store.host}/{store.origin}", "HF_HUB_CACHE")
    saved = "local-dir:PATH, a folder that timm.models.save_for_hf(model, PATH, safe_serialization=True) wrote"
    here = f"copy {target.name} from its cache into {target.parent}, which {variable} moves"
    return (
        f"on a machine with a network run {store.fetch} (it fetches {where}), and {here}; or --checkpoint FILE; or"
        f" {saved}"
    )


POLICIES = ("auto", "pretrained", "random", "random-raw")
#: Not for users: shapes without numbers, for questions that need none.
NO_NUMBERS: Literal["none"] = "none"
#: Most modules of a model that is built from a file: ten times those of the deepest model of timm.
MOST_MODULES = 30_000
#: Whether a host answers is decided within this time, name resolution included.
ANSWER_LIMIT_S = 3.0
#: A host that did not answer is not asked again for this long: a comparison of twenty models waits once.
SILENCE_KEPT_S = 60.0

_SILENT: dict[str, float] = {}
_Loaded = TypeVar("_Loaded")


def obtain(make: Callable[[bool], nn.Module], store: Store, *, policy: str, seed: int) -> tuple[nn.Module, Weights]:
    """Build a model with the weights that the policy wants.

    Args:
        make: ``make(pretrained)`` builds the model, through timm's or torchvision's own loading code.
        store: Where its pretrained weights are.
        policy: ``"auto"`` (pretrained if cached or fetchable, else random and ``fallback``), ``"pretrained"`` (or an
            error), ``"random"`` (re-activated; never touches the network) or ``"random-raw"`` (as the model's authors
            initialise it): :data:`POLICIES`; or :data:`NO_NUMBERS`.
        seed: Seed of random weights. The caller's random state is left as it was.

    Returns:
        The model, and where its numbers come from.

    Raises:
        ErfscopeError: pretrained weights that cannot be had.
    """
    if policy == NO_NUMBERS:
        return _empty(make, seed)
    if policy in ("random", "random-raw"):
        return _random(make, policy, seed)
    module, reason = _pretrained(make, store)
    if module is not None:
        return module, Weights(source="pretrained", sha256=sha256(module), origin=store.origin)
    if policy == "pretrained":
        text = f"pretrained weights of {store.name} were asked for and cannot be had: {reason}"
        raise ErfscopeError(f"{text}; {ways(store)}")
    return _random(make, "random", seed, reason)


def check_room(make: Callable[[bool], nn.Module], fix: str) -> None:
    """Check that a model fits into memory before it is built: a small file may ask for any, and tables may be as large
    as the model's input.

    Args:
        make: As for :func:`obtain`.
        fix: What to do about one that does not.

    Raises:
        ErfscopeError: it has more than :data:`MOST_MODULES`, or its weights alone take more than the free memory.
    """
    try:
        with torch.device("meta"), seed_generators(0), no_network(), silence_libraries(), _few_modules(fix):
            module = make(False)
    except ErfscopeError:
        raise
    except Exception:  # a model that cannot be built without numbers may have any size
        return
    needed, there = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers())), available_bytes()
    if there is not None and needed > there:
        text = f"its weights take {needed / 2**30:,.0f} GiB of memory, and there are {there / 2**30:.3g} GiB"
        raise ErfscopeError(f"{type(module).__name__} is too large: {text}; {fix}")


@contextlib.contextmanager
def _few_modules(fix: str) -> Iterator[None]:
    counted = itertools.count(1)

    def count(_module: nn.Module, _name: str, _part: nn.Module | None) -> None:
        if next(counted) > MOST_MODULES:
            raise ErfscopeError(f"the model has more than {MOST_MODULES:,} modules; {fix}")

    handle = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def sha256(module: nn.Module) -> str | None:
    """Hash of a model's parameters and buffers, as 64 hexadecimal digits; None where any of them has no plain numbers:
    on the meta device, lazy, quantised, sparse, or of a class of its own.

    Names, dtypes, shapes and bytes in the order of the names, so that two models agree exactly if their ``state_dict``s
    do. 0.25 s for 100 million float32 parameters."""
    digest = hashlib.sha256()
    state = module.state_dict()
    tensors = [each for each in state.values() if isinstance(each, torch.Tensor)]
    if not all(type(each) in (torch.Tensor, nn.Parameter) and _has_bytes(each) for each in tensors):
        return None
    for name, tensor in sorted(state.items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            # A copy: memory that NumPy has seen cannot be resized any more.
            plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).clone()
            digest.update(plain.numpy().data)
    return digest.hexdigest()


def _has_bytes(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and not tensor.is_quantized and tensor.layout == torch.strided


def on_hub(name: str, policy: str, load: Callable[[bool], _Loaded]) -> _Loaded:
    """Load a configuration of the hub from the cache, else from the network unless the policy forbids it.

    Args:
        name: Name of the model in messages.
        policy: As for :func:`obtain`.
        load: ``load(local)`` reads it, from the cache alone where ``local``.

    Raises:
        ErfscopeError: it is not in the cache, and the policy forbids the network or the hub does not answer.
    """
    with silence_libraries():
        try:
            with no_network():
                return load(True)
        except Exception as error:
            if not is_fetch_failure(error):
                raise
            from huggingface_hub import constants

            barred = (
                f"--weights {policy} never touches the network"
                if policy.startswith("random")
                else unreachable_reason(constants.ENDPOINT)
            )
            if barred:
                text = f"the configuration of {name} is not in the local cache, and {barred}"
                raise ErfscopeError(f"{text}; the cache is {constants.HF_HUB_CACHE}{hint(name)}") from error
        return load(False)


def is_offline() -> bool:
    """Whether the Hugging Face hub is not to be asked, by the environment or by the process."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE) or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def unreachable_reason(host: str) -> str | None:
    """Say why a host cannot serve weights; None if it answers.

    The client that would download asks, so that proxies and certificates count the same way.

    Args:
        host: URL. The Hugging Face hub's endpoint may have a path.
    """
    from huggingface_hub import constants

    is_hub = host == constants.ENDPOINT
    if is_hub and is_offline():
        return "HF_HUB_OFFLINE is set"
    reason = "hub unreachable" if is_hub else f"{urlparse(host).netloc} unreachable"
    if time.monotonic() - _SILENT.get(host, -SILENCE_KEPT_S) < SILENCE_KEPT_S:
        return reason
    replies: list[bool] = []
    # A thread, because no timeout covers a silent name server; a daemon, because it may outlive this function.
    question = threading.Thread(target=lambda: replies.append(_replies(host, is_hub)), daemon=True)
    question.start()
    question.join(ANSWER_LIMIT_S)
    if any(replies):
        return None
    _SILENT[host] = time.monotonic()
    return reason


@contextlib.contextmanager
def no_network() -> Iterator[None]:
    """Inside the block files of the Hugging Face hub come from the local cache or not at all, timm's among them.

    Two switches, because neither is enough: without ``local_files_only`` older hub clients keep a session that does not
    know it is offline, and without the offline constant newer ones fetch a list of user agents before they look into
    the cache."""
    if "huggingface_hub" not in sys.modules:  # as for torchvision's models
        yield
        return
    from huggingface_hub import constants

    offline, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        with hub_from_cache():
            yield
    finally:
        constants.HF_HUB_OFFLINE = offline


def is_fetch_failure(error: Exception) -> bool:
    """Whether a file is not available: no connection, not in the cache, no such file on the server, or a damaged
    download."""
    clients = ("httpx", "requests", "urllib3", "huggingface_hub")
    return (
        isinstance(error, OSError) or type(error).__module__.startswith(clients) or "invalid hash value" in str(error)
    )


def _random(
    make: Callable[[bool], nn.Module], policy: str, seed: int, reason: str | None = None
) -> tuple[nn.Module, Weights]:
    with seed_generators(seed), no_network(), silence_libraries():
        module = make(False)
    count = reactivate(module) if policy == "random" else 0
    source: Source = "random" if policy == "random" else "random-raw"
    weights = Weights(
        source=source, sha256=sha256(module), seed=seed, reactivated=count, fallback=reason is not None, reason=reason
    )
    return module, weights


def _empty(make: Callable[[bool], nn.Module], seed: int) -> tuple[nn.Module, Weights]:
    """The model on the meta device; with random numbers where it cannot be built there."""
    try:
        with torch.device("meta"), seed_generators(seed), no_network(), silence_libraries():
            return make(False), Weights(source=NO_NUMBERS)
    except Exception:  # a model that computes with its own numbers while it is built fails in any way
        return _random(make, "random-raw", seed)


def _pretrained(make: Callable[[bool], nn.Module], store: Store) -> tuple[nn.Module | None, str]:
    """Build the model with its pretrained weights, or say why they are not available."""
    if store.origin is None:
        return None, f"no pretrained weights exist for {store.name}"
    if store.cached or store.host is None:
        # The cache comes first: its weights need no network, and are the same from one day to the next.
        with no_network():
            module, reason = _try(make)
        if module is not None or store.host is None:
            return module, reason
    unreachable = unreachable_reason(store.host)
    # A host that answers may then take any time.
    return _try(make) if unreachable is None else (None, unreachable)


def _try(make: Callable[[bool], nn.Module]) -> tuple[nn.Module | None, str]:
    try:
        # Seeded, so that parts that the checkpoint lacks, such as a new head, are the same on every run.
        with silence_libraries(), seed_generators(0):
            return make(True), ""
    except Exception as error:
        if is_fetch_failure(error):
            return None, f"they could not be fetched: {first_line(error)}"
        raise


def _replies(host: str, is_hub: bool) -> bool:
    """Whether a host, and not only its gateway, replies to a request."""
    try:
        if is_hub:
            from huggingface_hub import get_session

            return int(get_session().head(host, timeout=ANSWER_LIMIT_S).status_code) < 500
        with urllib.request.urlopen(urllib.request.Request(host, method="HEAD"), timeout=ANSWER_LIMIT_S):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except Exception:
        return False

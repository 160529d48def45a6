"""Where the pretrained weights of a model lie, and how to bring them to a machine without a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import torch


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

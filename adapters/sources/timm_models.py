"""Models of timm: by name, in hub repositories and in folders that timm wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from erfscope.adapters.libraries import import_library, silence_libraries
from erfscope.adapters.preprocess import input_config
from erfscope.adapters.sources.source import Source, SourceOptions, refuse_deep
from erfscope.adapters.timm_internals import load_config_of_folder
from erfscope.adapters.weights.weights import Store, check_room, hub_store, obtain, on_hub, url_store
from erfscope.core.system.model_errors import errors_as_one_line
from erfscope.core.values.errors import ErfscopeError, unknown


def build(spec: str, options: SourceOptions) -> Source:
    """Build a model of timm's registry, of the hub, or of a folder that timm wrote.

    Raises:
        ErfscopeError: no such model or tag, weights that cannot be had, or options that the model does not take.
    """
    timm = import_library("timm")
    cfg, place = _configuration(spec, options.weights)
    kwargs = dict(options.model_kwargs)
    if options.in_chans is not None:
        kwargs["in_chans"] = options.in_chans
    if options.input_size is not None and cfg.get("fixed_input_size") and not _is_flexible(kwargs):
        kwargs.setdefault("img_size", input_config(cfg, size=options.input_size).size)

    def make(pretrained: bool) -> nn.Module:
        module: nn.Module = timm.create_model(spec, pretrained=pretrained, **kwargs)
        return module

    with errors_as_one_line(f"timm could not build {spec!r}", kwargs):
        # A name has the size that timm gives it.
        if "img_size" in kwargs or ":" in spec:
            check_room(make, "use a smaller --input-size" if "img_size" in kwargs else "correct its config.json")
        module, weights = obtain(make, place, policy=options.weights, seed=options.seed)
    config = options.input_config(module, spec)
    return Source(module=module, spec=spec, weights=weights, config=config)


def store(spec: str) -> Store | None:
    """Where the pretrained weights of a name or of a hub repository lie; None for a folder, which holds them.

    Raises:
        ErfscopeError: no such model.
    """
    scheme, _, name = spec.partition(":")
    if scheme.lower() == "local-dir" and name:
        return None
    return hub_store(spec, name) if name else _configuration(spec, "auto")[1]


def _is_flexible(kwargs: Mapping[str, object]) -> bool:
    """Whether options free a model of its fixed size, as ``resolve_model_input_args`` of timm has it."""
    return bool(kwargs.get("dynamic_img_size") or kwargs.get("use_naflex") or not kwargs.get("strict_img_size", True))


def _configuration(spec: str, policy: str) -> tuple[dict[str, Any], Store]:
    """A model's pretrained configuration, and where its weights lie."""
    from timm.models import load_model_config_from_hf

    scheme, _, place = spec.partition(":")
    if scheme == "local-dir":
        with errors_as_one_line(f"{spec!r} holds no model that timm saved"):
            cfg, arguments = load_config_of_folder(place)
        refuse_deep(arguments, spec)
        return cfg, Store(name=spec, origin=place, cached=True)
    if place:
        with errors_as_one_line(f"the configuration of {spec!r} cannot be had"):
            found: Any = on_hub(f"hf-hub:{place}", policy, lambda _local: load_model_config_from_hf(place))
        refuse_deep(found[2] or {}, spec)
        cfg = dict(found[0])
        return cfg, hub_store(spec, place, cfg.get("hf_hub_filename"))
    cfg = _registered(spec)
    hub_id, url, file = cfg.get("hf_hub_id"), cfg.get("url"), cfg.get("file")
    if file or cfg.get("state_dict"):
        return cfg, Store(name=spec, origin=str(file or "state_dict"), cached=True)
    fetch = f"python -c \"import timm; timm.create_model('{spec}', pretrained=True)\""
    if hub_id:
        return cfg, hub_store(spec, hub_id, cfg.get("hf_hub_filename"), fetch=fetch)
    return cfg, url_store(spec, url, fetch=fetch)


def _registered(spec: str) -> dict[str, Any]:
    """The configuration of a name in timm's registry."""
    timm = import_library("timm")
    name, _, tag = spec.partition(".")
    if "/" in spec or "\\" in spec:
        raise ErfscopeError(
            f"{spec!r} looks like a path or a hub name, and no file or folder, such as a stored result, is there;"
            f" write local-dir:{spec}, hf-hub:{spec} or {spec}:function"
        )
    if not timm.is_model(name):
        import torchvision.models

        known = [*timm.list_models(), *(f"torchvision:{each}" for each in torchvision.models.list_models())]
        if f"torchvision:{name}" in known:
            raise ErfscopeError(f"unknown model {spec!r} in timm; torchvision has it: torchvision:{name}")
        if spec.endswith(".py"):
            raise ErfscopeError(
                f"unknown model {spec!r}: name the function in that file which builds the model; write {spec}:function"
            )
        if Path(spec).is_dir():
            raise ErfscopeError(
                f"unknown model {spec!r}: the folder of that name holds no report.json; write local-dir:{spec} for a"
                " model"
            )
        raise unknown("model", spec, known, limit=3)
    with silence_libraries():
        if tag and tag not in (tags := [key.partition(".")[2] for key in timm.models.get_arch_pretrained_cfgs(name)]):
            raise unknown("pretrained tag", tag, [each for each in tags if each], where=name)
        cfg = timm.get_pretrained_cfg(spec)
    return cfg.to_dict() if cfg else {}

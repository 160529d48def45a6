"""From a spec string to an ``nn.Module`` with known weights."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from erfscope.adapter import Weights
from erfscope.adapters.libraries import import_library, silence_libraries
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.preprocess import InputConfig, input_config, module_config
from erfscope.adapters.sources.exported import open_program
from erfscope.adapters.sources.factory import run
from erfscope.adapters.sources.source import Source, SourceOptions
from erfscope.adapters.sources.torchvision_models import torchvision_model, torchvision_store
from erfscope.adapters.sources.transformers_models import backbone
from erfscope.adapters.weights.store import Store, hub_store, url_store
from erfscope.adapters.weights.weights import NO_NUMBERS, POLICIES, check_room, obtain, on_hub, sha256
from erfscope.errors import ErfscopeError, refuse_broken_link, unknown
from erfscope.model_errors import errors_as_one_line

#: Formats of other runtimes. What is in them can be run, but not differentiated.
_NO_GRADIENTS = {
    ".onnx",
    ".ort",
    ".tflite",
    ".engine",
    ".trt",
    ".plan",
    ".h5",
    ".hdf5",
    ".keras",
    ".mlmodel",
    ".mlpackage",
    ".pb",
}
_CHECKPOINTS = {".pth", ".pt", ".safetensors", ".bin", ".ckpt", ".tar", ".npz"}
#: Of a file or folder, in bytes, and of a path: the limits of Linux and macOS.
LONGEST_NAME, LONGEST_PATH = 255, 4095
_INSTEAD = (
    "pass the module from Python, or name a function that builds it: package.module:factory or path/file.py:factory"
)


def build(spec: str, **options: Any) -> Source:
    """Build the model that a spec names.

    Args:
        spec: ``resnet18``, ``resnet18.a1_in1k``, ``hf-hub:owner/name``, ``local-dir:path``, ``torchvision:resnet50``,
            ``transformers:owner/name``, ``path/model.pt2``, ``package.module:factory`` or ``path/file.py:factory``,
            with ``LABEL=`` before it or without.
        **options: The fields of :class:`SourceOptions`.

    Returns:
        The model, its weights' origin and what it expects of an image.

    Raises:
        ErfscopeError: no such model, weights that cannot be had, options the model does not take, or a factory that
            fails.
    """
    asked = SourceOptions(**options)
    if asked.weights not in (*POLICIES, NO_NUMBERS):
        raise unknown("--weights", asked.weights, POLICIES)
    plain = split_label(spec)[1]
    _refuse(plain)
    return _kind(plain)(plain, asked)


def pretrained_store(spec: str) -> Store | None:
    """Where the pretrained weights of a spec are, without reading them; None for specs that have weights of their own.

    Raises:
        ErfscopeError: no such model.
    """
    plain = split_label(spec)[1]
    kind, (scheme, _, name) = _kind(plain), plain.partition(":")
    if kind is torchvision_model:
        return torchvision_store(plain)
    if kind is _timm and not name:
        return _timm_config(plain, "auto")[1]
    is_on_hub = kind in (_timm, backbone) and scheme.lower() != "local-dir" and not Path(name).is_dir()
    return hub_store(plain, name) if is_on_hub else None


def split_label(text: str) -> tuple[str | None, str]:
    """Take ``LABEL=SPEC`` apart.

    A label has no ``:``, ``/``, ``\\`` or ``.py`` in it, so that a path with an equals sign stays a path.

    Returns:
        The label, or None, and the spec.

    Raises:
        ErfscopeError: the text is longer than a file's name or path can be; asking the system for such a file fails.
    """
    if (
        any(len(part.encode(errors="replace")) > LONGEST_NAME for part in re.split(r"[/\\]", text))
        or len(text) > LONGEST_PATH
    ):
        raise ErfscopeError(
            f"{text[:40]!r}... has {len(text)} characters, which is more than a name can have; give a model's name"
        )
    label, equals, spec = text.partition("=")
    is_label = bool(equals and label.strip()) and not any(mark in label for mark in (":", "/", "\\", ".py"))
    if not is_label or Path(text.rpartition(":")[0] or text).exists():
        return None, text.strip()
    return label.strip(), spec.strip()


def import_timm() -> ModuleType:
    """The timm package.

    Raises:
        ErfscopeError: torch and torchvision do not belong together, which timm is the first to trip over.
    """
    return import_library("timm")


def _refuse(spec: str) -> None:
    """Say what to do instead where a spec cannot be a model."""
    if not spec:
        raise ErfscopeError("no model was named; give a timm name such as resnet18, or package.module:factory")
    suffix, path = Path(spec).suffix.lower(), Path(spec)
    for place in (spec, spec.rpartition(":")[0], spec.partition(":")[2]):
        refuse_broken_link(place)
    if suffix in _NO_GRADIENTS:
        raise ErfscopeError(f"{spec!r} has no gradients: {suffix} files can be run but not differentiated; {_INSTEAD}")
    if path.is_file():
        if suffix in _CHECKPOINTS:
            raise ErfscopeError(
                f"{spec!r} holds weights, not a model; name its architecture: erfscope analyze MODEL --checkpoint"
                f" {spec!r}"
            )
        if _is_image(path):
            raise ErfscopeError(
                f"{spec!r} is an image, not a model; quote patterns: erfscope analyze MODEL --image {spec!r}"
            )
        if suffix == ".py":
            raise ErfscopeError(
                f"{spec!r} is a Python file; name the function in it that builds the model: {spec}:NAME"
            )
    if path.is_dir() and ("/" in spec or (path / "config.json").is_file()):
        raise ErfscopeError(
            f"{spec!r} is a directory; a model that timm saved in it is local-dir:{spec}, images are --image {spec!r}"
        )


def _is_image(path: Path) -> bool:
    from PIL import Image

    return Image.registered_extensions().get(path.suffix.lower()) is not None


def names_code(spec: str) -> bool:
    """Whether a spec names code that is to be run, and not what known libraries make of what they read."""
    return _kind(spec) is _factory


def _kind(spec: str) -> Callable[[str, SourceOptions], Source]:
    """What builds the model of a spec."""
    scheme = spec.partition(":")[0].lower()
    if scheme == "torchvision":
        return torchvision_model
    if scheme == "transformers":
        return backbone
    if Path(spec).suffix.lower() == ".pt2":
        return _exported
    if scheme in ("hf-hub", "hf_hub", "local-dir") or ":" not in spec:
        return _timm
    return _factory


def _module_config(module: nn.Module, spec: str, asked: SourceOptions) -> InputConfig:
    size, channels = asked.input_size, asked.in_chans
    return module_config(module, spec, input_size=size, in_chans=channels, mean=asked.mean, std=asked.std)


# --- timm -----------------------------------------------------------------------------------------


def _timm(spec: str, options: SourceOptions) -> Source:
    timm = import_timm()
    cfg, store = _timm_config(spec, options.weights)
    kwargs = dict(options.model_kwargs)
    if options.in_chans is not None:
        kwargs["in_chans"] = options.in_chans
    if options.input_size is not None and cfg.get("fixed_input_size") and not _is_flexible(kwargs):
        kwargs.setdefault("img_size", input_config(cfg, size=options.input_size).size)

    def make(pretrained: bool) -> nn.Module:
        module: nn.Module = timm.create_model(spec, pretrained=pretrained, **kwargs)
        return module

    with errors_as_one_line(f"timm could not build {spec!r}", kwargs):
        if "img_size" in kwargs:
            check_room(make)
        module, weights = obtain(make, store, policy=options.weights, seed=options.seed)
    config = _module_config(module, spec, options)
    return Source(module=module, spec=spec, weights=weights, config=config)


def _is_flexible(kwargs: Mapping[str, object]) -> bool:
    """Whether options free a model of its fixed size, as ``resolve_model_input_args`` of timm has it."""
    return bool(kwargs.get("dynamic_img_size") or kwargs.get("use_naflex") or not kwargs.get("strict_img_size", True))


def _timm_config(spec: str, policy: str) -> tuple[dict[str, Any], Store]:
    """A model's pretrained configuration, and where its weights are."""
    from timm.models._hub import load_model_config_from_hf, load_model_config_from_path

    scheme, _, place = spec.partition(":")
    if scheme == "local-dir":
        with errors_as_one_line(f"{spec!r} holds no model that timm saved"):
            return load_model_config_from_path(place)[0], Store(name=spec, origin=place, cached=True)
    if place:
        with errors_as_one_line(f"the configuration of {spec!r} cannot be had"):
            cfg = on_hub(f"hf-hub:{place}", policy, lambda _local: dict(load_model_config_from_hf(place)[0]))
        return cfg, hub_store(spec, place, cfg.get("hf_hub_filename"))
    cfg = _registered(spec)
    hub_id, url, file = cfg.get("hf_hub_id"), cfg.get("url"), cfg.get("file")
    if file or cfg.get("state_dict"):
        return cfg, Store(name=spec, origin=str(file or "state_dict"), cached=True)
    return cfg, hub_store(spec, hub_id, cfg.get("hf_hub_filename")) if hub_id else url_store(spec, url)


def _registered(spec: str) -> dict[str, Any]:
    """Configuration of a name in timm's registry."""
    timm = import_timm()
    name, _, tag = spec.partition(".")
    if "/" in spec or "\\" in spec:
        raise ErfscopeError(
            f"{spec!r} looks like a path or a hub name; write local-dir:{spec}, hf-hub:{spec} or {spec}:factory"
        )
    if not timm.is_model(name):
        import torchvision.models

        known = [*timm.list_models(), *(f"torchvision:{each}" for each in torchvision.models.list_models())]
        if f"torchvision:{name}" in known:
            raise ErfscopeError(f"unknown model {spec!r} in timm; torchvision has it: torchvision:{name}")
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


# --- exported programs ----------------------------------------------------------------------------


def _exported(spec: str, options: SourceOptions) -> Source:
    if options.model_kwargs:
        raise ErfscopeError(
            f"is an exported program: it takes no options ({', '.join(options.model_kwargs)})", model=spec
        )
    module, (batch, *sides), weights = open_program(Path(spec), unsafe=options.unsafe_load)
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
    words = {"input_size": tuple(map(int, (channels, *size)))}
    config = input_config(words, mean=options.mean, std=options.std)
    made_by = functools.partial(ModuleAdapter, batch_size=batch if isinstance(batch, int) else None)
    return Source(module=module, spec=spec, weights=weights, config=config, adapter=made_by)


# --- functions, classes and modules by dotted name ------------------------------------------------


def _factory(spec: str, options: SourceOptions) -> Source:
    module = run(spec, seed=options.seed, kwargs=options.model_kwargs)
    config = _module_config(module, spec, options)
    origin = Weights(source="factory", sha256=sha256(module), seed=options.seed, origin=spec)
    return Source(module=module, spec=spec, weights=origin, config=config)

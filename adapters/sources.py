"""From a spec string to an ``nn.Module`` with known weights."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from erfscope.adapter import Weights
from erfscope.adapters.factory import run
from erfscope.adapters.foreign import first_line, one_line, quiet
from erfscope.adapters.preprocess import InputConfig, Numbers, input_config, module_config, torchvision_words
from erfscope.adapters.reactivate import dormant
from erfscope.adapters.weights import (
    NO_NUMBERS,
    POLICIES,
    Store,
    hub_store,
    is_fetch_failure,
    no_network,
    obtain,
    sha256,
    silence_of,
    url_store,
)
from erfscope.errors import ErfscopeError, unknown

#: Formats of other runtimes. What is in them can be run, but not differentiated.
_NO_GRADIENTS = {".onnx", ".ort", ".tflite", ".engine", ".trt", ".plan", ".h5", ".hdf5", ".keras", ".mlmodel", ".mlpackage", ".pb"}
_CHECKPOINTS = {".pth", ".pt", ".safetensors", ".bin", ".ckpt", ".tar", ".npz"}
_INSTEAD = "pass the module from Python, or name a function that builds it: package.module:factory or path/file.py:factory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model that a spec named."""

    module: nn.Module
    #: Without the label.
    spec: str
    #: What tables call it: the label, or the spec.
    label: str
    #: "timm", "torchvision" or "factory".
    kind: str
    weights: Weights
    config: InputConfig
    #: What a reader of the results has to know.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was asked of a model besides its name."""

    weights: str = "auto"
    seed: int = 0
    input_size: tuple[int, ...] | None = None
    in_chans: int | None = None
    mean: Numbers = None
    std: Numbers = None
    model_kwargs: Mapping[str, object]


def build(
    spec: str,
    *,
    weights: str = "auto",
    seed: int = 0,
    input_size: tuple[int, ...] | None = None,
    in_chans: int | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    model_kwargs: Mapping[str, object] | None = None,
) -> Source:
    """Build the model that a spec names.

    Args:
        spec: ``resnet18``, ``resnet18.a1_in1k``, ``hf-hub:owner/name``, ``local-dir:path``, ``torchvision:resnet50``,
            ``package.module:factory`` or ``path/file.py:factory``, with ``LABEL=`` before it or without.
        weights: ``"auto"``, ``"pretrained"``, ``"random"`` or ``"random-raw"``; a factory's weights are its own, whatever is asked.
        seed: Seed of random weights, and of the generators while a factory runs.
        input_size: Spatial size, one to three numbers; the model's own if None. Models of a fixed size are built for it.
        in_chans: Channels of the input; the model's own if None.
        mean: Mean of the normalisation, one number or one per channel; the model's own, else ImageNet's.
        std: Standard deviation, likewise.
        model_kwargs: Passed to whatever builds the model.

    Returns:
        The model, its weights' origin and what it expects of a picture.

    Raises:
        ErfscopeError: no such model, weights that cannot be had, options the model does not take, or a factory that fails.
    """
    if weights not in (*POLICIES, NO_NUMBERS):
        raise unknown("--weights", weights, POLICIES)
    label, plain = split_label(spec)
    wishes = Wishes(
        weights=weights, seed=seed, input_size=input_size, in_chans=in_chans, mean=mean, std=std, model_kwargs=model_kwargs or {}
    )
    _refuse(plain)
    kind, made_by = _kind(plain)
    module, origin, config, notes = made_by(plain, wishes)
    return Source(module=module, spec=plain, label=label or plain, kind=kind, weights=origin, config=config, notes=notes)


Made = tuple[nn.Module, Weights, InputConfig, tuple[str, ...]]


def split_label(text: str) -> tuple[str | None, str]:
    """Take ``LABEL=SPEC`` apart.

    A label has no ``:``, ``/``, ``\\`` or ``.py`` in it, so that a path with an equals sign stays a path.

    Returns:
        The label, or None, and the spec.
    """
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
    return _import("timm")


def _import(name: str) -> ModuleType:
    try:
        with quiet():
            return importlib.import_module(name)
    except (RuntimeError, ImportError, OSError, AttributeError) as error:
        text = str(error)
        if "torchvision" in text or "undefined symbol" in text:
            fix = "install both from one index: pip install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cpu"
            raise ErfscopeError(f"torch and torchvision do not belong together ({first_line(error)}); {fix} (or .../whl/cu126)") from error
        raise ErfscopeError(f"{name} cannot be imported: {first_line(error)}") from error


def _refuse(spec: str) -> None:
    """Say what to do instead where a spec cannot be a model."""
    if not spec:
        raise ErfscopeError("no model was named; give a timm name such as resnet18, or package.module:factory")
    suffix, path = Path(spec).suffix.lower(), Path(spec)
    if suffix in _NO_GRADIENTS:
        raise ErfscopeError(f"{spec!r} has no gradients: {suffix} files can be run but not differentiated; {_INSTEAD}")
    if suffix == ".pt2":
        raise ErfscopeError(f"{spec!r} is an exported program, which this version does not load; {_INSTEAD}")
    if spec.startswith("transformers:"):
        raise ErfscopeError(f"{spec!r}: this version does not load transformers models by name; {_INSTEAD}")
    if path.is_file():
        if suffix in _CHECKPOINTS:
            raise ErfscopeError(f"{spec!r} holds weights, not a model; name its architecture: erfscope analyze MODEL --checkpoint {spec!r}")
        if _is_image(path):
            raise ErfscopeError(f"{spec!r} is an image, not a model; quote patterns: erfscope analyze MODEL --image {spec!r}")
        if suffix == ".py":
            raise ErfscopeError(f"{spec!r} is a Python file; name the function in it that builds the model: {spec}:NAME")
    if path.is_dir() and ("/" in spec or (path / "config.json").is_file()):
        raise ErfscopeError(f"{spec!r} is a directory; a model that timm saved in it is local-dir:{spec}, pictures are --image {spec!r}")


def _is_image(path: Path) -> bool:
    from PIL import Image

    return Image.registered_extensions().get(path.suffix.lower()) is not None


def _kind(spec: str) -> tuple[str, Callable[[str, Wishes], Made]]:
    scheme = spec.partition(":")[0].lower()
    if scheme == "torchvision":
        return "torchvision", _torchvision
    if scheme in ("hf-hub", "hf_hub", "local-dir") or ":" not in spec:
        return "timm", _timm
    return "factory", _factory


# --- timm -----------------------------------------------------------------------------------------------------------------------------


def _timm(spec: str, wishes: Wishes) -> Made:
    timm = import_timm()
    cfg, store = _timm_config(spec, wishes.weights)
    kwargs = dict(wishes.model_kwargs)
    if wishes.in_chans is not None:
        kwargs["in_chans"] = wishes.in_chans
    if wishes.input_size is not None and cfg.get("fixed_input_size") and not _is_flexible(kwargs):
        kwargs.setdefault("img_size", input_config(cfg, size=wishes.input_size).size)
    with one_line(f"timm could not build {spec!r}", kwargs):
        module, weights = obtain(
            lambda pretrained: timm.create_model(spec, pretrained=pretrained, **kwargs), store, policy=wishes.weights, seed=wishes.seed
        )
    config = module_config(module, input_size=wishes.input_size, in_chans=wishes.in_chans, mean=wishes.mean, std=wishes.std)
    return module, weights, config, ()


def _is_flexible(kwargs: Mapping[str, object]) -> bool:
    """Whether options free a model of its fixed size, as ``resolve_model_input_args`` of timm has it."""
    return bool(kwargs.get("dynamic_img_size") or kwargs.get("use_naflex") or not kwargs.get("strict_img_size", True))


def _timm_config(spec: str, policy: str) -> tuple[dict[str, Any], Store]:
    """A model's pretrained configuration, and where its weights are."""
    from timm.models._hub import load_model_config_from_hf, load_model_config_from_path

    scheme, _, place = spec.partition(":")
    if scheme == "local-dir":
        with one_line(f"{spec!r} holds no model that timm saved"):
            return load_model_config_from_path(place)[0], Store(name=spec, origin=place, cached=True)
    if place:
        with one_line(f"the configuration of {spec!r} cannot be had"):
            cfg = _from_hub(place, policy, load_model_config_from_hf)
        return cfg, hub_store(spec, place, cfg.get("hf_hub_filename"))
    cfg = _registered(spec)
    hub_id, url, file = cfg.get("hf_hub_id"), cfg.get("url"), cfg.get("file")
    if file or cfg.get("state_dict"):
        return cfg, Store(name=spec, origin=str(file or "state_dict"), cached=True)
    return cfg, hub_store(spec, hub_id, cfg.get("hf_hub_filename")) if hub_id else url_store(spec, url)


def _from_hub(repo: str, policy: str, load: Callable[[str], tuple[dict[str, Any], str, dict[str, Any]]]) -> dict[str, Any]:
    """``config.json`` of a model on the hub: from the cache, else from the net unless the policy forbids it."""
    with quiet():
        try:
            with no_network():
                return load(repo)[0]
        except Exception as error:
            if not is_fetch_failure(error):
                raise
            from huggingface_hub import constants

            barred = f"--weights {policy} never touches the network" if policy.startswith("random") else silence_of(constants.ENDPOINT)
            if barred:
                raise ErfscopeError(f"the configuration of hf-hub:{repo} is not in the local cache, and {barred}") from error
        return load(repo)[0]


def _registered(spec: str) -> dict[str, Any]:
    """Configuration of a name in timm's registry."""
    timm = import_timm()
    name, _, tag = spec.partition(".")
    if "/" in spec or "\\" in spec:
        raise ErfscopeError(f"{spec!r} looks like a path or a hub name; write local-dir:{spec}, hf-hub:{spec} or {spec}:factory")
    if not timm.is_model(name):
        import torchvision.models

        known = [*timm.list_models(), *(f"torchvision:{each}" for each in torchvision.models.list_models())]
        if f"torchvision:{name}" in known:
            raise ErfscopeError(f"unknown model {spec!r} in timm; torchvision has it: torchvision:{name}")
        if Path(spec).is_dir():
            raise ErfscopeError(f"unknown model {spec!r}: the folder of that name holds no report.json; write local-dir:{spec} for a model")
        raise unknown("model", spec, known, limit=3)
    with quiet():
        if tag and tag not in (tags := [key.partition(".")[2] for key in timm.models.get_arch_pretrained_cfgs(name)]):
            raise unknown("pretrained tag", tag, [each for each in tags if each], where=name)
        cfg = timm.get_pretrained_cfg(spec)
    return cfg.to_dict() if cfg else {}


# --- torchvision ----------------------------------------------------------------------------------------------------------------------


def _torchvision(spec: str, wishes: Wishes) -> Made:
    models = _import("torchvision.models")
    name = spec.partition(":")[2].lower()
    if name not in models.list_models():
        raise unknown("torchvision model", name, models.list_models(), limit=3)
    if wishes.in_chans not in (None, 3):
        raise ErfscopeError(f"{spec} takes 3 input channels, not {wishes.in_chans}; timm's models take --in-chans")
    choices = list(models.get_model_weights(name))
    best = models.get_model_weights(name).DEFAULT if choices else None
    is_video = models.get_model_builder(name).__module__.startswith("torchvision.models.video")
    words = torchvision_words(best.transforms() if best else None, frames=_frames(best) if is_video else None)
    kwargs, sized = dict(wishes.model_kwargs), name.startswith(("vit_", "mvit_"))
    config = input_config(words, size=wishes.input_size, mean=wishes.mean, std=wishes.std, fixed=sized)
    if sized and wishes.input_size is not None:
        kwargs |= _sized(name, config.size)
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        kwargs.setdefault("weights_backbone", None)  # else torchvision fetches a backbone for a model that is to be random

    def make(pretrained: bool) -> nn.Module:
        module: nn.Module = models.get_model(name, weights=best if pretrained else None, **kwargs)
        return module

    with one_line(f"torchvision could not build {name!r}", kwargs):
        store = url_store(spec, best.url if best else None)
        module, weights = obtain(make, store, policy=wishes.weights, seed=wishes.seed)
    return module, weights, config, ()


def _sized(name: str, size: tuple[int, ...]) -> dict[str, object]:
    """The options that build a transformer of torchvision for an input size; its other models take any."""
    if name.startswith("mvit_"):
        return {"spatial_size": size[-2:], "temporal_size": size[0]}
    if size[0] != size[1]:
        raise ErfscopeError(f"torchvision:{name} takes square inputs only, not {size[0]}x{size[1]}")
    return {"image_size": size[0]}


def _frames(best: Any) -> int:
    """Clip length of a video model: the 16 frames that torchvision trains on, or what the model needs at least."""
    return max(16, best.meta.get("min_temporal_size") or 0)


# --- functions, classes and modules by dotted name ------------------------------------------------------------------------------------


def _factory(spec: str, wishes: Wishes) -> Made:
    module = run(spec, seed=wishes.seed, kwargs=wishes.model_kwargs)
    config = module_config(module, input_size=wishes.input_size, in_chans=wishes.in_chans, mean=wishes.mean, std=wishes.std)
    origin = Weights(source="factory", sha256=sha256(module), seed=wishes.seed, origin=spec)
    closed = dormant(module)
    if not closed:
        return module, origin, config, ()
    some = ", ".join(closed[:3]) + (", ..." if len(closed) > 3 else "")
    note = f"{len(closed)} branches are switched off by weights near zero ({some}): the ERF is that of the paths around them"
    return module, origin, config, (f"{note}, since a factory's weights are never changed",)

"""Backbones of the transformers library: ``transformers:owner/name`` or ``transformers:./folder``, through
``AutoBackbone``.

The code that runs is transformers' own, never what a repository brings, and weights come from .safetensors files.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from erfscope.adapters.libraries import silence_libraries
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.preprocess import config_sides, input_config
from erfscope.adapters.sources.source import Source, SourceOptions, refuse_deep
from erfscope.adapters.weights.weights import Store, check_room, hub_store, obtain, on_hub
from erfscope.core.system.model_errors import errors_as_one_line, first_line
from erfscope.core.values.errors import ErfscopeError

SCHEME = "transformers"
#: Pillow's numbers for ways to resample, in timm's words.
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class BackboneAdapter(ModuleAdapter):
    """A backbone of transformers: its stages are read from its feature maps, every other module by a hook.

    A feature map is taken before the norm that some backbones put after it, as for timm's models.
    """

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages, by transformers' own names."""
        model: Any = self.module
        return tuple(model.out_features)

    def outputs(self, module: nn.Module, x: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Run all of the model, with its stages; see :class:`ModuleAdapter`."""
        output = self.forward(module, x)
        return output, dict(zip(self.stages, output.feature_maps, strict=True))


def build(spec: str, options: SourceOptions) -> Source:
    """Build the backbone that ``transformers:PLACE`` names.

    Args:
        spec: PLACE is ``owner/name`` on the hub, with ``@revision`` or without, or a folder, which begins with ``.`` or
            ``/`` or exists.
        options: ``model_kwargs`` replace fields of the configuration; with random weights that alone is read.

    Raises:
        ErfscopeError: transformers is not installed, no such place, a model without a backbone, or weights that cannot
            be had.
    """
    library, channels = _library(), options.in_chans
    place = _place(spec, options.weights)
    with errors_as_one_line(f"the configuration of {spec!r} cannot be had"):
        given = place.read("config.json")
    refuse_deep(given, spec)
    replaced = {**options.model_kwargs, **({} if channels is None else {"num_channels": channels})}
    config = _config(library, spec, given, replaced)
    if place.is_folder and not options.unsafe_load and options.weights in ("auto", "pretrained"):
        _refuse_pickles(spec, Path(place.name))
    notes: list[str] = []

    def make(pretrained: bool) -> nn.Module:
        with _silent(library):
            module: Any = (
                _loaded(library, config, place, options.unsafe_load, notes)
                if pretrained
                else library.AutoBackbone.from_config(config)
            )
        # The norms that stand after the feature maps and nowhere else are left out.
        for name in list(norms := getattr(module, "hidden_states_norms", {})):
            norms[name] = nn.Identity()
        return module  # type: ignore[no-any-return]

    held = store(spec) or Store(name=spec, origin=place.name, cached=True)
    with errors_as_one_line(f"transformers could not build {spec!r}", options.model_kwargs):
        check_room(make, "correct its config.json")
        module, weights = obtain(make, held, policy=options.weights, seed=options.seed)
    words = _words(_processor(place), config)
    return Source(
        module=module,
        spec=spec,
        weights=weights,
        config=input_config(words, size=options.input_size, channels=channels, mean=options.mean, std=options.std),
        notes=tuple(notes) if weights.source == "pretrained" else (),
        adapter=BackboneAdapter,
    )


def store(spec: str) -> Store | None:
    """Where the pretrained weights of a repository lie; None for a folder, which holds them."""
    return None if _place(spec, "auto").is_folder else hub_store(spec, spec.partition(":")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A folder, or a repository on the hub."""

    name: str
    is_folder: bool
    revision: str | None
    #: As for :func:`erfscope.adapters.weights.weights.obtain`.
    policy: str

    def read(self, file: str) -> dict[str, Any]:
        """A file of JSON, from the cache or the hub where it is a repository's."""
        path = Path(self.name) / file
        if not self.is_folder:
            from huggingface_hub import hf_hub_download

            def fetch(local: bool) -> Any:
                return hf_hub_download(self.name, file, local_files_only=local, revision=self.revision)

            path = Path(on_hub(f"{SCHEME}:{self.name}", self.policy, fetch))
        return dict(json.loads(path.read_text(encoding="utf-8")))


def _place(spec: str, policy: str) -> _Place:
    place = spec.partition(":")[2]
    if place.startswith((".", "/", "~")) or Path(place).is_dir():
        return _Place(name=str(Path(place).expanduser()), is_folder=True, revision=None, policy=policy)
    name, _, revision = place.partition("@")
    return _Place(name=name, is_folder=False, revision=revision or None, policy=policy)


def _library() -> ModuleType:
    try:
        with silence_libraries():
            import transformers

            _ = transformers.MODEL_FOR_BACKBONE_MAPPING, transformers.PretrainedConfig  # found when they are asked for
    except (ImportError, RuntimeError, OSError) as error:
        text = f"models of transformers need the package transformers ({first_line(error)})"
        raise ErfscopeError(f"{text}; pip install '.[hf]' in a checkout of erfscope") from error
    return transformers


def _config(library: ModuleType, spec: str, given: Mapping[str, Any], options: Mapping[str, object]) -> Any:
    """The configuration of a backbone whose stages all come out."""
    kind = given.get("model_type")
    known = sorted(config.model_type for config in library.MODEL_FOR_BACKBONE_MAPPING if hasattr(config, "model_type"))
    if kind in ("timm_backbone", "timm_wrapper"):
        raise ErfscopeError(
            f"{spec!r} is a model of timm; write {given.get('backbone') or given.get('architecture') or 'its name'}"
            " instead"
        )
    if kind not in known:
        shown = ", ".join(known)
        raise ErfscopeError(
            f"transformers has no backbone for {spec!r}, which is of type {kind!r}; it has them for {shown}"
        )
    # The type chooses among transformers' own classes; "auto_map", which names code in the repository, is ignored.
    plain = {
        name: value
        for name, value in given.items()
        if name not in ("auto_map", "out_features", "out_indices", "quantization_config")
    }
    wrong = [name for name in options if name not in plain and name != "num_channels"]
    if wrong:
        raise ErfscopeError(f"the configuration of {spec!r} has no {wrong[0]!r}; it has {', '.join(plain)}")
    with errors_as_one_line(f"the configuration of {spec!r} is damaged", options):
        config = library.AutoConfig.for_model(**{**plain, **options})
        config.out_features = list(config.stage_names)
    if hasattr(config, "apply_layernorm"):
        config.apply_layernorm = False
    return config


def _refuse_pickles(spec: str, folder: Path) -> None:
    """Refuse a folder with pickled weights alone, and say how to save them."""
    pickled = [name for name in _PICKLED if (folder / name).is_file()]
    if pickled and not any(folder.glob("*.safetensors")):
        fix = "save them with safe_serialization=True, or add --unsafe-load if you trust their source"
        raise ErfscopeError(f"{spec!r} holds its weights as a pickle only, {pickled[0]}, which may run code; {fix}")


def _loaded(library: ModuleType, config: Any, place: _Place, unsafe: bool, notes: list[str]) -> nn.Module:
    from huggingface_hub import constants

    trust: dict[str, Any] = {"weights_only": False} if unsafe else {"use_safetensors": True}
    module, found = library.MODEL_FOR_BACKBONE_MAPPING[type(config)].from_pretrained(
        place.name,
        config=config,
        local_files_only=bool(constants.HF_HUB_OFFLINE),
        output_loading_info=True,
        revision=place.revision or "main",
        **trust,
    )
    missing = [key for key in found["missing_keys"] if "hidden_states_norms" not in key]
    if missing:
        some = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
        notes[:] = [
            f"{len(missing)} weights are not in its file and random ({some}): layers that depend on them mean little"
        ]
    result: nn.Module = module
    return result


def _words(processor: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Translate what the image processor and the configuration state of an image into timm's words."""
    channels = getattr(config, "num_channels", None) or 3
    own = getattr(config, "image_size", None)
    resized, cropped = (
        config_sides(processor.get("size")),
        config_sides(processor.get("crop_size")) if processor.get("do_center_crop") else None,
    )
    words: dict[str, Any] = {}
    size = cropped or resized or config_sides(own)
    if size:
        words["input_size"] = (channels, *size)
    if "crop_pct" in processor or cropped or resized:
        # Resized to both sides without a crop, an image is squashed; by its shorter side, it is cropped to a square.
        whole = (
            cropped is None and isinstance(processor.get("size"), Mapping) and "shortest_edge" not in processor["size"]
        )
        words["crop_mode"] = "squash" if whole else "center"
        words["crop_pct"] = processor.get("crop_pct") or (cropped[0] / resized[0] if cropped and resized else 1.0)
    if processor.get("resample") in _RESAMPLING:
        words["interpolation"] = _RESAMPLING[processor["resample"]]
    if processor:
        normalised = processor.get("do_normalize", True)
        scale = 255 * (processor.get("rescale_factor") or 1 / 255) if processor.get("do_rescale", True) else 255
        for name, plain in (("mean", 0.0), ("std", 1.0)):
            values = processor.get(f"image_{name}") if normalised else [plain] * channels
            if values:
                words[name] = tuple(value / scale for value in (values if isinstance(values, list) else [values]))
    return words


def _processor(place: _Place) -> dict[str, Any]:
    """Read ``preprocessor_config.json`` beside the configuration; {} where there is none."""
    try:
        return place.read("preprocessor_config.json")
    except json.JSONDecodeError as error:
        raise ErfscopeError(f"preprocessor_config.json of {place.name!r} is damaged: {first_line(error)}") from error
    except Exception:  # no such file, or no connection: the result then names size, mean and std as assumed
        return {}


@contextlib.contextmanager
def _silent(library: ModuleType) -> Iterator[None]:
    """Silence the progress bars and warnings of transformers inside the block."""
    logging: Any = library.utils.logging
    shown: bool = logging.is_progress_bar_enabled()
    switch: Callable[[], None] = logging.enable_progress_bar if shown else logging.disable_progress_bar
    logging.disable_progress_bar()
    try:
        with silence_libraries():
            yield
    finally:
        switch()

"""From a model and options to what can be measured: a loaded model on its device, and a feed of images."""

from __future__ import annotations

import copy
import glob
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image, Resampling
from torch import Tensor, nn
from torch.export import ExportedProgram

from erfscope.adapter import Preprocess
from erfscope.adapters import ModuleAdapter, load, split_label, wrap
from erfscope.adapters.weights.weights import NO_NUMBERS
from erfscope.adapters.zero_branches import zero_branches
from erfscope.api.blocks import variant_of
from erfscope.engine.layer_table import LayerTable, layer_table
from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError, ErfWarning, MeasurementError, unknown
from erfscope.geometry.input_size import is_size
from erfscope.geometry.unit import Trf, UnitWord
from erfscope.model_errors import WITHOUT_CHANNELS, first_line
from erfscope.options.option import Building
from erfscope.options.request import Request
from erfscope.options.settings import OPTIONS, SAMPLES, UNTIL_SE_LIMIT
from erfscope.printable import one_line
from erfscope.restore import default_dtype, restored
from erfscope.stimuli import open_arrays, open_images
from erfscope.stimuli import synthetic as draw
from erfscope.stimuli.feed import Feed, PictureFeed, TensorFeed

Model = str | nn.Module | ExportedProgram | ModuleAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A model whose weights are one of several checkpoint files."""

    spec: str
    file: Path
    #: Of the training, where the file's name tells.
    step: int | None = None


DEVICES = OPTIONS["device"].option.words


def load_model(
    model: Model | Saved, request: Request, *, size: tuple[int, ...] | None, weights: str, label: str | None = None
) -> LoadedModel:
    """A model on the device and in the dtype asked for, at one input size."""
    if isinstance(model, Saved):
        own = replace(request, building={**request.building, "checkpoint": model.file})
        return load_model(model.spec, own, size=size, weights=weights, label=label)
    adapter, name = _adapter(model, request, size, weights)
    owned = isinstance(model, str)
    device = _device(request.settings.device, adapter if not owned else None)
    dtype = getattr(torch, request.settings.dtype) if owned or "dtype" in request.given else None
    if adapter.weights.source == NO_NUMBERS:
        device = None
    # The caller holds an adapter that was given, so its module stays as it is.
    adapter = adapter.to(device=device, dtype=dtype, copied=not owned)
    if request.settings.squash:
        adapter = copy.copy(adapter)
        adapter.preprocess = _squashing(adapter.preprocess)
    loaded = LoadedModel(
        adapter=adapter,
        label=one_line(label or request.label or name or adapter.spec),
        weights_findings=lambda: zero_branches(adapter.module, adapter.weights),
    )
    return _in_default_dtype(loaded) if dtype == torch.float64 else loaded


def _adapter(
    model: Model, request: Request, size: tuple[int, ...] | None, weights: str
) -> tuple[ModuleAdapter, str | None]:
    """The adapter of a model, and the label that a spec gives it."""
    building, images = dict(request.building), request.images
    if isinstance(images, Tensor):
        if images.dim() < 3:
            raise ErfscopeError(
                f"images is a tensor of shape {tuple(images.shape)}, and a ready tensor is (B, C, *space), with a"
                f" channel axis: give images[:, None]; {WITHOUT_CHANNELS}"
            )
        size = size or tuple(images.shape[2:])
        if not isinstance(model, ModuleAdapter):
            building.setdefault("in_chans", images.shape[1])
    if isinstance(model, str):
        label, spec = split_label(model)
        layer = None if "layer" in request.several() else request.layers[0]
        return load(spec, weights=weights, seed=request.settings.seed, input_size=size, layer=layer, **building), label
    if isinstance(model, ModuleAdapter):
        return _made(model, building, size), None
    if not isinstance(model, nn.Module | ExportedProgram):
        raise ErfscopeError(
            "a model is a spec, an nn.Module, an exported program or what erfscope.wrap makes of a module, not"
            f" {type(model).__name__}{_other_object(model)}"
        )
    for option in ("checkpoint", "model_kwargs", "unsafe_load"):
        if building.pop(option, None) is not None:
            raise ErfscopeError(f"{option} is for models that erfscope builds; a live module has its weights already")
    return wrap(model, input_size=size, **building), None


def _made(adapter: ModuleAdapter, building: Mapping[str, Any], size: tuple[int, ...] | None) -> ModuleAdapter:
    """An adapter that was given, if nothing else is asked for than what it was made for."""
    for option, value in building.items():
        if value is not None:
            raise ErfscopeError(f"{option} is for models that erfscope builds or wraps; this adapter is made already")
    if size is not None and not is_size(size, adapter.preprocess.size):
        raise ErfscopeError(
            f"this adapter was made for inputs of {adapter.preprocess.size}, not {size}; give input_size to"
            " erfscope.wrap"
        )
    return adapter


def _other_object(model: object) -> str:
    """What to do with an object that is no model."""
    if isinstance(model, type):
        return f"; {model.__name__} is a class: give what calling it makes"
    if isinstance(model, Mapping):
        return "; load a state_dict into the module that it is of, and give that"
    if callable(model):
        return "; give the module that it calls: erfscope.wrap(module, forward=lambda m, x: ...)"
    return ""


def _squashing(preprocess: Preprocess) -> Preprocess:
    """The same preprocessing, but for a resize that cuts nothing off.

    Raises:
        ErfscopeError: the model has no image of two axes, or a transform of its own makes the whole input.
    """
    if len(preprocess.size) < 2 or not preprocess.pixelwise:
        raise ErfscopeError("squash resizes images, and this model's input is made by its own transform; leave it out")
    height, width = preprocess.size[-2:]

    def resize(picture: Image) -> NDArray[np.uint8]:
        return np.asarray(picture.resize((width, height), Resampling.BICUBIC))

    return replace(preprocess, crop=resize, resize_text=f"bicubic resize, whole, to {height}x{width}")


def refuse_weights(model: Model, request: Request) -> None:
    """Refuse weights by name for a model that is no spec.

    Raises:
        ErfscopeError: the model is there already, with its weights.
    """
    if not isinstance(model, str) and request.weights != ("auto",):
        raise ErfscopeError(
            "weights is for models that erfscope builds; a live module or an adapter has its weights already"
        )


def _in_default_dtype(loaded: LoadedModel) -> LoadedModel:
    """A model that was put into float64 and cannot run, with float64 as the type of the tensors that it makes without
    naming one.

    The model as it was where it can run so, or cannot either way.
    """
    try:
        loaded.recording  # noqa: B018
    except ErfscopeError:
        adapter: Any = copy.copy(loaded.adapter)
        plain = adapter.forward

        def forward(module: nn.Module, x: Tensor) -> Any:
            with default_dtype(torch.float64):
                return plain(module, x)

        adapter.forward = forward
        adapter.notes = (
            *adapter.notes,
            "float64 is also the type of the tensors that its forward makes without naming one",
        )
        other = replace(loaded, adapter=adapter)
        try:
            other.recording  # noqa: B018
        except ErfscopeError:
            return loaded
        return other
    return loaded


def live(*models: Any) -> list[nn.Module]:
    """The modules of those models that are the caller's own: live ones, and what :func:`erfscope.wrap` made of them."""
    return [m.module if isinstance(m, ModuleAdapter) else m for m in models if isinstance(m, nn.Module | ModuleAdapter)]


def feed_of(request: Request, preprocess: Preprocess) -> Feed:
    """The images that a request names, cropped and normalised for one model.

    Raises:
        ErfscopeError: no such file, an unreadable image, or an unknown kind.
    """
    images, samples, seed = request.images, request.settings.samples, request.settings.seed
    if isinstance(images, Tensor):
        feed = TensorFeed(images if samples is None else images[:samples])
        wanted, found = (preprocess.channels, *preprocess.size), tuple(images.shape[1:])
        if found != wanted:
            raise ErfscopeError(
                f"a ready tensor is used as it is: it holds inputs of {found}, and the model is set up for {wanted}"
            )
        return feed
    limit = samples if request.settings.until_se is None else samples or UNTIL_SE_LIMIT
    if images is None:
        kind = request.synthetic or "leaves"
        stimuli = draw(kind, samples=limit or SAMPLES, seed=seed, size=preprocess.size, channels=preprocess.channels)
    elif are_paths(images):
        paths = [images] if isinstance(images, str | Path) else list(images)
        stimuli = open_images(paths, samples=limit, seed=seed, crop=preprocess.crop, channels=preprocess.channels)
    else:
        is_many = isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4
        chosen = images[:samples] if is_many and samples is not None else images
        stimuli = open_arrays(chosen, crop=preprocess.crop, channels=preprocess.channels)
    return PictureFeed(stimuli, preprocess.normalise, pixelwise=preprocess.pixelwise)


def are_paths(images: Any) -> bool:
    """Whether images are given by paths."""
    if isinstance(images, str | Path):
        return True
    return isinstance(images, list | tuple) and len(images) > 0 and all(isinstance(item, str | Path) for item in images)


def _device(asked: str, live: ModuleAdapter | None) -> torch.device | None:
    """The device asked for; ``auto`` is a live module's own, else the fastest there is."""
    if asked == "auto":
        if live is not None:
            return None
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if asked.partition(":")[0] not in DEVICES:
        raise unknown("device", asked, DEVICES)
    try:
        device = torch.device(asked)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ErfscopeError(
            f"device {asked!r} cannot be used here ({first_line(error)}); `erfscope doctor` lists the devices, auto"
            " chooses one"
        ) from error
    return device


def checkpoints(models: Mapping[str, Any] | Sequence[Any], of: str) -> list[tuple[str, Saved]]:
    """(label, checkpoint), in the order given; a pattern's files by the numbers in their names, ``ckpt-2`` before
    ``ckpt-10``.

    A shell replaces a pattern by its files. So files named one by one count as a pattern's if a shell could have named
    them: in alphabetical order, with names that differ only in their numbers.

    Args:
        models: Files, or patterns of files; a mapping gives them labels and keeps its order.
        of: The spec of the model that they are checkpoints of.

    Returns:
        Labels are ``SPEC @ STEP`` where the last numbers in the names tell the files apart, else the files' names.

    Raises:
        ErfscopeError: something that is no file, or no file at all.
    """
    if isinstance(models, Mapping):
        return [(label, Saved(spec=of, file=_file(model))) for label, model in models.items()]
    files = list(dict.fromkeys(file for model in models for file in _files(model)))
    if _as_of_a_shell(files) and not any(_is_pattern(model) for model in models):
        files.sort(key=_natural)
    if not files:
        raise ErfscopeError(
            "nothing to compare; name at least one checkpoint file, or a pattern such as 'run/ckpt-*.pt'"
        )
    steps = [step_of(file) for file in files]
    apart = None not in steps and len(set(steps)) == len(files)
    labels = [f"{of} @ {step}" if apart else file.name for file, step in zip(files, steps, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [str(file) for file in files]
    return [
        (label, Saved(spec=of, file=file, step=step)) for label, file, step in zip(labels, files, steps, strict=True)
    ]


def step_of(file: Path) -> int | None:
    """The last number in a file's name."""
    numbers = re.findall(r"\d+", file.name.removesuffix(file.suffix))
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= 15 else None


def _as_of_a_shell(files: Sequence[Path]) -> bool:
    """Whether files stand as a shell writes out a pattern, and differ in numbers alone."""
    names = [str(file) for file in files]
    return names == sorted(names) and len({re.sub(r"\d+", "#", name) for name in names}) == 1


def _natural(file: Path) -> list[tuple[int, str]]:
    """Numbers compare as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(file)) if part]


def _is_pattern(model: Any) -> bool:
    return isinstance(model, str) and glob.has_magic(model) and not Path(model).exists()


def _files(model: Any) -> list[Path]:
    """A file, or those of a pattern by their numbers."""
    if _is_pattern(model):
        found = sorted(map(Path, glob.glob(model, recursive=True)), key=_natural)  # noqa: PTH207 (a pattern may be absolute)
        if not found:
            raise ErfscopeError(f"no checkpoint matches {model!r}")
        return found
    return [_file(model)]


def _file(model: Any) -> Path:
    if not isinstance(model, str | Path):
        raise ErfscopeError(f"with --of every model is one of its checkpoint files, not {type(model).__name__}")
    if not Path(model).is_file():
        raise ErfscopeError(
            f"there is no checkpoint file {str(model)!r}; with --of every model is one of its checkpoint files"
        )
    return Path(model)


@torch.inference_mode(False)
def layers(
    model: Model,
    *,
    layer: str | None = None,
    unit: UnitWord = "centre",
    wrt: str = "image",
    **options: Unpack[Building],
) -> LayerTable:
    """Every layer that can be asked for, in order of execution, without weights or a forward pass on real data.

    Args:
        model: As for :func:`erfscope.analyze`.
        layer: Only this one.
        unit: The units of each layer whose theoretical receptive fields are given, one row each.
        wrt: Reference of sizes and centres: "image", or a module's output ("NAME") or input ("NAME:in").
        **options: Those that build the model, such as ``input_size``.

    Raises:
        ErfscopeError: unknown model, layer or reference.
    """
    with restored(*live(model)):
        return layer_table(bare(model, Request.parse(options)), layer=layer, unit=unit, wrt=wrt)


@torch.inference_mode(False)
def theoretical(
    model: Model, layer: str | None = None, unit: UnitWord = "centre", wrt: str = "image", **options: Unpack[Building]
) -> Trf:
    """The theoretical receptive field (TRF) of one unit, from one forward pass without numbers (shapes only).

    Args:
        model: As for :func:`erfscope.analyze`: a spec, an adapter, or a live module in any state, which is left as it
            is.
        layer: The layer; the model's default layer if None.
        unit: The unit: "centre", "corner", "edge" or its index.
        wrt: Reference of sizes and centres: "image", or a module's output ("NAME") or input ("NAME:in").
        **options: Those that build the model, such as ``input_size``.

    Returns:
        The TRF in cells of the reference: pixels where that is the image.

    Raises:
        ErfscopeError: unknown model, layer or reference, a layer that does not depend on the reference, or not exactly
            one unit in its map.
        MeasurementError: the layer has no spatial map, or the model fails.
    """
    with restored(*live(model)):
        loaded = bare(model, Request.parse(options))
        table = layer_table(loaded, layer=layer or loaded.default_layer, unit=unit, wrt=wrt)
    if len(table.rows) != 1:
        raise ErfscopeError(
            f"{unit!r} are {len(table.rows)} units, and theoretical takes one; erfscope.layers gives the TRFs of"
            " several"
        )
    for note in table.notes:
        warnings.warn(note, ErfWarning, stacklevel=3)  # past inference_mode
    return table.rows[0].trf


def bare(model: Model, request: Request, *, has_numbers: bool = False) -> LoadedModel:
    """A model whose weights do not matter, with the blocks that are inserted: on the meta device where it can be built
    there, unless it is to have numbers, such as those of masks.

    Raises:
        ErfscopeError: unknown model or option.
    """
    size, *more = request.sizes
    if more:
        raise ErfscopeError(
            f"a theoretical receptive field (TRF) is found at one input size, not {1 + len(more)}; give one"
        )
    if isinstance(model, str) and request.building.get("checkpoint") is None and not has_numbers:
        loaded = load_model(model, request, size=size, weights=NO_NUMBERS)
        # A data-dependent model cannot run on the meta device; a factory's has them.
        if loaded.adapter.weights.source != NO_NUMBERS or _runs(loaded):
            return variant_of(loaded, request)
    return variant_of(load_model(model, request, size=size, weights="random-raw"), request)


def _runs(loaded: LoadedModel) -> bool:
    try:
        return bool(loaded.recording.layers)
    except MeasurementError:
        return False

"""From a spec string to an ``nn.Module`` with known weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from erfscope.adapters.sources.kinds import kind_of
from erfscope.adapters.sources.source import Source, SourceOptions
from erfscope.adapters.weights.weights import NO_NUMBERS, POLICIES, Store
from erfscope.core.values.errors import ErfscopeError, refuse_broken_link, unknown

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
        spec: A form of :data:`erfscope.adapters.sources.kinds.SPECS`, with ``LABEL=`` before it or without.
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
    plain, layer = split_layer(split_label(spec)[1])
    if layer is not None:
        raise ErfscopeError(f"{spec!r} names a layer, as analyze, compare and explore take it; name {plain} here")
    _refuse(plain)
    return kind_of(plain).build(plain, asked)


def pretrained_store(spec: str) -> Store | None:
    """Where the pretrained weights of a spec are, without reading them; None for specs that have weights of their own.

    Raises:
        ErfscopeError: no such model.
    """
    plain = split_label(spec)[1]
    return kind_of(plain).store(plain)


def split_label(text: str) -> tuple[str | None, str]:
    """Take ``LABEL=SPEC`` apart.

    A label has no ``:``, ``/``, ``\\`` or ``.py`` in it, so that a path with an equals sign stays a path.

    Returns:
        The label, or None, and the spec.

    Raises:
        ErfscopeError: the text is longer than a file's name or path can be.
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


def split_layer(spec: str) -> tuple[str, str | None]:
    """Take ``SPEC@LAYER`` apart, where SPEC has no label.

    The layer begins at the first ``@`` behind every ``/`` and ``:``. In the name of a model on a hub that one is the
    revision, and the layer begins at the next; the name of a file or folder that exists stays one.

    Returns:
        The spec, and the layer or None.

    Raises:
        ErfscopeError: nothing stands behind the ``@``.
    """
    place = spec.find("@", max(map(spec.rfind, "/\\:")) + 1)
    if place >= 0 and re.match(r"(hf-hub|hf_hub|transformers):", spec):
        place = spec.find("@", place + 1)
    if place < 0 or Path(spec).exists() or Path(spec.partition(":")[2] or ".").is_file():
        return spec, None
    if not (layer := spec[place + 1 :].strip()):
        raise ErfscopeError(f"{spec!r} names no layer behind @; write SPEC@LAYER, or leave the @ out")
    return spec[:place], layer


def take_layer(model: Any) -> tuple[Any, str | None]:
    """A model without the layer that its spec names, ``SPEC@LAYER`` or ``LABEL=SPEC@LAYER``, and that layer."""
    if not isinstance(model, str):
        return model, None
    label, spec = split_label(model)
    spec, layer = split_layer(spec)
    if layer is None:
        return model, None
    return (spec if label is None else f"{label}={spec}"), layer


def _refuse(spec: str) -> None:
    """Refuse a spec that cannot name a model, and say what to give instead."""
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
        from PIL import Image

        if suffix in Image.registered_extensions():
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

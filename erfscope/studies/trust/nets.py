"""The nets of the study of trust: two small members of timm, and how their weights are drawn or read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from erfscope.adapters import ModuleAdapter, load
from erfscope.errors import ErfscopeError

SUFFIXES = (".safetensors", ".pth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """One net, and where in it a share is detached."""

    name: str
    #: A late module whose output all paths from the image to the unit pass.
    block: str
    #: A later module with an identity around it, so that only some paths pass it.
    branch: str
    #: Parts from the input to the measured layer: (its name, how the names of its parameters begin).
    parts: tuple[tuple[str, tuple[str, ...]], ...]


NETS = (
    Net(
        name="test_resnet",
        block="layer3",
        branch="layer4.0.bn2",
        parts=(
            ("stem", ("conv1.", "bn1.")),
            *((name, (f"{name}.",)) for name in ("layer1", "layer2", "layer3", "layer4")),
        ),
    ),
    Net(
        name="test_vit",
        block="blocks.4",
        branch="blocks.5.attn",
        parts=(
            ("embedding", ("cls_token", "pos_embed", "reg_token", "patch_embed.")),
            *((f"blocks.{number}", (f"blocks.{number}.",)) for number in range(6)),
        ),
    ),
)


def built(name: str, seed: int, data: Path | None = None, *, size: int | None = None) -> ModuleAdapter:
    """A net with random weights, or with those of a folder.

    Args:
        name: Name of a timm model.
        seed: Seed of the random weights.
        data: A folder with NAME.safetensors or NAME.pth; None for random weights.
        size: Side of its input in pixels; None for the model's own, which weights from a file are trained for.

    Raises:
        ErfscopeError: no such file in the folder, or one that does not fit.
    """
    if data is None:
        return load(name, weights="random", seed=seed, input_size=size)
    files = [data / f"{name}{suffix}" for suffix in SUFFIXES]
    found = [file for file in files if file.is_file()]
    if not found:
        raise ErfscopeError(f"{str(data)!r} holds no weights of {name}: neither {files[0].name} nor {files[1].name}")
    return load(name, checkpoint=found[0], input_size=size)

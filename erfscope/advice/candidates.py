"""The edits that a search tries on a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from erfscope.adapters.blocks import BLOCKS
from erfscope.advice.structure import Structure

#: Blocks that widen the field.
WIDE_BLOCKS = ("nonlocal", "gcn", "gatv2", "gc", "large_kernel")
#: Parts of a model that are edited one by one, the last of them.
MOST_PARTS = 6
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One variant of a model; the model itself without edits."""

    #: Each as ``--insert`` takes it.
    edits: tuple[str, ...] = ()
    #: Another input size; the model's own if None.
    size: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """What is changed, in one line."""
        size = [f"input {'x'.join(map(str, self.size))}"] if self.size else []
        return "; ".join((*self.edits, *size)) or "the model as it is"

    @property
    def options(self) -> str:
        """The options of ``erfscope analyze`` that measure it."""
        size = [f"--input-size {'x'.join(map(str, self.size))}"] if self.size else []
        return " ".join([*(f'--insert "{each}"' for each in self.edits), *size])

    @property
    def python(self) -> str:
        """The line of Python that makes it of ``model``."""
        if not self.edits:
            return ""
        return f"erfscope.edited(model, {', '.join(map(repr, self.edits))})".replace("'", '"')

    @property
    def keeps_weights(self) -> bool:
        """Whether trained weights stay usable: dilation alone, which moves the taps of convolutions."""
        return (
            bool(self.edits)
            and self.size is None
            and all(":" in e and _settings(e) == ["dilation"] for e in self.edits)
        )


def _settings(edit: str) -> list[str]:
    """The names that an edit sets; those of a block are its own."""
    head, _, rest = edit.partition(":")
    return [] if "@" in head else [each.partition("=")[0].strip() for each in rest.split(",")]


def parts_of(structure: Structure, module: nn.Module) -> list[str]:
    """The parts of a model that edits name: its stages, else the outermost modules that hold several of its layers."""
    inside = [each for each in structure.layers if not each.is_head]
    if stages := list(dict.fromkeys(each.stage for each in inside if each.stage)):
        return stages[-MOST_PARTS:]
    names, depth = [each.name.split(".") for each in inside], 1
    deepest = max(map(len, names), default=1)
    while depth < deepest and len({tuple(name[:depth]) for name in names}) < 3:
        depth += 1
    found = dict.fromkeys(".".join(name[:depth]) for name in names)
    return [name for name in found if name][-MOST_PARTS:]


def wider(structure: Structure, module: nn.Module) -> list[Candidate]:
    """Edits that widen a field: dilation and kernels of each part's convolutions, strides left out, blocks, and larger
    inputs."""
    found = [Candidate(edits=(edit,)) for part in parts_of(structure, module) for edit in _wider_edits(part, module)]
    sizes = [tuple(2 * side for side in structure.input_size)]
    return found + [Candidate(size=size) for size in sizes]


def _wider_edits(part: str, module: nn.Module) -> Iterator[str]:
    kernel, dilation, stride = _windows(module.get_submodule(part))
    if kernel:
        yield f"{part}: dilation={2 * dilation}"
        yield f"{part}: dilation={4 * dilation}"
        yield f"{part}: kernel={kernel + 2}"
        yield f"{part}: kernel={kernel + 4}"
    if stride > 1:
        yield f"{part}: stride=1"
        if kernel:
            yield f"{part}: stride=1, dilation={stride * dilation}"
    yield from (f"{block}@{part}" for block in WIDE_BLOCKS if block in BLOCKS)


def narrower(structure: Structure, module: nn.Module) -> list[Candidate]:
    """Edits that narrow a field: smaller kernels and no dilation of each part's convolutions."""
    found = list[str]()
    for part in parts_of(structure, module):
        kernel, dilation, _ = _windows(module.get_submodule(part))
        found += [f"{part}: kernel={each}" for each in (1, 3) if each < kernel]
        found += [f"{part}: dilation=1"] if dilation > 1 else []
    return [Candidate(edits=(edit,)) for edit in found]


def joined(chosen: Sequence[Candidate]) -> list[Candidate]:
    """Pairs of edits at different places."""
    found = list[Candidate]()
    for number, one in enumerate(chosen):
        for other in chosen[number + 1 :]:
            edits = tuple(sorted({*one.edits, *other.edits}))
            if len({_place(edit) for edit in edits}) == len(one.edits) + len(other.edits) and not (
                one.size or other.size
            ):
                found.append(Candidate(edits=edits))
    return list(dict.fromkeys(found))


def _place(edit: str) -> str:
    head, _, rest = edit.partition("@")
    return rest.partition(":")[0] if rest and ":" not in head else edit.partition(":")[0]


def _windows(part: nn.Module) -> tuple[int, int, int]:
    """The kernel that most of a part's convolutions have, of those larger than 1, 0 for none; and the largest dilation
    and stride."""
    every = [each for each in part.modules() if isinstance(each, Convolution)]
    kernels = Counter(
        max(each.kernel_size) for each in every if max(each.kernel_size) > 1 and each.kernel_size != each.stride
    )
    pools = [
        each
        for each in part.modules()
        if isinstance(each, nn.modules.pooling._MaxPoolNd | nn.modules.pooling._AvgPoolNd)
    ]
    strides = [max(each.stride) for each in every] + [max(_several(each.stride)) for each in pools]
    dilation = max((max(each.dilation) for each in every), default=1)
    return kernels.most_common(1)[0][0] if kernels else 0, dilation, max(strides, default=1)


def _several(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (int(value),)  # type: ignore[call-overload]

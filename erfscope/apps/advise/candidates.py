"""The edits that a search tries on a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from shlex import quote

from torch import nn

from erfscope.apps.advise.structure import NetStructure

#: Blocks that widen the field.
WIDE_BLOCKS = ("nonlocal", "gcn", "gatv2", "gc", "large_kernel")
#: The last parts of a model, which are edited one by one to widen its field.
MOST_PARTS = 6
#: What edits change.
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_STRIDED = (*_CONVS, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


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
    def typed(self) -> str:
        """The options of the command line that make it."""
        return inserted(self.edits, self.size) or self.text

    @property
    def places(self) -> list[str]:
        """The parts that it edits, or puts a block behind."""
        heads = [edit.partition("@") for edit in self.edits]
        return [(rest or head).partition(":")[0] for head, _, rest in heads]

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


def inserted(edits: Sequence[str], size: Sequence[int] | None = None) -> str:
    """Edits, and an input size, as one types them."""
    sizes = [] if size is None else [f"--input-size {'x'.join(map(str, size))}"]
    return " ".join([*(f"--insert {quote(each)}" for each in edits), *sizes])


def _settings(edit: str) -> list[str]:
    """The names that an edit sets; those of a block are its own."""
    head, _, rest = edit.partition(":")
    return [] if "@" in head else [each.partition("=")[0].strip() for each in rest.split(",")]


def parts_of(structure: NetStructure, module: nn.Module) -> list[str]:
    """The parts of a model that edits name: its stages or outermost modules, else its layers."""
    inside = [each for each in structure.layers if not each.is_head]
    names = [each.stage for each in inside if each.stage] or [each.name for each in inside]
    modules = dict(module.named_modules())
    return [name for name in dict.fromkeys(names) if name and name in modules]


def wider(structure: NetStructure, module: nn.Module) -> list[Candidate]:
    """Edits that widen a field: dilation and kernels of each part's convolutions, strides left out, blocks, and an
    input of twice the size."""
    parts = parts_of(structure, module)[-MOST_PARTS:]
    edits = [edit for part in parts for edit in _wider_edits(part, module)]
    larger = Candidate(size=tuple(2 * side for side in structure.input_size))
    return [larger, *(Candidate(edits=(edit,)) for edit in edits)]


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
    yield from (f"{block}@{part}" for block in WIDE_BLOCKS)


def narrower(structure: NetStructure, module: nn.Module) -> list[Candidate]:
    """Edits that narrow a field: smaller kernels and no dilation of each part's convolutions."""
    found = list[str]()
    for part in parts_of(structure, module):
        kernel, dilation, _ = _windows(module.get_submodule(part))
        found += [f"{part}: kernel={each}" for each in (1, 3) if each < kernel]
        found += [f"{part}: dilation=1"] if dilation > 1 else []
    return [Candidate(edits=(edit,)) for edit in found]


def joined(chosen: Sequence[Candidate], every: Sequence[Candidate]) -> list[Candidate]:
    """Two candidates in one, where they edit different places.

    Args:
        chosen: Those that are put together.
        every: All candidates of one edit, in whose order edits stand.
    """
    order = {edit: number for number, each in enumerate(every) for edit in each.edits}
    found = list[Candidate]()
    for one, other in combinations([each for each in chosen if not each.size], 2):
        edits = tuple(sorted({*one.edits, *other.edits}, key=order.__getitem__))
        if len(edits) > max(len(one.edits), len(other.edits)) and len({*Candidate(edits=edits).places}) == len(edits):
            found.append(Candidate(edits=edits))
    return list(dict.fromkeys(found))


def _windows(part: nn.Module) -> tuple[int, int, int]:
    """The kernel that most of a part's convolutions have, 0 for none; and the largest dilation and stride."""
    convs = [each for each in part.modules() if isinstance(each, _CONVS)]
    strides = [each.stride for each in part.modules() if isinstance(each, _STRIDED)]
    kernels = Counter(kernel for each in convs if (kernel := max(each.kernel_size)) > 1)
    return (
        kernels.most_common(1)[0][0] if kernels else 0,
        max((max(each.dilation) for each in convs), default=1),
        max((max(each) if isinstance(each, tuple | list) else each for each in strides), default=1),
    )

"""A unit's theoretical receptive field and place: the part of a check that needs no weights and has no noise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from erfscope.core import Result, Trf
from erfscope.show import DASH, listed_up_to, size_text

#: Positions that differ by less are equal: they are sums of strides and halves.
SAME_PX = 1e-6
#: Names of modules and of operations in a line.
FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """One unit's geometry, in cells of the reference."""

    layer: str
    #: (C, *space) of the layer's map.
    map_shape: tuple[int, ...]
    #: Index of the unit.
    unit: tuple[int, ...]
    stride_px: tuple[float, ...]
    center_px: tuple[float, ...]
    trf_px: tuple[int, ...]
    #: The same with global operations left out.
    trf_local_px: tuple[int, ...]
    #: The first global operation, by which the TRF covers the whole reference; None if there is none.
    global_by: str | None
    #: False where the TRF is only an upper bound.
    exact: bool
    #: The TRF of each layer up to this one; behind a global operation, that without global operations follows it.
    layers_px: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: Every operation up to this layer with its settings, by the module that runs it, or the place of one outside
    #: modules, see :meth:`erfscope.core.Site.operations_in_words`; none in the structure of a result.
    operations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def trf_text(self) -> str:
        """The TRF as text."""
        if self.global_by is not None:
            return f"whole input (global operation: {self.global_by})"
        return ("" if self.exact else "at most ") + size_text(self.trf_px)

    def __str__(self) -> str:
        place = ",".join(f"{c:g}" for c in self.center_px)
        stride = size_text([f"{s:g}" for s in self.stride_px])
        at = f"stride {stride}, unit at ({place})" if place else f"unit {','.join(map(str, self.unit))} without a place"
        return f"layer {self.layer}: {size_text(self.map_shape)}, {at}, TRF {self.trf_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureChange:
    """A part of the structure that differs from the baseline's."""

    what: str
    expected: str
    obtained: str
    verdict: Literal["fail", "cannot tell", "notice"]
    #: The first layer whose TRF differs; "" for none.
    first_layer: str = ""
    #: Whether it is in the operations.
    is_operation: bool = False

    @property
    def text(self) -> str:
        """The change in one line."""
        where = f"; {self.where}" if self.first_layer else ""
        return f"{self.what}: obtained {self.obtained}, expected {self.expected}{where}"

    @property
    def where(self) -> str:
        """The first layer whose TRF differs, in words."""
        return f"the first layer whose TRF differs is {self.first_layer}"

    @property
    def brief(self) -> str:
        """The change in a few words: ``TRF 103 -> 71``."""
        texts, equal_sides = [self.expected, self.obtained], r"(\d+)(x\1)+"
        if all(re.fullmatch(equal_sides, text) for text in texts):
            texts = [re.sub(equal_sides, r"\1", text) for text in texts]
        what = re.sub(r" (shrank|grew|shrank and grew)$", "", self.what)
        return f"{what}{':' * self.is_operation} {' -> '.join(texts)}"


def structure(
    layer: str,
    map_shape: Sequence[int],
    unit: Sequence[int],
    trf: Trf,
    layers: Mapping[str, Trf] = MappingProxyType({}),
    *,
    operations: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Structure:
    """The structure of one unit.

    Args:
        layer: The layer's name.
        map_shape: (C, *space) of its map.
        unit: Index of the unit.
        trf: The unit's theoretical receptive field (TRF).
        layers: That of a unit of each layer up to this one, in order of execution.
        operations: Those up to this layer, by module.
    """
    return Structure(
        layer=layer,
        map_shape=tuple(map_shape),
        unit=tuple(unit),
        stride_px=tuple(trf.stride_px),
        center_px=tuple(trf.center_px),
        trf_px=tuple(trf.size_px),
        trf_local_px=tuple(trf.local_size_px),
        global_by=trf.global_by,
        exact=trf.exact,
        layers_px={
            name: (*each.size_px, *(each.local_size_px if each.is_global else ())) for name, each in layers.items()
        },
        operations=operations,
    )


def structure_of(result: Result) -> Structure | None:
    """The structure that a result was measured on; None where it has no unit."""
    if result.unit is None or result.trf is None:
        return None
    return structure(result.layer, result.unit.map_shape, result.unit.index, result.trf)


def changes(obtained: Structure, expected: Structure) -> Iterator[StructureChange]:
    """Differences between two structures that were measured with the same settings, most important first.

    A map's shape, a stride, a unit's centre and a TRF that shrank are failures; a TRF that grew, a layer of another
    name and other operations are notices. A global operation makes a TRF infinite; where both are, the TRFs without
    global operations are compared."""
    for what, ours, theirs in (
        ("map shape", obtained.map_shape, expected.map_shape),
        ("stride", obtained.stride_px, expected.stride_px),
        ("unit centre", obtained.center_px, expected.center_px),
    ):
        if len(ours) != len(theirs) or any(abs(a - b) > SAME_PX for a, b in zip(ours, theirs, strict=True)):
            yield StructureChange(what=what, expected=_numbers(theirs), obtained=_numbers(ours), verdict="fail")
    yield from _field_changes(obtained, expected)
    if obtained.layer != expected.layer:
        yield StructureChange(what="layer", expected=expected.layer, obtained=obtained.layer, verdict="notice")
    yield from operation_changes(obtained, expected)


def operation_changes(obtained: Structure, expected: Structure) -> Iterator[StructureChange]:
    """Differences between the operations of two structures, modules that changed alike together, in the order of
    execution; none where one of them does not know its own."""
    alike: dict[tuple[str, str], list[str]] = {}
    for module in _changed_modules(obtained, expected):
        ours, theirs = obtained.operations.get(module, ()), expected.operations.get(module, ())
        alike.setdefault(_difference(ours, theirs), []).append(module or "the model itself")
    for (now, before), modules in alike.items():
        what = listed_up_to(FEW, modules)
        yield StructureChange(what=what, expected=before, obtained=now, verdict="notice", is_operation=True)


def _changed_modules(obtained: Structure, expected: Structure) -> list[str]:
    """Modules whose operations differ, in the order of execution, those that are gone last; none where the same
    operations run in modules of other names."""
    ours, theirs = obtained.operations, expected.operations
    every = [Counter(text for texts in each.values() for text in texts) for each in (ours, theirs)]
    if not ours or not theirs or (ours.keys() != theirs.keys() and every[0] == every[1]):
        return []
    return [module for module in {**ours, **theirs} if ours.get(module) != theirs.get(module)]


def _difference(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, str]:
    """What only one and only the other of two modules does; of one operation only the settings that differ."""
    new, gone = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    if not new and not gone:
        return "another order", "the same operations"
    texts = [[word.split() for word in each.elements()] for each in (new, gone)]
    if len(texts[0]) == len(texts[1]) == 1 and texts[0][0][0] == texts[1][0][0]:
        (name, *a), (_, *b) = texts[0][0], texts[1][0]
        return _operation(name, [word for word in a if word not in b]), _operation(name, [w for w in b if w not in a])
    return _operations(new), _operations(gone)


def _operation(name: str, settings: Iterable[str]) -> str:
    return " ".join([name, *(setting.replace("=", " ") for setting in settings)])


def _operations(found: Counter[str]) -> str:
    """The names of operations, and how often each is there; of one operation alone also its settings."""
    if [*found.values()] == [1]:
        name, *settings = next(iter(found)).split()
        return _operation(name, settings)
    names: Counter[str] = Counter()
    for text, number in found.items():
        names[text.split()[0]] += number
    return listed_up_to(FEW, [f"{number} {name}" if number > 1 else name for name, number in names.items()]) or DASH


def _field_changes(obtained: Structure, expected: Structure) -> Iterator[StructureChange]:
    both_global = obtained.global_by is not None and expected.global_by is not None
    ours = obtained.trf_local_px if both_global else obtained.trf_px
    theirs = expected.trf_local_px if both_global else expected.trf_px
    if both_global or (obtained.global_by is None and expected.global_by is None):
        shrank = any(a < b for a, b in zip(ours, theirs, strict=False))
        grew = any(a > b for a, b in zip(ours, theirs, strict=False))
    else:
        shrank, grew = expected.global_by is not None, obtained.global_by is not None
    if expected.exact and not obtained.exact and not shrank:
        # An upper bound that is as large does not prove that the TRF is.
        yield StructureChange(
            what="TRF is only bounded now",
            expected=expected.trf_text,
            obtained=f"at most {size_text(ours)}",
            verdict="cannot tell",
            first_layer=_first_layer(obtained, expected),
        )
        return
    if not shrank and not grew:
        return
    texts = [size_text(ours), size_text(theirs)] if both_global else [obtained.trf_text, expected.trf_text]
    what = "TRF" + (" without global operations" if both_global else "")
    # Of two upper bounds, the lower one does not prove a smaller TRF.
    verdict: Literal["fail", "cannot tell", "notice"] = (
        "notice" if not shrank else "fail" if expected.exact else "cannot tell"
    )
    yield StructureChange(
        what=f"{what} {' and '.join(['shrank'] * shrank + ['grew'] * grew)}",
        expected=texts[1],
        obtained=texts[0],
        verdict=verdict,
        first_layer=_first_layer(obtained, expected),
    )


def _first_layer(obtained: Structure, expected: Structure) -> str:
    """The first layer, in order of execution, whose TRF differs; "" where no layer that both have does."""
    known = expected.layers_px
    return next((name for name, size in obtained.layers_px.items() if known.get(name, size) != size), "")


def _numbers(values: Sequence[float]) -> str:
    return size_text([f"{value:g}" for value in values])

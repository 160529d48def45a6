"""Units without a place on the reference: tokens beside a map, queries, rows of a list, classes, and pooled vectors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.layout import Layout
from erfscope.core.values.unit import Unit

TOKEN, QUERY, ROW, CLASS, VECTOR = "token", "query", "row", "class", "vector"
#: What a unit without a place is, and the numbers of axes that tensors with such units have. A unit is one index along
#: the first axis behind the images, a class along that of the channels, and a vector is all of an image.
KINDS = {TOKEN: (3,), QUERY: (3, 4), ROW: (3,), CLASS: (2, 3, 4, 5), VECTOR: (2,)}
_INDEXED = "|".join(kind for kind in KINDS if kind != VECTOR)
_PART = re.compile(rf"(?:({_INDEXED}):(.+)|({VECTOR}))", re.IGNORECASE | re.DOTALL)
_COMMA = re.compile(rf",(?=\s*(?:(?:{_INDEXED}):|{VECTOR}\b))", re.IGNORECASE)
_INDICES = re.compile(r"-?[0-9]+(\s*,\s*-?[0-9]+)*")


def split_kind(layer: str) -> tuple[str, str]:
    """Split the name of a layer that is read by units of a kind, ``"blocks.5:token"``; the kind is "" for maps."""
    name, _, kind = layer.rpartition(":")
    return (name, kind) if name and kind in KINDS else (layer, "")


def by_kind(layer: str, kind: str) -> str:
    """The name of a layer that is read by units of a kind, which :func:`split_kind` splits."""
    return f"{layer}:{kind}" if kind else layer


def kind_of(word: object) -> tuple[str, tuple[str, ...]]:
    """What kind of units a word asks for, and which of them: ``"token:0,token:1"`` -> ``("token", ("0", "1"))``.

    Args:
        word: A unit as ``analyze`` takes it.

    Returns:
        The kind, "" for units of a map, and an index or a name of each.

    Raises:
        ErfscopeError: units of several kinds, which have no one layout.
    """
    words = [word] if isinstance(word, str) else word if isinstance(word, list | tuple) else []
    parts = [part.strip() for each in words if isinstance(each, str) for part in _COMMA.split(each)]
    found = [_PART.fullmatch(part) for part in parts]
    kinds = {(match[1] or match[3]).lower() if match else "" for match in found}
    if kinds <= {""}:
        return "", ()
    kind, named = kinds.pop(), [match[2] or "" for match in found if match]
    # Names of classes may have commas.
    named = [n for each in named for n in (each.split(",") if kind != CLASS or _INDICES.fullmatch(each) else [each])]
    names = tuple(dict.fromkeys(name.strip() for name in named))
    mixed = kinds or len(parts) < len(words) or any(each in ("centre", "center", "corner", "edge") for each in names)
    if mixed:
        raise ErfscopeError(f"{word!r} asks for units of several kinds; measure each kind by itself")
    return kind, names


def read_kind(
    kind: str,
    shape: Sequence[int],
    images: int,
    layout: Layout | None,
    along: int | None = None,
    *,
    may_be_second: bool = True,
) -> tuple[Layout | None, str]:
    """How a tensor holds units of a kind, or why it does not, in words that follow its name.

    Args:
        kind: In :data:`KINDS`.
        shape: Of the tensor, in a pass of so many images.
        images: How many these are.
        layout: How it holds a map; None where it holds none.
        along: Where it holds none, the one dimension along which its places on the image change all the same, as along
            the anchors of several maps in a row; None for none, or several.
        may_be_second: Whether the second dimension may be that of the images: two scores of each proposal are not two
            images.
    """
    if shape[:1] != (images,) and not (may_be_second and shape[1:2] == (images,)):
        count = "1 image" if images == 1 else f"{images} images"
        way_out = "let erfscope.wrap(model, forward=...) return it as (images, rows, channels)"
        return None, f"has no axis of images: its output has shape {tuple(shape)} for {count}; {way_out}"
    found = layout_of_kind(kind, shape, images, layout, along)
    return found, "" if found else f"has no axis of units {kind!r}: its output has shape {tuple(shape)}"


def layout_of_kind(
    kind: str, shape: Sequence[int], images: int, layout: Layout | None, along: int | None = None
) -> Layout | None:
    """How a tensor holds units of a kind; None where it has no axis for them. Arguments are those of
    :func:`read_kind`."""
    rank, batch = len(shape), next((dim for dim, side in enumerate(shape[:2]) if side == images), None)
    if batch is None or rank not in KINDS[kind]:
        return None
    others = tuple(dim for dim in range(rank) if dim != batch)
    if kind == VECTOR:
        return Layout(batch_dim=batch, kind=kind)
    if kind == CLASS:
        dims = others if rank == 2 else () if layout is None else layout.channel_dims(rank)
        return Layout(dims=dims, batch_dim=batch, kind=kind) if len(dims) == 1 else None
    dims = tuple(dim for dim in others if dim == along) if layout is None else layout.space_dims(rank)
    return Layout(dims=dims if len(dims) == 1 else others[:1], batch_dim=batch, kind=kind)


def resolve_kind(
    kind: str, names: Sequence[str], space: Sequence[int], *, layer: str, known: Mapping[str, Sequence[int]]
) -> list[Unit]:
    """The units of a kind that their names mean.

    Args:
        kind: In :data:`KINDS`.
        names: An index, or a name, of each.
        space: How many there are; () of a vector.
        layer: Name of the layer, for the error.
        known: Indices by name.

    Returns:
        The units, in the order given, without repetition.

    Raises:
        ErfscopeError: no such index or name.
    """
    if not space:
        return [Unit(index=())]
    (count,), found = space, dict[int, None]()
    spelled = {name.casefold(): indices for name, indices in known.items()}
    for name in names:
        indices = [int(name)] if _INDICES.fullmatch(name) else spelled.get(name.casefold())
        if indices is None and not known:
            raise ErfscopeError(
                f"{kind}:{name} names no unit of {layer}: name it by its index, {kind}:0 to {count - 1}"
            )
        if indices is None:
            raise unknown(kind, name, known, where=f"{layer} (an index from 0 to {count - 1} is one too)")
        if outside := [index for index in indices if not 0 <= index < count]:
            raise ErfscopeError(f"{kind} {outside[0]} lies outside {layer}, which has {count}; the last is {count - 1}")
        found |= dict.fromkeys(indices)
    return [Unit(index=(index,)) for index in found]

"""What figures say about results: the conditions under which they hold, what tells them apart, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.geometry.box import size_text
from erfscope.geometry.names import IMAGE
from erfscope.measures.values import MeasureValue
from erfscope.results.result import Result
from erfscope.tables.columns import (
    IN_PLANE,
    cells_text,
    convention_text,
    images_text,
    index_text,
    lengths_text,
    rounded,
    square_text,
    whole_text,
    with_error,
)

#: The radii that figures and pages draw.
RADII = ("r50", "r90")


def condition_words(result: Result) -> dict[str, str]:
    """The conditions under which a map holds, each by what it is and as it reads alone; fallback weights are said
    aloud."""
    source = result.weights.source
    weights = ("weights as provided" if source == "given" else f"{source} weights") + (
        ", FALLBACK" if result.weights.fallback else ""
    )
    images = f"{result.input.n_images} image{'' if result.input.n_images == 1 else 's'}"
    said = {"weights": weights, "input": f"input {size_text(result.input.size)}", "convention": convention_text(result)}
    if result.method != "gradient":
        said["method"] = result.method.replace("_", " ")
    said |= option_words(result)
    said["images"] = images
    if result.is_in_plane:
        said["sizes"] = f"sizes {IN_PLANE}, map summed over its first axis"
    if result.wrt != IMAGE:
        said["wrt"] = f"wrt {result.wrt}"
    return said


def shared(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """The conditions that all results share, and for each result those in which they differ."""
    every = [condition_words(result) for result in results]
    common = {name: text for name, text in every[0].items() if all(each.get(name) == text for each in every)}
    return list(common.values()), [[text for name, text in each.items() if name not in common] for each in every]


def error_words(results: Sequence[Result], sign: str) -> list[str]:
    """What the errors are over, where r50 or r90 of any result has one; ``sign`` says how they are shown."""
    over = dict.fromkeys(
        result.se_over for result in results for measure in radii(result).values() if measure.se is not None
    )
    return [f"{sign} standard error over {' and '.join(over)}"] if over else []


def unit_text(result: Result) -> str:
    """E.g. ``unit 3,3``."""
    return "" if result.unit is None else f"unit {index_text(result)}"


def identity_words(result: Result, *, gap: str) -> list[str]:
    """What was measured, in a few words each.

    Args:
        result: The result.
        gap: Between the numbers of an index or a place: ``","`` or ``", "``.
    """
    words = []
    if result.layer:
        words.append(f"{result.layer} (chosen)" if result.layer_chosen else result.layer)
    if result.wrt != IMAGE:
        words.append(
            f"with respect to {result.wrt}" + ("" if result.trf is None else f" {size_text(result.trf.reference_px)}")
        )
    if result.unit is not None:
        about = "" if result.unit.center_exact else "about "
        place = gap.join(f"{c:g}" for c in result.unit.center_px)
        words.append(f"unit ({gap.join(map(str, result.unit.index))}) at {about}({place}) {cells_text(result)}")
    words += [size_text(result.input.size), images_text(result), convention_text(result)]
    if result.method != "gradient":
        words.append(result.method)
    if result.computed is not None:
        words.append(f"path {result.computed.path}")
    return [*words, *option_words(result).values()]


def option_values(result: Result) -> dict[str, str]:
    """The other options that are not the default, by name."""
    values = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in result.options.items()
    }
    return {name.replace("_", " "): text for name, text in values.items()}


def option_words(result: Result) -> dict[str, str]:
    """The same with their names, as they read alone."""
    return {name: f"{name} {text}" for name, text in option_values(result).items()}


def names(results: Sequence[Result]) -> list[str]:
    """A name for every result: its label, and in what it differs from the others of that label."""
    return [
        " · ".join([result.label, *_distinguishing(result, [r for r in results if r.label == result.label])])
        for result in results
    ]


def _distinguishing(result: Result, alike: Sequence[Result]) -> list[str]:
    # Units of different layers have different indices wherever they are.
    same_layer = [other for other in alike if other.layer == result.layer]
    parts = [result.layer] if len(same_layer) < len(alike) else []
    if any(other.unit != result.unit for other in same_layer):
        parts.append(unit_text(result))
    every = [condition_words(other) for other in alike]
    return parts + [
        text for name, text in condition_words(result).items() if any(other.get(name) != text for other in every)
    ]


def cells(results: Sequence[Result]) -> str:
    """What lengths are given in: px, or cells of the reference."""
    return " or ".join(sorted({cells_text(result) for result in results}, reverse=True))


def lengths(results: Sequence[Result]) -> str:
    """The same of sizes and distances, which are in-plane where the reference has three axes."""
    flat = all(result.is_in_plane for result in results)
    return cells(results) + (f", {IN_PLANE}" if flat else "")


def radii(result: Result) -> dict[str, MeasureValue]:
    """Those of :data:`RADII` that a result has."""
    found = {name: result.measures.get(name) for name in RADII}
    return {name: radius for name, radius in found.items() if radius is not None and isinstance(radius.value, float)}


def size_lines(result: Result) -> list[str]:
    """r50 and r90, with as many decimals, and the theoretical receptive field (TRF), a line each."""
    word, found = lengths_text(result), radii(result)
    decimals = max((len(rounded(r.value, r.se)[0].partition(".")[2]) for r in found.values()), default=0)
    return [
        f"{name} {with_error(radius.value, radius.se, decimals=decimals)} {word}" for name, radius in found.items()
    ] + field_lines(result)


def field_lines(result: Result) -> list[str]:
    """The TRF in words; nothing where it is not known."""
    trf = result.trf
    if trf is None:
        return []
    if trf.is_global:
        return [
            f"TRF {whole_text(result.wrt).removeprefix('the ')}"
            + ("" if trf.local_size_px == trf.size_px else f" (local {size_text(trf.local_size_px)})")
        ]
    bound = "" if trf.exact else "at most "
    covers = all(low <= 0 and high >= size - 1 for (low, high), size in zip(trf.box_px, trf.reference_px, strict=True))
    whole = "the input" if result.wrt == IMAGE else result.wrt
    beyond = f", {'as large as' if trf.size_px == trf.reference_px else 'larger than'} {whole}" if covers else ""
    return [f"TRF {bound}{square_text(trf.size_px)} {cells_text(result)}{beyond}"]

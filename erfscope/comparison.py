"""What may stand in one table: the same pixels, the same convention, the same kind of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from erfscope.errors import MeasurementError
from erfscope.result import Result
from erfscope.tables import size_text

#: What two rows must share: (words for it, how to read it).
SHARED: tuple[tuple[str, Callable[[Result], object]], ...] = (
    ("input size", lambda r: size_text(r.input.size)),
    ("convention", lambda r: r.convention),
    ("method", lambda r: r.method),
    ("pictures (sha256)", lambda r: (r.input.sha256 or "")[:12]),
    ("number of images", lambda r: r.input.n_images),
    ("draws", lambda r: r.input.n_draws),
    ("seed", lambda r: r.seed),
    ("dtype", lambda r: r.dtype),
    ("reference", lambda r: "image" if r.wrt == "image" else "feature map"),
)


def refuse_mismatch(results: Sequence[Result]) -> None:
    """Refuse rows that were measured under different settings.

    Raises:
        MeasurementError: names the settings that differ, with both values.
    """
    usable = [result for result in results if result.ok]
    for result in usable[1:]:
        first = usable[0]
        differing = []
        for words, read in SHARED:
            ours, theirs = read(first), read(result)
            if ours != theirs:
                differing.append(f"{words} ({ours} against {theirs})")
        if differing:
            raise MeasurementError(
                f"{result.label} cannot be compared with {first.label}: they differ in {', '.join(differing)}; "
                "measure both with the same settings"
            )


def refuse_mixed_weights(weights: Sequence[tuple[str, Any]]) -> None:
    """Refuse a comparison in which only some models fell back to random weights.

    Args:
        weights: (label, weights record) of every model.

    Raises:
        MeasurementError: names the models that fell back.
    """
    fell = [label for label, record in weights if record.fallback]
    if fell and len(fell) < len(weights):
        reason = next(record.reason for _, record in weights if record.fallback)
        raise MeasurementError(
            f"pretrained weights are missing for {', '.join(fell)} ({reason}) but not for the others, and trained models are not compared "
            f"with random ones; add --weights random to compare architectures"
        )

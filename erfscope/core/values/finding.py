"""Findings: facts about a model, a map or its images that a reader of the numbers has to know, and their kinds.

To add one: a row in :data:`CODES` and one in ``docs/pitfalls.md``, and ``Finding(code=..., text=...)`` where the fact
is known: of a model, a recorded pass or a map in ``core/answer/findings.py``, of a run in
``core/run/engine/outcome.py`` and ``additions/``, of rows beside each other in ``core/answer/comparability.py``, of
what only an adapter knows in its ``remarks``. Every output shows the sentence, CSV the code alone; a ``notice`` stands
with one result and not in a table of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The sentence about residual branches that start at zero and were switched on.
SWITCHED_ON = "erfscope gave them weights so that they count (`--weights random-raw` leaves them at zero)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fact that a reader of the numbers has to know."""

    #: One of :data:`CODES`; reports of other versions may have others.
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of finding."""

    #: The subject. Findings of maps and images follow from the sums over images, and are derived again when sums are
    #: merged; findings of a model do not depend on the images.
    scope: Literal["model", "map", "pictures"]
    #: "notice": shown with one result, and not in a table of several.
    severity: Literal["warning", "notice"] = "warning"


#: Every kind of finding, by its code.
CODES = {
    "amp_error": Code("model"),
    "assumed": Code("model"),
    "assumed_layout": Code("model"),
    "at_border": Code("map", "notice"),
    "averaged": Code("model"),
    "border_cuts": Code("model"),
    "bypassed": Code("map"),
    "centre_not_exact": Code("model"),
    "clipped": Code("map"),
    "dead_attention": Code("model"),
    "dead_images": Code("pictures"),
    "earlier_layer": Code("model"),
    "fewer_images": Code("model"),
    "gradient_disagrees": Code("map"),
    "gradient_unproved": Code("model", "notice"),
    "identity": Code("model"),
    "ignored_keys": Code("model"),
    "input_enlarged": Code("model"),
    "map_missing": Code("model"),
    "model": Code("model", "notice"),
    "nan_images": Code("pictures"),
    "needed_numbers": Code("model"),
    "no_place": Code("map", "notice"),
    "no_share": Code("pictures"),
    "noise_floor": Code("map"),
    "not_repeatable": Code("model"),
    "off_centre_peak": Code("map"),
    "one_by_one": Code("model"),
    "outside_trf": Code("map"),
    "own_cell_dominated": Code("map"),
    "output_not_read": Code("model"),
    "own_resizing": Code("model"),
    "reactivated": Code("model", "notice"),
    "repeated_layers": Code("model"),
    "sees_all": Code("map", "notice"),
    "several_outputs": Code("model"),
    "shard": Code("pictures"),
    "smaller_batches": Code("model"),
    "stopped": Code("pictures"),
    "tf32_error": Code("model"),
    "too_few_images": Code("map"),
    "trf_cut": Code("map", "notice"),
    "trf_inexact": Code("map", "notice"),
    "unreadable_images": Code("pictures"),
    "unsafe_load": Code("model"),
    "until_se": Code("model"),
    "value_range": Code("model"),
    "versions": Code("model"),
    "weak_centre": Code("map"),
    "zero_branches": Code("model"),
}
#: The kind of a code that only another version of erfscope has.
_OTHER = Code("model")


def code_of(finding: Finding) -> Code:
    """Return the kind of a finding."""
    return CODES.get(finding.code, _OTHER)

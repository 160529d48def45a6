"""What is computed of a measured unit beside its map and its sizes, one file for each; the registry of these.

May import: ``engine`` and below, not ``tiling``.
"""

from __future__ import annotations

from erfscope.additions.every_unit import with_positions
from erfscope.additions.precision import with_precision_errors
from erfscope.additions.rank_correlation import with_rank_correlation
from erfscope.additions.sampling_points import with_sampling_points
from erfscope.additions.trust import with_trust
from erfscope.additions.verification import with_verification
from erfscope.engine.measure import Addition
from erfscope.geometry.unit import is_every_unit
from erfscope.options.settings import Settings, by_removal

#: In the order in which they are computed, by name. What an addition finds is a field of
#: :class:`erfscope.results.result.Result` and has its lines in :data:`erfscope.view.extras.EXTRAS`, or is a finding.
ADDITIONS: dict[str, Addition] = {
    "precision": Addition(lambda settings: settings.amp_dtype is not None or settings.tf32, with_precision_errors),
    "verification": Addition(lambda settings: settings.verify, with_verification),
    "sampling_points": Addition(lambda settings: settings.show_samples, with_sampling_points),
    "trust": Addition(lambda settings: settings.trust, with_trust, lambda result: result.trust is None),
    "positions": Addition(
        lambda settings: is_every_unit(settings.unit), with_positions, lambda result: result.positions is None
    ),
    "rank_correlation": Addition(by_removal, with_rank_correlation),
}


def additions(settings: Settings) -> list[Addition]:
    """Those that the settings ask for."""
    return [addition for addition in ADDITIONS.values() if addition.is_wanted(settings)]

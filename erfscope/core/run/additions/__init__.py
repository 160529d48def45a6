"""What is computed of a measured unit beside its map and its sizes, one file for each; the registry of these.

A new one is a file with its function, a row here, a field of :class:`erfscope.core.answer.result.Result`, its name in
``core/answer/storage/documents.py`` and its lines in ``show/view/extras.py``; its option is a field of
:class:`erfscope.core.request.settings.Settings`. ``noise.py`` and ``double.py`` belong to trust and verification,
``unit_fields.py`` to every unit.

May import: ``engine`` and ``attribution`` beside it and below, not ``tiling``.
"""

from __future__ import annotations

from erfscope.core.request.settings import Settings, by_removal
from erfscope.core.run.additions.every_unit import with_positions
from erfscope.core.run.additions.precision import with_precision_errors
from erfscope.core.run.additions.rank_correlation import with_rank_correlation
from erfscope.core.run.additions.sampling_points import with_sampling_points
from erfscope.core.run.additions.trust import with_trust
from erfscope.core.run.additions.verification import with_verification
from erfscope.core.run.engine.measure import Addition
from erfscope.core.values.unit import is_every_unit

#: In the order in which they are computed.
ADDITIONS = (
    Addition("", lambda settings: settings.amp_dtype is not None or settings.tf32, with_precision_errors),
    Addition("verification", lambda settings: settings.verify, with_verification),
    Addition("sampling_points", lambda settings: settings.show_samples, with_sampling_points),
    Addition("trust", lambda settings: settings.trust, with_trust),
    Addition("positions", lambda settings: is_every_unit(settings.unit), with_positions),
    Addition("rank_correlation", by_removal, with_rank_correlation),
)


def additions(settings: Settings) -> list[Addition]:
    """Those that the settings ask for."""
    return [addition for addition in ADDITIONS if addition.is_wanted(settings)]

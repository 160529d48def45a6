"""The maps of many units of one layer on one image, without errors, for those who look at all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from erfscope.core.answer.from_sums import cell_sides
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.result import Result
from erfscope.core.answer.timing import own_step
from erfscope.core.graph.site import Site
from erfscope.core.images.feed import Images
from erfscope.core.request.request import Request
from erfscope.core.run.additions.every_unit import field_maps
from erfscope.core.run.additions.unit_fields import UnitFields, fields_of
from erfscope.core.run.engine.batch import accumulate
from erfscope.core.run.engine.measure import measure_units
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.outcome import pending_result
from erfscope.core.run.engine.plan import Callbacks, Plan, Sums, axes_of, plan_run
from erfscope.core.run.engine.shared_run import SharedRun
from erfscope.core.system.restore import same_random_numbers
from erfscope.core.values.axes import Axes
from erfscope.core.values.unit import Trf, Unit


def unit_maps(
    model: OpenModel, site: Site, images: Images, request: Request, along: Sequence[Sequence[int]] | None = None
) -> UnitMaps:
    """Plan the maps of units of one layer on the first image; they are measured when they are iterated over.

    Args:
        model: The model, inside of its ``with`` block until the last map was measured.
        site: The layer and the reference.
        images: What is shown to the model.
        request: Its first convention, draws, channels and seed; its ``progress`` is called.
        along: The indices of the units along each axis of the layer's map; all of them if None.

    Raises:
        ErfscopeError: an unknown convention, or no image.
        MeasurementError: no one tensor is meant by the layer, or the model fails.
    """
    (settings,) = replace(request, conventions=request.conventions[:1], references=(site.wrt,)).questions([site.layer])
    with same_random_numbers():
        plan = plan_run(model, images, settings, site.layer)
    progress = partial(request.progress, f"{model.label} · {site.layer}")
    chosen = [range(side) for side in site.space] if along is None else along
    return UnitMaps(plan, chosen, Callbacks(progress=progress, stop=request.stop))


class UnitMaps:
    """Units of one layer on one image: where they stand, what their maps cost, and the maps, one after the other.

    Iterating gives (number of a unit in ``every.units``, its map), in an order of its own; None for a unit without a
    gradient. Units that no path leads to are left out. A map is that of :func:`erfscope.analyze` by the model itself,
    up to rounding; units whose theoretical receptive fields (TRFs) do not overlap share a backward pass.

    Args:
        plan: The measurement of the layer's central unit.
        along: The indices of the units along each axis.
        callbacks: What is called meanwhile.
    """

    def __init__(self, plan: Plan, along: Sequence[Sequence[int]], callbacks: Callbacks) -> None:
        self._plan, self._callbacks = plan, callbacks
        self.along, self.site = along, plan.site
        #: The unit whose centre is nearest to the reference's, its TRF, and the axes of the reference.
        self.unit: Unit = plan.question.units[0]
        self.trf: Trf = plan.trfs[0]
        self.axes: Axes = axes_of(plan, 0)
        #: The images of the input that is the reference, of several.
        self.images: Images = plan.feed.of(plan.site.wrt)
        #: Whether random signs are drawn.
        self.is_random: bool = plan.question.convention.random

    @cached_property
    def conditions(self) -> Result:
        """Model, weights, convention and input, as a result of the central unit without map and measures."""
        return pending_result(self._plan, 0)

    @cached_property
    def every(self) -> UnitFields:
        """The ``units`` in the order of ``itertools.product(*along)``, their ``trfs``, and the ``fields`` outside of
        which their maps are zero.

        For these the central unit is measured by the model itself: where a gradient leaves its TRF, each unit has
        backward passes of its own, and the whole reference as its field.
        """
        return fields_of(self._plan, self._looked, self.along)

    @property
    def passes(self) -> int:
        """Backward passes that all maps take."""
        draws = self._plan.question.draws
        return len(self.every.groups) * (self.site.shape[1] if draws == "all" else draws)

    @cached_property
    def _looked(self) -> Sums:
        """The sums of the central unit, measured by the model itself."""
        settings = replace(self._plan.settings, plain=True)
        with same_random_numbers():
            plan = plan_run(self._plan.model, self._plan.feed, settings, self.site.layer)
            run, sums = SharedRun(plan), plan.sums()
            accumulate(run, sums, [0], run.read)
        sums.seen = 1
        return sums

    def __iter__(self) -> Iterator[tuple[int, ErfMap | None]]:
        for number, erf in field_maps(self._plan, self._looked, self.every, self._callbacks):
            yield number, None if erf is None else self._whole(number, erf)

    def _whole(self, number: int, erf: ErfMap) -> ErfMap:
        """A map that is given on its field as one on the whole reference."""
        every, index = self.every, self.every.units[number].index
        trf = every.trfs[number]
        assert trf is not None
        values = np.zeros(trf.reference_px)
        values[tuple(slice(first, last + 1) for first, last in every.fields[number])] = erf.values
        return replace(
            erf,
            values=values,
            center_px=trf.center_px,
            cell_px=cell_sides(self._plan.model.adapter.preprocess.of(self.site.wrt).size, trf.reference_px),
            trf=trf,
            own_time=own_step(trf, erf.axes, index, self.site.space),
        )

    def result(self, index: Sequence[int]) -> Result:
        """One unit as :func:`erfscope.analyze` measures it.

        Raises:
            ErfscopeError: no such unit, or an image that cannot be read.
            MeasurementError: the model fails.
        """
        settings = replace(self._plan.settings, unit=tuple(index))
        (found,) = measure_units(self._plan.model, self._plan.feed, replace(settings, layer=self.site.layer))
        return found

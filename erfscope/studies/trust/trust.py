"""``trust``: whether forward passes with noise find a gradient that is wrong, and how much of a map the weights make.

The study detaches a share s of a module's output, so that the values of a net do not change and its gradient loses that
share. If all paths from the image to the unit pass the module, the energy that noise finds is 1 / (1 - s)^2 times what
this gradient predicts. Captum's infidelity gets the same gradient and noise of the same strength. Then the study draws
weights anew, part by part from the output down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.maps.probe import LARGEST_ERROR
from erfscope.studies.study import Column, StudyFindings, StudyOptions, cell
from erfscope.studies.trust.cascade import OTHER, Stage, cascade
from erfscope.studies.trust.detached import Found, measured
from erfscope.studies.trust.nets import NETS, Net, built

#: Side of the input of nets with random weights, in pixels.
SIDE = 96
#: How much rounding may change the normalised infidelity, which is invariant to a factor.
BLIND = 0.01
#: By how many standard errors a mean ratio may be off by chance.
STANDARD_ERRORS = 3.5
#: The smallest share that must be found.
LEAST = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A share of one module's output detached, or one part of a net with other weights; means over runs, with their
    standard errors."""

    name: str
    net: str
    #: The module and the share, or the first of the parts with new weights.
    case: str
    #: The module whose output is detached; None where weights are drawn anew.
    module: str | None = None
    share: float | None = None
    ratio: float | None = None
    ratio_se: float | None = None
    #: 1 / (1 - s)^2 if all paths pass the module, else the ratio of the energies of the whole gradient and of this one.
    expected: float | None = None
    runs: int
    #: Runs with the finding ``gradient_disagrees``, and runs in which it named the module.
    found: int | None = None
    named: int | None = None
    #: How many standard errors the ratio lies above 1, and infidelity above that of the net with nothing detached.
    ratio_z: float | None = None
    infidelity_z: float | None = None
    infidelity: float | None = None
    infidelity_se: float | None = None
    #: The normalised infidelity over that of the net with nothing detached.
    normalised: float | None = None
    #: Spearman's rank correlation with the map of the net as it was.
    correlation: float | None = None
    correlation_se: float | None = None
    #: The share that both maps have in common, each divided by its sum.
    overlap: float | None = None
    #: Whether the study claims something about the row.
    claimed: bool = False
    passed: bool = True


def study(asked: StudyOptions) -> StudyFindings:
    """Measure two nets with shares of a block and of a branch detached, and with new weights."""
    runs, samples = asked.pick(full=2, quick=1, smoke=1), asked.pick(full=128, quick=32, smoke=8)
    shares = asked.pick(full=(0.05, 0.1, 0.2, 0.5), quick=(0.05, 0.2), smoke=(0.05,))
    nets = asked.pick(full=NETS, quick=NETS, smoke=NETS[1:])
    rows: list[Row] = []
    maps: dict[str, list[Stage]] = {}
    for net in asked.each("trust", nets):
        rows += _detached_rows(asked, net, shares, runs)
        cascades = [list(_cascade(asked, net, run, samples)) for run in range(runs)]
        rows += _cascade_rows(net, cascades)
        maps[net.name] = cascades[0]
    return StudyFindings(
        columns=COLUMNS, section="net", rows=tuple(rows), conclusion=_conclusion(rows), picture=_picture(rows, maps)
    )


def _cascade(asked: StudyOptions, net: Net, run: int, samples: int) -> Sequence[Stage]:
    seed = asked.seed + run
    own, drawn = (
        built(net.name, number, data, size=_side(asked)) for number, data in ((seed, asked.data), (seed + OTHER, None))
    )
    return list(cascade(net, own, drawn, samples=samples, seed=seed))


def _side(asked: StudyOptions) -> int | None:
    """Return the side of the input; None is the net's own, which weights from files are for."""
    return SIDE if asked.data is None else None


def _detached_rows(asked: StudyOptions, net: Net, shares: Sequence[float], runs: int) -> list[Row]:
    """Return one row per share of the block and of the branch."""
    by_place: dict[str, list[list[Found]]] = {net.block: [], net.branch: []}
    for run in range(runs):
        seed = asked.seed + run
        adapter = built(net.name, seed, asked.data, size=_side(asked))
        base = measured(adapter, net.block, 0.0, seed)
        for place, found in by_place.items():
            found.append([base, *(measured(adapter, place, share, seed, base) for share in shares)])
    rows = []
    for place, found in by_place.items():
        # The net with nothing detached has one row.
        cases = list(zip(*found, strict=True))[0 if place == net.block else 1 :]
        rows += [_row(net, place, case, [each[0] for each in found]) for case in cases]
    return rows


def _row(net: Net, place: str, found: Sequence[Found], base: Sequence[Found]) -> Row:
    share, all_paths = found[0].share, place == net.block
    ratio, se = _mean_of([each.ratio for each in found])
    gradients = np.concatenate([whole.energy / each.energy for whole, each in zip(base, found, strict=True)])
    plain, plain_se = _over_images([each.infidelity for each in found])
    before, before_se = _over_images([each.infidelity for each in base])
    normalised = (
        _over_images([each.normalised for each in found])[0] / _over_images([each.normalised for each in base])[0]
    )
    expected, disagreeing = (
        1 / (1 - share) ** 2 if all_paths else float(gradients.mean()),
        sum(each.disagrees for each in found),
    )
    right = abs(ratio / expected - 1) <= max(LARGEST_ERROR, STANDARD_ERRORS * se / expected)
    seen = disagreeing == (len(found) if share >= LEAST else 0)
    return Row(
        name=f"{net.name}, {place}, {share:.0%}",
        net=net.name,
        case=f"{place} {share:.0%}",
        module=place,
        share=share,
        ratio=ratio,
        ratio_se=se,
        expected=expected,
        runs=len(found),
        found=disagreeing,
        named=sum(each.module == place for each in found),
        ratio_z=(ratio - 1) / se,
        infidelity_z=(plain - before) / math.hypot(plain_se, before_se),
        infidelity=plain,
        infidelity_se=plain_se,
        normalised=normalised,
        claimed=all_paths,
        passed=not all_paths or (right and seen and abs(normalised - 1) <= BLIND),
    )


def _mean_of(estimates: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of numbers with independent errors, and its error."""
    values, errors = zip(*estimates, strict=True)
    return float(np.mean(values)), math.hypot(*errors) / len(errors)


def _over_images(runs: Sequence[FloatArray]) -> tuple[float, float]:
    """Return the mean over the images of all runs, and its standard error."""
    values = np.concatenate(runs)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def _cascade_rows(net: Net, cascades: Sequence[Sequence[Stage]]) -> list[Row]:
    rows = []
    for stages in zip(*cascades, strict=True):
        values = np.array([stage.correlation for stage in stages])
        part = stages[0].part
        rows.append(
            Row(
                name=f"{net.name}, {part or 'none'} drawn anew",
                net=net.name,
                case=f"redrawn from {part} on" if part else "weights kept",
                runs=len(stages),
                correlation=float(values.mean()),
                overlap=float(np.mean([stage.overlap for stage in stages])),
                correlation_se=float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None,
            )
        )
    return rows


def _conclusion(rows: Sequence[Row]) -> str:
    return f"{_where_all_paths_pass(rows)}{_around(rows)} {_made_by_weights(rows)}"


def _where_all_paths_pass(rows: Sequence[Row]) -> str:
    claimed = [row for row in rows if row.claimed]
    none = [row for row in claimed if row.share == 0]
    some = [row for row in claimed if row.share]
    off = max(abs((row.ratio or 0) / (row.expected or 1) - 1) for row in claimed)
    ratios = ", ".join(f"{row.net} {row.ratio:.4f} ± {row.ratio_se:.4f}" for row in none)
    first = [row for row in some if row.share == LEAST]
    sharper = ", ".join(
        f"{row.ratio_z:.0f} of the ratio and {row.infidelity_z:.1f} of infidelity in {row.net}" for row in first
    )
    blind = max(abs((row.normalised or 0) - 1) for row in some)
    return (
        f"With nothing detached the ratio is {ratios}. Where all paths pass the module it is 1/(1-s)² to {off:.1%};"
        f" shares from {LEAST:.0%} on are found in {sum(row.found or 0 for row in some)} of"
        f" {sum(row.runs for row in some)} runs, and the module is named in {sum(row.named or 0 for row in some)}."
        f" {LEAST:.0%} lie {sharper} standard errors from nothing; infidelity must be compared with that of a right"
        f" gradient, and normalised infidelity changes by {blind:.1e} at most."
    )


def _around(rows: Sequence[Row]) -> str:
    """Say what the study found for modules with an identity around them."""
    branches = [row for row in rows if row.module is not None and not row.claimed]
    return "".join(
        f" Where an identity goes around {row.module} of {row.net}, the whole gradient has {row.expected:.4f} times the"
        f" energy of one without {row.share:.0%} of it: found in {row.found} of {row.runs}, at {row.ratio_z:.1f} errors"
        f" of the ratio and {row.infidelity_z:.1f} of infidelity."
        for row in branches
        if row.share == max(each.share or 0 for each in branches)
    )


def _made_by_weights(rows: Sequence[Row]) -> str:
    """Say how similar the maps of nets with all weights new are to those before."""
    stages = {
        net: [row for row in rows if row.net == net and row.correlation is not None]
        for net in dict.fromkeys(row.net for row in rows)
    }
    texts = [
        f"{net} {kept.correlation:.2f} and {kept.overlap:.2f}, then {drawn.correlation:.2f} and {drawn.overlap:.2f}"
        for net, (kept, *_, drawn) in stages.items()
    ]
    return (
        "Rank correlation and overlap of the map with that of other images, with the same weights and then with all of"
        f" them drawn anew: {'; '.join(texts)}."
    )


def _picture(rows: Sequence[Row], maps: dict[str, list[Stage]]) -> Picture:
    of_block = {net: [row for row in rows if row.net == net and row.claimed] for net in maps}
    shares = sorted({row.share for row in rows if row.share is not None})
    ratios = Chart(
        title="Ratio where all paths pass the module",
        x="share detached",
        y="ratio",
        curves=(
            *(
                Curve(
                    label=net,
                    x=[row.share or 0 for row in of_net],
                    y=[row.ratio or 0 for row in of_net],
                    error=[row.ratio_se or 0 for row in of_net],
                    points=True,
                )
                for net, of_net in of_block.items()
            ),
            Curve(label="1/(1-s)²", x=shares, y=[1 / (1 - share) ** 2 for share in shares]),
        ),
    )
    apart = Chart(
        title="Standard errors from nothing detached",
        x="share detached",
        y="standard errors",
        curves=tuple(
            Curve(
                label=f"{net}, {word}",
                x=[row.share or 0 for row in of_net[1:]],
                y=[getattr(row, name) for row in of_net[1:]],
            )
            for net, of_net in of_block.items()
            for word, name in (("ratio", "ratio_z"), ("infidelity", "infidelity_z"))
        ),
        log="y",
    )
    shown = tuple(
        tuple(
            Shown(title=f"{net}, {stage.part or 'as it was'}", values=stage.values)
            for stage in (stages[0], stages[1], stages[-1])
        )
        for net, stages in maps.items()
    )
    return Picture(
        title="Trust: gradients that lose a share, and maps whose weights are drawn anew",
        rows=((ratios, apart), *shown),
        note="Maps: the net as it was; with its last part drawn anew; with all parts drawn anew.",
    )


def _claim(row: Row) -> str:
    return "-" if not row.claimed else "ok" if row.passed else "FAILED"


COLUMNS = (
    Column(title="case", text=lambda row: row.case, numeric=False),
    Column(title="ratio", text=lambda row: "" if row.ratio is None else f"{row.ratio:.3f}±{row.ratio_se:.3f}"),
    Column(title="expected", text=lambda row: cell(row.expected, ".3f")),
    Column(title="found", text=lambda row: "" if row.found is None else f"{row.found}/{row.runs}"),
    Column(title="ratio z", text=lambda row: cell(row.ratio_z, ".1f"), optional=True),
    Column(title="infid. z", text=lambda row: cell(row.infidelity_z, ".1f"), optional=True),
    Column(title="rank", text=lambda row: cell(row.correlation, ".3f")),
    Column(title="overlap", text=lambda row: cell(row.overlap, ".3f")),
    Column(title="", text=_claim, numeric=False),
)

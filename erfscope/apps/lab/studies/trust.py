"""The ratio of trust and Captum's infidelity of a gradient when a share of one module's output is detached."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from captum.metrics import infidelity as captum_infidelity
from scipy.stats import spearmanr
from torch import Tensor

import erfscope
from erfscope import UnitReadout, adapters
from erfscope.apps.lab.studies.study import (
    Claim,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyRow,
    claim,
    holds,
    points,
    result_with_map,
    with_error,
)
from erfscope.core import (
    ErfscopeError,
    FloatArray,
    MeasurementError,
    ModuleAdapter,
    Request,
    open_images,
    open_model,
    sound_gradients,
)
from erfscope.show import Chart, ChartMap, Curve, Picture

#: Images of one run, all of which ``--trust`` probes, and draws of noise on each for Captum.
IMAGES, PERTURBATIONS = 8, 16
#: How far a ratio may be from the expected one.
LARGEST_ERROR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """One net of one seed with one share detached. Arrays have one entry per image."""

    share: float
    #: With its standard error.
    ratio: tuple[float, float]
    disagrees: bool
    #: The module of the first operation without a true derivative, which the finding names.
    module: str | None
    #: Standard deviation of the noise for Captum, in standard deviations of an image.
    sigma: float
    #: Captum's infidelity over the square of the noise's standard deviation: plain, and normalised.
    infidelity: FloatArray
    normalised: FloatArray
    #: Energy of the gradient, |g|².
    energy: FloatArray


@contextlib.contextmanager
def detached(adapter: ModuleAdapter, place: str, share: float) -> Iterator[ModuleAdapter]:
    """Detach a share of a module's output, y -> s y.detach() + (1 - s) y, which keeps its values exactly. Yield a new
    adapter, since an adapter is recorded once."""

    def mix(_module: object, _args: object, y: Tensor) -> Tensor:
        return y.detach() + (1 - share) * (y - y.detach())

    handle = adapter.module.get_submodule(place).register_forward_hook(mix)
    try:
        yield copy.copy(adapter)
    finally:
        handle.remove()


def measured(adapter: ModuleAdapter, place: str, share: float, seed: int, base: Found | None = None) -> Found:
    """Measure with one share detached, on the same images and with the same noise for every share.

    Args:
        adapter: The net, which stays as it was.
        place: Name of a module.
        share: Share of its output; 0 to detach nothing.
        seed: Seed of the images, the random signs and the noise.
        base: The measurement with nothing detached, whose sharpest noise Captum gets; None to make that one.

    Raises:
        MeasurementError: the unit has no gradient.
    """
    with detached(adapter, place, share) if share else contextlib.nullcontext(adapter) as adapter:
        result = erfscope.analyze(adapter, samples=IMAGES, seed=seed, trust=True, measures=["r50"])
        trust, unit = result.trust, result.unit
        if trust is None or trust.ratio is None or unit is None:
            raise MeasurementError(
                f"{adapter.spec} with {share:.0%} of {place} detached: {result.error or 'no gradient'}"
            )
        # Captum runs in the model's own type, where noise for float64 would drown in rounding errors.
        own = [probe for probe in trust.gradient if probe.dtype is None]
        if not own:
            raise MeasurementError(f"{adapter.spec}: rounding errors hide what Captum could find")
        sigma = base.sigma if base else min(own, key=lambda probe: probe.energy.se).sigma
        scores = _scores(adapter, unit.index, seed, sigma)
    plain, normalised, energy = np.array(scores).T
    return Found(
        share=share,
        ratio=trust.ratio,
        disagrees=trust.disagrees,
        module=trust.module,
        sigma=sigma,
        infidelity=plain,
        normalised=normalised,
        energy=energy,
    )


def _scores(adapter: ModuleAdapter, unit: tuple[int, ...], seed: int, sigma: float) -> list[tuple[float, float, float]]:
    """Return Captum's infidelity of the gradient, plain and normalised, and the gradient's energy, for each image of a
    measurement."""
    request = Request.parse({"samples": IMAGES, "seed": seed})
    images = open_images(request, open_model(adapter, request)).batch(range(IMAGES)).float()
    found = []
    for image in range(IMAGES):
        readout = UnitReadout(adapter, unit=unit, seed=seed, image=image)
        x = images[image : image + 1].clone().requires_grad_(True)
        (g,) = torch.autograd.grad(readout(x).sum(), x)
        step = sigma * float(x.detach().double().std())
        plain, normalised = (
            infidelity(readout, x.detach(), g, step=step, samples=PERTURBATIONS, normalize=normalize) / step**2
            for normalize in (False, True)
        )
        found.append((plain, normalised, float(g.double().square().sum())))
    return found


def infidelity(
    readout: UnitReadout, x: Tensor, attribution: Tensor, *, step: float, samples: int, normalize: bool = False
) -> float:
    """Captum's infidelity of one image's attribution under Gaussian noise: the mean square of what it mispredicts.

    Args:
        readout: The function that is attributed.
        x: One image on the CPU, (1, C_in, *space).
        attribution: (1, C_in, *space).
        step: Standard deviation of the noise.
        samples: Draws of noise, which depend on the readout's seed and image alone.
        normalize: Compare what the attribution says times the one factor that fits best.

    Source: Yeh et al. 2019, arXiv:1901.09392.
    """
    generator = torch.Generator().manual_seed(readout.seed * 1_000_003 + readout.image)

    def perturb(inputs: Tensor) -> tuple[Tensor, Tensor]:
        moved = inputs - step * torch.randn(inputs.shape, dtype=torch.float64, generator=generator).to(inputs)
        # What the model gets is rounded: its difference to the image is the noise.
        return inputs.double() - moved.double(), moved

    with sound_gradients(x.device):
        found = captum_infidelity(
            lambda inputs: readout(inputs).double(),
            perturb,
            x,
            attribution.double(),
            n_perturb_samples=samples,
            normalize=normalize,
        )
    return float(found)


SUFFIXES = (".safetensors", ".pth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """One net, and where in it a share is detached."""

    name: str
    #: A late module whose output all paths from the image to the unit pass.
    block: str
    #: A later module with an identity around it, so that only some paths pass it.
    branch: str
    #: Parts from the input to the measured layer: (its name, how the names of its parameters begin).
    parts: tuple[tuple[str, tuple[str, ...]], ...]


NETS = (
    Net(
        name="test_resnet",
        block="layer3",
        branch="layer4.0.bn2",
        parts=(
            ("stem", ("conv1.", "bn1.")),
            *((name, (f"{name}.",)) for name in ("layer1", "layer2", "layer3", "layer4")),
        ),
    ),
    Net(
        name="test_vit",
        block="blocks.4",
        branch="blocks.5.attn",
        parts=(
            ("embedding", ("cls_token", "pos_embed", "reg_token", "patch_embed.")),
            *((f"blocks.{number}", (f"blocks.{number}.",)) for number in range(6)),
        ),
    ),
)


def built(name: str, seed: int, data: Path | None = None, *, size: int | None = None) -> ModuleAdapter:
    """A net with random weights, or with those of a folder.

    Args:
        name: Name of a timm model.
        seed: Seed of the random weights.
        data: A folder with NAME.safetensors or NAME.pth; None for random weights.
        size: Side of its input in pixels; None for the model's own, which weights from a file are trained for.

    Raises:
        ErfscopeError: no such file in the folder, or one that does not fit.
    """
    if data is None:
        return adapters.load(name, weights="random", seed=seed, input_size=size)
    files = [data / f"{name}{suffix}" for suffix in SUFFIXES]
    found = [file for file in files if file.is_file()]
    if not found:
        raise ErfscopeError(f"{str(data)!r} holds no weights of {name}: neither {files[0].name} nor {files[1].name}")
    return adapters.load(name, checkpoint=found[0], input_size=size)


#: Added to a seed, the seed of other weights and other images.
OTHER = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrustStage:
    """A net whose last parts have other weights."""

    #: The part that got new weights last; "" for none.
    part: str
    #: Spearman's rank correlation, over the pixels of the input, with the map of the net as it was, of other images.
    correlation: float
    #: The share that both maps have in common, each divided by its sum: 1 less the total variation distance.
    overlap: float
    #: The map, (H, W).
    values: FloatArray


def cascade(net: Net, adapter: ModuleAdapter, other: ModuleAdapter, *, samples: int, seed: int) -> Iterator[TrustStage]:
    """Yield the map of a net before, and after each part that takes the weights of another net.

    Args:
        net: The entry of the net.
        adapter: The net; it ends with the weights of the other one.
        other: The same net with other weights.
        samples: Images of each map.
        seed: Seed of the images and random signs of the first map. The maps that it is compared with have other images,
            so that they have only weights in common.

    Raises:
        MeasurementError: a map could not be measured.
    """
    first = _map(adapter, samples, seed)
    yield _stage("", first, _map(adapter, samples, seed + OTHER))
    own, drawn = adapter.module.state_dict(), other.module.state_dict()
    for part, starts in reversed(net.parts):
        with torch.no_grad():
            for name in own:
                if name.startswith(starts):
                    own[name].copy_(drawn[name])
        yield _stage(part, first, _map(adapter, samples, seed + OTHER))


def _map(adapter: ModuleAdapter, samples: int, seed: int) -> FloatArray:
    return np.asarray(result_with_map(adapter, samples=samples, seed=seed, measures=["r50"]).map.magnitude)


def _stage(part: str, first: FloatArray, values: FloatArray) -> TrustStage:
    shares = first / first.sum(), values / values.sum()
    correlation = float(spearmanr(first.ravel(), values.ravel()).statistic)
    return TrustStage(part=part, correlation=correlation, overlap=float(np.minimum(*shares).sum()), values=values)


#: Side of the input of nets with random weights, in pixels; weights from files have their net's own.
SIDE = 96
#: How much rounding may change the normalised infidelity, which is invariant to a factor.
BLIND = 0.01
#: By how many standard errors a mean ratio may be off by chance.
STANDARD_ERRORS = 3.5
#: The smallest share that must be found.
LEAST = 0.05
#: The numbers of a row: those of a share that is detached, or of a part with new weights; None for the other ones.
NUMBERS = (
    *("module", "share", "ratio", "ratio_se", "expected", "runs", "found", "named", "ratio_z", "infidelity_z"),
    *("infidelity", "infidelity_se", "normalised", "correlation", "correlation_se", "overlap"),
)


def study(asked: StudyOptions) -> StudyFindings:
    """Measure two nets with shares of a block and of a branch detached, and with new weights."""
    runs, samples = asked.pick(full=2, quick=1, smoke=1), asked.pick(full=128, quick=32, smoke=8)
    shares = asked.pick(full=(0.05, 0.1, 0.2, 0.5), quick=(0.05, 0.2), smoke=(0.05,))
    rows: list[StudyRow] = []
    for net in asked.each("trust", asked.pick(full=NETS, quick=NETS, smoke=NETS[1:])):
        rows += _detached_rows(asked, net, shares, runs)
        rows += _cascade_rows(net, [_cascade(asked, net, asked.seed + run, samples) for run in range(runs)])
    return StudyFindings(columns=COLUMNS, section="net", rows=rows, claims=_claims(rows), picture=_picture(rows))


def _cascade(asked: StudyOptions, net: Net, seed: int, samples: int) -> list[TrustStage]:
    size = SIDE if asked.data is None else None
    own, drawn = built(net.name, seed, asked.data, size=size), built(net.name, seed + OTHER, size=size)
    return list(cascade(net, own, drawn, samples=samples, seed=seed))


def _detached_rows(asked: StudyOptions, net: Net, shares: Sequence[float], runs: int) -> list[StudyRow]:
    """Return one row per share of the block and of the branch."""
    by_place: dict[str, list[list[Found]]] = {net.block: [], net.branch: []}
    for seed in range(asked.seed, asked.seed + runs):
        adapter = built(net.name, seed, asked.data, size=SIDE if asked.data is None else None)
        base = measured(adapter, net.block, 0.0, seed)
        for place, found in by_place.items():
            found.append([base, *(measured(adapter, place, share, seed, base) for share in shares)])
    rows = []
    for place, found in by_place.items():
        # The net with nothing detached has one row.
        cases = list(zip(*found, strict=True))[0 if place == net.block else 1 :]
        rows += [_row(net, place, case, [each[0] for each in found]) for case in cases]
    return rows


def _row(net: Net, place: str, found: Sequence[Found], base: Sequence[Found]) -> StudyRow:
    """Means over runs, with their standard errors."""
    share, all_paths = found[0].share, place == net.block
    ratio, se = _mean_of([each.ratio for each in found])
    energies = np.concatenate([whole.energy / each.energy for whole, each in zip(base, found, strict=True)])
    expected = 1 / (1 - share) ** 2 if all_paths else float(energies.mean())
    plain, plain_se = _over_images([each.infidelity for each in found])
    before, before_se = _over_images([each.infidelity for each in base])
    normalised, whole = (_over_images([each.normalised for each in some])[0] for some in (found, base))
    disagreeing = sum(each.disagrees for each in found)
    is_right = abs(ratio / expected - 1) <= max(LARGEST_ERROR, STANDARD_ERRORS * se / expected)
    is_seen = disagreeing == (len(found) if share >= LEAST else 0)
    row = StudyRow(name=f"{net.name}, {place}, {share:.0%}", net=net.name, case=f"{place} {share:.0%}")
    vars(row).update(dict.fromkeys(NUMBERS))
    vars(row).update(
        # The module whose output is detached.
        module=place,
        share=share,
        ratio=ratio,
        ratio_se=se,
        # 1 / (1 - s)^2 if all paths pass the module, else the ratio of the energies of the whole gradient and of this
        # one.
        expected=expected,
        runs=len(found),
        # Runs with the finding ``gradient_disagrees``, and runs in which it named the module.
        found=disagreeing,
        named=sum(each.module == place for each in found),
        # How many standard errors the ratio lies above 1, and infidelity above that of the net with nothing detached.
        ratio_z=(ratio - 1) / se,
        infidelity_z=(plain - before) / math.hypot(plain_se, before_se),
        infidelity=plain,
        infidelity_se=plain_se,
        # The normalised infidelity over that of the net with nothing detached.
        normalised=normalised / whole,
        # Whether the study claims something about the row.
        claimed=all_paths,
        passed=not all_paths or (is_right and is_seen and abs(normalised / whole - 1) <= BLIND),
    )
    return row


def _mean_of(estimates: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of numbers with independent errors, and its error."""
    values, errors = zip(*estimates, strict=True)
    return float(np.mean(values)), math.hypot(*errors) / len(errors)


def _over_images(runs: Sequence[FloatArray]) -> tuple[float, float]:
    """Return the mean over the images of all runs, and its standard error."""
    values = np.concatenate(runs)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def _cascade_rows(net: Net, cascades: Sequence[Sequence[TrustStage]]) -> list[StudyRow]:
    rows = []
    for stages in zip(*cascades, strict=True):
        values, part = np.array([stage.correlation for stage in stages]), stages[0].part
        row = StudyRow(
            name=f"{net.name}, {part or 'none'} drawn anew",
            net=net.name,
            case=f"redrawn from {part} on" if part else "weights kept",
        )
        vars(row).update(dict.fromkeys(NUMBERS))
        vars(row).update(
            runs=len(stages),
            # Spearman's rank correlation with the map of the net as it was.
            correlation=float(values.mean()),
            correlation_se=float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None,
            # The share that both maps have in common, each divided by its sum.
            overlap=float(np.mean([stage.overlap for stage in stages])),
            claimed=False,
            passed=True,
            maps={part: stages[0].values},
        )
        rows.append(row)
    return rows


def _of_nets(rows: Sequence[StudyRow]) -> dict[str, tuple[list[StudyRow], list[StudyRow]]]:
    """Net -> the rows of its block, and those of its weights drawn anew."""
    return {
        net: (
            [row for row in rows if row.net == net and row.claimed],
            [row for row in rows if row.net == net and row.correlation is not None],
        )
        for net in dict.fromkeys(row.net for row in rows)
    }


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    claims = []
    for net, ((whole, *lost), (kept, *_, drawn)) in _of_nets(rows).items():
        module, first = lost[0].module, lost[0]
        off = max(abs(row.ratio / row.expected - 1) for row in lost)
        blind = max(abs(row.normalised - 1) for row in lost)
        found, runs = sum(row.found for row in lost), sum(row.runs for row in lost)
        errors = f"{_in_errors(first.ratio_z)} and {_in_errors(first.infidelity_z)} standard errors"
        fell = f"{kept.correlation:.2f} to {drawn.correlation:.2f} (overlap {kept.overlap:.2f} to {drawn.overlap:.2f})"
        claims += [
            claim(f"{net}: ratio, nothing detached", "1", with_error(whole.ratio, whole.ratio_se, 4), whole.passed),
            claim(f"{net}: ratio, share s of {module} detached", "1 / (1 - s)²", f"to {off:.1%}", holds(lost)),
            claim(f"{net}: shares from {LEAST:.0%} on are found", "all", f"{found} of {runs} runs", found == runs),
            claim(
                f"{net}: the ratio is sharper than infidelity, {first.share:.0%} detached",
                "sharper",
                errors,
                first.ratio_z > first.infidelity_z,
            ),
            claim(f"{net}: normalised infidelity sees no factor", "0", f"{blind:.0e}", blind <= BLIND),
            claim(
                f"{net}: other weights, another map: rank correlation",
                "falls by half or more",
                fell,
                drawn.correlation <= kept.correlation / 2,
                has_mechanism=drawn.correlation < kept.correlation,
            ),
        ]
    return claims


def _in_errors(z: float) -> str:
    """A number of standard errors; one that is measured to seven digits has an error near zero."""
    return f"{z:.1f}" if z < 1000 else "over 1000"


def _picture(rows: Sequence[StudyRow]) -> Picture:
    nets = _of_nets(rows)
    shares = sorted({row.share for row in rows if row.share is not None})
    closed = Curve(label="1/(1-s)²", x=shares, y=[1 / (1 - share) ** 2 for share in shares])
    ratios = (points(net, block, "ratio", x="share", error="ratio_se") for net, (block, _) in nets.items())
    apart = (
        Curve(label=f"{net}, {word}", x=[row.share for row in lost], y=[getattr(row, name) for row in lost])
        for net, ((_, *lost), _) in nets.items()
        for word, name in (("ratio", "ratio_z"), ("infidelity", "infidelity_z"))
    )
    errors, x = "standard errors", "share detached"
    charts = (
        Chart(title="Ratio where all paths pass the module", x=x, y="ratio", curves=(*ratios, closed)),
        Chart(title="Standard errors from nothing detached", x=x, y=errors, curves=tuple(apart), log="y"),
    )
    shown = tuple(
        tuple(
            ChartMap(title=f"{net}, {part or 'as it was'}", values=values)
            for row in (drawn[0], drawn[1], drawn[-1])
            for part, values in row.maps.items()
        )
        for net, (_, drawn) in nets.items()
    )
    return Picture(
        title="Trust: gradients that lose a share, and maps whose weights are drawn anew",
        rows=(charts, *shown),
        note="Maps: the net as it was; with its last part drawn anew; with all parts drawn anew.",
    )


COLUMNS = (
    StudyColumn("case", "{case}", numeric=False),
    StudyColumn("ratio", "{ratio:.3f}±{ratio_se:.3f}"),
    StudyColumn("expected", "{expected:.3f}"),
    StudyColumn("found", "{found}/{runs}"),
    StudyColumn("ratio z", lambda row: "" if row.ratio_z is None else _in_errors(row.ratio_z), optional=True),
    StudyColumn("infid. z", "{infidelity_z:.1f}", optional=True),
    StudyColumn("rank", "{correlation:.3f}"),
    StudyColumn("overlap", "{overlap:.3f}"),
    StudyColumn("", lambda row: "-" if not row.claimed else "ok" if row.passed else "FAILED", numeric=False),
)

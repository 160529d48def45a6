"""A plan in the settings of other tools, as text to paste."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from erfscope.apps.tile.tile_plan import TilePlan
from erfscope.core import ErfscopeError, unknown


class Cut(NamedTuple):
    """Patches along one axis, in input cells."""

    patch: int
    step: int
    #: What is left out of a patch's output on each side.
    margin: int


def recipe(plan: TilePlan, tool: str) -> str:
    """A plan in the settings of a tool, as text to paste.

    Args:
        plan: From :func:`erfscope.tile`.
        tool: One of ``TOOLS``.

    Returns:
        Python, or YAML for ``bioimageio``. Comments say what the tool does with borders, and whether it is exact.

    Raises:
        ErfscopeError: unknown tool, a plan without a halo, or an output whose size the tool does not take.
    """
    if tool not in TOOLS:
        raise unknown("tool", tool, TOOLS)
    if not plan.axes:
        plan.require_possible()
    version, borders, write = TOOLS[tool]
    text = write(plan)
    named = f"{plan.model} · {plan.layer}" if plan.layer else plan.model
    lines = [f"{tool} {version}. {named} needs a halo of {plan.halo} at multiples of {plan.alignment}.", *borders]
    lines += [f"Not exact: {sentence}." for sentence in plan.blockers]
    return "".join(f"# {line}\n" for line in lines) + text.lstrip("\n")


def _cuts(plan: TilePlan, *, any_phase: bool = False) -> list[Cut]:
    """Patches that begin at multiples of the alignment, with sides that the model treats as it does the image's.

    The margin is for tiles that begin at any unit; or at multiples of the alignment, where that is less and tiles end
    in the phase in which images do.
    """
    cuts = []
    for axis in plan.axes:
        margin = axis.margin(axis.halo_any_phase)
        margin += -margin % axis.stride.numerator
        ends_alike = (axis.units - axis.tile_units) % axis.units_per_alignment == 0
        if ends_alike and not any_phase:
            aligned = axis.margin(axis.halo)
            margin = min(margin, aligned + -aligned % axis.alignment)
        step = int(axis.step_units * axis.stride)
        patch = step + 2 * margin
        cuts.append(Cut(patch + (axis.size - patch) % axis.alignment, step, margin))
    return cuts


def _require_size(plan: TilePlan, tool: str, *, scaled: bool) -> None:
    """Refuse outputs that a tool cannot put together."""
    same = all(axis.stride == 1 for axis in plan.axes)
    if any(axis.lost for axis in plan.axes) or not (same or scaled):
        sizes = "outputs as large as the input" + ", or larger or smaller by a factor" * scaled
        raise ErfscopeError(f"{tool} takes {sizes}; {plan.model} gives others: use erfscope.run_tiled")


def _monai(plan: TilePlan) -> str:
    _require_size(plan, "monai", scaled=True)
    cuts = _cuts(plan)
    # MONAI rounds the step down: half a cell more keeps it whole.
    overlap = tuple(round(1 - (cut.step + 0.5) / cut.patch, 6) for cut in cuts)
    path = "".join(f"[{key!r}]" for key in plan.path)
    return f"""
import torch
from monai.inferers import sliding_window_inference

margins = {tuple(cut.margin for cut in cuts)}


def run_and_mark(crops, windows):
    output = model(crops){path}
    marks = torch.zeros_like(output[:, :1])
    for mark, window in zip(marks, windows):
        valid = [slice(None)]
        for units, cells, side, margin in zip(mark.shape[1:], window[2:], image.shape[2:], margins):
            margin = -(-margin * units // (cells.stop - cells.start))
            valid.append(slice(margin if cells.start else 0, units - margin if cells.stop < side else units))
        mark[tuple(valid)] = 1
    return output * marks, marks


total, count = sliding_window_inference(
    image,
    roi_size={tuple(cut.patch for cut in cuts)},
    sw_batch_size=1,
    predictor=run_and_mark,
    overlap={overlap},
    mode="constant",
    with_coord=True,
)
output = total / count
"""


def _nnunet(plan: TilePlan) -> str:
    _require_size(plan, "nnunet", scaled=False)
    cuts = _cuts(plan, any_phase=True)
    step = min(math.floor(1e4 * cut.step / cut.patch) / 1e4 for cut in cuts)
    return f"""
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

# For "patch_size": {[cut.patch for cut in cuts]} in the plans; of another, (side - 2 * margin) / side along the axis
# where that is least, with margins of {[cut.margin for cut in cuts]}.
predictor = nnUNetPredictor(tile_step_size={step}, use_gaussian=True)
"""


def _careamics(plan: TilePlan) -> str:
    _require_size(plan, "careamics", scaled=False)
    cuts = _cuts(plan)
    return f"""
prediction, sources = careamist.predict(
    image,
    tile_size={tuple(cut.patch for cut in cuts)},
    tile_overlap={tuple(cut.patch - cut.step for cut in cuts)},
)
"""


def _torchio(plan: TilePlan) -> str:
    _require_size(plan, "torchio", scaled=False)
    cuts = _cuts(plan)
    if any((cut.patch - cut.step) % 2 for cut in cuts):
        raise ErfscopeError(f"torchio takes even overlaps: pad the image to sides that {plan.alignment} divide")
    cuts += [Cut(1, 1, 0)] * (3 - len(cuts))
    flat = "" if len(plan.axes) == 3 else f".flatten({1 + len(plan.axes)})"
    path = "".join(f"[{key!r}]" for key in plan.path)
    back = "" if not flat else ".reshape(len(crops), -1, *crops.shape[2:])"
    return f"""
import torchio as tio

sampler = tio.GridSampler(
    subject,
    patch_size={tuple(cut.patch for cut in cuts)},
    patch_overlap={tuple(cut.patch - cut.step for cut in cuts)},
)
aggregator = tio.GridAggregator(sampler, overlap_mode="crop")
for batch in tio.SubjectsLoader(sampler, batch_size=1):
    crops = batch["image"][tio.DATA]
    aggregator.add_batch(model(crops{flat}){path}{back}, batch[tio.LOCATION])
output = aggregator.get_output_tensor()
"""


def _bioimageio(plan: TilePlan) -> str:
    inputs, outputs = "", ""
    for name, axis, cut in zip("zyx"[-len(plan.axes) :], plan.axes, _cuts(plan), strict=True):
        least = cut.patch - cut.step + axis.alignment
        inputs += f"      - {{type: space, id: {name}, size: {{min: {least}, step: {axis.alignment}}}}}\n"
        size = f"{{tensor_id: input, axis_id: {name}, offset: {-round(axis.lost / axis.stride)}}}"
        halo = math.ceil(cut.margin / axis.stride)
        more = f", scale: {float(axis.stride):g}" * (axis.stride != 1) + f", halo: {halo}" * (halo > 0)
        outputs += f"      - {{type: space, id: {name}, size: {size}{more}}}\n"
    return f"""
inputs:
  - id: input
    axes:
      - {{type: batch}}
      - {{type: channel, channel_names: [raw]}}
{inputs}outputs:
  - id: output
    axes:
      - {{type: batch}}
      - {{type: channel, channel_names: [prediction]}}
{outputs}"""


def _diffusers(plan: TilePlan) -> str:
    _require_size(plan, "diffusers", scaled=True)
    strides = {axis.stride for axis in plan.axes}
    if len(strides) > 1 or 1 in strides:
        raise ErfscopeError("diffusers tiles the encoder or the decoder of a VAE: plan for one of them")
    stride, cuts = strides.pop(), _cuts(plan)
    # Sides and overlaps are rounded down in the code: powers of two have exact shares.
    overlap = 2 ** math.ceil(math.log2(max(2 * max(cut.margin for cut in cuts), 1)))
    side = 2 ** math.ceil(math.log2(max(*(cut.patch for cut in cuts), 2 * overlap)))
    latent, sample = (side, int(side / stride)) if stride < 1 else (int(side / stride), side)
    return f"""
vae.enable_tiling()
vae.tile_latent_min_size = {latent}
vae.tile_sample_min_size = {sample}
vae.tile_overlap_factor = {overlap / side}
"""


_AT_BORDERS = "Patches at the image's border keep the model's own padding there; the image must be no smaller than one."
#: Each tool with the release whose sources were read, what it does with borders, and its text.
TOOLS: dict[str, tuple[str, tuple[str, ...], Callable[[TilePlan], str]]] = {
    "monai": (
        "1.6.1",
        (
            "MONAI averages patches where they overlap, padded margins too; the marks keep those out: exact.",
            _AT_BORDERS,
        ),
        _monai,
    ),
    "nnunet": (
        "2.8.1",
        (
            "nnU-Net weights patches with a Gaussian, which is small in the margins but not zero, and begins them at",
            "any cell, out of phase with the model's strides: close, not exact.",
        ),
        _nnunet,
    ),
    "careamics": (
        "0.3.5",
        ("CAREamics crops half of the overlap from each patch: exact, in float32.", _AT_BORDERS),
        _careamics,
    ),
    "bioimageio": (
        "model 0.5 (bioimageio.spec 0.5.14.3)",
        (
            "Consumers pad the image by the halo and crop it from the output: exact inside, and at the image's border",
            "only for models that pad as the consumer does. The halo is in output cells, rounded up to the alignment.",
        ),
        _bioimageio,
    ),
    "diffusers": (
        "0.42.1",
        (
            "diffusers fades one patch into the next over the whole overlap: close, not exact, as cells near a",
            "patch's end count with small weights. With two margins of overlap one of both is always right.",
        ),
        _diffusers,
    ),
    "torchio": (
        "1.2.1",
        (
            'TorchIO crops half of the overlap from each patch (overlap_mode "crop"): exact without padding_mode.',
            _AT_BORDERS,
        ),
        _torchio,
    ),
}

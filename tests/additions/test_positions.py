"""Every unit of a layer at once: each map is the one that its unit has alone, whatever shares its backward pass."""

import json
import math
from dataclasses import replace
from importlib.resources import files
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
import torch
from loaded import adapter_of
from nets import Does
from PIL import Image
from torch import nn

import erfscope
from erfscope import ErfMap, ErfscopeError
from erfscope.core import Request, open_images, open_model
from erfscope.core.answer.measures import measure_map
from erfscope.core.answer.positions import BorderEffect
from erfscope.core.answer.storage import json_format
from erfscope.core.run.additions import every_unit, moved_units, unit_fields
from erfscope.core.run.additions.moved_units import crops_pay
from erfscope.core.run.additions.unit_fields import colour_units
from erfscope.core.run.engine.batch import Need
from erfscope.core.run.engine.plan import plan_run
from erfscope.core.values.unit import sides

pytestmark = pytest.mark.usefixtures("memory_unplanned")

R50 = ["r50", "context_r50"]


def numbers(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*layers).double().eval()


def conv():
    return made(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3, padding=1), nn.GELU())


def mirrored():
    """Which depends on the place, so that units share whole images."""
    return made(nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Conv2d(6, 5, 3, padding=1))


def attention():
    """Patches of 4, one layer of attention and an MLP: every token sees everything."""

    def forward(m, x):
        y = m.patches(x)
        return m.block(y.flatten(2).mT).mT.reshape(y.shape)

    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return made(Does(forward, patches=nn.Conv2d(3, 8, 4, stride=4), block=block))


def line():
    return made(nn.Conv1d(2, 4, 5, padding=2), nn.Tanh(), nn.Conv1d(4, 3, 3, stride=2))


def volume():
    return made(nn.Conv3d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv3d(4, 3, (1, 2, 2), stride=(1, 2, 2)))


#: Nets, and the shapes of their images.
NETS = {
    "conv": (conv, (2, 3, 20, 24)),
    "one picture": (conv, (1, 3, 11, 11)),
    "mirrored": (mirrored, (1, 3, 11, 11)),
    "strided": (
        lambda: made(nn.Conv2d(3, 6, 4, stride=2, padding=1), nn.SiLU(), nn.MaxPool2d(2, 2), nn.Conv2d(6, 4, 2)),
        (2, 3, 20, 24),
    ),
    "dilated": (
        lambda: made(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 4, 3, padding=3, dilation=3)),
        (2, 3, 20, 24),
    ),
    "upsampled": (
        lambda: made(
            nn.Conv2d(3, 6, 3, 2, 1), nn.Tanh(), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(6, 4, 3)
        ),
        (2, 3, 20, 24),
    ),
    "attention": (attention, (2, 3, 12, 20)),
    "line": (line, (2, 2, 20)),
    "volume": (volume, (2, 1, 4, 8, 8)),
}


@pytest.fixture
def maps(monkeypatch):
    """The maps that the sizes of every unit are taken of, whole, by index."""
    kept = {}
    found = every_unit.field_maps

    def watched(plan, sums, every, hooks):
        for number, erf in found(plan, sums, every, hooks):
            trf = every.trfs[number]
            if erf is not None:
                whole = np.zeros(trf.reference_px)
                whole[tuple(slice(first, last + 1) for first, last in every.fields[number])] = erf.values
                kept[every.units[number].index] = whole
            yield number, erf

    monkeypatch.setattr(every_unit, "field_maps", watched)
    return kept


def check_alone(net, maps, units, **options):
    """Compare maps and sizes with those of units that are measured alone; return the sizes of all."""
    found = erfscope.analyze(net, unit="all", **options).positions
    for unit in units:
        alone = erfscope.analyze(net, unit=unit, measures=R50, **options)
        np.testing.assert_allclose(maps[unit], alone.map.values, rtol=0, atol=1e-9 * alone.map.values.max())
        for name in R50:
            assert getattr(found, name)[unit] == pytest.approx(alone[name].value, rel=1e-9), (unit, name)
    return found


def some(space):
    """Corners, an edge, one beside the middle."""
    last = [side - 1 for side in space]
    if len(space) != 2:
        return [tuple(0 for _ in space), tuple(last), tuple(side // 2 for side in space)]
    return [(0, 0), tuple(last), (0, last[1] // 2), (last[0] // 2, last[1] // 2), (1, last[1] - 1)]


# --- maps -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_every_map_is_that_of_the_unit_alone(name, maps):
    make, shape = NETS[name]
    net, images = make(), numbers(*shape)
    with torch.no_grad():
        space = tuple(net(images).shape[2:])
    found = check_alone(net, maps, some(space), images=images, layer="output")
    assert found.r50.shape == space
    assert found.alone == ""
    assert (found.passes == math.prod(space)) if name == "attention" else (found.passes < math.prod(space))
    # Four pictures' worth of parts of 5 x 5 go through together, or units whose fields do not overlap.
    assert found.passes == {"one picture": 7, "mirrored": 25}.get(name, found.passes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"draws": "all"},
        {"draws": 3},
        {"channels": (0, 2)},
        {"convention": "signed"},
        {"convention": "replknet"},
        {"wrt": "0"},
        {"plain": True},
    ],
    ids=str,
)
def test_options_mean_what_they_mean_for_one_unit(more, maps):
    net = conv()
    asked = {"images": numbers(3, 3, 14, 14), "layer": "3" if "wrt" in more else "output", **more}
    check_alone(net, maps, [(0, 0), (6, 7), (13, 3)], **asked)


@pytest.mark.parametrize("more", [{}, {"draws": "all"}, {"convention": "signed", "plain": True}], ids=str)
def test_groups_of_units_are_read_in_copies_of_one_picture(more, maps, monkeypatch):
    passes, right = [], every_unit.contributions
    monkeypatch.setattr(every_unit, "contributions", lambda *asked, **more: passes.append(1) or right(*asked, **more))
    asked = {"images": numbers(1, 3, 11, 11), "layer": "output", **more}
    found = check_alone(mirrored(), maps, [(0, 0), (5, 6), (10, 10)], **asked)
    assert (found.passes, len(passes)) == (25, 7)  # four groups at a time


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv", "mirrored", "upsampled", "attention", "volume"])
@pytest.mark.parametrize("more", [{}, {"batch_size": 1, "draws": "all"}], ids=str)
def test_units_are_measured_by_the_operations_that_each_needs(name, more, maps, monkeypatch):
    """As those of deep layers are, where finding the operations takes less than whole images."""
    monkeypatch.setattr(unit_fields, "moved_forward", lambda *_: None)
    monkeypatch.setattr(unit_fields, "crops_pay", lambda *_: True)
    make, shape = NETS[name]
    net, images = make(), numbers(*shape)
    with torch.no_grad():
        space = tuple(net(images).shape[2:])
    found = check_alone(net, maps, some(space), images=images, layer="output", **more)
    assert found.passes == math.prod(space)


def test_deep_layers_pay_for_finding_the_operations_of_each_unit(monkeypatch):
    """A quarter of the image's multiply-adds for a unit is less than a whole image, and more than one in five units."""
    adapter = adapter_of("resnet18", input_size=224)
    with open_model(adapter, Request.parse({})) as model:
        settings = Request.parse({"draws": 8}).settings
        images = open_images(Request.parse({"samples": 1}), model)
        plan = plan_run(model, images, settings, "layer3")
        units = [(0, 0), (7, 7), (3, 10)]
        assert crops_pay(plan, units, 1.0)
        assert not crops_pay(plan, units, 0.2)
        assert not crops_pay(plan_run(model, images, replace(settings, plain=True), "layer3"), units, 1.0)
        monkeypatch.setattr(moved_units, "device_and_dtype", lambda _: (torch.device("cuda"), torch.float32))
        assert not crops_pay(plan, units, 1.0)


@pytest.mark.parametrize("name", ["features_of", "GraphForward"])
def test_units_are_measured_on_whole_images_where_others_fail(name, maps, monkeypatch):
    def too_large(*_):
        raise MemoryError

    monkeypatch.setattr(every_unit, name, too_large)
    monkeypatch.setattr(unit_fields, "crops_pay", lambda *_: True)
    net = conv() if name == "features_of" else Does(lambda m, x: m.layer(x).tanh(), layer=mirrored())
    found = check_alone(net, maps, some((11, 12)), images=numbers(2, 3, 11, 12), layer="output")
    assert np.isfinite(found.r50).all()


def test_an_infinite_derivative_beyond_the_border_is_no_units(maps):
    """A convolution without a bias gives zero there, where the root of a sum of squares has no derivative."""

    def modulus(m, x):
        return m.last((m.one(x).square() + m.other(x).square()).sqrt())

    one, other = (nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False) for _ in range(2))
    net = made(Does(modulus, one=one, other=other, last=nn.Conv2d(4, 4, 5, padding=2)))
    found = check_alone(net, maps, [(0, 0), (0, 11), (12, 12)], images=numbers(1, 3, 26, 25), layer="output", draws=1)
    assert found.passes < 169
    assert np.isfinite(found.r50).all()


@pytest.mark.parametrize("wrt", ["image", "0"])
def test_the_part_of_a_picture_that_no_unit_needs_changes_nothing(wrt, maps):
    net = made(nn.Conv2d(3, 4, 2, stride=3), nn.Tanh(), nn.Conv2d(4, 3, 2))
    found = check_alone(net, maps, [(0, 0), (1, 2), (4, 3)], images=numbers(1, 3, 19, 18), layer="output", wrt=wrt)
    assert found.r50.shape == (5, 5)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"convention": "signed", "channels": (1, 6)}, {"draws": "all"}], ids=str)
def test_units_that_share_no_pass_are_read_in_copies_of_one_picture(more, maps, monkeypatch):
    passes, right = [], every_unit.contributions
    monkeypatch.setattr(every_unit, "contributions", lambda *asked, **more: passes.append(1) or right(*asked, **more))
    asked = {"images": numbers(1, 3, 12, 20), "layer": "output", **more}
    check_alone(attention(), maps, [(0, 0), (1, 2), (2, 3), (2, 4)], **asked)
    assert len(passes) == 4  # of fifteen units, four at a time


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "shape", "count"),
    [(attention, (1, 3, 12, 20), lambda run, _: run.copies), (mirrored, (4, 3, 9, 9), lambda _, images: len(images))],
    ids=["copies", "batches"],
)
def test_copies_and_batches_that_do_not_fit_are_halved(make, shape, count, maps, monkeypatch):
    tried, right = [], every_unit._forward

    def small(run, images):
        tried.append(count(run, images))
        if tried[-1] > 1:
            raise MemoryError
        return right(run, images)

    monkeypatch.setattr(every_unit, "_forward", small)
    check_alone(make(), maps, [(0, 0), (2, 4)], images=numbers(*shape), layer="output")
    assert tried[:3] == [4, 2, 1]
    assert make is mirrored or set(tried[3:]) == {1}


def at_most_two(m, x):
    if len(x) > 2:
        raise ValueError("at most two images")
    return m.layer(x).tanh()


def weighed(m, x):
    """Which no unit notices where images go alone."""
    return m.layer(x * (1 + torch.arange(len(x), dtype=x.dtype)[:, None, None, None])).tanh()


@pytest.mark.parametrize("more", [{}, {"plain": True}, {"batch_size": 1}, {"plain": True, "batch_size": 1}], ids=str)
def test_a_model_that_takes_few_images_gets_as_few_copies(more, maps, monkeypatch):
    tried, right = [], every_unit._forward
    monkeypatch.setattr(every_unit, "_forward", lambda run, images: tried.append(run.copies) or right(run, images))
    asked = {"images": numbers(1, 3, 9, 8), "layer": "output", **more}
    for function in (at_most_two, weighed)[: 1 + ("batch_size" in more)]:
        layer = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")
        check_alone(made(Does(function, layer=layer)), maps, [(0, 0), (4, 4)], **asked)
    assert set(tried) == ({1} if "batch_size" in more else {3, 1})


@pytest.mark.slow
def test_the_result_is_that_of_the_central_unit():
    asked = {"images": numbers(2, 3, 12, 12), "layer": "output"}
    every, one = erfscope.analyze(conv(), unit="all", **asked), erfscope.analyze(conv(), **asked)
    assert every.unit == one.unit
    np.testing.assert_array_equal(every.map.values, one.map.values)
    assert {name: each.value for name, each in every.measures.items()} == {
        name: each.value for name, each in one.measures.items()
    }
    assert one.positions is None


@pytest.mark.slow
def test_sums_that_do_not_fit_together_are_made_in_portions(monkeypatch, maps):
    asked = {"images": numbers(4, 3, 12, 12), "layer": "output", "batch_size": 2}
    monkeypatch.setattr(every_unit, "available_bytes", lambda: 60_000)
    told = []
    check_alone(mirrored(), maps, [(0, 0), (6, 6), (11, 4)], tell=told.append, **asked)
    assert any(" forward passes of each image" in line and ", 1 forward" not in line for line in told), told


# --- closed forms ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_linear_net_of_ones_has_the_sizes_of_its_closed_form():
    """n all-ones 3 x 3 convolutions with zero padding: the map of unit (i, j) is row i of T^n times row j, T the
    tridiagonal ones."""
    depth, side = 3, 15
    net = nn.Sequential(*(nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(depth))).double()
    for layer in net:
        nn.init.ones_(layer.weight)
    found = erfscope.analyze(
        net, unit="all", images=numbers(1, 1, side, side), convention="luo", layer="output"
    ).positions
    power = np.linalg.matrix_power(np.tri(side, k=1) * np.tri(side, k=1).T, depth)
    for unit in [(0, 0), (0, 7), (1, 2), (7, 7), (14, 13)]:
        values = np.outer(power[unit[0]], power[unit[1]])
        expected = measure_map(ErfMap(values=values / values.sum(), center_px=unit, stride_px=(1.0, 1.0)), R50)
        for name in R50:
            assert getattr(found, name)[unit] == pytest.approx(expected[name], abs=1e-9)
    interior = found.r50[found.inside]
    assert found.inside.sum() == (side - 2 * depth) ** 2
    np.testing.assert_allclose(interior, interior[0], rtol=0, atol=1e-9)
    effect = found.border_effect("r50")
    assert effect.inside == pytest.approx(found.r50[7, 7])
    assert effect.clipped == pytest.approx(np.median(found.r50[~found.inside]))
    assert effect.clipped_to_inside == pytest.approx(effect.clipped / effect.inside)
    edge = np.ones((side, side), dtype=bool)
    edge[1:-1, 1:-1] = False
    assert effect.edge_to_centre == pytest.approx(np.median(found.r50[edge]) / found.r50[7, 7])
    assert (effect.min, effect.max) == (found.r50.min(), found.r50.max())


def test_a_unit_without_a_gradient_has_no_size():
    kept = torch.cat([torch.zeros(1, 1, 1, 5), torch.ones(1, 1, 1, 5)], 3)
    half = Does(lambda m, x: m.layer(x) * m.kept, layer=nn.Conv2d(1, 2, 3, padding=1), kept=kept)
    found = erfscope.analyze(made(half), unit="all", images=numbers(2, 1, 10, 10), layer="output").positions
    assert np.isnan(found.r50[:, :5]).all()
    assert np.isfinite(found.r50[:, 5:]).all()
    assert found.without_gradient == 50
    assert np.isfinite(found.border_effect().median)


def test_rounding_noise_is_no_size():
    """The sum of the channels after a LayerNorm does not depend on the image."""
    norm = Does(lambda _, x: nn.functional.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2))
    net = made(nn.Conv2d(1, 8, 1), norm).float()
    found = erfscope.analyze(net, unit="all", images=numbers(2, 1, 6, 6).float(), layer="output", convention="luo")
    assert found.status == "degenerate"
    assert np.isnan(found.positions.r50).all()
    assert found.positions.border_effect().median is None


# --- who shares -----------------------------------------------------------------------------------


def overlap(first, other):
    return all(a <= d and c <= b and a <= b and c <= d for (a, b), (c, d) in zip(first, other, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_no_two_units_of_one_colour_have_overlapping_fields(seed):
    rng = np.random.default_rng(seed)
    space = tuple(rng.integers(1, 7, rng.integers(1, 4)))
    count = math.prod(space)
    if seed % 2:  # intervals by axis, some of them empty
        ends = []
        for side in space:
            first = rng.integers(0, 30, side)
            ends.append(list(zip(first, first + rng.integers(-1, 12, side), strict=True)))
        fields = [tuple(ends[axis][i] for axis, i in enumerate(index)) for index in np.ndindex(*space)]
    else:
        first = rng.integers(0, 30, (count, len(space)))
        fields = [
            tuple(zip(a, b, strict=True)) for a, b in zip(first, first + rng.integers(-1, 12, first.shape), strict=True)
        ]
    colours = colour_units(fields, space)
    assert sorted(number for colour in colours for number in colour) == list(range(count))
    for colour in colours:
        assert not any(overlap(fields[a], fields[b]) for a in colour for b in colour if a < b)


@pytest.mark.parametrize(("field", "stride"), [(3, 1), (7, 2), (43, 4), (4, 4), (5, 8)])
def test_a_regular_grid_takes_the_fewest_colours(field, stride):
    side = 24
    interval = [(stride * i - field // 2, stride * i - field // 2 + field - 1) for i in range(side)]
    fields = [(a, b) for a in interval for b in interval]
    assert len(colour_units(fields, (side, side))) == min(math.ceil(field / stride), side) ** 2


class Handwritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g / g.abs().sum((1, 2, 3), keepdim=True).clamp(min=1e-30)


def hooked(m, x):
    """Scales what comes back by its largest number: not what the operations say."""
    y = m.layer(x)
    if y.requires_grad:
        y.register_hook(lambda g: g * g.abs().amax((1, 2, 3), keepdim=True))
    return y.tanh()


def reads(m, x):
    """Cannot run without numbers."""
    y = m.layer(x)
    return y if float(y.detach().sum()) > -1e9 else -y


ELSEWHERE = {"hook": hooked, "backward": lambda m, x: Handwritten.apply(m.layer(x)).tanh(), "numbers": reads}


@pytest.mark.slow
@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_may_carry_a_gradient_elsewhere_is_measured_one_by_one(name, maps):
    net = made(Does(ELSEWHERE[name], layer=nn.Conv2d(3, 4, 3, padding=1)))
    found = check_alone(net, maps, [(0, 0), (3, 4), (7, 7)], images=numbers(2, 3, 8, 8), layer="output")
    assert found.passes == found.units == 64
    assert found.alone


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"shard": "1/2"}, "unit all cannot be put together from shards such as 1/2"),
        ({"unit": "all,corner"}, "'all,corner' asks for every unit, which .* measure where `all` stands alone"),
        ({"unit": ["all", "corner"]}, "'all' asks for every unit, which .* measure where `all` stands alone"),
        ({"images": torch.zeros(1, 3, 257, 256)}, "at most 65536 are measured at once; name a deeper layer"),
    ],
    ids=lambda each: "" if isinstance(each, str) else " ".join(each),
)
def test_what_cannot_be_done_for_every_unit_is_refused(more, text):
    with pytest.raises(ErfscopeError, match=text):
        erfscope.analyze(conv(), **{"images": numbers(2, 3, 8, 8), "layer": "output", "unit": "all", **more})
    with pytest.raises(ErfscopeError, match="name units here"):
        erfscope.theoretical(conv(), unit="all", input_size=8)


def test_ranks_are_refused(monkeypatch):
    monkeypatch.setattr("erfscope.core.run.engine.plan.current", lambda: SimpleNamespace(size=2))
    with pytest.raises(
        ErfscopeError, match="unit all is measured by one process, not by 2 ranks; start one, or name units"
    ):
        erfscope.analyze(conv(), images=numbers(1, 3, 8, 8), layer="output", unit="all")


@pytest.mark.slow
def test_whole_passes_that_do_not_fit_are_refused_before_they_are_made(monkeypatch):
    """The one unit's crop fits, and the whole pass does not."""
    net = made(nn.Conv2d(3, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 4, 3, padding=1)).float()

    def need(plan):
        return [Need(1 << 20, 0, 1 << (30 if plan.box is None or sides(plan.box)[0] == 96 else 10))]

    monkeypatch.setattr("erfscope.core.run.engine.batch.needs", need)
    asked = {"images": numbers(1, 3, 96, 96).float(), "layer": "output", "measures": R50}
    assert erfscope.sweep(net, **asked)[0].ok
    row = erfscope.sweep(net, unit="all", **asked)[0]
    assert row.status == "error"
    assert "one image of 96x96 needs about 1 GiB of memory" in row.error
    assert "use a smaller --input-size" in row.error


# --- what is stored and shown ---------------------------------------------------------------------


@pytest.mark.slow
def test_positions_are_stored_read_back_printed_and_drawn(tmp_path, figures_undrawn):
    report = erfscope.sweep(conv(), images=numbers(2, 3, 12, 16), layer="output", unit="all", measures=R50)
    report.save(tmp_path / "run")
    document = json.loads((tmp_path / "run" / "report.json").read_text())
    schema = files("erfscope.core.answer.storage").joinpath("schema/report-1.json").read_text()
    jsonschema.validate(document, json.loads(schema))
    stored, ours = document["results"][0]["positions"], report[0].positions
    assert stored["shape"] == [12, 16]
    assert stored["r50"] == {
        name: getattr(ours.border_effect("r50"), name) for name in BorderEffect.__dataclass_fields__
    }
    assert (stored["passes"], stored["without_gradient"], stored["alone"]) == (7, 0, "")
    again = erfscope.read(tmp_path / "run")[0].positions
    for name in ("r50", "context_r50", "inside"):
        np.testing.assert_array_equal(getattr(again, name), getattr(ours, name))
    assert again.passes == ours.passes
    arrays = json_format.position_arrays(ours)
    assert json_format.positions_from(None, arrays, (12, 16)) is None
    kept = json_format.stored_positions(ours)
    small = {**arrays, "positions_r50": np.full((12, 16), 0.25)}
    np.testing.assert_array_equal(json_format.positions_from(kept, small, (12, 16)).r50, 0.25)
    for value in (math.inf, -1.0):
        off = arrays["positions_r50"].copy()
        off[3, 4] = value
        with pytest.raises(ValueError, match="negative or infinite"):
            json_format.positions_from(kept, {**arrays, "positions_r50": off}, (12, 16))
    assert "r50 of all" in str(report[0])
    report.figure(tmp_path / "a.png", kind="positions")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_a_run_that_was_stopped_before_every_unit_was_measured_goes_on(tmp_path, figures_undrawn):
    asked = {"images": numbers(2, 3, 12, 12), "layer": "output", "unit": "all", "measures": R50}
    calls = iter(range(10_000))
    first = erfscope.sweep(conv(), stop=lambda: next(calls) > 8, **asked)
    assert first[0].positions is None
    assert [w.code for w in first[0].findings] == ["stopped"]
    first.save(tmp_path / "run")
    last = erfscope.sweep(conv(), resume=tmp_path / "run", **asked)
    np.testing.assert_array_equal(last[0].positions.r50, erfscope.sweep(conv(), **asked)[0].positions.r50)
    last.save(tmp_path / "last")
    kept = erfscope.sweep(conv(), resume=tmp_path / "last", **asked)
    np.testing.assert_array_equal(kept[0].positions.r50, last[0].positions.r50)
    assert kept[0].seconds == pytest.approx(last[0].seconds, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("more", "error"), [({"amp_dtype": "bfloat16"}, 3e-2), ({"until_se": 0.9}, 1e-4)])
def test_autocast_and_pictures_that_cannot_be_read_are_those_of_one_unit(more, error, tmp_path):
    for name in "ac":
        pixels = np.random.default_rng(ord(name)).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    asked = {"images": [str(tmp_path)], "layer": "layer1", "keep_going": True, "measures": R50, **more}
    every, alone = (erfscope.analyze(adapter_of(input_size=32), unit=u, **asked) for u in ("all", (1, 2)))
    # Crops are other sums of rounded numbers.
    assert every.positions.r50[1, 2] == pytest.approx(alone["r50"].value, rel=error)
    assert every.input.n_dead == 1

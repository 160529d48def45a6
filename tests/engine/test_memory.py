"""Claims about memory: how much one image takes, how much there is, and what is done where the one exceeds the
other."""

from __future__ import annotations

import functools
import gc
import math
import sys
from types import SimpleNamespace

import pytest
import timm
import torch
import warm
from live_bytes import LiveBytes
from loaded import adapter_of
from nets import Does
from torch import Tensor, nn
from torch.nn import functional

import erfscope
from erfscope import CONVENTIONS, MeasurementError
from erfscope.adapters import ModuleAdapter
from erfscope.core import OpenModel, Unit
from erfscope.core.run.attribution import Question
from erfscope.core.run.attribution.captum_methods import captum_draws
from erfscope.core.run.attribution.captum_parameters import EXTRA_TENSORS
from erfscope.core.run.attribution.forward import guarded
from erfscope.core.run.engine.batch import FIRST_PASS, MAPS_TO_MEASURE, OVERHEAD, Need, needs, plan_batches
from erfscope.core.run.engine.cost import pass_bytes
from erfscope.core.system.environment import available_bytes

CPU = torch.device("cpu")
GIB = 2**30
SIDE = 32
PIXELS = SIDE * SIDE


def count(net: nn.Module, size: tuple[int, ...], layer: str = "output", wrt: str = "image") -> int | None:
    return counted_of(erfscope.wrap(net, input_size=size), layer, wrt)


def counted_of(adapter: ModuleAdapter, layer: str, wrt: str = "image") -> int:
    model = OpenModel(adapter=adapter, label="net")
    return pass_bytes(model.whole(model.site(layer, wrt)))


def live_bytes(adapter: ModuleAdapter, layer: str, wrt: str = "image") -> int:
    """The oracle: storages that live at once in a real pass of one image, forward and backward."""
    site = adapter.site(layer, wrt)
    assert site.hooks is not None
    with LiveBytes() as live:
        x = torch.randn(1, 3, *adapter.preprocess.size)
        with guarded(CPU):
            features = adapter.features(x.clone().requires_grad_(True), site)
            (g,) = torch.autograd.grad(
                features.map.flatten(2)[..., 0].sum(), features.reference.edge, retain_graph=True
            )
            g.double().square().sum(1)
    return live.peak


# -- counting


def test_what_lives_at_once_is_counted_and_views_and_freed_tensors_are_not():
    with LiveBytes() as live:
        a = torch.empty(100)
        b = a.view(10, 10)[2:]
        assert live.now == 400
        c = b.clone()
        assert live.now == 720
        c.mul_(2)
        del a
        assert live.now == 720  # b shows a's memory
        del b
        assert live.now == 320
        d = torch.empty(10, dtype=torch.float64)
        del c, d
    assert (live.now, live.peak) == (0, 720)


def squared(m: nn.Module, x: Tensor) -> Tensor:
    """x -> x^2, so many times: each operation saves its input for the gradient."""
    for _ in range(m.times):
        x = x * x
    return x


def test_every_saved_map_of_a_chain_is_counted_once_in_the_size_of_its_dtype():
    # Between two lengths of the chain only the saved maps differ: 3 x 64 x 64 numbers each.
    nets = [Does(squared, times=times, one=nn.Parameter(torch.ones(()))) for times in (4, 5, 9)]
    one = 3 * 64 * 64 * 4
    counts = [count(net, (64, 64)) for net in nets]
    assert [counts[1] - counts[0], counts[2] - counts[1]] == [one, 4 * one]
    counts = [count(net.double(), (64, 64)) for net in nets]
    assert counts[2] - counts[1] == 2 * 4 * one


def test_the_whole_of_a_tiny_pass_is_counted_by_hand():
    # Alive together at the end: the image and the engine's copy of it, the output, which ReLU saves, the gradient,
    # its copy in float64 and that one's square.
    one = 3 * 64 * 64 * 4
    assert count(nn.Sequential(nn.ReLU()), (64, 64), layer="0") == one * (2 + 1 + 1 + 2 + 2)


def stage(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def unet(m: nn.Module, x: Tensor) -> Tensor:
    """Two steps down and up again, with shortcuts that are joined."""
    one = m.one(x)
    two = m.two(functional.max_pool2d(one, 2))
    three = m.three(functional.max_pool2d(two, 2))
    y = m.wide(torch.cat([m.up(three), two], 1))
    return m.last(torch.cat([functional.interpolate(y, scale_factor=2, mode="bilinear"), one], 1))


def unet_net() -> nn.Module:
    parts = {"one": stage(3, 8), "two": stage(8, 16), "three": stage(16, 32), "up": nn.ConvTranspose2d(32, 16, 2, 2)}
    return Does(unet, **parts, wide=stage(32, 8), last=stage(16, 4))


REAL = {
    "vit_tiny": (lambda: timm.create_model("vit_tiny_patch16_224", depth=3), "norm", 224),
    "convnext_atto": (lambda: timm.create_model("convnext_atto"), "stages.3", 160),
    "UNet": (unet_net, "output", 128),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_the_estimate_is_between_half_and_three_times_that_of_a_real_pass(name):
    build, layer, side = REAL[name]
    adapter = erfscope.wrap(build().eval(), input_size=(side, side))
    assert 0.5 < counted_of(adapter, layer) / live_bytes(adapter, layer) < 3


def test_a_model_that_needs_numbers_is_counted_too(monkeypatch):
    choosing = Does(lambda _, x: x * 2 if float(x.detach().sum()) > 0 else x * 3)
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), choosing)
    adapter = erfscope.wrap(net, input_size=(32, 32))
    counted = counted_of(adapter, "1")
    assert 0.5 < counted / live_bytes(adapter, "1") < 3
    assert 3 * 64 * PIXELS * 4 < counted < 6 * 64 * PIXELS * 4
    monkeypatch.setattr("erfscope.core.run.engine.batch.available_bytes", lambda *_: int(0.9 * OVERHEAD * counted))
    result = erfscope.analyze(net, input_size=(32, 32), samples=2, measures="r50", layer="1", errors="row")
    assert "one image of 32x32 needs about" in result.error


# -- what there is


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 5_000_000),
        # The limit minus what is used, file pages that can be dropped not counted.
        (
            {"max": "3000000\n", "current": "1000000\n", "stat": "anon 5\ninactive_file 200000\nactive_file 7\n"},
            2200000,
        ),
        # The machine may have less than the limit allows; no limit is "max".
        ({"max": "9000000000\n", "current": "5\n", "stat": "inactive_file 0\n"}, 5_000_000),
        ({"max": "max\n", "current": "5\n", "stat": "inactive_file 0\n"}, 5_000_000),
        ({"max": "10\n", "current": "20\n", "stat": "inactive_file 0\n"}, 0),
    ],
)
def test_what_there_is_is_the_smaller_of_machine_and_container(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=5_000_000))
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert available_bytes(cgroup=tmp_path) == expected


def test_a_gpus_memory_is_what_the_driver_has_and_what_torch_holds_unused(monkeypatch):
    device = torch.device("cuda", 0)
    for name, value in (("mem_get_info", (700, 1000)), ("memory_reserved", 90), ("memory_allocated", 60)):
        monkeypatch.setattr(torch.cuda, name, lambda _device, value=value: value)
    assert available_bytes(device) == 730
    assert available_bytes(torch.device("mps")) is None


# -- what is done about it


@pytest.fixture
def batches(monkeypatch):
    """Runs a small net with memory for a given number of images, and gives the batch sizes it ran in."""
    net = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 4, 3, 2, 1))
    # The pass, the input twice in float32 while a batch is put together, and one draw's map in float64.
    each = math.ceil(OVERHEAD * count(net, (SIDE, SIDE), layer="2")) + 2 * 4 * 3 * PIXELS + 8 * PIXELS
    # The first pass, ten groups of the unit's 7 x 7 pixels in float64, and the picture while it is made.
    fixed = FIRST_PASS + 10 * 49 * 8 + 13 * 3 * PIXELS

    def run(room: float | None, **options: object) -> list[int]:
        there = None if room is None else int(fixed + room * each)
        monkeypatch.setattr("erfscope.core.run.engine.batch.available_bytes", lambda _device: there)
        adapter, found = erfscope.wrap(net, input_size=(SIDE, SIDE)), []
        features = ModuleAdapter.features

        def noted(self: ModuleAdapter, x: Tensor, *rest: object, **words: object) -> object:
            # Passes without gradients probe the model, and those without numbers plan.
            found.extend([len(x)] * (torch.is_grad_enabled() and not x.is_meta))
            return features(self, x, *rest, **words)

        monkeypatch.setattr(ModuleAdapter, "features", noted)
        result = erfscope.analyze(adapter, **{"samples": 12, "draws": 1, "measures": "r50", "plain": True, **options})
        if not result.ok:
            raise MeasurementError(result.error)
        assert (result.findings[-1].code == "smaller_batches") is (options.get("batch_size", 1) > max(found))
        return found

    return run


@pytest.mark.parametrize(
    ("room", "expected"),
    [(None, [12]), (1000, [12]), (24.1, [12]), (16.1, [6, 6]), (7.9, [3, 3, 3, 3]), (2.1, [1] * 12), (1.9, [1] * 12)],
)
def test_a_batch_takes_at_most_half_of_what_there_is(batches, room, expected):
    assert batches(room) == expected


@pytest.mark.slow
def test_a_batch_size_of_ones_own_may_take_it_all_and_is_halved_before_it_runs(batches):
    assert batches(6.1, batch_size=6) == [6, 6]
    assert batches(6.1, batch_size=7) == [3, 3, 1, 3, 2]
    assert batches(3.1, batch_size=64) == [3] * 4
    assert batches(2.9, batch_size=64) == [1] * 12
    assert batches(None, batch_size=5) == [5, 5, 2]


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"method": "input_x_gradient"}])
def test_a_picture_that_does_not_fit_is_refused_before_anything_runs(batches, options):
    with pytest.raises(
        MeasurementError, match=r"one image of 32x32 needs about .* use a smaller --input-size"
    ) as caught:
        batches(0.9, **options)
    assert "\n" not in str(caught.value)


def planned(net: nn.Module, there: int, monkeypatch: pytest.MonkeyPatch, **options: object) -> erfscope.Result:
    monkeypatch.setattr("erfscope.core.run.engine.batch.available_bytes", lambda *_: there)
    return erfscope.sweep(net, **{"samples": 4, "draws": 1, "measures": "r50", **options})[0]


def deep() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 4, 3, 2, 1)
    )


@pytest.mark.slow
def test_methods_that_run_several_copies_of_a_picture_need_memory_for_all_of_them(monkeypatch):
    pass_, picture = count(deep(), (SIDE, SIDE), layer="4"), 3 * 4 * PIXELS
    for method, copies in (("integrated_gradients", 8), ("smoothgrad", 4), ("occlusion", 8), ("input_x_gradient", 1)):
        options = {"input_size": (SIDE, SIDE), "method": method}
        each = OVERHEAD * (pass_ + EXTRA_TENSORS.get(method, 0) * picture)
        assert (
            "one image of 32x32 needs"
            in planned(deep(), FIRST_PASS + int((copies - 0.1) * each), monkeypatch, **options).error
        )
        assert planned(deep(), FIRST_PASS + int(copies * each) + 300 * PIXELS, monkeypatch, **options).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["gradient", "input_x_gradient", "guided_backprop", "smoothgrad", "integrated_gradients", "occlusion"]
)
@pytest.mark.parametrize("side", [64, 256])
def test_what_lives_at_once_is_within_the_plan_of_every_method_and_not_far_below(monkeypatch, method, side):
    """Of a net so small that Captum's own copies of the image are the larger part; the oracle is what one draw
    makes."""
    for name, few in (("IG_STEPS", 9), ("NOISE_SAMPLES", 5), ("PATCHES", 3)):
        monkeypatch.setattr(f"erfscope.core.run.attribution.captum_methods.{name}", few)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1)).eval()
    found = {}
    monkeypatch.setattr(
        "erfscope.core.run.engine.measure.plan_batches",
        lambda plan: (found.update(model=needs(plan)[0].each), plan_batches(plan))[1],
    )
    options = {"method": method, "plain": True, "samples": 1, "draws": 1, "measures": "r50", "layer": "2"}
    assert erfscope.analyze(net, input_size=(side, side), **options).ok
    adapter = erfscope.wrap(net, input_size=(side, side))
    features, site = adapter.features, adapter.site("2")

    def alone(*args: object, **words: object) -> object:
        gc.collect(0)  # what circles of Python objects keep is not the plan's
        return features(*args, **words)

    monkeypatch.setattr(adapter, "features", alone)
    question = Question(site=site, units=[Unit(index=(4, 4))], convention=CONVENTIONS["jacobian"])
    with LiveBytes() as live:
        (draws,) = captum_draws(adapter, torch.randn(1, 3, side, side), question, 0, method=method)
        list(draws)
    # Holes in the heap take as much again: 2.3 to 2.6 times these bytes at 512 x 512, measured as resident memory.
    assert 0.15 < live.peak / found["model"] < 0.8


@pytest.mark.slow
def test_only_what_the_unit_needs_counts_and_the_whole_picture_while_it_is_made(monkeypatch):
    """The unit sees 11 x 11 of 256 x 256 pixels: the pass on those is small beside the image, 39 bytes a pixel, and its
    maps."""
    options = {"input_size": (256, 256), "layer": "4"}
    whole = OVERHEAD * count(deep(), (256, 256), layer="4")
    maps = 8 * MAPS_TO_MEASURE * 256 * 256
    assert whole > 2 * maps > 39 * 256 * 256
    assert planned(deep(), FIRST_PASS + int(1.02 * maps), monkeypatch, **options).ok
    assert "needs about" in planned(deep(), FIRST_PASS + int(0.98 * maps), monkeypatch, **options).error
    assert "needs about" in planned(deep(), FIRST_PASS + int(1.02 * maps), monkeypatch, **options, plain=True).error


@pytest.mark.slow
def test_the_pixels_that_several_units_need_together_are_counted(monkeypatch):
    """Each of nine units sees a small part of the image, and all of it is there for every image of a batch."""
    net, options = deep(), {"input_size": (256, 256), "layer": "4", "samples": 8}
    found = {}
    for unit in ("centre", "grid:3"):
        monkeypatch.setattr(
            "erfscope.core.run.engine.measure.plan_batches",
            lambda plan, unit=unit: (found.update({unit: needs(plan)[0]}), plan_batches(plan))[1],
        )
        assert planned(net, GIB, monkeypatch, unit=unit, **options).ok
    assert found["grid:3"].each - found["centre"].each > 2 * 4 * 3 * 128 * 128


def test_many_draws_are_counted_and_a_verification_that_does_not_fit_is_refused_before_it_runs(monkeypatch):
    monkeypatch.setattr(
        "erfscope.core.run.additions.verification.lacks_for_double",
        lambda plan, counted: "about 3 GiB of memory, but there are 2",
    )
    result = erfscope.analyze(deep(), input_size=64, layer="4", samples=1, verify=True, errors="row")
    assert "leave --verify out" in result.error
    net, each = deep(), OVERHEAD * count(deep(), (SIDE, SIDE), layer="4")
    options = {"input_size": (SIDE, SIDE), "samples": 1, "plain": True}
    assert planned(net, FIRST_PASS + int(2.2 * each), monkeypatch, draws=8, **options).ok
    assert "needs about" in planned(net, FIRST_PASS + int(2.2 * each), monkeypatch, draws=200, **options).error


@pytest.mark.slow
def test_on_a_gpu_both_memories_are_planned(monkeypatch):
    """The pass and the sums lie on the GPU, images and maps in the machine's own memory."""
    there = {"cuda": 1000 * GIB, "cpu": 1000 * GIB}
    monkeypatch.setattr(
        "erfscope.core.run.engine.batch.available_bytes",
        lambda device=None: there["cpu" if device is None else device.type],
    )
    found = {}
    monkeypatch.setattr(
        "erfscope.core.run.engine.measure.plan_batches", lambda run: (found.update(run=run), plan_batches(run))[1]
    )
    assert erfscope.analyze(deep(), input_size=(SIDE, SIDE), samples=4, measures="r50", plain=True).ok
    run = found["run"]
    on_cpu = needs(run)
    monkeypatch.setattr(
        "erfscope.core.run.engine.batch.device_and_dtype", lambda _plan: (torch.device("cuda"), torch.float32)
    )
    pass_, own = needs(run)
    # Four images are four groups of float64 sums, which are there twice when they come back.
    cells = math.prod(last - first + 1 for first, last in run.trfs[0].clipped_box_px)
    assert (pass_.fixed, pass_.after) == (2 * 4 * 8 * cells, 0)
    model = pass_.each - own.each
    assert on_cpu == [Need(there["cpu"], own.fixed, model + own.each, own.after + model)]
    there["cpu"] = own.takes(1) - 1
    with pytest.raises(MeasurementError, match="one image of 32x32 needs"):
        plan_batches(run)


def test_a_huge_input_is_refused_on_this_machine_within_moments():
    # 10^5 x 10^5 pixels: more than 100 GiB for the input alone, and some minutes if it were tried.
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
    result = erfscope.analyze(net, input_size=100_000, samples=2, errors="row")
    assert result.status == "error"
    assert "GiB of memory, but there are" in result.error
    needed = float(result.error.split("about ")[1].split(" GiB")[0].replace(",", ""))
    assert needed > 3 * 1e10 * 4 / GIB


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits data and addresses reliably")
@pytest.mark.parametrize(("limit", "used"), [("RLIMIT_DATA", "data"), ("RLIMIT_AS", "vms")])
def test_a_limit_of_the_process_itself_counts(limit, used):
    code = f"""
import resource, psutil, torch
from erfscope.core.system.environment import available_bytes
most = psutil.Process().memory_info().{used} + 2**28
resource.setrlimit(resource.{limit}, (most, resource.RLIM_INFINITY))
print(available_bytes() / 2**28)
"""
    done = warm.run([sys.executable, "-c", code])
    assert 0.9 < float(done.stdout) <= 1.0


@pytest.mark.slow
def test_what_a_run_will_take_is_said_before_the_first_picture(monkeypatch):
    monkeypatch.setattr("erfscope.core.run.engine.batch.available_bytes", lambda *_: 2**30)
    said = []
    noted = {"tell": said.append, "progress": lambda text, *_: text == "test_resnet" and said.append("picture")}
    erfscope.analyze(adapter_of(input_size=64), samples=5, batch_size=2, **noted)
    assert said[0].startswith("test_resnet · layer4: 5 images, 2 at a time, will take about 0.")
    assert said[0].endswith("of the 1 GiB that are free in memory")
    assert said[1:] == ["picture"] * 4


@pytest.mark.slow
def test_a_pass_that_is_let_go_of_leaves_nothing_for_the_garbage_collector(small_net):
    adapter = erfscope.wrap(small_net, input_size=(32, 40))
    # What was recorded of the model is kept.
    site = adapter.site("down", "stem")
    assert site.hooks is not None
    gc.collect()
    gc.disable()
    try:
        with LiveBytes() as live:
            features = adapter.features(torch.randn(1, 3, 32, 40), site)
            assert live.now > 0
            del features
        assert live.now == 0
    finally:
        gc.enable()


@functools.cache
def kept_table(side):
    """A table that every call with the same side shares."""
    return torch.arange(side, dtype=torch.float32)


def test_caches_that_a_pass_without_numbers_fills_hold_numbers():
    net = Does(lambda m, x: m.conv(x) * kept_table(x.shape[-1]), conv=nn.Conv2d(3, 4, 3, padding=1))
    assert count(net, 8, "conv")
    assert count(net, 8)
    assert torch.equal(kept_table(8), torch.arange(8.0))

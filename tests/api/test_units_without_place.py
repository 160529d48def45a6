"""Units without a place: tokens beside a map, queries, rows, classes and vectors."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from nets import Does, conv
from one_line import one_line
from oracle import plain_gradient
from torch import nn

import erfscope
from erfscope import MEASURES, MeasurementError
from erfscope.core.values.layout import Layout
from erfscope.core.values.unit_kind import KINDS, kind_of, layout_of_kind, resolve_kind

SIDE = 12


def token_by_hand():
    """Two class tokens of known sums: token 0 sums the left half of the image, token 1 has weight 3 on one pixel; the
    others are the pixels."""

    def forward(_, x):
        pixels, left, one = x.flatten(2).transpose(1, 2), x[..., : SIDE // 2].sum((2, 3)), 3 * x[:, :, 2, 5]
        return torch.cat([left[:, None], one[:, None], pixels], 1)

    return Does(forward)


def classifier():
    """Class k looks at row k of the image alone."""
    return Does(lambda m, x: x.mean(1).square().sum(2))


def both():
    """A map of scores, and a vector."""

    def forward(m, x):
        scores = m.scores(x)
        return {"scores": scores, "vector": scores.mean((2, 3))}

    return Does(forward, scores=conv(3, 5))


def pictures():
    torch.manual_seed(0)
    return torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64)


def measured(module: nn.Module, **options: object) -> erfscope.Result:
    return erfscope.analyze(module.double(), images=pictures(), input_size=SIDE, dtype="float64", **options)


@pytest.mark.parametrize("plain", [False, True])
def test_a_class_token_has_the_map_of_its_own_sum(plain):
    result = measured(token_by_hand(), unit="token:0", layer="output", draws="all", plain=plain)
    expected = np.zeros((SIDE, SIDE))
    expected[:, : SIDE // 2] = 2 / SIDE**2
    np.testing.assert_allclose(result.map.values, expected, atol=1e-15)
    one = measured(token_by_hand(), unit="token:1", layer="output", draws="all", plain=plain)
    assert one.map.values[2, 5] == pytest.approx(1)
    assert one.trf.clipped_box_px == ((2, 2), (5, 5))
    assert result.trf.clipped_box_px == ((0, SIDE - 1), (0, SIDE // 2 - 1))


def test_a_unit_without_a_place_has_no_centre_and_the_sizes_around_its_centroid():
    result = measured(token_by_hand(), unit="token:0", layer="output", draws="all", measures="all")
    assert (result.unit.kind, result.unit.index) == ("token", (0,))
    assert result.unit.center_px == result.unit.stride_px == result.trf.center_px == ()
    absent = [name for name, value in result.measures.items() if value.value is None]
    assert {name for name, each in MEASURES.items() if each.needs_center and each.axis in ("", "row", "col")} <= set(
        absent
    )
    assert [finding.code for finding in result.findings] == ["no_place"]
    # A rectangle of 12 x 6 cells around its own middle.
    rows, cols = np.arange(SIDE) - (SIDE - 1) / 2, np.arange(SIDE // 2) - (SIDE // 2 - 1) / 2
    distance = np.sort(np.hypot(rows[:, None], cols[None]).ravel())
    held = lambda r: np.clip(r - distance + 0.5, 0, 1).mean()  # noqa: E731
    assert held(float(result["centroid_r50"])) == pytest.approx(0.5)
    assert held(float(result["centroid_r90"])) == pytest.approx(0.9)
    assert float(result["entropy_area"]) == pytest.approx(SIDE * SIDE / 2)
    assert float(result["centroid_side99"]) > float(result["centroid_side50"]) > 0


@pytest.mark.parametrize("convention", ["jacobian", "energy", "luo", "signed"])
def test_a_class_is_one_score(convention):
    result = measured(classifier(), unit="class:4", convention=convention)
    assert (result.layer, result.unit.kind) == ("output", "class")
    assert set(np.flatnonzero(np.abs(result.map.values).sum(1))) == {4}
    # One channel has no signs to draw.
    assert result.input.n_draws == 1


def test_a_class_of_a_map_is_its_scores_at_all_places_and_a_vector_the_first_that_is_returned():
    module = both()
    result = measured(module, unit="class:3", layer="output[scores]", convention="luo")
    assert result.layer == "output[scores]"
    expected = plain_gradient(module.double(), pictures(), lambda y: y["scores"][:, 3]).abs().sum(1).mean(0)
    np.testing.assert_allclose(result.map.values, expected / expected.sum(), atol=1e-15)
    result = measured(module, unit="vector", draws="all")
    assert (result.layer, result.unit.index, result.unit.kind) == ("output[vector]", (), "vector")
    assert result.map.values.min() > 0


@pytest.mark.parametrize(
    ("unit", "error"),
    [
        ("token:0,centre", "several kinds"),
        ("token:0,class:3", "several kinds"),
        ("token:12345", r"token 12345 lies outside output, which has 146; the last is 145"),
        ("token:-1", "token -1 lies outside"),
        ("token:registers", "names no unit of output: name it by its index, token:0 to 145"),
        ("vector", "returns no tensor with units 'vector'"),
        ("class:3", "returns no tensor with units 'class'"),
        ("token:٣", "names no unit"),
    ],
)
def test_a_unit_that_is_not_there_is_refused_in_one_line(unit, error):
    options = {} if unit in ("vector", "class:3") else {"layer": "output"}
    one_line(lambda: measured(token_by_hand(), unit=unit, **options), error)


def detected(m, x):
    """Boxes and scores of rows, and one vector of classes."""
    rows = x.mean(1).flatten(1)
    return {"boxes": rows[:, :, None].expand(-1, -1, 4), "scores": rows, "classes": rows[:, :5]}


def proposed(m, x):
    """The cells of all images whose number is above the mean, in one list, with two scores each."""
    cells = x[:, :2].flatten(2).transpose(1, 2).flatten(0, 1)
    return cells[cells[:, 0] > cells[:, 0].mean()]


def test_of_several_outputs_one_must_be_named_that_has_such_an_axis():
    words = r"several tensors with units 'vector', output\[scores\], output\[clas"
    one_line(lambda: measured(Does(detected), unit="vector"), words, MeasurementError)
    result = measured(Does(detected), unit="class:2", layer="output[classes]")
    assert result.map.values[0, 2] == pytest.approx(1)
    assert measured(Does(detected), unit="row:3", draws="all").layer == "output[boxes]"
    words = r"layer 'scores' has no axis of units 'token': its output has shape"
    one_line(lambda: measured(both(), unit="token:0", layer="scores"), words, MeasurementError)
    one_line(lambda: measured(both(), unit="token:", layer="scores"), "cannot read the unit 'token:'")
    words = "--unit token:N, query:N, class:N or vector"
    one_line(lambda: measured(both(), layer="output[vector]"), words, MeasurementError)
    # A list of all images is refused, and its scores are not taken for images.
    words = r"has no axis of images: .*\(\d+, 2\) for 2 images; let erfscope"
    for unit in ("row:0", "query:0", "class:1", "vector"):
        call = lambda unit=unit: measured(Does(proposed), layer="output", unit=unit)  # noqa: E731
        one_line(call, words, MeasurementError)


def test_input_size_auto_needs_a_place():
    words = "which a unit 'class' has not"
    one_line(lambda: erfscope.analyze(classifier(), unit="class:1", input_size="auto"), words)


@pytest.mark.slow
def test_several_tokens_are_a_result_each_and_survive_a_report(tmp_path):
    options = {"images": pictures().float(), "input_size": SIDE}
    report = erfscope.sweep(token_by_hand(), layer="output", unit="token:1,0", **options)
    assert [result.unit.index for result in report] == [(1,), (0,)]
    report.save(tmp_path / "out")
    stored = erfscope.read(tmp_path / "out")
    assert [(result.unit, result.measures) for result in stored] == [(r.unit, r.measures) for r in report]
    assert stored[0].map.center_px == ()
    document = json.loads((tmp_path / "out/report.json").read_text())
    assert document["results"][1]["unit"] == {
        "index": [0], "kind": "token", "center_px": [], "stride_px": [], "center_exact": True, "map_shape": [3, 146],
    }  # fmt: skip
    page = (tmp_path / "out/index.html").read_text()
    assert "token 1" in page
    assert 'class="unit"' not in page
    assert "unit</span>" not in page
    assert "Circles" not in (tmp_path / "out/figure.tex").read_text()
    assert "token 0" in report.table(format="csv")


@pytest.mark.slow
def test_texts_say_centroid_and_figures_show_no_cross(tmp_path):
    result = measured(classifier(), unit="class:4")
    text = str(result)
    assert re.search(r"Half of the ERF lies within \S+ px of its centroid \(4", text)
    assert "+ unit" not in text
    assert "unit class" not in text
    figure = result.figure(tmp_path / "one.png")
    drawn = {artist.get_gid() for axes in figure.axes for artist in axes.get_children()}
    assert not drawn & {"unit", "r50", "r90"}
    one_line(lambda: result.figure(kind="profile"), "of a unit with a place")


def test_resuming_tells_kinds_apart():
    options = {"images": pictures().float(), "input_size": SIDE, "layer": "output"}
    first, second = (erfscope.sweep(token_by_hand(), unit=unit, **options) for unit in ("token:1", "row:1"))
    assert first[0].id != second[0].id
    again = erfscope.sweep(token_by_hand(), unit="token:1", resume=first, **options)
    assert again[0].measures == first[0].measures
    one_line(lambda: erfscope.sweep(token_by_hand(), unit="row:1", resume=first, **options), "unit")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("centre", ("", ())),
        ((3, 3), ("", ())),
        (["token:0", "token:2"], ("token", ("0", "2"))),
        ("token:0, token:2,5", ("token", ("0", "2", "5"))),
        ("class:golden retriever, dog", ("class", ("golden retriever, dog",))),
        ("class:0,3", ("class", ("0", "3"))),
        ("Vector", ("vector", ("",))),
    ],
)
def test_words_of_units(word, expected):
    assert kind_of(word) == expected


@pytest.mark.parametrize(
    ("kind", "shape", "layout", "expected"),
    [
        ("token", (2, 17, 8), Layout(dims=(1,), grid=(4, 4), prefix=1), Layout(dims=(1,), kind="token")),
        ("token", (17, 2, 8), None, Layout(dims=(0,), batch_dim=1, kind="token")),
        ("row", (2, 84, 100), Layout(), Layout(dims=(2,), kind="row")),
        ("query", (2, 10, 4, 4), Layout(), Layout(dims=(1,), kind="query")),
        ("class", (2, 10), None, Layout(dims=(1,), kind="class")),
        ("class", (2, 4, 4, 10), Layout(dims=(1, 2)), Layout(dims=(3,), kind="class")),
        ("class", (2, 10, 5), None, None),
        ("vector", (2, 10), None, Layout(kind="vector")),
        ("vector", (2, 10, 3), None, None),
        ("token", (5, 7, 8), None, None),
    ],
)
def test_the_axis_of_a_kind(kind, shape, layout, expected):
    assert layout_of_kind(kind, shape, 2, layout) == expected
    assert kind in KINDS


def test_names_mean_indices():
    units = resolve_kind("token", ["registers", "0"], [9], layer="x", known={"registers": range(1, 4)})
    assert [unit.index for unit in units] == [(1,), (2,), (3,), (0,)]
    call = lambda: resolve_kind("class", ["goldn"], [9], layer="x", known={"golden": (1,), "other": (2,)})  # noqa: E731
    one_line(call, r"unknown class 'goldn' in x.*did you mean 'golden'")


def test_registers_and_classes_have_the_names_of_their_library():
    import timm
    from timm.models.vision_transformer import VisionTransformer

    small = {"img_size": 32, "patch_size": 16, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 3}
    assert erfscope.wrap(VisionTransformer(**small, reg_tokens=2)).unit_names("token") == {"registers": range(1, 3)}
    without = VisionTransformer(**small, reg_tokens=2, class_token=False, global_pool="avg")
    assert erfscope.wrap(without).unit_names("token") == {"registers": range(2)}
    assert erfscope.wrap(VisionTransformer(**small)).unit_names("token") == {}
    assert erfscope.wrap(timm.create_model("resnet18")).unit_names("class")["golden retriever"] == (207,)
    assert erfscope.wrap(classifier()).unit_names("class") == {}


def anchors(m, x):
    """Two levels of a detector, channels first and anchors of both in a row, as YOLO's heads give them."""
    fine = m.fine(x)
    return torch.cat([fine.flatten(2), m.coarse(fine.tanh()).flatten(2)], 2)


def test_rows_are_along_the_dimension_whose_places_change():
    module = Does(anchors, fine=conv(3, 5, s=2), coarse=conv(5, 5, s=2))
    for kind, row in itertools.product(("row", "query", "token"), (8, 40)):
        result = measured(module, layer="output", unit=f"{kind}:{row}", draws="all", measures="r50")
        assert (result.unit.index, result.unit.map_shape) == ((row,), (5, 45))
        energy = sum(
            plain_gradient(module, pictures(), lambda y, c=c, row=row: y[:, c, row]).square().sum(1) for c in range(5)
        )
        truth = (energy / energy.sum((1, 2), keepdim=True)).mean(0).sqrt()
        assert np.abs(result.map.values - (truth / truth.sum()).numpy()).sum() < 1e-12
        assert result.trf.size_px == ((3, 3) if row < 36 else (7, 7))
    words = r"\(1, 5, 45\), 45 tokens, whose places on the image form no grid"
    one_line(lambda: measured(module, layer="output"), words, MeasurementError)


class RandomHeads(nn.Module):
    """A random stack of convolutions whose cells are tokens, a class token that attends to them, and what follows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw, width, layers = random.Random(seed), 3, list[nn.Module]()
        for _ in range(draw.randint(1, 3)):
            wider, taps = draw.choice([4, 6]), draw.choice([1, 2, 3])
            layers += [nn.Conv2d(width, wider, taps, draw.choice([1, 2]), padding=taps // 2, bias=draw.random() < 0.5)]
            layers += [draw.choice([nn.ReLU, nn.GELU, nn.Tanh])(), draw.choice([nn.Identity(), nn.GroupNorm(1, wider)])]
            width = wider
        self.body, self.attend = nn.Sequential(*layers), nn.MultiheadAttention(width, 1, batch_first=True)
        self.token, self.score = nn.Parameter(torch.randn(1, 1, width)), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        tokens = self.body(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        tokens = tokens + self.attend(tokens, tokens, tokens, need_weights=False)[0]
        return {"tokens": tokens, "logits": self.score(tokens[:, 0]), "pooled": tokens.mean(1)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_nets_have_the_maps_of_plain_autograd(seed, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from heads import ALLOWED, by_autograd

    module, size = RandomHeads(seed).double().eval(), (9 + seed % 4, 10)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    for layer, unit in (("tokens", "token:0"), ("tokens", "row:2"), ("logits", "class:3"), ("pooled", "vector")):
        name = f"output[{layer}]"
        truth = by_autograd(module, x, name, unit)
        for plain in (False, True):
            options = {
                "layer": name,
                "unit": unit,
                "draws": "all",
                "dtype": "float64",
                "measures": "r50",
                "plain": plain,
            }
            result = erfscope.analyze(module, images=x, input_size=size, **options)
            assert np.abs(result.map.values - truth).sum() < ALLOWED
            outside = truth.copy()
            outside[tuple(slice(first, last + 1) for first, last in result.trf.clipped_box_px)] = 0
            assert not outside.any()


@pytest.mark.more
def test_heads_of_public_models_and_nets_of_sound_have_the_maps_of_plain_autograd(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import heads
    import sound

    # Their kinds are there twice, and these take most of the time.
    slow = ("vit_small_patch14_reg4_dinov2", "convnext_atto", "vit_tiny_patch16_224", "torchvision RetinaNet")
    detector = "torchvision Faster R-CNN, "
    slow += tuple(detector + part for part in ("its pyramid", "scores of level 0", "scores of level 2", "a proposal"))
    quick = tuple(head for head in heads.HEADS if head.name not in slow)
    for head, result, distance in heads.rows(quick):
        assert (distance <= heads.ALLOWED, result.layer) == (True, head.expected), (head.name, distance)
    names = ("SincNet front of PyanNet", "EEGNet-like", "WaveNet-like")
    cases = tuple(case for case in sound.CASES if case.name in names)
    assert len(cases) == 3
    assert not [row for row in sound.rows(cases) if not sound.is_right(*row)]


def test_layers_and_theoretical_take_such_units():
    table = erfscope.layers(token_by_hand(), unit="token:1", input_size=SIDE)
    assert [(row.name, row.unit, row.kind, row.trf.clipped_box_px) for row in table.rows] == [
        ("output", (1,), "token", ((2, 2), (5, 5)))
    ]
    assert "token 1" in str(table)
    assert "centre" not in str(erfscope.theoretical(classifier(), unit="class:4", input_size=SIDE))
    assert erfscope.theoretical(classifier(), unit="class:4", input_size=SIDE).clipped_box_px[0] == (4, 4)


def test_a_gate_guards_the_sizes_that_such_units_have(tmp_path):
    options = {"images": torch.randn(8, 3, SIDE, SIDE), "input_size": SIDE, "unit": "class:4"}
    baseline = tmp_path / "erf.json"
    erfscope.check(classifier(), baseline=baseline, update=True, **options)
    verdict = erfscope.check(classifier(), baseline=baseline, **options)
    assert verdict.word == "pass"
    assert [each.name for each in verdict.measures] == ["centroid_r50", "centroid_r90", "entropy_area"]
    assert "without a place" in verdict.text
    monitor = erfscope.ErfMonitor(classifier(), **options)
    monitor.step(0)
    assert monitor.report()[0].unit.kind == "class"

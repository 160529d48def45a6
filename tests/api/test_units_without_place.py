"""Units without a place: tokens beside a map, queries, rows, classes and vectors."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope import MEASURES, ErfscopeError, MeasurementError
from erfscope.core.values.layout import Layout
from erfscope.core.values.unit_kind import KINDS, kind_of, layout_of_kind, resolve_kind

SIDE = 12


class TokenByHand(nn.Module):
    """Two class tokens of known sums: token 0 sums the left half of the image, token 1 has weight 3 on one pixel; the
    others are the pixels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = x.flatten(2).transpose(1, 2)
        left = x[..., : SIDE // 2].sum((2, 3))
        one = 3 * x[:, :, 2, 5]
        return torch.cat([left[:, None], one[:, None], pixels], 1)


class Classifier(nn.Module):
    """Class k looks at row k of the image alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1).square().sum(2)


class Both(nn.Module):
    """A map of scores, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.scores(x)
        return {"scores": scores, "vector": scores.mean((2, 3))}


def measured(module: nn.Module, **options: object) -> erfscope.Result:
    torch.manual_seed(0)
    images = torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64)
    return erfscope.analyze(module.double(), images=images, input_size=SIDE, dtype="float64", **options)


@pytest.mark.parametrize("plain", [False, True])
def test_a_class_token_has_the_map_of_its_own_sum(plain):
    result = measured(TokenByHand(), unit="token:0", layer="output", draws="all", plain=plain)
    expected = np.zeros((SIDE, SIDE))
    expected[:, : SIDE // 2] = 2 / SIDE**2
    np.testing.assert_allclose(result.map.values, expected, atol=1e-15)
    one = measured(TokenByHand(), unit="token:1", layer="output", draws="all", plain=plain)
    assert one.map.values[2, 5] == pytest.approx(1)
    assert one.trf.clipped_box_px == ((2, 2), (5, 5))
    assert result.trf.clipped_box_px == ((0, SIDE - 1), (0, SIDE // 2 - 1))


def test_a_unit_without_a_place_has_no_centre_and_the_sizes_around_its_centroid():
    result = measured(TokenByHand(), unit="token:0", layer="output", draws="all", measures="all")
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
    result = measured(Classifier(), unit="class:4", convention=convention)
    assert (result.layer, result.unit.kind) == ("output", "class")
    assert set(np.flatnonzero(np.abs(result.map.values).sum(1))) == {4}
    # One channel has no signs to draw.
    assert result.input.n_draws == 1


def test_a_class_of_a_map_is_its_scores_at_all_places():
    module = Both()
    result = measured(module, unit="class:3", layer="output[scores]", convention="luo")
    assert result.layer == "output[scores]"
    torch.manual_seed(0)
    x = torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(module.double()(x)["scores"][:, 3].sum(), x)
    expected = gradient.abs().sum(1).mean(0)
    np.testing.assert_allclose(result.map.values, expected / expected.sum(), atol=1e-15)


def test_a_vector_is_the_first_that_the_model_returns():
    result = measured(Both(), unit="vector", draws="all")
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
    with pytest.raises(ErfscopeError, match=error) as caught:
        measured(TokenByHand(), unit=unit, **options)
    assert "\n" not in str(caught.value)


class Detector(nn.Module):
    """Boxes and scores of rows, and one vector of classes."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = x.mean(1).flatten(1)
        return {"boxes": rows[:, :, None].expand(-1, -1, 4), "scores": rows, "classes": rows[:, :5]}


def test_of_several_outputs_one_must_be_named():
    with pytest.raises(MeasurementError, match=r"several tensors with units 'vector', output\[scores\], output\[clas"):
        measured(Detector(), unit="vector")
    assert measured(Detector(), unit="class:2", layer="output[classes]").map.values[0, 2] == pytest.approx(1)
    assert measured(Detector(), unit="row:3", draws="all").layer == "output[boxes]"


def test_a_layer_without_such_an_axis_is_refused_with_its_shape():
    with pytest.raises(MeasurementError, match=r"layer 'scores' has no axis of units 'token': its output has shape"):
        measured(Both(), unit="token:0", layer="scores")
    with pytest.raises(ErfscopeError, match="cannot read the unit 'token:'"):
        measured(Both(), unit="token:", layer="scores")


def test_the_refusal_of_a_layer_without_a_map_names_such_units():
    with pytest.raises(MeasurementError, match="--unit token:N, query:N, class:N or vector"):
        measured(Both(), layer="output[vector]")


def test_input_size_auto_needs_a_place():
    with pytest.raises(ErfscopeError, match="which a unit 'class' has not"):
        erfscope.analyze(Classifier(), unit="class:1", input_size="auto")


def test_several_tokens_are_a_result_each_and_survive_a_report(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 3, SIDE, SIDE)
    report = erfscope.sweep(TokenByHand(), layer="output", unit="token:1,0", images=x, input_size=SIDE)
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


def test_texts_say_centroid_and_show_no_cross():
    text = str(measured(Classifier(), unit="class:4"))
    assert re.search(r"Half of the ERF lies within \S+ px of its centroid \(4", text)
    assert "+ unit" not in text
    assert "unit class" not in text


def test_figures_have_no_cross(tmp_path):
    figure = measured(Classifier(), unit="class:4").figure(tmp_path / "one.png")
    drawn = {artist.get_gid() for axes in figure.axes for artist in axes.get_children()}
    assert not drawn & {"unit", "r50", "r90"}
    with pytest.raises(ErfscopeError, match="of a unit with a place"):
        measured(Classifier(), unit="class:4").figure(kind="profile")


def test_resuming_tells_kinds_apart(tmp_path):
    x = torch.randn(2, 3, SIDE, SIDE)
    options = {"images": x, "input_size": SIDE, "layer": "output"}
    first = erfscope.sweep(TokenByHand(), unit="token:1", **options)
    second = erfscope.sweep(TokenByHand(), unit="row:1", **options)
    assert first[0].id != second[0].id
    assert erfscope.sweep(TokenByHand(), unit="token:1", resume=first, **options)[0].measures == first[0].measures
    with pytest.raises(ErfscopeError, match="unit"):
        erfscope.sweep(TokenByHand(), unit="row:1", resume=first, **options)


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
    with pytest.raises(ErfscopeError, match=r"unknown class 'goldn' in x.*did you mean 'golden'"):
        resolve_kind("class", ["goldn"], [9], layer="x", known={"golden": (1,), "other": (2,)})


def test_registers_and_classes_have_the_names_of_their_library():
    import timm
    from timm.models.vision_transformer import VisionTransformer

    small = {"img_size": 32, "patch_size": 16, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 3}
    assert erfscope.wrap(VisionTransformer(**small, reg_tokens=2)).unit_names("token") == {"registers": range(1, 3)}
    without = VisionTransformer(**small, reg_tokens=2, class_token=False, global_pool="avg")
    assert erfscope.wrap(without).unit_names("token") == {"registers": range(2)}
    assert erfscope.wrap(VisionTransformer(**small)).unit_names("token") == {}
    assert erfscope.wrap(timm.create_model("resnet18")).unit_names("class")["golden retriever"] == (207,)
    assert erfscope.wrap(Classifier()).unit_names("class") == {}


class Anchors(nn.Module):
    """Two levels of a detector, channels first and anchors of both in a row, as YOLO's heads give them."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 5, 3, 2, 1), nn.Conv2d(5, 5, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.fine(x)
        return torch.cat([fine.flatten(2), self.coarse(fine.tanh()).flatten(2)], 2)


@pytest.mark.parametrize("kind", ["row", "query", "token"])
@pytest.mark.parametrize("row", [8, 40])
def test_rows_are_along_the_dimension_whose_places_change(kind, row):
    module = Anchors()
    result = measured(module, layer="output", unit=f"{kind}:{row}", draws="all")
    assert (result.unit.index, result.unit.map_shape) == ((row,), (5, 45))
    torch.manual_seed(0)
    x = torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64).requires_grad_()
    energy = torch.zeros(2, SIDE, SIDE, dtype=torch.float64)
    for value in module(x)[..., row].sum(0):
        (gradient,) = torch.autograd.grad(value, x, retain_graph=True)
        energy += gradient.square().sum(1)
    truth = (energy / energy.sum((1, 2), keepdim=True)).mean(0).sqrt()
    assert np.abs(result.map.values - (truth / truth.sum()).numpy()).sum() < 1e-12
    assert result.trf.size_px == ((3, 3) if row < 36 else (7, 7))


def test_a_list_of_anchors_is_refused_with_their_number():
    with pytest.raises(MeasurementError, match=r"\(1, 5, 45\), 45 tokens, whose places on the image form no grid"):
        measured(Anchors(), layer="output")


class Proposals(nn.Module):
    """The cells of all images whose number is above the mean, in one list, with two scores each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cells = x[:, :2].flatten(2).transpose(1, 2).flatten(0, 1)
        return cells[cells[:, 0] > cells[:, 0].mean()]


@pytest.mark.parametrize("unit", ["row:0", "query:0", "class:1", "vector"])
def test_a_list_of_all_images_is_refused_and_its_scores_are_not_taken_for_images(unit):
    with pytest.raises(MeasurementError, match=r"has no axis of images: .*\(\d+, 2\) for 2 images; let erfscope"):
        measured(Proposals(), layer="output", unit=unit)


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
            options = {"layer": name, "unit": unit, "draws": "all", "dtype": "float64", "plain": plain}
            result = erfscope.analyze(module, images=x, input_size=size, **options)
            assert np.abs(result.map.values - truth).sum() < ALLOWED
            outside = truth.copy()
            outside[tuple(slice(first, last + 1) for first, last in result.trf.clipped_box_px)] = 0
            assert not outside.any()


@pytest.mark.slow
def test_heads_of_public_models_have_the_maps_of_plain_autograd(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from heads import ALLOWED, HEADS, rows

    # Their kinds are there twice, and these take most of the time.
    slow = ("vit_small_patch14_reg4_dinov2", "convnext_atto", "vit_tiny_patch16_224", "torchvision RetinaNet")
    detector = "torchvision Faster R-CNN, "
    slow += tuple(detector + part for part in ("its pyramid", "scores of level 0", "scores of level 2", "a proposal"))
    quick = tuple(head for head in HEADS if head.name not in slow)
    wrong = [
        (head.name, result.layer, distance)
        for head, result, distance in rows(quick)
        if distance > ALLOWED or result.layer != head.expected
    ]
    assert not wrong


def test_layers_and_theoretical_take_such_units():
    table = erfscope.layers(TokenByHand(), unit="token:1", input_size=SIDE)
    assert [(row.name, row.unit, row.kind, row.trf.clipped_box_px) for row in table.rows] == [
        ("output", (1,), "token", ((2, 2), (5, 5)))
    ]
    assert "token 1" in str(table)
    assert "centre" not in str(erfscope.theoretical(Classifier(), unit="class:4", input_size=SIDE))
    assert erfscope.theoretical(Classifier(), unit="class:4", input_size=SIDE).clipped_box_px[0] == (4, 4)


def test_a_gate_guards_the_sizes_that_such_units_have(tmp_path):
    torch.manual_seed(0)
    options = {"images": torch.randn(8, 3, SIDE, SIDE), "input_size": SIDE, "unit": "class:4"}
    baseline = tmp_path / "erf.json"
    erfscope.check(Classifier(), baseline=baseline, update=True, **options)
    verdict = erfscope.check(Classifier(), baseline=baseline, **options)
    assert verdict.word == "pass"
    assert [each.name for each in verdict.measures] == ["centroid_r50", "centroid_r90", "entropy_area"]
    assert "without a place" in verdict.text


def test_a_monitor_follows_such_a_unit():
    monitor = erfscope.ErfMonitor(Classifier(), images=torch.randn(4, 3, SIDE, SIDE), input_size=SIDE, unit="class:4")
    monitor.step(0)
    assert monitor.report()[0].unit.kind == "class"

"""What --explain says: every formula with what it must not be used for, and a methods section that is true of the
run."""

from __future__ import annotations

import re
from dataclasses import replace

import made_up
import pytest
from loaded import adapter_of
from rich.console import Console

import erfscope
from erfscope import CONVENTIONS, MEASURES, Report
from erfscope.cli.explanation import explanation
from erfscope.core.values.model_facts import Weights
from erfscope.show.view.sentences import GUIDE, methods_sentence


def shown(report: Report | None, width: int = 80) -> str:
    console = Console(width=width, color_system=None, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(explanation(report))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def words(text: str) -> str:
    return " ".join(text.split())


# --- Formulas and the guide -----------------------------------------------------------------------


@pytest.mark.parametrize("entry", [*CONVENTIONS.values(), *MEASURES.values()], ids=lambda entry: entry.name)
def test_everything_says_what_it_must_not_be_used_for(entry):
    assert len(entry.not_for) > 20
    assert not entry.not_for.endswith(".")
    assert entry.source


def test_without_a_run_everything_is_explained(golden):
    text = shown(None)
    for entry in (*CONVENTIONS.values(), *MEASURES.values()):
        assert words(f"not for {entry.not_for}") in words(text), entry.name
        assert re.search(rf"(?m)^{entry.name}  ", text), entry.name
    for measure in MEASURES.values():
        assert words(measure.formula) in words(text)
    for purpose, advice in GUIDE:
        assert words(purpose) in words(text)
        assert words(advice) in words(text)
    assert "For a paper" not in text
    golden("explain-guide", text)


@pytest.mark.parametrize("name", ["four", "inner", "host_and_block"])
def test_a_run_is_explained_as_it_was(golden, name):
    golden(f"explain-{name}", shown(getattr(made_up, name)()))


def test_a_run_explains_only_what_it_measured():
    text = shown(made_up.report(made_up.result(convention="luo")))
    assert re.findall(r"(?m)^(\w+)  shown as", text) == ["luo"]
    assert set(re.findall(r"(?m)^(\w+)  (?:in \w+, )?(?:grows|shrinks|says)", text)) == set(made_up.SIZES)


def test_no_line_is_wider_than_the_terminal():
    for width in (60, 80, 120):
        assert max(len(line) for line in shown(made_up.four(), width).splitlines()) <= width


# --- The methods section --------------------------------------------------------------------------


def test_the_methods_section_says_what_was_done():
    assert (
        methods_sentence(made_up.report(made_up.result()))
        == "Effective receptive fields were measured with erfscope 1.2.3 (PyTorch 2.9.0, timm 1.0.30) for the central"
        " unit of layer4 of resnet18 (pretrained weights resnet18.a1_in1k, sha256 0123456789ab), with respect to the"
        " image, at an input size of 224 x 224 pixels. The maps follow the jacobian convention (readout sum_c e_c"
        " y_c, e = random signs; contribution sum_s g_s^2, root of the mean; the Frobenius norm of the unit's"
        " Jacobian block; Hutchinson's estimator) and show amplitude; each image's contributions are divided by"
        " their total before images are averaged. They were averaged over 4 synthetic images (dead leaves, version"
        " 1, seed 0), with 2 draws of random signs per image (seed 0), in float32. ± is the"
        " delete-one-group jackknife error (variance and bias) over 4 groups of images."
    )


def test_every_group_of_settings_has_a_paragraph_and_every_model_stands_in_one():
    report = made_up.report(
        made_up.result(), made_up.vit(), made_up.result("other", convention="luo"), made_up.broken()
    )
    first, second, lost = methods_sentence(report).split("\n\n")
    assert "layer4 of resnet18" in first
    assert "; and blocks.11 of vit_small_patch16_224" in first
    assert "other" not in first
    assert "layer4 of other" in second
    assert "arXiv:1701.04128" in second
    assert "random signs" not in second
    assert lost == "Not measured: broken (Input height (224) doesn't match model (256))."


RANDOM = {"source": "random", "seed": 3}
NOISE = "attributions by smoothgrad (Captum; 16 samples with Gaussian noise of 15% of the input's range)"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"weights": Weights(**RANDOM, reactivated=8)},
            "random weights, seed 3, 8 residual branches that start at zero switched on",
        ),
        ({"weights": Weights(**RANDOM, fallback=True)}, "since pretrained ones could not be had"),
        (
            {"weights": Weights(source="checkpoint", origin="/home/runs/secret/best.pth")},
            "(weights of the checkpoint best.pth)",
        ),
        ({"weights": Weights(source="given")}, "(weights as provided)"),
        ({"method": "smoothgrad"}, NOISE),
        ({"method": "smoothgrad"}, "Captum 0.9.0"),
        ({"amp_dtype": "bfloat16"}, "in float32 under autocast to bfloat16"),
        ({"wrt": "layer1"}, "with respect to the output of layer1 (224 x 224 cells)"),
        ({"wrt": "gcn:in"}, "with respect to the input of gcn ("),
        ({"measures": {}}, "No standard errors are given"),
        ({"convention": "custom"}, "a custom convention"),
        ({"insert": "gcn@layer3", "alpha": 0.5}, "with gcn@layer3 at alpha 0.5"),
        ({"input": {"n_draws": "all"}}, "summed exactly over all channels"),
        ({"input": {"n_draws": 1}}, "with 1 draw of random signs per image"),
        ({"input": {"n_dead": 1}}, "of which 1 without a usable gradient was left out"),
        (
            {"input": {"source": "image", "n_images": 1, "text": "/data/a.png", "text_kind": "file"}},
            "They were computed on 1 image (a.png), with 2 draws of random signs (seed 0)",
        ),
        (
            {"input": {"source": "image", "n_images": 5, "text": "5 of 9 images in 'val' (seed 0)"}},
            "averaged over 5 of 9 images in 'val' (seed 0)",
        ),
        (
            {"input": {"source": "tensor", "n_images": 3, "text": "tensor 3x3x8x8", "text_kind": "tensor"}},
            "averaged over 3 ready inputs",
        ),
    ],
    ids=str,
)
def test_what_was_unusual_is_said_in_english(change, text):
    if "input" in change:
        change = {"input": replace(made_up.result().input, **change["input"])}
    said = methods_sentence(made_up.report(made_up.result(**change)))
    assert text in said
    assert "/home" not in said
    assert "None" not in said


def test_units_are_said_by_the_word_they_were_asked_by_or_by_index():
    assert "the corner unit (0, 0) of" in methods_sentence(made_up.report(made_up.result(), unit="corner"))
    assert "the unit (3, 3) of" in methods_sentence(made_up.report(made_up.result(), unit="3,3"))
    asked_nothing = Report(results=(made_up.result(),), settings={}, environment={})
    assert "for the unit (3, 3) of" in methods_sentence(asked_nothing)
    assert methods_sentence(Report(results=(), environment={})) == ""


@pytest.mark.slow
def test_the_methods_of_a_real_run_name_its_versions_model_and_seed():
    asked = {"samples": 2, "seed": 5, "measures": "r50", "layer": "layer1,layer2"}
    report = erfscope.sweep(adapter_of("test_resnet", input_size=64), **asked)
    said = methods_sentence(report)
    version, drawn = f"erfscope {erfscope.__version__}", "2 synthetic images (dead leaves"
    for part in (version, "layers layer1 and layer2 of test_resnet", "64 x 64", "seed 5", drawn):
        assert part in said
    assert report[0].weights.sha256[:12] in said

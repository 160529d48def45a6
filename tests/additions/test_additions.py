"""What holds of every addition: it is stored, and a run that goes on without it is measured again."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import erfscope
from erfscope import ErfscopeError, Result
from erfscope.core.answer.storage.documents import StoredResult
from erfscope.core.run.additions import ADDITIONS
from erfscope.core.run.attribution import gradient
from erfscope.core.system.restore import default_dtype
from erfscope.show.view.extras import EXTRAS

WORDS = {"input_size": (24, 20), "samples": 2, "measures": "r50"}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.GELU(), nn.Conv2d(6, 8, 3, 2, 1)).eval()


def test_what_an_addition_finds_is_a_field_that_is_stored():
    fields = {addition.field for addition in ADDITIONS} - {""}
    assert fields <= {field.name for field in dataclasses.fields(Result)}
    assert fields <= set(StoredResult.__struct_fields__)
    assert set(EXTRAS) <= set(StoredResult.__struct_fields__)


@pytest.mark.parametrize("asked", [{"verify": True}, {"trust": True}, {"show_samples": True}], ids=str)
def test_a_finished_run_without_it_is_measured_again(asked, tmp_path):
    model = net()
    erfscope.sweep(model, **WORDS, keep_in=tmp_path)
    (result,) = erfscope.sweep(model, **WORDS, resume=tmp_path, **asked)
    wanted = [each.field for each in ADDITIONS if each.field and getattr(result, each.field) is not None]
    assert len(wanted) == 1
    assert result.ok


def test_a_second_gradient_is_taken_for_the_first_picture_alone(monkeypatch):
    taken, right = [], gradient.backward
    monkeypatch.setattr(gradient, "backward", lambda *given, **words: taken.append(1) or right(*given, **words))
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4)).eval()
    asked = {**WORDS, "samples": 5, "convention": "luo", "batch_size": 1}
    assert erfscope.analyze(module, **asked).gradient_ratio is not None
    assert len(taken) == 5 + 1


def test_a_model_in_half_precision_is_not_verified_and_the_line_says_what_to_do():
    with pytest.raises(ErfscopeError, match=r"in bfloat16: call \.float\(\) on it, or leave --verify out"):
        erfscope.analyze(net().bfloat16(), **WORDS, verify=True)


def test_trust_does_not_depend_on_the_default_type_of_the_process():
    found = erfscope.analyze(net(), **WORDS, trust=True).trust
    with default_dtype(torch.bfloat16):
        assert erfscope.analyze(net().float(), **WORDS, trust=True).trust.ratio.value != 0
    with default_dtype(torch.float64):
        again = erfscope.analyze(net().float(), **WORDS, trust=True).trust
    assert found.ratio.value == pytest.approx(1, abs=0.2)
    assert again.ratio.value == pytest.approx(1, abs=0.2)


def test_a_reference_of_one_number_has_a_spread():
    result = erfscope.analyze(nn.Conv2d(1, 2, 1), images=torch.ones(1, 1, 5, 5), measures="r50", trust=True)
    assert result.trust.not_finite == 0
    assert result.trust.ratio.value == pytest.approx(1, abs=1e-3)

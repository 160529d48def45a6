"""Models of token ids are measured with respect to what embeds them, those of (B, T, C) as of (B, C, T)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import conv
from one_line import one_line
from torch import Tensor, nn

import erfscope
from erfscope.show.view.tables import latex_figure
from erfscope.show.view.terminal.report import next_step
from erfscope.show.view.words import cells_note

LENGTH, UNIT = 12, 9


class Text(nn.Module):
    """A causal language model: embedding, positions, one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(50, 8), nn.Embedding(LENGTH, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        x += self.positions(torch.arange(input_ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.layer(x, src_mask=mask)


def text() -> tuple[Text, Tensor]:
    torch.manual_seed(0)
    return Text().double().eval(), torch.randint(50, (3, LENGTH))


def by_autograd(model: Text, ids: Tensor) -> np.ndarray:
    """The map of a unit with respect to the embedding, by its definition."""
    at = model.embed(ids).detach().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.embed, "forward", lambda _: at.clone())
        out = model(ids)
    power = sum(torch.autograd.grad(out[:, UNIT, c].sum(), at, retain_graph=True)[0].square().sum(-1) for c in range(8))
    amplitude = (power / power.sum(1, keepdim=True)).mean(0).sqrt()
    return (amplitude / amplitude.sum()).numpy()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("wrt", ["embed", "layer:in"])
def test_ids_are_measured_with_respect_to_their_embedding(wrt, plain):
    model, ids = text()
    examples = {"attention_mask": torch.ones(1, LENGTH, dtype=torch.long), "input_ids": ids[:1]}
    adapter = erfscope.wrap(model, inputs=examples)
    found = erfscope.analyze(adapter, images=ids, wrt=wrt, unit=UNIT, draws="all", plain=plain)
    values = found.map.values.ravel()
    assert np.abs(values / values.sum() - by_autograd(model, ids)).sum() < 1e-12
    assert values[UNIT + 1 :].sum() == 0
    assert (found.axes.unit, found["future_share"].value, found.timing.causal_by_map) == ("tokens", 0, True)
    assert found.axes.text == "time 1 token"
    assert cells_note([found]) == "", "sizes are in tokens"
    assert "Circles" not in latex_figure([found], "A curve", "x.pdf", words_on=(), has_maps=True, is_wide=False)
    assert all(not parameter.grad_fn and parameter.grad is None for parameter in model.parameters())


def test_synthetic_ids_are_spread_over_the_vocabulary():
    model, _ = text()
    adapter = erfscope.wrap(model, example_inputs=(torch.zeros(1, LENGTH, dtype=torch.long),))
    report = erfscope.sweep(adapter, wrt="embed", unit=UNIT, samples=4, measures="r50")
    assert report[0].ok
    assert "--image" not in str(next_step(report, ())), "ids are no files"
    grey = np.array([0, 128, 255], dtype=np.uint8).reshape(1, 3, 1)
    assert adapter.preprocess.normalise(grey).tolist() == [[[0, 25, 49]]]


def test_ids_themselves_have_no_gradient_and_no_half_precision():
    model, ids = text()
    found = erfscope.sweep(erfscope.wrap(model, example_inputs=ids[:1]), images=ids, unit=UNIT)[0]
    assert "token ids have no gradient; measure with respect to what embeds them: wrt='embed'" in found.error
    half = erfscope.wrap(model.bfloat16(), example_inputs=ids[:1])
    one_line(lambda: erfscope.analyze(half, images=ids, wrt="embed"), r"call \.float\(\) on the model")


def test_channels_behind_the_time_are_turned():
    torch.manual_seed(0)
    net = nn.Conv1d(6, 4, 3, padding=1).double()

    def behind(_: nn.Module, x: Tensor) -> Tensor:
        return net(x.transpose(1, 2))

    x = torch.randn(2, 6, 20).double()
    options = {"images": x, "unit": 5, "draws": "all"}
    before = erfscope.analyze(erfscope.wrap(net, in_chans=6, input_size=20), **options)
    alone = erfscope.wrap(net, forward=behind, in_chans=6, input_size=20, axes="btc")
    example = erfscope.wrap(net, forward=behind, example_inputs=torch.zeros(1, 20, 6), axes="btc")
    for adapter in (alone, example):
        found = erfscope.analyze(adapter, **options)
        assert np.array_equal(found.map.values, before.map.values)
        assert not [each.text for each in found.findings if "axes" in each.text]
    unsaid = erfscope.wrap(net, example_inputs=torch.zeros(1, 6, 20))
    assert "read as (B, C, T): 6 channels of 20 steps" in unsaid.notes[0]


@pytest.mark.parametrize("said", [{"sample_rate": 16000}, {"axes": "t"}])
def test_one_number_is_the_length_of_what_is_said_to_be_a_sequence(said):
    net = conv(1, 2)

    def spectrogram(_: nn.Module, x: Tensor) -> Tensor:
        return net(torch.stft(x[:, 0], 16, 8, return_complex=True, window=torch.ones(16)).abs()[:, None])

    assert erfscope.wrap(net, forward=spectrogram, input_size=128, **said).preprocess.size == (128,)

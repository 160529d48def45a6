"""The default layer of nets whose blocks add their residuals in a forward, of attention to a class, and of states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import erfscope

FEW = {"samples": 1, "measures": "r50"}


class InForward(nn.Module):
    """A ViT of which only the parts of its blocks are modules."""

    def __init__(self, *, pre: bool = False, last: bool = False, token: bool = False, stages: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.token = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(1, 1, 16)) if token else None
        self.down = nn.ModuleList(nn.Conv2d(16, 16, 2, 2) for _ in range(stages - 1))
        self.attn = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(stages))
        self.norm = nn.ModuleList(nn.LayerNorm(16) for _ in range(stages)) if pre else None
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(stages))
        self.last, self.head = nn.LayerNorm(16) if last else None, nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x)
        for stage, (attn, mlp) in enumerate(zip(self.attn, self.mlp, strict=True)):
            x = self.down[stage - 1](x) if stage else x
            tokens = x.flatten(2).transpose(1, 2)
            tokens = tokens if self.token is None else torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
            tokens = tokens + attn(tokens, tokens, tokens)[0]
            tokens = tokens + mlp(tokens if self.norm is None else self.norm[stage](tokens))
            if self.token is None:
                x = tokens.transpose(1, 2).unflatten(2, x.shape[2:])
        tokens = tokens if self.last is None else self.last(tokens)
        return self.head(tokens.mean(1) if self.token is None else tokens[:, 0])


def codes(result: erfscope.Result) -> set[str]:
    return {finding.code for finding in result.findings}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "layer"),
    [
        ({}, "mlp.0"),
        ({"pre": True}, "mlp.0"),
        ({"token": True}, "mlp.0"),
        ({"stages": 2}, "mlp.1"),
        ({"last": True}, "last"),
        ({"last": True, "token": True}, "last"),
    ],
)
def test_blocks_that_add_in_a_forward_are_measured_at_their_last_branch_or_at_the_norm_behind_them(options, layer):
    result = erfscope.analyze(InForward(**options).eval(), input_size=32, **FEW)
    assert result.layer == layer
    assert result.trf.is_global
    assert ("earlier_layer" in codes(result)) == (layer != "last")


class ConvInForward(nn.Module):
    def __init__(self, *, pooled: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv, self.pooled = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1), pooled

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = nn.functional.avg_pool2d(self.conv(x), 2) if self.pooled else x + self.conv(x)
        return x.mean((2, 3))


@pytest.mark.slow
@pytest.mark.parametrize(("pooled", "says"), [(False, "branch"), (True, "looks further")])
def test_what_a_convolutional_net_does_behind_its_last_named_map_is_said(pooled, says):
    result = erfscope.analyze(ConvInForward(pooled=pooled).eval(), input_size=16, **FEW)
    assert result.layer == "conv"
    assert says in next(finding.text for finding in result.findings if finding.code == "earlier_layer")


class ClassAttention(nn.Module):
    """A class token looks at a map of a convolution: by keys and values made together, or each by itself."""

    def __init__(self, *, together: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 3, 1, 1))
        self.token, self.query = nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 8)
        self.key_value = nn.Linear(8, 16) if together else None
        self.key, self.value, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.body(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        both = (self.key(tokens), self.value(tokens)) if self.key_value is None else self.key_value(tokens).chunk(2, -1)
        weights = self.dropout((self.query(tokens) @ both[0].transpose(1, 2)).softmax(-1))
        return (weights @ both[1])[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_keys_values_and_weights_of_attention_are_no_default_layer(together):
    result = erfscope.analyze(ClassAttention(together=together).eval(), input_size=32, **FEW)
    assert result.layer in ("body", "body.1")


class Recurrent(nn.Module):
    """Steps along time, whose last state, one column a layer, is returned beside them."""

    def __init__(self, *, kept: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.kept = nn.Conv1d(3, 8, 2, 2), kept

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x, steps = self.embed(x), []
        first = second = x.new_zeros(len(x), 8)
        for time in range(x.shape[2]):
            first = 0.5 * first + x[:, :, time]
            second = 0.5 * second + first
            steps.append(second)
        state = torch.stack([first, second], 2)
        found = torch.stack(steps, 2)
        return (found, state) if self.kept else (found,)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_the_state_of_a_recurrence_is_no_default_layer(kept):
    result = erfscope.analyze(Recurrent(kept=kept).eval(), input_size=(32,), **FEW)
    assert result.layer == "output[0]"
    assert result.unit.map_shape == (8, 16)


class TwoStreams(nn.Module):
    """Two patch sizes whose tokens never meet before they are pooled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fine, self.coarse = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(3, 8, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fine(x).mean((2, 3)) + self.coarse(x).mean((2, 3))


def test_where_no_stream_is_the_main_one_that_is_said():
    result = erfscope.analyze(TwoStreams().eval(), input_size=32, **FEW)
    assert result.layer == "coarse"
    assert "earlier_layer" in codes(result)

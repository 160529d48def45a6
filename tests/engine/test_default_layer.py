"""The default layer: of blocks that add their residuals in a forward, of several returned maps, of attention, of
states; and what is said of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchvision
from nets import Does, conv
from torch import Tensor, nn
from torchvision.models.feature_extraction import create_feature_extractor

import erfscope

pytestmark = pytest.mark.slow
FEW = {"samples": 1, "measures": "r50"}


class InForward(nn.Module):
    """A ViT of which only the parts of its blocks are modules."""

    def __init__(self, *, pre: bool = False, last: bool = False, token: bool = False, stages: int = 1) -> None:
        super().__init__()
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


def in_forward(m: nn.Module, x: Tensor) -> Tensor:
    x = m.stem(x)
    return (F.avg_pool2d(m.conv(x), 2) if m.pooled else x + m.conv(x)).mean((2, 3))


def class_attention(m: nn.Module, x: Tensor) -> Tensor:
    """A class token looks at a map of a convolution: by keys and values made together, or each by itself."""
    tokens = m.body(x).flatten(2).mT
    tokens = torch.cat([m.token.expand(len(x), -1, -1), tokens], 1)
    keys, values = m.both(tokens).chunk(2, -1) if hasattr(m, "both") else (m.key(tokens), m.value(tokens))
    return (m.dropout((m.query(tokens) @ keys.mT).softmax(-1)) @ values)[:, 0]


def of_class(**parts: nn.Module) -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 3, 1, 1))
    more = {"query": nn.Linear(8, 8), "dropout": nn.Dropout(), "token": nn.Parameter(torch.randn(1, 1, 8))}
    return Does(class_attention, body=body, **parts, **more)


def recurrent(m: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """Steps along time, whose last state, one column a layer, may be returned beside them."""
    x, steps = m.embed(x), []
    first = second = x.new_zeros(len(x), 8)
    for time in range(x.shape[2]):
        first = 0.5 * first + x[:, :, time]
        second = 0.5 * second + first
        steps.append(second)
    found = torch.stack(steps, 2)
    return (found, torch.stack([first, second], 2)) if m.kept else (found,)


def stages(*names: str, levels: bool = False) -> nn.Module:
    """Three stages of a sum each, which no module returns, at strides 2, 4 and 8, through convolutions of their own as
    levels; of which some are returned in an order of its own."""

    def forward(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        maps = {}
        for number, (down, branch, norm) in enumerate(zip(m.down, m.branch, m.norm, strict=True)):
            x = down(x)
            x = x + norm(branch(x))
            maps[f"c{number}"] = m.level[number](x) if levels else x.relu()
        return {name: maps[name] for name in names}

    return Does(
        forward,
        down=nn.ModuleList(nn.Conv2d(c, 6, 3, 2, 1) for c in (3, 6, 6)),
        branch=nn.ModuleList(conv(6, 6) for _ in range(3)),
        norm=nn.ModuleList(nn.GroupNorm(1, 6) for _ in range(3)),
        level=nn.ModuleList(conv(6, 6) for _ in range(3 * levels)),
    )


def rounds(heads: int) -> nn.Module:
    """Estimates that are refined round by round, of which each is returned enlarged, as flows are; or two heads."""

    def forward(m: nn.Module, x: Tensor) -> list[Tensor]:
        features = m.stem(x)
        found, now = [], features[:, :2]
        for _ in range(3):
            now = now + m.update(torch.cat([features, now], 1))
            found.append(F.interpolate(now, scale_factor=2.0, mode="bilinear"))
        return [head(now) for head in m.heads] or found

    return Does(forward, stem=conv(3, 6, s=2), update=conv(8, 2), heads=nn.ModuleList(conv(2, 2) for _ in range(heads)))


def attended(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Tokens of the image, the weights with which words attend to them, and a score of the words."""
    tokens = m.encoder(m.patches(x).flatten(2).mT)
    words = m.softmax(m.words @ tokens.mT) @ tokens
    return {"score": m.score(words).mean(1), "features": tokens}


def segmented(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
    return {"out": F.interpolate(m.classifier(m.backbone(x)), size=x.shape[-2:], mode="bilinear", align_corners=False)}


def repeated(m: nn.Module, x: Tensor) -> Tensor:
    """A stem, then one block several times, then scores."""
    y = m.stem(x)
    for _ in range(3):
        y = y + m.block(y).tanh()
    return m.head(y.mean((2, 3)))


def normed(m: nn.Module, x: Tensor) -> Tensor:
    """A LayerNorm inside a residual branch, channels last inside: memory of its output is reused by the tensors after
    it, which are no normalised maps for that."""
    return x + m.out(m.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def blocks(depth: int) -> nn.Sequential:
    norms = (Does(normed, norm=nn.LayerNorm(8), out=nn.Linear(8, 8)) for _ in range(depth))
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), *norms)


EARLIER, SEVERAL, REPEATED = "earlier_layer", "several_outputs", "repeated_layers"
#: A net, its input, the layers of which one is the default, and a finding, which is said (+) or not (-).
DEFAULTS = {
    **{
        f"blocks that add in a forward {options}": (lambda o=options: InForward(**o), 32, "mlp.0", f"+{EARLIER}")
        for options in ({}, {"pre": True}, {"token": True})
    },
    "stages that add in a forward": (lambda: InForward(stages=2), 32, "mlp.1", f"+{EARLIER}"),
    "the norm behind them": (lambda: InForward(last=True), 32, "last", f"-{EARLIER}"),
    "a norm behind a map": (
        lambda: Does(lambda m, x: m.norm(m.body(x).flatten(2).mT), body=conv(3, 8), norm=nn.LayerNorm(8)),
        16, "body", f"-{EARLIER}"
    ),
    "the norm before a class": (lambda: InForward(last=True, token=True), 32, "last", f"-{EARLIER}"),
    "a branch": (lambda: Does(in_forward, stem=conv(3, 8), conv=conv(8, 8), pooled=False), 16, "conv", "+branch"),
    "a pooling": (
        lambda: Does(in_forward, stem=conv(3, 8), conv=conv(8, 8), pooled=True), 16, "conv", "+looks further"
    ),
    "keys and values together": (lambda: of_class(both=nn.Linear(8, 16)), 32, "body body.1", "+"),
    "keys and values apart": (lambda: of_class(key=nn.Linear(8, 8), value=nn.Linear(8, 8)), 32, "body body.1", "+"),
    "a state": (lambda: Does(recurrent, embed=nn.Conv1d(3, 8, 2, 2), kept=True), (32,), "output[0]", "+"),
    "no state": (lambda: Does(recurrent, embed=nn.Conv1d(3, 8, 2, 2), kept=False), (32,), "output[0]", "+"),
    "no main stream": (
        lambda: Does(
            lambda m, x: m.fine(x).mean((2, 3)) + m.coarse(x).mean((2, 3)),
            fine=nn.Conv2d(3, 8, 4, 4),
            coarse=nn.Conv2d(3, 8, 8, 8),
        ),
        32,
        "coarse",
        f"+{EARLIER}",
    ),
    # Of returned maps that come from one another the last is taken, and not the norm in the residual branch, which is
    # the deepest module.
    "all stages": (lambda: stages("c0", "c1", "c2"), 48, "output[c2]", f"-{SEVERAL}"),
    "the last stage": (lambda: stages("c2"), 48, "output[c2]", f"-{SEVERAL}"),
    "stages backwards": (lambda: stages("c2", "c0"), 48, "output[c2]", f"-{SEVERAL}"),
    "levels": (
        lambda: stages("c0", "c1", "c2", levels=True),
        48,
        "level.2",
        "+: output[c2] (6x6), output[c1] (12x12), output[c0] (24x24); level.2 (on the way to output[c2]) is measured",
    ),
    "the results of a loop": (lambda: rounds(0), 32, "output[2]", f"-{SEVERAL}"),
    "two heads": (lambda: rounds(2), 32, "heads.0", f"+{SEVERAL}"),
    "weights of attention before a score": (
        lambda: Does(
            attended,
            patches=nn.Conv2d(3, 8, 8, 8),
            encoder=nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
            words=nn.Parameter(torch.randn(5, 8)),
            softmax=nn.Softmax(-1),
            score=nn.Linear(8, 1),
        ),
        32,
        "encoder encoder.1",
        "+",
    ),
    "a segmentation": (
        lambda: Does(segmented, backbone=nn.Conv2d(3, 8, 3, 4, 1), classifier=conv(8, 5)), 32, "output[out]", "+"
    ),
    "repeated layers that look further": (
        lambda: Does(repeated, stem=conv(), block=conv(4), head=nn.Linear(4, 5)), 24, "stem", f"+{REPEATED}"
    ),
    "repeated layers that do not": (
        lambda: Does(repeated, stem=conv(), block=conv(4, k=1), head=nn.Linear(4, 5)), 24, "stem", f"-{REPEATED}"
    ),
    **{f"{depth} blocks": (lambda d=depth: blocks(d), 32, "output", "+") for depth in (1, 2, 8)},
    "pooled blocks": (lambda: nn.Sequential(blocks(3), nn.AdaptiveAvgPool2d(1)), 32, "0", "+"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default_layer_and_what_is_said_of_it(name):
    make, size, layers, words = DEFAULTS[name]
    result = erfscope.analyze(make().eval(), input_size=size, **FEW)
    said = "; ".join(f"{finding.code} {finding.text}" for finding in result.findings)
    assert result.status == "ok", result.error
    assert result.layer in layers.split()
    assert (words[1:] in said) is words.startswith("+"), said
    assert not name.startswith(("blocks that", "the norm")) or result.trf.is_global


def test_a_layer_that_is_named_is_not_said_to_be_one_before_repeated_layers():
    result = erfscope.analyze(DEFAULTS["repeated layers that look further"][0](), input_size=24, layer="stem", **FEW)
    assert REPEATED not in {finding.code for finding in result.findings}


@pytest.mark.parametrize("loss", [False, True])
def test_a_loss_that_is_returned_too_does_not_hide_that_the_deepest_layer_has_no_positions(loss):
    """Tokens in an order by their values, and how far the first is from the image."""

    def forward(m, x):
        tokens = m.stem(x).flatten(2).mT
        order = tokens.sum(2).argsort(1)[..., None].expand(-1, -1, 6)
        tokens = m.mix(tokens.gather(1, order)).relu()
        return (
            {"loss": F.mse_loss(tokens.mean((1, 2)), x.mean((1, 2, 3))), "tokens": tokens}
            if loss
            else {"tokens": tokens}
        )

    net = Does(forward, stem=nn.Conv2d(3, 6, 8, 8), mix=nn.Linear(6, 6))
    error = erfscope.analyze(net, input_size=32, **FEW, errors="row").error
    assert "has no default layer: its deepest map-like layer, 'output[tokens]'" in (error or "")


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_efficientnet"])
def test_a_feature_extractor_of_timm_is_measured_at_the_last_stage_of_its_model(name):
    """Whose map is the same, whether the stages are declared or found."""
    whole, features = (
        erfscope.layers(name, weights="random", model_kwargs=more) for more in ({}, {"features_only": True})
    )
    last = {row.name: (row.shape, row.trf.size_px) for row in features.rows}[features.default_layer]
    assert last == {row.name: (row.shape, row.trf.size_px) for row in whole.rows}[whole.default_layer]


def test_a_feature_extractor_of_torchvision_is_measured_at_the_sum_that_ends_its_last_stage():
    net = torchvision.models.resnet18(weights=None).eval()
    for names in ([f"layer{number}" for number in (1, 2, 3, 4)], ["layer4"]):
        extractor = erfscope.wrap(create_feature_extractor(net, names), input_size=(64, 64))
        assert extractor.default_layer == "output[layer4]"

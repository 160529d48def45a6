"""What is refused says why, in plain words, and names a way out that works."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from nets import Does, conv
from torch import Tensor, nn

import erfscope
from erfscope import ErfscopeError, MeasurementError
from erfscope.core import Request, first_line
from erfscope.core.run.models import load_structure
from erfscope.core.system.model_errors import LONGEST, contain_exits, model_failed
from erfscope.core.values.input_size import input_size, input_sizes


def plane() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))


@pytest.mark.slow
@pytest.mark.parametrize("given", [np.int64(24), "24x24"])
def test_one_size_means_the_same_wherever_a_size_is_taken(given: Any) -> None:
    assert erfscope.wrap(plane(), input_size=given).preprocess.size == (24, 24)
    assert erfscope.adapters.load("test_resnet", weights="random", input_size=given).preprocess.size == (24, 24)
    assert erfscope.layers(plane(), input_size=given).input_size == (24, 24)
    assert erfscope.theoretical(plane(), input_size=given).reference_px == (24, 24)
    assert erfscope.analyze(plane(), input_size=given, samples=1).input.size == (24, 24)
    assert erfscope.compare([plane()], input_size=given, samples=1)[0].input.size == (24, 24)
    (moment,) = [erfscope.ErfMonitor(plane(), input_size=given, samples=1, quiet=True).step(0)]
    assert moment is not None
    assert moment.input.size == (24, 24)
    assert isinstance(erfscope.adapters.insert(plane(), "nonlocal", at="0", input_size=given), nn.Module)


CALLS: tuple[Callable[[Any], Any], ...] = (
    lambda given: erfscope.wrap(plane(), input_size=given),
    lambda given: erfscope.analyze(plane(), input_size=given, samples=1),
    lambda given: erfscope.adapters.load("test_resnet", weights="random", input_size=given),
    lambda given: erfscope.layers(plane(), input_size=given),
    lambda given: erfscope.ErfMonitor(plane(), input_size=given),
    lambda given: erfscope.adapters.insert(plane(), "nonlocal", at="0", input_size=given),
)
#: What is no size, and the words, each asked of so many calls.
NO_SIZES: list[tuple[Any, str, int]] = [
    (0, "'0' is no size", 2),
    (-3, "'-3' is no size", 2),
    (224.0, "224.0 is not a whole number", 6),
    ((32, 32.5), "32.5 is not a whole number", 2),
    (True, "True is not a whole number", 2),
    ("big", "cannot read the input size 'big'", 6),
    ((), "input_size is empty", 2),
    ((1, 2, 3, 4), "one to three sides", 2),
]


@pytest.mark.parametrize(("given", "text", "calls"), NO_SIZES)
def test_what_is_no_size_is_one_clear_error_everywhere(given: Any, text: str, calls: int) -> None:
    for call in CALLS[:calls]:
        with pytest.raises(ErfscopeError, match=text) as caught:
            call(given)
        assert "\n" not in str(caught.value)


def test_a_model_is_set_up_for_one_size_and_a_sweep_takes_several() -> None:
    for several in ("32,48", ((32, 32), (48, 48)), ["32", 48]):
        assert [tuple(size or ()) for size in input_sizes(several)] in ([(32,), (48,)], [(32, 32), (48, 48)])
        with pytest.raises(ErfscopeError, match="are 2 sizes, and a model is set up for one"):
            input_size(several)


class Two(nn.Module):
    """Needs a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        return self.conv(x) * gain


class Dictionary(Two):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.conv(batch["image"])


def test_a_failed_result_raises_its_own_error_whatever_is_asked_of_it() -> None:
    result = erfscope.analyze(Two(), samples=1, input_size=16, errors="row")
    assert result.status == "error"
    assert result.error is not None
    for ask in (lambda: result["r50"], lambda: float(result["r50"]), lambda: result["r50"].se, lambda: result.figure()):
        with pytest.raises(MeasurementError) as caught:
            ask()
        assert str(caught.value).startswith(f"Two: {result.error}")
    with pytest.raises(ErfscopeError, match=r"unknown measure 'r51' in Two; .*did you mean 'r50'"):
        result["r51"]


def r3d() -> nn.Module:
    with torch.device("meta"):
        return torchvision.models.video.r3d_18()  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("net", [lambda: nn.Sequential(nn.Conv3d(3, 8, 3)), r3d])
def test_a_model_of_clips_or_volumes_without_a_size_is_refused_with_an_example(net: Callable[[], nn.Module]) -> None:
    for call in (erfscope.wrap, erfscope.layers, lambda model: erfscope.analyze(model, samples=1)):
        with pytest.raises(ErfscopeError, match="its first convolution takes three axes") as caught:
            call(net())
        assert str(caught.value).endswith("such as input_size=(16, 112, 112)")
    assert erfscope.wrap(net(), input_size=(4, 24, 24)).preprocess.size == (4, 24, 24)
    with pytest.raises(ErfscopeError, match=r"^mine states no input size"):
        erfscope.wrap(net(), name="mine")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xcit_nano_12_p16_224", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_a_live_model_runs_at_another_size_exactly_when_its_own_forward_does(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name).eval()
    try:
        with torch.no_grad():
            model(torch.zeros(1, 3, 96, 160, device="meta"))
        takes = True
    except Exception:
        takes = False
    if takes:
        adapter = erfscope.wrap(model, input_size=(96, 160))
        assert adapter.preprocess.size == (96, 160)
        assert load_structure(adapter, Request.parse({})).recording.layers
    else:
        with pytest.raises(MeasurementError, match=r"fails on an input of 3 channels at 96x160: \S+"):
            _ = load_structure(erfscope.wrap(model, input_size=(96, 160)), Request.parse({})).recording


@pytest.mark.slow
def test_a_model_without_a_convolution_takes_a_tuple_of_one_as_a_length_and_fails_at_the_sequence() -> None:
    def tagger(channels: int) -> nn.Module:
        return Does(
            lambda m, x: m.cells(m.into(x.mT))[0], into=nn.Linear(channels, 8), cells=nn.GRU(8, 8, batch_first=True)
        )

    for given, size in ((64, (64, 64)), ("64", (64, 64)), ((64,), (64,))):
        assert erfscope.wrap(tagger(3), input_size=given).preprocess.size == size
    assert erfscope.layers(tagger(3), input_size=(64,)).rows
    assert erfscope.wrap(nn.Sequential(nn.ReLU())).preprocess.size == (224, 224)
    result = erfscope.analyze(tagger(5), input_size=(64,), in_chans=3, samples=1, errors="row")
    with pytest.raises(RuntimeError) as own:
        tagger(5)(torch.zeros(1, 3, 64))
    assert f"on an input of 3 channels at 64: {own.value}" in (result.error or "")
    assert "64x64" not in (result.error or "")


def torchvision_vit() -> nn.Module:
    sizes = {"image_size": 64, "patch_size": 8, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
    return torchvision.models.VisionTransformer(**sizes)  # type: ignore[no-any-return]


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.BertConfig(**sizes, num_attention_heads=2)
    return transformers.BertModel(config).eval()  # type: ignore[no-any-return]


def patches(table: Tensor, *, is_last: bool = False) -> nn.Module:
    """A table of positions for patches of 16 pixels: of tokens (1, N, C), of maps (1, C, H, W) or (1, H, W, C)."""

    def forward(m: Does, x: Tensor) -> Tensor:
        found = m.patches(x)
        held = found.flatten(2).mT if table.ndim == 3 else found.movedim(1, -1) if is_last else found
        return held + m.pos_embed

    return Does(forward, patches=nn.Conv2d(3, 8, 16, 16), pos_embed=nn.Parameter(table))


def counted(m: Does, x: Tensor) -> Tensor:
    """Counts its patches of 16 pixels itself."""
    tokens: Tensor = m.patches(x).flatten(2).mT
    if tokens.shape[1] != 144:
        raise ValueError(f"the position table expects 144 tokens, got {tokens.shape[1]}")
    return tokens


def own_words(m: Does, x: Tensor) -> Tensor:
    raise ValueError("the moon is full\nand the tide is high")


def sized(text: str, python: str | None = None) -> str:
    """The hint with the size of the positions."""
    side = text if "x" in text else f"{text}x{text}"
    return f"its positions are those of {side}: input_size={python or text}"


WRAP = (
    "wrap it with the call that it wants: erfscope.wrap(model, example_inputs=(...)), an example of each of {0}, or"
    " erfscope.wrap(model, forward=lambda m, x: m(...))"
)
OTHERS = (
    "give an example of each: erfscope.wrap(model, example_inputs=(x, gain));"
    " for a command, name FILE.py:FUNCTION that returns that"
)
BERT = "input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, encoder_hidden_states"
CHANNELS = "it takes {0} channels: in_chans={0}"
SIZE = "try another input_size="
#: A model, its input's channels and size, what stands in its error, and the hint at its end.
FAILING: dict[str, tuple[Callable[[], nn.Module], int | None, Any, str, str]] = {
    "channels": (lambda: timm.create_model("test_resnet"), 4, 32, "but got 4", CHANNELS.format(3)),
    "a fixed size": (torchvision_vit, None, 48, "Wrong image height! Expected 64 but got 48!", SIZE),
    "a head": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(9, 2)),
        None,
        16,
        "cannot be multiplied",
        SIZE,
    ),
    "an argument": (Two, None, 16, "Two.forward() missing 1 required positional argument: 'gain'", OTHERS),
    "tokens": (
        lambda: patches(torch.zeros(1, 9, 8)),
        None,
        64,
        "tensor b (9)",
        "its positions are those of 48x48: input_size=48",
    ),
    "a grid": (lambda: patches(torch.zeros(1, 8, 9, 9)), None, 256, "tensor b (9)", sized("144")),
    "a grid of other rows": (
        lambda: patches(torch.zeros(1, 8, 3, 4)),
        None,
        64,
        "dimension 2",
        sized("48x64", "(48, 64)"),
    ),
    "a grid before channels": (
        lambda: patches(torch.zeros(1, 3, 5, 8), is_last=True),
        None,
        64,
        "b (5)",
        sized("48x80", "(48, 80)"),
    ),
    "rows before channels": (
        lambda: patches(torch.zeros(1, 3, 4, 8), is_last=True),
        None,
        64,
        "dimension 1",
        sized("48x64", "(48, 64)"),
    ),
    "tokens in words": (
        lambda: Does(counted, patches=nn.Conv2d(3, 8, 16, 16)),
        None,
        224,
        "expects 144 tokens, got 196",
        sized("192"),
    ),
    "a dictionary": (Dictionary, None, 16, "IndexError: too many indices", WRAP.format("batch")),
    "ids": (
        lambda: nn.Sequential(nn.Embedding(9, 6)),
        None,
        (16,),
        "Long, Int",
        f"which have no gradient; {WRAP.format('input')}",
    ),
    "a language model": (bert, None, (16,), "too many values to unpack", WRAP.format(BERT)),
    "dtypes": (
        lambda: Does(lambda m, x: m.conv(x.double()), conv=conv()),
        None,
        16,
        "should be the same",
        "give its weights and tensors one dtype: dtype=",
    ),
    "its own": (lambda: Does(own_words), None, 16, "ValueError: the moon is full", "the moon is full"),
    "a part's argument": (
        lambda: Does(lambda m, x: m.part(x), part=Two()),
        None,
        16,
        "'gain'",
        "positional argument: 'gain'",
    ),
    "a part's channels": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(9, 4, 3)),
        None,
        16,
        "9 channels",
        "its 3 channels are a guess, by its first convolution if it has one: in_chans= gives others",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILING)
def test_a_model_that_fails_says_so_in_one_line_with_its_input_and_a_hint(name: str) -> None:
    make, channels, size, text, hint = FAILING[name]
    model = make().eval()
    adapter = erfscope.wrap(model, in_chans=channels, input_size=size)
    with pytest.raises(MeasurementError) as caught:
        erfscope.layers(adapter)
    said = str(caught.value)
    shown = "x".join(map(str, adapter.preprocess.size))
    assert said.startswith(
        f"{type(model).__name__} fails on an input of {adapter.preprocess.channels} channels at {shown}: "
    )
    assert text in said
    assert said.endswith(hint)
    assert "\n" not in said
    assert erfscope.analyze(adapter, samples=1, errors="row").error == said.removeprefix(f"{type(model).__name__} ")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("only squares are taken here."), "only squares are taken here"),
        (KeyError("scale"), "KeyError: 'scale'"),
        (OSError(errno.ENOSPC, "No space left on device", "scratch"), "No space left on device: scratch"),
        (RuntimeError("no such shape (Triggered internally at /x.cpp:31.)"), "no such shape"),
        (ValueError("a" * 300), f"ValueError: {'a' * (LONGEST - 3)}..."),
    ],
)
def test_an_exception_is_its_type_and_its_first_line(error: Exception, text: str) -> None:
    assert first_line(error) == text


def test_a_pass_that_does_not_fit_into_memory_asks_for_a_smaller_input() -> None:
    said = str(model_failed("net", erfscope.wrap(plane(), input_size=16), MemoryError("no room")))
    assert (
        said == "net does not fit into memory with one image of 16x16: MemoryError: no room; use a smaller --input-size"
    )

    def peeking(m: Does, x: Tensor) -> Tensor:
        if x.detach().mean() > -10:
            raise ValueError(f"{len(x)} of them")
        return x

    # Of the passes with two images and with one, the error is the second's.
    row = erfscope.analyze(Does(peeking), samples=1, input_size=16, errors="row")
    assert "ValueError: 1 of them" in (row.error or "")


def test_an_exit_of_a_model_is_its_error_and_an_interruption_passes() -> None:
    with pytest.raises(RuntimeError, match=r"its code called sys.exit\(3\)"), contain_exits():
        raise SystemExit(3)
    with pytest.raises(KeyboardInterrupt), contain_exits():
        raise KeyboardInterrupt


def masked(tokens: Tensor) -> Tensor:
    """A random choice of 16, as masked autoencoders make it."""
    return tokens.gather(
        1, torch.rand(tokens.shape[:2], device=tokens.device).argsort(1)[:, :16, None].expand(-1, -1, 4)
    )


def grouped(tokens: Tensor) -> Tensor:
    """Four groups to which every token belongs in part, as in GroupViT."""
    groups = torch.cat([tokens, torch.ones(4, 4, device=tokens.device).expand(len(tokens), -1, -1)], 1)[:, 64:]
    return groups + (groups @ tokens.mT).softmax(1) @ tokens


def numbered_by_the_picture(tokens: Tensor) -> Tensor:
    """Indices that were those of all tokens, then some that the image tells, then the first one's."""
    index = torch.arange(64, device=tokens.device)
    index.copy_(tokens[0, :, 0].argsort())
    return tokens[:, index.zero_()]


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (masked, "gather picks positions by numbers that are not followed"),
        (grouped, "whose values have no image position: they are pooled, mixed or queried"),
        (numbered_by_the_picture, "index picks positions by numbers that are not followed"),
    ],
)
def test_positions_that_are_not_known_are_refused_with_the_cause(
    function: Callable[[Tensor], Tensor], cause: str
) -> None:
    net = Does(
        lambda m, x: function(m.norm(m.patch(x).flatten(2).mT)), patch=nn.Conv2d(3, 4, 8, 8), norm=nn.LayerNorm(4)
    )
    assert cause in str(erfscope.analyze(net, input_size=64, samples=1, layer="output", errors="row").error)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"samples": 2.5}, "samples is a whole number or None, not 2.5"),
        ({"draws": "many"}, "draws is a whole number or 'all' or None, not 'many'"),
        ({"until_se": "2%"}, "until_se is a number or None, not '2%'"),
        ({"dtype": 32}, "unknown dtype '32'; there is: float32, float64"),
        ({"trust": "yes"}, "trust is True or False, not 'yes'"),
    ],
)
def test_an_option_of_another_type_is_one_line(options: dict[str, Any], text: str) -> None:
    for call in (erfscope.analyze, lambda model, **more: erfscope.compare([model], **more)):
        with pytest.raises(ErfscopeError) as error:
            call(plane(), **options)
        assert str(error.value) == text
    words = {"samples": np.int64(2), "seed": np.uint8(3), "until_se": np.float32(0.5), "trust": np.False_}
    if "samples" in options:
        result = erfscope.analyze(plane(), input_size=24, **words)
        assert (result.input.n_images, result.seed) == (2, 3)

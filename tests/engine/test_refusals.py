"""What is refused says why, in plain words, and names a way out that works."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import erfscope
from erfscope.api.structure import bare
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.failures.model import model_failed
from erfscope.failures.plain import Failure, plain_line, telling, understand
from erfscope.geometry.input_size import input_size, input_sizes

# --- Sizes ----------------------------------------------------------------------------------------------------------------------------


def plane() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))


SIZES = (24, np.int64(24), np.uint8(24), torch.tensor(24), "24", (24, 24), [24, 24], np.array([24, 24]), torch.Size((24, 24)), "24x24")


@pytest.mark.parametrize("given", SIZES)
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


NO_SIZES: list[tuple[Any, str]] = [
    (0, "'0' is no size"),
    (-3, "'-3' is no size"),
    ((224, 0), r"no size; give one to three sides of at least 1"),
    (224.0, "224.0 is not a whole number"),
    (np.float32(32), "is not a whole number"),
    ((32, 32.5), "32.5 is not a whole number"),
    (True, "True is not a whole number"),
    (np.True_, "is not a whole number"),
    ((True, 32), "True is not a whole number"),
    ("big", "cannot read the input size 'big'"),
    ("", "cannot read the input size ''"),
    ("32x", "cannot read the input size '32x'"),
    ((), "input_size is empty"),
    ((1, 2, 3, 4), "one to three sides"),
    ((32, None), "is not a whole number|is no size"),
    (object(), "is not a whole number"),
]


@pytest.mark.parametrize(("given", "text"), NO_SIZES)
def test_what_is_no_size_is_one_clear_error_everywhere(given: Any, text: str) -> None:
    for call in (
        lambda: erfscope.wrap(plane(), input_size=given),
        lambda: erfscope.adapters.load("test_resnet", weights="random", input_size=given),
        lambda: erfscope.layers(plane(), input_size=given),
        lambda: erfscope.analyze(plane(), input_size=given, samples=1),
        lambda: erfscope.ErfMonitor(plane(), input_size=given),
        lambda: erfscope.adapters.insert(plane(), "nonlocal", at="0", input_size=given),
    ):
        with pytest.raises(ErfscopeError, match=text) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_model_is_set_up_for_one_size_and_a_sweep_takes_several() -> None:
    for several in ("32,48", ((32, 32), (48, 48)), ["32", 48]):
        assert [tuple(size or ()) for size in input_sizes(several)] in ([(32,), (48,)], [(32, 32), (48, 48)])
        with pytest.raises(ErfscopeError, match="are 2 sizes, and a model is set up for one"):
            input_size(several)


# --- Results that have no numbers -----------------------------------------------------------------------------------------------------


class Gate(nn.Module):
    """Needs a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        return self.conv(x) * gain


def test_a_failed_result_raises_its_own_error_whatever_is_asked_of_it() -> None:
    result = erfscope.analyze(Gate(), samples=1, input_size=16)
    assert result.status == "error"
    assert result.error is not None
    for ask in (lambda: result["r50"], lambda: float(result["r50"]), lambda: result["r50"].se, lambda: result.figure()):
        with pytest.raises(MeasurementError) as caught:
            ask()
        assert str(caught.value).startswith(f"Gate: {result.error}")
    with pytest.raises(ErfscopeError, match=r"unknown measure 'r51' in Gate; .*did you mean 'r50'"):
        result["r51"]


def test_a_dead_unit_has_no_number_and_says_why() -> None:
    net = plane()
    nn.init.zeros_(net[0].weight)  # type: ignore[index, arg-type]
    result = erfscope.analyze(net, samples=1, input_size=16)
    assert result.status == "degenerate"
    with pytest.raises(MeasurementError, match="Sequential: the gradient is zero"):
        float(result["r50"])


def test_a_measure_that_was_not_asked_for_is_not_called_unknown() -> None:
    result = erfscope.analyze(plane(), samples=1, input_size=16, measures="r50")
    assert float(result["r50"]) > 0
    with pytest.raises(ErfscopeError, match=r"'r90' of Sequential was not measured; it has r50: add it to measures="):
        result["r90"]


# --- Sizes that would work ------------------------------------------------------------------------------------------------------------


class Clips(nn.Module):
    """A head of a fixed size behind convolutions over time."""

    def __init__(self, frames: int, side: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 4, 4, 4)
        self.head = nn.Linear(4 * (frames // 4) * (side // 4) ** 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).flatten(1))


class Sound(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 5, 5)
        self.head = nn.Linear(4 * (length // 5), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).flatten(1))


class Small(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)
        self.head = nn.Linear(4 * (side // 2) ** 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).flatten(1))


def offered(text: str) -> tuple[int, ...]:
    """The size that an error names, which must be the same in Python's words and in the command line's."""
    found = re.search(r"input_size=\(([\d, ]+)\) \(--input-size ([\dx]+)\)", text)
    assert found is not None, text
    size = tuple(int(side) for side in found[1].split(",") if side.strip())
    assert "x".join(map(str, size)) == found[2]
    return size


@pytest.mark.parametrize(
    "net",
    [
        lambda: nn.Sequential(nn.Conv3d(3, 8, 3), nn.ReLU(), nn.Conv3d(8, 8, 3)),
        lambda: nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8)),
        lambda: Clips(16, 112),
        lambda: Clips(32, 224),
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.MaxPool3d(30)),
    ],
)
def test_a_model_of_clips_or_volumes_names_a_size_that_it_takes(net: Callable[[], nn.Module]) -> None:
    for call in (erfscope.wrap, erfscope.layers, lambda model: erfscope.analyze(model, samples=1)):
        with pytest.raises(ErfscopeError, match="its first convolution takes three axes") as caught:
            call(net())
        size = offered(str(caught.value))
    model = net()
    channels = next(part.in_channels for part in model.modules() if isinstance(part, nn.Conv3d))
    assert model(torch.zeros(1, channels, *size)) is not None
    assert erfscope.wrap(model, input_size=size).preprocess.size == size


def test_a_published_model_of_clips_is_offered_its_own_size() -> None:
    from torchvision.models.video import r3d_18

    with torch.device("meta"):
        model = r3d_18()
    with pytest.raises(ErfscopeError, match=re.escape("input_size=(16, 112, 112) (--input-size 16x112x112)")):
        erfscope.wrap(model)
    assert erfscope.adapters.load("torchvision:r3d_18", weights="random").preprocess.size == (16, 112, 112)


def test_a_model_that_makes_a_clip_of_a_picture_still_takes_pictures() -> None:
    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv3d(3, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x[:, :, None]).squeeze(2)

    assert erfscope.wrap(Repeats()).preprocess.size == (224, 224)


@pytest.mark.parametrize("net", [Sound(16000), Sound(1000), Sound(777 * 5), Small(32), Small(28), Small(50), Small(100)])
def test_a_head_of_a_fixed_size_is_an_error_that_names_that_size(net: nn.Module) -> None:
    result = erfscope.analyze(net, samples=1)
    assert result.status == "error"
    size = offered(result.error or "")
    channels = next(part.in_channels for part in net.modules() if isinstance(part, nn.Conv1d | nn.Conv2d))
    assert net(torch.zeros(1, channels, *size)).shape == (1, 2)


def test_the_size_asked_for_stands_in_the_error_and_one_beside_it_is_offered() -> None:
    class Even(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] % 32 or x.shape[-2] % 32:
                raise ValueError("sides must be multiples of 32")
            return self.conv(x)

    result = erfscope.analyze(Even(), samples=1, input_size=(90, 150))
    assert "at 90x150: sides must be multiples of 32; it runs at" in (result.error or "")
    assert offered(result.error or "") == (96, 160)


# --- Live models of timm --------------------------------------------------------------------------------------------------------------

FAMILIES = (
    "xcit_nano_12_p16_224 crossvit_tiny_240 twins_pcpvt_small mvitv2_tiny sequencer2d_s efficientvit_m0 resnet10t convnext_atto test_vit "
    "vit_tiny_patch16_224 swin_tiny_patch4_window7_224 levit_128s mixer_s16_224 pit_ti_224 maxvit_tiny_tf_224 efficientformer_l1 "
    "hiera_tiny_224 volo_d1_224 coat_tiny gcvit_xxtiny davit_tiny pvt_v2_b0 halonet26t mobilevit_xxs beit_base_patch16_224"
)


@pytest.mark.parametrize("name", FAMILIES.split())
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
        assert bare(adapter, {}).recording.layers
    else:
        with pytest.raises(ErfscopeError, match=r"96x160: \S+") as caught:
            _ = bare(erfscope.wrap(model, input_size=(96, 160)), {}).recording
        refuse_internals(str(caught.value))


def test_a_live_xcit_is_measured_at_another_size() -> None:
    torch.manual_seed(0)
    model = timm.create_model("xcit_nano_12_p16_224").eval()
    result = erfscope.analyze(model, input_size=(96, 160), samples=1, measures="r50")
    assert (result.status, result.input.size) == ("ok", (96, 160))
    with torch.no_grad():
        (last,) = model.forward_intermediates(torch.zeros(1, 3, 96, 160), indices=[11], intermediates_only=True)
    assert result.unit is not None
    assert result.unit.map_shape == last.shape[1:]


# --- Sequences ------------------------------------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """A sequence model without a convolution: (B, L, C) inside."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.into, self.cells = nn.Linear(channels, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.cells(self.into(x.mT))[0]
        return found


def test_one_number_is_a_length_for_a_model_that_takes_sequences_only() -> None:
    for given in (64, (64,), "64"):
        assert erfscope.wrap(Tagger(3), input_size=given).preprocess.size == (64,)
    assert erfscope.wrap(nn.Sequential(nn.ReLU()), input_size=64).preprocess.size == (64, 64)


def test_a_sequence_model_that_fails_shows_its_failure_at_the_sequence_not_at_a_picture() -> None:
    net = Tagger(5)
    result = erfscope.analyze(net, input_size=(64,), samples=1)
    with pytest.raises(RuntimeError) as own:
        net(torch.zeros(1, 3, 64))
    assert f"on an input of 3 channels at 64: {own.value}" in (result.error or "")
    assert "64x64" not in (result.error or "")


def test_a_model_that_takes_tokens_before_channels_is_shown_how_to_be_called() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8))
    result = erfscope.analyze(model, input_size=(64,), samples=1)
    found = way_out(result.error or "", model)
    assert (found.preprocess.channels, found.preprocess.size) == (5, (64,))
    assert bare(found, {}).recording.layers


def test_the_models_own_words_win_over_a_later_failure() -> None:
    class Forgets(nn.Module):
        """Fails in its own words at first, and for want of a state after that."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.cache = nn.Conv1d(3, 4, 3), {"first": True}

        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(Forgets, "spent"):
                Forgets.spent = True  # type: ignore[attr-defined]
                raise ValueError("a length of 7 is wanted")
            return self.conv(x[:, :, self.cache["second"]])

    with pytest.raises(MeasurementError, match="a length of 7 is wanted"):
        _ = bare(erfscope.wrap(Forgets(), input_size=(64,)), {}).recording


def test_of_two_failures_the_one_that_says_more_is_shown() -> None:
    internal = raised(lambda: torch.empty(2, device="meta").sum().item())
    shapes = raised(lambda: nn.Linear(5, 2)(torch.zeros(3, 4)))
    assert telling(internal, shapes) is shapes
    assert telling(shapes, internal) is shapes


# --- Plain words ----------------------------------------------------------------------------------------------------------------------

INTERNAL = re.compile(
    r"aten::|prims::|fake impl|[Mm]eta tensor|Meta Tensors|'Meta'|register_meta|DISPATCH|Triggered internally|\.cpp|Exception raised from"
    r"|not on the expected device|anomaly detection|TorchScript|registered at|c10::|INTERNAL ASSERT|_C\."
)


def refuse_internals(text: str) -> None:
    assert INTERNAL.search(text) is None, text
    assert "\n" not in text


def raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


META = torch.empty(1, 3, 8, 8, device="meta")
WITHOUT_NUMBERS = {
    "item": lambda: META.sum().item(),
    "branch": lambda: bool(META.sum() > 0),
    "mask": lambda: META[META > 0],
    "unique": lambda: torch.unique(META),
    "equal": lambda: torch.equal(META, META),
    "list": lambda: META.tolist(),
    "numpy": lambda: META.numpy(),
    "repeat": lambda: torch.repeat_interleave(META[0, 0, 0], META[0, 0, 0].long()),
    "other device": lambda: META + torch.zeros(1, 3, 8, 8),
    "count": lambda: torch.bincount(META.long().flatten()),
    "inverse": lambda: torch.ops.aten._pdist_forward(META[0, 0]),
}


@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_what_cannot_run_without_numbers_says_so_in_plain_words(name: str) -> None:
    try:
        WITHOUT_NUMBERS[name]()
    except Exception as error:
        found = understand(error)
        assert found.needs_numbers
        refuse_internals(found.text)
    else:
        pytest.skip("this version of PyTorch can")


KEPT = (
    "mat1 and mat2 shapes cannot be multiplied (4x16 and 768x10)",
    "The size of tensor a (197) must match the size of tensor b (17) at non-singleton dimension 1",
    "Given groups=1, weight of size [8, 3, 3, 3], expected input[1, 4, 9, 9] to have 3 channels, but got 4 channels instead",
    "mat1 and mat2 must have the same dtype, but got Float and Double",
    "only squares are taken here",
)
TEXTS: dict[str, tuple[str, str]] = {
    "aten::_foo: attempted to run this operator with Meta tensors, but there was no fake impl or Meta kernel registered. You may": (
        "operation",
        "its operation _foo cannot be run on the meta device",
    ),
    "Could not run 'aten::bar.out' with arguments from the 'Meta' backend. This could be because the operator doesn't exist": (
        "operation",
        "its operation bar cannot be run on the meta device",
    ),
    "Could not run 'aten::qadd' with arguments from the 'QuantizedCPU' backend.\nCPU: registered at /pytorch/aten/x.cpp:1 [kernel]": (
        "devices",
        "its operation qadd does not exist for QuantizedCPU tensors",
    ),
    "Cannot copy out of meta tensor; no data!": ("numbers", "its path or its shapes depend on the values of tensors"),
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when checking argument)": (
        "devices",
        "its tensors lie on several devices, cuda:0 and cpu",
    ),
    "\"slow_conv2d_cpu\" not implemented for 'Half'": ("dtype", "its operation slow_conv2d does not exist for numbers of type Half"),
    "shape '[5]' is invalid for input of size 6 (Triggered internally at /pytorch/c10/core/x.cpp:31.)": (
        "size",
        "shape '[5]' is invalid for input of size 6",
    ),
    "self.size(0) != 3\nException raised from foo at /pytorch/aten/src/x.cpp:12 (most recent call first):\nframe #0: c10::Error()": (
        "other",
        "self.size(0) != 3",
    ),
    'x INTERNAL ASSERT FAILED at "/pytorch/a.cpp":3, please report a bug': ("other", "an internal check of PyTorch failed"),
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously": (
        "other",
        "CUDA error: device-side assert triggered",
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_internal_texts_are_put_into_plain_words(text: str) -> None:
    kind, plain = TEXTS[text]
    assert understand(RuntimeError(text)) == Failure(text=plain, kind=kind)  # type: ignore[arg-type]
    refuse_internals(plain)


@pytest.mark.parametrize("text", KEPT)
def test_what_helps_a_reader_is_kept_as_it_is(text: str) -> None:
    assert plain_line(RuntimeError(text)) == text


def test_an_exception_without_words_is_named_with_the_line_that_raised_it() -> None:
    def fail(x: Tensor) -> None:
        if x.shape[1] != 5:
            raise AssertionError

    assert plain_line(raised(lambda: fail(torch.zeros(1, 3)))) == "AssertionError at `raise AssertionError`"
    assert plain_line(raised(lambda: {}["scale"])) == "KeyError: 'scale'"


def test_code_of_the_graph_compiler_of_old_fails_in_its_last_line() -> None:
    text = (
        "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (most recent call last):\n"
        '  File "x.py", line 2, in forward\n    return x.view(7)\n           ~~~~~~ <--- HERE\n'
        "RuntimeError: shape '[7]' is invalid for input of size 6\n"
    )
    assert plain_line(RuntimeError(text)) == "shape '[7]' is invalid for input of size 6"


class Peeks(nn.Module):
    """Looks at its numbers, in one way or another."""

    def __init__(self, look: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.conv, self.look = nn.Conv2d(3, 4, 3, padding=1), look

    def forward(self, x: Tensor) -> Tensor:
        self.look(x.detach())
        return self.conv(x)


LOOKS: dict[str, Callable[[Tensor], object]] = {
    "list": lambda x: x.tolist(),
    "unique": torch.unique,
    "number": lambda x: float(x.sum()),
    "tensor of its own": lambda x: x + torch.zeros(1, 3, 1, 1),
    "mask": lambda x: x[x > 0],
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_no_note_of_a_model_that_needs_numbers_speaks_of_kernels(look: Callable[[Tensor], object]) -> None:
    notes = erfscope.layers(Peeks(look), input_size=16).notes
    result = erfscope.analyze(Peeks(look), input_size=16, samples=1)
    assert result.status == "ok"
    for text in (*notes, *(finding.text for finding in result.warnings)):
        refuse_internals(text)


# --- Models that are called in another way --------------------------------------------------------------------------------------------


def way_out(text: str, model: nn.Module, **given: object) -> Any:
    """The adapter that the code in an error makes."""
    found = re.search(r"erfscope\.wrap\(.*\)(?=,? where|$)", text)
    assert found is not None, text
    assert "--in-chans" not in text
    refuse_internals(text)
    import types

    return eval(found[0], {"erfscope": erfscope, "model": model, "types": types, **given})


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)


class Two(Conv):
    def forward(self, x: Tensor, gain: Tensor, *, shift: Tensor) -> Tensor:
        return self.conv(x) * gain + shift


class PositionalOnly(Conv):
    def forward(self, x: Tensor, gain: Tensor, /, other: object = None) -> Tensor:
        return self.conv(x) * gain


class TextFirst(Conv):
    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        return self.conv(pixel_values) * input_ids.sum()


class Optional(Conv):
    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        return self.conv(x) * gain.mean()  # type: ignore[union-attr]


class Complains(Conv):
    def forward(self, x: Tensor, gain: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        if gain is None:
            raise ValueError("You have to specify gain")
        return self.conv(x)


class Dictionary(Conv):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.conv(batch["image"])


class Nested(Conv):
    def forward(self, samples: Any) -> Tensor:
        return self.conv(samples.tensors)


class Pair(Conv):
    def forward(self, views: list[Tensor]) -> Tensor:
        left, right = views
        return self.conv(left) + right.mean()


class Ids(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"words": nn.Embedding(9, 6)})
        self.mix = nn.Conv1d(6, 6, 3, padding=1)

    def forward(self, words: Tensor) -> Tensor:
        return self.mix(self.parts.words(words).mT)  # type: ignore[operator]


ONE = torch.ones(1)
CALLS: dict[str, tuple[Callable[[], nn.Module], str, dict[str, object]]] = {
    "two": (Two, "needs 'gain' and 'shift' too", {"GAIN": ONE, "SHIFT": ONE}),
    "positional": (PositionalOnly, "needs 'gain' too", {"GAIN": ONE}),
    "text first": (TextFirst, "needs 'input_ids' too", {"INPUT_IDS": ONE}),
    "optional": (Optional, "needs 'gain' too", {"GAIN": ONE}),
    "complains": (Complains, "needs 'gain' too", {"GAIN": ONE}),
    "dictionary": (Dictionary, "takes a dictionary", {}),
    "nested": (Nested, "takes an object that has .tensors", {}),
    "pair": (Pair, "takes a list of tensors", {"OTHER1": ONE}),
    "ids": (Ids, "integer ids have no gradient", {}),
    "ids in a sequence": (lambda: nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6)), "integer ids have no gradient", {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_model_that_is_called_in_another_way_is_shown_code_that_works(name: str) -> None:
    make, text, given = CALLS[name]
    model = make()
    result = erfscope.analyze(model, samples=1, input_size=None if "ids" in name else 16)
    assert text in (result.error or "")
    adapter = way_out(result.error or "", model, **given)
    # Its own layers are found by one pass of the call that the error shows.
    assert bare(adapter, {}).recording.layers
    if "ids" not in name:
        again = erfscope.analyze(adapter, samples=1, layer="conv")
        assert (again.status, again.trf.size_px if again.trf else None) == ("ok", (3, 3))


def test_a_language_model_of_transformers_is_shown_how_to_be_given_embeddings() -> None:
    transformers = pytest.importorskip("transformers")
    words = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(**words)).eval()
    with pytest.raises(MeasurementError) as caught:
        _ = bare(model, {}).recording
    adapter = way_out(str(caught.value), model)
    assert (adapter.preprocess.channels, adapter.preprocess.size) == (16, (64,))
    assert bare(adapter, {}).recording.layers


def test_a_video_model_that_takes_frames_first_is_shown_how() -> None:
    class FramesFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv3d(3, 4, 3, padding=1)

        def forward(self, clip: Tensor) -> Tensor:
            if clip.shape[2] != 3:
                raise ValueError("frames before channels")
            return self.conv(clip.transpose(1, 2))

    model = FramesFirst()
    with pytest.raises(ErfscopeError) as caught:
        erfscope.wrap(model)
    assert erfscope.layers(way_out(str(caught.value), model)).rows


def test_a_fault_inside_the_model_gets_no_hint_about_its_input() -> None:
    class Part(nn.Module):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return x * scale

    class Wrong(Conv):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part()

        def forward(self, x: Tensor) -> Tensor:
            return self.part(self.conv(x))

    mismatched = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(9, 4, 3))
    for model in (Wrong(), mismatched):
        error = erfscope.analyze(model, samples=1, input_size=16).error or ""
        assert "--in-chans" not in error
        assert "--input-size" not in error
        assert "erfscope.wrap" not in error


def test_the_wanted_channels_are_named_where_they_are_what_is_wrong() -> None:
    for model, given in ((nn.Sequential(nn.BatchNorm2d(5), nn.ReLU()), None), (nn.Sequential(nn.Conv2d(5, 4, 3)), 2)):
        error = erfscope.analyze(model, samples=1, input_size=16, in_chans=given).error or ""
        assert error.endswith("it takes 5 channels: in_chans=5 (--in-chans 5)")


@pytest.mark.parametrize(
    ("weights", "cast", "hint"),
    [("bfloat16", "float32", "such as dtype='float32'"), ("float32", "bfloat16", "give all of them one")],
)
def test_weights_and_a_forward_of_two_dtypes_are_told_which_helps(weights: str, cast: str, hint: str) -> None:
    class Casting(Conv):
        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x.to(getattr(torch, cast)))

    model = Casting().to(getattr(torch, weights))
    error = erfscope.analyze(model, samples=1, input_size=16).error or ""
    assert hint in error
    assert erfscope.analyze(model, samples=1, input_size=16, dtype="float32").ok is (cast == "float32")


def test_a_failure_that_the_input_is_not_to_blame_for_gets_no_hint() -> None:
    adapter = erfscope.wrap(plane(), input_size=16)
    text = str(model_failed("net", adapter, RuntimeError("the moon is full")))
    assert text == "net fails on an input of 3 channels at 16x16: the moon is full"


def test_a_model_that_cannot_be_copied_is_judged_by_a_pass_with_numbers() -> None:
    class Stubborn(nn.Module):
        """Takes sequences, and refuses to be copied."""

        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(3, 4)

        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("no copies")

        def forward(self, x: Tensor) -> Tensor:
            batch, _, length = x.shape
            return self.mix(x.mT).reshape(batch, length, 4)

    assert erfscope.wrap(Stubborn(), input_size=48).preprocess.size == (48,)


def test_tensors_that_a_module_keeps_in_a_list_move_with_its_copies() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.kept = nn.Conv2d(3, 4, 3), {"scale": [torch.ones(3, 1, 1)]}

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x * self.kept["scale"][0])

    model = Keeps()
    assert erfscope.layers(model, input_size=16).notes == ()
    assert model.kept["scale"][0].device.type == "cpu"


# --- Positions that are not known -----------------------------------------------------------------------------------------------------


class Tokens(nn.Module):
    """8 x 8 tokens of patches, and what a function makes of them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.patch, self.norm, self.function = nn.Conv2d(3, 4, 8, 8), nn.LayerNorm(4), function

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.norm(self.patch(x).flatten(2).mT)
        return self.function(tokens)


def masked(tokens: Tensor) -> Tensor:
    """A random choice of 16, as masked autoencoders make it."""
    return tokens.gather(1, torch.rand(tokens.shape[:2], device=tokens.device).argsort(1)[:, :16, None].expand(-1, -1, 4))


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
        (masked, "gather in output picks positions by numbers that are not followed"),
        (grouped, "which have no image position: pooled, mixed or queried values"),
        (numbered_by_the_picture, "index in output picks positions by numbers that are not followed"),
    ],
)
def test_positions_that_are_not_known_are_refused_with_the_cause(function: Callable[[Tensor], Tensor], cause: str) -> None:
    result = erfscope.analyze(Tokens(function).eval(), input_size=64, samples=1, layer="output")
    assert result.error is not None
    assert cause in result.error


class Several(nn.Module):
    """A map in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 4, 8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.patch(x), None


class Scrambles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.several = Several()

    def forward(self, x: Tensor) -> Tensor:
        return masked(self.several(x)[0].flatten(2).mT)


def test_an_operation_after_a_module_that_gives_a_tuple_is_not_said_to_run_in_it() -> None:
    result = erfscope.analyze(Scrambles().eval(), input_size=64, samples=1, layer="output")
    assert result.error is not None
    assert "gather in output picks" in result.error


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"samples": "many"}, "samples is a whole number or None, not 'many'"),
        ({"samples": 2.5}, "samples is a whole number or None, not 2.5"),
        ({"draws": "many"}, "draws is a whole number or 'all' or None, not 'many'"),
        ({"until_se": "2%"}, "until_se is a number or None, not '2%'"),
        ({"in_chans": "3"}, "in_chans is a whole number or None, not '3'"),
        ({"dtype": 32}, "dtype is text, not 32"),
        ({"trust": "yes"}, "trust is True or False, not 'yes'"),
        ({"cone": 3}, "cone is True or False or 'proved' or 'compare' or 'off', not 3"),
    ],
)
def test_an_option_of_another_type_is_one_line(options: dict[str, Any], text: str) -> None:
    for call in (erfscope.analyze, lambda model, **more: erfscope.compare([model], **more)):
        with pytest.raises(ErfscopeError) as error:
            call(plane(), **options)
        assert str(error.value) == text


def test_numbers_of_numpy_are_numbers() -> None:
    result = erfscope.analyze(plane(), input_size=24, samples=np.int64(2), seed=np.uint8(3), until_se=np.float32(0.5), trust=np.False_)
    assert (result.input.n_images, result.seed) == (2, 3)

"""Claims about loading a user's checkpoint into a model."""

from __future__ import annotations

import copy
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import erfscope
from erfscope import ErfscopeError
from erfscope.adapters.opening import UNSAFE
from erfscope.adapters.weights.checkpoint import load_checkpoint
from erfscope.adapters.weights.weights import sha256

pytestmark = pytest.mark.usefixtures("memory_unplanned")

State = dict[str, Tensor]


def resnet(**options: object) -> nn.Module:
    return timm.create_model("test_resnet", **options)


def body(key: str) -> bool:
    """What any spatial layer depends on: all but the classifier."""
    return not key.startswith("fc.")


@pytest.fixture
def trained() -> State:
    torch.manual_seed(7)
    return {
        key: torch.randint_like(value, 9) if value.dtype == torch.int64 else torch.rand_like(value)
        for key, value in resnet().state_dict().items()
    }


@pytest.mark.parametrize("name", ["best.safetensors", "best.pth", "best.bin"])
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "backbone.", "module.model.backbone.", "_orig_mod."])
def test_a_whole_checkpoint_loads_whatever_prefix_all_its_keys_share(
    tmp_path: Path, trained: State, name: str, prefix: str
) -> None:
    state, file = {prefix + key: value for key, value in trained.items()}, tmp_path / name
    save_file(state, file) if name.endswith(".safetensors") else torch.save(state, file)
    model = resnet()
    weights = load_checkpoint(model, file, needed=lambda key: True)
    assert all(torch.equal(value, trained[key]) for key, value in model.state_dict().items())
    assert (weights.source, weights.origin, weights.ignored_keys) == ("checkpoint", str(file), 0)
    assert weights.sha256 == sha256(model)


@pytest.mark.parametrize("entry", ["state_dict", "model", "model_ema", "state_dict_ema"])
def test_training_checkpoints_are_unpacked_as_timm_does(tmp_path: Path, trained: State, entry: str) -> None:
    torch.save({entry: trained, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "last.pth")
    model = resnet()
    load_checkpoint(model, tmp_path / "last.pth", needed=lambda key: True)
    assert all(torch.equal(value, trained[key]) for key, value in model.state_dict().items())


def test_a_prefix_that_is_the_models_own_is_kept(tmp_path: Path) -> None:
    model = nn.ModuleDict({"backbone": nn.Conv2d(3, 4, 1)})
    state = {key: torch.rand_like(value) for key, value in model.state_dict().items()}
    torch.save(state, tmp_path / "x.pth")
    load_checkpoint(model, tmp_path / "x.pth", needed=lambda key: True)
    assert torch.equal(model.state_dict()["backbone.weight"], state["backbone.weight"])


def test_keys_that_the_layer_does_not_depend_on_are_ignored_and_counted(tmp_path: Path, trained: State) -> None:
    trained["fc.weight"], trained["fc.bias"] = torch.zeros(7, 5), torch.zeros(7)
    trained["projector.weight"] = torch.zeros(3)
    torch.save(trained, tmp_path / "x.pth")
    model = resnet()
    head = model.state_dict()["fc.weight"].clone()
    assert load_checkpoint(model, tmp_path / "x.pth", needed=body).ignored_keys == 3
    assert torch.equal(model.state_dict()["fc.weight"], head)
    assert torch.equal(model.state_dict()["layer4.0.conv1.weight"], trained["layer4.0.conv1.weight"])


def drop(*keys: str) -> Callable[[State], None]:
    return lambda state: [state.pop(key) for key in keys] and None


def put(**entries: Tensor) -> Callable[[State], None]:
    return lambda state: state.update({key.replace("__", "."): value for key, value in entries.items()})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (drop("layer1.0.conv1.weight"), r"missing: layer1\.0\.conv1\.weight;"),
        (
            put(layer2__0__conv1__weight=torch.zeros(2, 3)),
            r"mis-shaped: layer2\.0\.conv1\.weight \(2, 3\) for \(\d+, \d+, 3, 3\);",
        ),
        (
            put(layer1__0__conv1__bias=torch.zeros(32)),
            r"extra: layer1\.0\.conv1\.bias;",
        ),  # another parameter of a needed module
        (
            put(layer1__5__conv1__weight=torch.zeros(32)),
            r"extra: layer1\.5\.conv1\.weight;",
        ),  # another block of a needed stage
    ],
)
def test_a_needed_key_that_does_not_fit_is_an_error_and_nothing_is_loaded(
    tmp_path: Path, trained: State, change: Callable[[State], None], text: str
) -> None:
    change(trained)
    torch.save(trained, tmp_path / "x.pth")
    model = resnet()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ErfscopeError, match=text) as caught:
        load_checkpoint(model, tmp_path / "x.pth", needed=body)
    assert "--layer" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_error_names_three_keys_of_each_kind(tmp_path: Path, trained: State) -> None:
    lost = [key for key in trained if key.startswith("layer3.") and key.endswith("weight")]
    assert len(lost) > 3
    drop(*lost)(trained)
    torch.save(trained, tmp_path / "x.pth")
    with pytest.raises(ErfscopeError) as caught:
        load_checkpoint(resnet(), tmp_path / "x.pth", needed=body)
    assert f"missing: {', '.join(lost[:3])} and {len(lost) - 3} more" in str(caught.value)
    assert lost[3] not in str(caught.value)


def test_a_checkpoint_of_another_model_never_loads_even_if_nothing_is_needed(tmp_path: Path) -> None:
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "vit.pth")
    with pytest.raises(ErfscopeError, match="no key matches"):
        load_checkpoint(resnet(), tmp_path / "vit.pth", needed=lambda key: False)


def test_counters_of_training_steps_may_be_missing_or_extra(tmp_path: Path, trained: State) -> None:
    torch.save({key: value for key, value in trained.items() if "num_batches" not in key}, tmp_path / "old.pth")
    load_checkpoint(resnet(), tmp_path / "old.pth", needed=lambda key: True)


def test_a_shared_tensor_may_be_saved_under_one_of_its_names(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

    torch.save({"a.weight": torch.ones(3, 3)}, tmp_path / "x.pth")
    model = Tied()
    load_checkpoint(model, tmp_path / "x.pth", needed=lambda key: True)
    assert torch.equal(model.b.weight, torch.ones(3, 3))


def test_buffers_that_a_model_works_out_itself_may_stand_in_an_old_file(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_buffer("relative_position_index", torch.arange(4), persistent=False)
    state = {key: torch.rand_like(value) for key, value in model.state_dict().items()}
    torch.save(state | {"0.relative_position_index": torch.arange(9)}, tmp_path / "old.pth")
    assert load_checkpoint(model, tmp_path / "old.pth", needed=lambda key: True).ignored_keys == 1


class Trap:
    """Writes a file if it is ever unpickled with its code."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("plain_pickle", [False, True])
def test_code_in_a_pickle_is_never_executed(tmp_path: Path, trained: State, plain_pickle: bool) -> None:
    trap, file = tmp_path / "sprung", tmp_path / "evil.pth"
    content = {"state_dict": trained, "extra": Trap(trap)}
    file.write_bytes(pickle.dumps(content)) if plain_pickle else torch.save(content, file)
    with pytest.raises(ErfscopeError, match="holds more than tensors; erfscope runs no code in it") as caught:
        load_checkpoint(resnet(), file, needed=body)
    assert "\n" not in str(caught.value)
    assert not trap.exists()
    torch.load(file, weights_only=False) if not plain_pickle else pickle.loads(file.read_bytes())
    assert trap.exists(), "the trap must work, or this test shows nothing"


@pytest.mark.slow
def test_with_unsafe_load_a_pickle_is_read_and_the_report_names_it(tmp_path: Path, trained: State) -> None:
    trap, model = tmp_path / "sprung", resnet()
    model.load_state_dict(trained)
    files = {
        "evil.pth": {"state_dict": trained, "extra": Trap(trap)},
        "model.pth": model,
        "nested.pth": {"model": model},
    }
    for name, content in files.items():
        torch.save(content, tmp_path / name)
        with pytest.raises(ErfscopeError, match="add --unsafe-load if you trust it"):
            load_checkpoint(resnet(), tmp_path / name, needed=body)
        fresh = resnet()
        load_checkpoint(fresh, tmp_path / name, needed=body, unsafe=True)
        assert all(torch.equal(value, trained[key]) for key, value in fresh.state_dict().items())
        trap.rmdir() if trap.exists() else None
    asked = {"checkpoint": tmp_path / "evil.pth", "input_size": 32, "samples": 1, "device": "cpu"}
    result = erfscope.analyze("test_resnet", **asked, unsafe_load=True)
    assert [finding.text for finding in result.findings if finding.code == "unsafe_load"] == [UNSAFE]
    assert result.map.provenance["weights"]["unsafe_load"] is True
    assert trap.exists()
    stored = erfscope.sweep("test_resnet", **asked | {"checkpoint": tmp_path / "model.pth"}, unsafe_load=True).to_json()
    assert (stored["settings"]["unsafe_load"], stored["results"][0]["weights"]["unsafe_load"]) == (True, True)


@pytest.mark.slow
def test_without_unsafe_load_nothing_is_said_of_it(tmp_path: Path, trained: State) -> None:
    torch.save(trained, tmp_path / "net.pth")
    for more in ({}, {"unsafe_load": False}):
        result = erfscope.analyze(
            "test_resnet", checkpoint=tmp_path / "net.pth", input_size=32, samples=1, device="cpu", **more
        )
        assert "unsafe_load" not in [finding.code for finding in result.findings]
        assert result.weights.unsafe_load is False
    with pytest.raises(ErfscopeError, match="unsafe_load is for models that erfscope builds"):
        erfscope.analyze(resnet(), unsafe_load=True)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("corrupt.pth", b"not a checkpoint", "is damaged or holds more"),
        ("corrupt.safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00nonsense", "cannot be read"),
        ("empty.pth", b"", "cannot be read"),
        (
            "hello.pth",
            b"hello",
            r"as \.safetensors or \.pth: it is damaged, or no checkpoint \(KeyError\); save it as torch\.save",
        ),
    ],
)
def test_a_file_that_is_no_checkpoint_is_one_line(tmp_path: Path, name: str, content: bytes, text: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ErfscopeError, match=text) as caught:
        load_checkpoint(resnet(), tmp_path / name, needed=body)
    assert "\n" not in str(caught.value)


def test_missing_files_and_directories_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ErfscopeError, match="does not exist"):
        load_checkpoint(resnet(), tmp_path / "no.pth", needed=body)
    with pytest.raises(ErfscopeError, match=r"is a directory.*local-dir:"):
        load_checkpoint(resnet(), tmp_path, needed=body)


@pytest.mark.slow
@pytest.mark.parametrize(("averaged", "plain"), [("state_dict_ema", "state_dict"), ("model_ema", "model")])
def test_averaged_weights_are_taken_as_timm_does_and_it_is_said(
    tmp_path: Path, trained: State, averaged: str, plain: str
) -> None:
    file = tmp_path / "last.pth"
    torch.save({plain: {key: value * 0 for key, value in trained.items()}, averaged: trained}, file)
    model, timms = resnet(), resnet()
    weights = load_checkpoint(model, file, needed=lambda key: True)
    timm.models.load_checkpoint(timms, str(file))
    assert sha256(model) == sha256(timms)
    assert weights.origin == f"{file}, entry {averaged}"
    asked = {"checkpoint": file, "input_size": 32, "samples": 1, "device": "cpu", "measures": "r50"}
    result = erfscope.analyze("test_resnet", **asked)
    (said,) = [finding.text for finding in result.findings if finding.code == "averaged"]
    assert averaged in said
    assert result.map.provenance["weights"]["origin"] == weights.origin
    torch.save({plain: trained}, file)
    alone = erfscope.analyze("test_resnet", **asked)
    assert alone.weights.origin == str(file)
    assert "averaged" not in [finding.code for finding in alone.findings]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([1, 2], r"holds no weights: it has a list; a checkpoint holds tensors by name, as torch\.save"),
        ({}, "holds no weights: it has a dict"),
        ({"net": {"conv1.weight": torch.zeros(2)}, "epoch": 3}, "holds no weights: it has 'net', 'epoch'"),
        ({"model": {"net": {"0.weight": torch.ones(2)}}}, "holds no weights: it has 'net'"),
        ({("a", 1): torch.ones(2)}, "holds no weights: it has a dict"),
        (torch.ones(3), "holds no weights: it has a Tensor"),
        ("text", "holds no weights: it has a str"),
    ],
)
def test_containers_of_other_forms_are_refused_in_one_sentence(tmp_path: Path, content: object, text: str) -> None:
    torch.save(content, tmp_path / "odd.pth")
    with pytest.raises(ErfscopeError, match=text) as caught:
        load_checkpoint(resnet(), tmp_path / "odd.pth", needed=body)
    assert "\n" not in str(caught.value)


def test_a_packed_checkpoint_is_refused_before_it_is_unpacked(
    tmp_path: Path, trained: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, packed = tmp_path / "plain.pth", tmp_path / "packed.pth"
    torch.save(trained, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            content = source.read(member)
            if member.filename.endswith("data.pkl"):
                # A tuple of nothings, which the unpickler makes one by one, and leaves on its stack.
                content = content[:2] + b"(" + b"N" * 5_000_000 + b"t" + content[2:]
            target.writestr(member.filename, content)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(ErfscopeError, match="claims more bytes than it has"):
        load_checkpoint(resnet(), packed, needed=bool)


def test_names_of_weights_are_texts(tmp_path: Path, trained: State) -> None:
    key: tuple[object, ...] = ()
    for _ in range(40):  # as text it would have a million million characters
        key = (key, key)
    held = [key]
    file = tmp_path / "names.pth"
    torch.save({"state_dict": {**trained, 3: torch.zeros(2), ("a", "b"): torch.zeros(2)}, "held": held}, file)
    assert load_checkpoint(resnet(), file, needed=bool).ignored_keys == 0
    torch.save({("a", ("b",)): torch.zeros(2)}, file)
    with pytest.raises(ErfscopeError, match="holds no weights: it has a dict"):
        load_checkpoint(resnet(), file, needed=bool)


LOSS = {"crit.weight": torch.ones(2), "loss.buffer": torch.zeros(3)}


def under(prefix: str, state: State, plus: float = 0.0) -> State:
    return {prefix + key: value + plus if value.is_floating_point() else value for key, value in state.items()}


def training(trained: State, case: str) -> object:
    """What a training writes that holds ``trained``, and other parts of it."""
    return {
        "a criterion": {"state_dict": {**LOSS, **under("model.", trained)}, "epoch": 1},
        "two levels": {**under("net.model.", trained), **LOSS},
        "compiled": {**under("model._orig_mod.", trained), **LOSS},
        "compiled parts": {key.replace("layer1.", "layer1._orig_mod."): value for key, value in trained.items()},
        "two names of one": {**under("model.", trained), **under("net.", trained)},
        "a network beside another": {"generator": under("module.", trained), "critic": dict(LOSS), "epoch": 2},
        "mappings inside each other": {"state_dict": {"model": trained}},
        "an average without weights": {"ema": {"decay": 0.9}, "state_dict": trained},
        "the number of an average": {"ema": torch.tensor(0.999), "state_dict": trained},
        "an average": {"ema": trained, "model": under("", trained, 1.0)},
        "an average beside": {**under("model.", trained, 1.0), **under("ema_model.", trained)},
    }[case]


@pytest.mark.parametrize(
    ("case", "ignored"),
    [
        *(("a criterion", 2), ("two levels", 2), ("compiled", 2), ("compiled parts", 0), ("two names of one", None)),
        *(("a network beside another", 2), ("mappings inside each other", 0), ("an average without weights", 0)),
        ("the number of an average", 0),
        *(("an average", 0), ("an average beside", None)),
    ],
)
def test_the_model_is_found_among_the_parts_of_a_training(
    tmp_path: Path, trained: State, case: str, ignored: int | None
) -> None:
    torch.save(training(trained, case), tmp_path / "x.ckpt")
    model = resnet()
    weights = load_checkpoint(model, tmp_path / "x.ckpt", needed=lambda key: True)
    assert all(torch.equal(value, trained[key]) for key, value in model.state_dict().items())
    copies = sum("num_batches_tracked" not in key for key in trained)
    assert weights.ignored_keys == (copies if ignored is None else ignored)
    assert bool(weights.reason) == bool(weights.ignored_keys)
    assert ("ema" in str(weights.origin)) == (case in ("an average", "an average beside"))


def test_a_checkpoint_of_the_bare_model_fits_one_that_wraps_it(tmp_path: Path, trained: State) -> None:
    torch.save({**trained, **LOSS}, tmp_path / "x.pth")
    model = nn.ModuleDict({"net": nn.ModuleDict({"inner": resnet()})})
    weights = load_checkpoint(model, tmp_path / "x.pth", needed=lambda key: True)
    assert all(torch.equal(value, trained[key]) for key, value in model["net"]["inner"].state_dict().items())
    assert weights.reason == "not used: crit.weight, loss.buffer"


@pytest.mark.parametrize("prefix", ["", "net.", "model.net."])
def test_a_model_of_another_width_is_misshaped_under_any_prefix(tmp_path: Path, prefix: str) -> None:
    def mlp(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))

    torch.save({"state_dict": {**under(prefix, mlp(5).state_dict()), **LOSS}}, tmp_path / "x.ckpt")
    with pytest.raises(ErfscopeError, match=r"mis-shaped: 0\.weight \(5, 5\) for \(4, 4\).*build the model as it was"):
        load_checkpoint(mlp(4), tmp_path / "x.ckpt", needed=lambda key: True)
    torch.save(under(prefix, {"0.other.weight": torch.ones(2)}), tmp_path / "x.ckpt")
    with pytest.raises(ErfscopeError, match="no key matches: it is another model's"):
        load_checkpoint(mlp(4), tmp_path / "x.ckpt", needed=lambda key: True)


@pytest.mark.parametrize("is_nested", [True, False])
def test_two_copies_of_a_model_are_refused(tmp_path: Path, trained: State, is_nested: bool) -> None:
    two = {"teacher": trained, "student": under("", trained, 1.0)}
    flat = {**under("teacher.", trained), **under("student.", trained, 1.0)}
    torch.save(two if is_nested else flat, tmp_path / "x.pth")
    model = resnet()
    before = sha256(model)
    with pytest.raises(ErfscopeError, match=r"holds the model 2 times, under teacher\.\* and student\.\*; save"):
        load_checkpoint(model, tmp_path / "x.pth", needed=lambda key: True)
    assert sha256(model) == before

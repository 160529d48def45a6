"""Claims about loading a user's checkpoint into a model."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import timm
import torch
from one_line import one_line
from safetensors.torch import save_file
from torch import Tensor, nn
from trap import Trap

import erfscope
from erfscope.adapters.opening import UNSAFE
from erfscope.adapters.weights.checkpoint import load_checkpoint
from erfscope.adapters.weights.weights import sha256

pytestmark = pytest.mark.usefixtures("memory_unplanned")

State = dict[str, Tensor]


def resnet() -> nn.Module:
    return timm.create_model("test_resnet")


def body(key: str) -> bool:
    """What any spatial layer depends on: all but the classifier."""
    return not key.startswith("fc.")


def every(key: str) -> bool:
    return True


def holds(model: nn.Module, state: State) -> bool:
    return all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def refused(content: object, file: Path, words: str, model: nn.Module | None = None, needed=body) -> str:
    """What is said of a file with some content; the model stays as it was."""
    model = resnet() if model is None else model
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    before = sha256(model)
    text = one_line(lambda: load_checkpoint(model, file, needed=needed), words)
    assert sha256(model) == before
    return text


@pytest.fixture
def trained() -> State:
    torch.manual_seed(7)
    return {
        key: torch.randint_like(value, 9) if value.dtype == torch.int64 else torch.rand_like(value)
        for key, value in resnet().state_dict().items()
    }


@pytest.mark.parametrize("name", ["best.safetensors", "best.pth", "best.bin"])
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "backbone.", "module.model.backbone.", "_orig_mod."])
def test_a_whole_checkpoint_loads_whatever_prefix_all_its_keys_share(tmp_path, trained, name, prefix):
    state, file = {prefix + key: value for key, value in trained.items()}, tmp_path / name
    save_file(state, file) if name.endswith(".safetensors") else torch.save(state, file)
    model = resnet()
    weights = load_checkpoint(model, file, needed=every)
    assert holds(model, trained)
    assert (weights.source, weights.origin, weights.ignored_keys) == ("checkpoint", str(file), 0)
    assert weights.sha256 == sha256(model)


def test_a_prefix_that_is_the_models_own_is_kept(tmp_path):
    model = nn.ModuleDict({"backbone": nn.Conv2d(3, 4, 1)})
    state = {key: torch.rand_like(value) for key, value in model.state_dict().items()}
    torch.save(state, tmp_path / "x.pth")
    load_checkpoint(model, tmp_path / "x.pth", needed=every)
    assert torch.equal(model.state_dict()["backbone.weight"], state["backbone.weight"])


def test_keys_that_the_layer_does_not_depend_on_are_ignored_and_counted(tmp_path, trained):
    trained["fc.weight"], trained["fc.bias"] = torch.zeros(7, 5), torch.zeros(7)
    trained["projector.weight"] = torch.zeros(3)
    torch.save(trained, tmp_path / "x.pth")
    model = resnet()
    head = model.state_dict()["fc.weight"].clone()
    assert load_checkpoint(model, tmp_path / "x.pth", needed=body).ignored_keys == 3
    assert torch.equal(model.state_dict()["fc.weight"], head)
    assert torch.equal(model.state_dict()["layer4.0.conv1.weight"], trained["layer4.0.conv1.weight"])


BLOCK = "layer1.0.conv1.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({BLOCK: None}, r"missing: layer1\.0\.conv1\.weight;"),
        (
            {"layer2.0.conv1.weight": torch.zeros(2, 3)},
            r"mis-shaped: layer2\.0\.conv1\.weight \(2, 3\) for \(\d+, \d+, 3, 3\);",
        ),
        # Another parameter of a needed module, and another block of a needed stage.
        ({"layer1.0.conv1.bias": torch.zeros(32)}, r"extra: layer1\.0\.conv1\.bias;"),
        ({"layer1.5.conv1.weight": torch.zeros(32)}, r"extra: layer1\.5\.conv1\.weight;"),
    ],
)
def test_a_needed_key_that_does_not_fit_is_an_error_and_nothing_is_loaded(tmp_path, trained, change, words):
    state = {key: value for key, value in (trained | change).items() if value is not None}
    assert "--layer" in refused(state, tmp_path / "x.pth", words)


def test_the_error_names_three_keys_of_each_kind(tmp_path, trained):
    lost = [key for key in trained if key.startswith("layer3.") and key.endswith("weight")]
    text = refused({key: value for key, value in trained.items() if key not in lost}, tmp_path / "x.pth", "")
    assert f"missing: {', '.join(lost[:3])} and {len(lost) - 3} more" in text
    assert lost[3] not in text


def test_counters_may_be_missing_and_shared_tensors_may_be_saved_under_one_name(tmp_path, trained):
    torch.save({key: value for key, value in trained.items() if "num_batches" not in key}, tmp_path / "old.pth")
    load_checkpoint(resnet(), tmp_path / "old.pth", needed=every)
    tied = nn.ModuleDict({name: nn.Linear(3, 3, bias=False) for name in "ab"})
    tied["b"].weight = tied["a"].weight
    torch.save({"a.weight": torch.ones(3, 3)}, tmp_path / "x.pth")
    load_checkpoint(tied, tmp_path / "x.pth", needed=every)
    assert torch.equal(tied["b"].weight, torch.ones(3, 3))


def test_buffers_that_a_model_works_out_itself_may_stand_in_an_old_file(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_buffer("relative_position_index", torch.arange(4), persistent=False)
    state = {key: torch.rand_like(value) for key, value in model.state_dict().items()}
    torch.save(state | {"0.relative_position_index": torch.arange(9)}, tmp_path / "old.pth")
    assert load_checkpoint(model, tmp_path / "old.pth", needed=every).ignored_keys == 1


@pytest.mark.parametrize("plain_pickle", [False, True])
def test_code_in_a_pickle_is_never_executed(tmp_path, trained, plain_pickle):
    trap, file = tmp_path / "sprung", tmp_path / "evil.pth"
    content = {"state_dict": trained, "extra": Trap(trap)}
    refused(
        pickle.dumps(content) if plain_pickle else content, file, "holds more than tensors; erfscope runs no code in it"
    )
    assert not trap.exists()
    torch.load(file, weights_only=False) if not plain_pickle else pickle.loads(file.read_bytes())
    assert trap.exists(), "the trap must work, or this test shows nothing"


ASKED = {"input_size": 32, "samples": 1, "device": "cpu", "measures": "r50"}


@pytest.mark.slow
def test_with_unsafe_load_a_pickle_is_read_and_the_report_names_it(tmp_path, trained):
    trap, model = tmp_path / "sprung", resnet()
    model.load_state_dict(trained)
    evil = {"state_dict": trained, "extra": Trap(trap)}
    for name, content in {"evil.pth": evil, "model.pth": model, "nested.pth": {"model": model}}.items():
        refused(content, tmp_path / name, "add --unsafe-load if you trust it")
        fresh = resnet()
        load_checkpoint(fresh, tmp_path / name, needed=body, unsafe=True)
        assert holds(fresh, trained)
        trap.rmdir() if trap.exists() else None
    asked = {**ASKED, "unsafe_load": True}
    report = erfscope.sweep("test_resnet", checkpoint=tmp_path / "evil.pth", **asked)
    assert [finding.text for finding in report[0].findings if finding.code == "unsafe_load"] == [UNSAFE]
    assert report[0].map.provenance["weights"]["unsafe_load"] is True
    assert trap.exists()
    stored = report.to_json()
    assert (stored["settings"]["unsafe_load"], stored["results"][0]["weights"]["unsafe_load"]) == (True, True)
    # Without it, and of a file that needs none, nothing is said.
    torch.save(trained, tmp_path / "net.pth")
    result = erfscope.analyze("test_resnet", checkpoint=tmp_path / "net.pth", **ASKED)
    assert "unsafe_load" not in [finding.code for finding in result.findings]
    assert result.weights.unsafe_load is False
    one_line(lambda: erfscope.analyze(resnet(), unsafe_load=True), "unsafe_load is for models that erfscope builds")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a checkpoint", "is damaged or holds more"),
        (b"", "cannot be read"),
        (b"hello", r"as \.safetensors or \.pth: it is damaged, or no checkpoint \(KeyError\); save it as torch\.save"),
        ([1, 2], r"holds no weights: it has a list; a checkpoint holds tensors by name, as torch\.save"),
        ({}, "holds no weights: it has a dict"),
        ({"net": {"conv1.weight": torch.zeros(2)}, "epoch": 3}, "holds no weights: it has 'net', 'epoch'"),
        ({"model": {"net": {"0.weight": torch.ones(2)}}}, "holds no weights: it has 'net'"),
        ({("a", 1): torch.ones(2)}, "holds no weights: it has a dict"),
        ({("a", ("b",)): torch.zeros(2)}, "holds no weights: it has a dict"),
        (torch.ones(3), "holds no weights: it has a Tensor"),
        ("text", "holds no weights: it has a str"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_one_line(tmp_path, content, words):
    refused(content, tmp_path / "odd.pth", words)


def test_other_files_folders_and_models_say_what_to_do(tmp_path):
    refused(b"\x08\x00\x00\x00\x00\x00\x00\x00nonsense", tmp_path / "corrupt.safetensors", "cannot be read")
    one_line(lambda: load_checkpoint(resnet(), tmp_path / "no.pth", needed=body), "does not exist")
    one_line(lambda: load_checkpoint(resnet(), tmp_path, needed=body), r"is a directory.*local-dir:")
    # A checkpoint of another model never loads, even if nothing is needed.
    state = timm.create_model("test_vit").state_dict()
    refused(state, tmp_path / "vit.pth", "no key matches", needed=lambda key: False)


@pytest.mark.slow
@pytest.mark.parametrize(("averaged", "plain"), [("state_dict_ema", "state_dict"), ("model_ema", "model")])
def test_averaged_weights_are_taken_as_timm_does_and_it_is_said(tmp_path, trained, averaged, plain):
    file = tmp_path / "last.pth"
    torch.save({plain: {key: value * 0 for key, value in trained.items()}, averaged: trained}, file)
    model, timms = resnet(), resnet()
    weights = load_checkpoint(model, file, needed=every)
    timm.models.load_checkpoint(timms, str(file))
    assert sha256(model) == sha256(timms)
    assert weights.origin == f"{file}, entry {averaged}"
    asked = {"checkpoint": file, **ASKED}
    result = erfscope.analyze("test_resnet", **asked)
    (said,) = [finding.text for finding in result.findings if finding.code == "averaged"]
    assert averaged in said
    assert result.map.provenance["weights"]["origin"] == weights.origin
    torch.save({plain: trained}, file)
    alone = erfscope.analyze("test_resnet", **asked)
    assert alone.weights.origin == str(file)
    assert "averaged" not in [finding.code for finding in alone.findings]


def test_a_packed_checkpoint_is_refused_before_it_is_unpacked(tmp_path, trained, monkeypatch):
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
    one_line(lambda: load_checkpoint(resnet(), packed, needed=bool), "claims more bytes than it has")


def test_names_of_weights_are_texts(tmp_path, trained):
    key: tuple[object, ...] = ()
    for _ in range(40):  # as text it would have a million million characters
        key = (key, key)
    held = [key]
    file = tmp_path / "names.pth"
    torch.save({"state_dict": {**trained, 3: torch.zeros(2), ("a", "b"): torch.zeros(2)}, "held": held}, file)
    assert load_checkpoint(resnet(), file, needed=bool).ignored_keys == 0


LOSS = {"crit.weight": torch.ones(2), "loss.buffer": torch.zeros(3)}


def under(prefix: str, state: State, plus: float = 0.0) -> State:
    return {prefix + key: value + plus if value.is_floating_point() else value for key, value in state.items()}


#: What a training writes that holds a model, and other parts of it; and how many keys are ignored, None for a copy.
TRAININGS = {
    "a criterion": (lambda t: {"state_dict": {**LOSS, **under("model.", t)}, "epoch": 1}, 2),
    "two levels": (lambda t: {**under("net.model.", t), **LOSS}, 2),
    "compiled": (lambda t: {**under("model._orig_mod.", t), **LOSS}, 2),
    "compiled parts": (lambda t: {k.replace("layer1.", "layer1._orig_mod."): value for k, value in t.items()}, 0),
    "two names of one": (lambda t: {**under("model.", t), **under("net.", t)}, None),
    "two networks": (lambda t: {"generator": under("module.", t), "critic": dict(LOSS), "epoch": 2}, 2),
    "mappings inside each other": (lambda t: {"state_dict": {"model": t}}, 0),
    "weights without a name": (lambda t: {"model": t, "epoch": 3, "optimizer": {"lr": 0.1}}, 0),
    "an average without weights": (lambda t: {"ema": {"decay": 0.9}, "state_dict": t}, 0),
    "the number of an average": (lambda t: {"ema": torch.tensor(0.999), "state_dict": t}, 0),
    "an average": (lambda t: {"ema": t, "model": under("", t, 1.0)}, 0),
    "an average alone": (lambda t: {"model_ema": t, "epoch": 3}, 0),
    "a state of an average alone": (lambda t: {"state_dict_ema": t}, 0),
    "an average beside": (lambda t: {**under("model.", t, 1.0), **under("ema_model.", t)}, None),
}


@pytest.mark.parametrize("case", TRAININGS)
def test_the_model_is_found_among_the_parts_of_a_training(tmp_path, trained, case):
    make, ignored = TRAININGS[case]
    torch.save(make(trained), tmp_path / "x.ckpt")
    model = resnet()
    weights = load_checkpoint(model, tmp_path / "x.ckpt", needed=every)
    assert holds(model, trained)
    copies = sum("num_batches_tracked" not in key for key in trained)
    assert weights.ignored_keys == (copies if ignored is None else ignored)
    assert bool(weights.reason) == bool(weights.ignored_keys)
    averaged = ("an average", "an average alone", "a state of an average alone", "an average beside")
    assert ("ema" in str(weights.origin)) == (case in averaged)


def test_a_checkpoint_of_the_bare_model_fits_one_that_wraps_it(tmp_path, trained):
    torch.save({**trained, **LOSS}, tmp_path / "x.pth")
    model = nn.ModuleDict({"net": nn.ModuleDict({"inner": resnet()})})
    weights = load_checkpoint(model, tmp_path / "x.pth", needed=every)
    assert holds(model["net"]["inner"], trained)
    assert weights.reason == "not used: crit.weight, loss.buffer"


@pytest.mark.parametrize("prefix", ["", "net.", "model.net."])
def test_a_model_of_another_width_is_misshaped_under_any_prefix(tmp_path, prefix):
    def mlp(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))

    wide, file = {"state_dict": {**under(prefix, mlp(5).state_dict()), **LOSS}}, tmp_path / "x.ckpt"
    refused(wide, file, r"mis-shaped: 0\.weight \(5, 5\) for \(4, 4\).*build the model as it was", mlp(4), every)
    other = under(prefix, {"0.other.weight": torch.ones(2)})
    refused(other, file, "no key matches: it is another model's", mlp(4), every)


def test_two_copies_of_a_model_are_refused(tmp_path, trained):
    words = r"holds the model 2 times, under teacher\.\* and student\.\*; save"
    two = {"teacher": trained, "student": under("", trained, 1.0)}
    refused(two, tmp_path / "x.pth", words, needed=every)
    flat = {**under("teacher.", trained), **under("student.", trained, 1.0)}
    refused(flat, tmp_path / "x.pth", words, needed=every)

"""Claims about where a model's numbers come from, and about switching on the branches that start switched off."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from one_line import one_line
from safetensors.torch import save_file
from torch import nn

import erfscope
from erfscope import ErfscopeError
from erfscope.adapters.sources.sources import build
from erfscope.adapters.weights import weights as policy
from erfscope.adapters.weights.reactivate import dormant, reactivate
from erfscope.adapters.weights.weights import Store, obtain, sha256, unreachable_reason

pytestmark = pytest.mark.usefixtures("memory_unplanned")

REPO, COMMIT = "timm/test_resnet.r160_in1k", "0123456789abcdef0123456789abcdef01234567"


def closed_port() -> str:
    """URL of a port of this machine at which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _empty_cache_and_no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", closed_port())
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(policy, "_SILENT", {})
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every attempt to reach a network, none of which succeeds."""
    seen: list[object] = []

    def refuse(*args: object, **kwargs: object) -> None:
        seen.append(args)
        raise OSError("no network in this test")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    return seen


class Hub(ThreadingHTTPServer):
    """What the Hugging Face hub answers about one repository."""

    daemon_threads = True
    files: dict[str, bytes]
    delay_s = 0.0
    status = 200
    asked: list[str]


class Reply(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        content = self.server.files.get(self.path.rpartition("/")[2], None if "/resolve/" in self.path else b"")
        self.send_response(self.server.status if content is not None else 404)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content or b"").hexdigest()}"')
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    def do_GET(self) -> None:
        time.sleep(self.server.delay_s)
        self.do_HEAD()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(("127.0.0.1", 0), Reply)
    server.files, server.asked = {}, []
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}"
    )
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def trained() -> nn.Module:
    torch.manual_seed(3)
    model = timm.create_model("test_resnet")
    for value in model.state_dict().values():
        value.copy_(torch.rand(value.shape) + 0.1)
    return model


def as_safetensors(model: nn.Module, file: Path) -> bytes:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), file)
    return file.read_bytes()


def in_cache(model: nn.Module, root: Path) -> None:
    """The layout that ``huggingface_hub`` leaves behind after a download."""
    folder = root / "hub" / f"models--{REPO.replace('/', '--')}"
    as_safetensors(model, folder / "snapshots" / COMMIT / "model.safetensors")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)


# --- random ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["test_resnet", "torchvision:squeezenet1_1", "torchvision:lraspp_mobilenet_v3_large"])
@pytest.mark.parametrize("kind", ["random", "random-raw"])
def test_random_weights_never_touch_the_network(spec, kind, connections):
    weights = build(spec, weights=kind).weights
    assert (weights.source, weights.seed, weights.fallback, weights.reason) == (kind, 0, False, None)
    assert connections == []


def test_random_weights_follow_the_seed_and_nothing_else():
    torch.manual_seed(1)
    first = build("test_resnet", weights="random", seed=5)
    torch.manual_seed(2)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert build("test_resnet", weights="random", seed=5).weights == first.weights
    assert build("test_resnet", weights="random", seed=6).weights.sha256 != first.weights.sha256
    with pytest.raises(ErfscopeError):
        build("test_resnet", weights="random", model_kwargs={"nonsense": 1})
    # The caller's random state is left alone.
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # noqa: NPY002


def test_raw_random_weights_are_what_timm_itself_makes_of_the_seed():
    torch.manual_seed(4)
    expected = sha256(timm.create_model("test_convnext"))
    assert build("test_convnext", weights="random-raw", seed=4).weights.sha256 == expected
    assert build("test_convnext", weights="random", seed=4).weights.sha256 != expected


@pytest.mark.parametrize(
    ("spec", "weights", "words"),
    [
        ("test_resnet", "pretraind", r"auto, pretrained, random, random-raw .did you mean 'pretrained'"),
        ("torch.nn:Identity", "pretraind", "unknown --weights"),
        ("hf-hub:" + REPO, "random", "is not in the local cache, and --weights random never touches the network"),
        ("hf-hub:" + REPO, "auto", "is not in the local cache, and hub unreachable"),
        ("test_resnet", "pretrained", r"cannot be had: hub unreachable; connect to http.*--weights random"),
        ("test_mambaout", "pretrained", "no pretrained weights exist for test_mambaout; use --weights random"),
    ],
)
def test_weights_that_cannot_be_had_are_refused_in_one_line(spec, weights, words):
    one_line(lambda: build(spec, weights=weights), words)


# --- pretrained -----------------------------------------------------------------------------------


def test_a_cached_model_and_its_configuration_are_found_without_any_network(trained, tmp_path, connections):
    in_cache(trained, tmp_path)
    for kind in ("auto", "pretrained"):
        weights = build("test_resnet", weights=kind).weights
        assert (weights.source, weights.sha256) == ("pretrained", sha256(trained))
        assert (weights.fallback, weights.reactivated, weights.seed, weights.origin) == (False, 0, None, REPO)
    stated = {"input_size": [3, 96, 96], "mean": [0.1] * 3, "std": [0.2] * 3}
    config = json.dumps({"architecture": "test_resnet", "pretrained_cfg": stated})
    (next((tmp_path / "hub").glob("models--*/snapshots/*")) / "config.json").write_text(config)
    for kind in ("pretrained", "random"):
        source = build(f"hf-hub:{REPO}", weights=kind)
        assert (source.config.size, source.config.mean) == ((96, 96), (0.1, 0.1, 0.1))
        assert (source.weights.sha256 == sha256(trained)) == (kind == "pretrained")
    assert connections == []


def test_an_unreachable_hub_means_random_weights_and_says_so(capfd):
    start = time.monotonic()
    weights = build("test_resnet").weights
    assert time.monotonic() - start < 20  # the hub client's own retries take 50 s
    assert (weights.source, weights.fallback, weights.reason) == ("random", True, "hub unreachable")
    assert weights.sha256 == build("test_resnet", weights="random").weights.sha256
    assert weights.reactivated == 4
    assert capfd.readouterr() == ("", "")


def test_a_factory_has_no_pretrained_weights(tmp_path):
    (tmp_path / "nets_of_one.py").write_text("import torch\ndef net():\n    return torch.nn.Conv2d(3, 2, 3)\n")
    spec = f"{tmp_path / 'nets_of_one.py'}:net"
    words = "a factory makes its own weights; give checkpoint='FILE'"
    one_line(lambda: erfscope.adapters.load(spec, weights="pretrained"), words)
    torch.save(erfscope.adapters.load(spec).module.state_dict(), tmp_path / "net.pth")
    loaded = erfscope.adapters.load(spec, weights="pretrained", checkpoint=tmp_path / "net.pth")
    assert loaded.weights.source == "checkpoint"


def test_fallbacks_are_named_by_their_reason_and_host(connections):
    assert build("test_mambaout").weights.reason == "no pretrained weights exist for test_mambaout"
    assert connections == []
    weights = build("torchvision:squeezenet1_1").weights
    assert (weights.source, weights.fallback, weights.reason) == ("random", True, "download.pytorch.org unreachable")
    assert connections != []


@pytest.mark.slow
def test_a_hub_that_accepts_and_says_nothing_is_given_up_in_time_and_not_asked_again(monkeypatch):
    monkeypatch.setattr(policy, "ANSWER_LIMIT_S", 0.4)
    asked, ask = [], policy._replies
    monkeypatch.setattr(policy, "_replies", lambda *args: asked.append(args) or ask(*args))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        assert build("test_resnet").weights.reason == "hub unreachable"
        first = time.monotonic() - start
        assert build("test_convnext").weights.reason == "hub unreachable"
        time.sleep(0.5)  # the question times out and closes its connection
    assert 0.4 <= first < 20
    assert len(asked) == 1


@pytest.mark.slow
def test_a_name_server_that_hangs_counts_against_the_same_limit(monkeypatch):
    release = threading.Event()

    def hang(*args: object, **kwargs: object) -> None:
        release.wait(10)
        raise OSError("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(policy, "ANSWER_LIMIT_S", 0.3)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    start = time.monotonic()
    assert unreachable_reason("http://hub.invalid") == "hub unreachable"
    assert time.monotonic() - start < 8
    release.set()


@pytest.mark.slow
def test_a_hub_that_answers_is_never_abandoned_however_slow_the_download(hub, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "ANSWER_LIMIT_S", 0.8)
    hub.files["model.safetensors"], hub.delay_s = as_safetensors(trained, tmp_path / "m.safetensors"), 1.2
    start = time.monotonic()
    weights = build("test_resnet").weights
    assert time.monotonic() - start > 1.2
    assert (weights.source, weights.sha256) == ("pretrained", sha256(trained))
    assert hub.asked[0] == "HEAD /"
    asked = len(hub.asked)
    assert build("test_resnet").weights == weights
    assert len(hub.asked) == asked, "what was fetched is cached"


def test_a_hub_without_the_file_means_random_weights_with_the_reason(hub):
    weights = build("test_resnet").weights
    assert weights.fallback
    assert weights.reason.startswith("they could not be fetched: ")
    assert "\n" not in weights.reason


def test_hosts_are_asked_by_name_and_a_gateway_that_excuses_itself_is_no_answer(hub):
    for hub.status, reason in ((503, "hub unreachable"), (401, None)):
        policy._SILENT.clear()
        assert unreachable_reason(constants.ENDPOINT) == reason
    hub.status = 200
    assert unreachable_reason(f"http://localhost:{hub.server_port}") is None
    gone = closed_port()
    assert unreachable_reason(gone) == f"{gone.removeprefix('http://')} unreachable"


def test_offline_mode_is_believed_without_asking(monkeypatch, connections):
    with monkeypatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        assert build("test_resnet").weights.reason == "HF_HUB_OFFLINE is set"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert build("test_resnet").weights.reason == "HF_HUB_OFFLINE is set"
    assert connections == []


def test_torchvisions_weights_are_found_in_torchs_cache(tmp_path, connections):
    from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1

    torch.manual_seed(11)
    model = squeezenet1_1()
    file = tmp_path / "torch" / "checkpoints" / SqueezeNet1_1_Weights.DEFAULT.url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    torch.save(model.state_dict(), file)
    weights = build("torchvision:squeezenet1_1").weights
    assert (weights.source, weights.sha256) == ("pretrained", sha256(model))
    assert connections == []


def test_what_fails_in_building_is_an_error_and_not_a_fallback(trained, tmp_path):
    in_cache(trained, tmp_path)
    words = r"timm could not build 'test_resnet' with layers=.*loading state_dict for ResNet"
    one_line(lambda: build("test_resnet", model_kwargs={"layers": (2, 1, 1, 1)}), words)

    def broken(pretrained: bool) -> nn.Module:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        obtain(broken, Store(name="x", origin=None), policy="random", seed=0)


# --- sha256 ---------------------------------------------------------------------------------------


def test_the_hash_is_that_of_names_dtypes_shapes_and_bytes():
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.bias.fill_(0.5)
    text = b"bias torch.float32 (1,)\n" + np.float32([0.5]).tobytes()
    text += b"weight torch.float32 (1, 2)\n" + np.float32([1.0, -2.0]).tobytes()
    assert sha256(model) == hashlib.sha256(text).hexdigest()
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    net[1].num_batches_tracked.add_(1)
    assert sha256(net) != sha256(nn.Sequential(net[0], nn.BatchNorm2d(4)))
    assert sha256(copy.deepcopy(net)) == sha256(net)


# --- re-activation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("test_resnet", "layer1.0.conv1.weight"),
        ("test_byobnet", "stages.0.0.conv1_kxk.conv.weight"),
        ("test_nfnet", "stages.0.0.conv1.weight"),
        ("test_convnext", "stages.1.blocks.0.conv_dw.weight"),
        ("test_vit2", "blocks.1.mlp.fc1.weight"),
        ("test_vit_relpos", "blocks.1.attn.qkv.weight"),
        ("test_mambaout", "stages.0.blocks.0.fc1.weight"),
    ],
)
def test_a_branch_that_starts_closed_takes_part_after_reactivation(name, branch):
    """Oracle: the gradient of the features with respect to a weight inside the branch, next to that of the weights of
    the stem."""
    if not timm.is_model(name):
        pytest.skip(f"timm {timm.__version__} has no {name}")

    def share(model: nn.Module) -> float:
        torch.manual_seed(0)
        features = model.eval().forward_features(torch.randn(1, 3, 160, 160))
        parameters = [model.get_parameter(branch), next(iter(model.parameters()))]
        inner, stem = torch.autograd.grad(features.square().sum(), parameters)
        return float(inner.norm() / stem.norm())

    raw = build(name, weights="random-raw").module
    closed = share(raw)
    assert closed < 1e-2
    assert reactivate(raw) > 0
    assert share(raw) > max(100 * closed, 1e-4)


@pytest.mark.parametrize(
    ("name", "blocks", "per_block"),
    [
        ("test_resnet", {"BasicBlock", "Bottleneck"}, 1),
        ("test_convnext", {"ConvNeXtBlock"}, 1),
        ("test_vit2", {"Block"}, 2),
        ("test_vit", {"Block"}, 0),
    ],
)
def test_the_count_is_the_number_of_closed_branches(name, blocks, per_block):
    source = build(name, weights="random")
    count = sum(type(part).__name__ in blocks for part in source.module.modules())
    assert source.weights.reactivated == per_block * count
    assert dormant(source.module) == []
    assert reactivate(source.module) == 0


def named(kind: str, name: str, value: torch.Tensor, *, buffer: bool = False) -> nn.Module:
    """A module of a kind with one parameter or buffer."""
    module: nn.Module = type(kind, (nn.Module,), {})()
    module.register_buffer(name, value) if buffer else module.register_parameter(name, nn.Parameter(value))
    return module


def tiny() -> torch.Tensor:
    return 1e-6 * torch.ones(4)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *(("Block", name, tiny()) for name in ("gamma", "gamma_1", "gamma3", "gamma_xca", "ls2")),
        ("CNBlock", "layer_scale", tiny().reshape(4, 1, 1)),
        ("Scale", "scale", tiny()),
        ("Conv", "gain", torch.zeros(4, 1, 1, 1)),
        ("Block", "skipinit_gain", torch.tensor(0.0)),
        ("Block", "res_scale", torch.zeros(1)),
        ("Dinov2LayerScale", "lambda1", tiny()),
        ("FrozenBatchNorm2d", "weight", torch.zeros(4)),
        ("LlamaRMSNorm", "weight", torch.zeros(4)),
        ("LayerNorm2d", "weight", tiny()),  # res-post-norm of ViT-relpos-RPN and SwinV2-CR
    ],
)
def test_gains_and_norms_near_zero_are_set_to_one(kind, name, value):
    module = named(kind, name, value.clone(), buffer=kind.startswith("Frozen"))
    assert dormant(nn.Sequential(module)) == [f"0.{name}"]
    assert reactivate(module) == 1
    assert torch.equal(module.state_dict()[name], torch.ones_like(value))


def test_what_closes_no_branch_is_left_alone():
    for module in (
        named("GlobalResponseNorm", "weight", torch.zeros(4)),
        named("GRN", "gamma", torch.zeros(1, 1, 1, 4)),
        named("Mixer", "alpha", 1e-4 * torch.ones(4, 4)),  # EfficientViM: goes through a sigmoid
        named("ViT", "pos_embed", torch.zeros(1, 9, 4)),
        named("Attention", "relative_position_bias_table", torch.zeros(9, 2)),
        named("Linear", "weight", torch.zeros(10, 4)),  # a head at its start
        named("Conv2d", "weight", torch.zeros(4, 4, 1, 1)),  # the last layer of a context gate
        named("LayerNorm", "bias", torch.zeros(4)),
        named("FilterResponseNormTlu2d", "tau", torch.zeros(4)),
        named("Block", "gamma", torch.tensor([1e-6, 0.5])),
        named("Block", "gamma", 0.1 * torch.ones(4)),  # CaiT's shallow blocks
        named("Attention", "logit_scale", torch.zeros(4, 1, 1)),
        named("Quantizer", "scale", torch.zeros(1), buffer=True),
    ):
        before = sha256(module)
        assert (dormant(module), reactivate(module), sha256(module)) == ([], 0, before)


def test_a_shared_gain_counts_once_and_keeps_its_flags():
    block = named("Block", "gamma", tiny())
    block.get_parameter("gamma").requires_grad_(False)
    assert reactivate(nn.ModuleList([block, nn.Sequential(block)])) == 1
    assert not block.get_parameter("gamma").requires_grad

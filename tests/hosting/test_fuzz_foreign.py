"""Hostile factories, models and checkpoints: each works, or is refused in one line, and nothing else of the process is changed."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from fuzzing import command, fuzz, works_or_refuses
from hostile import ACTIONS, DEADLY, SOURCE
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from erfscope.adapters.weights.checkpoint import load_checkpoint
from erfscope.adapters.weights.weights import sha256
from erfscope.errors import ErfscopeError

MIXED = """
from nets import *

def mixed(factory="", forward="", backward=""):
    def all_of(names):
        return lambda: [globals()[name]() for name in names.split("+") if name]
    net = acted(all_of(factory))
    return nn.Sequential(net, Acting(all_of(forward)), ActingBackward(all_of(backward))) if forward or backward else net


class Acting(Acting):
    def __init__(self, act):
        super().__init__(act)
        self.net = nn.Sequential(nn.Conv2d(2, 3, 1, dtype=torch.float32), self.net)
"""
#: An inference mode that is left open inside another one, and closed when Python collects it, leaves PyTorch's own state in pieces.
MIXABLE = [action for action in ACTIONS if action != "inference"]
ACTS = st.lists(st.sampled_from([*MIXABLE, *MIXABLE, *DEADLY]), max_size=3).map("+".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A project, entered for as long as these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("project")
        (place / "nets.py").write_text(SOURCE)
        (place / "mixed.py").write_text(MIXED)
        patch.chdir(place)
        yield place


@fuzz(25)
@given(name=st.sampled_from(["analyze", "check", "layers"]), factory=ACTS, forward=ACTS, backward=ACTS)
def test_whatever_a_model_does_to_the_process_the_command_is_in_charge(folder, name, factory, forward, backward):
    before = Path.cwd(), dict(os.environ), torch.get_default_dtype(), torch.is_grad_enabled(), list(warnings.filters), list(sys.path)
    words = [f"--model-kwargs={key}={value!r}" for key, value in (("factory", factory), ("forward", forward), ("backward", backward))]
    small = ["--input-size=16"] if name == "layers" else ["--input-size=16", "--samples=1", "--measures=r50", "--device=cpu", "-q"]
    code, out, said = command(name, "mixed.py:mixed", *words, *small, "--json", *(["--allow-new"] if name == "check" else []))
    after = Path.cwd(), dict(os.environ), torch.get_default_dtype(), torch.is_grad_enabled(), list(warnings.filters), list(sys.path)
    assert after == before
    if out:
        json.loads(out)
    (folder / "erf-baseline.json").unlink(missing_ok=True)
    if {*factory.split("+")} & {*DEADLY}:
        assert code in (2, 3), (words, out, said)
    elif {*forward.split("+")} & {*DEADLY}:
        assert code == 3, (words, out, said)


def net() -> nn.Module:
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
    made.register_buffer("table", torch.zeros(1).expand(3))
    return made


CHANGES = {
    "drop": lambda tensor: None,
    "sparse": torch.Tensor.to_sparse,
    "csr": lambda tensor: tensor.to_sparse_csr() if tensor.ndim == 2 else tensor.to_sparse(),
    "quantised": lambda tensor: torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.quint8),
    "meta": lambda tensor: tensor.to("meta"),
    "complex": lambda tensor: tensor.to(torch.complex64) * 1j,
    "int8": lambda tensor: tensor.to(torch.int8),
    "bool": lambda tensor: tensor.bool(),
    "float8": lambda tensor: tensor.to(torch.float8_e4m3fn),
    "bfloat16": lambda tensor: tensor.to(torch.bfloat16),
    "huge": lambda tensor: tensor.double() + 1e200,
    "nan": lambda tensor: tensor.double() * float("nan"),
    "nested": lambda tensor: torch.nested.nested_tensor([tensor.float(), tensor.float()]),
    "flat": lambda tensor: tensor.reshape(-1),
    "empty": lambda tensor: tensor[..., :0] if tensor.ndim else tensor.new_zeros(0),
    "list": lambda tensor: [tensor],
    "dict": lambda tensor: {"value": tensor},
    "text": lambda tensor: "a tensor",
    "lazy": lambda tensor: nn.UninitializedParameter(),
    "wide": lambda tensor: torch.sparse_coo_tensor(size=(10**6, 10**6)),
}
KEYS = st.sampled_from([*net().state_dict(), "new.weight", "2.extra", "x"])
NAMES = st.sampled_from([None, None, None, 0, 2, ("a", 1), "module", ""])


@fuzz(100)
@given(
    changes=st.lists(st.tuples(KEYS, st.sampled_from([*CHANGES])), max_size=3, unique_by=lambda change: change[0]),
    renamed=st.lists(st.tuples(KEYS, NAMES), max_size=1),
    wrapper=st.sampled_from([None, "state_dict", "model", "model_ema", "net", 0]),
    needed=st.sampled_from(["", "0.", "2."]),
)
def test_a_checkpoint_is_loaded_rightly_or_leaves_the_model_as_it_was(folder, changes, renamed, wrapper, needed):
    model = net()
    state = {key: torch.rand_like(value) if value.is_floating_point() else value for key, value in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key, what in changes:
            state[key] = CHANGES[what](state[key] if isinstance(state.get(key), torch.Tensor) else torch.rand(2))
        for key, name in renamed:
            if key in state and name is not None:
                state[name] = state.pop(key)
        torch.save(state if wrapper is None else {wrapper: state}, folder / "odd.pth")
        before = sha256(model)
        found = works_or_refuses(lambda: load_checkpoint(model, folder / "odd.pth", needed=lambda key: key.startswith(needed), unsafe=True))
    if isinstance(found, ErfscopeError):
        assert "\n" not in str(found)
        assert sha256(model) == before
        return
    for key, value in model.state_dict().items():
        held = state.get(key)
        if key.startswith(needed) and isinstance(held, torch.Tensor) and held.shape == value.shape:
            assert not held.is_complex()
            plain = held.dequantize() if held.is_quantized else held.to_dense() if held.layout is not torch.strided else held
            assert torch.equal(value, plain.to(value.dtype)) or bool(plain.isnan().any())

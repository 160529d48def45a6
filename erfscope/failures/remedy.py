"""What to do about a model that failed: a hint that fits the failure, tried before it is given where that is cheap."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from inspect import Parameter
from typing import Any

import torch
from torch import nn

from erfscope.adapter import Adapter
from erfscope.failures.plain import Failure, last_frame, source_line, understand
from erfscope.failures.trial import failure_at, first_convolution, order_that_runs, size_that_runs, without_numbers
from erfscope.geometry.input_size import size_words

#: What images are called by those who write forwards.
_PICTURES = ("pixel_values", "images", "image", "imgs", "img", "pixel_values_videos", "video", "videos", "pixels")
#: And what integer ids are called.
_IDS = ("input_ids", "ids", "token_ids", "tokens", "indices", "idx", "src", "text")
_GIVEN = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
#: How a model says that it was not given what it needs.
_COMPLAINT = re.compile(r"specif|requir|need|must|provide|missing|pass|give|None")
#: Length of a sequence in an example.
_LENGTH = 64


def remedy(adapter: Adapter, error: BaseException) -> str:
    """What to do about a model that raised ``error`` on its input; "" where nothing is known that would help.

    Args:
        adapter: The model, at the size and with the channels that it failed on.
        error: What its forward pass raised.
    """
    devices = sorted({str(parameter.device) for parameter in adapter.module.parameters()})
    if len(devices) > 1:
        return f"it lies on {', '.join(devices)}: move it to one device"
    failure = understand(error)
    # One who calls the model in a way of their own knows what it takes, but for an argument that is missing.
    own = str(getattr(getattr(adapter, "_forward", None), "__module__", "erfscope")).partition(".")[0] != "erfscope"
    call = _other_call(adapter.module, error, failure, adapter.preprocess.size) if not own or failure.kind == "arguments" else ""
    if call:
        return call
    if failure.kind in ("numbers", "operation") and devices == ["meta"]:
        return "it holds no numbers: build it outside torch.device('meta')"
    if failure.kind == "devices":
        return "register its tensors as buffers, or make them on the device of the input"
    if failure.kind == "dtype":
        if {parameter.dtype for parameter in adapter.module.parameters() if parameter.is_floating_point()} == {torch.float32}:
            return "its weights are float32, and a buffer or a tensor that its forward makes is of another dtype: give all of them one"
        return "give it another dtype, such as dtype='float32' (--dtype float32)"
    if failure.kind in ("numbers", "operation", "arguments", "mapping", "several", "ids"):
        return ""
    return _other_input(adapter, error, failure)


def _other_input(adapter: Adapter, error: BaseException, failure: Failure) -> str:
    """Other channels, or another size, that the model was seen to take."""
    size, channels = adapter.preprocess.size, adapter.preprocess.channels
    meta = without_numbers(adapter)
    here = failure_at(adapter, size, meta=meta)
    if here is None:
        # The input is not to blame.
        return ""
    unknown = understand(here).needs_numbers
    for wanted in _wanted_channels(adapter.module, str(error), channels):
        raised = None if unknown and failure.kind == "channels" else failure_at(adapter, size, channels=wanted, meta=meta)
        if raised is None:
            return f"it takes {wanted} channels: in_chans={wanted} (--in-chans {wanted})"
    if not unknown and (call := _other_order(adapter, error)):
        return call
    found = size_that_runs(adapter, error, numbers=unknown)
    if found is not None:
        return f"it runs at {size_words(found)}"
    if failure.kind == "channels":
        return ""
    if unknown:
        return "try another --input-size" if failure.kind in ("size", "axes") else ""
    return "it fails at every other --input-size that was tried, too"


def _other_order(adapter: Adapter, error: BaseException) -> str:
    """The call of a model that takes its input with the axes in another order."""
    size, channels = adapter.preprocess.size, adapter.preprocess.channels
    features = [int(n) for found in re.findall(r"\(\d+x(\d+) and (\d+)x\d+\)|input_size. Expected (\d+)", str(error)) for n in found if n]
    found = order_that_runs(adapter, [size], list(dict.fromkeys([channels, *features])))
    if found is None:
        return ""
    code, _, wanted = found
    more = "" if wanted == channels else f", in_chans={wanted}"
    sides = ", ".join(map(str, size)) + "," * (len(size) == 1)
    return _instead(f"m({code})", "it takes its input in another order", more=f"{more}, input_size=({sides})")


def _wanted_channels(module: nn.Module, text: str, given: int) -> list[int]:
    """Numbers of input channels that a text asks for, or the first convolution."""
    found = [int(n) for n in re.findall(r"to have (\d+) channels|should contain \d+ elements not (\d+)", text) for n in n if n]
    if product := re.search(r"\(\d+x(\d+) and (\d+)x\d+\)", text):
        found += [int(product[2])] if int(product[1]) == given else []
    first = first_convolution(module)
    if first is not None:
        found.append(first.in_channels)
    return [n for n in dict.fromkeys(found) if n not in (0, given)]


# --- Models that are called in another way --------------------------------------------------------------------------------------------


def _other_call(module: nn.Module, error: BaseException, failure: Failure, size: Sequence[int]) -> str:
    """How to call a model whose forward wants something else than one tensor of numbers; "" where that is not what it failed on."""
    parameters = _parameters(module)
    if not parameters:
        return ""
    first = parameters[0].name
    if failure.kind == "arguments":
        if not re.search(rf"(?:^|\W){re.escape(_qualified(module))}\(\) missing", str(error)):
            return ""  # of a part of the model, which is a fault of the model itself
        return _with_others(parameters, [p for p in parameters[1:] if p.default is Parameter.empty])
    if first in _IDS and (call := _after_embedding(module, parameters, size)):
        return call
    if lacking := _named_in(error, parameters[1:], module):
        return _with_others(parameters, lacking)
    if failure.kind == "ids":
        return _after_embedding(module, parameters, size)
    line = source_line(error) if _is_in_forward(module, error) else ""
    if failure.kind == "mapping" and (found := re.search(rf"\b{re.escape(first)}\s*\[\s*['\"](\w+)['\"]\s*\]", line)):
        return _instead(f'm({{"{found[1]}": x}})', "its forward takes a dictionary")
    if failure.kind == "mapping" and (found := re.search(rf"\b{re.escape(first)}\.(\w+)", line)):
        if found[1] in ("items", "keys", "values", "get"):
            return _instead("m({KEY: x})", "its forward takes a dictionary", "KEY is the entry that holds the image")
        return _instead(f"m(types.SimpleNamespace({found[1]}=x))", f"its forward takes an object that has .{found[1]}")
    if failure.kind == "several" and re.search(rf"=\s*{re.escape(first)}\s*$", line):
        count = re.search(r"expected (\d+)", str(error))
        others = [f"OTHER{n}" for n in range(1, int(count[1]))] if count else ["OTHER1"]
        return _instead(f"m([x, {', '.join(others)}])", "its forward takes a list of tensors", f"{others[0]} is a tensor that you give")
    return ""


def _with_others(parameters: Sequence[Parameter], lacking: Sequence[Parameter]) -> str:
    """The call of a forward that wants more than an image."""
    picture = next((p for p in parameters if p.name in _PICTURES), parameters[0])
    others = [p for p in dict.fromkeys([parameters[0], *lacking]) if p is not picture]
    # Up to the image, arguments without names stand in their order.
    if parameters[0].kind is Parameter.POSITIONAL_ONLY:
        others.sort(key=list(parameters).index)
        words = [_word(p, "x" if p is picture else p.name.upper()) for p in parameters if p is picture or p in others]
    else:
        words = ["x" if picture is parameters[0] else _word(picture, "x"), *(_word(p, p.name.upper()) for p in others)]
    names = [p.name.upper() for p in others]
    needed = " and ".join(repr(p.name) for p in others)
    where = "" if not names else f"{names[0]} is what you give" if len(names) == 1 else f"{', '.join(names)} are what you give"
    return _instead(f"m({', '.join(words)})", f"its forward needs {needed} too" if others else "its image argument has a name", where)


def _word(parameter: Parameter, value: str) -> str:
    """An argument of a call, by name where it has one."""
    return value if parameter.kind is Parameter.POSITIONAL_ONLY else f"{parameter.name}={value}"


def _after_embedding(module: nn.Module, parameters: Sequence[Parameter], size: Sequence[int]) -> str:
    """The call of a model of integer ids, on what its embedding makes of them: ids have no gradient."""
    picture = next((p for p in parameters[1:] if p.name in _PICTURES), None)
    if picture is not None:
        return _with_others(parameters, [])
    name, embedding = next(((n, part) for n, part in module.named_modules() if isinstance(part, nn.Embedding)), ("", None))
    if embedding is None:
        return ""
    length = size[-1] if len(size) == 1 else _LENGTH
    about = "integer ids have no gradient, the embeddings of them have"
    more = f", in_chans={embedding.embedding_dim}, input_size=({length},)"
    if any(p.name == "inputs_embeds" for p in parameters):
        decoder = ", decoder_inputs_embeds=x.mT" * any(p.name == "decoder_inputs_embeds" for p in parameters)
        return _instead(f"m(inputs_embeds=x.mT{decoder})", about, more=more)
    if isinstance(module, nn.Sequential) and module[0] is embedding:
        return _instead("m[1:](x.mT)", about, more=more)
    place = _attribute(name)
    call = f"(hook := {place}.register_forward_hook(lambda *_: x.mT), m(x[:, 0].long()), hook.remove())[1]"
    return _instead(call, about, more=more)


def _attribute(name: str) -> str:
    """Python for a part of the module ``m``."""
    return "m" + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in name.split(".") if part)


def _instead(call: str, about: str, where: str = "", *, more: str = "") -> str:
    last = f", where {where}" if where else ""
    return f"{about}: from Python, erfscope.wrap(model, forward=lambda m, x: {call}{more}){last}"


# --- What a forward says of itself ----------------------------------------------------------------------------------------------------


def _parameters(module: nn.Module) -> list[Parameter]:
    """The named arguments of a module's forward."""
    try:
        given = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in given if p.kind in _GIVEN]


def _forward(module: nn.Module) -> Any:
    return inspect.unwrap(getattr(module.forward, "__func__", module.forward))


def _qualified(module: nn.Module) -> str:
    """The name of a module's forward as Python's own errors write it."""
    return str(getattr(_forward(module), "__qualname__", "forward"))


def _is_in_forward(module: nn.Module, error: BaseException) -> bool:
    """Whether the line that failed stands in the module's own forward, not in a part's."""
    frame = last_frame(error)
    return frame is not None and frame.f_code is getattr(_forward(module), "__code__", None)


def _named_in(error: BaseException, optional: Sequence[Parameter], module: nn.Module) -> list[Parameter]:
    """Arguments with a default that the model cannot do without: its complaint names them, or the line that failed at a None uses them."""
    text = str(error)
    unset = [p for p in optional if p.default is None]
    if isinstance(error, ValueError | TypeError | AssertionError) and _COMPLAINT.search(text):
        named = [p for p in unset if len(p.name) > 2 and re.search(rf"\b{re.escape(p.name)}\b", text)]
        if named:
            return named[:1] if re.search(r"\bor\b|either", text) else named
    if "NoneType" in text and _is_in_forward(module, error):
        line = source_line(error)
        return [p for p in unset if re.search(rf"\b{re.escape(p.name)}\b", line)]
    return []

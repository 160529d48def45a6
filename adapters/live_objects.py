"""What a person may have in a variable: freed of its wrappers, or refused in one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from erfscope.core.system.containers import tensors_of
from erfscope.core.system.copies import copy_module
from erfscope.core.system.torch_internals import inside_compiled
from erfscope.core.values.errors import ErfscopeError

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
#: timm's averages of weights, by name, since timm is imported for its own models alone.
_AVERAGES = ("ModelEma", "ModelEmaV2", "ModelEmaV3")


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside its wrappers, since hooks and gradients need the plain one.

    Wrappers of the whole are those of ``torch.compile``, DataParallel, DistributedDataParallel and averaged weights,
    and modules that cannot be called and have one part, as ultralytics' ``YOLO``. Where parts are wrapped for
    parallel training, the module is copied without these wrappers, around the very same tensors.
    """
    while (inner := _inside(module)) is not None:
        module = inner
    wrappers = [part for part in module.modules() if isinstance(part, _PARALLEL)]
    if not wrappers:
        return module
    memo: dict[int, object] = {id(tensor): tensor for tensor in tensors_of(module).values()}
    for wrapper in reversed(wrappers):  # the inner ones first
        memo[id(wrapper)] = copy_module(wrapper.module, memo)
    return copy_module(module, memo)


def _inside(module: nn.Module) -> nn.Module | None:
    is_average = isinstance(module, AveragedModel) or type(module).__name__ in _AVERAGES
    if isinstance(module, _PARALLEL) or is_average:
        inner: Any = module.module
        return inner  # type: ignore[no-any-return]
    # A scripted class refuses to be asked for its forward.
    is_called = getattr(type(module), "forward", None) is not nn.Module.forward or "forward" in vars(module)
    if not is_called and len(parts := list(module.children())) == 1:
        return parts[0]
    return inside_compiled(module)


def refuse_unmeasurable(module: nn.Module, name: str) -> None:
    """Refuse a module that has no gradient, or no numbers of its own.

    Args:
        module: As :func:`unwrapped` gives it.
        name: Its name in the message.

    Raises:
        ErfscopeError: names the first part that cannot be measured, and what to do.
    """
    for path, part in module.named_modules():
        for is_unfit, text in _REFUSED:
            if is_unfit(part):
                raise ErfscopeError(f"has a part {path!r} that {text}" if path else text, model=name)


def _is_sharded(part: nn.Module) -> bool:
    """A pass would wait for the other processes, or see one shard."""
    kinds = {type(part).__name__, *(type(parameter).__name__ for parameter in part.parameters(recurse=False))}
    return not kinds.isdisjoint(("FullyShardedDataParallel", "DTensor"))


def _is_scripted(part: nn.Module) -> bool:
    return isinstance(part, torch.jit.ScriptModule)


def _is_lazy(part: nn.Module) -> bool:
    return any(map(is_lazy, _own_tensors(part)))


def _is_quantised(part: nn.Module) -> bool:
    """FloatFunctional, which computes floats until it is converted, stands among the quantised modules."""
    kind = type(part)
    of_library = kind.__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"))
    return (of_library and kind.__name__ != "FloatFunctional") or any(t.is_quantized for t in _own_tensors(part))


def _own_tensors(part: nn.Module) -> Iterator[Tensor]:
    yield from part.parameters(recurse=False)
    yield from part.buffers(recurse=False)


#: Whether a part cannot be measured -> what it is, and what to do, the first that fits.
_REFUSED: tuple[tuple[Callable[[nn.Module], bool], str], ...] = (
    (
        _is_sharded,
        "is sharded over processes (FSDP or a tensor-parallel plan); gather its parameters with"
        " get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) of"
        " torch.distributed.checkpoint.state_dict, load them into an unsharded copy of the model, and measure that",
    ),
    (
        _is_scripted,
        "is TorchScript, which hides its layers; give the nn.Module that it was made of, or what torch.export makes of"
        " that",
    ),
    (_is_lazy, "has lazy parameters without a shape yet; call the model once on an example input first"),
    (
        _is_quantised,
        "is quantised, and integers have no gradient; give the float model that it was made from, before convert() or"
        " quantize_dynamic()",
    ),
)

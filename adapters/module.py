"""Adapter of any ``nn.Module``: layers are its modules' dotted names, read through hooks."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from erfscope.adapter import Features, Preprocess, Reference, Weights
from erfscope.adapters.attention_health import dead_attention
from erfscope.adapters.layer_name import LayerName, parse, pick, replaced
from erfscope.adapters.recorded import pass_of, recording_of
from erfscope.adapters.state import borrowed, device_of, dtype_of, hooked
from erfscope.copies import cast_module
from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.finding import Finding
from erfscope.geometry.layout import Layout, named_layout, recognise
from erfscope.geometry.names import IMAGE, OUTPUT
from erfscope.graph.default_layer import default_layer
from erfscope.graph.named import Pass
from erfscope.graph.recording import Guess, Recording

Forward = Callable[[nn.Module, Tensor], Any]


def _call(module: nn.Module, x: Tensor) -> Any:
    return module(x)


class ModuleAdapter:
    """A module, how to call it, and how images become its input.

    Args:
        module: The model. It is never changed for longer than one call.
        spec: What the user asked for.
        weights: Where its numbers come from.
        preprocess: How images become its input.
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"`` to read every layer so; None follows the positions through the
            operations.
        prefix_tokens: With ``"NLC"``: how many tokens come before those of the map; None for what the model's library
            says.
        forward: How to call the module; by default ``module(x)``.
        owned: Whether erfscope made the module itself and may move it to another device or dtype.
        notes: What the report should say about the model.
        at_once: How many images may go through at a time, for an exported program that takes a fixed number.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        spec: str,
        weights: Weights,
        preprocess: Preprocess,
        layout: str | None = None,
        prefix_tokens: int | None = None,
        forward: Forward = _call,
        owned: bool = False,
        notes: tuple[str, ...] = (),
        at_once: int | None = None,
    ) -> None:
        self.module = module
        self.spec = spec
        self.weights = weights
        self.preprocess = preprocess
        self.notes = notes
        self.at_once = at_once
        #: The same, for findings of a code of their own.
        self.remarks: tuple[Finding, ...] = ()
        #: Where blocks were inserted: name of the block -> name of the module whose output it takes.
        self.inserted: Mapping[str, str] = {}
        self._layout = layout
        #: How many tokens come before those of the map, where the user or the model's library says.
        self.prefix_tokens = prefix_tokens
        #: The host's default layer, for a model with a block.
        self._declared_layer: str | None = None
        self._forward = forward
        self._owned = owned

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages; a bare module declares none."""
        return ()

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The stages, then every module by its dotted name; ``output`` is the model's own output."""
        return tuple(dict.fromkeys([*self.stages, *self._modules()]))

    @property
    def declared_layer(self) -> str | None:
        """The last stage, or what a host without a block was measured at; None where neither is declared."""
        return self._declared_layer or (self.stages[-1] if self.stages else None)

    @property
    def default_layer(self) -> str:
        """The layer that is measured unless another is named: the declared one, else the deepest whose positions the
        operations tell.

        Raises:
            MeasurementError: there is none, or the model fails on an input of its size.
        """
        return self.declared_layer or default_layer(self.recording, self.spec)

    @property
    def recording(self) -> Recording:
        """One recorded pass of the whole model, kept as long as the adapter (docs/contract.md, 4).

        Raises:
            MeasurementError: the model cannot run on an input of its size.
        """
        return recording_of(self)

    def recorded_pass(self, images: int, *, exactly: bool = False) -> Pass:
        """A recorded pass of so many images, or of more; see :class:`erfscope.adapter.Adapter`."""
        return pass_of(self, images, exactly=exactly)

    def features(
        self,
        x: Tensor,
        layer: str,
        wrt: str = IMAGE,
        *,
        known: Mapping[str, Layout] | None = None,
        parameters: bool = False,
    ) -> Features:
        """The map of ``layer`` and the reference ``wrt`` for inputs ``x`` (B, C_in, *space); see
        :class:`erfscope.adapter.Adapter`.

        With ``parameters`` the model's parameters are in the autograd graph too.
        """
        ends_early = known is not None
        if known is None:
            known = self.layouts(x, layer, wrt) or {}
        names = [
            name for name in dict.fromkeys((layer, wrt)) if name != IMAGE and (name == wrt or not self._is_stage(name))
        ]
        taps: list[_Tap] = []
        # Names, not the taps: a circle of taps would keep every pass's graph until Python looks for such circles.
        missing = set(names)

        def seen(name: str) -> None:
            missing.discard(name)
            if ends_early and not self._is_stage(layer) and not missing:
                raise _Reached

        for name in names:
            taps.append(_Tap(name, self._module(name), known.get(name), seen))
        output = None
        with (
            borrowed(self.module, parameters=parameters),
            hooked(tap.handle for tap in taps),
            contextlib.suppress(_Reached),
        ):
            output = self._run(x, layer)
        found = {tap.text: tap for tap in taps}
        for tap in taps:
            tap.check(self.spec)
        reference = (
            found[wrt].reference()
            if wrt in found
            else Reference(name=IMAGE, edge=x, layout=Layout(order="channels_first"), shape=tuple(x.shape))
        )
        tensor = self._map(output, layer, found.get(layer))
        if tensor.shape[0] != x.shape[0]:
            text = (
                f"{layer!r} of {self.spec} gives a map of shape {tuple(tensor.shape)} for {x.shape[0]}"
                f" image{'s' * (x.shape[0] != 1)}"
            )
            raise MeasurementError(
                f"{text}; let erfscope.wrap(model, forward=...) return (B, C, *space) for any number of images"
            )
        return Features(map=tensor, reference=reference)

    @contextlib.contextmanager
    def shifted(self, reference: str, by: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Put another tensor in the place of a module's output or input; see :class:`erfscope.adapter.Adapter`."""
        layer, module = self._module(reference)

        def before(_module: nn.Module, args: tuple[Any, ...]) -> Any:
            return replaced(args[0], layer, reference, by), *args[1:]

        def after(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
            return replaced(output, layer, reference, by)

        with hooked(
            [module.register_forward_pre_hook(before) if layer.is_input else module.register_forward_hook(after)]
        ):
            yield

    def outputs(self, module: nn.Module, x: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Run all of the module, or of a copy of it, as it is: what it returns, and its stages by name."""
        return self._forward(module, x), {}

    def run(self, x: Tensor) -> None:
        """Run all of the model on ``x`` (B, C_in, *space); see :class:`erfscope.adapter.Adapter`."""
        with borrowed(self.module):
            self.outputs(self.module, x)

    def examine(self, first: Callable[[], Tensor]) -> tuple[str, ...]:
        """What a forward pass on an input shows that a reader must know; see :class:`erfscope.adapter.Adapter`."""
        with borrowed(self.module):
            return tuple(dead_attention(self.module, lambda: self._forward(self.module, first())))

    def hops(self, reference: str, space: tuple[int, ...], node: tuple[int, ...]) -> NDArray[np.float64] | None:
        """Hops along the graph of a block; see :class:`erfscope.adapter.Adapter`."""
        block = dict(self.module.named_modules()).get(reference.removesuffix(":in"))
        if not reference.endswith(":in") or block is None:
            return None
        graphs: list[Any] = [module for module in block.modules() if callable(getattr(module, "hops_from", None))]
        found: NDArray[np.float64] | None = graphs[0].hops_from(space, node) if graphs else None
        return found

    def to(self, *, device: torch.device | None = None, dtype: torch.dtype | None = None, copied: bool = False) -> Self:
        """The same adapter on another device or dtype; a module that erfscope does not own, or that is to stay, is
        copied first.

        What has no numbers stays on the meta device.
        """
        device = None if any(p.is_meta for p in self.module.parameters()) else device
        here = device_of(self.module)
        same_device = device is None or str(device) in (str(here), here.type)
        if same_device and (dtype is None or dtype_of(self.module) == dtype):
            return self
        other = copy.copy(self)
        module = self.module if self._owned and not copied else self._copy_of_module()
        other.module = cast_module(module, device=device, dtype=dtype)
        return other

    def _copy_of_module(self) -> nn.Module:
        try:
            return copy.deepcopy(self.module)
        except Exception as error:  # what a module holds may refuse to be copied in any way
            text = (
                f"cannot be copied to another device or dtype ({error}); move the module yourself, and leave --device"
                " and --dtype out"
            )
            raise ErfscopeError(text, model=self.spec) from error

    def _modules(self) -> dict[str, nn.Module]:
        return {name or OUTPUT: module for name, module in self.module.named_modules()}

    def _module(self, text: str) -> tuple[LayerName, nn.Module]:
        layer, modules = parse(text), self._modules()
        if layer.module not in modules:
            raise unknown("layer", text, self.layer_names, where=self.spec)
        return layer, modules[layer.module]

    def _is_stage(self, layer: str) -> bool:
        """Whether the run itself returns the layer's map, so that no hook is needed."""
        return layer in self.stages

    def _run(self, x: Tensor, layer: str) -> Any:
        return self._forward(self.module, x)

    def _map(self, output: Any, layer: str, tap: _Tap | None) -> Tensor:
        assert tap is not None
        return tap.map()

    def layouts(self, x: Tensor, layer: str, wrt: str = IMAGE) -> Mapping[str, Layout] | None:
        """How the tensors that hooks read hold their maps; see :class:`erfscope.adapter.Adapter`."""
        if wrt == IMAGE and self._is_stage(layer):
            return {}
        for name in {layer, wrt} - {IMAGE, *(() if layer == wrt else self.stages)}:
            self._module(name)  # an unknown name is told before anything is run
        at_size = self
        if (self.preprocess.channels, *self.preprocess.size) != tuple(x.shape[1:]):
            at_size = copy.copy(self)
            at_size.preprocess = replace(self.preprocess, size=tuple(x.shape[2:]), channels=x.shape[1])
        return at_size.recording.layouts(layer, wrt)

    def guess(self, shape: tuple[int, ...], images: int) -> Guess:
        """How a tensor of this shape, in a pass of so many images, would be read by its shape alone, or as the user
        said."""
        space = self.preprocess.size
        if self._layout is not None and len(self._layout) == len(shape):
            # Where it does not fit, it was named for another layer.
            with contextlib.suppress(MeasurementError):
                grid = self._grid(space)
                return Guess(
                    named_layout(self._layout, shape, space, prefix=self.prefix_tokens, grid=grid), declared=True
                )
        # Tables of positions have a batch of one.
        return Guess(self._guess(shape, space) if shape and shape[0] in (1, images) else None)

    def _guess(self, shape: tuple[int, ...], space: tuple[int, ...]) -> Layout | None:
        """By shape alone; a list of tokens is no map unless the model's library says what grid they form."""
        return recognise(shape, space, prefix=self.prefix_tokens or 0, grid=self._grid(space))

    def _grid(self, space: tuple[int, ...]) -> tuple[int, ...]:
        """The grid of tokens that the model's library declares for an input of this size; () if it does not."""
        return ()


class _Reached(BaseException):
    """Everything that was asked for has been seen. No Exception, which a model may catch."""


class _Tap:
    """A hook on one module that keeps the tensor (and its place in the autograd graph) that a layer name means."""

    def __init__(
        self,
        text: str,
        target: tuple[LayerName, nn.Module],
        layout: Layout | None,
        seen: Callable[[str], None],
    ) -> None:
        self.text = text
        self.layer, module = target
        self.calls = 0
        self._thread = threading.get_ident()
        self._layout, self._seen = layout, seen
        self._shape: tuple[int, ...] = ()
        self._tensor: Tensor | None = None
        self._reference: Reference | None = None
        self.handle = (
            module.register_forward_pre_hook(self._before)
            if self.layer.is_input
            else module.register_forward_hook(self._after)
        )

    def _before(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        self._keep(args[0] if len(args) == 1 or (args and isinstance(args[0], Tensor)) else args)

    def _after(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self._keep(output)

    def _keep(self, value: Any) -> None:
        if threading.get_ident() != self._thread:  # another thread runs the module too
            return
        self.calls += 1
        tensor = pick(value, self.layer, self.text)
        self._shape = tuple(tensor.shape)
        if self._layout is None:
            return
        # The edge is taken now: an in-place operation later on would make the tensor object stand for its own result.
        edge = get_gradient_edge(tensor) if tensor.requires_grad else tensor
        self._tensor = self._layout.to_map(tensor)
        self._reference = Reference(name=self.text, edge=edge, layout=self._layout, shape=tuple(tensor.shape))
        self._seen(self.text)

    def check(self, spec: str) -> None:
        if self.calls == 0:
            raise MeasurementError(f"{self.text!r} of {spec} does not run in a forward pass; choose another layer")
        if self.calls > 1:
            raise MeasurementError(
                f"{self.text!r} of {spec} runs {self.calls} times per forward pass, so it has no one output; choose a"
                " layer around it"
            )
        if self._layout is None:
            raise MeasurementError(
                f"{self.text!r} gives a tensor of shape {self._shape}, which is no spatial map; choose another layer"
            )

    def map(self) -> Tensor:
        assert self._tensor is not None
        return self._tensor

    def reference(self) -> Reference:
        assert self._reference is not None
        return self._reference

"""Adapter of any ``nn.Module``: layers are its modules' dotted names, read through hooks."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from erfscope.adapter import IMAGE, Features, Preprocess, Reference, Visitor, Weights
from erfscope.adapters.attention_health import dead_attention
from erfscope.adapters.layer_name import ROOT, LayerName, parse, pick, tensors
from erfscope.adapters.state import borrowed, device_of, dtype_of, hooked, meta_copy
from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.layout import Layout, named, recognise
from erfscope.result import Finding

Forward = Callable[[nn.Module, Tensor], Any]


def _call(module: nn.Module, x: Tensor) -> Any:
    return module(x)


class ModuleAdapter:
    """A module, how to call it, and how pictures become its input.

    Args:
        module: The model. It is never changed for longer than one call.
        spec: What the user asked for.
        weights: Where its numbers come from.
        preprocess: How pictures become its input.
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"`` to read every layer so; None recognises each.
        forward: How to call the module; by default ``module(x)``.
        owned: Whether erfscope made the module itself and may move it to another device or dtype.
        notes: What the report should say about the model.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        spec: str,
        weights: Weights,
        preprocess: Preprocess,
        layout: str | None = None,
        forward: Forward = _call,
        owned: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.module = module
        self.spec = spec
        self.weights = weights
        self.preprocess = preprocess
        self.notes = notes
        #: How often each module ran in the last :meth:`visit`.
        self.calls: Counter[str] = Counter()
        #: The same, for findings of a code of their own.
        self.remarks: tuple[Finding, ...] = ()
        #: Where blocks were inserted: name of the block -> name of the module whose output it takes.
        self.inserted: Mapping[str, str] = {}
        self._layout = layout
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

    @cached_property
    def default_layer(self) -> str:
        """The last module, in order of execution, with a map of more than one position that is not a LayerNorm's output."""
        maps: list[str] = []
        normalised: dict[int, object] = {}
        names = dict(self.module.named_modules())

        def note(name: str, tensor: Tensor, layout: Layout | None, /, *, stage: bool = False) -> None:
            if name.endswith(":in") or name == IMAGE:
                return
            storage = tensor.untyped_storage()
            if self._normalises(names.get(name)):
                # A channel sum after LayerNorm has no gradient at all, and every view of its output shares its storage. The storage is
                # kept, lest its address be given to a later tensor.
                normalised[storage._cdata] = storage
            elif layout is None or "[" in name or storage._cdata in normalised:
                return
            # A clip may be down to one frame; a plane of one position is no map.
            elif all(side > 1 for side in layout.space(tensor.shape)[-2:]):
                maps.append(name)

        self.dry_run(note)
        usable = [name for name in maps if self.calls[name] <= 1]
        if not usable:
            raise MeasurementError(f"{self.spec} has no layer with a spatial map; erfscope needs a (B, C, h, w) or token output")
        return usable[-1]

    def dry_run(self, visitor: Visitor) -> None:
        """:meth:`visit` on one empty input, on the meta device, or on the model's own if it cannot run there."""
        shape = (1, self.preprocess.channels, *self.preprocess.size)
        try:
            meta = self.on_meta()
            meta.visit(torch.empty(shape, device="meta", dtype=dtype_of(self.module)), visitor)
            self.calls = meta.calls
        except ErfscopeError:
            raise
        except Exception:
            # Data-dependent models cannot run without numbers.
            self.visit(torch.zeros(shape, device=device_of(self.module), dtype=dtype_of(self.module)), visitor)

    def features(
        self, x: Tensor, layer: str, wrt: str = IMAGE, *, known: Mapping[str, Layout] | None = None, parameters: bool = False
    ) -> Features:
        """The map of ``layer`` and the reference ``wrt`` for inputs ``x`` (B, C_in, *space); see :class:`erfscope.adapter.Adapter`.

        With ``parameters`` the model's parameters are in the autograd graph too.
        """
        names = [name for name in dict.fromkeys((layer, wrt)) if name != IMAGE and (name == wrt or not self._is_stage(name))]
        taps: list[_Tap] = []
        # Names, not the taps: a circle of taps would keep every pass's graph until Python looks for such circles.
        missing = set(names)

        def seen(name: str) -> None:
            missing.discard(name)
            if known is not None and not self._is_stage(layer) and not missing:
                raise _Reached

        for name in names:
            layout = (known or {}).get(name)
            read = self._layout_of if layout is None else (lambda _tensor, _x, layout=layout: layout)
            taps.append(_Tap(name, self._module(name), read, x, seen))
        output = None
        with borrowed(self.module, parameters=parameters), hooked(tap.handle for tap in taps), contextlib.suppress(_Reached):
            output = self._run(x, layer)
        found = {tap.text: tap for tap in taps}
        for tap in taps:
            tap.check(self.spec)
        reference = (
            found[wrt].reference()
            if wrt in found
            else Reference(name=IMAGE, edge=x, layout=Layout(order="channels_first"), shape=tuple(x.shape))
        )
        return Features(map=self._map(output, layer, found.get(layer)), reference=reference)

    def visit(self, x: Tensor, visitor: Visitor) -> None:
        """Show the visitor every tensor that can be named; see :class:`erfscope.adapter.Adapter`."""
        calls: Counter[str] = Counter()

        def show(name: str, tensor: Tensor) -> None:
            try:
                layout = self._layout_of(tensor, x)
            except MeasurementError:  # a layout that the user named for another layer does not fit this one
                layout = None
            visitor(name, tensor, layout)

        def before(name: str, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor):
                show(f"{name}:in", args[0])

        def after(name: str, output: Any) -> None:
            calls[name] += 1
            for item, tensor in tensors(output, name):
                show(item, tensor)

        handles = []
        for name, module in self._modules().items():
            handles.append(module.register_forward_pre_hook(lambda _m, args, name=name: before(name, args)))
            handles.append(module.register_forward_hook(lambda _m, _args, output, name=name: after(name, output)))
        visitor(IMAGE, x, Layout(order="channels_first"))
        with borrowed(self.module), hooked(handles), torch.no_grad():
            self._visit_all(x, visitor)
        self.calls = calls

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

    def on_meta(self) -> Self:
        """The same adapter around a copy of the module on the meta device."""
        other = copy.copy(self)
        other.module = meta_copy(self.module)
        return other

    def to(self, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same adapter on another device or dtype; a module that erfscope does not own is copied first."""
        here = device_of(self.module)
        same_device = device is None or str(device) in (str(here), here.type)
        if same_device and (dtype is None or dtype_of(self.module) == dtype):
            return self
        other = copy.copy(self)
        module = self.module if self._owned else copy.deepcopy(self.module)
        other.module = module.to(device=device, dtype=dtype)
        return other

    def _modules(self) -> dict[str, nn.Module]:
        return {name or ROOT: module for name, module in self.module.named_modules()}

    def _module(self, text: str) -> tuple[LayerName, nn.Module]:
        layer, modules = parse(text), self._modules()
        if layer.module not in modules:
            raise unknown("layer", text, self.layer_names, where=self.spec)
        return layer, modules[layer.module]

    def _normalises(self, module: nn.Module | None) -> bool:
        """Whether a module's output is a LayerNorm's."""
        return isinstance(module, nn.LayerNorm)

    def _is_stage(self, layer: str) -> bool:
        """Whether the run itself returns the layer's map, so that no hook is needed."""
        return False

    def _run(self, x: Tensor, layer: str) -> Any:
        return self._forward(self.module, x)

    def _visit_all(self, x: Tensor, visitor: Visitor) -> None:
        self._forward(self.module, x)

    def _map(self, output: Any, layer: str, tap: _Tap | None) -> Tensor:
        assert tap is not None
        return tap.map()

    def _layout_of(self, tensor: Tensor, x: Tensor) -> Layout | None:
        """How to read a tensor that was computed from ``x``; None if it holds no map of each input."""
        if tensor.ndim == 0 or tensor.shape[0] != x.shape[0]:
            # Windows of attention lie along the batch axis, and tables of positions have a batch of one.
            return None
        return self._read(tensor, tuple(x.shape[2:]))

    def _read(self, tensor: Tensor, space: tuple[int, ...]) -> Layout | None:
        if self._layout is not None and len(self._layout) == tensor.ndim:
            return named(self._layout, tensor.shape, space)
        return recognise(tensor.shape, space)


class _Reached(BaseException):
    """Everything that was asked for has been seen. No Exception, which a model may catch."""


class _Tap:
    """A hook on one module that keeps the tensor (and its place in the autograd graph) that a layer name means."""

    def __init__(
        self,
        text: str,
        target: tuple[LayerName, nn.Module],
        layout_of: Callable[[Tensor, Tensor], Layout | None],
        x: Tensor,
        seen: Callable[[str], None],
    ) -> None:
        self.text = text
        self.layer, module = target
        self.calls = 0
        self._layout_of, self._x, self._seen = layout_of, x, seen
        self._tensor: Tensor | None = None
        self._reference: Reference | None = None
        self.handle = module.register_forward_pre_hook(self._before) if self.layer.is_input else module.register_forward_hook(self._after)

    def _before(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        self._keep(args[0] if len(args) == 1 or (args and isinstance(args[0], Tensor)) else args)

    def _after(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self._keep(output)

    def _keep(self, value: Any) -> None:
        self.calls += 1
        tensor = pick(value, self.layer, self.text)
        layout = self._layout_of(tensor, self._x)
        if layout is None:
            raise MeasurementError(
                f"{self.text!r} gives a tensor of shape {tuple(tensor.shape)}, which is no spatial map; choose another layer"
            )
        # The edge is taken now: an in-place operation later on would make the tensor object stand for its own result.
        edge = get_gradient_edge(tensor) if tensor.requires_grad else tensor
        self._tensor = layout.to_map(tensor)
        self._reference = Reference(name=self.text, edge=edge, layout=layout, shape=tuple(tensor.shape))
        self._seen(self.text)

    def check(self, spec: str) -> None:
        if self.calls == 0:
            raise MeasurementError(f"{self.text!r} of {spec} does not run in a forward pass; choose another layer")
        if self.calls > 1:
            raise MeasurementError(
                f"{self.text!r} of {spec} runs {self.calls} times per forward pass, so it has no one output; choose a layer around it"
            )

    def map(self) -> Tensor:
        assert self._tensor is not None
        return self._tensor

    def reference(self) -> Reference:
        assert self._reference is not None
        return self._reference

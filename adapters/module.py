"""Adapter of any ``nn.Module``: layers are its modules' dotted names, read through hooks."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from erfscope.adapters.attention_health import dead_attention
from erfscope.adapters.layer_name import LayerName, parse, pick, replaced
from erfscope.adapters.recorded import pass_of, places_of, recording_of
from erfscope.adapters.state import dtype_of, evaluation_mode, hooked
from erfscope.adapters.unit_names import unit_names
from erfscope.core.adapter import Features, Reference
from erfscope.core.graph.default_layer import default_layer
from erfscope.core.graph.named import Pass
from erfscope.core.graph.recording import Recording
from erfscope.core.graph.site import Site
from erfscope.core.system.containers import tensors_at
from erfscope.core.system.copies import cast_module, copy_module
from erfscope.core.system.model_errors import errors_as_one_line
from erfscope.core.values.errors import MeasurementError, unknown
from erfscope.core.values.finding import Finding
from erfscope.core.values.layout import Layout
from erfscope.core.values.model_facts import Preprocess, Weights
from erfscope.core.values.names import IMAGE, OUTPUT, is_input

if TYPE_CHECKING:
    from erfscope.adapters.several_inputs import ExampleInputs

Forward = Callable[[nn.Module, Any], Any]
#: Adapter -> what a copy of it was asked for, and the copy.
_moved: WeakKeyDictionary[ModuleAdapter, tuple[object, ModuleAdapter]] = WeakKeyDictionary()


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
        prefix_tokens: With ``"NLC"``: how many tokens come before those of the map; None for none or one.
        forward: How to call the module; by default ``module(x)``.
        inputs: Its arguments where it takes several, which then is how to call it.
        owned: Whether erfscope made the module itself and may move it to another device or dtype.
        notes: Sentences about the model for the report.
        most_images: Most images that one pass takes, for an exported program of a fixed batch; None for any number.
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
        inputs: ExampleInputs | None = None,
        owned: bool = False,
        notes: tuple[str, ...] = (),
        most_images: int | None = None,
    ) -> None:
        self.module = module
        self.spec = spec
        self.weights = weights
        self.preprocess = preprocess
        self.notes = notes
        self.most_images = most_images
        self.passed: Mapping[str, str] = {} if inputs is None else inputs.passed
        #: Findings about the model, with a code of their own.
        self.remarks: tuple[Finding, ...] = ()
        #: What erfscope built it of, but for its numbers; () where that is not known.
        self.structure: tuple[object, ...] = ()
        #: Name of an inserted block -> name of the module whose output it takes.
        self.inserted: Mapping[str, str] = {}
        #: How every layer is read, as the user said.
        self.layout, self.prefix_tokens = layout, prefix_tokens
        #: The host's default layer, for a model with a block.
        self._declared_layer: str | None = None
        self.forward = forward if inputs is None else inputs
        self.inputs = inputs
        self._owned = owned
        #: Where a module without parameters and buffers takes its input, and in which dtype.
        self._device = torch.device("cpu")
        self._dtype: torch.dtype | None = None

    @property
    def device(self) -> torch.device:
        """Where inputs must lie: the module's own device, else the one that was asked for."""
        first = next(itertools.chain(self.module.parameters(), self.module.buffers()), None)
        return self._device if first is None else first.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that inputs must have: the module's own, else the one that was asked for."""
        return dtype_of(self.module, self._dtype)

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
        """One recorded pass of the whole model, kept as long as the adapter (docs/graph.md, rule 4).

        Raises:
            MeasurementError: the model cannot run on an input of its size.
        """
        return recording_of(self)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the module holds now, by name; see :class:`erfscope.core.adapter.Adapter`."""
        return tensors_at(places_of(self))

    def recorded_pass(self, images: int, *, exactly: bool = False) -> Pass:
        """A recorded pass of so many images, or of more; see :class:`erfscope.core.adapter.Adapter`."""
        return pass_of(self, images, exactly=exactly)

    def site(self, layer: str, wrt: str = IMAGE, *, shape: Sequence[int] | None = None) -> Site:
        """A layer and a reference in a recorded pass; see :class:`erfscope.core.adapter.Adapter`."""
        channels, *space = shape or (self.preprocess.channels, *self.preprocess.size)
        fits = (channels, *space) == (self.preprocess.channels, *self.preprocess.size)
        return Site((self if fits else self.at_size(space, channels)).recording, layer, wrt)

    def features(self, x: Tensor, site: Site) -> Features:
        """The map of a layer and its reference for inputs ``x`` (B, C_in, *space); see
        :class:`erfscope.core.adapter.Adapter`."""
        layer, wrt, known = site.layer, site.wrt, site.hooks
        is_stage = layer in self.stages
        targets = {name: self._target(name) for name in {wrt, *(() if is_stage else (layer,))} if not is_input(name)}
        # Names, not the taps: a circle of taps would keep every pass's graph until Python looks for such circles.
        awaited = None if known is None or is_stage else set(targets)
        taps = {name: _Tap(name, target, (known or {}).get(name), awaited) for name, target in targets.items()}
        if wrt in taps:
            taps[wrt].is_leaf = not is_stage and self.inputs is not None and self.inputs.has_ids
        output: Any = None
        with evaluation_mode(self.module), hooked(_handles(taps)), contextlib.suppress(_Reached):
            output = self._stage(x, layer) if is_stage else self.forward(self.module, x)
            _keep_returned(taps.values(), output)
        found = {name: tap.found(self.spec) for name, tap in taps.items()}
        place = self.preprocess.place(wrt)
        image = Reference(edge=x, layout=Layout(), shape=tuple(x.shape), place=place)
        tensor: Tensor = output if is_stage else found[layer][0]
        if tensor.shape[0] != x.shape[0]:
            text = (
                f"{layer!r} of {self.spec} gives a map of shape {tuple(tensor.shape)} for {x.shape[0]}"
                f" image{'s' * (x.shape[0] != 1)}"
            )
            raise MeasurementError(
                f"{text}; let erfscope.wrap(model, forward=...) return a map, such as (B, C, H, W), for any"
                " number of images"
            )
        return Features(map=tensor, reference=image if is_input(wrt) else found[wrt][1])

    def maps(self, x: Tensor, layers: Sequence[str], known: Mapping[str, Layout]) -> dict[str, Tensor]:
        """The maps of several layers from one pass; see :class:`erfscope.core.adapter.Adapter`."""
        hooks = [name for name in layers if name not in self.stages]
        taps = {name: _Tap(name, self._target(name), known.get(name), None) for name in hooks}
        with evaluation_mode(self.module), hooked(_handles(taps)):
            output, stages = self.outputs(self.module, x)
            _keep_returned(taps.values(), output)
        return {name: taps[name].found(self.spec)[0] if name in taps else stages[name] for name in layers}

    @contextlib.contextmanager
    def shifted(self, reference: str, by: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Put another tensor in the place of a module's output or input; see :class:`erfscope.core.adapter.Adapter`."""
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
        return self.forward(module, x), {}

    def unit_names(self, kind: str) -> Mapping[str, Sequence[int]]:
        """Names of units without a place; see :class:`erfscope.core.adapter.Adapter`."""
        return unit_names(self.module, kind)

    def run(self, x: Tensor) -> None:
        """Run all of the model on ``x`` (B, C_in, *space); see :class:`erfscope.core.adapter.Adapter`."""
        with evaluation_mode(self.module):
            self.outputs(self.module, x)

    def examine(self, first: Callable[[], Tensor]) -> tuple[str, ...]:
        """Describe what a pass on an input shows and a reader must know; see :class:`erfscope.core.adapter.Adapter`."""

        def run() -> None:
            with evaluation_mode(self.module):
                self.forward(self.module, first())

        return tuple(dead_attention(self.module, run))

    def hops(self, reference: str, space: tuple[int, ...], node: tuple[int, ...]) -> NDArray[np.float64] | None:
        """Hops along the graph of a block; see :class:`erfscope.core.adapter.Adapter`."""
        block = dict(self.module.named_modules()).get(reference[:-3]) if reference.endswith(":in") else None
        if block is None:
            return None
        graphs: list[Any] = [module for module in block.modules() if callable(getattr(module, "hops_from", None))]
        found: NDArray[np.float64] | None = graphs[0].hops_from(space, node) if graphs else None
        return found

    def to(self, *, device: torch.device | None = None, dtype: torch.dtype | None = None, copied: bool = False) -> Self:
        """Move the adapter to another device or dtype. A module that erfscope does not own is copied first, and any
        module where ``copied``.

        A module on the meta device stays there. The copy is kept as long as this adapter, and takes its numbers anew.
        """
        device = None if device is None or any(p.is_meta for p in self.module.parameters()) else device
        if device is None and dtype is None:
            return self
        here = self.device
        same_device = device is None or str(device) in (str(here), here.type)
        if same_device and (dtype is None or self.dtype == dtype):
            return self
        other, is_copied = copy.copy(self), copied or not self._owned
        if is_copied:
            asked, known = _moved.get(self, (None, self))
            if asked == (device, dtype) and _take_numbers(known, self):
                return known  # type: ignore[return-value]
            fix = "move the module yourself, and leave --device and --dtype out"
            with errors_as_one_line(f"cannot be copied to another device or dtype; {fix}", model=self.spec):
                other.module = copy_module(self.module)
        cast_module(other.module, device=device, dtype=dtype)
        other._device, other._dtype = device or self._device, dtype or self._dtype
        if is_copied:
            _moved[self] = (device, dtype), other
        return other

    def _modules(self) -> dict[str, nn.Module]:
        return {name or OUTPUT: module for name, module in self.module.named_modules()}

    def _module(self, text: str) -> tuple[LayerName, nn.Module]:
        layer, modules = parse(text), self._modules()
        if layer.module not in modules:
            raise unknown("layer", text, self.layer_names, where=self.spec)
        return layer, modules[layer.module]

    def _target(self, text: str) -> tuple[LayerName, nn.Module | None]:
        """The module whose output or input a layer name means; None for what the call returns."""
        layer, module = self._module(text)
        is_returned = layer.module == OUTPUT and not layer.is_input and not self.stages
        return layer, None if is_returned else module

    def _stage(self, x: Tensor, layer: str) -> Tensor:
        """The map of a stage, (B, C, *space)."""
        return self.outputs(self.module, x)[1][layer]

    def at_size(self, space: Sequence[int], channels: int | None = None, *, wrt: str = IMAGE) -> Self:
        """The adapter for inputs of another size, of the same module; of several inputs that is the size of one, and
        the others grow with it.

        Raises:
            ErfscopeError: another input would have a side that is no whole number.
        """
        other = copy.copy(self)
        if self.inputs is not None and self.preprocess.parts:
            other.inputs = other.forward = self.inputs.at_size(tuple(space), wrt)
            other.preprocess = other.inputs.preprocess
            return other
        other.preprocess = replace(self.preprocess, size=tuple(space))
        if channels is not None:
            other.preprocess = replace(other.preprocess, channels=channels, with_channels=None)
        return other


class _Reached(BaseException):
    """Ends a pass that has reached every layer asked for. Not an Exception, which a model may catch."""


def _take_numbers(copied: ModuleAdapter, adapter: ModuleAdapter) -> bool:
    """Give a copy the numbers that an adapter's module has now; False where it holds other tensors."""
    theirs, ours = copied.tensors(), adapter.tensors()
    if {name: tensor.shape for name, tensor in theirs.items()} != {name: each.shape for name, each in ours.items()}:
        return False
    with torch.no_grad():
        for name, tensor in theirs.items():
            tensor.copy_(ours[name])
    return True


def _handles(taps: Mapping[str, _Tap]) -> list[RemovableHandle]:
    return [tap.handle for tap in taps.values() if tap.handle is not None]


def _keep_returned(taps: Iterable[_Tap], output: Any) -> None:
    """Give what a call returned to the taps that wait for it."""
    for tap in taps:
        if tap.handle is None:
            tap.keep(output)


class _Tap:
    """Keeps the map, and its place in the autograd graph, that a layer name means: by a hook on a module, or of what is
    given to :meth:`keep`.

    ``awaited`` holds the names of all layers that a pass is run for: it ends when none of them is left.
    """

    def __init__(
        self, text: str, target: tuple[LayerName, nn.Module | None], layout: Layout | None, awaited: set[str] | None
    ) -> None:
        self.layer, module = target
        self._text, self._layout, self._awaited = text, layout, awaited
        self._calls, self._shape = 0, tuple[int, ...]()
        #: Whether gradients begin here, as at what token ids are embedded in.
        self.is_leaf = False
        self._found: tuple[Tensor, Reference] | None = None
        self.handle: RemovableHandle | None = None
        if module is not None:
            self.handle = (
                module.register_forward_pre_hook(self._before)
                if self.layer.is_input
                else module.register_forward_hook(lambda _module, _args, output: self.keep(output))
            )

    def _before(self, _module: nn.Module, args: tuple[Any, ...]) -> Any:
        kept = self.keep(args[0] if args else None)
        return None if kept is None else (kept, *args[1:])

    def keep(self, value: Any) -> Any:
        """Take the tensor that is meant out of what a module, or the model, gave or was given; give what stands in its
        place, or None."""
        self._calls += 1
        tensor = pick(value, self.layer, self._text)
        self._shape = tuple(tensor.shape)
        if self._layout is None:
            return None
        if self.is_leaf:
            value = replaced(value, self.layer, self._text, lambda found: found.detach().requires_grad_().clone())
            tensor = pick(value, self.layer, self._text)
        # The edge is taken now: an in-place operation later on would make the tensor object stand for its own result.
        edge = get_gradient_edge(tensor) if tensor.requires_grad else tensor
        reference = Reference(edge=edge, layout=self._layout, shape=self._shape)
        self._found = self._layout.to_map(tensor), reference
        if self._awaited is not None:
            self._awaited.discard(self._text)
            if not self._awaited:
                raise _Reached
        return value if self.is_leaf else None

    def found(self, spec: str) -> tuple[Tensor, Reference]:
        """Return the map, and the reference for gradients.

        Raises:
            MeasurementError: the module did not run once, or gave no map.
        """
        if self._calls == 0:
            raise MeasurementError(f"{self._text!r} of {spec} does not run in a forward pass; choose another layer")
        if self._calls > 1:
            raise MeasurementError(
                f"{self._text!r} of {spec} runs {self._calls} times per forward pass and has as many outputs; choose a"
                " layer around it"
            )
        if self._found is None:
            raise MeasurementError(
                f"{self._text!r} gives a tensor of shape {self._shape}, which is no spatial map; choose another layer"
            )
        return self._found

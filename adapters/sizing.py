"""The input size of a model that does not state one: seen by running it without numbers, before anything is measured."""

from __future__ import annotations

from dataclasses import replace

from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.preprocess import InputConfig
from erfscope.errors import ErfscopeError
from erfscope.failures.plain import understand
from erfscope.failures.trial import candidates, failure_at, first_convolution, order_that_runs, size_that_runs
from erfscope.geometry.input_size import EverySide, size_words


def sized(adapter: ModuleAdapter, config: InputConfig, asked: tuple[int, ...] | None) -> InputConfig:
    """What a model expects of an image, with the number of axes that it takes.

    A model of clips or volumes has no size that could be assumed. One number means a side on every axis, and a model without a
    convolution may take one axis, as models of sequences do, or two: the pass that it takes decides. Where it takes neither, (64,) stays
    one axis and 64 a square, so that its error is about what was asked for.

    Args:
        adapter: The model, set up for ``config``.
        config: What it expects, as far as its configuration and its first convolution say.
        asked: The size asked for.

    Raises:
        ErfscopeError: no size was asked for, and its first convolution has three axes; the text names a size that it takes.
    """
    first = first_convolution(adapter.module)
    if asked is None:
        if "size" in config.assumed and first is not None and len(first.kernel_size) == 3:
            _refuse_unsized(adapter, config)
        return config
    if len(asked) != 1 or first is not None or getattr(adapter.module, "pretrained_cfg", None):
        return config
    line, square = replace(config, size=tuple(asked)), replace(config, size=tuple(asked) * 2)
    preferred, other = (square, line) if isinstance(asked, EverySide) else (line, square)
    if failure_at(adapter, preferred.size, numbers=True) is None or failure_at(adapter, other.size, numbers=True) is not None:
        return preferred
    return other


def _refuse_unsized(adapter: ModuleAdapter, config: InputConfig) -> None:
    """Refuse to assume an image for a model whose first convolution wants three axes, unless its forward makes them of an image."""
    error = failure_at(adapter, config.size)
    if error is None or understand(error).needs_numbers:
        return
    likely = candidates(adapter.module, config.size)
    found = size_that_runs(adapter)
    ordered = None if found else order_that_runs(adapter, likely, [config.channels])
    offer = f"it runs at {size_words(found)}" if found else f"such as {size_words(likely[0])}"
    if ordered is not None:
        offer = f"from Python, erfscope.wrap(model, forward=lambda m, x: m({ordered[0]}), input_size={ordered[1]})"
    raise ErfscopeError(
        f"states no input size, and its first convolution takes three axes (frames or slices, height, width): name one; {offer}",
        model=adapter.spec,
    ) from error

"""A failure of a model as one error that names it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from erfscope.adapter import Adapter
from erfscope.environment import ran_out
from erfscope.errors import EnvironmentFailure, ErfscopeError, MeasurementError
from erfscope.failures.plain import plain_line, raised_at, telling
from erfscope.failures.remedy import remedy


def model_failed(label: str, adapter: Adapter, error: BaseException) -> MeasurementError:
    """One line for a model whose forward pass fails."""
    size = "x".join(str(side) for side in adapter.preprocess.size)
    if ran_out(error):
        return EnvironmentFailure(
            f"does not fit into memory with one image of {size}: {plain_line(error)}; use a smaller --input-size", model=label
        )
    hint = remedy(adapter, error)
    text = f"fails on an input of {adapter.preprocess.channels} channels at {size}: {plain_line(error)}"
    return MeasurementError(f"{text}; {hint}" if hint else text, model=label)


@contextlib.contextmanager
def blaming(label: str, adapter: Adapter) -> Iterator[None]:
    """Within it what a model raises becomes an error that names it."""
    try:
        yield
    except ErfscopeError:
        raise
    except Exception as error:  # anything a model may raise
        raise model_failed(label, adapter, error) from error


def failure_of_two_passes(pair: ErfscopeError, one: ErfscopeError) -> ErfscopeError:
    """Of what was raised with two images and then with one, what says more; at the same line that with one, which holds its sizes."""
    first, again = pair.__cause__ or pair, one.__cause__ or one
    return one if raised_at(first) == raised_at(again) or telling(first, again) is again else pair

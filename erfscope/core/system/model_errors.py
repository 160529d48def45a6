"""Errors of a model in one line, with its own exception, its input and a hint."""

from __future__ import annotations

import contextlib
import errno
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from erfscope.core.system.environment import ran_out
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.input_size import size_words
from erfscope.core.values.names import input_name
from erfscope.core.values.unit import size_text

if TYPE_CHECKING:
    from erfscope.core.values.model_facts import GivenModel

#: Longest text of an exception that is kept, in characters.
LONGEST = 200

#: The system's error numbers for lack of space, memory or handles, and for a device or a network that fails.
_OF_SYSTEM = {
    *(errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.ENXIO, errno.ENODEV),
    *(errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOLCK),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH),
}

#: Text that PyTorch adds for its own developers.
_NOISE = re.compile(r"\[enforce fail at [^\]]*\] [^.]*\. |\s*\(Triggered internally at .*|\s*Exception raised from .*")

#: The hint for models of another call, for the names of its parameters.
_WRAP = (
    "wrap it with the call that it wants: erfscope.wrap(model, example_inputs=(...)), an example of each of ARGUMENTS,"
    " or erfscope.wrap(model, forward=lambda m, x: m(...))"
)

#: The hint for models of sound that have no channel axis.
WITHOUT_CHANNELS = (
    "if the model takes (B, T), without a channel axis: erfscope.wrap(model, forward=lambda m, x: m(x[:, 0]),"
    " in_chans=1, input_size=(T,))"
)

#: Pattern of an error -> hint, the first match: CHANNELS is the number of channels of the input, FORWARD the name of
#: the model's forward, {0} the last group.
_HINTS = (
    (
        r"fork-based multiprocessing",
        "this process was forked from one that has computed gradients: start it by spawn, or fork earlier",
    ),
    (
        r"to have (\d+) channels, but got CHANNELS channels|should contain CHANNELS elements not (\d+)",
        "it takes {0} channels: in_chans={0} (--in-chans {0})",
    ),
    (r'missing the required "forward" function', f"give the part of it that computes, model.PART, or {_WRAP}"),
    (r"(?i:you (?:have to|must) specify)|'(?:Tensor|NoneType)'|\(got str\)|too many indices|values to unpack", _WRAP),
    (r"scalar types: Long, Int|used as indices must be long", f"it takes integer ids, which have no gradient; {_WRAP}"),
    (r"(?i:\bmeta\b)", "build it outside torch.device('meta'), and make its own tensors on the device of its input"),
    (r"same device|expected device", "move the model to one device, and register its own tensors as buffers"),
    (
        r"same dtype|should be the same|scalar type|not implemented for '",
        "give its weights and tensors one dtype: dtype= (--dtype)",
    ),
    (
        r"cannot be multiplied|must match the size|invalid for input of size|size is too small|doesn't match model"
        r"|(?i:\b(?:image|input|kernel|padding) size|\b(?:height|width)s?\b)",
        "try another input_size= (--input-size)",
    ),
)


#: Words of hints that example inputs leave no room for.
_OF_ONE_INPUT = ("input_size", "in_chans", "--dtype", "erfscope.wrap(")


class ModelExitError(RuntimeError):
    """The code of a model called ``sys.exit``."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception with its type; without the type for a RuntimeError, and if space or
    a device has failed."""
    if isinstance(error, OSError) and is_passing(error) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    text = " ".join(_NOISE.sub("", str(error)).strip().partition("\n")[0].split()).removesuffix(".")
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 3]}..."
    if text and type(error) in (RuntimeError, ModelExitError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def model_failed(label: str, adapter: GivenModel, error: BaseException) -> MeasurementError:
    """Return the error, of one line, for a model whose pass raised ``error`` on an input of the adapter's size."""
    size = size_text(adapter.preprocess.size)
    if ran_out(error):
        return MeasurementError(
            f"does not fit into memory with one image of {size}: {first_line(error)}; use a smaller --input-size",
            model=label,
        )
    hint = _hint(adapter, str(error))
    passed: Mapping[str, str] = getattr(adapter, "passed", {})
    if (passed or adapter.preprocess.parts) and (not hint or any(word in hint for word in _OF_ONE_INPUT)):
        as_given = ", ".join(f"{input_name(name)}, {what}" for name, what in passed.items())
        hint = "look at the example inputs" + (f"; passed through as given: {as_given}" if as_given else "")
    if "axes" in adapter.preprocess.assumed and adapter.preprocess.channels == 3 and not hint:
        hint = "if it takes (B, T, C, H, W), frames before channels: axes='btchw' (--axes btchw)"
    if adapter.preprocess.with_channels is not None and not hint and re.search("channels|size|shape", str(error)):
        guess = f"its {adapter.preprocess.channels} channels are a guess, by its first convolution if it has one"
        hint = f"{guess}: in_chans= (--in-chans) gives others"
    text = f"fails on {_inputs_text(adapter)}: {first_line(error)}"
    return MeasurementError(f"{text}; {hint}" if hint else text, model=label)


def _inputs_text(adapter: GivenModel) -> str:
    """What a model is called on."""
    own = adapter.preprocess
    parts = {f"{input_name(name)} of": part for name, part in own.parts.items()} or {"an input of": own}
    return ", ".join(f"{name} {part.channels} channels at {size_text(part.size)}" for name, part in parts.items())


def _hint(adapter: GivenModel, text: str) -> str:
    channels, forward = str(adapter.preprocess.channels), re.escape(type(adapter.module).forward.__qualname__)
    arguments = _arguments(adapter)
    if found := re.search(rf"(?<!\w){forward}\(\) missing \d+ required [^:]*: (.*)", text):
        needed = [*dict.fromkeys((*arguments[:1], *re.findall(r"'(\w+)'", found[1])))]
        call = f"erfscope.wrap(model, example_inputs=({', '.join(needed)}))"
        if "keyword-only" in found[0]:
            call = f"erfscope.wrap(model, inputs={{{', '.join(f'{name!r}: {name}' for name in needed)}}})"
        return f"give an example of each: {call}; for a command, name FILE.py:FUNCTION that returns that"
    if sides := _size_of_positions(adapter, text):
        words = size_words(sides) if len(set(sides)) > 1 else f"input_size={sides[0]} (--input-size {sides[0]})"
        return f"its positions are those of {size_text(sides)}: {words}"
    for pattern, hint in _HINTS:
        if found := re.search(pattern.replace("CHANNELS", channels).replace("FORWARD", forward), text):
            return hint.format(found[found.lastindex or 0]).replace("ARGUMENTS", ", ".join(arguments[:6]))
    return WITHOUT_CHANNELS if channels == "1" and len(adapter.preprocess.size) == 1 else ""


def _arguments(adapter: GivenModel) -> list[str]:
    """The parameters of a model's forward."""
    signature = inspect.signature(type(adapter.module).forward)
    return list(signature.parameters)[1:] or ["its arguments"]


def _size_of_positions(adapter: GivenModel, text: str) -> tuple[int, ...] | None:
    """The input whose patches are as many as a model has positions, by its error on another; None where that is not
    known."""
    size = adapter.preprocess.size
    found = re.search(r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at .*dimension (\d+)", text)
    if found and len(size) == 2:
        given, wanted, dim = map(int, found.groups())
        return _size_of_table(adapter, given, wanted, dim) or _size_of_tokens(size, given, wanted)
    found = re.search(r"(?i)expect\w*\s(?:\D*\s)?(\d+) (?:\w+ )?(?:tokens|patches)\b\D*(\d+)?", text)
    return _size_of_tokens(size, int(found[2]), int(found[1])) if found and found[2] else None


def _size_of_table(adapter: GivenModel, given: int, wanted: int, dim: int) -> tuple[int, ...] | None:
    """The same of a model whose table of positions is a grid, (1, C, H, W) or (1, H, W, C).

    Args:
        adapter: The model with its input, (H, W).
        given: Patches of the input along one axis.
        wanted: Positions along it.
        dim: The last dimension along which the two differ.
    """
    module, size = adapter.module, adapter.preprocess.size
    for table in (*module.parameters(), *module.buffers()):
        for first in (2, 1):
            grid, axis = tuple(table.shape[first : first + 2]), dim - first
            if table.ndim != 4 or len(table) != 1 or axis not in (0, 1) or grid[axis] != wanted:
                continue
            patch, rest = divmod(size[axis], given)
            # The last dimension that differs was named.
            if rest == 0 and patch > 1 and (axis == 1 or grid[1] * patch == size[1]):
                return tuple(side * patch for side in grid)
    return None


def _size_of_tokens(size: Sequence[int], given: int, wanted: int) -> tuple[int, ...] | None:
    """The square input with so many patches as are wanted, where as many as were given are those of this square input,
    with or without a class token; None where they are not."""
    if len(set(size)) != 1 or len(size) != 2:
        return None
    for tokens in (0, 1):
        rows, wanted_rows = math.isqrt(max(given - tokens, 0)), math.isqrt(max(wanted - tokens, 0))
        if rows and (rows**2, wanted_rows**2) == (given - tokens, wanted - tokens) and size[0] % rows == 0:
            return (size[0] // rows * wanted_rows,) * 2
    return None


@contextlib.contextmanager
def wrap_model_errors(label: str, adapter: GivenModel) -> Iterator[None]:
    """Turn exceptions of a model into errors that name it."""
    try:
        yield
    except ErfscopeError:
        raise
    except Exception as error:  # anything a model may raise
        raise model_failed(label, adapter, error) from error


@contextlib.contextmanager
def contain_exits() -> Iterator[None]:
    """Turn ``sys.exit`` of other people's code into an error like any other.

    Raises:
        ModelExitError: the code called ``sys.exit``.
    """
    try:
        yield
    except SystemExit as error:
        raise ModelExitError(
            f"its code called sys.exit({error.code!r}), so that there is no result; take that call out"
        ) from error


@contextlib.contextmanager
def errors_as_one_line(what: str, options: Mapping[str, object] | None = None, *, model: str = "") -> Iterator[None]:
    """Turn every exception inside the block into an error of one line; ``-v`` shows the original.

    Args:
        what: The action that failed, which begins the line.
        options: Options of the action, listed after it.
        model: The label or spec of the model, if it is to begin the line.

    Raises:
        ErfscopeError: the block raised an exception or called ``sys.exit``. Ctrl-C is not caught.
    """
    try:
        with contain_exits():
            yield
    except ErfscopeError:
        raise
    except Exception as error:
        listed = f" with {', '.join(f'{key}={value!r}' for key, value in options.items())}" if options else ""
        raise ErfscopeError(f"{what}{listed}: {first_line(error)}", model=model) from error


def is_passing(error: BaseException) -> bool:
    """Return whether the system reports a failure of space, memory, a device or a connection."""
    return isinstance(error, OSError) and (
        error.errno in _OF_SYSTEM or isinstance(error, ConnectionError | TimeoutError)
    )

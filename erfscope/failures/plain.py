"""One plain line for whatever a model's forward pass raises: the model's own words, and PyTorch's internal ones put into plain language."""

from __future__ import annotations

import dis
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass
from traceback import walk_tb
from types import FrameType
from typing import Literal

from erfscope.failures.cause import is_passing

Kind = Literal[
    "numbers",  # its path or its shapes depend on the numbers
    "operation",  # an operation that PyTorch cannot run on the meta device
    "devices",  # tensors on several devices
    "dtype",  # an operation that does not exist for a dtype, or a mixture of dtypes
    "arguments",  # an argument is missing
    "mapping",  # a dictionary, or an object with attributes, is wanted
    "several",  # a list or tuple is wanted
    "ids",  # integer indices are wanted
    "channels",
    "axes",  # another number of axes is wanted
    "size",
    "other",
]

#: How much of a text is kept.
LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a model's exception says, and of what kind it is."""

    text: str
    kind: Kind

    @property
    def needs_numbers(self) -> bool:
        """Whether the model may well run on tensors with numbers."""
        return self.kind in ("numbers", "operation", "devices")


def understand(error: BaseException) -> Failure:
    """What an exception of a model's forward pass says, in plain words.

    The model's own words stay as they are, and so do PyTorch's about shapes, dtypes and arguments. Its internal texts (kernels of the
    meta device, dispatch keys, frames of C++) are translated.

    Args:
        error: Whatever was raised; of an exception that stands for another, that one may be given.
    """
    text = _error_text(error)
    for rule in _RULES:
        if found := rule.pattern.search(text):
            shown = text if rule.plain is None else rule.plain if isinstance(rule.plain, str) else rule.plain(found)
            return Failure(text=_cut(_first_line(shown)), kind=_kind_of(error, rule.kind))
    if isinstance(error, AttributeError | KeyError | IndexError) and _is_about_a_tensor(error):
        return Failure(text=_cut(_first_line(text)), kind="mapping")
    return Failure(text=_cut(_first_line(text)), kind="other")


def plain_line(error: BaseException) -> str:
    """The text of :func:`understand`: one line without PyTorch's internal words."""
    return understand(error).text


def telling(first: BaseException, second: BaseException) -> BaseException:
    """Of what a model raised without numbers and then with some, what says more about it.

    Its own words, raised in Python, count at the first time: a later failure may be due to the first. PyTorch's complaints are clearer with
    numbers, where they do not come from running without any.
    """
    if has_own_words(first) or (understand(second).needs_numbers and not understand(first).needs_numbers):
        return first
    return second


def has_own_words(error: BaseException) -> bool:
    """Whether Python code outside PyTorch raised an exception itself, so that its text is about this model."""
    return was_raised_in_python(error) and _package([frame for frame, _ in walk_tb(error.__traceback__)][-1]) not in _NOT_ITS_OWN


def was_raised_in_python(error: BaseException) -> bool:
    """Whether a ``raise`` statement raised an exception, rather than Python or a library's compiled code."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISES


def raised_at(error: BaseException) -> tuple[str, int] | None:
    """File and line that an exception came from; None of one that was never raised."""
    lines = [(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__)]
    return lines[-1] if lines else None


def last_frame(error: BaseException) -> FrameType | None:
    """The innermost frame that an exception came from, with erfscope's recorder left out, through which a model's operations go."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if _package(frame) != "erfscope"]
    return frames[-1] if frames else None


def source_line(error: BaseException) -> str:
    """The line of Python outside PyTorch that raised, or that called what did; "" where its source is not to be had."""
    lines = [(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__) if _package(frame) not in _NOT_ITS_OWN]
    return linecache.getline(*lines[-1]).strip() if lines else ""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    kind: Kind
    #: None where the text is plain already; else what it means, in words or made of what was found.
    plain: str | Callable[[re.Match[str]], str] | None = None


def _rule(pattern: str, kind: Kind, plain: str | Callable[[re.Match[str]], str] | None = None) -> _Rule:
    return _Rule(re.compile(pattern, re.DOTALL), kind, plain)


def _operation(found: re.Match[str]) -> str:
    return f"its operation {_bare(found[1])} cannot be run on the meta device"


def _bare(name: str) -> str:
    """Name of an operation without its library."""
    return name.rpartition("::")[2]


def _product(found: re.Match[str]) -> str:
    sides = ["x".join(part.replace(" ", "").split(",")) for part in found.groups()]
    return f"mat1 and mat2 shapes cannot be multiplied ({sides[0]} and {sides[1]})"


_BY_NUMBERS = "its path or its shapes depend on the values of tensors"
_OWN_DEVICE = "it makes or keeps a tensor on a device of its own, outside its parameters and buffers"

#: In this order: of a text that fits several, the first counts.
_RULES = (
    # Without numbers
    _rule(r"item\(\) cannot be called on meta|Cannot copy out of meta tensor|meta (device type )?tensor to numpy", "numbers", _BY_NUMBERS),
    _rule(
        r"register_meta function for torch\.\w+|repeat_interleave a meta tensor|data-dependent|GuardOnDataDependent", "numbers", _BY_NUMBERS
    ),
    _rule(r"aten::_local_scalar_dense|aten::equal\b|aten::_?unique\w*|aten::nonzero|aten::bincount", "numbers", _BY_NUMBERS),
    _rule(r"(?:[Tt]ensors? on|on the expected) device \S*(?:meta|cpu)\b.*(?:meta|cpu)", "devices", _OWN_DEVICE),
    _rule(r"(?:all tensors to be on the same device|[Dd]evice [Pp]ropagation).*\bmeta\b", "devices", _OWN_DEVICE),
    _rule(
        r"(\w+::\w+)[^:]*: (?:attempted to run this operator with Meta tensors|You're trying to run this operator with meta)",
        "operation",
        _operation,
    ),
    _rule(r"Could not run '(\w+::\w+)[^']*' with arguments from the 'Meta' backend", "operation", _operation),
    # Devices and dtypes
    _rule(
        r"Could not run '(\w+::\w+)[^']*' with arguments from the '(\w+)' backend",
        "devices",
        lambda m: f"its operation {_bare(m[1])} does not exist for {m[2]} tensors",
    ),
    _rule(
        r"all tensors to be on the same device.*?at least two devices, (\S+) and (\S+?)[!,. ]",
        "devices",
        lambda m: f"its tensors lie on several devices, {m[1]} and {m[2]}",
    ),
    _rule(r"all tensors to be on the same device|is not on the expected device", "devices", "its tensors lie on several devices"),
    _rule(
        r'"(\w+)" not implemented for \'(\w+)\'',
        "dtype",
        lambda m: f"its operation {_kernel(m[1])} does not exist for numbers of type {m[2]}",
    ),
    _rule(r"must have the same dtype|should be the same|expected scalar type|same dtype", "dtype"),
    # Inputs
    _rule(r"missing \d+ required (?:positional|keyword-only) arguments?: ", "arguments"),
    _rule(r"Expected tensor for argument #\d+ 'indices'.*scalar types: Long, Int", "ids", "it looks up integer ids, and was given numbers"),
    _rule(r"tensors used as indices must be long|only integers, slices.*are valid indices", "ids"),
    _rule(r"not enough values to unpack|too many values to unpack|cannot unpack non-iterable", "several"),
    _rule(r"'Tensor' object has no attribute '\w+'|argument of type 'Tensor'|'Tensor' object is not a mapping", "mapping"),
    # Shapes
    _rule(r"expected input\[[\d, ]+\] to have \d+ channels", "channels"),
    _rule(r"Invalid channel dimensions", "channels", "the channels, or the axes, of its input are others than a convolution takes"),
    _rule(r"running_mean should contain \d+ elements|channels in input to be divisible by num_groups", "channels"),
    _rule(r"\(unbatched\) or \d+D \(batched\) input|expected \d+D (?:or \d+D )?input \(got \d+D input\)", "axes"),
    _rule(r"a and b must have same reduction dim, but got \[([\d, ]+)\] X \[([\d, ]+)\]", "size", _product),
    _rule(
        r"Attempting to broadcast a dimension of length \d+ at -?\d+! .*?torch\.Size\(\[([\d, ]*)\]\).*?broadcastable to \[([\d, ]*)\]",
        "size",
        lambda m: f"tensors of shapes ({m[1]}) and ({m[2]}) do not fit together",
    ),
    _rule(r"shapes cannot be multiplied|must match|is invalid for input of size|actual input size|[Oo]utput size is too small", "size"),
    _rule(r"doesn't match model|expected input with shape|input\.size\(-1\) must be equal|Padding size should be less", "size"),
    # What says nothing to a reader
    _rule(r"INTERNAL ASSERT FAILED", "other", "an internal check of PyTorch failed"),
    _rule(r"(CUDA error|cuDNN error|CUBLAS error|HIP error|MPS [^:]*error): ([^\n.]+)", "other", lambda m: f"{m[1]}: {m[2]}"),
    _rule(r"(?:aten|prims|torchvision|torch)(?:::|\.)(\w+)\S* .*(?:[Mm]eta|[Ff]ake)", "operation", _operation),
)

_RAISES = dis.opmap["RAISE_VARARGS"]
#: Packages whose code stands around a model's.
_NOT_ITS_OWN = ("torch", "erfscope")
#: What TorchScript puts around the error that its code raises.
_IN_SCRIPT = re.compile(r"Traceback of TorchScript.*\n\s*(?:\w+\.)*\w*(?:Error|Exception): ([^\n]+)", re.DOTALL)
#: Ends of sentences that mean something to PyTorch's developers only.
_TAILS = re.compile(
    r"\s*(?:\(Triggered internally at .*|Exception raised from .*|C\+\+ CapturedTraceback.*|Hint: enable anomaly detection.*"
    r"|\[?(?:DISPATCH|BackendSelect|CPU|Meta)\w*: registered at .*|\(while checking arguments for \w+\)"
    r"|\[enforce fail at [^\]]*\] ?[^.]*\. "
    r"|CUDA kernel errors might be .*|Compile with `?TORCH_USE_CUDA_DSA.*)",
    re.DOTALL,
)


def _package(frame: FrameType) -> str:
    """The package whose code a frame runs."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _kernel(name: str) -> str:
    """Name of an operation without the words for its devices."""
    return re.sub(r"(_?(cpu|cuda|mps|out|impl|kernel|forward))+$", "", name) or name


def _error_text(error: BaseException) -> str:
    """What an exception says, with its type where the text alone says nothing, and without what is for PyTorch's developers."""
    if is_short(error):
        return _of_environment(error)
    text = _TAILS.sub("", str(error)).strip()
    if inner := _IN_SCRIPT.search(text):
        text = inner[1]
    if not text:
        line = source_line(error)
        return f"{type(error).__name__} at `{line}`" if line else type(error).__name__
    return f"{type(error).__name__}: {text}" if isinstance(error, LookupError) and not isinstance(error, IndexError) else text


def is_short(error: BaseException) -> bool:
    """Whether space, memory or a device has failed, of which the system's own words say all."""
    return isinstance(error, MemoryError) or is_passing(error)


def _of_environment(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return str(error).strip() or ("there is not enough memory" if isinstance(error, MemoryError) else "a connection or a device has failed")


def _first_line(text: str) -> str:
    return " ".join(text.strip().splitlines()[0].split())


def _cut(text: str) -> str:
    return text.removesuffix(".") if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _kind_of(error: BaseException, kind: Kind) -> Kind:
    """The kind of a failure whose text fits several: unpacking a shape wants another number of axes, not another number of tensors."""
    line = source_line(error)
    if kind == "several" and re.search(r"\bshape\b|\bsize\(", line):
        return "axes"
    # A tensor that is asked for an entry by name
    return "mapping" if kind == "ids" and re.search(r"\[\s*['\"]", line) else kind


def _is_about_a_tensor(error: BaseException) -> bool:
    """Whether the line that failed asks something for an entry by its name, which a tensor does not have."""
    return isinstance(error, IndexError) and re.search(r"\w\[\s*['\"]\w+['\"]\s*\]", source_line(error)) is not None

"""Exported programs from untrusted files: a copy that holds nothing but known operations and plain tensors is what torch gets to read.

``torch.export.load`` itself runs code that a file brings, in five ways: it unpickles objects, evaluates symbolic expressions, looks up
operators by dotted name, imports modules named in the layout of arguments, and loads compiled libraries; and names of nodes end up in
Python source. So nothing of the file is handed over but what is understood here.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from erfscope.adapters.foreign import first_line
from erfscope.errors import ErfscopeError

#: What an operator may be: of torch's dispatcher, or arithmetic on sizes.
_OPERATION = re.compile(r"torch\.ops\.(aten|prims|torchvision|quantized_decomposed)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)")
_BLOCKS = {"torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast"}
_ARITHMETIC = {f"_operator.{name}" for name in ("getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "and_", "or_", "not_")}
_ARITHMETIC |= {f"_operator.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_ARITHMETIC |= {f"math.{name}" for name in ("ceil", "floor", "trunc", "sqrt")}
_ARITHMETIC |= {f"torch.sym_{name}" for name in ("max", "min", "not", "ite", "float", "int", "sum")}
#: Of the dispatcher's operations these reach outside: files, and the terminal.
_OUTSIDE = {"from_file", "_print"}

#: Functions in a symbolic size, as torch writes them.
_FUNCTIONS = {"Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Not"}
_FUNCTIONS |= {
    "And",
    "Or",
    "FloorDiv",
    "ModularIndexing",
    "Where",
    "PythonMod",
    "CleanDiv",
    "CeilDiv",
    "CeilToInt",
    "FloorToInt",
    "ToFloat",
}
_FUNCTIONS |= {"Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan", "IntTrueDiv", "TruncToInt"}
_SYNTAX = (
    *(ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WORDS = re.compile(r"[\w.,;:@+\[\]()' <>-]*", re.ASCII)
_CONTAINERS = {None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
_RECORD = re.compile(r"data/(weights|constants)/(weight|tensor|constant)_\d+")
_MODEL = "models/model.json"
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
#: What of a node's metadata is kept: which module it came from.
_PATH = "nn_module_stack"
_TRUST = "if you trust whoever made the file, add --unsafe-load"


class _Unsafe(Exception):
    """Why a file is not taken as it is."""


def harmless_copy(path: Path) -> io.BytesIO:
    """The exported program in a file, without whatever could run code: for ``torch.export.load``.

    Example inputs, guards, stack traces and extra files are left out.

    Args:
        path: A .pt2 file that ``torch.export.save`` wrote, with torch 2.8 or later.

    Returns:
        A .pt2 file in memory.

    Raises:
        ErfscopeError: the file cannot be read, is of another kind, or holds more than operations and tensors; the text says what.
    """
    try:
        from torch.export.pt2_archive._package import PT2ArchiveReader, PT2ArchiveWriter
    except ImportError as error:
        raise ErfscopeError(f"{str(path)!r} is an exported program, which takes torch 2.8 or later, not {torch.__version__}") from error
    try:
        with PT2ArchiveReader(str(path)) as reader:
            kept = _records(reader, path.stat().st_size)
        copy = io.BytesIO()
        with PT2ArchiveWriter(copy) as writer:
            for name, content in kept.items():
                writer.write_bytes(name, content)
    except _Unsafe as error:
        raise ErfscopeError(f"{str(path)!r} holds more than operations and tensors: {error}; {_TRUST}") from error
    except Exception as error:  # a damaged file may fail in any way
        found = f"{str(path)!r} is no exported program that can be read ({first_line(error)[:120]})"
        raise ErfscopeError(f"{found}; write it with torch.export.save(program, FILE)") from error
    copy.seek(0)
    return copy


def _records(reader: Any, size: int) -> dict[str, bytes]:
    """What of an archive is kept, by name."""
    names: list[str] = reader.get_file_names()
    if sum(reader.archive_file.get_record_size(name) for name in names) > size:
        raise _Unsafe("it unpacks to more than its own size, and torch writes such files unpacked")
    programs = [name for name in names if name.startswith("models/")]
    if programs != [_MODEL]:
        raise _Unsafe(f"it holds {len(programs)} programs, {', '.join(programs[:3]) or 'none'}, where torch.export.save writes one")
    kept = {_MODEL: json.dumps(_program(json.loads(reader.read_bytes(_MODEL)))).encode()}
    for name in _CONFIGS:
        config = json.loads(reader.read_bytes(name))["config"]
        for key, entry in config.items():
            record = f"{name.rpartition('/')[0]}/{entry['path_name']}"
            _plain_tensor(key, entry, record)
            kept.setdefault(record, reader.read_bytes(record))
            _check_bytes(entry, len(kept[record]), key)
        kept[name] = json.dumps({"config": config}).encode()
    # Empty: torch reads an example input by unpickling it.
    kept["data/sample_inputs/model.pt"] = b""
    if "byteorder" in names and reader.read_bytes("byteorder").decode() != sys.byteorder:
        raise ValueError("it was written on a machine of another byte order")
    return kept


def _plain_tensor(key: str, entry: dict[str, Any], record: str) -> None:
    """Refuse a weight that is not a tensor's plain bytes."""
    if entry["use_pickle"] or entry["tensor_meta"] is None or not _RECORD.fullmatch(record):
        raise _Unsafe(f"{_short(key)} is a pickled object")
    _walk("", {key: entry["tensor_meta"]})


def _check_bytes(entry: dict[str, Any], count: int, key: str) -> None:
    """See that a tensor without bytes has no elements: torch would make room for as many as it claims."""
    sizes = [side["as_int"] for side in entry["tensor_meta"]["sizes"]]
    if count == 0 and math.prod(sizes) != 0:
        raise _Unsafe(f"{_short(key)} claims {'x'.join(map(str, sizes))} numbers and has none")


def _program(document: dict[str, Any]) -> dict[str, Any]:
    """The program's own JSON, checked, without guards and stack traces."""
    module = document["graph_module"]
    if module["treespec_namedtuple_fields"]:
        raise _Unsafe("its arguments are named tuples")
    kept: dict[str, Any] = _walk("", {**document, "guards_code": []})
    return kept


def _walk(key: str, value: Any) -> Any:
    """A copy of a JSON value in which every text has been checked by what it is for, named by ``key``."""
    if isinstance(value, list):
        return [_walk(key, item) for item in value]
    if isinstance(value, dict):
        if key == "metadata":
            value = {name: text for name, text in value.items() if name == _PATH}
        if key == "custom_obj_values" and value:
            raise _Unsafe("it brings objects of its own")
        return {_checked(_WORDS, name): _walk(name, item) for name, item in value.items()}
    if isinstance(value, str):
        _CHECKS.get(key, _check_words)(value)
    return value


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise _Unsafe(f"{_short(text)} is no name")
    return text


def _check_words(text: str) -> None:
    _checked(_WORDS, text)


def _check_operation(text: str) -> None:
    """Refuse what is no operation on tensors or sizes."""
    found = _OPERATION.fullmatch(text)
    if text in _ARITHMETIC | _BLOCKS:
        return
    if found is not None and found[2] not in _OUTSIDE:
        namespace, name, overload = found.groups()
        if namespace == "torchvision":
            import torchvision  # noqa: F401  (registers them)
        packet = getattr(getattr(torch.ops, namespace), name, None)
        full = f"{namespace}::{name}{'' if overload == 'default' else f'.{overload}'}"
        # TorchScript has further functions in the same place, which write files among other things, but not in the dispatcher.
        if isinstance(getattr(packet, overload, None), torch._ops.OpOverload) and torch._C._dispatch_has_kernel(full):
            return
    raise _Unsafe(f"{_short(text)} is no operation of torch's own")


def _check_expression(text: str) -> None:
    """Refuse a size that is more than arithmetic: sympy evaluates it as Python."""
    try:
        tree = ast.parse(text, mode="eval") if len(text) <= 10_000 else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is None or not all(_is_arithmetic(node) for node in ast.walk(tree)):
        raise _Unsafe(f"the size {_short(text)} is no arithmetic")


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS:
            return False
        # A tower of powers would be computed before anybody could stop it.
        return node.func.id != "Pow" or (len(node.args) == 2 and not _is_number(node.args[0]) and _is_number(node.args[1], below=9))
    if isinstance(node, ast.Constant):
        is_name = isinstance(node.value, str) and _IDENTIFIER.fullmatch(node.value)
        return bool(is_name) or (isinstance(node.value, bool | int | float) and abs(node.value) < 2**64)
    return isinstance(node, _SYNTAX) and (not isinstance(node, ast.Name) or not node.id.startswith("_"))


def _is_number(node: ast.AST, below: float = math.inf) -> bool:
    """Whether an expression is a number, such as ``Integer(2)`` or ``-1``."""
    if any(isinstance(each, ast.Name) and each.id not in ("Integer", "Rational", "Float") for each in ast.walk(node)):
        return False
    values = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return all(isinstance(value, int | float) and abs(value) < below for value in values)


def _check_layout(text: str) -> None:
    """Refuse arguments that are held by anything but tuples, lists and dictionaries: torch would import it."""
    if not text:
        return
    stack = [json.loads(text)[1]]
    while stack:
        spec = stack.pop()
        context = json.loads(spec["context"]) if spec["context"] else None
        words = context if isinstance(context, list) else []
        if spec["type"] not in _CONTAINERS or not (context is None or all(isinstance(word, str | int) for word in words)):
            raise _Unsafe(f"arguments are held by {_short(str(spec['type']))}")
        if context is not None and not isinstance(context, list):
            raise _Unsafe(f"arguments are held by {_short(str(context))}")
        stack.extend(spec["children_spec"])


def _check_identifier(text: str) -> None:
    _checked(_IDENTIFIER, text)


def _refuse_object(text: str) -> None:
    raise _Unsafe(f"it brings an object of class {_short(text)}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


#: By the key that a text stands under.
_CHECKS: dict[str, Callable[[str], object]] = {
    "target": _check_operation,
    "as_operator": _check_operation,
    "expr_str": _check_expression,
    "in_spec": _check_layout,
    "out_spec": _check_layout,
    "name": _check_identifier,
    "as_name": _check_identifier,
    "forward_arg_names": _check_identifier,
    "class_fqn": _refuse_object,
    # Written into Python source as a literal.
    "as_string": len,
}

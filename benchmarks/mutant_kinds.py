"""Small faults in Python source: a sign, a bound by one, a dropped term, a swapped axis, an ignored option, ...

``KINDS`` names them; each takes a node of the syntax tree and returns faulty copies of it. Error messages, annotations
and decorators are left out.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
}
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
_EXTREMES = (("min", "max"), ("any", "all"), ("amin", "amax"), ("argmin", "argmax"), ("minimum", "maximum"))
EXTREMES = {name: other for pair in (*_EXTREMES, ("floor", "ceil")) for name, other in (pair, pair[::-1])}
#: Methods of arrays whose first argument is an axis.
OF_AN_AXIS = {"sum", "mean", "amax", "amin", "prod", "norm", "any", "all", "argmax", "argmin", "cumsum", "softmax",
              "flip", "unsqueeze", "squeeze", "flatten", "transpose", "size", "narrow", "select"}  # fmt: skip
#: Functions whose arguments may be exchanged, or have types of their own.
NOT_EXCHANGED = {"isinstance", "issubclass", "getattr", "hasattr", "setattr", "gcd", "lcm", "hypot", "isclose",
                 "allclose", "equal", "array_equal", *EXTREMES}  # fmt: skip
#: Calls that make text, or say something about types alone.
WORDS = ("Error", "Warning", "warn", "cast", "TypeVar")
#: Keywords that are words for readers, or that change nothing here.
LEFT_OUT_KEYWORDS = {"text", "advice", "hint", "help", "why", "stacklevel", "strict", "encoding", "daemon", "doc"}
LEFT_OUT_FIELDS = {"annotation", "returns", "decorator_list", "bases", "type", "type_comment", "type_params"}


def changed(node: Any, **fields: Any) -> Any:
    """Return a copy of a node with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def one_changed(node: Any, field: str, change: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield a copy of a node for each element of a field that ``change`` changes: it returns None for any other."""
    value = getattr(node, field)
    elements = value if isinstance(value, list) else [value]
    for index, element in enumerate(elements):
        new = None if element is None else change(element)
        if new is not None:
            others = [*elements[:index], new, *elements[index + 1 :]]
            yield changed(node, **{field: others if isinstance(value, list) else new})


def next_int(node: ast.AST) -> ast.AST | None:
    """An int constant, one further from 0."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            operand = next_int(node.operand)
            return operand and changed(node, operand=operand)
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return changed(node, value=value + 1)
    return None


def other_constant(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.Constant(value=bool(value)):
            return changed(node, value=not value)
        case ast.Constant(value=float(value)):
            return changed(node, value=10 * value or 1.0)
    return next_int(node)


def other_axis(node: ast.AST) -> ast.AST | None:
    """1 for 0, 0 for 1, 1 for 2, -2 for -1, -1 for -2."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return changed(node, operand=ast.Constant(value - 1 if value > 1 else 2))
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return changed(node, value=value - 1 if value else 1)
    return None


def negated(node: ast.expr) -> ast.expr:
    is_negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return node.operand if is_negation else ast.UnaryOp(ast.Not(), node)


def name_of(call: ast.AST) -> str:
    """The last part of the name of what is called."""
    function = getattr(call, "func", None)
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def operator(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield changed(node, op=OPERATORS[type(node.op)]())


def bound(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Slice():
            yield from one_changed(node, "lower", next_int)
            yield from one_changed(node, "upper", next_int)
        case ast.Call(func=ast.Name(id="range")):
            yield from one_changed(node, "args", next_int)
        case ast.Compare():
            yield from one_changed(node, "left", next_int)
            yield from one_changed(node, "comparators", next_int)
        case ast.Subscript(slice=ast.Tuple()):
            yield from (changed(node, slice=new) for new in one_changed(node.slice, "elts", next_int))
        case ast.Subscript():
            yield from one_changed(node, "slice", next_int)


def comparison(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        yield from one_changed(node, "ops", lambda op: COMPARISONS[type(op)]() if type(op) in COMPARISONS else None)


def condition(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If | ast.IfExp):
        yield from one_changed(node, "test", negated)
    elif isinstance(node, ast.comprehension):
        yield from one_changed(node, "ifs", negated)


def connective(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BoolOp):
        yield changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def term(node: ast.AST) -> Iterator[ast.AST]:
    """Without one term of a sum, a product or a condition."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult | ast.Sub):
        yield node.left
        yield ast.UnaryOp(ast.USub(), node.right) if isinstance(node.op, ast.Sub) else node.right
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            kept = node.values[:index] + node.values[index + 1 :]
            yield kept[0] if len(kept) == 1 else changed(node, values=kept)


def axes(node: ast.AST) -> Iterator[ast.AST]:
    """Two neighbours of a call or of a pair exchanged, or another axis."""
    match node:
        case ast.Call():
            if name_of(node) in OF_AN_AXIS and isinstance(node.func, ast.Attribute):
                yield from one_changed(changed(node, args=node.args[:1]), "args", other_axis)
            for index, word in enumerate(node.keywords):
                if word.arg in ("dim", "axis"):
                    for new in one_changed(word, "value", other_axis):
                        yield changed(node, keywords=[*node.keywords[:index], new, *node.keywords[index + 1 :]])
            exchanged = [] if name_of(node) in NOT_EXCHANGED else node.args
            for index in range(len(exchanged) - 1):
                pair = exchanged[index : index + 2]
                if not any(isinstance(each, ast.Starred) or _is_text(each) for each in pair):
                    yield changed(node, args=[*node.args[:index], *pair[::-1], *node.args[index + 2 :]])
        case ast.Tuple(ctx=ast.Load(), elts=[first, second]) if not _is_text(first):
            yield changed(node, elts=[second, first])


def branch(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If):
        yield changed(node, test=ast.Constant(False))


def default(node: ast.AST) -> Iterator[ast.AST]:
    """Another default of a parameter or a field, or another constant as the first value of a variable."""
    if isinstance(node, ast.arguments):
        yield from one_changed(node, "defaults", other_constant)
        yield from one_changed(node, "kw_defaults", other_constant)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        yield from one_changed(node, "value", other_constant)


def option(node: ast.AST) -> Iterator[ast.AST]:
    """Without one keyword of a call."""
    if isinstance(node, ast.Call):
        for word in node.keywords:
            if word.arg and word.arg not in LEFT_OUT_KEYWORDS:
                yield changed(node, keywords=[each for each in node.keywords if each is not word])


def statement(node: ast.AST) -> Iterator[ast.AST]:
    """Without an assignment ``+=``, a ``continue``, a call for its effect."""
    if isinstance(node, ast.AugAssign | ast.Continue) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield ast.Pass()


def extreme(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call) and name_of(node) in EXTREMES:
        field = "attr" if isinstance(node.func, ast.Attribute) else "id"
        yield changed(node, func=changed(node.func, **{field: EXTREMES[name_of(node)]}))


KINDS: dict[str, Callable[[ast.AST], Iterator[ast.AST]]] = {
    "operator": operator,
    "bound": bound,
    "comparison": comparison,
    "condition": condition,
    "connective": connective,
    "term": term,
    "axes": axes,
    "branch": branch,
    "default": default,
    "option": option,
    "statement": statement,
    "extreme": extreme,
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node in its tree: ``parent.field``, or ``parent.field[index]``."""

    parent: ast.AST
    field: str
    index: int
    node: ast.AST
    #: The function that must be entered to reach it; "" for what a module does when it is imported.
    function: str
    #: The innermost statement that it is in.
    statement: ast.stmt | None
    #: Of a function or a class, its qualified name.
    name: str

    def put(self, node: ast.AST) -> None:
        """Put a node here."""
        value = getattr(self.parent, self.field)
        if isinstance(value, list):
            value[self.index] = node
        else:
            setattr(self.parent, self.field, node)


def places(parent: ast.AST, scope: str = "", function: str = "", within: ast.stmt | None = None) -> Iterator[Place]:
    """Yield the nodes in which a fault is one of what is computed."""
    for field, value in ast.iter_fields(parent):
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or field in LEFT_OUT_FIELDS or _is_left_out(node):
                continue
            inner = node if isinstance(node, ast.stmt) else within
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            name = f"{scope}.{node.name}".strip(".") if is_function or isinstance(node, ast.ClassDef) else scope
            yield Place(
                parent=parent, field=field, index=index, node=node, function=function, statement=inner, name=name
            )
            yield from places(node, name, name if is_function else function, inner)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.BinOp(left=left, right=right):
            return _is_text(left) or _is_text(right)
        case ast.keyword(arg=name):
            return name in LEFT_OUT_KEYWORDS
    return name_of(node).endswith(WORDS)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One small fault of a file."""

    #: The same while the statement and its function are the same, wherever its lines are.
    id: str
    room: str
    file: str
    line: int
    kind: str
    function: str
    before: str
    after: str


def faulty_trees(source: str, file: str, room: str) -> Iterator[tuple[Fault, ast.Module]]:
    """Yield each fault of a source with the tree that has it, until the next is taken."""
    tree = ast.parse(source)
    times: dict[str, int] = {}
    for place in list(places(tree)):
        before = _head(place.statement)
        for kind, faulty in KINDS.items():
            for node in faulty(place.node):
                place.put(node)
                after = _head(node if place.node is place.statement else place.statement)
                name = "|".join((file, place.function, kind, before, after))
                times[name] = times.get(name, 0) + 1
                if before != after:
                    identity = hashlib.sha256(f"{name}|{times[name]}".encode()).hexdigest()[:12]
                    line = getattr(place.node, "lineno", getattr(place.statement, "lineno", 0))
                    fault = Fault(id=identity, room=room, file=file, line=line, kind=kind, function=place.function,
                                  before=before, after=after)  # fmt: skip
                    yield fault, tree
                place.put(place.node)


def _head(statement: ast.AST | None) -> str:
    """A statement's text on one line, of a compound one its first."""
    if statement is None:
        return ""
    body = {field: [] for field in ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list")
            if isinstance(getattr(statement, field, None), list)}  # fmt: skip
    return ast.unparse(changed(statement, **body)).strip().splitlines()[0]


def marked(source: str, file: str, mark: str) -> ast.Module:
    """Return a source's tree in which each function first calls ``mark`` with its name, ``file::function``."""
    tree = ast.parse(source)
    for place in list(places(tree)):
        if isinstance(place.node, ast.FunctionDef | ast.AsyncFunctionDef):
            call = ast.parse(f"{mark}({f'{file}::{place.name}'!r})").body[0]
            place.node.body.insert(ast.get_docstring(place.node, clean=False) is not None, call)
    return ast.fix_missing_locations(tree)

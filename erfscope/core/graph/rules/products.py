"""Products: linear layers, matrix products, attention."""

from __future__ import annotations

from typing import Any

from torch import fx

from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.rules.mixing import MASKED_SCORE
from erfscope.core.graph.rules.reading import Call, Dims, Edge, Shape, Whole, broadcast, is_tensor, rule

ATTENTION = "attention"
TOKEN_MIXING = "token mixing"


@rule("linear")
def linear(call: Call) -> list[Edge] | None:
    """``x @ weight.T + bias``: reads the last dimension in full."""
    x, last = call.tensor("input"), len(call.shape) - 1
    reads = (*range(last), Whole())
    more: list[tuple[Any, tuple[int | Whole, ...]]]
    more = [(call.args["weight"], (last, Whole())), (call.args.get("bias"), (last,))]
    edges = [Edge(source=x, steps=(Dims(reads, call.shape),), mixing=TOKEN_MIXING)]
    return edges + [Edge(source=w, steps=(Dims(dims, call.shape),), secondary=True) for w, dims in more if is_tensor(w)]


@rule("matmul", "mm", "mv", "bmm", "addmm", "baddbmm")
def product(call: Call) -> list[Edge] | None:
    """Matrix product, batched or not; a third tensor is added."""
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "mv": ("self", "vec")}.get(
        call.name, ("self", "mat2" if "mat2" in call.args else "other")
    )
    left, right = (call.args[name] for name in names)
    shapes, rank = (shape_of(left), shape_of(right)), len(call.shape)
    if min(map(len, shapes)) < 2:
        return None
    rows = Edge(
        source=left,
        steps=(Dims((*_batch(shapes[0], call.shape), rank - 2, Whole()), call.shape),),
        mixing=_words(right),
    )
    column = len(shapes[1]) - 1
    reads = (*_batch(shapes[1], call.shape), Whole(), rank - 1)
    columns = Edge(
        source=right,
        steps=(Dims(reads, call.shape),),
        secondary=True,
        columns=column,
        mixing=_words(left),
    )
    base = [call.args["self"]] if call.name in ("addmm", "baddbmm") else []
    return [rows, columns, *(Edge(source=each, steps=broadcast(shape_of(each), call.shape)) for each in base)]


def _batch(shape: Shape, out: Shape) -> tuple[int | Whole, ...]:
    """How the leading dimensions of an operand are read."""
    lead = len(out) - len(shape)
    return tuple(lead + i if shape[i] == out[lead + i] else Whole() for i in range(len(shape) - 2))


def _words(other: fx.Node) -> str:
    """A product with weights mixes tokens; one of two tensors that depend on the input is attention."""
    return TOKEN_MIXING if other.op == "placeholder" else ATTENTION


@rule("scaled_dot_product_attention")
@rule(*(f"_scaled_dot_product_{kind}" for kind in ("flash_attention", "flash_attention_for_cpu", "attention_math")))
@rule("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
def attention(call: Call) -> list[Edge] | None:
    """Scaled dot-product attention of queries (..., L, E) on keys and values (..., S, E): queries by box, keys
    whole.
    """
    query, key, value, mask = (call.args[name] for name in ("query", "key", "value", "attn_mask"))
    rank = len(call.shape)
    if call.output or rank != len(shape_of(query)):
        return None
    inexact = "attention mask" if call.args.get("is_causal") or (is_tensor(mask) and _closes(call, mask)) else ""
    reads = (*_batch(shape_of(query), call.shape), rank - 2, Whole())
    edges = [Edge(source=query, steps=(Dims(reads, call.shape),), inexact=inexact, mixing=ATTENTION)]
    for each, last in ((key, Whole()), (value, rank - 1)):
        steps = (Dims((*_batch(shape_of(each), call.shape), Whole(), last), call.shape),)
        edges.append(Edge(source=each, steps=steps, secondary=True, mixing=ATTENTION))
    if is_tensor(mask):
        rows = broadcast(shape_of(mask)[:-1], call.shape[:-1])
        dims = rows[0].reads if rows else tuple(range(rank - 1))  # type: ignore[union-attr]
        edges.append(Edge(source=mask, steps=(Dims((*dims, Whole()), call.shape),), secondary=True, mixing=ATTENTION))
    return edges


def _closes(call: Call, mask: fx.Node) -> bool:
    """Whether a mask may keep positions from seeing each other."""
    if mask.meta["val"].dtype.is_floating_point:
        numbers = call.numbers(mask)
        return numbers is not None and bool((numbers <= MASKED_SCORE).any())
    return True


@rule("einsum")
def einsum(call: Call) -> list[Edge] | None:
    """Products by equation: letters that are not in the output are read in full."""
    given, _, result = call.args["equation"].replace(" ", "").partition("->")
    operands, written = call.args["tensors"], [*given.split(","), result]
    ranks = [*(len(shape_of(each)) for each in operands), len(call.shape)]
    # The dimensions of an ellipsis are paired from the last one on.
    *terms, out = (
        term.replace("...", "0123456789"[len(term) + 7 - n :]) for term, n in zip(written, ranks, strict=True)
    )
    if not out or any(len(set(term)) < len(term) for term in [*terms, out]) or len(operands) > 2:
        return None
    edges = []
    for number, (term, each) in enumerate(zip(terms, operands, strict=True)):
        dims = zip(map(out.find, term), shape_of(each), strict=True)
        reads = tuple(dim if dim >= 0 and side == call.shape[dim] else Whole() for dim, side in dims)
        columns = max((i for i, c in enumerate(term) if number and c in out and c not in terms[0]), default=None)
        words = _words(operands[1 - number]) if len(operands) == 2 else "sum over positions"
        edges.append(
            Edge(source=each, steps=(Dims(reads, call.shape),), secondary=bool(number), columns=columns, mixing=words)
        )
    return edges

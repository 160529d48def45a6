"""Arguments of closed forms: float64 arrays of a stated shape, and a one-line error for anything else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from erfscope.core import FloatArray


def einsum(subscripts: str, *operands: FloatArray) -> FloatArray:
    """``numpy.einsum`` in a good order of contraction, with a type."""
    return np.asarray(np.einsum(subscripts, *operands, optimize=True), dtype=np.float64)


def matrix(given: ArrayLike, name: str, *, rows: int | None = None, cols: int | None = None) -> FloatArray:
    """A float64 matrix of the stated shape; None stands for any size.

    Raises:
        ValueError: another shape.
    """
    array = np.asarray(given, dtype=np.float64)
    if array.ndim != 2 or rows not in (None, array.shape[0]) or cols not in (None, array.shape[1]):
        wanted = ", ".join("any" if size is None else str(size) for size in (rows, cols))
        raise ValueError(f"{name} has shape {array.shape}; it must be ({wanted})")
    return array


def vector(given: ArrayLike, name: str, size: int) -> FloatArray:
    """A float64 vector of the stated size.

    Raises:
        ValueError: another shape.
    """
    array = np.asarray(given, dtype=np.float64)
    if array.shape != (size,):
        raise ValueError(f"{name} has shape {array.shape}; it must be ({size},)")
    return array


def square(given: ArrayLike, name: str = "the adjacency", *, nodes: int | None = None) -> FloatArray:
    """A float64 matrix with one row and one column per node, all numbers finite.

    Raises:
        ValueError: not square, another number of nodes, or an entry that is NaN or infinite.
    """
    array = np.asarray(given, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ValueError(f"{name} has shape {array.shape}; it must be square, one row and one column per node")
    if nodes not in (None, len(array)):
        raise ValueError(f"{name} is for {len(array)} nodes, but there are {nodes}")
    if not np.isfinite(array).all():
        row, col = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(f"{name} is {array[row, col]} at ({row}, {col}); it must be finite")
    return array


def weight_chain(weights: Sequence[ArrayLike], *, name: str = "weights", first: int | None = None) -> list[FloatArray]:
    """Weight matrices (c_0, c_1), (c_1, c_2), ... that can be multiplied in this order.

    Raises:
        ValueError: none, or two that do not fit.
    """
    if len(weights) == 0:
        raise ValueError(f"{name} is empty; give one matrix (c_in, c_out) per layer")
    chain: list[FloatArray] = []
    for index, given in enumerate(weights):
        chain.append(matrix(given, f"{name}[{index}]", rows=chain[-1].shape[1] if chain else first))
    return chain


def biases_of(biases: Sequence[ArrayLike] | None, weights: Sequence[FloatArray]) -> list[FloatArray]:
    """One bias per weight matrix, zero where none are given.

    Raises:
        ValueError: another number of biases, or another size.
    """
    if biases is None:
        return [np.zeros(weight.shape[1]) for weight in weights]
    if len(biases) != len(weights):
        raise ValueError(f"there are {len(biases)} biases for {len(weights)} weight matrices")
    return [vector(given, f"biases[{index}]", weights[index].shape[1]) for index, given in enumerate(biases)]


def count(given: int, name: str) -> int:
    """A whole number of at least 1.

    Raises:
        ValueError: anything else.
    """
    if given != int(given) or given < 1:
        raise ValueError(f"{name} is {given}; it must be a whole number of at least 1")
    return int(given)

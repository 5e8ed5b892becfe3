"""Slices that walk over one array: that array is the stack they came from.

A loop written over `weights[0]`, `weights[1]`, ... reads pieces of one array. As a loop that is one
scan over it, with nothing to stack.
"""

import dataclasses
from collections.abc import Iterable

from jax.extend.core import primitives as prim

from .. import _compat
from .._jaxpr import Equation, Literal, Operand, Value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A value that is a piece of an array along its leading axis.

    Attributes:
        whole: the array.
        size: the length of each piece along that axis; 0 if a piece lacks the axis.
        place: which piece it is, counted in pieces of this size.
    """

    whole: Value
    size: int
    place: int


def pieces(equations: Iterable[Equation]) -> dict[Operand, Piece]:
    """Returns the values that equations cut out of arrays, piece by piece."""
    found: dict[Operand, Piece] = {}
    for eqn in equations:
        if eqn.primitive is prim.slice_p:
            piece = _slice(eqn)
            if piece is not None:
                found[eqn.outputs[0]] = piece
        elif eqn.primitive is prim.squeeze_p and tuple(eqn.params["dimensions"]) == (0,):
            piece = found.get(eqn.inputs[0])
            if piece is not None and piece.size == 1:
                found[eqn.outputs[0]] = dataclasses.replace(piece, size=0)
        elif eqn.primitive is _compat.unstack_p and eqn.params["axis"] == 0:
            for place, value in enumerate(eqn.outputs):
                whole = eqn.inputs[0]
                if isinstance(whole, Value):
                    found[value] = Piece(whole=whole, size=0, place=place)
    return found


def _slice(eqn: Equation) -> Piece | None:
    whole: Operand = eqn.inputs[0]
    start, limit = eqn.params["start_indices"], eqn.params["limit_indices"]
    shape = whole.aval.shape
    if isinstance(whole, Literal) or not shape or set(eqn.params["strides"] or ()) - {1}:
        return None
    rest = zip(start[1:], limit[1:], shape[1:], strict=True)
    size = limit[0] - start[0]
    if any(a != 0 or b != n for a, b, n in rest) or not 0 < size < shape[0]:
        return None
    if start[0] % size or shape[0] % size:
        return None
    return Piece(whole=whole, size=size, place=start[0] // size)

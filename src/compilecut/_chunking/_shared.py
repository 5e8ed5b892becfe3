"""Captured operands whose gradients add up in a wider type.

The cotangents of an operand that every chunk uses are summed in its own dtype: in bfloat16 a sum
over chunks soon stops growing. Here the operand keeps its value and dtype, but its derivative flows
through a wide copy that nothing reads: each chunk's cotangent is cast up, the sum is wide, and one
cast brings it back. Passing the wide copy and casting it down in the body would do as well, but
costs every chunk a pass over all parameters; this copy is dead code in the compiled program.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer

from ._carry import is_wider


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shared:
    """What a block captured, with the wide copies.

    Attributes:
        values: the captured operands.
        wide: for each of them the copy that its derivative flows through, or None.
    """

    values: tuple[Any, ...]
    wide: tuple[Any, ...]

    def flat(self) -> list[Any]:
        """Returns the operands to pass, `None`s left out."""
        return [*self.values, *(w for w in self.wide if w is not None)]

    def unflat(self, operands: Sequence[Any]) -> list[Any]:
        """Returns what the block sees, from what `flat` returned or tracers of it."""
        n = len(self.values)
        wide = iter(operands[n:])
        return [
            value if w is None else _derivative_through(value, next(wide))
            for value, w in zip(operands[:n], self.wide, strict=True)
        ]


class Sharer:
    """Makes `Shared`s; one operand gets one wide copy however many blocks captured it."""

    def __init__(self, accum_dtype: Any):
        self._accum_dtype = accum_dtype
        self._copies: dict[int, tuple[Any, Any]] = {}

    def share(self, captured: Sequence[Any]) -> Shared:
        """Returns the operands of one block."""
        pairs = [self._pair(value) for value in captured]
        return Shared(values=tuple(v for v, _ in pairs), wide=tuple(w for _, w in pairs))

    def _pair(self, value: Any) -> tuple[Any, Any]:
        # Only what is traced can be differentiated, and a value wide enough already is.
        if not isinstance(value, Tracer) or value.dtype == self._accum_dtype:
            return value, None
        if not is_wider(self._accum_dtype, value.dtype):
            return value, None
        if id(value) not in self._copies:
            copy = jax.lax.convert_element_type(value, self._accum_dtype)
            self._copies[id(value)] = (value, copy)
        return self._copies[id(value)]


@jax.custom_jvp
def _derivative_through(value: Any, wide: Any) -> Any:
    """Returns `value`, with the derivative of `wide`."""
    del wide
    return value


@_derivative_through.defjvp
def _derivative_through_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    value, _ = primals
    return value, jax.lax.convert_element_type(tangents[1], value.dtype)

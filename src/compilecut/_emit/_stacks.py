"""Stacks as values: what one loop leaves along a leading axis, the next may take as it is.

A value of a program is held as an array or as an `Element` of a `Stack`. An element is cut out only
when an equation asks for it alone. `collect` puts elements together again: if they already stand in
one stack in this order, that stack is the answer, with no slice and no copy.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import _compat
from .._jaxpr import is_key


class Stack:
    """Arrays of one type along a leading axis.

    Attributes:
        array: all of them.
        joints: how many pieces they were put together from.
    """

    def __init__(self, array: Any, joints: int = 1):
        self.array = array
        self.joints = joints
        self._cut: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.array.shape[0]

    @property
    def cuts(self) -> int:
        """How many elements were cut out."""
        return len(self._cut)

    def cut(self, place: int) -> Any:
        """Returns one of them as an array of its own."""
        if place not in self._cut:
            self._cut[place] = lax.index_in_dim(self.array, place, keepdims=False)
        return self._cut[place]


@dataclasses.dataclass(frozen=True, slots=True)
class Element:
    """One array of a stack.

    Attributes:
        stack: the stack.
        place: which of it.
    """

    stack: Stack
    place: int


def alone(value: Any) -> Any:
    """Returns a value as an array of its own."""
    return value.stack.cut(value.place) if isinstance(value, Element) else value


def as_array(value: Any, aval: Any) -> Any:
    """Returns a number that differs between blocks as an array of the type the block expects."""
    if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)):
        return jnp.asarray(value, aval.dtype)
    return value


def collect(values: Sequence[Any], aval: Any) -> Stack:
    """Returns values along a new leading axis.

    Args:
        values: arrays, elements of stacks, or `None` where anything of the type will do.
        aval: their type.
    """
    parts = _parts(_complete(list(values)))
    pieces = [_piece(stack, part, aval) for stack, part in parts]
    joints = sum(1 if stack else len(part) for stack, part in parts)
    return Stack(pieces[0] if len(pieces) == 1 else lax.concatenate(pieces, 0), joints)


def _complete(values: list[Any]) -> list[Any]:
    """Fills gaps with what completes the stack beside them, or else with a neighbour."""
    known = [i for i, value in enumerate(values) if value is not None]
    step = _direction(values)
    for i, value in enumerate(values):
        if value is None and known:
            near = min(known, key=lambda k: abs(k - i))
            values[i] = values[near]
            if isinstance(values[near], Element):
                place = values[near].place + step * (i - near)
                if 0 <= place < len(values[near].stack):
                    values[i] = Element(values[near].stack, place)
    return values


def _direction(values: Sequence[Any]) -> int:
    """Says whether places mostly go up (1) or down (-1) from one value to the next."""
    score = 0
    for a, b in itertools.pairwise(values):
        if isinstance(a, Element) and isinstance(b, Element) and a.stack is b.stack:
            score += (b.place > a.place) - (b.place < a.place)
    return -1 if score < 0 else 1


def _parts(values: Sequence[Any]) -> list[tuple[Stack | None, list[Any]]]:
    """Splits values where they leave one stack for another."""
    parts: list[tuple[Stack | None, list[Any]]] = []
    for value in values:
        stack = value.stack if isinstance(value, Element) else None
        if not parts or parts[-1][0] is not stack:
            parts.append((stack, []))
        parts[-1][1].append(value)
    return parts


def _piece(stack: Stack | None, part: list[Any], aval: Any) -> Any:
    if stack is None:
        if all(value is None for value in part):
            return lax.full((len(part), *aval.shape), 0, aval.dtype)
        return jnp.stack(part) if len(part) > 1 else jnp.expand_dims(part[0], 0)
    places = [element.place for element in part]
    first, count = places[0], len(places)
    if places == list(range(first, first + count)):
        if count == len(stack):
            return stack.array
        return lax.slice_in_dim(stack.array, first, first + count)
    if places == list(range(first, first - count, -1)):
        last = places[-1]
        return lax.rev(lax.slice_in_dim(stack.array, last, first + 1), (0,))
    return _pick(stack.array, places)


def _pick(array: Any, places: Sequence[int]) -> Any:
    """Returns some elements of a stack, as a stack."""
    rest = array.ndim - 1
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, rest + 1)), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return lax.gather(
        array,
        np.asarray(places, np.int32)[:, None],
        numbers,
        slice_sizes=(1, *array.shape[1:]),
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )


def falls(lists: Sequence[Sequence[Any]]) -> bool:
    """Says whether a loop over these lists reads most of its stacks from the end."""
    return sum(map(_direction, filter(_in_stack, lists))) < 0


def _in_stack(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Element) for value in values)


def agreed_order(lists: Sequence[Sequence[Any]]) -> list[int] | None:
    """Returns the order of calls in which most stacks are read from their start to their end."""
    votes: dict[tuple[int, ...], int] = {}
    for values in lists:
        stacks = {id(v.stack) for v in values if isinstance(v, Element)}
        if len(stacks) != 1 or not all(isinstance(v, Element) for v in values):
            continue
        places = [value.place for value in values]
        if len(set(places)) == len(places):
            key = tuple(int(i) for i in np.argsort(places))
            votes[key] = votes.get(key, 0) + 1
    return list(max(votes, key=lambda key: votes[key])) if votes else None


def fill(aval: Any) -> Any:
    """Returns some value of a type: what completes a call whose result nobody needs."""
    if is_key(aval.dtype):
        impl = _compat.key_impl(aval.dtype)
        words = lax.full((*aval.shape, *impl.key_shape), 0, np.uint32)
        return jax.random.wrap_key_data(words, impl=impl)
    return lax.full(aval.shape, 0, aval.dtype)

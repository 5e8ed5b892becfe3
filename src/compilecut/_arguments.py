"""Splits arguments and results into arrays, which are traced, and everything else, which is static.

As `equinox.filter_jit` does: arrays are data; numbers, strings, functions and the like belong to
the program. `jax.jit` traces Python numbers; here they stay what the function sees when it is
called as it is.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray, Tracer


def is_array(leaf: Any) -> bool:
    """Says whether a leaf is data: an array, a tracer, or the description of an array."""
    return isinstance(leaf, (jax.Array, Tracer, np.ndarray, np.generic, jax.ShapeDtypeStruct))


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """A pytree without its arrays.

    Attributes:
        tree: the structure.
        arrays: for each leaf, whether it is an array.
        statics: the other leaves, in order.
    """

    tree: Any
    arrays: tuple[bool, ...]
    statics: tuple["Static", ...]

    def join(self, arrays: Sequence[Any]) -> Any:
        """Returns the pytree with these arrays in it."""
        data, rest = iter(arrays), iter(self.statics)
        leaves = [next(data) if array else next(rest).value for array in self.arrays]
        return jax.tree.unflatten(self.tree, leaves)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Static:
    """A leaf that isn't an array; equal to others of its type and value, or to itself alone.

    Attributes:
        value: the leaf.
    """

    value: Any

    def _key(self) -> Hashable:
        try:
            hash(self.value)
        except TypeError:
            return (type(self.value), id(self.value))
        if isinstance(self.value, float):  # 0.0 == -0.0, nan != nan
            return (float, np.float64(self.value).tobytes())
        return (type(self.value), self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def type_of(array: Any) -> Hashable:
    """Returns the type of an array; a type or another description of one as it is."""
    described = isinstance(array, (jax.ShapeDtypeStruct, ShapedArray))
    return array if described else jax.typeof(array)


def split(tree: Any) -> tuple[list[Any], Layout]:
    """Returns the arrays of a pytree, and what is left without them."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = tuple(map(is_array, leaves))
    data = [leaf for leaf, array in zip(leaves, arrays, strict=True) if array]
    rest = [Static(leaf) for leaf, array in zip(leaves, arrays, strict=True) if not array]
    return data, Layout(structure, arrays, tuple(rest))

"""What a chunk is made of: data, which differs freely, and statics, which tell chunks apart."""

import dataclasses
import enum
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .. import _compat, _errors

# Python's own numbers. A bool is left out: in a chunk it is a switch, hence static.
_NUMBERS = (int, float, complex)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Static:
    """A leaf that is no data: a string, a bool, an enum member, a callable, anything else.

    Attributes:
        value: the leaf.
        path: where it is, for messages.
    """

    value: Any
    path: str

    def matches(self, other: "Static") -> bool:
        """Says whether two leaves are of one type and equal; raises if `==` can't tell."""
        if self.value is other.value:
            return True
        if type(self.value) is not type(other.value):
            return False
        try:
            return operator.index(self.value == other.value) == 1
        except Exception as error:
            raise _errors.static_not_comparable(self.path, self.value, other.path) from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """Everything about a chunk but its data. Chunks of one form share a trace.

    Attributes:
        tree: the containers.
        leaves: for each leaf the abstract value of its data, or the static leaf.
    """

    tree: Any
    leaves: tuple[Any, ...]

    def matches(self, other: "Form") -> bool:
        """Says whether the body, traced for one form, serves the other."""
        if self is other:
            return True
        if self.tree != other.tree:
            return False
        return all(map(_same_leaf, self.leaves, other.leaves))

    def rebuild(self, data: Sequence[Any]) -> Any:
        """Returns the chunk made of `data` and of this form's statics."""
        values = iter(data)
        leaves = [leaf.value if isinstance(leaf, Static) else next(values) for leaf in self.leaves]
        return jax.tree.unflatten(self.tree, leaves)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """A chunk taken apart.

    Attributes:
        form: containers, types and statics.
        data: the other leaves, in order. Python numbers stay numbers until they are stacked.
        places: for each of `data` the devices it is committed to, or None.
    """

    form: Form
    data: tuple[Any, ...]
    places: tuple[Any, ...]

    def matches(self, other: "Chunk") -> bool:
        """Says whether one loop may run both."""
        return self.places == other.places and self.form.matches(other.form)


def take_apart(chunk: Any, path: str) -> Chunk:
    """Returns the parts of a chunk; `path` names it in messages."""
    leaves, data = [], []
    flat, tree = jax.tree_util.tree_flatten_with_path(chunk)
    for key, leaf in flat:
        name = path + jax.tree_util.keystr(key)
        if is_data(leaf):
            data.append(leaf)
            leaves.append(type_of(leaf, name))
        else:
            leaves.append(Static(value=leaf, path=name))
    form = Form(tree=tree, leaves=tuple(leaves))
    return Chunk(form=form, data=tuple(data), places=tuple(map(_place, data)))


def is_data(leaf: Any) -> bool:
    """Says whether a leaf is data: an array, a tracer, a key, or a number but no bool or enum."""
    if isinstance(leaf, (bool, enum.Enum)):
        return False
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, *_NUMBERS))


def type_of(leaf: Any, path: str) -> Any:
    """Returns the abstract value of a data leaf."""
    try:
        aval = jax.typeof(leaf)
        if isinstance(leaf, int) and not isinstance(leaf, np.generic):
            np.asarray(leaf, aval.dtype)
    except TypeError as error:
        raise _errors.not_jax_data(path, leaf) from error
    except OverflowError as error:
        raise _errors.integer_too_large(path, leaf) from error
    return aval


def _same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, Static) or isinstance(b, Static):
        return isinstance(a, Static) and isinstance(b, Static) and a.matches(b)
    return a.weak_type == b.weak_type and _compat.same_type(a, b)


def _place(leaf: Any) -> Any:
    # Arrays on different devices can't be stacked; where a tracer lies is up to the compiler.
    if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
        return None
    return leaf.sharding if leaf.committed else None

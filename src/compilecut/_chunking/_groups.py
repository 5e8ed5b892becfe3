"""Runs of consecutive chunks of one form, as rows (one chunk each) or as stacks."""

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _errors
from ._leaves import Chunk, Form, Static, is_data, type_of


class Group(abc.ABC):
    """Consecutive chunks of one form.

    Attributes:
        form: what the chunks have in common.
        start: the index of the first one.
        length: how many there are.
    """

    form: Form
    start: int
    length: int

    @abc.abstractmethod
    def example(self) -> tuple[Any, ...]:
        """Returns data to trace the body with; only its types matter."""

    @abc.abstractmethod
    def operands(self) -> Iterable[Any]:
        """Returns all data as they came."""

    @abc.abstractmethod
    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Returns the data of each chunk."""

    @abc.abstractmethod
    def stacks(self) -> tuple[Any, ...]:
        """Returns the data of all chunks, each leaf with an axis of `length` in front."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Rows(Group):
    """Chunks of a Python sequence; each one's data live apart."""

    form: Form
    start: int
    chunks: tuple[Chunk, ...]

    @property
    def length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How many chunks there are."""
        return len(self.chunks)

    def example(self) -> tuple[Any, ...]:
        """Returns the first chunk's data."""
        return self.chunks[0].data

    def operands(self) -> Iterable[Any]:
        """Returns all data of all chunks."""
        return (leaf for chunk in self.chunks for leaf in chunk.data)

    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Returns each chunk's data, as arrays."""
        return [tuple(map(_as_array, chunk.data)) for chunk in self.chunks]

    def stacks(self) -> tuple[Any, ...]:
        """Stacks the chunks, leaf by leaf."""
        return tuple(map(stack_leaves, zip(*(chunk.data for chunk in self.chunks), strict=True)))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Stacked(Group):
    """Chunks given as one pytree with the chunks along the leading axis."""

    form: Form
    start: int
    length: int
    data: tuple[Any, ...]

    def example(self) -> tuple[Any, ...]:
        """Returns the types of one chunk's data."""
        return tuple(jax.eval_shape(_first, leaf) for leaf in self.data)

    def operands(self) -> Iterable[Any]:
        """Returns the stacks."""
        return self.data

    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Takes the stacks apart."""
        columns = [jnp.unstack(leaf) for leaf in self.data]
        return list(zip(*columns, strict=True)) if columns else [()] * self.length

    def stacks(self) -> tuple[Any, ...]:
        """Returns the data as it came."""
        return self.data


def consecutive(chunks: Sequence[Chunk]) -> list[Group]:
    """Splits chunks into the longest runs of one form, in order."""
    runs: list[list[Chunk]] = []
    for chunk in chunks:
        if runs and runs[-1][0].matches(chunk):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    groups: list[Group] = []
    start = 0
    for run in runs:
        groups.append(Rows(form=run[0].form, start=start, chunks=tuple(run)))
        start += len(run)
    return groups


def along_leading_axis(chunks: Any) -> Stacked:
    """Returns the one group that a stacked pytree is; its statics are every chunk's."""
    if isinstance(chunks, Iterator):  # JAX would warn of it, and take it for a leaf
        raise _errors.chunks_hold_no_arrays(chunks)
    flat, tree = jax.tree_util.tree_flatten_with_path(chunks)
    named = [("chunks" + jax.tree_util.keystr(key), leaf) for key, leaf in flat]
    arrays = [(name, leaf, type_of(leaf, name)) for name, leaf in named if is_data(leaf)]
    if not arrays:
        raise _errors.chunks_hold_no_arrays(chunks)
    first_name, _, first = arrays[0]
    for name, _, aval in arrays:
        if not aval.shape:
            raise _errors.no_leading_axis(name, aval)
        if aval.shape[0] != first.shape[0]:
            raise _errors.leading_axes_differ(first_name, first, name, aval)
    if first.shape[0] == 0:
        raise _errors.no_chunks()
    data = tuple(jnp.asarray(leaf) for _, leaf, _ in arrays)
    types = iter(jax.typeof(jax.eval_shape(_first, leaf)) for leaf in data)
    leaves = tuple(
        next(types) if is_data(leaf) else Static(value=leaf, path=name) for name, leaf in named
    )
    form = Form(tree=tree, leaves=leaves)
    return Stacked(form=form, start=0, length=first.shape[0], data=data)


def _first(stack: Any) -> Any:
    return jax.lax.index_in_dim(stack, 0, axis=0, keepdims=False)


def _as_array(leaf: Any) -> Any:
    # A number goes in as NumPy's: the trace already has its weak type, evaluating needs the dtype.
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, jax.typeof(leaf).dtype)


def stack_leaves(leaves: Sequence[Any]) -> Any:
    """Stacks arrays and numbers; on the host if all are there: one array and not n equations."""
    if any(isinstance(leaf, jax.Array) for leaf in leaves):
        return jnp.stack(leaves)
    return jnp.asarray(np.stack([_as_array(leaf) for leaf in leaves]))

"""Stacks of sites: what `fan_out="stacks"` returns, and the sink that fills them."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import _errors
from .._stacking import empty, stacked, take, write
from ._places import leaf_paths
from ._plan import Plan

Slot = tuple[int, int]  # stack, index in it


class _Sites(dict[str, Slot]):
    def __missing__(self, path: Any) -> Slot:
        near = difflib.get_close_matches(str(path), self, n=3)
        raise _errors.unknown_site(path, near, len(self))


@jax.tree_util.register_pytree_node_class
class Stacks:
    """Leaves of one computation stacked along a new leading axis.

    A pytree whose leaves are the stacks.

    Attributes:
        arrays: the stacks, each `[sites, *leaf shape]`.
    """

    def __init__(self, arrays: Sequence[Any], slots: tuple[Slot, ...], tree: Any):
        self.arrays = tuple(arrays)
        self._slots = slots
        self._tree = tree

    @property
    def sites(self) -> Mapping[str, Slot]:
        """From each leaf's path to its stack and its index in that stack."""
        return _Sites(zip(leaf_paths(self._tree), self._slots, strict=True))

    def unstack(self) -> Any:
        """Returns the pytree that `fan_out="arrays"` would have returned."""
        if not all(isinstance(array, jax.Array) for array in self.arrays):
            raise TypeError("these stacks hold no arrays to unstack (they were mapped or shaped)")
        leaves = [take(self.arrays[stack], index) for stack, index in self._slots]
        return jax.tree.unflatten(self._tree, leaves)

    def tree_flatten(self):
        """Returns the stacks and what describes them, for JAX."""
        return self.arrays, (self._slots, self._tree)

    @classmethod
    def tree_unflatten(cls, aux: Any, arrays: Sequence[Any]) -> "Stacks":
        """Rebuilds stacks from their arrays, for JAX."""
        return cls(arrays, *aux)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.arrays if hasattr(a, "shape"))
        return f"Stacks({len(self._slots)} leaves in {len(self.arrays)} stacks: {shapes})"


class ArraySink:
    """Keeps each leaf as it comes."""

    def __init__(self, tree: Any):
        self._tree = tree
        self._leaves: list[Any] = [None] * tree.num_leaves

    def put(self, group: int, member: int, leaves: Sequence[tuple[int, Any]]) -> None:
        """Takes the results of one site, each with its position."""
        for leaf, array in leaves:
            self._leaves[leaf] = array

    def put_leaf(self, leaf: int, array: Any) -> None:
        """Takes a leaf that no program had to compute."""
        self._leaves[leaf] = array

    def finish(self) -> Any:
        """Returns the leaves in the function's pytree."""
        return jax.tree.unflatten(self._tree, self._leaves)


class StackSink:
    """Writes each leaf into its stack, in place, as it comes."""

    def __init__(self, plan: Plan, tree: Any):
        self._plan = plan
        self._tree = tree
        self._stacks: list[Any] = []
        self._first: dict[int, int] = {}  # group to its first stack
        self._slots: dict[int, Slot] = {}

    def put(self, group: int, member: int, leaves: Sequence[tuple[int, Any]]) -> None:
        """Takes the results of one site, each with its position."""
        if group not in self._first:
            self._first[group] = len(self._stacks)
            length = len(self._plan.groups[group].members)
            self._stacks += [empty(self._place(leaf, a, length)) for leaf, a in leaves]
        for stack, (leaf, array) in enumerate(leaves, self._first[group]):
            self._stacks[stack] = write(self._stacks[stack], array, member)
            self._slots[leaf] = (stack, member)

    def put_leaf(self, leaf: int, array: Any) -> None:
        """Takes a leaf that no program had to compute: a stack of its own."""
        self._slots[leaf] = (len(self._stacks), 0)
        self._stacks.append(write(empty(self._place(leaf, array, 1)), array, 0))

    def finish(self) -> Stacks:
        """Returns the filled stacks."""
        slots = tuple(self._slots[leaf] for leaf in range(self._tree.num_leaves))
        return Stacks(self._stacks, slots, self._tree)

    def _place(self, leaf: int, array: Any, length: int) -> jax.ShapeDtypeStruct:
        sharding = stacked(self._plan.places.leaves[leaf])
        return jax.ShapeDtypeStruct(
            (length, *array.shape),
            array.dtype,
            sharding=sharding,
            weak_type=jax.typeof(array).weak_type,
        )


def stack_leaves(plan: Plan, result: Any) -> Stacks:
    """Stacks a finished result as a plan would have: where there is nothing to run, or a trace."""
    leaves, tree = jax.tree.flatten(result)
    rows = [
        list(column)
        for group in plan.groups
        for column in zip(*(site.leaves for site in group.members), strict=True)
        if max(column) < len(leaves)
    ]
    rows += [[leaf] for leaf in sorted(set(range(len(leaves))).difference(*rows))]
    slots = {leaf: (i, j) for i, row in enumerate(rows) for j, leaf in enumerate(row)}
    arrays = [jnp.stack([leaves[leaf] for leaf in row]) for row in rows]
    return Stacks(arrays, tuple(slots[leaf] for leaf in range(len(leaves))), tree)

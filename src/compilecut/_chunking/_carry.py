"""The type a carry settles on, so that every chunk hands the next one the same."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import _compat, _errors
from ._block import Body, Step


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Carry:
    """A carry taken apart.

    Attributes:
        tree: the containers.
        paths: where each leaf is, for messages.
        leaves: the arrays.
    """

    tree: Any
    paths: tuple[str, ...]
    leaves: tuple[Any, ...]

    def replace(self, leaves: Sequence[Any]) -> "Carry":
        """Returns a carry of the same structure with other leaves."""
        return dataclasses.replace(self, leaves=tuple(leaves))

    def whole(self) -> Any:
        """Returns the carry as the user knows it."""
        return jax.tree.unflatten(self.tree, self.leaves)


def take_carry(carry: Any, accum_dtype: Any) -> Carry:
    """Takes the initial carry apart, its floats cast to `accum_dtype` where that is wider."""
    flat, tree = jax.tree_util.tree_flatten_with_path(carry)
    paths = tuple("carry" + jax.tree_util.keystr(key) for key, _ in flat)
    leaves = []
    for path, (_, leaf) in zip(paths, flat, strict=True):
        try:
            leaves.append(widen(jnp.asarray(leaf), accum_dtype))
        except TypeError as error:
            raise _errors.not_jax_data(path, leaf) from error
    return Carry(tree=tree, paths=paths, leaves=tuple(leaves))


def is_wider(accum_dtype: Any, dtype: Any) -> bool:
    """Says whether every value of the float type `dtype` is one of `accum_dtype`."""
    if accum_dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        return False
    # Not by `promote_types`, which refuses to compare under strict promotion.
    narrow, wide = jnp.finfo(dtype), jnp.finfo(accum_dtype)
    return wide.nmant >= narrow.nmant and wide.maxexp >= narrow.maxexp


def widen(value: Any, accum_dtype: Any) -> Any:
    """Casts a float to `accum_dtype` unless that would lose something."""
    if is_wider(accum_dtype, value.dtype):
        return jax.lax.convert_element_type(value, accum_dtype)
    return value


def settle(
    carry: Carry, trace: Callable[[Carry], Step], body: Body, chunk: int, accum_dtype: Any
) -> tuple[Carry, Step]:
    """Returns the carry in the type it keeps, and the body traced with that type.

    A weakly typed leaf (`0.0`) takes the type the body gives it, as in `lax.scan`, and inside
    `shard_map` a leaf becomes varying over the axes the body makes it vary over. Each may need
    another trace; anything else that changes is an error.
    """
    step = trace(carry)
    for _ in range(2):
        pairs = zip(carry.leaves, step.block.carry_out, strict=True)
        leaves = [widen(_meet(*pair), accum_dtype) for pair in pairs]
        carry = carry.replace(leaves)
        if step.block.accepts_carry(leaves):
            break
        step = trace(carry)
    for path, leaf, after in zip(carry.paths, carry.leaves, step.block.carry_out, strict=True):
        before = jax.typeof(leaf)
        if not _fits(before, after, accum_dtype):
            raise _errors.carry_type_changed(body, path, before, after, chunk)
    return carry, step


def conform(value: Any, like: Any) -> Any:
    """Gives a carry leaf that comes out of the body the exact type it went in with."""
    before, wanted = jax.typeof(value), jax.typeof(like)
    if before.dtype != wanted.dtype or (before.weak_type and not wanted.weak_type):
        value = jax.lax.convert_element_type(value, wanted.dtype)
    return _vary(value, _compat.varying_axes(wanted))


def _meet(value: Any, after: Any) -> Any:
    """Moves an initial carry towards the type the body returns."""
    before = jax.typeof(value)
    differs = before.dtype != after.dtype or not after.weak_type
    if before.weak_type and differs and before.shape == after.shape:
        dtype = jnp.result_type(value, after.dtype)
        if dtype == after.dtype:
            value = jax.lax.convert_element_type(value, dtype)
    return _vary(value, _compat.varying_axes(after))


def _vary(value: Any, axes: frozenset[str]) -> Any:
    missing = axes - _compat.varying_axes(jax.typeof(value))
    return jax.lax.pcast(value, tuple(sorted(missing)), to="varying") if missing else value


def _fits(before: Any, after: Any, accum_dtype: Any) -> bool:
    if accum_dtype is not None and before.dtype == accum_dtype:
        after = after.update(dtype=before.dtype) if is_wider(accum_dtype, after.dtype) else after
    if _compat.varying_axes(after) <= _compat.varying_axes(before):
        after = after.update(manual_axis_type=before.mat)
    return _compat.same_type(before, after)

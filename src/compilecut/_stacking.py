"""Putting arrays into stacks and taking them out, outside of any trace.

One tiny program per shape, with the place in the stack as an argument. A program that stacks n
arrays, or slices n out, costs compile time for each of them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from . import _compat
from ._jaxpr import as_weak_as, is_key

_KEPT = 256  # small functions, by shape or sharding; JAX keeps what was compiled of them


def stacked(sharding: Sharding | None) -> Sharding | None:
    """Returns the sharding of a stack: the stack axis whole, the rest as one element."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return sharding


def unstacked(sharding: Sharding) -> Sharding:
    """Returns the sharding of one element of a stack."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    return sharding


def put(values: Any, place: Any) -> Any:
    """Puts host values on devices where `jax.transfer_guard` may forbid that the call does it.

    Without a guard they are left to the call, which is several times faster.
    """
    guard = jax.config.jax_transfer_guard_host_to_device  # pyright: ignore[reportAttributeAccessIssue]
    return values if guard in (None, "allow") else jax.device_put(values, place)


def empty(like: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns a stack to be filled."""
    return _emptier(like)()


@functools.lru_cache(maxsize=_KEPT)
def _emptier(like: jax.ShapeDtypeStruct):
    if is_key(like.dtype):
        return _key_emptier(like)

    def zeros():
        return as_weak_as(jnp.zeros(like.shape, like.dtype), like)

    return jax.jit(zeros, out_shardings=like.sharding)


def _key_emptier(like: jax.ShapeDtypeStruct):
    impl = _compat.key_impl(like.dtype)
    words = jax.jit(lambda: jnp.zeros((*like.shape, *impl.key_shape), jnp.uint32))
    return lambda: jax.device_put(jax.random.wrap_key_data(words(), impl=impl), like.sharding)


def write(stack: jax.Array, array: Any, place: int) -> jax.Array:
    """Returns the stack with one element written, in its own buffer."""
    return _write(stack, array, _index(place, stack))


@functools.partial(jax.jit, donate_argnums=0)
def _write(stack: jax.Array, array: jax.Array, place: Any) -> jax.Array:
    written = jax.lax.dynamic_update_index_in_dim(stack, array, place, 0)
    return as_weak_as(written, jax.typeof(stack))


def take(stack: jax.Array, place: int) -> jax.Array:
    """Returns one element of a stack."""
    if isinstance(stack, Tracer):
        return stack[place]
    taker = _taker(unstacked(stack.sharding) if stack.committed else None)
    return taker(stack, _index(place, stack))


@functools.lru_cache(maxsize=_KEPT)
def _taker(sharding: Any):
    def taken(stack, place):
        return jax.lax.dynamic_index_in_dim(stack, place, keepdims=False)

    return jax.jit(taken, out_shardings=sharding)


def _index(place: int, stack: jax.Array) -> Any:
    """Returns an index to call with, put where the stack is if need be."""
    where = stack.sharding
    if isinstance(where, NamedSharding):
        where = NamedSharding(where.mesh, PartitionSpec())
    if not (where.is_fully_addressable and where.is_fully_replicated):
        return np.int32(place)
    return put(np.int32(place), where if stack.committed else None)

"""What a zoo program is, and what the families share: data for parameters, losses, train steps."""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTH, HEADS, VOCAB, TOKENS, BATCH = 8, 2, 11, 4, 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program as its user wrote it.

    Attributes:
        name: `family-variant`, unique.
        make: returns the function and its arguments, arrays all of them.
        blocks: the largest repeat folded in it has at least this many blocks; 0 where there is
            nothing to fold and the program must stay as written.
        strict: hold it to bit equality in the normal run too.
    """

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    blocks: int
    strict: bool = False


def fill(shapes: Any, *, scale: float = 0.4, positive: bool = False) -> Any:
    """Returns arrays of these shapes, no two leaves alike: integers are 0, keys are keys.

    Nothing is compiled, which an initialiser would take longer for than the test itself.
    """
    leaves, treedef = jax.tree.flatten(shapes)
    return jax.tree.unflatten(treedef, [_leaf(i, x, scale, positive) for i, x in enumerate(leaves)])


def _leaf(number: int, leaf: Any, scale: float, positive: bool) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(number)
    if not jnp.issubdtype(leaf.dtype, np.floating):
        return jnp.zeros(leaf.shape, leaf.dtype)
    values = np.random.default_rng(number).normal(size=leaf.shape) * scale
    return jnp.asarray(np.abs(values) if positive else values, leaf.dtype)


def normal(*shape: int, seed: int | str = 0, scale: float = 1.0) -> jax.Array:
    """Returns normal numbers, other ones for every seed."""
    seed = zlib.crc32(seed.encode()) if isinstance(seed, str) else seed
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale, jnp.float32)


def tokens(*shape: int, seed: int = 0) -> jax.Array:
    """Returns token numbers."""
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCAB, shape), jnp.int32)


def gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Returns value and gradient, under one name for all programs."""

    def value_and_gradient(*args: Any) -> Any:
        return jax.value_and_grad(loss)(*args)

    return value_and_gradient


def train_step(
    loss: Callable[..., Any], tx: optax.GradientTransformation
) -> Callable[..., tuple[Any, Any, jax.Array]]:
    """Returns the train step everybody writes."""

    def step(params: Any, opt_state: Any, *batch: Any) -> tuple[Any, Any, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return step


def optimizer_state(tx: optax.GradientTransformation, params: Any) -> Any:
    """Returns a state some steps after the start: its moments aren't zeros."""
    return fill(jax.eval_shape(tx.init, params), scale=0.1, positive=True)


def adamw() -> optax.GradientTransformation:
    """W5's optimizer."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))

"""The gradient of a stack of n residual MLPs, in the caller's layout: a list of layers.

The arms: as written, `fold`, and `lax.scan` over stacked weights by hand. n is the number of
layers.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from harness.registry import ArmTable, Call

WIDTH, INNER, BATCH = 128, 256, 32


def layer(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """A normalised residual MLP."""
    h = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
    h = jax.nn.gelu(h @ weights["up"] + weights["b_up"])
    return x + h @ weights["down"] + weights["b_down"]


def loss(layers: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """As written: a Python loop."""
    for weights in layers:
        x = layer(x, weights)
    return jnp.mean(x * x)


def loss_by_scan(layers: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """As a scan over stacked weights."""
    x, _ = lax.scan(lambda x, weights: (layer(x, weights), None), x, layers)
    return jnp.mean(x * x)


def make_arguments(n: int) -> tuple[Any, jax.Array]:
    """Layers, each with weights of its own, and a batch."""
    shapes = {"up": (WIDTH, INNER), "b_up": (INNER,), "down": (INNER, WIDTH), "b_down": (WIDTH,)}
    draw = jax.jit(jax.random.normal, static_argnums=1)
    keys = jax.random.split(jax.random.key(0), (n, len(shapes)))
    layers = [
        {
            name: 0.05 * draw(key, shape)
            for key, (name, shape) in zip(row, shapes.items(), strict=True)
        }
        for row in keys
    ]
    return layers, draw(jax.random.key(1), (BATCH, WIDTH))


def jit(n: int) -> Call:
    """As written."""
    return Call(function=jax.jit(jax.value_and_grad(loss)), args=make_arguments(n))


def fold(n: int) -> Call:
    """Folded."""
    import compilecut as cc

    return Call(function=jax.jit(cc.fold(jax.value_and_grad(loss))), args=make_arguments(n))


def scan_by_hand(n: int) -> Call:
    """Stacked weights, scanned; its gradients come stacked."""
    layers, x = make_arguments(n)
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *layers)
    function = jax.jit(jax.value_and_grad(loss_by_scan))
    return Call(function=function, args=(stacked, x), pick=lambda out: out[0])


ARMS: ArmTable = {"jit": jit, "fold": fold, "lax.scan": scan_by_hand}

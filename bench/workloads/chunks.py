"""W4: one training step of a reconstruction loss in n chunks, at the small size.

Every linear map of an eight-layer transformer is U V with C components, and a chunk keeps a random
part of them: each token draws how many to keep, uniformly, and which. The chunk's loss is the
divergence of the masked logits from the clean ones; the step sums n of them in float32, takes one
gradient and applies Adam. The arms differ only in how they walk the chunks: each chunk's layers are
a Python loop in all of them. n is the number of chunks.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from harness.registry import ArmTable, Call

LAYERS = 8
WIDTH, INNER, COMPONENTS, VOCABULARY = 32, 64, 8, 64
BATCH, TOKENS = 2, 16
HEADS, HEAD = 4, 8

KINDS = {
    "q": (WIDTH, HEADS * HEAD),
    "k": (WIDTH, HEAD),
    "v": (WIDTH, HEAD),
    "o": (HEADS * HEAD, WIDTH),
    "gate": (WIDTH, INNER),
    "up": (WIDTH, INNER),
    "down": (INNER, WIDTH),
}

Layer = dict[str, dict[str, jax.Array]]
Params = list[Layer]
Walk = Callable[[Callable, jax.Array, int], jax.Array]
OPTIMIZER = optax.adam(1e-3)


def forward(params: Params, masks: list[dict[str, jax.Array]], data: dict[str, jax.Array]):
    """Logits in bfloat16, from float32 masters and one mask for each site."""
    x = data["x"].astype(jnp.bfloat16)
    for layer, mask in zip(params, masks, strict=True):
        linear = _masked_linear(layer, mask)
        x = x + _attention(linear, _normalise(x))
        h = _normalise(x)
        x = x + linear("down", jax.nn.silu(linear("gate", h)) * linear("up", h))
    return _normalise(x) @ data["unembed"].astype(jnp.bfloat16)


def _masked_linear(layer: Layer, mask: dict[str, jax.Array]):
    def linear(kind: str, x: jax.Array) -> jax.Array:
        site = layer[kind]
        components = (x @ site["V"].astype(jnp.bfloat16)) * mask[kind]
        return components @ site["U"].astype(jnp.bfloat16)

    return linear


def _normalise(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)


def _attention(linear, x: jax.Array) -> jax.Array:
    q = linear("q", x).reshape(BATCH, TOKENS, HEADS, HEAD)
    k, v = linear("k", x), linear("v", x)  # one key-value head
    scores = jnp.einsum("bqhd,bkd->bhqk", q, k).astype(jnp.float32) / math.sqrt(HEAD)
    seen = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkd->bqhd", weights, v)
    return linear("o", mixed.reshape(BATCH, TOKENS, HEADS * HEAD))


def routing_masks(key: jax.Array) -> list[dict[str, jax.Array]]:
    """For each token and site, k of the components, k uniform from 1 to all; layer by layer."""
    masks = []
    for layer_key in jax.random.split(key, LAYERS):
        count_key, score_key = jax.random.split(layer_key)
        shape = (len(KINDS), BATCH, TOKENS, COMPONENTS)
        kept = jax.random.randint(count_key, (*shape[:-1], 1), 1, COMPONENTS + 1)
        scores = jax.random.uniform(score_key, shape)
        threshold = jnp.take_along_axis(jnp.sort(scores), COMPONENTS - kept, axis=-1)
        mask = (scores >= threshold).astype(jnp.bfloat16)
        masks.append(dict(zip(KINDS, mask, strict=True)))
    return masks


def divergence(clean: jax.Array, logits: jax.Array) -> jax.Array:
    """Mean KL of the masked from the clean distribution, in float32."""
    target = jax.nn.log_softmax(clean.astype(jnp.float32))
    found = jax.nn.log_softmax(logits.astype(jnp.float32))
    return jnp.mean(jnp.sum(jnp.exp(target) * (target - found), axis=-1))


def make_step(walk: Walk, n: int):
    """A training step whose chunks are walked by `walk(body, carry, n)`."""

    def loss_of(params: Params, step_key: jax.Array, data: dict[str, jax.Array]) -> jax.Array:
        def body(total, chunk):
            masks = routing_masks(jax.random.fold_in(step_key, chunk))
            return total + divergence(data["clean"], forward(params, masks, data)), None

        return walk(body, jnp.zeros((), jnp.float32), n)

    @jax.jit
    def step(params: Params, state: Any, step_key: jax.Array, data: dict[str, jax.Array]):
        loss, gradients = jax.value_and_grad(loss_of)(params, step_key, data)
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return step


def loop(body, carry, n: int):
    """As trainers write it."""
    for chunk in range(n):
        carry, _ = body(carry, chunk)
    return carry


def scan_by_hand(body, carry, n: int):
    """As a reader of the JAX manual writes it."""
    return lax.scan(body, carry, jnp.arange(n))[0]


def with_mode(mode: Literal["auto", "scan", "unit", "unroll"]) -> Walk:
    """Our arms: the loop, handed to `scan_chunks`."""

    def walk(body, carry, n: int):
        import compilecut as cc

        return cc.scan_chunks(body, carry, list(range(n)), mode=mode)[0]

    return walk


def make_arguments() -> tuple:
    """Parameters, optimizer state, the step's key and one batch with its clean logits."""
    key, x_key, unembed_key, clean_key = jax.random.split(jax.random.key(0), 4)
    params: Params = []
    for layer_key in jax.random.split(key, LAYERS):
        keys = jax.random.split(layer_key, (len(KINDS), 2))
        params.append(
            {
                kind: {
                    "V": jax.random.normal(v, (d_in, COMPONENTS)) / math.sqrt(d_in),
                    "U": jax.random.normal(u, (COMPONENTS, d_out)) / math.sqrt(COMPONENTS),
                }
                for (v, u), (kind, (d_in, d_out)) in zip(keys, KINDS.items(), strict=True)
            }
        )
    data = {
        "x": jax.random.normal(x_key, (BATCH, TOKENS, WIDTH)),
        "unembed": jax.random.normal(unembed_key, (WIDTH, VOCABULARY)) / math.sqrt(WIDTH),
        "clean": jax.random.normal(clean_key, (BATCH, TOKENS, VOCABULARY)),
    }
    return params, OPTIMIZER.init(params), jax.random.key(1), data


def make_arm(walk: Walk):
    """An arm from the way it walks its chunks."""
    return lambda n: Call(function=make_step(walk, n), args=make_arguments())


ARMS: ArmTable = {
    "loop": make_arm(loop),
    "scan-by-hand": make_arm(scan_by_hand),
    "scan_chunks": make_arm(with_mode("auto")),
    "scan_chunks:scan": make_arm(with_mode("scan")),
    "scan_chunks:unit": make_arm(with_mode("unit")),
}

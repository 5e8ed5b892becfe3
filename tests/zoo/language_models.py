"""W5 and W4 as data: the same programs for each library, which brings its own model.

A library's file has `build(...)`, which returns parameters and an `apply(params, tokens, key)`, and
`build_masked(...)`, whose `apply(params, tokens, masks)` gates the inner width of each layer.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .program import (
    BATCH,
    TOKENS,
    Program,
    adamw,
    gradient,
    optimizer_state,
    tokens,
    train_step,
)

LAYERS, CHUNKS, INNER = 4, 3, 6

Build = Callable[..., tuple[Any, Callable[..., jax.Array]]]


def transformer_programs(library: str, build: Build) -> list[Program]:
    """W5: pre-norm transformer blocks in a Python list."""

    def loss_of(**options: Any):
        params, apply = build(layers=LAYERS, **options)

        def loss(params, batch, key):
            logits = apply(params, batch[:, :-1], key).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

        return loss, params, (tokens(BATCH, TOKENS + 1), jax.random.key(3))

    def forward(**options: Any):
        params, apply = build(layers=LAYERS, **options)
        return apply, (params, tokens(BATCH, TOKENS), jax.random.key(3))

    def grad(**options: Any):
        loss, params, batch = loss_of(**options)
        return gradient(loss), (params, *batch)

    def step(**options: Any):
        loss, params, batch = loss_of(**options)
        tx = adamw()
        return train_step(loss, tx), (params, optimizer_state(tx, params), *batch)

    def program(variant: str, make: Callable[..., Any], strict: bool = False, **options: Any):
        name = f"{library}-{variant}"
        return Program(name=name, make=lambda: make(**options), blocks=LAYERS, strict=strict)

    return [
        program("forward", forward, strict=library == "nnx"),
        program("forward-dropout-bf16", forward, dropout=0.1, dtype=jnp.bfloat16),
        program("gradient", grad, strict=library == "linen"),
        program("gradient-dropout", grad, dropout=0.1),
        program("gradient-remat", grad, remat=True),
        program("gradient-bf16", grad, dtype=jnp.bfloat16),
        program("step", step),
        program("step-dropout-remat-bf16", step, dropout=0.1, remat=True, dtype=jnp.bfloat16),
    ]


def reconstruction_programs(library: str, build_masked: Build) -> list[Program]:
    """W4: chunks of a masked forward against clean logits, summed, one gradient, Adam."""

    def loss_of():
        params, apply = build_masked(layers=LAYERS, inner=INNER)

        def uniform_k(key):
            noise = jax.random.uniform(key, (BATCH, TOKENS, INNER))
            k = jax.random.randint(jax.random.fold_in(key, 1), (BATCH, TOKENS, 1), 1, INNER + 1)
            return (jnp.argsort(jnp.argsort(noise)) < k).astype(jnp.bfloat16)

        def loss(params, chunks, step_key):
            compute = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            total = jnp.float32(0)
            for number, chunk in enumerate(chunks):
                keys = jax.random.split(jax.random.fold_in(step_key, number), LAYERS)
                masks = [uniform_k(key) for key in keys]
                clean = jax.lax.stop_gradient(apply(compute, chunk, [None] * LAYERS))
                clean = jax.nn.log_softmax(clean.astype(jnp.float32))
                masked = jax.nn.log_softmax(apply(compute, chunk, masks).astype(jnp.float32))
                total = total + (jnp.exp(clean) * (clean - masked)).sum(-1).mean()
            return total / len(chunks)

        chunks = [tokens(BATCH, TOKENS, seed=seed) for seed in range(CHUNKS)]
        return loss, params, (chunks, jax.random.key(5))

    def grad():
        loss, params, batch = loss_of()
        return gradient(loss), (params, *batch)

    def step():
        loss, params, batch = loss_of()
        tx = optax.adam(1e-3)
        return train_step(loss, tx), (params, optimizer_state(tx, params), *batch)

    return [
        Program(name=f"{library}-masked-{name}", make=make, blocks=CHUNKS)
        for name, make in (("gradient", grad), ("step", step))
    ]

"""Flax linen: transformers with blocks made in the loop, and blocks marked by `nn.jit`."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from .language_models import LAYERS, reconstruction_programs, transformer_programs
from .program import BATCH, HEADS, TOKENS, VOCAB, WIDTH, Program, fill, gradient, tokens


class Block(nn.Module):
    dropout: float
    dtype: Any

    @nn.compact
    def __call__(self, x, train):
        h = nn.LayerNorm(dtype=self.dtype)(x)
        mask = nn.make_causal_mask(x[..., 0])
        h = nn.MultiHeadDotProductAttention(num_heads=HEADS, dtype=self.dtype)(h, mask=mask)
        x = x + nn.Dropout(self.dropout, deterministic=not train)(h)
        h = nn.LayerNorm(dtype=self.dtype)(x)
        h = nn.Dense(2 * WIDTH, dtype=self.dtype)(h)
        h = nn.Dense(WIDTH, dtype=self.dtype)(nn.gelu(h))
        return x + nn.Dropout(self.dropout, deterministic=not train)(h)


class Transformer(nn.Module):
    layers: int
    dropout: float
    remat: bool
    marked: bool
    dtype: Any

    @nn.compact
    def __call__(self, tokens, train):
        x = nn.Embed(VOCAB, WIDTH, dtype=self.dtype)(tokens)
        x = x + self.param("positions", nn.initializers.normal(), (TOKENS, WIDTH), self.dtype)
        block = nn.remat(Block, static_argnums=(2,)) if self.remat else Block
        block = nn.jit(block, static_argnums=(2,)) if self.marked else block
        for _ in range(self.layers):
            x = block(self.dropout, self.dtype)(x, train)
        return nn.Dense(VOCAB, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))


def build(*, layers, dropout=0.0, remat=False, marked=False, dtype=jnp.float32):
    model = Transformer(layers, dropout, remat, marked, dtype)
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), jnp.zeros((BATCH, TOKENS), jnp.int32), False)
    )

    def apply(params, tokens, key):
        return model.apply(params, tokens, dropout > 0, rngs={"dropout": key})

    return fill(shapes), apply


class MaskedLayer(nn.Module):
    inner: int

    @nn.compact
    def __call__(self, x, mask):
        h = nn.Dense(self.inner, use_bias=False, dtype=x.dtype)(nn.RMSNorm(dtype=x.dtype)(x))
        h = nn.silu(h) if mask is None else nn.silu(h) * mask
        return x + nn.Dense(WIDTH, use_bias=False, dtype=x.dtype)(h)


class Masked(nn.Module):
    layers: int
    inner: int

    @nn.compact
    def __call__(self, tokens, masks):
        x = nn.Embed(VOCAB, WIDTH, dtype=jnp.bfloat16)(tokens)
        for mask in masks:
            x = MaskedLayer(self.inner)(x, mask)
        return nn.Dense(VOCAB, dtype=jnp.bfloat16)(x)


def build_masked(*, layers, inner):
    model = Masked(layers, inner)
    zeros = jnp.zeros((BATCH, TOKENS), jnp.int32)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), zeros, [None] * layers))
    return fill(shapes), model.apply


def marked():
    params, apply = build(layers=LAYERS, marked=True)

    def loss(params, tokens, key):
        logits: Any = apply(params, tokens, key)
        return logits.astype(jnp.float32).sum()

    return gradient(loss), (params, tokens(BATCH, TOKENS), jax.random.key(3))


PROGRAMS = [
    *transformer_programs("linen", build),  # pyright: ignore[reportArgumentType]
    *reconstruction_programs("linen", build_masked),  # pyright: ignore[reportArgumentType]
    Program(name="linen-marked-gradient", make=marked, blocks=LAYERS),
]

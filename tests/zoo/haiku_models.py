"""Haiku: modules made while the function runs, `hk.remat` around a block."""

import haiku as hk
import jax
import jax.numpy as jnp

from .language_models import reconstruction_programs, transformer_programs
from .program import BATCH, HEADS, TOKENS, VOCAB, WIDTH, fill


def _norm(name=None):
    return hk.LayerNorm(-1, create_scale=True, create_offset=True, name=name)


class Block(hk.Module):
    def __init__(self, dropout, name=None):
        super().__init__(name=name)
        self.dropout = dropout

    def __call__(self, x):
        start = hk.initializers.VarianceScaling(1.0)
        attention = hk.MultiHeadAttention(HEADS, WIDTH // HEADS, w_init=start, model_size=WIDTH)
        h = _norm()(x)
        mask = jnp.tril(jnp.ones((1, 1, x.shape[1], x.shape[1]), bool))
        x = x + self._drop(attention(h, h, h, mask=mask))
        h = hk.Linear(WIDTH)(jax.nn.gelu(hk.Linear(2 * WIDTH)(_norm()(x))))
        return x + self._drop(h)

    def _drop(self, x):
        return hk.dropout(hk.next_rng_key(), self.dropout, x) if self.dropout else x


def build(*, layers, dropout=0.0, remat=False, dtype=jnp.float32):
    def model(tokens):
        x = hk.Embed(VOCAB, WIDTH)(tokens)
        for _ in range(layers):
            block = Block(dropout)
            x = hk.remat(block)(x) if remat else block(x)
        return hk.Linear(VOCAB)(_norm()(x))

    transformed = hk.transform(model)
    zeros = jnp.zeros((BATCH, TOKENS), jnp.int32)
    shapes = jax.eval_shape(transformed.init, jax.random.key(0), zeros)

    def apply(params, tokens, key):
        params = jax.tree.map(lambda p: p.astype(dtype), params)
        return transformed.apply(params, key, tokens)

    return fill(shapes), apply


def build_masked(*, layers, inner):
    def model(tokens, masks):
        x = hk.Embed(VOCAB, WIDTH)(tokens)
        for mask in masks:
            h = jax.nn.silu(hk.Linear(inner, with_bias=False)(hk.RMSNorm(-1)(x)))
            x = x + hk.Linear(WIDTH, with_bias=False)(h if mask is None else h * mask)
        return hk.Linear(VOCAB)(x)

    transformed = hk.without_apply_rng(hk.transform(model))
    zeros = jnp.zeros((BATCH, TOKENS), jnp.int32)
    shapes = jax.eval_shape(
        lambda key: transformed.init(key, zeros, [None] * layers), jax.random.key(0)
    )
    return fill(shapes), transformed.apply


PROGRAMS = [
    *transformer_programs("haiku", build),
    *reconstruction_programs("haiku", build_masked),
]

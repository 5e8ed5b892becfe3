"""Flax nnx: modules in an `nnx.List`, split and merged at the border of the function."""

import jax.numpy as jnp
from flax import nnx

from .language_models import reconstruction_programs, transformer_programs
from .program import HEADS, VOCAB, WIDTH, fill


class Block(nnx.Module):
    def __init__(self, dropout, dtype, rngs):
        self.norm1 = nnx.LayerNorm(WIDTH, dtype=dtype, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, dtype=dtype, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, dtype=dtype, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, deterministic=dropout == 0)

    def __call__(self, x, rngs):
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.dropout(self.attention(self.norm1(x), mask=mask), rngs=rngs)
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm2(x)))), rngs=rngs)


class Transformer(nnx.Module):
    def __init__(self, layers, dropout, remat, dtype, rngs):
        self.embedding = nnx.Embed(VOCAB, WIDTH, dtype=dtype, rngs=rngs)
        self.blocks = nnx.List([Block(dropout, dtype, rngs) for _ in range(layers)])
        self.head = nnx.Linear(WIDTH, VOCAB, dtype=dtype, rngs=rngs)
        self.remat = remat

    def __call__(self, tokens, rngs):
        x = self.embedding(tokens)
        for block in self.blocks:
            call = nnx.remat(type(block).__call__) if self.remat else type(block).__call__
            x = call(block, x, rngs)
        return self.head(x)


def build(*, layers, dropout=0.0, remat=False, dtype=jnp.float32):
    model = nnx.eval_shape(lambda: Transformer(layers, dropout, remat, dtype, nnx.Rngs(0)))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    rest = fill(rest)

    def apply(params, tokens, key):
        return nnx.merge(graph, params, rest)(tokens, nnx.Rngs(dropout=key))

    return fill(params), apply


class MaskedLayer(nnx.Module):
    def __init__(self, inner, rngs):
        self.norm = nnx.RMSNorm(WIDTH, dtype=jnp.bfloat16, rngs=rngs)
        self.v = nnx.Linear(WIDTH, inner, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
        self.u = nnx.Linear(inner, WIDTH, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, x, mask):
        h = nnx.silu(self.v(self.norm(x)))
        return x + self.u(h if mask is None else h * mask)


class Masked(nnx.Module):
    def __init__(self, layers, inner, rngs):
        self.embedding = nnx.Embed(VOCAB, WIDTH, dtype=jnp.bfloat16, rngs=rngs)
        self.layers = nnx.List([MaskedLayer(inner, rngs) for _ in range(layers)])
        self.head = nnx.Linear(WIDTH, VOCAB, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, tokens, masks):
        x = self.embedding(tokens)
        for layer, mask in zip(self.layers, masks, strict=True):
            x = layer(x, mask)
        return self.head(x)


def build_masked(*, layers, inner):
    graph, params = nnx.split(nnx.eval_shape(lambda: Masked(layers, inner, nnx.Rngs(0))))
    return fill(params), lambda params, *args: nnx.merge(graph, params)(*args)


PROGRAMS = [
    *transformer_programs("nnx", build),
    *reconstruction_programs("nnx", build_masked),
]

"""Equinox: modules in a Python list, `vmap` over the batch, blocks marked by `eqx.filter_jit`."""

import equinox as eqx
import jax
import jax.numpy as jnp

from .language_models import LAYERS, reconstruction_programs, transformer_programs
from .program import BATCH, HEADS, TOKENS, VOCAB, WIDTH, Program, fill, gradient, tokens


class Block(eqx.Module):
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, dropout, key):
        key1, key2 = jax.random.split(key)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=key1)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, jax.nn.gelu, key=key2)
        self.dropout = eqx.nn.Dropout(dropout, inference=dropout == 0)

    def __call__(self, x, key):
        key1, key2 = jax.random.split(key)
        h = jax.vmap(self.norm1)(x)
        mask = jnp.tril(jnp.ones((len(x), len(x)), bool))
        x = x + self.dropout(self.attention(h, h, h, mask), key=key1)
        return x + self.dropout(jax.vmap(self.mlp)(jax.vmap(self.norm2)(x)), key=key2)


class Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    blocks: list[Block]
    head: eqx.nn.Linear
    remat: bool = eqx.field(static=True)
    marked: bool = eqx.field(static=True)

    def __init__(self, layers, dropout, remat, marked, key):
        keys = jax.random.split(key, layers + 2)
        self.embedding = eqx.nn.Embedding(VOCAB, WIDTH, key=keys[0])
        self.blocks = [Block(dropout, key) for key in keys[2:]]
        self.head = eqx.nn.Linear(WIDTH, VOCAB, key=keys[1])
        self.remat, self.marked = remat, marked

    def __call__(self, tokens, key):
        x = jax.vmap(self.embedding)(tokens)
        keys = jax.random.split(key, len(self.blocks))
        for block, key in zip(self.blocks, keys, strict=True):
            block = eqx.filter_checkpoint(block) if self.remat else block
            block = eqx.filter_jit(block) if self.marked else block
            x = block(x, key)
        return jax.vmap(self.head)(x)


def build(*, layers, dropout=0.0, remat=False, marked=False, dtype=jnp.float32):
    def make():
        return Transformer(layers, dropout, remat, marked, jax.random.key(0))

    params, static = eqx.partition(fill_arrays(eqx.filter_eval_shape(make)), eqx.is_array)

    def apply(params, tokens, key):
        model = eqx.combine(jax.tree.map(lambda p: p.astype(dtype), params), static)
        return jax.vmap(model)(tokens, jax.random.split(key, len(tokens)))

    return params, apply


def fill_arrays(model):
    """Fills a model made of shapes; what isn't a shape (activations, sizes) stays."""
    shapes, rest = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    return eqx.combine(fill(shapes), rest)


class MaskedLayer(eqx.Module):
    norm: eqx.nn.RMSNorm
    v: eqx.nn.Linear
    u: eqx.nn.Linear

    def __init__(self, inner, key):
        key1, key2 = jax.random.split(key)
        self.norm = eqx.nn.RMSNorm(WIDTH)
        self.v = eqx.nn.Linear(WIDTH, inner, use_bias=False, key=key1)
        self.u = eqx.nn.Linear(inner, WIDTH, use_bias=False, key=key2)

    def __call__(self, x, mask):
        h = jax.nn.silu(jax.vmap(self.v)(jax.vmap(self.norm)(x)))
        return x + jax.vmap(self.u)(h if mask is None else h * mask)


class Masked(eqx.Module):
    embedding: eqx.nn.Embedding
    layers: list[MaskedLayer]
    head: eqx.nn.Linear

    def __init__(self, layers, inner, key):
        keys = jax.random.split(key, layers + 2)
        self.embedding = eqx.nn.Embedding(VOCAB, WIDTH, key=keys[0])
        self.layers = [MaskedLayer(inner, key) for key in keys[2:]]
        self.head = eqx.nn.Linear(WIDTH, VOCAB, key=keys[1])

    def __call__(self, tokens, masks):
        x = jax.vmap(self.embedding)(tokens)
        for layer, mask in zip(self.layers, masks, strict=True):
            x = layer(x, mask)
        return jax.vmap(self.head)(x)


def build_masked(*, layers, inner):
    def make():
        return Masked(layers, inner, jax.random.key(0))

    params, static = eqx.partition(fill_arrays(eqx.filter_eval_shape(make)), eqx.is_array)
    return params, lambda params, *args: jax.vmap(eqx.combine(params, static))(*args)


def marked():
    params, apply = build(layers=LAYERS, marked=True)

    def loss(params, tokens, key):
        return apply(params, tokens, key).sum()

    return gradient(loss), (params, tokens(BATCH, TOKENS), jax.random.key(3))


PROGRAMS = [
    *transformer_programs("equinox", build),
    *reconstruction_programs("equinox", build_masked),
    Program(name="equinox-marked-gradient", make=marked, blocks=LAYERS),
]

"""Parameter initialisation of a pre-norm transformer in four libraries, as their users write it.

Attention, a GELU MLP, learned positions, tied nothing; width 64, four heads. n is the number of
layers. Flax linen draws its keys by `fold_in` of each module's path, nnx and Haiku by a chain of
splits, Equinox from one split that is handed down. A Flax linen or Haiku init runs the forward
pass, which the compiler has to throw away.
"""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
from flax import linen, nnx

from harness.registry import ArmTable, Call

WIDTH, HEADS, INNER, VOCABULARY, TOKENS = 64, 4, 256, 128, 16


class LinenBlock(linen.Module):
    """One Flax linen block."""

    @linen.compact
    def __call__(self, x):
        h = linen.LayerNorm()(x)
        x = x + linen.MultiHeadDotProductAttention(num_heads=HEADS)(h)
        h = linen.LayerNorm()(x)
        return x + linen.Dense(WIDTH)(linen.gelu(linen.Dense(INNER)(h)))


class LinenModel(linen.Module):
    """The Flax linen model."""

    layers: int

    @linen.compact
    def __call__(self, tokens):
        x = linen.Embed(VOCABULARY, WIDTH)(tokens)
        x = x + self.param("positions", linen.initializers.normal(0.02), (TOKENS, WIDTH))
        for _ in range(self.layers):
            x = LinenBlock()(x)
        return linen.Dense(VOCABULARY)(linen.LayerNorm()(x))


class NnxBlock(nnx.Module):
    """One Flax nnx block."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, INNER, rngs=rngs)
        self.down = nnx.Linear(INNER, WIDTH, rngs=rngs)


class NnxModel(nnx.Module):
    """The Flax nnx model; an initialisation needs no `__call__`."""

    def __init__(self, layers: int, rngs: nnx.Rngs):
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        normal = nnx.initializers.normal(0.02)
        self.positions = nnx.Param(normal(rngs.params(), (TOKENS, WIDTH), jnp.float32))
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)


class EquinoxBlock(eqx.Module):
    """One Equinox block."""

    norm1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, key: jax.Array):
        attention_key, mlp_key = jax.random.split(key)
        self.norm1 = eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=attention_key)
        self.norm2 = eqx.nn.LayerNorm(WIDTH)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, INNER, 1, jax.nn.gelu, key=mlp_key)


class EquinoxModel(eqx.Module):
    """The Equinox model; an initialisation needs no `__call__`."""

    embed: eqx.nn.Embedding
    positions: jax.Array
    blocks: list[EquinoxBlock]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, layers: int, key: jax.Array):
        embed_key, position_key, head_key, *block_keys = jax.random.split(key, layers + 3)
        self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=embed_key)
        self.positions = 0.02 * jax.random.normal(position_key, (TOKENS, WIDTH))
        self.blocks = [EquinoxBlock(block_key) for block_key in block_keys]
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, key=head_key)


def haiku_forward(layers: int):
    """The Haiku model's forward function."""

    def norm(x):
        return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x)

    def forward(tokens):
        x = hk.Embed(VOCABULARY, WIDTH)(tokens)
        normal = hk.initializers.RandomNormal(0.02)
        x = x + hk.get_parameter("positions", (TOKENS, WIDTH), init=normal)
        for _ in range(layers):
            h = norm(x)
            scaling = hk.initializers.VarianceScaling(2 / layers)
            attention = hk.MultiHeadAttention(HEADS, WIDTH // HEADS, w_init=scaling)
            x = x + attention(h, h, h)
            h = norm(x)
            x = x + hk.Linear(WIDTH)(jax.nn.gelu(hk.Linear(INNER)(h)))
        return hk.Linear(VOCABULARY)(norm(x))

    return forward


def linen_init(n: int):
    """`model.init`, and its arguments."""
    return LinenModel(n).init, (jax.random.key(0), jnp.zeros((1, TOKENS), jnp.int32))


def nnx_init(n: int):
    """The constructor's parameters, and its arguments."""

    def init(key):
        return nnx.state(NnxModel(n, nnx.Rngs(params=key)), nnx.Param)

    return init, (jax.random.key(0),)


def equinox_init(n: int):
    """The constructor's arrays, and its arguments."""

    def init(key):
        return eqx.filter(EquinoxModel(n, key), eqx.is_array)

    return init, (jax.random.key(0),)


def haiku_init(n: int):
    """`transform(...).init`, and its arguments."""
    init = hk.without_apply_rng(hk.transform(haiku_forward(n))).init
    return init, (jax.random.key(0), jnp.zeros((1, TOKENS), jnp.int32))


def arms_of(make) -> ArmTable:
    """The two arms of a library: its init jitted, and its init in `stacked_init`."""

    def jit(n: int) -> Call:
        init, args = make(n)
        return Call(function=jax.jit(init), args=args)

    def stacked_init(n: int) -> Call:
        import compilecut as cc

        init, args = make(n)
        return Call(function=cc.stacked_init(init), args=args)

    return {"jit": jit, "stacked_init": stacked_init}

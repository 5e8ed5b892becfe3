"""Init functions of the libraries people use, as they write them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import compilecut as cc
from compilecut._bits import first_difference

pytestmark = [pytest.mark.quick, pytest.mark.standard_promotion]

LAYERS, WIDTH = 4, 8


def assert_same(init: Callable[..., Any], *args: Any) -> cc.Report:
    wrapped = cc.stacked_init(init)
    difference = first_difference(wrapped(*args), jax.jit(init)(*args))
    assert difference is None, difference
    return wrapped.explain(*args)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=WIDTH)(nn.LayerNorm()(x))
        x = x + nn.Dropout(0.1, deterministic=True)(h)
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))


class Linen(nn.Module):
    remat: bool = False

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(11, WIDTH)(tokens)
        block = nn.remat(Block) if self.remat else Block
        for _ in range(LAYERS):
            x = block()(x)
        return nn.Dense(11)(x)


@pytest.mark.parametrize("remat", [False, True])
def test_linen(remat):
    report = assert_same(Linen(remat=remat).init, jax.random.key(0), jnp.zeros((2, 3), jnp.int32))
    assert report.repeats[0].n >= LAYERS
    assert report.programs < 20


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x):
        def body(module, carry, _):
            return nn.Dense(WIDTH)(carry), None

        scan = nn.scan(
            body, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS
        )
        x, _ = scan(self, x, None)
        return nn.BatchNorm(use_running_average=False)(nn.Dense(WIDTH)(x))


def test_linen_scan_and_batch_stats():
    assert_same(Scanned().init, jax.random.PRNGKey(0), jnp.zeros((2, WIDTH)))


def test_nnx():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS)])
            self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def init(key):
        return nnx.split(Net(nnx.Rngs(params=key, dropout=jax.random.fold_in(key, 1))))[1]

    report = assert_same(init, jax.random.key(0))
    assert report.repeats[0].n >= LAYERS


def test_nnx_seeded_inside():
    def init():
        rngs = nnx.Rngs(0)
        return nnx.state(nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS)]))

    assert assert_same(init).repeats[0].n >= LAYERS


def test_equinox():
    def init(key):
        keys = jax.random.split(key, LAYERS + 2)
        layers = [eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, key=k) for k in keys[:LAYERS]]
        attention = eqx.nn.MultiheadAttention(2, WIDTH, key=keys[-2])
        cell = eqx.nn.LSTMCell(WIDTH, WIDTH, key=keys[-1])
        return eqx.filter((layers, attention, cell, eqx.nn.LayerNorm(WIDTH)), eqx.is_array)

    report = assert_same(init, jax.random.key(0))
    assert report.repeats[0].n >= LAYERS


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_an_equinox_module_has_to_be_filtered(wrap):
    wrapped = wrap(cc.stacked_init(lambda key: eqx.nn.MLP(8, 8, 8, 1, key=key)))
    with pytest.raises(TypeError, match="not a valid JAX type") as caught:
        wrapped(jax.random.key(0))
    assert "`eqx.filter(model, eqx.is_array)`" in "".join(caught.value.__notes__)


def test_a_whole_nnx_module():
    def init(key):
        rngs = nnx.Rngs(key)
        return nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS)])

    assert_same(init, jax.random.key(0))
    model = cc.stacked_init(init)(jax.random.key(0))
    assert model[0](jnp.ones((1, WIDTH))).shape == (1, WIDTH)


def test_equinox_stacked_layers():
    def init(key):
        make = eqx.filter_vmap(lambda k: eqx.nn.Linear(WIDTH, WIDTH, key=k))
        return eqx.filter(make(jax.random.split(key, LAYERS)), eqx.is_array)

    assert_same(init, jax.random.key(0))


def test_haiku():
    def net(x):
        for _ in range(LAYERS):
            x = hk.LayerNorm(-1, True, True)(jax.nn.gelu(hk.Linear(WIDTH)(x)))
        hk.LSTM(WIDTH)(x, hk.LSTM(WIDTH).initial_state(2))
        return hk.BatchNorm(True, True, 0.9)(x, is_training=True)

    init = hk.transform_with_state(net).init
    report = assert_same(init, jax.random.PRNGKey(0), jnp.zeros((2, WIDTH)))
    assert report.repeats[0].n >= LAYERS


def test_init_under_a_jit_of_its_own():
    init = jax.jit(Linen().init)
    report = assert_same(init, jax.random.key(0), jnp.zeros((2, 3), jnp.int32))
    assert report.programs < 20

"""Cells called in a Python loop over time: Equinox, linen, nnx, Haiku and by hand."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx

from .equinox_models import fill_arrays
from .program import BATCH, WIDTH, Program, fill, gradient, normal

STEPS = 6


def _series():
    return normal(STEPS, BATCH, WIDTH, seed=1)


def rnn():
    def loss(params, series):
        h, total = jnp.zeros((BATCH, WIDTH)), 0.0
        for x in series:
            h = jnp.tanh(x @ params["wx"] + h @ params["wh"] + params["b"])
            total = total + jnp.square(h @ params["out"] - x).mean()
        return total

    w = (WIDTH, WIDTH)
    params = {"wx": w, "wh": w, "b": (WIDTH,), "out": w}
    params = {name: normal(*shape, seed=name, scale=0.3) for name, shape in params.items()}
    return gradient(loss), (params, _series())


def equinox_gru():
    def make():
        return eqx.nn.GRUCell(WIDTH, WIDTH, key=jax.random.key(0))

    params, static = eqx.partition(fill_arrays(eqx.filter_eval_shape(make)), eqx.is_array)

    def loss(params, series):
        cell = eqx.combine(params, static)
        h = jnp.zeros((BATCH, WIDTH))
        for x in series:
            h = jax.vmap(cell)(x, h)
        return jnp.square(h).sum()

    return gradient(loss), (params, _series())


def equinox_lstm():
    def make():
        return eqx.nn.LSTMCell(WIDTH, WIDTH, key=jax.random.key(0))

    params, static = eqx.partition(fill_arrays(eqx.filter_eval_shape(make)), eqx.is_array)

    def forward(params, series):
        cell, outputs = eqx.combine(params, static), []
        state = jnp.zeros((BATCH, WIDTH)), jnp.zeros((BATCH, WIDTH))
        for t in range(STEPS):
            state = jax.vmap(cell)(series[t], state)
            outputs.append(state[0])
        return jnp.stack(outputs)

    return forward, (params, _series())


class StackedLSTM(nn.Module):
    layers: int

    @nn.compact
    def __call__(self, series):
        for number in range(self.layers):
            cell = nn.OptimizedLSTMCell(WIDTH, name=f"cell{number}")
            carry = jnp.zeros((BATCH, WIDTH)), jnp.zeros((BATCH, WIDTH))
            outputs = []
            for x in series:
                carry, y = cell(carry, x)
                outputs.append(y)
            series = outputs
        return jnp.stack(series)


def linen_lstm(layers):
    model = StackedLSTM(layers)
    shapes = jax.eval_shape(model.init, jax.random.key(0), _series())

    def loss(params, series):
        outputs: Any = model.apply(params, series)
        return jnp.square(outputs).mean()

    return gradient(loss), (fill(shapes), _series())


def nnx_gru():
    graph, params = nnx.split(nnx.eval_shape(lambda: nnx.GRUCell(WIDTH, WIDTH, rngs=nnx.Rngs(0))))
    graph, params, rest = nnx.split(nnx.merge(graph, params), nnx.Param, ...)
    rest = fill(rest)

    def forward(params, series):
        cell, h = nnx.merge(graph, params, rest), jnp.zeros((BATCH, WIDTH))
        for x in series:
            h, _ = cell(h, x)
        return h

    return forward, (fill(params), _series())


def haiku_unroll(make_core):
    def model(series):
        core = make_core()
        outputs, _ = hk.static_unroll(core, series, core.initial_state(BATCH))
        return jnp.square(outputs).mean()

    transformed = hk.without_apply_rng(hk.transform(model))
    shapes = jax.eval_shape(transformed.init, jax.random.key(0), _series())
    return gradient(transformed.apply), (fill(shapes), _series())


PROGRAMS = [
    Program(name="rnn-gradient", make=rnn, blocks=STEPS, strict=True),
    Program(name="rnn-equinox-gru-gradient", make=equinox_gru, blocks=STEPS),
    Program(name="rnn-equinox-lstm", make=equinox_lstm, blocks=STEPS),
    Program(name="rnn-linen-lstm-gradient", make=lambda: linen_lstm(1), blocks=STEPS),
    Program(name="rnn-linen-three-lstms-gradient", make=lambda: linen_lstm(3), blocks=STEPS),
    Program(name="rnn-nnx-gru", make=nnx_gru, blocks=STEPS),
    Program(
        name="rnn-haiku-lstm-gradient",
        make=lambda: haiku_unroll(lambda: hk.LSTM(WIDTH)),
        blocks=STEPS,
    ),
    Program(
        name="rnn-haiku-gru-gradient",
        make=lambda: haiku_unroll(lambda: hk.GRU(WIDTH)),
        blocks=STEPS,
    ),
]

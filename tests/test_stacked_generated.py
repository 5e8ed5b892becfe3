"""Generated init functions: whatever is put together, the bits are those of `jax.jit`."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import compilecut as cc
from compilecut._bits import first_difference

SAMPLERS = {
    "normal": lambda k, shape, dtype: jax.random.normal(k, shape, dtype),
    "uniform": lambda k, shape, dtype: jax.random.uniform(k, shape, dtype, -1, 2),
    "truncated": lambda k, shape, dtype: jax.random.truncated_normal(k, -2, 2, shape, dtype),
    "masked": lambda k, shape, dtype: jnp.where(
        jax.random.bernoulli(k, 0.5, shape), jax.random.normal(k, shape, dtype), jnp.ones((), dtype)
    ),
    "exponential": lambda k, shape, dtype: jax.random.exponential(k, shape, dtype),
    "ones": lambda k, shape, dtype: jnp.ones(shape, dtype),
    "whole": lambda k, shape, dtype: jax.random.randint(k, shape, -5, 5),
    "normed": lambda k, shape, dtype: (
        (v := jax.random.normal(k, shape, dtype)) / jnp.sqrt((v * v).sum() + 1),
        v.sum(),
    ),
}
sites = st.lists(
    st.tuples(
        st.sampled_from(sorted(SAMPLERS)),
        st.sampled_from([(), (1,), (5,), (3, 7), (2, 3, 4), (257,), (1, 1), (0, 2)]),
        st.sampled_from([jnp.float32, jnp.bfloat16]),
        st.sampled_from([None, 0.5, 3.0]),
        st.sampled_from(["split", "fold", "reuse", "chain"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def make_init(specs):
    def one(key, sampler, shape, dtype, scale):
        value = SAMPLERS[sampler](key, shape, dtype)
        if scale is None or sampler == "whole":
            return value
        return jax.tree.map(lambda v: v * np.asarray(scale, v.dtype), value)

    def init(key):
        out, root = [], key
        for i, (sampler, shape, dtype, scale, way, call) in enumerate(specs):
            if way == "chain":
                key, sub = jax.random.split(key)
            elif way == "fold":
                sub = jax.random.fold_in(root, i)
            elif way == "split":
                sub = jax.random.split(root, len(specs))[i]
            else:
                sub = root
            make = jax.jit(one, static_argnums=(1, 2, 3, 4)) if call else one
            out.append(make(sub, sampler, shape, dtype, scale))
        return out

    return init


def same(specs, seed, raw):
    init = make_init(specs)
    key = jax.random.PRNGKey(seed) if raw else jax.random.key(seed)
    difference = first_difference(cc.stacked_init(init)(key), jax.jit(init)(key))
    assert difference is None, difference


@hypothesis.given(sites, st.integers(0, 1000), st.booleans())
@hypothesis.settings(max_examples=12)
def test_generated(specs, seed, raw):
    same(specs, seed, raw)


@pytest.mark.slow
@hypothesis.given(sites, st.integers(0, 10_000), st.booleans())
@hypothesis.settings(max_examples=200)
def test_many_generated(specs, seed, raw):
    same(specs, seed, raw)

"""Making sure, on a JAX nobody has tested, that draws follow the scheme `_draw.py` computes."""

import functools

import jax
import numpy as np

from .. import _compat
from ._draw import draw_bits

_COUNT = 5


def draws_as_expected() -> bool:
    """Says whether a row of a block holds what `jax.random.bits` draws."""
    return _compat.known_draws() or _probe()


@functools.cache
def _probe() -> bool:
    with _compat.outside_traces(), jax.threefry_partitionable(True):
        key = jax.random.key(20, impl="threefry2x32")
        expected = jax.jit(jax.random.bits, static_argnums=1)(key, (_COUNT,))
        words = np.asarray(jax.random.key_data(key))
        table = np.concatenate([words, np.zeros(2, np.uint32)])[None]
        drawn = jax.jit(draw_bits, static_argnums=1)(table, 32)[0, :_COUNT]
    return np.array_equal(np.asarray(drawn), np.asarray(expected))

"""What `explain` prints: lines of the user's file, counts, and when nothing was gained."""

import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import compilecut as cc

pytestmark = [pytest.mark.quick, pytest.mark.standard_promotion]

KEY = jax.random.key(5)


def here(offset: int = 0) -> str:
    """`file:line` of the caller, with an offset."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"test_report.py:{frame.f_back.f_lineno + offset}"


def places(init: Callable[..., Any], *args: Any) -> list[str]:
    return [repeat.where for repeat in cc.stacked_init(init).explain(*args).repeats]


def test_a_draw_alone_points_to_its_own_line():
    line = here(4)

    def init(key):
        a, b = jax.random.split(key)
        return jax.random.bits(a, (4,)), jax.random.bits(b, (4,))

    assert places(init, KEY) == [line]


def test_what_was_traced_before_points_to_this_call():
    jax.random.normal(KEY, (3, 7))  # JAX keeps the trace of `normal`, with this line in it

    def init(key):
        return jax.random.normal(key, (3, 7))

    assert places(init, KEY) == [here(-2)]


def test_the_innermost_line_of_the_user():
    def dense(key):
        return jax.random.normal(key, (3, 2)) / 3

    line = here(-2)

    @jax.jit
    def jitted(key):
        return dense(key)

    assert places(lambda key: [dense(k) for k in jax.random.split(key)], KEY) == [line]
    assert places(lambda key: [jitted(k) for k in jax.random.split(key)], KEY) == [line]


def test_lines_of_libraries_are_not_the_users():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(nn.Dense(4)(x))

    assert places(Model().init, KEY, jnp.ones((1, 4))) == [here(-2)] * 2
    library = places(nn.Dense(4).init, KEY, jnp.ones((1, 4)))
    assert all(line.startswith("linear.py:") for line in library)


def test_jax_alone_still_has_a_line():
    (line,) = places(jax.random.normal, KEY)
    assert ".py:" in line


def text(init: Callable[..., Any], *args: Any) -> str:
    return str(cc.stacked_init(init).explain(*args))


def test_one_of_a_thing_is_singular():
    report = text(lambda key: jax.random.normal(key, (3,)), KEY)
    assert "1 site of 1 kind in" in report
    assert "nothing gained" in report


def test_it_is_said_when_nothing_was_gained():
    def distinct(key):
        return [jax.random.normal(k, (i + 1,)) for i, k in enumerate(jax.random.split(key, 3))]

    def alike(key):
        return [jax.random.normal(k, (3,)) for k in jax.random.split(key, 3)]

    def printing(key):
        jax.debug.print("here")
        return alike(key)

    assert "no two sites are the same" in text(distinct, KEY)
    assert "nothing gained" not in text(alike, KEY)
    assert "nothing gained" in text(printing, KEY)
    assert "3 sites of 1 kind in" in text(alike, KEY)


def test_a_constant_has_no_line_and_says_so():
    mask = jnp.arange(3)
    report = text(lambda key: {"mask": mask, "w": jax.random.normal(key, (3,))}, KEY)
    assert "(nothing computed)" in report

"""The assertions pass where they should, fail where they should, and say where and by how much."""

import contextlib
import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.extend.core import primitives

from compilecut.testing import (
    STRICT_COMPILER_OPTIONS,
    DifferenceError,
    assert_bit_identical,
    assert_equivalent,
    count_compiles,
    count_equations,
    count_hlo_instructions,
    ulp_distance,
)

pytestmark = pytest.mark.quick

LAYERS = 3


def block(x, weights):
    """One residual block with what rounds differently across blocks: dots, norms, constants."""
    w, v, scale = weights
    h = x - jnp.mean(x, -1, keepdims=True)
    h = h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + jnp.asarray(1e-5, x.dtype))
    return x + jnp.tanh((h * scale) @ w) @ v * 0.3 * 0.7


def unrolled(params, x):
    for i in range(LAYERS):
        x = block(x, jax.tree.map(lambda leaf, i=i: leaf[i], params))
    return jnp.sum(jnp.logaddexp(x, jnp.asarray(0.3, x.dtype)))


def scanned(params, x):
    x, _ = jax.lax.scan(lambda x, weights: (block(x, weights), None), x, params)
    return jnp.sum(jnp.logaddexp(x, jnp.asarray(0.3, x.dtype)))


def arguments(dtype):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 4, dtype)

    return (normal(LAYERS, 8, 16), normal(LAYERS, 16, 8), normal(LAYERS, 8)), normal(5, 8)


def add_one_ulp(x):
    return jnp.nextafter(x, jnp.full_like(x, jnp.inf))


# --- assert_bit_identical


def test_bit_identical_passes_on_weird_trees_nans_and_keys():
    def f(x, key):
        return {"nan": x / 0.0, "none": None, "k": [key, (jax.random.split(key),)], "i": x > 0}

    assert_bit_identical(f, lambda *a: f(*a), jnp.array([0.0, -1.0, 1.0]), jax.random.key(3))
    assert_bit_identical(jax.jit(f), functools.partial(f), jnp.zeros(2), jax.random.key(3))


def test_bit_identical_names_leaf_element_and_distance():
    def f(x):
        return {"a": x, "deep": [x, x * 2]}

    def g(x):
        return {"a": x, "deep": [x, (x * 2).at[1].set(add_one_ulp(x[1] * 2))]}

    with pytest.raises(DifferenceError) as caught:
        assert_bit_identical(f, g, jnp.arange(1.0, 4.0))
    found = caught.value.difference
    assert (found.path, found.index, found.ulp) == ("['deep'][1]", (1,), 1)
    assert (found.count, found.size) == (1, 3)
    message = str(caught.value)
    for evidence in ("['deep'][1]", "(1,)", "4.0", "1 ULP", "test_testing.py", "assert_equivalent"):
        assert evidence in message
    # pytest shows the test's line, not ours
    visible = caught.traceback.filter(caught)
    assert str(visible[-1].path) == __file__


@pytest.mark.parametrize(
    ("f", "g", "kind"),
    [
        (lambda x: x * 0.0, lambda x: x * -0.0, "value"),
        (lambda x: x.astype(jnp.bfloat16), lambda x: x.astype(jnp.float16), "dtype"),
        (lambda x: x, lambda x: x[None], "shape"),
        (lambda x: (x,), lambda x: [x], "structure"),
        (lambda x: x.astype(jnp.int32), lambda x: x.astype(jnp.int32) + 1, "value"),
        (lambda x: jax.random.key(1), lambda x: jax.random.key(2), "value"),
    ],
)
def test_bit_identical_fails(f, g, kind):
    with pytest.raises(AssertionError) as caught:
        assert_bit_identical(f, g, jnp.array([1.0, 2.0]))
    assert isinstance(caught.value, DifferenceError)
    assert caught.value.difference.kind == kind


def test_bit_identical_in_float64(x64):
    x = jnp.linspace(0.0, 1.0, 5)
    assert x.dtype == jnp.float64
    with pytest.raises(DifferenceError) as caught:
        assert_bit_identical(lambda x: x + 1, lambda x: add_one_ulp(x + 1), x)
    assert (caught.value.difference.max_ulp, caught.value.difference.count) == (1, 5)


def test_what_lowers_itself_is_called_as_it_is():
    class OwnPrograms:
        def __init__(self):
            self.calls = []

        def __call__(self, x):
            self.calls.append(type(x))
            return x + 1

        def lower(self, x):
            return "several programs"

    own = OwnPrograms()
    x = jnp.arange(3.0)
    assert_bit_identical(own, lambda x: x + 1, x)
    assert own.calls == [type(x)]  # an array, not a tracer
    with pytest.raises(TypeError, match="assert_bit_identical"):
        assert_equivalent(own, own, x)
    with pytest.raises(TypeError, match="one by one"):
        count_hlo_instructions(own, x)


def test_static_arguments():
    def f(n, x, name):
        return {name: x * n}

    def g(n, x, name):
        return {name: sum((x for _ in range(n)), jnp.zeros_like(x))}

    for assertion in (assert_bit_identical, assert_equivalent):
        assertion(f, g, 2, jnp.arange(3.0), "y", static_argnums=(0, -1))
        with pytest.raises(DifferenceError, match=r"\['y'\]"):
            assertion(f, lambda n, x, name: {name: x}, 2, jnp.ones(3), "y", static_argnums=(0, 2))


# --- assert_equivalent and the strict options


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_loop_and_unrolled_loop_are_equivalent_with_gradients(dtype):
    assert_equivalent(
        jax.value_and_grad(unrolled, argnums=(0, 1)),
        jax.value_and_grad(scanned, argnums=(0, 1)),
        *arguments(dtype),
    )


def test_loop_and_unrolled_loop_are_equivalent_in_float64(x64):
    assert_equivalent(jax.grad(unrolled), jax.grad(scanned), *arguments(jnp.float64))


def test_convolution_gradients_are_equivalent():
    def conv(x, w):
        return jax.nn.relu(x + jax.lax.conv(x, w, (1, 1), "SAME"))

    def loop(ws, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (conv(x, w), None), x, ws)[0])

    def written_out(ws, x):
        return jnp.sum(conv(conv(x, ws[0]), ws[1]))

    rng = np.random.default_rng(1)
    ws = jnp.asarray(rng.normal(size=(2, 4, 4, 3, 3)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(2, 4, 6, 6)), jnp.float32)
    assert_equivalent(jax.grad(written_out), jax.grad(loop), ws, x)


def chain(scales, x):
    for i in range(6):
        x = (x + 0.3) * scales[i]
    return x


def chain_loop(scales, x):
    return jax.lax.scan(lambda x, s: ((x + 0.3) * s, None), x, scales)[0]


def chain_arguments():
    rng = np.random.default_rng(2)
    return tuple(np.asarray(rng.normal(size=s), np.float32) for s in ((6,), (64,)))


def test_strict_agrees_where_the_default_differs():
    """One block's multiply and the next one's add are one instruction, unless a loop parts them."""
    scales, x = chain_arguments()
    with pytest.raises(DifferenceError) as caught:
        assert_bit_identical(chain, chain_loop, scales, x)
    with pytest.raises(DifferenceError):
        assert_equivalent(chain, chain_loop, scales, x, strict=False)
    assert_equivalent(chain, chain_loop, scales, x)
    distance = caught.value.difference.max_ulp
    assert isinstance(distance, int)
    assert_equivalent(chain, chain_loop, scales, x, strict=False, max_ulp=distance)
    with pytest.raises(DifferenceError):
        assert_equivalent(chain, chain_loop, scales, x, strict=False, max_ulp=distance - 1)


def test_strict_does_what_was_written():
    """Against numpy, which rounds after every operation."""
    scales, x = chain_arguments()
    expected = x
    for scale in scales:
        expected = (expected + np.float32(0.3)) * scale
    lowered = jax.jit(chain).lower(scales, x)
    options = dict(STRICT_COMPILER_OPTIONS)
    assert ulp_distance(np.asarray(lowered.compile()(scales, x)), expected) > 0
    strict = lowered.compile(compiler_options=options)(scales, x)
    assert ulp_distance(np.asarray(strict), expected) == 0


def test_strict_options_reach_the_compiler():
    lowered = jax.jit(lambda s, x: jax.lax.neg(jax.lax.neg(chain(s, x)))).lower(*chain_arguments())
    default = lowered.compile()
    strict = lowered.compile(compiler_options=dict(STRICT_COMPILER_OPTIONS))
    # algsimp cancels the two negations; fusion puts the chain into one kernel
    assert count_hlo_instructions(default, opcode="negate") == 0
    assert count_hlo_instructions(strict, opcode="negate") == 2
    assert fused_arithmetic(default) == 12
    assert fused_arithmetic(strict) == 1


def test_strict_programs_stay_small():
    """Without algsimp, reshape-mover would not settle: 877 instructions here on jaxlib 0.10.2."""

    def f(x, w):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w.T))

    args = (jnp.ones(s, jnp.bfloat16) for s in ((17, 24), (24, 48)))
    lowered = jax.jit(jax.grad(f, argnums=(0, 1))).lower(*args)
    strict = lowered.compile(compiler_options=dict(STRICT_COMPILER_OPTIONS))
    assert count_hlo_instructions(strict) < 300


def fused_arithmetic(compiled: jax.stages.Compiled) -> int:
    """The largest number of multiplications and additions in one fused computation."""
    *fused, _entry = (compiled.as_text() or "").strip().split("\n}\n")
    return max(body.count(" multiply(") + body.count(" add(") for body in fused)


def test_strict_still_tells_different_arithmetic_apart():
    def left(x, y, z):
        return {"sum": (x + y) + z}

    def right(x, y, z):
        return {"sum": x + (y + z)}

    with pytest.raises(DifferenceError) as caught:
        assert_equivalent(left, right, *(jnp.float32(v) for v in (1.0, 2.0**-24, 2.0**-24)))
    assert caught.value.difference.path == "['sum']"
    assert caught.value.difference.ulp == 1
    assert "strict" in str(caught.value)


def test_max_ulp_is_for_floats_without_strict():
    x = jnp.arange(3.0)
    with pytest.raises(ValueError, match="strict"):
        assert_equivalent(jnp.sin, jnp.sin, x, max_ulp=1)
    with pytest.raises(DifferenceError):
        assert_equivalent(lambda n: n, lambda n: n + 1, jnp.arange(3), strict=False, max_ulp=5)
    with pytest.raises(DifferenceError):
        assert_equivalent(lambda x: x, lambda x: x[:2], x, strict=False, max_ulp=5)


# --- counting equations and instructions


def test_count_equations_by_hand():
    @jax.jit
    def inner(x):
        return jnp.sin(x) + 1.0  # 2

    def f(x):
        y = inner(x) * inner(x)  # 2 calls, 2 x 2 inside, 1
        y = jax.lax.cond(y > 0, jnp.sin, jnp.cos, y)  # gt, convert, cond, 2 inside
        return jax.lax.scan(lambda c, _: (c * 2.0, None), y, length=7)[0]  # scan, 1 inside

    assert count_equations(f, 1.0) == 14
    assert count_equations(f, 1.0, recursive=False) == 7
    assert count_equations(f, 1.0, primitive=primitives.sin_p) == 3
    assert count_equations(f, 1.0, primitive=primitives.sin_p, recursive=False) == 0
    closed = jax.make_jaxpr(f)(1.0)
    assert count_equations(closed) == count_equations(closed.jaxpr) == 14


def test_count_equations_is_not_exponential_in_nesting():
    def double(f):
        return jax.jit(lambda x: f(x) + f(x))

    f = jnp.sin
    for _ in range(12):
        f = double(f)
    # per level two calls and an add; sin stands 2 ** 12 times
    assert count_equations(f, 1.0, primitive=primitives.sin_p) == 2**12


def test_hlo_counts_agree_with_the_compiler():
    grad = jax.jit(jax.grad(scanned))
    compiled = grad.lower(*arguments(jnp.float32)).compile()
    executable: Any = compiled.runtime_executable()
    modules = executable.hlo_modules()
    expected = sum(len(c.instructions()) for m in modules for c in m.computations())
    assert count_hlo_instructions(compiled) == expected > 100


def test_hlo_counts_of_each_stage():
    args = arguments(jnp.float32)
    lowered = jax.jit(scanned).lower(*args)
    assert count_hlo_instructions(scanned, *args, opcode="while") == 1
    assert count_hlo_instructions(lowered, opcode="while", optimized=False) == 1
    assert count_hlo_instructions(scanned, *args, opcode="dot", optimized=False) == 2
    assert count_hlo_instructions(unrolled, *args, opcode="dot", optimized=False) == 2 * LAYERS
    assert count_hlo_instructions(unrolled, *args, opcode="while") == 0
    assert count_hlo_instructions(lowered) == count_hlo_instructions(lowered.compile())
    with pytest.raises(ValueError, match="Lowered"):
        count_hlo_instructions(lowered.compile(), optimized=False)


# --- count_compiles


def test_counts_programs_once_and_cached_calls_not_at_all():
    step, x = jax.jit(lambda x: jnp.sin(x) * 2), jnp.ones(3)
    with count_compiles() as first:
        step(x)
    with count_compiles() as second:
        step(x)
    assert (first.programs, first.traces, first.lowerings, first.cache_hits) == (1, 1, 1, 0)
    assert first.names == ["jit(<lambda>)"]
    assert first.seconds > 0
    assert (second.programs, second.traces, second.names, second.seconds) == (0, 0, [], 0.0)


def test_stages_count_apart():
    step, x = jax.jit(lambda x: x * 3), jnp.ones(3)
    with count_compiles() as counts:
        traced = step.trace(x)
        assert (counts.traces, counts.lowerings, counts.programs) == (1, 0, 0)
        lowered = traced.lower()
        assert (counts.traces, counts.lowerings, counts.programs) == (1, 1, 0)
        lowered.compile()
        assert (counts.traces, counts.lowerings, counts.programs) == (1, 1, 1)


def test_contexts_nest_and_stop():
    x = jnp.ones(3)
    programs = [jax.jit(lambda x, n=n: x + n) for n in range(4)]
    with count_compiles() as outer:
        programs[0](x)
        with count_compiles() as inner:
            programs[1](x)
        with contextlib.suppress(RuntimeError), count_compiles() as failed:
            programs[2](x)
            raise RuntimeError
    programs[3](x)
    assert (outer.programs, inner.programs, failed.programs) == (3, 1, 1)


def test_counts_other_threads():
    x = jnp.ones(3)
    programs = [jax.jit(lambda x, n=n: x * n + n) for n in range(4)]
    with count_compiles() as counts:
        threads = [threading.Thread(target=program, args=(x,)) for program in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (counts.programs, len(counts.names)) == (4, 4)


@pytest.fixture
def cache_dir(tmp_path):
    settings = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    compilation_cache.reset_cache()
    for name, value in settings.items():
        jax.config.update(name, value)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_a_program_from_the_persistent_cache_is_a_hit_not_a_program(cache_dir):
    def f(x):
        return jnp.cos(x) * 3

    x = jnp.ones(3)
    with count_compiles() as cold:
        jax.jit(f)(x)
    jax.clear_caches()
    with count_compiles() as warm:
        jax.jit(f)(x)
        jax.jit(lambda x: jnp.cos(x) * 4)(x)
    assert (cold.programs, cold.cache_hits) == (1, 0)
    assert any(cache_dir.iterdir())
    assert (warm.programs, warm.cache_hits) == (1, 1)
    assert warm.names == ["jit(<lambda>)"]


def test_survives_a_block_that_clears_all_listeners():
    with count_compiles() as counts:
        jax.monitoring.clear_event_listeners()
    assert counts.programs == 0

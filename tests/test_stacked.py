"""`stacked_init` returns what `jax.jit` returns, however the init is written."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import compilecut as cc
from compilecut._bits import first_difference

pytestmark = pytest.mark.quick

KEY = jax.random.key(7)


def assert_same(init: Callable[..., Any], *args: Any) -> cc.StackedInit:
    """Demands what `jax.jit(init)` gives, to the last bit, and returns the wrapped function."""
    wrapped = cc.stacked_init(init)
    result, expected = wrapped(*args), jax.jit(init)(*args)
    assert first_difference(result, expected) is None, first_difference(result, expected)
    for mine, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert getattr(mine, "weak_type", None) == getattr(theirs, "weak_type", None)
        assert mine.committed == theirs.committed
        assert mine.sharding == theirs.sharding
    return wrapped


def kinds(wrapped, *args):
    """Returns how many sites there are of each kind, largest first."""
    return [repeat.n for repeat in wrapped.explain(*args).repeats]


def dense(key, d_in, d_out):
    return {
        "w": jax.random.normal(key, (d_in, d_out)) / np.float32(np.sqrt(d_in)),
        "b": jnp.zeros((d_out,)),
    }


# --- how keys come


def split_and_slice(key, n):
    keys = jax.random.split(key, n)
    return [keys[i] for i in range(n)]


def split_and_iterate(key, n):
    return list(jax.random.split(key, n))


def chain(key, n):
    keys = []
    for _ in range(n):
        key, sub = jax.random.split(key)
        keys.append(sub)
    return keys


def fold(key, n):
    return [jax.random.fold_in(key, i) for i in range(n)]


def traced_index(key, n):
    keys = jax.random.split(key, n)
    return [keys[i] for i in jnp.arange(n)]


def reshaped(key, n):
    keys = jax.random.split(key, (n, 2)).transpose(1, 0, *range(2, 2 + jnp.ndim(key)))
    return [keys.reshape(2 * n, *key.shape)[n + i] for i in range(n)]


def fold_of_counter(key, n):
    count = jnp.zeros((), jnp.uint32)
    keys = []
    for _ in range(n):
        keys.append(jax.random.fold_in(key, count))
        count = count + np.uint32(1)
    return keys


@pytest.mark.parametrize(
    "derive",
    [split_and_slice, split_and_iterate, chain, fold, traced_index, reshaped, fold_of_counter],
)
@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
def test_keys_any_way(derive, make_key):
    def init(key):
        return [dense(k, 8, 16) for k in derive(key, 5)]

    wrapped = assert_same(init, make_key(3))
    assert kinds(wrapped, make_key(3)) == [5, 5]


def test_several_keys_a_site_and_keys_reused():
    def init(key):
        out = []
        for k in jax.random.split(key, 4):
            a, b = jax.random.split(k)
            out.append((jax.random.normal(a, (4,)), jax.random.uniform(b, (4,)), dense(a, 4, 4)))
        return out, jax.random.normal(key, (4,))

    assert kinds(assert_same(init, KEY), KEY) == [5, 4, 4, 4]


def test_key_of_its_own_making():
    def init():
        return [dense(k, 4, 8) for k in jax.random.split(jax.random.key(3), 6)]

    assert kinds(assert_same(init)) == [6, 6]


def test_scalars_from_a_written_key_stay_where_xla_may_fold_them():
    def init():
        return [
            jax.random.normal(k, shape) for k in fold(jax.random.key(3), 3) for shape in [(), (1,)]
        ]

    assert_same(init)


# --- what is drawn


def draws(key, impl):
    """One of each sampler that initialisers use, and some that loop or reject."""
    names = [
        "normal",
        "uniform",
        "truncated",
        "bernoulli",
        "bits",
        "bits8",
        "bits16",
        "randint",
        "choice",
        "permutation",
        "gamma",
        "poisson",
        "categorical",
        "exponential",
        "laplace",
        "gumbel",
        "cauchy",
        "rademacher",
        "dirichlet",
        "ball",
    ]
    k = dict(zip(names, jax.random.split(key, len(names)), strict=True))
    return {
        "normal": jax.random.normal(k["normal"], (3, 5)),
        "uniform": jax.random.uniform(k["uniform"], (3, 5), minval=-2.0, maxval=3.0),
        "truncated": jax.random.truncated_normal(k["truncated"], -2.0, 2.0, (3, 5)),
        "bernoulli": jax.random.bernoulli(k["bernoulli"], 0.3, (7,)),
        "bits": jax.random.bits(k["bits"], (7,)),
        "bits8": jax.random.bits(k["bits8"], (7,), jnp.uint8),
        "bits16": jax.random.bits(k["bits16"], (7,), jnp.uint16),
        "randint": jax.random.randint(k["randint"], (7,), 0, 100),
        "choice": jax.random.choice(k["choice"], 10, (4,), replace=False),
        "permutation": jax.random.permutation(k["permutation"], 9),
        "gamma": jax.random.gamma(k["gamma"], 2.5, (4,)),
        # JAX implements poisson for threefry alone.
        "poisson": jax.random.poisson(k["poisson"], 4.0, (4,)) if "fry" in impl else 0,
        "categorical": jax.random.categorical(k["categorical"], jnp.arange(5.0), shape=(6,)),
        "exponential": jax.random.exponential(k["exponential"], (5,)),
        "laplace": jax.random.laplace(k["laplace"], (5,)),
        "gumbel": jax.random.gumbel(k["gumbel"], (5,)),
        "cauchy": jax.random.cauchy(k["cauchy"], (5,)),
        "rademacher": jax.random.rademacher(k["rademacher"], (5,)),
        "dirichlet": jax.random.dirichlet(k["dirichlet"], jnp.ones(3), (2,)),
        "ball": jax.random.ball(k["ball"], 3),
    }


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("partitionable", [True, False])
def test_every_sampler(impl, partitionable):
    with jax.threefry_partitionable(partitionable):
        key = jax.random.key(1, impl=impl)
        wrapped = assert_same(lambda key: [draws(k, impl) for k in jax.random.split(key, 2)], key)
        assert set(kinds(wrapped, key)) == {2}


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("partitionable", [True, False])
def test_every_generator(impl, partitionable):
    def init(key):
        return [dense(k, 8, 16) for k in jax.random.split(key, 3)]

    with jax.threefry_partitionable(partitionable):
        key = jax.random.key(1, impl=impl)
        wrapped = assert_same(init, key)
        assert kinds(wrapped, key) == [3, 3]
        shared = impl == "threefry2x32" and partitionable
        bits = {r.bits for r in wrapped.explain(key).repeats}
        assert bits == {"shared block" if shared else "own draw", "none"}


@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64, jnp.complex64]
)
def test_dtypes(dtype):
    with jax.enable_x64(dtype == jnp.float64):
        normal = jax.nn.initializers.variance_scaling(
            1.0, "fan_in", "truncated_normal", dtype=dtype
        )
        key = jax.random.key(5)

        def init(key):
            return [normal(k, (8, 12)) for k in jax.random.split(key, 4)]

        assert kinds(assert_same(init, key), key) == [4]


@pytest.mark.parametrize(
    "name",
    [
        "orthogonal",
        "delta_orthogonal",
        "glorot_uniform",
        "he_normal",
        "lecun_normal",
        "zeros",
        "ones",
    ],
)
def test_initializers(name):
    make = getattr(jax.nn.initializers, name)
    initializer = make if name in ("zeros", "ones") else make()
    shape = (3, 3, 4, 4) if name == "delta_orthogonal" else (12, 8)

    def init(key):
        return [initializer(k, shape) for k in jax.random.split(key, 3)]

    assert kinds(assert_same(init, KEY), KEY) == [3]


def test_leaves_that_are_no_floats():
    def init(key):
        sub, other = jax.random.split(key)
        return {
            "mask": jax.random.bernoulli(sub, 0.5, (6,)),
            "ids": jax.random.randint(other, (6,), 0, 9),
            "key": other,
            "raw": jax.random.key_data(sub),
            "step": 0,
            "rate": 0.5,
            "count": jnp.zeros((), jnp.uint32),
            "flag": True,
            "empty": jnp.zeros((0, 3)),
            "drawn empty": jax.random.normal(sub, (0, 3)),
            "nothing": None,
        }

    assert_same(init, KEY)


def test_two_scales_of_one_shape_are_two_kinds():
    def init(key):
        keys = jax.random.split(key, 6)
        return [jax.random.normal(k, (8,)) * np.float32(0.5 + i % 2) for i, k in enumerate(keys)]

    assert kinds(assert_same(init, KEY), KEY) == [3, 3]


def test_negative_zero_is_not_zero():
    def init():
        return [jnp.full((3,), x) for x in (0.0, -0.0, 0.0)]

    assert kinds(assert_same(init)) == [2, 1]


def test_init_that_branches_on_its_shape():
    def site(key, shape):
        if shape[0] > 4:
            return jax.random.normal(key, shape)
        return jax.random.uniform(key, shape)

    def init(key):
        return [site(k, (4 + 4 * (i % 2), 3)) for i, k in enumerate(jax.random.split(key, 6))]

    assert kinds(assert_same(init, KEY), KEY) == [3, 3]


def test_the_key_itself_goes_into_a_site():
    assert_same(lambda key: jax.random.normal(key, (0, 2)), KEY)
    assert_same(lambda key: jax.random.gamma(key, 2.5, (3,)), KEY)
    assert_same(lambda key: jax.random.normal(key, (3,)), jax.random.key(0, impl="rbg"))


def test_nested_jits():
    @functools.partial(jax.jit, static_argnums=1)
    def block(key, width):
        return [jax.jit(dense, static_argnums=(1, 2))(k, width, 4) for k in jax.random.split(key)]

    def init(key):
        return jax.jit(lambda key: [block(k, 8) for k in jax.random.split(key, 3)])(key)

    assert kinds(assert_same(init, KEY), KEY) == [6, 6]


def test_one_site_and_none():
    assert kinds(assert_same(lambda key: dense(key, 3, 4)["w"], KEY), KEY) == [1]
    assert kinds(assert_same(lambda key: {}, KEY), KEY) == []


def test_tied_leaf_gets_a_buffer_each():
    def init(key):
        w = jax.random.normal(key, (4, 4))
        return {"in": w, "out": w, "again": key, "same": key}

    result = assert_same(init, KEY)(KEY)
    assert result["again"] is not KEY
    assert result["in"].unsafe_buffer_pointer() != result["out"].unsafe_buffer_pointer()


def test_results_can_be_donated_without_losing_the_arguments():
    def init(key, x):
        return dense(key, 4, 4), x

    x = jnp.ones((4,))
    params, passed = cc.stacked_init(init)(KEY, x)
    jax.jit(lambda t: jax.tree.map(jnp.copy, t), donate_argnums=0)((params, passed))
    assert not x.is_deleted()


def test_results_of_one_draw_stay_together():
    def init(key):
        out = []
        for k in jax.random.split(key, 3):
            v = jax.random.normal(k, (6, 4))
            out.append({"v": v, "g": jnp.linalg.norm(v, axis=0)})
        return out

    assert kinds(assert_same(init, KEY), KEY) == [3]


def test_data_dependent_init():
    def init(key, x):
        mean = x.mean(axis=0)
        return [jax.random.normal(k, x.shape[1:]) + mean for k in jax.random.split(key, 3)]

    x = jnp.arange(12.0).reshape(3, 4)
    wrapped = assert_same(init, KEY, x)
    assert kinds(wrapped, KEY, x) == [1]  # the mean is a result that all three share


def test_captured_arrays_are_compared_by_content():
    masks = [np.arange(6) % 2 == 0, np.arange(6) % 2 == 0, np.arange(6) % 3 == 0]

    def init(key):
        keys = jax.random.split(key, 3)
        drawn = [
            jnp.where(m, jax.random.normal(k, (6,)), 0) for m, k in zip(masks, keys, strict=True)
        ]
        return drawn, jnp.asarray(masks[0])

    assert kinds(assert_same(init, KEY), KEY) == [2, 1, 1]


def test_shared_constants_are_folded_as_before():
    def init(key):
        scale = jnp.sqrt(jnp.float32(2.0)) / 3
        return [jax.random.normal(k, (16,)) * scale for k in jax.random.split(key, 4)]

    assert kinds(assert_same(init, KEY), KEY) == [4]


def test_stacked_constructors_and_scans():
    def init(key):
        first, second = jax.random.split(key)
        stacked = jax.vmap(lambda k: jax.random.normal(k, (3, 5)))(jax.random.split(first, 4))

        def body(carry, k):
            return carry + 1, jax.random.normal(k, (2,))

        return stacked, jax.lax.scan(body, 0, jax.random.split(second, 3))

    assert_same(init, KEY)
    assert_same(init, jax.random.PRNGKey(2))


def test_blocks_of_many_sizes():
    """Sites larger than a block's usual size, and enough of them for several blocks."""

    def init(key):
        sizes = (1_200_001, 300_000, 7, 900_000, 256, 257)
        return [
            jax.random.normal(k, (n,)) for n, k in zip(sizes, jax.random.split(key, 6), strict=True)
        ]

    wrapped = assert_same(init, KEY)
    assert kinds(wrapped, KEY) == [1] * 6


# --- what XLA shares, rounds together


def curve(key):
    x = jax.random.normal(key, (64,))
    return jnp.exp(-x) * x


def test_what_is_computed_twice_stays_together():
    """XLA makes equal expressions one, and then rounds otherwise than for each alone."""
    assert_same(lambda key: (curve(key), curve(key) + 0.77), KEY)
    assert_same(lambda x: (jnp.exp(x) * x, jnp.exp(x) * x + 0.5), jnp.linspace(0, 1, 100))

    def weight_norm(key):
        def w():
            return jax.random.normal(key, (32, 32)) * 0.02

        return {
            "v": w(),
            "g": jnp.linalg.norm(w(), axis=0),
            "n": w() / jnp.linalg.norm(w(), axis=0),
        }

    assert_same(weight_norm, KEY)


def test_tables_that_are_shared_stay_together():
    def init():
        x = jnp.linspace(-3, 3, 101)
        g = jnp.exp(-(x**2) / 2) * x
        return g, g + x

    assert_same(init)


def test_a_stack_with_another_use_is_not_cut():
    def init(key):
        u = jax.random.normal(key, (12, 33))
        u = jnp.exp(u) * u
        return list(u), u + 0.77

    assert_same(init, KEY)


def test_an_unstacked_piece_with_another_use_is_not_cut():
    def init(key):
        u = jax.random.normal(key, (12, 33))
        first, *rows = jnp.unstack(jnp.exp(u) * u)
        return rows, first + 0.77

    assert assert_same(init, KEY).explain(KEY).skips


def test_many_slices_of_an_argument_or_a_constant():
    table = np.arange(24.0, dtype=np.float32).reshape(12, 2)
    assert_same(lambda x: [x[i] for i in range(12)], jnp.asarray(table))
    assert_same(lambda: [jnp.asarray(table)[i] for i in range(12)])
    assert_same(lambda keys: [keys[i] for i in range(12)], jax.random.split(KEY, 12))


def test_keys_reshaped_in_another_order_and_compared():
    raw = jnp.arange(12, dtype=jnp.uint32).reshape(2, 6)

    def reordered(raw):
        words = jnp.reshape(raw, (6, 2), order="F")
        return [jax.random.normal(jax.random.wrap_key_data(w), (3,)) for w in words]

    def compared(key):
        a, b = jax.random.split(key)
        return jax.random.normal(jax.random.fold_in(key, (a == b).astype(jnp.int32)), (4,))

    assert_same(reordered, raw)
    assert_same(compared, KEY)


# --- what is refused


def test_host_callbacks_stay_as_written():
    def init(key):
        noise = jax.pure_callback(
            lambda: np.ones(3, np.float32), jax.ShapeDtypeStruct((3,), jnp.float32)
        )
        return jax.random.normal(key, (3,)) + noise

    wrapped = cc.stacked_init(init)
    with pytest.warns(cc.CompilecutWarning, match="talks to the host"):
        result = wrapped(KEY)
    assert first_difference(result, jax.jit(init)(KEY)) is None
    (skip,) = wrapped.explain(KEY).skips
    assert skip.reason is cc.SkipReason.EFFECT
    assert "test_stacked.py" in skip.where


def test_a_print_is_still_printed(capfd):
    def init(key):
        jax.debug.print("made {}", key)
        return dense(key, 2, 2)

    with pytest.warns(cc.CompilecutWarning):
        cc.stacked_init(init)(KEY)
    jax.effects_barrier()
    assert "made" in capfd.readouterr().out


def test_many_leaves_of_one_result_are_named():
    def init(key):
        noise = jax.random.normal(key, (12, 4))
        return [row * 2 for row in noise]

    (skip,) = assert_same(init, KEY).explain(KEY).skips
    assert skip.reason is cc.SkipReason.SHARED


def test_sites_cut_from_one_stack():
    """What people write by hand today: a vmap per shape, sliced into sites."""

    def init(key):
        first, second, third = jax.random.split(key, 3)
        stack = jax.vmap(lambda k: jax.random.normal(k, (3, 5)))(jax.random.split(first, 20))
        rows = jax.random.uniform(second, (12, 4))
        flat = jax.random.normal(third, (120,))
        cut = [flat[12 * i : 12 * i + 12].reshape(3, 4) for i in range(10)]
        return {"stack": [stack[i] for i in range(20)], "rows": list(rows), "flat": cut}

    wrapped = assert_same(init, KEY)
    report = wrapped.explain(KEY)
    assert not report.skips
    # Two splits, the draw, three results, three ways to cut.
    assert report.programs == 9
    stacks = cc.stacked_init(init, fan_out="stacks")(KEY)
    assert first_difference(stacks.unstack(), jax.jit(init)(KEY)) is None


# --- size


def count_lowered(wrapped, *args):
    return sum(len(p.as_text().splitlines()) for p in wrapped.lower(*args).programs)


def test_programs_do_not_grow_with_the_number_of_sites():
    def make(n):
        def init(key):
            keys = jax.random.split(key, (n, 2))
            return [(dense(k[0], 8, 16), dense(k[1], 16, 8)) for k in keys]

        return cc.stacked_init(init)

    small, large = make(4), make(64)
    assert len(small.lower(KEY).programs) == len(large.lower(KEY).programs)
    assert count_lowered(small, KEY) == count_lowered(large, KEY)


@pytest.mark.slow
def test_ten_thousand_sites():
    def init(key):
        return [jax.random.normal(jax.random.fold_in(key, i), (3,)) for i in range(10_000)]

    wrapped = cc.stacked_init(init)
    result = wrapped(KEY)
    assert kinds(wrapped, KEY) == [10_000]
    assert wrapped.explain(KEY).programs == 3
    for i in (0, 4_999, 9_999):
        alone = jax.jit(lambda k, i: jax.random.normal(jax.random.fold_in(k, i), (3,)))(KEY, i)
        np.testing.assert_array_equal(result[i], alone)

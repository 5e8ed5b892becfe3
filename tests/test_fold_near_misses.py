"""Blocks that are alike but for one thing, and programs that are odd: never a wrong value."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated_programs import folded
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

import compilecut as cc
from compilecut._check import first_difference
from compilecut._emit._stacks import fill
from compilecut.testing import assert_equivalent

FORMS = ("auto", "unit", "scan")
N, ODD = 6, 3
WS = list(jax.random.normal(jax.random.key(0), (N, 4, 4)) * 0.5)
X = jax.random.normal(jax.random.key(1), (4, 4))
CONSTANT = np.arange(4, dtype=np.float32)
OTHER = np.array([0, 1, 7, 3], np.float32)


def close(expected, found):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert jnp.result_type(a) == jnp.result_type(b)
        assert np.shape(a) == np.shape(b)
        if jnp.issubdtype(jnp.result_type(a), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(
            np.asarray(a, np.float64) if a.dtype != bool else a,
            np.asarray(b, np.float64) if b.dtype != bool else b,
            1e-5,
            1e-5,
        )


def checked(f, *args, form="auto"):
    fold = folded(f, *args, form=form)
    difference = first_difference(fold.original, fold.emitted)
    assert difference is None, difference
    return fold


# --- one block of six is another


@functools.partial(jax.custom_jvp)
def rule_a(x):
    return jnp.sin(x)


@functools.partial(jax.custom_jvp)
def rule_b(x):
    return jnp.sin(x)


@functools.partial(jax.custom_vjp)
def back_a(x):
    return jnp.sin(x)


@functools.partial(jax.custom_vjp)
def back_b(x):
    return jnp.sin(x)


rule_a.defjvp(lambda primals, tangents: (rule_a(*primals), tangents[0] * 2))
rule_b.defjvp(lambda primals, tangents: (rule_b(*primals), tangents[0] * 3))
back_a.defvjp(lambda x: (jnp.sin(x), None), lambda _, g: (g * 2,))
back_b.defvjp(lambda x: (jnp.sin(x), None), lambda _, g: (g * 3,))
saved = jax.checkpoint(lambda x: jnp.sin(jnp.cos(x)))
dropped = jax.checkpoint(
    lambda x: jnp.sin(jnp.cos(x)), policy=jax.checkpoint_policies.everything_saveable
)


def print_it(x):
    jax.debug.print("{}", x.sum())
    return x


# What block 3 does, where the others do the first.
NEAR_MISSES = {
    "dtype": (
        lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
        lambda x: x.astype(jnp.float16).astype(jnp.float32),
    ),
    "axis": (lambda x: x / (1 + abs(x).sum(0)), lambda x: x / (1 + abs(x).sum(1))),
    "kept axis": (
        lambda x: x - x.mean(0, keepdims=True),
        lambda x: x - x.mean(1, keepdims=True),
    ),
    "constant": (lambda x: x * CONSTANT, lambda x: x * OTHER),
    "constant's zero": (lambda x: x / (CONSTANT + 1), lambda x: x / (CONSTANT - 5)),
    "operands": (lambda x: jnp.sin(x) - x, lambda x: x - jnp.sin(x)),
    "operands of a dot": (lambda x: x @ jnp.sin(x), lambda x: jnp.sin(x) @ x),
    "operands of where": (
        lambda x: jnp.where(x > 0, x, jnp.cos(x)),
        lambda x: jnp.where(x > 0, jnp.cos(x), x),
    ),
    "reduction": (lambda x: x + x.sum(0).sum(0), lambda x: x + x.sum(1).sum(0)),
    "reduction at once": (lambda x: x + x.sum(0).sum(0), lambda x: x + x.sum((0, 1))),
    "sum or max": (lambda x: x * x.sum(), lambda x: x * x.max()),
    "compare": (lambda x: jnp.where(x > 0, x, 0.5), lambda x: jnp.where(x >= 0, x, 0.5)),
    "precision": (
        lambda x: lax.dot(x, x, precision="default"),
        lambda x: lax.dot(x, x, precision="highest"),
    ),
    "contraction": (lambda x: x @ x.T, lambda x: lax.dot_general(x, x, (((0,), (0,)), ((), ())))),
    "slice": (
        lambda x: jnp.concatenate([x[1:], x[:1]]),
        lambda x: jnp.concatenate([x[2:], x[:2]]),
    ),
    "slice start": (lambda x: x + x[:1], lambda x: x + x[1:2]),
    "slice axis": (lambda x: x + x[1], lambda x: x + x[:, 1]),
    "number": (lambda x: x * 2.0 + 1.0, lambda x: x * 2.0 + 3.0),
    "sign of zero": (lambda x: jnp.copysign(1.0, x * 0.0), lambda x: jnp.copysign(1.0, x * -0.0)),
    "nan": (lambda x: jnp.maximum(x, 0.0), lambda x: jnp.maximum(x, jnp.nan)),
    "power": (lambda x: x**2, lambda x: x**3),
    "reverse": (lambda x: lax.cumsum(x, 0), lambda x: lax.cumsum(x, 0, reverse=True)),
    "sort": (lambda x: jnp.sort(x, 0), lambda x: jnp.sort(x, 0, descending=True)),
    "inner jit": (lambda x: jax.jit(jnp.sin)(x), lambda x: jax.jit(jnp.cos)(x)),
    "branch": (
        lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.tanh, x),
    ),
    "branches": (
        lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        lambda x: lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, x),
    ),
    "loop": (
        lambda x: lax.fori_loop(0, 2, lambda i, c: c * 0.5, x),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c * 0.5, x),
    ),
    "loop's body": (
        lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x)[1],
        lambda x: lax.scan(lambda c, r: (c * r, c + r), x[0], x)[1],
    ),
    "loop's direction": (
        lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x)[1],
        lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x, reverse=True)[1],
    ),
    "jvp rule": (rule_a, rule_b),
    "vjp rule": (back_a, back_b),
    "policy": (saved, dropped),
    "rule or none": (rule_a, jnp.sin),
    "remat or none": (saved, lambda x: jnp.sin(jnp.cos(x))),
    "random": (
        lambda x: x + jax.random.normal(jax.random.key(1), (4, 4)),
        lambda x: x + jax.random.normal(jax.random.key(1, impl="rbg"), (4, 4)),
    ),
    "distribution": (
        lambda x: x + jax.random.uniform(jax.random.key(1), (4, 4)),
        lambda x: x + jax.random.uniform(jax.random.key(1), (4, 4), minval=-1.0),
    ),
    "rounding": (
        lambda x: lax.round(x * 3),
        lambda x: lax.round(x * 3, lax.RoundingMethod.TO_NEAREST_EVEN),
    ),
    "gather": (lambda x: x[jnp.array([0, 2, 1, 3])], lambda x: x[jnp.array([0, 1, 2, 3])]),
    "transpose": (lambda x: x.T + x, lambda x: x + x),
    "stop_gradient": (lambda x: x * jnp.sin(x), lambda x: x * lax.stop_gradient(jnp.sin(x))),
}


def near_miss(name, odd: int | None = ODD):
    usual, other = NEAR_MISSES[name]

    def program(ws, x):
        for i, w in enumerate(ws):
            y = jnp.tanh(x @ w) - jnp.cos(x) * 0.5
            y = other(y) if i == odd else usual(y)
            x = x * 0.5 + jnp.sin(y) / (1.0 + abs(y).max())
        return x

    return program


def summed(f):
    return lambda *args: (f(*args) ** 2).sum()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_near_miss_stays_what_it_is(name, form):
    program = near_miss(name)
    fold = checked(program, WS, X, form=form)
    clean = folded(near_miss(name, odd=None), WS, X, form=form)
    assert first_difference(clean.original, fold.emitted) is not None, "the odd block is gone"
    assert first_difference(fold.original, clean.emitted) is not None
    checked(jax.grad(summed(program)), WS, X, form=form)
    checked(jax.grad(summed(cc.fold(program, form=form))), WS, X, form=form)


def runs(name, place):
    program = near_miss(name, odd=place % N)
    assert_equivalent(program, cc.fold(program, form=FORMS[place % 3]), WS, X)
    grad = jax.grad(summed(program))
    close(jax.jit(grad)(WS, X), jax.jit(jax.grad(summed(cc.fold(program))))(WS, X))


# Running one costs fifty times as much as checking it.
@pytest.mark.parametrize("name", ["operands", "number", "branches", "jvp rule", "vjp rule"])
def test_a_near_miss_gives_the_same_bits(name):
    runs(name, list(NEAR_MISSES).index(name))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "name"), list(enumerate(NEAR_MISSES)))
def test_every_near_miss_gives_the_same_bits(place, name):
    runs(name, place)


@pytest.mark.slow
@pytest.mark.parametrize("odd", [0, 1, N - 2, N - 1])
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_at_the_ends(name, odd):
    for form in FORMS:
        checked(near_miss(name, odd), WS, X, form=form)
        checked(jax.value_and_grad(summed(near_miss(name, odd))), WS, X, form=form)


def wiring(name):
    """Blocks of the same equations, wired in another way in block 3."""

    def program(ws, x):
        history, out, total = [x, x], [], 0.0
        for i, w in enumerate(ws):
            odd = i == ODD
            a = history[-2] if name == "two back" and odd else x
            if name == "tied" and odd:
                w = ws[ODD - 1]
            if name == "transposed" and odd:
                w = w.T
            b = jnp.sin(a @ w)
            c = jnp.cos(a) * 0.5
            d = jnp.tanh(c if name == "internal edge" and odd else b)
            e = d - c
            if name == "extra use" and odd:
                out.append(b)
            if name == "use later" and odd:
                total = total + b.sum()
            if name == "use before" and i == ODD + 1:
                e = e + jnp.sin(out[0])
            if name == "use before" and odd:
                out.append(c)
            x = a * 0.5 + (d if name == "other result" and odd else e)
            history.append(x)
        return x, out, total

    return program


WIRINGS = "none,two back,tied,transposed,internal edge,extra use,use later,use before,other result"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WIRINGS.split(","))
def test_another_wiring_stays_what_it_is(name, form):
    program = wiring(name)
    fold = checked(program, WS, X, form=form)
    checked(jax.grad(lambda *args: (program(*args)[0] ** 2).sum()), WS, X, form=form)
    plain = folded(wiring("none"), WS, X, form=form)
    assert name == "none" or first_difference(plain.original, fold.emitted) is not None
    if form == "scan" and name in ("two back", "use before"):
        assert_equivalent(program, cc.fold(program, form=form), WS, X)


# --- effects


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["one", "all", "between"])
def test_effects_stay_in_their_order(form, where):
    seen = []

    def program(ws, x):
        for i, w in enumerate(ws):
            y = jnp.tanh(x @ w) - jnp.cos(x) * 0.5
            if where == "all" or (where == "one" and i == ODD):
                jax.debug.callback(lambda v, i=i: seen.append((i, v.shape)), y, ordered=True)
            x = x * 0.5 + jnp.sin(y) / (1.0 + abs(y).max())
            if where == "between" and i % 2:
                jax.debug.callback(lambda v, i=i: seen.append((i, v.shape)), x, ordered=True)
        return x

    checked(program, WS, X, form=form)
    places = {"one": [ODD], "all": range(N), "between": range(1, N, 2)}[where]
    cc.fold(program, form=form)(WS, X)
    jax.effects_barrier()
    assert seen == [(i, (4, 4)) for i in places]


@pytest.mark.parametrize("form", FORMS)
def test_two_reads_are_two(form):
    counter = iter(range(100))

    def program(ws, x):
        for w in ws:
            step = io_callback(
                lambda: np.float32(next(counter)),
                jax.ShapeDtypeStruct((), jnp.float32),
                ordered=True,
            )
            x = jnp.tanh(x @ w) - jnp.cos(x) * 0.5 + step
            x = x * 0.5 + jnp.sin(x) / (1.0 + abs(x).max())
        return x

    fold = cc.fold(program, form=form)
    first = fold(WS, X)
    again = fold(WS, X)
    assert next(counter) == 2 * N
    assert not np.array_equal(first, again)


# --- odd programs


def stack_of(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w) * 0.5 + x - jnp.sin(x)
    return x


@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_nothing(form):
    x = jnp.zeros((0, 4))
    checked(stack_of, WS, x, form=form)
    close(stack_of(WS, x), cc.fold(stack_of, form=form)(WS, x))
    ws = [w[:, :0] for w in WS]

    def program(ws, x):
        for w in ws:
            x = jnp.tanh(x + (x @ w).sum()) * 0.5 + jnp.concatenate([w, x], 1)[:, :4]
        return x, ws

    checked(program, ws, X, form=form)
    close(program(ws, X), cc.fold(program, form=form)(ws, X))


@pytest.mark.parametrize("form", FORMS)
def test_scalars(form):
    def program(a, x):
        for i in range(8):
            x = jnp.sin(x * a) * 0.5 + jnp.cos(x + i) - x / (2.0 + i)
        return x

    fold = checked(program, jnp.float32(0.3), jnp.float32(0.7), form=form)
    assert fold.plan.folds
    checked(jax.grad(program), jnp.float32(0.3), jnp.float32(0.7), form=form)
    assert_equivalent(program, cc.fold(program, form=form), jnp.float32(0.3), jnp.float32(0.7))


@pytest.mark.parametrize("form", FORMS)
def test_weak_types_are_kept(form):
    def program(x):
        y = x
        for i in range(8):
            y = jnp.sin(y * 0.3) * (0.5 + i) + jnp.cos(y + i) - y / 2.0
        return y, y + 1

    folded_fn = cc.fold(program, form=form)
    x = jnp.asarray(0.5)
    assert x.weak_type
    expected = jax.eval_shape(program, x)
    found = jax.eval_shape(folded_fn, x)
    assert jax.tree.map(lambda a: a.weak_type, expected) == jax.tree.map(
        lambda a: a.weak_type, found
    )
    checked(program, x, form=form)
    close(program(x), folded_fn(x))


@pytest.mark.parametrize("form", FORMS)
def test_programs_without_inputs(form):
    def program():
        x = jnp.ones((4, 4))
        for w in WS:
            x = jnp.tanh(x @ w) * 0.5 + x - jnp.sin(x)
        return x

    checked(program, form=form)
    close(program(), cc.fold(program, form=form)())
    close(program(), jax.jit(cc.fold(program, form=form))())


@pytest.mark.parametrize("form", FORMS)
def test_outputs_that_are_no_results(form):
    def program(ws, x):
        y = stack_of(ws, x)
        return x, 1.0, CONSTANT, y, y, ws[2], None, {"a": (), "b": [y, 2]}, jnp.arange(3)

    checked(program, WS, X, form=form)
    close(jax.jit(program)(WS, X), jax.jit(cc.fold(program, form=form))(WS, X))
    direct = cc.fold(program, form=form)(WS, X)
    assert direct[1] == 1.0
    assert direct[6] is None
    close(program(WS, X)[3], direct[3])


@pytest.mark.parametrize("form", FORMS)
def test_keys_integers_and_booleans_in_blocks(form):
    def program(key, ws, x, flags):
        mask, count = x > 0, jnp.int32(0)
        for w, flag in zip(ws, flags, strict=True):
            key, sub = jax.random.split(key)
            keep = jax.random.bernoulli(sub, 0.5, x.shape) & flag
            mask = mask ^ (keep & (x > 0.1))
            count = count * 3 + mask.sum(dtype=jnp.int32) % 5
            x = jnp.where(mask, x @ w, x) + (count & 3).astype(jnp.float32)
        return key, mask, count, x

    flags = [jnp.asarray(i % 2 == 0) for i in range(N)]
    for key in (jax.random.key(3), jax.random.key(3, impl="rbg"), jax.random.PRNGKey(3)):
        fold = checked(program, key, WS, X, flags, form=form)
        assert fold.plan.folds
        assert max(fold.blocks) == N
        close(jax.jit(program)(key, WS, X, flags), cc.fold(program, form=form)(key, WS, X, flags))


@pytest.mark.parametrize("form", FORMS)
def test_x64(form, x64):
    def program(ws, x):
        for i, w in enumerate(ws):
            x = jnp.tanh(x @ w) * 0.1 + x - jnp.sin(x) * np.float64(i + 0.1) + i
        return x, x.astype(jnp.float32)

    ws, x = [w.astype(jnp.float64) for w in WS], X.astype(jnp.float64)
    checked(program, ws, x, form=form)
    checked(jax.grad(lambda *args: program(*args)[0].sum()), ws, x, form=form)
    close(program(ws, x), cc.fold(program, form=form)(ws, x))


def test_the_same_function_with_and_without_x64():
    fold = cc.fold(stack_of)
    fold(WS, X)
    with jax.enable_x64(True):
        wide = [w.astype(jnp.float64) for w in WS], X.astype(jnp.float64)
        assert fold(*wide).dtype == jnp.float64
        close(stack_of(*wide), fold(*wide))
    assert fold(WS, X).dtype == jnp.float32


def test_other_arguments_are_never_given_an_old_plan():
    def program(ws, x, scale=1.0, shape=None, flag=True):
        for w in ws:
            x = jnp.tanh(x @ w) * scale + (x if flag else -x)
        return x.reshape(shape) if shape else x

    fold = cc.fold(program)
    for args, kwargs in [
        ((WS, X), {}),
        ((WS, X, 2.0), {}),
        ((WS, X, 2), {}),
        ((WS, X), {"scale": 0.0}),
        ((WS, X), {"scale": -0.0}),
        ((WS, X), {"scale": jnp.float32(3)}),
        ((WS[:4], X), {}),
        ((tuple(WS), X), {}),
        ((WS, X[:2]), {}),
        ((WS, X), {"shape": (2, 8)}),
        ((WS, X), {"flag": False}),
        ((WS, X), {"flag": 0}),
        ((WS, np.asarray(X)), {}),
        ((WS, X.astype(jnp.bfloat16)), {}),
    ]:
        with jax.numpy_dtype_promotion("standard"):
            close(program(*args, **kwargs), fold(*args, **kwargs))


def test_unused_arguments_and_none():
    def program(ws, x, unused, nothing, tree):
        return stack_of(ws, x), nothing, tree["b"]

    args = (WS, X, jnp.ones(3), None, {"a": None, "b": jnp.zeros(2), "c": ()})
    close(program(*args), cc.fold(program)(*args))
    close(program(*args), jax.jit(cc.fold(program))(*args))


def test_a_missing_argument_may_be_a_key():
    for key in (jax.random.key(0), jax.random.split(jax.random.key(0, impl="rbg"), 3)):
        assert jax.eval_shape(lambda key=key: fill(jax.typeof(key))).dtype == key.dtype


def test_blocks_that_call_a_function_with_its_own_rule_are_found():
    def program(ws, x):
        for w in ws:
            x = x + jax.nn.relu(x @ w) * 0.5 - jnp.sin(x)
        return x

    assert checked(program, WS, X).blocks == [N]


# --- transforms


TRANSFORMS = {
    "jit": jax.jit,
    "grad": lambda f: jax.grad(summed(f), argnums=(0, 1)),
    "grad of grad": lambda f: jax.grad(
        lambda ws, x: (jax.grad(summed(f), argnums=1)(ws, x) ** 2).sum()
    ),
    "vmap": lambda f: jax.vmap(f, (None, 0)),
    "vmap weights": lambda f: (
        lambda ws, x: jax.vmap(f, (0, None))([jnp.stack([w, w * 2]) for w in ws], x)
    ),
    "jvp": lambda f: lambda ws, x: jax.jvp(f, (ws, x), (ws, x)),
    "vjp": lambda f: lambda ws, x: jax.vjp(f, ws, x)[1](x),
    "remat": lambda f: jax.grad(summed(jax.checkpoint(f))),
    "remat saves nothing": lambda f: jax.grad(
        summed(jax.checkpoint(f, policy=jax.checkpoint_policies.nothing_saveable))
    ),
    "linearize": lambda f: lambda ws, x: jax.linearize(f, ws, x)[1](ws, x),
    "jacfwd": lambda f: lambda ws, x: jax.jacfwd(lambda x: f(ws, x[None])[0])(x[0]),
    "hessian": lambda f: lambda ws, x: jax.hessian(lambda x: f(ws, x[None])[0].sum())(x[0]),
    "scan": lambda f: lambda ws, x: lax.scan(lambda c, _: (f(ws, c), c), x, None, length=3),
    "while": lambda f: (
        lambda ws, x: lax.while_loop(lambda x: x.sum() < 0, lambda x: f(ws, x) + 1, x)
    ),
    "cond": lambda f: lambda ws, x: lax.cond(x.sum() > 0, f, lambda ws, x: x, ws, x),
    "fold": cc.fold,
    "custom_vjp": lambda f: _with_own_rule(f),
    "vmap of grad": lambda f: jax.vmap(jax.grad(summed(f), 1), (None, 0)),
    "closure in grad": lambda f: lambda ws, x: jax.grad(lambda x: f(ws, x * x.sum()).sum())(x),
}


def _with_own_rule(f):
    g = jax.custom_vjp(f)
    g.defvjp(lambda ws, x: (f(ws, x), (ws, x)), lambda r, g: jax.vjp(f, *r)[1](g))
    return jax.grad(summed(g))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_under_transforms(name, form):
    transform = TRANSFORMS[name]
    ws = WS[:4]
    fold = cc.fold(stack_of, form=form)
    if form == "scan":
        expected = jax.jit(transform(stack_of))(ws, X)
        close(expected, jax.jit(transform(fold))(ws, X))
        close(expected, jax.jit(cc.fold(transform(stack_of), form=form))(ws, X))
    checked(transform(fold), ws, X, form=form)
    checked(transform(stack_of), ws, X, form=form)


@pytest.mark.parametrize("form", FORMS)
def test_closures_over_tracers(form):
    def outer(w0, x):
        fold = cc.fold(lambda ws, x: stack_of([w + w0 for w in ws], x @ w0), form=form)
        return fold(WS, x)

    def plain(w0, x):
        return stack_of([w + w0 for w in WS], x @ w0)

    for transform in (
        jax.jit,
        lambda f: jax.grad(summed(f), (0, 1)),
        lambda f: jax.vmap(f, (None, 0)),
        lambda f: lambda w, x: lax.scan(lambda c, _: (f(w, c), None), x, None, length=2)[0],
    ):
        close(jax.jit(transform(plain))(WS[0], X), jax.jit(transform(outer))(WS[0], X))
    close(jax.grad(summed(plain))(WS[0], X), jax.grad(summed(outer))(WS[0], X))
    fold = cc.fold(lambda x: stack_of(WS, x), form=form)
    for scale in (1.0, 2.0):  # the same wrapped function under two traces
        close(
            jax.jit(lambda x, s=scale: stack_of(WS, x * s))(X),
            jax.jit(lambda x, s=scale: fold(x * s))(X),
        )


def test_a_tracer_of_an_earlier_trace_is_not_remembered():
    box = {}

    @cc.fold
    def program(x):
        return stack_of([w * box["scale"] for w in WS], x)

    def call(scale, x):
        box["scale"] = scale
        return program(x)

    for scale in (1.0, 2.0, 3.0):
        found = jax.jit(call)(jnp.float32(scale), X)
        close(stack_of([w * scale for w in WS], X), found)


@pytest.mark.parametrize("form", FORMS)
def test_shard_map_and_sharded_operands(form):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.random.normal(jax.random.key(2), (16, 4))

    def inside(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w) * 0.5 + x - lax.pmean(x, "d")
        return x

    def outer(f):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d")))

    expected = outer(inside)(WS, x)
    close(expected, outer(cc.fold(inside, form=form))(WS, x))
    close(expected, jax.jit(cc.fold(outer(inside), form=form))(WS, x))
    checked(outer(inside), WS, x, form=form)

    placed = jax.device_put(x, jax.NamedSharding(mesh, P("d")))
    close(stack_of(WS, x), cc.fold(stack_of, form=form)(WS, placed))
    constrained = lambda ws, x: lax.with_sharding_constraint(  # noqa: E731
        stack_of(ws, x), jax.NamedSharding(mesh, P("d"))
    )
    found = jax.jit(cc.fold(constrained, form=form))(WS, x)
    assert found.sharding.is_equivalent_to(jax.NamedSharding(mesh, P("d")), 2)


@pytest.mark.parametrize("form", FORMS)
def test_donation(form):
    step = jax.jit(cc.fold(lambda x, ws: stack_of(ws, x), form=form), donate_argnums=0)
    x = X + 0
    close(stack_of(WS, X), step(x, WS))
    assert x.is_deleted()


def test_methods_and_static_fields():
    class Model:
        def __init__(self, depth):
            self.depth = depth

        @cc.fold
        def __call__(self, ws, x):
            return stack_of(ws[: self.depth], x)

    close(stack_of(WS[:4], X), Model(4)(WS, X))
    close(stack_of(WS[:5], X), Model(5)(WS, X))


# --- several repeats that get in each other's way


@pytest.mark.parametrize("form", FORMS)
def test_two_stacks_that_are_woven(form):
    """Each block of one stack reads the other stack's last block."""

    def program(ws, vs, x, y):
        for w, v in zip(ws, vs, strict=True):
            x = jnp.tanh(x @ w) * 0.5 + jnp.sin(y) - jnp.cos(x)
            y = jax.nn.softmax(y @ v) + x * 0.3 - y.mean()
        return x, y

    checked(program, WS, WS, X, X, form=form)
    checked(jax.grad(lambda *a: sum(r.sum() for r in program(*a))), WS, WS, X, X, form=form)
    close(program(WS, WS, X, X), cc.fold(program, form=form)(WS, WS, X, X))


@pytest.mark.parametrize("form", FORMS)
def test_a_repeat_before_and_behind_another(form):
    """Blocks of which half is needed by another loop, and half needs that loop."""

    def program(ws, x):
        first = [jnp.tanh(x @ w) * 0.5 - jnp.sin(w) for w in ws]
        y = x
        for a in first:
            y = jnp.cos(y + a) * 0.3 - y / (1 + abs(y).max()) + jnp.exp(-a * a)
        return sum(
            jnp.tanh(y @ w) * 0.5 - jnp.sin(a * y) + jnp.cos(a)
            for w, a in zip(ws, first, strict=True)
        )

    checked(program, WS, X, form=form)
    checked(jax.grad(summed(program)), WS, X, form=form)
    assert_equivalent(program, cc.fold(program, form=form), WS, X)


@pytest.mark.parametrize("form", FORMS)
def test_an_encoder_and_a_decoder(form):
    """The second stack reads the first in reverse order."""

    def program(ws, vs, x):
        kept = []
        for w in ws:
            x = jnp.tanh(x @ w) * 0.5 + x - jnp.sin(x)
            kept.append(x)
        for v, k in zip(vs, reversed(kept), strict=True):
            x = jnp.cos(x @ v) - x * 0.3 + jnp.tanh(k) * 0.5
        return x, kept[2]

    fold = checked(program, WS, WS, X, form=form)
    assert fold.blocks == [N, N]
    checked(jax.grad(lambda *a: program(*a)[0].sum()), WS, WS, X, form=form)
    assert_equivalent(program, cc.fold(program, form=form), WS, WS, X)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [1, 0, 3, 2, 5, 4],
                                   [0, 2, 4, 1, 3, 5], [0, 0, 1, 1, 2, 2], [3, 3, 3, 3, 3, 3],
                                   [1, 2, 3, 4, 5, 0]])  # fmt: skip
def test_slices_that_walk_in_any_order(form, order):
    def program(W, B, x):
        for i, j in zip(order, reversed(order), strict=True):
            x = jnp.tanh(x @ W[i]) * 0.5 + B[j] - jnp.sin(x)
        return x

    W = jnp.stack(WS)
    checked(program, W, W[:, 0], X, form=form)
    checked(jax.grad(summed(program), argnums=(0, 1)), W, W[:, 0], X, form=form)
    if form == "scan":
        assert_equivalent(program, cc.fold(program, form=form), W, W[:, 0], X)


@pytest.mark.parametrize("form", FORMS)
def test_windows_that_walk_over_one_array(form):
    def program(A, x):
        for i in range(N):
            x = jnp.tanh(x + A[2 * i : 2 * i + 4]) * 0.5 + A[i, None] - jnp.sin(x) * A[-1 - i]
        return x

    A = jax.random.normal(jax.random.key(4), (16, 4))
    checked(program, A, X, form=form)
    checked(jax.grad(summed(program)), A, X, form=form)
    assert_equivalent(program, cc.fold(program, form=form), A, X)


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_differ_between_blocks(form):
    numbers = [0.0, -0.0, float("nan"), float("inf"), 1e-40, 3.0, -1.0, 0.5]

    def program(x):
        out = []
        for i, number in enumerate(numbers):
            y = jnp.copysign(x, number) * 0.5 + jnp.where(jnp.arange(4) < i, number, x)
            out.append(jnp.sin(y) / (1.0 + abs(y)) + (x > number).astype(jnp.float32))
        return out

    checked(program, X, form=form)
    assert_equivalent(program, cc.fold(program, form=form), X)


@pytest.mark.parametrize("form", FORMS)
def test_blocks_that_only_differ_in_a_mask_object(form):
    """Mask constants that are separate objects of equal content, or not."""

    def program(ws, x):
        for i, w in enumerate(ws):
            mask = np.ones((4, 4), np.float32)
            if i == ODD:
                mask[1, 1] = 0.25
            x = jnp.tanh(x @ w * jnp.asarray(mask)) * 0.5 + x * mask - jnp.sin(x)
        return x

    checked(program, WS, X, form=form)
    assert_equivalent(program, cc.fold(program, form=form), WS, X)


def test_nothing_to_fold_is_left_alone():
    fold = folded(lambda x: jnp.sin(x) @ jnp.cos(x), X)
    assert not fold.plan.folds
    assert fold.emitted is fold.original

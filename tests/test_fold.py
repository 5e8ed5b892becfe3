"""`fold` as its users call it: values, structure, transforms, methods, modules, errors."""

import functools
import inspect
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import compilecut as cc
from compilecut.testing import assert_equivalent, count_compiles, count_equations

pytestmark = pytest.mark.quick

FORMS = ("auto", "unit", "scan")
N = 6
WS = [jax.random.normal(key, (8, 8)) / 3 for key in jax.random.split(jax.random.key(0), N)]
X = jax.random.normal(jax.random.key(1), (4, 8))


def layer(w, x):
    h = jnp.tanh(x @ w) * 0.3
    h = h + jnp.sin(x) / (1.0 + jnp.abs(x).sum())
    return h - jnp.cos(h) * jnp.exp(-x * x)


def model(ws, x):
    for w in ws:
        x = layer(w, x)
    return x


def loss(ws, x):
    return (model(ws, x) ** 2).sum()


def train_step(ws, x):
    value, grads = jax.value_and_grad(loss)(ws, x)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value


def close(expected, found):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# --- values


@pytest.mark.parametrize("form", [*FORMS, "batch"])
@pytest.mark.parametrize("function", [model, loss, train_step])
def test_values_are_those_of_the_function(function, form):
    assert_equivalent(function, cc.fold(function, form=form, check=True), WS, X)


@pytest.mark.parametrize("form", FORMS)
def test_called_directly_it_compiles_once(form):
    folded = cc.fold(loss, form=form)
    close(jax.jit(loss)(WS, X), folded(WS, X))
    with count_compiles() as counts:
        folded(WS, X)
    assert counts.programs == 0


def test_results_keep_types_and_weak_types():
    def typed(ws, x):
        y = model(ws, x)
        return {"half": y.astype(jnp.bfloat16), "weak": jnp.asarray(1.0) * 2, "bool": y > 0}

    expected, found = jax.jit(typed)(WS, X), cc.fold(typed)(WS, X)
    assert jax.tree.map(jax.typeof, expected) == jax.tree.map(jax.typeof, found)


def test_statics_are_seen_as_they_are():
    def switched(ws, x, *, kind, scale=1.0, names=("a",)):
        assert isinstance(kind, str)
        assert isinstance(scale, float)
        return {name: (model(ws, x) * scale, kind) for name in names}

    folded = cc.fold(switched)
    found = folded(WS, X, kind="l1", names=("a", "b"))
    assert found["b"][1] == "l1"
    close(model(WS, X), found["a"][0])
    close(model(WS, X) * 3.0, folded(WS, X, kind="l2", scale=3.0)["a"][0])
    assert folded(WS, x=X, kind="l2")["a"][1] == "l2"


def test_arrays_of_numpy_are_data():
    traced = []

    def counted(ws, x):
        traced.append(None)
        return model(ws, x)

    folded = cc.fold(counted)
    close(model(WS, X), folded([np.asarray(w) for w in WS], np.asarray(X)))
    folded([np.asarray(w) + 1 for w in WS], np.asarray(X))
    assert len(traced) == 1


# --- structure


@pytest.mark.parametrize("function", [model, loss, train_step])
def test_only_calls_are_added_with_depth(function):
    def left(n):
        ws = [w * (1 + i) for i, w in enumerate(WS * (n // N))]
        return cc.explain(function)(ws, X).equations_left

    def written(n):
        return count_equations(function, WS * (n // N), X)

    assert left(4 * N) - left(2 * N) < 0.25 * (written(4 * N) - written(2 * N))


@pytest.mark.parametrize("function", [model, loss])
def test_over_a_stack_the_size_is_that_of_one_block(function):
    def left(n):
        def walking(stack, x):
            return function([stack[i] for i in range(n)], x)

        return count_equations(cc.fold(walking, form="scan"), jnp.stack(WS * (n // N)), X)

    assert left(4 * N) == left(2 * N)


def test_nothing_to_fold_is_the_same_program():
    def plain(x):
        return jnp.sin(x) @ jnp.cos(x).T

    assert str(jax.make_jaxpr(cc.fold(plain))(X)) == str(jax.make_jaxpr(plain)(X))


def test_min_blocks():
    def of(n, least):
        return len(cc.fold(model, min_blocks=least).report(WS[:n], X).repeats)

    assert (of(4, 4), of(4, 5), of(3, 3), of(2, 3)) == (1, 0, 1, 0)


def test_folding_is_idempotent():
    folded = cc.fold(loss)
    assert cc.fold(folded) is folded
    twice = cc.fold(lambda ws, x: folded(ws, x))
    assert_equivalent(loss, twice, WS, X)
    # A call of a unit may be wrapped once more; what is in it stays the same.
    assert count_equations(twice, WS, X) <= count_equations(folded, WS, X) + N


# --- transforms


TRANSFORMS = {
    "jit": jax.jit,
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "jvp": lambda f: lambda ws, x: jax.jvp(f, (ws, x), (ws, x)),
    "vjp": lambda f: lambda ws, x: jax.vjp(f, ws, x)[1](jnp.ones(())),
    "vmap": lambda f: jax.vmap(f, (None, 0)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f), (None, 0)),
    "grad of grad": lambda f: jax.grad(lambda ws, x: (jax.grad(f, 1)(ws, x) ** 2).sum()),
    "remat": lambda f: jax.grad(jax.checkpoint(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "cond": lambda f: lambda ws, x: jax.lax.cond(x[0, 0] > 0, f, lambda ws, x: x.sum(), ws, x),
    "scan": lambda f: (
        lambda ws, x: jax.lax.scan(lambda c, _: (c * 0.5 + f(ws, c), None), x, length=3)[0]
    ),
}


@pytest.mark.parametrize("form", ["unit", "scan"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_under_a_transform(name, form):
    transform = TRANSFORMS[name]
    folded = cc.fold(loss, form=form)
    expected, found = transform(loss), transform(lambda *args: folded(*args))
    if name == "grad of grad":
        # Second derivatives of a block are added up in another order than those of its copies.
        return close(jax.jit(expected)(WS, X), jax.jit(found)(WS, X))
    return assert_equivalent(expected, found, WS, X)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_folded(name):
    transformed = TRANSFORMS[name](loss)
    assert_equivalent(transformed, cc.fold(transformed, check=True), WS, X)


@pytest.mark.parametrize("form", FORMS)
def test_in_shard_map(form):
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"mesh": mesh, "in_specs": (P(), P("rows")), "out_specs": P("rows")}
    mapped = jax.shard_map(model, **specs)
    folded = jax.shard_map(cc.fold(model, form=form), **specs)
    close(jax.jit(mapped)(WS, X), jax.jit(folded)(WS, X))
    assert_equivalent(mapped, cc.fold(mapped, form=form, check=True), WS, X)


def test_on_sharded_arrays():
    mesh = jax.make_mesh((4, 2), ("rows", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    ws = jax.device_put(WS, NamedSharding(mesh, P(None, "model")))
    x = jax.device_put(X, NamedSharding(mesh, P("rows")))
    close(jax.jit(train_step)(ws, x), cc.fold(train_step)(ws, x))
    close(jax.jit(train_step)(ws, x), jax.jit(cc.fold(train_step))(ws, x))


def test_under_explicit_axes():
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(X, P("rows"))
        expected, found = jax.jit(model)(WS, x), cc.fold(model)(WS, x)
        assert jax.typeof(expected) == jax.typeof(found)
        close(expected, found)


def test_eval_shape_and_make_jaxpr():
    folded = cc.fold(train_step)
    assert jax.eval_shape(folded, WS, X) == jax.eval_shape(train_step, WS, X)
    assert jax.make_jaxpr(folded)(WS, X).out_avals == jax.make_jaxpr(train_step)(WS, X).out_avals


def test_donation_is_the_callers():
    donating = jax.jit(cc.fold(train_step), donate_argnums=0)
    mine = [w + 0 for w in WS]
    new, _ = donating(mine, X)
    assert all(w.is_deleted() for w in mine)
    assert not any(w.is_deleted() for w in new)


def test_without_jit():
    with jax.disable_jit():
        close(model(WS, X), cc.fold(model)(WS, X))


# --- decorators, methods, modules


def test_as_a_decorator():
    @cc.fold
    def plain(ws, x):
        """Does it."""
        return model(ws, x)

    @cc.fold(form="scan", min_blocks=4)
    def with_options(ws, x):
        return model(ws, x)

    assert (plain.__name__, plain.__doc__) == ("plain", "Does it.")
    assert inspect.signature(plain) == inspect.signature(model)
    close(plain(WS, X), with_options(WS, X))
    assert "plain" in repr(plain)


def test_methods_bind():
    class Net:
        def __init__(self, scale):
            self.scale = scale

        @cc.fold
        def __call__(self, ws, x):
            return model(ws, x) * self.scale

        @cc.fold
        def other(self, ws, *, x):
            return model(ws, x) + self.scale

    net, twin = Net(2.0), Net(3.0)
    close(model(WS, X) * 2.0, net(WS, X))
    close(model(WS, X) * 3.0, twin(WS, X))
    close(model(WS, X) + 3.0, twin.other(WS, x=X))


class Block(eqx.Module):
    linear: eqx.nn.Linear
    activation: Callable = eqx.field(static=True)
    scale: float
    name: str

    def __init__(self, key, scale):
        self.linear = eqx.nn.Linear(8, 8, key=key)
        self.activation, self.scale, self.name = jnp.tanh, scale, "block"

    def __call__(self, x):
        h = jax.vmap(self.linear)(x)
        return x + self.activation(h) * self.scale - jnp.sin(h) * jnp.cos(x)


class Net(eqx.Module):
    blocks: list[Block]

    def __init__(self, key):
        self.blocks = [Block(k, 0.5) for k in jax.random.split(key, N)]

    @cc.fold
    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_modules_with_statics_are_arguments_and_results():
    net = Net(jax.random.key(0))

    def step(net, x):
        grads = eqx.filter_grad(lambda net: (net(x) ** 2).sum())(net)
        return eqx.apply_updates(net, jax.tree.map(lambda g: -0.1 * g, grads))

    new = cc.fold(step)(net, X)
    assert isinstance(new, Net)
    assert new.blocks[0].name == "block"
    assert new.blocks[0].activation is jnp.tanh
    assert jax.tree.structure(new) == jax.tree.structure(net)
    close(*(eqx.filter(n, eqx.is_array) for n in (eqx.filter_jit(step)(net, X), new)))

    def arrays_of(step):
        return lambda x: eqx.filter(step(net, x), eqx.is_array)

    assert_equivalent(arrays_of(step), arrays_of(cc.fold(step)), X)


def test_a_changed_static_is_another_program():
    net = Net(jax.random.key(0))
    folded = cc.fold(lambda net, x: net(x))
    other = eqx.tree_at(lambda net: net.blocks[2].scale, net, 7.0)
    close(net(X), folded(net, X))
    close(other(X), folded(other, X))


# --- other avals


def test_other_shapes_use_another_plan():
    folded = cc.fold(model)
    for rows in (4, 2, 7, 4):
        x = jnp.ones((rows, 8)) * rows
        close(model(WS, x), folded(WS, x))
    close(model(WS[:4], X), folded(WS[:4], X))


def test_closed_over_tracers_are_theirs():
    def outer(scale, ws, x):
        return cc.fold(lambda ws, x: model(ws, x) * scale)(ws, x).sum()

    expected = jax.grad(lambda s: (model(WS, X) * s).sum())(2.0)
    found = jax.jit(jax.grad(outer))(2.0, WS, X)
    np.testing.assert_allclose(expected, found, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_folded_function_in_two_traces(form):
    folded = cc.fold(functools.partial(loss), form=form)
    close(jax.jit(loss)(WS, X), jax.jit(folded)(WS, X))
    close(jax.jit(jax.grad(loss))(WS, X), jax.jit(jax.grad(folded))(WS, X))
    close(loss(WS, X), folded(WS, X))


# --- errors


@pytest.mark.parametrize("form", ["units", "", None, 3])
def test_an_unknown_form(form):
    with pytest.raises(cc.InputError, match="must be"):
        cc.fold(model, form=form)


@pytest.mark.parametrize("blocks", [1, 0, -3, 2.0, "3", None])
def test_a_bad_number_of_blocks(blocks):
    with pytest.raises(cc.InputError, match="min_blocks"):
        cc.fold(model, min_blocks=blocks)


def test_an_error_of_the_function_is_its_own():
    def broken(ws, x):
        return model(ws, x) @ jnp.ones((3, 3))

    with pytest.raises(TypeError, match="dot_general"):
        cc.fold(broken)(WS, X)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        cc.fold(lambda x: x if x.sum() > 0 else -x)(X)
    with pytest.raises(TypeError, match="missing"):
        cc.fold(model)(WS)

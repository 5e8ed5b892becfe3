"""Packed state: what a step is called with stays in stacks, and comes back as it was."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from test_fold import WS, N, X, close, loss

import compilecut as cc
from compilecut.testing import assert_equivalent, count_compiles, count_equations

pytestmark = [pytest.mark.quick, pytest.mark.standard_promotion]

PARAMS = {"layers": WS, "bias": jnp.linspace(-1.0, 1.0, 8)}
SPEC = jax.ShapeDtypeStruct
TX = optax.adamw(1e-2)


def loss_of(params, x):
    return loss(params["layers"], x + params["bias"])


def sgd(params, x):
    value, grads = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def adamw(params, opt_state, x):
    value, grads = jax.value_and_grad(loss_of)(params, x)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def fresh(tree=PARAMS):
    """The same values in buffers of their own."""
    return jax.tree.map(lambda a: a + 0, tree)


def packed_sgd(**options):
    return cc.fold(sgd, **options).packed(PARAMS, X, state=1)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))
        return x + h


class Model(nn.Module):
    layers: int

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8)(x)
        for _ in range(self.layers):
            x = Block()(x)
        return nn.Dense(1)(x)


def linen(layers):
    """A train step of a Flax model, and its arguments; nothing is compiled."""
    model = Model(layers)
    shapes = jax.eval_shape(model.init, jax.random.key(0), X)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) / 4, s.dtype), shapes)

    def step(params, opt_state, x):
        def loss(params):
            return jnp.mean(jnp.square(jnp.asarray(model.apply(params, x))))

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = TX.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return step, (params, TX.init(params), X)


# --- values


def through(packed):
    """A packed step as a function of the state as it was."""

    def step(*args):
        state, rest = args[:-1], args[-1:]
        out = packed(packed.pack(*state), *rest)
        new, *others = out if isinstance(out, tuple) else (out,)
        back = packed.unpack(new)
        return (*(back if len(state) > 1 else (back,)), *others)

    return step


@pytest.mark.parametrize("form", ["auto", "unit", "scan"])
def test_values_are_those_of_the_step(form):
    assert_equivalent(sgd, through(packed_sgd(form=form, check=True)), PARAMS, X)


def test_adamw_has_the_same_values():
    args = PARAMS, TX.init(PARAMS), X
    packed = cc.fold(adamw, check=True).packed(*args, state=2)
    assert_equivalent(adamw, through(packed), *args)


def test_a_flax_model_has_the_same_values():
    step, args = linen(3)
    packed = cc.fold(step).packed(*args, state=2)
    assert_equivalent(step, through(packed), *args)


def test_many_steps():
    step = jax.jit(adamw)
    state, packed_state = (PARAMS, TX.init(PARAMS)), None
    packed = cc.fold(adamw).packed(*state, X, state=2)
    packed_state = packed.pack(*state)
    for i in range(4):
        *state, value = step(*state, X + i)
        packed_state, packed_value = packed(packed_state, X + i)
        np.testing.assert_allclose(value, packed_value, rtol=1e-4)
    for mine, theirs in zip(packed.unpack(packed_state), state, strict=True):
        assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    close(state[0], packed.unpack(packed_state)[0])


def test_a_step_that_returns_only_its_state():
    def quiet(params, x):
        return sgd(params, x)[0]

    packed = cc.fold(quiet).packed(PARAMS, X, state=1)
    new = packed(packed.pack(PARAMS), X)
    assert isinstance(new, dict)
    close(jax.jit(quiet)(PARAMS, X), packed.unpack(new))


# --- the layout


def test_a_packed_state_is_a_dict_of_stacks_by_path():
    packed = packed_sgd()
    state = packed.pack(PARAMS)
    assert {name: a.shape for name, a in state.items()} == {
        "0/bias": (8,),
        "0/layers/*": (N, 8, 8),
    }
    np.testing.assert_array_equal(state["0/layers/*"], jnp.stack(WS))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.int32])
def test_there_and_back(dtype):
    params = jax.tree.map(lambda p: (p * 9).astype(dtype), PARAMS)

    def step(params):
        return jax.tree.map(lambda p: p + p * p, params)

    packed = cc.fold(step).packed(params, state=1)
    back = packed.unpack(packed.pack(params))
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_ten_layers_stand_in_the_order_of_their_numbers():
    params = {f"layer_{i}": jnp.full((3,), float(i)) for i in range(12)}

    def step(params):
        return jax.tree.map(lambda p: jnp.sin(p) * 2.0 + jnp.cos(p), params)

    packed = cc.fold(step).packed(params, state=1)
    state = packed.pack(params)
    np.testing.assert_array_equal(state["0/layer_*"][:, 0], np.arange(12.0))
    close(step(params), packed.unpack(packed(state)))


def test_statics_in_the_state_come_back():
    params = PARAMS | {"name": "net", "size": 3}

    def step(params, x):
        new, value = sgd({k: params[k] for k in ("layers", "bias")}, x * params["size"])
        return new | {"name": params["name"], "size": params["size"]}, value

    packed = cc.fold(step).packed(params, X, state=1)
    new = packed.unpack(packed(packed.pack(params), X)[0])
    assert (new["name"], new["size"]) == ("net", 3)


def test_stacks_of_an_init_are_a_state():
    def init(key):
        keys = jax.random.split(key, N)
        return {"layers": [jax.random.normal(k, (8, 8)) for k in keys], "bias": jnp.ones(8)}

    key = jax.random.key(3)
    stacks = cc.stacked_init(init, fan_out="stacks")(key)
    packed = packed_sgd()
    state = packed.pack(stacks)
    for name, array in packed.pack(jax.jit(init)(key)).items():
        np.testing.assert_array_equal(array, state[name])
    both = cc.fold(adamw).packed(PARAMS, TX.init(PARAMS), X, state=2)
    mine, theirs = (both.pack(params, TX.init(PARAMS)) for params in (stacks, PARAMS))
    assert jax.tree.map(jnp.shape, mine) == jax.tree.map(jnp.shape, theirs)


# --- structure


def test_the_size_does_not_grow_with_depth():
    def size(layers):
        step, args = linen(layers)
        return cc.fold(step).packed(*args, state=2).report().equations_left

    assert size(12) <= 1.05 * size(4)


def test_a_step_compiles_once():
    packed = packed_sgd()
    state, _ = packed(packed.pack(PARAMS), X)
    with count_compiles() as counts:
        for _ in range(3):
            state, _ = packed(state, X)
    assert counts.programs == 0


def test_packing_is_one_program_a_shape():
    params = {"layers": [jnp.full((3, 5), float(i)) for i in range(40)]}

    def step(params):
        return jax.tree.map(lambda p: jnp.sin(p) * 2.0 + jnp.cos(p), params)

    packed = cc.fold(step).packed(params, state=1)
    with count_compiles() as counts:
        packed.unpack(packed.pack(params))
    assert counts.programs <= 4


def test_other_batch_shapes_use_another_plan():
    packed = packed_sgd()
    state = packed.pack(PARAMS)
    for rows in (4, 2, 7, 4):
        x = jnp.ones((rows, 8)) / rows
        expected = jax.jit(sgd)(packed.unpack(state), x)
        state, value = packed(state, x)
        close(expected, (packed.unpack(state), value))


# --- donation


def test_the_users_parameters_survive():
    params = fresh()
    packed = packed_sgd()
    state = packed.pack(params)
    new, _ = packed(state, X)
    assert all(a.is_deleted() for a in state.values())
    assert not any(a.is_deleted() for a in jax.tree.leaves(params))
    before = packed.unpack(new)
    packed(new, X)
    assert not any(a.is_deleted() for a in jax.tree.leaves(before))
    close(jax.jit(sgd)(params, X)[0], before)


def test_under_jit_and_grad():
    packed = packed_sgd()
    state = packed.pack(PARAMS)

    def value(state, x):
        return packed(packed(state, x)[0], x)[1]

    close(jax.jit(value)(state, X), sgd(sgd(PARAMS, X)[0], X)[1])
    grads = jax.jit(jax.grad(value))(state, X)
    expected = jax.grad(lambda p: sgd(sgd(p, X)[0], X)[1])(PARAMS)
    close(expected, packed.unpack(grads))
    looped = jax.lax.scan(lambda s, _: packed(s, X), state, length=2)[1]
    close(looped[1], value(state, X))


# --- shapes and checkpoints


def test_eval_shape_and_lower():
    params, x = jax.tree.map(lambda a: SPEC(a.shape, a.dtype), (PARAMS, X))
    packed = cc.fold(sgd).packed(params, x, state=1)
    state = jax.eval_shape(packed.pack, PARAMS)
    new, value = jax.eval_shape(packed, state, x)
    assert (new, value) == (state, SPEC((), jnp.float32))
    assert jax.eval_shape(packed.unpack, state) == params
    compiled = packed.lower(state, x).compile()
    assert compiled is not None


def saved(tmp_path, tree):
    """A tree of arrays through an `.npz` file."""
    file = tmp_path / "state.npz"
    leaves, structure = jax.tree.flatten(tree)
    np.savez(file, *leaves)
    with np.load(file) as data:
        return jax.tree.unflatten(structure, [data[f"arr_{i}"] for i in range(len(leaves))])


def through_orbax(tmp_path, tree):
    """A tree of arrays through an Orbax checkpoint."""
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", tree)
        checkpointer.wait_until_finished()
        return checkpointer.restore(tmp_path / "state", jax.tree.map(np.zeros_like, tree))


@pytest.mark.filterwarnings("ignore")  # of Orbax and what it needs
@pytest.mark.parametrize("through", [saved, through_orbax])
def test_checkpoints_of_both_layouts(tmp_path, through):
    packed = packed_sgd()
    state, _ = packed(packed.pack(PARAMS), X)
    params = packed.unpack(state)
    from_stacks = through(tmp_path / "stacks", state) if through is through_orbax else None
    if from_stacks is None:
        from_stacks = through(tmp_path, state)
    from_leaves = through(tmp_path, params)
    expected, _ = packed(packed.pack(params), X)
    close(expected, packed(jax.tree.map(jnp.asarray, from_stacks), X)[0])
    close(expected, packed(packed.pack(from_leaves), X)[0])


def test_a_savez_of_the_dict_itself(tmp_path):
    packed = packed_sgd()
    state = packed.pack(PARAMS)
    np.savez(tmp_path / "state.npz", **state)
    with np.load(tmp_path / "state.npz") as data:
        close(PARAMS, packed.unpack({name: jnp.asarray(data[name]) for name in data}))


# --- devices


def test_shardings_are_kept():
    mesh = jax.make_mesh((4, 2), ("rows", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    place, stacked = (NamedSharding(mesh, P(*spec, "model")) for spec in ([None], [None, None]))
    params = {
        "bias": jax.device_put(PARAMS["bias"], NamedSharding(mesh, P("model"))),
        "layers": jax.device_put(WS, place),
    }
    x = jax.device_put(X, NamedSharding(mesh, P("rows")))
    packed = cc.fold(sgd).packed(params, x, state=1)
    state = packed.pack(params)
    assert state["0/layers/*"].sharding == stacked
    for array, leaf in zip(packed.unpack(state)["layers"], params["layers"], strict=True):
        assert array.sharding.is_equivalent_to(leaf.sharding, 2)
    new, value = packed(state, x)
    assert new["0/layers/*"].sharding.is_equivalent_to(
        NamedSharding(mesh, P(None, None, "model")), 3
    )
    close(jax.jit(sgd)(params, x), (packed.unpack(new), value))


# --- errors


def test_a_bad_count_of_state():
    for state in (0, 3, -1, "1", 1.0):
        with pytest.raises(cc.InputError, match="`state` says how many"):
            cc.fold(sgd).packed(PARAMS, X, state=state)


def test_a_state_of_another_number_of_arguments():
    with pytest.raises(cc.InputError, match="1 arguments"):
        packed_sgd().pack(PARAMS, PARAMS)


def test_a_step_that_returns_no_state():
    with pytest.raises(cc.InputError, match="must return the next state"):
        cc.fold(loss_of).packed(PARAMS, X, state=1)


def test_a_step_that_changes_a_type_names_the_leaf():
    def halved(params, x):
        new, value = sgd(params, x)
        return new | {"bias": new["bias"].astype(jnp.bfloat16)}, value

    with pytest.raises(cc.InputError, match=r"leaf 0/bias .* bfloat16\[8\]"):
        cc.fold(halved).packed(PARAMS, X, state=1)


def test_a_step_that_changes_the_structure_names_the_leaf():
    def grown(params, x):
        new, value = sgd(params, x)
        return new | {"extra": x}, value

    with pytest.raises(cc.InputError, match="leaf 0/extra"):
        cc.fold(grown).packed(PARAMS, X, state=1)


def test_a_state_of_other_types_names_the_leaf():
    packed = packed_sgd()
    other = {**PARAMS, "layers": [*WS[:-1], jnp.ones((8, 9))]}
    with pytest.raises(cc.InputError, match=f"leaf 0/layers/{N - 1} "):
        packed.pack(other)
    with pytest.raises(cc.InputError, match="differs at leaf"):
        packed.pack({"layers": WS})


def test_what_is_no_packed_state():
    packed = packed_sgd()
    for wrong in (PARAMS, None, {}, packed.pack(PARAMS) | {"more": X}):
        with pytest.raises(cc.InputError, match="no packed state"):
            packed(wrong, X)
        with pytest.raises(cc.InputError, match="no packed state"):
            packed.unpack(wrong)


def test_counting_equations_of_the_packed_step():
    packed = packed_sgd()
    state = packed.pack(PARAMS)
    assert count_equations(packed, state, X) < count_equations(sgd, PARAMS, X) / 2


def test_numbers_in_a_state_are_data():
    """A plain step counter, as Flax's `TrainState` holds it."""

    def step(count, ws, x):
        for w in ws:
            x = x + jnp.tanh(x @ w)
        return count + 1, [w * 0.9 for w in ws], x.sum()

    ws = list(jax.random.normal(jax.random.key(0), (4, 4, 4)))
    packed = cc.fold(step).packed(0, ws, ws[0], state=2)
    state, total = packed(packed.pack(0, ws), ws[0])
    for _ in range(2):
        state, total = packed(state, ws[0])
    count, new = packed.unpack(state)
    assert count == 3
    assert len(new) == len(ws)
    assert jnp.isfinite(total)


def test_a_state_from_numpy_unpacks():
    ws = list(jax.random.normal(jax.random.key(0), (4, 4, 4)))
    packed = cc.fold(lambda ws, x: [w + x for w in ws]).packed(ws, 1.0, state=1)
    state = {name: np.asarray(leaf) for name, leaf in packed.pack(ws).items()}
    assert all(np.array_equal(a, b) for a, b in zip(packed.unpack(state), ws, strict=True))


def test_a_packed_state_of_another_type_is_refused():
    ws = list(jax.random.normal(jax.random.key(0), (4, 4, 4)))
    packed = cc.fold(lambda ws, x: [w + x for w in ws]).packed(ws, 1.0, state=1)
    state = {name: leaf.astype(jnp.bfloat16) for name, leaf in packed.pack(ws).items()}
    for use in (packed.unpack, lambda state: packed(state, 1.0)):
        with pytest.raises(cc.InputError, match="bfloat16"):
            use(state)


def test_swapped_state_is_refused():
    def step(a, b, x):
        return a, b, x

    arrays = {"w": jnp.ones(3)}, [jnp.ones(2)]
    packed = cc.fold(step).packed(*arrays, jnp.ones(1), state=2)
    with pytest.raises(cc.InputError, match="0/w"):
        packed.pack(*arrays[::-1])
    with pytest.raises(cc.InputError, match="state"):
        cc.fold(step).packed(*arrays, jnp.ones(1), state=True)
    with pytest.raises(cc.InputError, match="function"):
        cc.fold(3)  # pyright: ignore[reportArgumentType]


def _decayed(params, x):
    return jax.tree.map(lambda a: (jnp.sin(a) * 0.7 - a * 0.1).astype(a.dtype), params), x


@pytest.mark.parametrize(
    "params",
    [
        [jnp.full((2,) if i % 2 else (3,), 1.0 + i) for i in range(6)],
        [jnp.full((2,) if i < 3 else (3,), 1.0 + i) for i in range(6)],
        [jnp.full(3, 1.0 + i, jnp.bfloat16 if i % 2 else jnp.float32) for i in range(6)],
        {"a": {"b": jnp.zeros(3)}, "a/b": jnp.full(3, 5.0)},
        {"0": jnp.zeros(2), "3": jnp.ones(2), "7": jnp.full(2, 2.0), "*": jnp.full(2, 3.0)},
        [{"a": jnp.full(3, 1.0 + i), "b": jnp.full((2, i % 2 + 1), 2.0 + i)} for i in range(8)],
    ],
    ids=["alternating", "in a row", "dtypes", "slash", "star", "nested"],
)
def test_leaves_whose_names_are_alike_stay_apart(params):
    packed = cc.fold(_decayed, check=True).packed(params, X, state=1)
    state = packed.pack(params)
    back = packed.unpack(state)
    assert jax.tree.all(jax.tree.map(np.array_equal, back, params))
    state, _ = packed(state, X)
    close(jax.jit(_decayed)(params, X)[0], packed.unpack(state))

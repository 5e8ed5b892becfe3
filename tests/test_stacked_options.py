"""Options and faces of `stacked_init`: shardings, stacks, transforms, errors, static arguments."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import compilecut as cc
from compilecut import testing
from compilecut._bits import first_difference
from compilecut._init import _draw, _draw_probe

pytestmark = pytest.mark.quick

KEY = jax.random.key(11)


def init(key):
    keys = jax.random.split(key, 6)
    return [{"w": jax.random.normal(k, (8, 16)) / 4, "b": jnp.zeros((16,))} for k in keys]


def mesh(*axis_types):
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=axis_types or (AxisType.Auto,) * 2)


# --- shardings


def specs(grid):
    return [{"w": NamedSharding(grid, P("x", "y")), "b": NamedSharding(grid, P("y"))}] * 6


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_results_are_sharded_as_asked(impl):
    key = jax.random.key(1, impl=impl)
    places = specs(mesh())
    result = cc.stacked_init(init, out_shardings=places)(key)
    expected = jax.jit(init, out_shardings=places)(key)
    assert first_difference(result, expected) is None
    jax.tree.map(lambda a, s: np.testing.assert_equal(a.sharding, s), result, places)


def test_a_prefix_and_a_hole():
    place = NamedSharding(mesh(), P("x"))
    result = cc.stacked_init(init, out_shardings=[{"w": place, "b": None}] * 6)(KEY)
    assert result[0]["w"].sharding == place
    assert result[0]["b"].is_fully_replicated
    assert first_difference(result, jax.jit(init)(KEY)) is None
    everywhere = cc.stacked_init(init, out_shardings=NamedSharding(mesh(), P()))(KEY)
    assert all(len(a.devices()) == 8 for a in jax.tree.leaves(everywhere))


def test_a_spec_in_a_mesh():
    with jax.set_mesh(mesh()):
        result = cc.stacked_init(init, out_shardings=P("y"))(KEY)
    assert result[0]["b"].sharding.spec == P("y")
    with pytest.raises(cc.ShardingError, match="no mesh is set"):
        cc.stacked_init(init, out_shardings=P("y"))(KEY)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_keys_on_a_mesh_put_results_there(axis_type):
    key = jax.device_put(KEY, NamedSharding(mesh(axis_type, axis_type), P()))
    result, expected = cc.stacked_init(init)(key), jax.jit(init)(key)
    assert first_difference(result, expected) is None
    for mine, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim)


def assert_placed_alike(result, expected):
    assert first_difference(result, expected) is None
    for mine, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_under_a_mesh(axis_type):
    with jax.set_mesh(mesh(axis_type, axis_type)):
        key = jax.random.key(4)
        assert_placed_alike(cc.stacked_init(init)(key), jax.jit(init)(key))


def test_shardings_in_the_types_of_results():
    def placed(key):
        params = init(key)
        params[0]["w"] = jax.sharding.reshard(params[0]["w"], P("x", "y"))
        return params

    with jax.set_mesh(mesh(AxisType.Explicit, AxisType.Explicit)):
        key = jax.random.key(4)
        assert_placed_alike(cc.stacked_init(placed)(key), jax.jit(placed)(key))


def test_a_constraint_inside_needs_out_shardings():
    place = NamedSharding(mesh(), P("x"))

    def constrained(key):
        params = init(key)
        params[0]["w"] = jax.lax.with_sharding_constraint(params[0]["w"], place)
        return params

    with pytest.warns(cc.CompilecutWarning, match="sharding_constraint"):
        assert_placed_alike(cc.stacked_init(constrained)(KEY), jax.jit(constrained)(KEY))
    asked = cc.stacked_init(constrained, out_shardings=place)
    assert_placed_alike(asked(KEY), jax.jit(constrained, out_shardings=place)(KEY))


def test_sharded_arguments_without_out_shardings_stay_as_written():
    def sized(key, x):
        return jax.random.normal(key, x.shape) + x

    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh(), P("x")))
    with pytest.warns(cc.CompilecutWarning, match="JAX chooses"):
        result = cc.stacked_init(sized)(KEY, x)
    expected = jax.jit(sized)(KEY, x)
    assert first_difference(result, expected) is None
    assert result.sharding == expected.sharding


def test_a_dimension_that_does_not_tile_is_an_error_before_anything_compiles():
    def odd(key):
        return {"fine": jax.random.normal(key, (8,)), "odd": jax.random.normal(key, (6, 2))}

    wrapped = cc.stacked_init(odd, out_shardings=NamedSharding(mesh(), P("x")))
    with testing.count_compiles() as compiles, pytest.raises(cc.ShardingError, match=r"\['odd'\]"):
        wrapped(KEY)
    assert compiles.programs == 0


def test_shardings_that_do_not_fit():
    with pytest.raises(cc.ShardingError, match="not a prefix"):
        cc.stacked_init(init, out_shardings=[NamedSharding(mesh(), P())] * 3)(KEY)
    places = [{"w": P(), "b": P()}] * 5 + [{"w": P()}]
    with pytest.raises(cc.ShardingError, match=r"`out_shardings`\[5\]") as caught:
        cc.stacked_init(init, out_shardings=places)(KEY)
    assert "[4]" not in str(caught.value)
    with pytest.raises(cc.ShardingError, match="type str"):
        cc.stacked_init(init, out_shardings="x")(KEY)


def test_results_follow_a_committed_key():
    key = jax.device_put(KEY, jax.devices()[3])
    result, expected = cc.stacked_init(init)(key), jax.jit(init)(key)
    assert first_difference(result, expected) is None
    for leaf in jax.tree.leaves(result):
        assert leaf.devices() == {jax.devices()[3]}
        assert leaf.committed


def test_default_device():
    with jax.default_device(jax.devices()[2]):
        result = cc.stacked_init(init)(jax.random.key(11))
    assert all(leaf.devices() == {jax.devices()[2]} for leaf in jax.tree.leaves(result))
    assert first_difference(result, jax.jit(init)(KEY)) is None


def everything(key, scale):
    rows = jax.random.normal(jax.random.fold_in(key, 1), (12, 4))
    return {"layers": init(key), "key": key, "seed": jax.random.fold_in(key, 2), "rows": list(rows)}


@pytest.mark.parametrize("fan_out", ["arrays", "stacks"])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("where", ["default", "mesh", "device"])
def test_nothing_is_transferred_unsaid(where, impl, fan_out):
    key, place = jax.random.key(3, impl=impl), None
    if where == "device":
        key = jax.device_put(key, jax.devices()[2])
    elif where == "mesh":
        place = NamedSharding(mesh(), P())
    scale = jax.device_put(np.float32(2.0))
    wrapped = cc.stacked_init(everything, out_shardings=place, fan_out=fan_out)
    expected = jax.jit(everything, out_shardings=place)(key, scale)
    with jax.transfer_guard("disallow"):
        result = wrapped(key, scale)
        result = result.unstack() if fan_out == "stacks" else result
    assert_placed_alike(result, expected)
    committed = [[leaf.committed for leaf in jax.tree.leaves(r)] for r in (result, expected)]
    assert committed[0] == committed[1] or fan_out == "stacks"


# --- stacks


def test_stacks_and_back():
    stacks = cc.stacked_init(init, fan_out="stacks")(KEY)
    assert {a.shape for a in stacks.arrays} == {(6, 8, 16), (6, 16)}
    expected = jax.jit(init)(KEY)
    stack, index = stacks.sites["[4]['w']"]
    np.testing.assert_array_equal(stacks.arrays[stack][index], expected[4]["w"])
    assert first_difference(stacks.unstack(), expected) is None


def test_stacks_hold_keys_and_arguments_too():
    def more(key, x):
        return {"params": init(key), "key": jax.random.fold_in(key, 1), "x": x, "step": 0}

    x = jnp.arange(3.0)
    wrapped = cc.stacked_init(more, fan_out="stacks", check=True)
    assert first_difference(wrapped(KEY, x).unstack(), jax.jit(more)(KEY, x)) is None
    with testing.count_compiles() as compiles:
        wrapped(KEY, x)
    assert compiles.programs == 0


def test_stacks_are_sharded():
    stacks = cc.stacked_init(init, fan_out="stacks", out_shardings=specs(mesh()))(KEY)
    assert {s.sharding.spec for s in stacks.arrays} == {P(None, "x", "y"), P(None, "y")}
    back = stacks.unstack()
    assert back[0]["w"].sharding.spec == P("x", "y")
    assert first_difference(back, jax.jit(init)(KEY)) is None


def test_stacks_are_a_pytree():
    stacks = cc.stacked_init(init, fan_out="stacks")(KEY)
    doubled = jax.jit(lambda s: jax.tree.map(lambda a: a * 2, s))(stacks)
    np.testing.assert_array_equal(doubled.unstack()[5]["w"], 2 * stacks.unstack()[5]["w"])
    inside = jax.jit(lambda s: s.unstack()[2]["w"])(stacks)
    np.testing.assert_array_equal(inside, stacks.unstack()[2]["w"])
    with pytest.raises(TypeError, match="no arrays"):
        jax.tree.map(lambda a: None, stacks).unstack()


@pytest.mark.parametrize("jitted", [False, True])
def test_stacks_keep_weak_types(jitted):
    def scaled(key, scale):
        return [jax.random.normal(k, (3,)) * scale for k in jax.random.split(key)] + [scale * 2] * 2

    wrapped = cc.stacked_init(scaled, fan_out="stacks")
    back = (jax.jit(wrapped) if jitted else wrapped)(KEY, 0.5).unstack()
    expected = jax.jit(scaled)(KEY, 0.5)
    assert first_difference(back, expected) is None
    assert [leaf.weak_type for leaf in back] == [leaf.weak_type for leaf in expected]
    assert [leaf.weak_type for leaf in back] == [False, False, True, True]


def test_a_site_that_is_not_there():
    sites = cc.stacked_init(init, fan_out="stacks")(KEY).sites
    with pytest.raises(KeyError, match="near it: ") as caught:
        sites["[4]['W']"]
    assert "[4]['w']" in str(caught.value)
    assert isinstance(caught.value, cc.CompilecutError)
    with pytest.raises(KeyError, match="see `list"):
        sites[17]
    assert "nothing" not in sites


def test_unstacking_compiles_one_program_a_shape():
    stacks = cc.stacked_init(init, fan_out="stacks")(KEY)
    with testing.count_compiles() as compiles:
        stacks.unstack()
    assert compiles.programs <= 2


def test_unknown_fan_out():
    with pytest.raises(cc.InputError, match='must be "arrays" or "stacks", not \'array\''):
        cc.stacked_init(init, fan_out="array")  # pyright: ignore


# --- inside other transformations


def test_under_jit_eval_shape_and_vmap():
    wrapped, expected = cc.stacked_init(init), jax.jit(init)(KEY)
    assert first_difference(jax.jit(wrapped)(KEY), expected) is None
    shapes = jax.eval_shape(wrapped, KEY)
    assert shapes[0]["w"].shape == (8, 16)
    keys = jax.random.split(KEY, 3)
    many, plain = jax.vmap(wrapped)(keys), jax.jit(jax.vmap(init))(keys)
    assert first_difference(many, plain) is None


def test_without_arguments_under_jit():
    wrapped = cc.stacked_init(lambda: init(jax.random.key(2)))
    jaxpr = jax.make_jaxpr(lambda: wrapped())()
    assert not jaxpr.consts  # traced, not computed and captured


def test_stacks_under_jit():
    inside = jax.jit(cc.stacked_init(init, fan_out="stacks"))(KEY)
    assert first_difference(inside.unstack(), jax.jit(init)(KEY)) is None
    assert len(inside.arrays) == 2


def test_lower_and_compile_from_types_alone():
    lowered = cc.stacked_init(init).lower(jax.eval_shape(lambda: KEY))
    compiled = lowered.compile()
    assert len(compiled.programs) == len(lowered.programs)
    assert first_difference(compiled(KEY), jax.jit(init)(KEY)) is None


def test_a_second_call_neither_traces_nor_compiles():
    traces = []

    def counted(key):
        traces.append(1)
        return init(key)

    wrapped = cc.stacked_init(counted)
    wrapped(KEY)
    other = jax.random.key(99)
    with testing.count_compiles() as compiles:
        wrapped(other)
    assert len(traces) == 1
    assert compiles.programs == 0


def test_clearing_jaxs_caches_drops_what_was_compiled():
    wrapped = cc.stacked_init(init)
    wrapped(KEY)
    (made,) = wrapped._made.values()
    (entry,) = made.values()
    assert entry.compiled is not None
    compiled = weakref.ref(entry.compiled.programs[0])
    del made, entry
    jax.clear_caches()
    gc.collect()
    assert not wrapped._made
    assert compiled() is None
    assert first_difference(wrapped(KEY), jax.jit(init)(KEY)) is None


def test_it_has_a_short_repr():
    assert repr(cc.stacked_init(init)) == "stacked_init(init)"
    wrapped = cc.stacked_init(init, fan_out="stacks", check=True, out_shardings=P())
    assert repr(wrapped) == "stacked_init(init, fan_out='stacks', check=True, out_shardings=...)"


def test_other_settings_are_another_plan():
    wrapped = cc.stacked_init(init)
    wrapped(KEY)
    with jax.threefry_partitionable(False):
        assert first_difference(wrapped(KEY), jax.jit(init)(KEY)) is None
    assert first_difference(wrapped(KEY), jax.jit(init)(KEY)) is None


def test_debugging_modes_run_the_program_as_written():
    wrapped = cc.stacked_init(lambda key: jax.random.normal(key, (3,)) * jnp.nan)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        wrapped(KEY)
    with jax.disable_jit():
        assert jnp.isnan(wrapped(KEY)).all()


def test_a_compiled_init_takes_what_it_was_compiled_for():
    def pair(a, b):
        return jax.random.normal(a, (3,)), jax.random.normal(b, (3,))

    compiled = cc.stacked_init(pair).lower(KEY, KEY).compile()
    compiled(KEY, KEY)
    with pytest.raises(cc.InputError, match="structure"):
        compiled(a=KEY, b=KEY)
    with pytest.raises(cc.InputError, match=r"\[0\]\[1\]"):
        compiled(KEY, jax.random.split(KEY))


def test_arguments_on_several_devices_are_left_to_jax():
    first, second = (jax.device_put(jnp.ones(2), d) for d in jax.devices()[:2])
    with pytest.warns(cc.CompilecutWarning, match="several devices"):
        result = cc.stacked_init(lambda a, b: a + 1)(first, second)
    assert result.devices() == {jax.devices()[0]}


@pytest.mark.parametrize("devices", [1, 8])
def test_a_spec_with_too_many_axes(devices):
    grid = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
    place = NamedSharding(grid, P(None, "x"))
    with pytest.raises(cc.ShardingError, match=r"\[0\]\['b'\]"):
        cc.stacked_init(init, out_shardings=place)(KEY)


# --- how it is called


def test_static_arguments():
    def sized(key, n, *, kind="normal", width=3):
        sample = getattr(jax.random, kind)
        return [sample(k, (width,)) for k in jax.random.split(key, n)]

    wrapped = cc.stacked_init(sized, static_argnums=1, static_argnames=("kind", "width"))
    result = wrapped(KEY, 4, kind="uniform", width=2)
    expected = jax.jit(sized, static_argnums=1, static_argnames=("kind", "width"))(
        KEY, 4, kind="uniform", width=2
    )
    assert first_difference(result, expected) is None
    by_name = cc.stacked_init(sized, static_argnames=("n", "kind"))
    assert len(by_name(KEY, n=2)) == 2
    assert len(by_name(KEY, 5)) == 5


def test_as_a_decorator_and_a_method():
    class Model:
        @cc.stacked_init(check=True, static_argnums=0)
        def init(self, key):
            """Makes parameters."""
            return init(key)

    model = Model()
    assert first_difference(model.init(KEY), jax.jit(init)(KEY)) is None
    assert Model.init.__doc__ == "Makes parameters."
    assert Model.init.__name__ == "init"


def test_numbers_as_arguments():
    def scaled(key, scale, n):
        return [jax.random.normal(key, (3,)) * scale, n, jax.random.fold_in(key, n)]

    result, expected = cc.stacked_init(scaled)(KEY, 2.0, 3), jax.jit(scaled)(KEY, 2.0, 3)
    assert first_difference(result, expected) is None
    assert result[1].weak_type == expected[1].weak_type


def test_a_function_that_cannot_be_traced_keeps_its_own_error():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        cc.stacked_init(lambda key, flag: init(key) if flag else 0)(KEY, True)


def test_check_names_the_leaf(monkeypatch):
    right = _draw.draw_bits
    monkeypatch.setattr(
        "compilecut._init._programs.draw_bits", lambda table, width: right(table, width) ^ 512
    )
    with pytest.raises(cc.CheckError, match=r"\[0\]\['w'\]"):
        cc.stacked_init(init, check=True)(KEY)


@pytest.mark.parametrize("agrees", [True, False])
def test_an_unknown_jax_is_probed(monkeypatch, agrees):
    monkeypatch.setattr("compilecut._compat.known_draws", lambda: False)
    _draw_probe._probe.cache_clear()
    if not agrees:
        right = _draw.draw_bits
        monkeypatch.setattr(_draw_probe, "draw_bits", lambda t, width: right(t, width) + 1)
    wrapped = cc.stacked_init(init)
    assert first_difference(wrapped(KEY), jax.jit(init)(KEY)) is None
    bits = {repeat.bits for repeat in wrapped.explain(KEY).repeats}
    assert ("shared block" in bits) is agrees
    _draw_probe._probe.cache_clear()


# --- the explicit form


def site(key, width):
    return {"w": jax.random.normal(key, (4, width))}


SITES = {"up": 8, "gate": 8, "down": 2}


def test_sites():
    keys = jax.random.split(KEY, 3)
    wrapped = cc.stacked_sites(site, SITES)
    result = wrapped(keys)
    expected = jax.jit(lambda ks: {n: site(ks[i], SITES[n]) for i, n in enumerate(SITES)})(keys)
    assert first_difference(result, expected) is None
    assert [r.n for r in wrapped.explain(keys).repeats] == [2, 1]


def test_sites_with_several_keys_are_traced_once_a_spec():
    traces = []

    def pair(keys, width):
        traces.append(width)
        return jax.random.normal(keys["a"], (width,)) + jax.random.uniform(keys["b"], (width,))

    keys = {"a": jax.random.split(KEY, 3), "b": jax.random.split(jax.random.key(1), 3)}
    stacks = cc.stacked_sites(pair, SITES, fan_out="stacks")(keys)
    assert traces == [8, 2]
    assert {s.shape for s in stacks.arrays} == {(2, 8), (1, 2)}


def test_no_sites_and_bad_sites():
    assert cc.stacked_sites(site, {})(jnp.zeros((0, 2), jnp.uint32)) == {}
    with pytest.raises(cc.InputError, match=r"has shape \(2,\), but there are 3 sites"):
        cc.stacked_sites(site, SITES)(jax.random.split(KEY, 2))
    with pytest.raises(cc.InputError, match="mapping"):
        cc.stacked_sites(site, ["up"])  # pyright: ignore

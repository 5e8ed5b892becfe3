"""`scan_chunks`: values, grouping, tracing, structure."""

import enum
from typing import Any, NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import primitives as prim

from compilecut import _compat
from compilecut._chunks import scan_chunks
from compilecut._jaxpr import sub_jaxprs
from compilecut._units import unit_support
from compilecut.testing import assert_bit_identical, assert_equivalent, count_equations
from compilecut.testing import count_hlo_instructions as count_hlo

MODES = ("auto", "scan", "unit", "unroll")
LOOPS = ("scan", "unit")


def python_loop(body, carry, chunks, reverse=False):
    """What `scan_chunks` is held against."""
    outs: list[Any] = [None] * len(chunks)
    for i in reversed(range(len(chunks))) if reverse else range(len(chunks)):
        carry, outs[i] = body(carry, chunks[i])
    return carry, outs


def body_of(weights):
    def body(loss, chunk):
        errors = jnp.tanh(chunk["x"] @ weights) * chunk["scale"]
        return loss + jnp.sum(errors * errors), {"errors": errors, "nothing": None}

    return body


def batches(*lengths: int):
    return [
        {"x": jnp.linspace(-1.0, 1.0 + i, n * 3).reshape(n, 3), "scale": 0.5 + i, "tag": None}
        for i, n in enumerate(lengths)
    ]


class Counted:
    """A body that counts its traces."""

    def __init__(self, body):
        self.body, self.traces = body, 0

    def __call__(self, carry, chunk):
        self.traces += 1
        return self.body(carry, chunk)


def scans(function, *args) -> list[int]:
    """The lengths of the scans in a program, in order."""
    found: list[int] = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive is prim.scan_p:
                found.append(eqn.params["length"])
            for inner in sub_jaxprs(eqn.params):
                walk(inner)

    walk(jax.make_jaxpr(function)(*args).jaxpr)
    return found


# --- values


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reverse", [False, True])
def test_equal_to_the_python_loop(mode, reverse):
    chunks = batches(4, 4, 4, 2, 4, 4)

    def ours(weights, chunks):
        return scan_chunks(body_of(weights), 0.0, chunks, mode=mode, reverse=reverse)

    def theirs(weights, chunks):
        return python_loop(body_of(weights), 0.0, chunks, reverse)

    assert_equivalent(ours, theirs, jnp.arange(6.0).reshape(3, 2), chunks)


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("remat", [None, True, jax.checkpoint_policies.dots_saveable])
def test_gradients_equal_the_python_loop(mode, remat):
    chunks = batches(4, 4, 4)

    def ours(weights, chunks):
        return scan_chunks(body_of(weights), 0.0, chunks, mode=mode, remat=remat)[0]

    def theirs(weights, chunks):
        return python_loop(body_of(weights), 0.0, chunks)[0]

    args = jnp.arange(6.0).reshape(3, 2), chunks
    assert_equivalent(jax.value_and_grad(ours), jax.value_and_grad(theirs), *args)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_over_several_groups(mode):
    # A scan sums a captured operand's cotangents within its group first, so only the others add
    # them up in the order of the Python loop.
    chunks = batches(4, 4, 4, 2, 4, 4)

    def ours(weights, chunks):
        return scan_chunks(body_of(weights), 0.0, chunks, mode=mode)[0]

    def theirs(weights, chunks):
        return python_loop(body_of(weights), 0.0, chunks)[0]

    args = jnp.arange(6.0).reshape(3, 2), chunks
    if mode in ("unit", "unroll"):
        assert_equivalent(jax.grad(ours), jax.grad(theirs), *args)
    chex.assert_trees_all_close(jax.grad(ours)(*args), jax.grad(theirs)(*args), rtol=1e-5)


@pytest.mark.quick
def test_scan_and_unit_agree_under_default_options():
    def gradient(mode):
        def loss(weights, chunks):
            return scan_chunks(body_of(weights), 0.0, chunks, mode=mode)[0]

        return jax.value_and_grad(loss)

    args = jnp.arange(6.0).reshape(3, 2), batches(4, 4, 4)
    assert_bit_identical(gradient("scan"), gradient("unit"), *args)


@pytest.mark.parametrize("mode", MODES)
def test_under_vmap_jvp_and_second_order(mode):
    chunks = batches(3, 3, 3)

    def ours(weights):
        return scan_chunks(body_of(weights), 0.0, chunks, mode=mode)[0]

    def theirs(weights):
        return python_loop(body_of(weights), 0.0, chunks)[0]

    weights = jnp.linspace(-1.0, 1.0, 12).reshape(2, 3, 2)
    assert_equivalent(jax.vmap(ours), jax.vmap(theirs), weights)
    one = weights[0]
    assert_equivalent(
        lambda w: jax.jvp(ours, (w,), (w,)), lambda w: jax.jvp(theirs, (w,), (w,)), one
    )
    chex.assert_trees_all_close(jax.hessian(ours)(one), jax.hessian(theirs)(one), rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_called_eagerly(mode):
    weights = jnp.arange(6.0).reshape(3, 2)
    chunks = batches(4, 4, 2)
    loss, outs = scan_chunks(body_of(weights), 0.0, chunks, mode=mode)
    expected, expected_outs = python_loop(body_of(weights), 0.0, chunks)
    chex.assert_trees_all_close((loss, outs), (expected, expected_outs), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 5])
def test_stacked_chunks_give_stacked_outs(mode, n):
    stacked = {
        "x": jnp.arange(n * 6.0).reshape(n, 2, 3),
        "scale": 0.5 * jnp.arange(float(n)),
        "tag": None,
    }
    rows = [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(n)]
    weights = jnp.arange(6.0).reshape(3, 2)
    loss, outs = jax.jit(lambda s: scan_chunks(body_of(weights), 0.0, s, mode=mode))(stacked)
    expected, expected_outs = python_loop(body_of(weights), 0.0, rows)
    chex.assert_trees_all_close(loss, expected, rtol=1e-6)
    chex.assert_shape(outs["errors"], (n, 2, 2))
    chex.assert_trees_all_close(outs["errors"], jnp.stack([o["errors"] for o in expected_outs]))


def test_a_namedtuple_is_one_stacked_pytree():
    class Batch(NamedTuple):
        x: jax.Array
        y: jax.Array

    batch = Batch(jnp.arange(6.0).reshape(3, 2), jnp.arange(3.0))
    total, outs = scan_chunks(lambda c, b: (c + b.x.sum() * b.y, b.y), 0.0, batch)
    assert float(total) == sum(float(batch.x[i].sum() * batch.y[i]) for i in range(3))
    chex.assert_trees_all_equal(outs, batch.y)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("typed", [True, False])
def test_keys_are_data(mode, impl, typed):
    keys = list(jax.random.split(jax.random.key(3, impl=impl), 3))
    if not typed:
        keys = [jax.random.key_data(key) for key in keys]

    def body(total, key):
        if not typed:
            key = jax.random.wrap_key_data(key, impl=impl)
        draw = jax.random.uniform(key, (4,))
        return total + draw.sum(), draw

    assert_equivalent(
        lambda keys: scan_chunks(body, 0.0, keys, mode=mode),
        lambda keys: python_loop(body, 0.0, keys),
        keys,
    )


# --- numbers


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([0.1, 0.3, 1e-3], jnp.bfloat16),
        ([0.1, 0.3, 1e-3], jnp.float32),
        ([3, 16777217, -5], jnp.float32),
        ([3, 7, -5], jnp.bfloat16),
        ([3, 7, -5], jnp.int8),
        ([np.float32(0.1), np.float32(0.7)], jnp.float32),
        ([1j, 0.5 + 2j], jnp.complex64),
    ],
)
def test_numbers_behave_as_in_the_python_loop(mode, numbers, dtype):
    x = jnp.asarray([1, 3, 100]).astype(dtype)

    def body(total, number):
        return total + x * number, x * number

    _, outs = jax.jit(lambda: scan_chunks(body, x, numbers, mode=mode))()
    _, expected = jax.jit(lambda: python_loop(body, x, numbers))()
    chex.assert_trees_all_equal(outs, expected)
    chex.assert_trees_all_equal_dtypes(outs, expected)


def test_numbers_of_any_value_share_one_loop():
    assert scans(lambda: scan_chunks(lambda c, i: (c + i, None), 0, list(range(6)))) == [6]


def test_numbers_add_no_equations():
    def program(n):
        return lambda: scan_chunks(lambda c, i: (c + i, None), 0, list(range(n)), mode="scan")

    assert count_equations(program(2)) == count_equations(program(32))


# --- statics and groups


class Kind(enum.Enum):
    A = "a"
    B = "b"


@pytest.mark.quick
@pytest.mark.parametrize("pair", [("a", "b"), (True, False), (Kind.A, Kind.B), (jnp.sin, jnp.cos)])
def test_statics_part_groups_and_reach_the_body(pair):
    def body(total, chunk):
        static, x = chunk["static"], chunk["x"]
        seen.append(static)
        return total + (x if static == pair[0] else 2 * x), None

    seen: list[Any] = []
    chunks = [{"static": pair[i], "x": jnp.float32(i)} for i in (0, 0, 1, 1, 1, 0)]
    assert scans(lambda: scan_chunks(body, 0.0, chunks, mode="scan")) == [2, 3]
    assert seen == [pair[0], pair[1]]
    total, _ = scan_chunks(body, 0.0, chunks)
    expected, _ = python_loop(body, 0.0, chunks)
    assert float(total) == float(expected)


def test_a_static_field_keeps_a_number_static():
    class Batch(eqx.Module):
        x: jax.Array
        size: int = eqx.field(static=True)

    def body(total, batch):
        return total + jnp.sum(batch.x[: batch.size]), None

    chunks = [Batch(jnp.arange(4.0), size) for size in (2, 2, 3)]
    assert scans(lambda: scan_chunks(body, 0.0, chunks)) == [2]
    assert float(scan_chunks(body, 0.0, chunks)[0]) == 1.0 + 1.0 + 3.0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        (jnp.ones(2), jnp.ones(3)),
        (jnp.ones(2), jnp.ones(2, jnp.bfloat16)),
        (jnp.float32(1), 1.0),
        (None, 1.0),
        (True, 1),
        ([1.0], (1.0,)),
    ],
)
def test_unlike_chunks_are_not_grouped(a, b):
    def body(total, chunk):
        return total + 1.0, None

    assert scans(lambda: scan_chunks(body, 0.0, [a, b, a, b], mode="scan")) == []


def test_arrays_on_different_devices_are_not_stacked():
    one, two = jax.devices()[:2]
    chunks = [jax.device_put(jnp.ones(2), d) for d in (one, one, two, two)]
    seen = Counted(lambda c, x: (c, x * 2))
    _, outs = scan_chunks(seen, 0.0, chunks)
    assert [out.devices() for out in outs] == [{one}, {one}, {two}, {two}]
    assert seen.traces == 1


# --- tracing and structure


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("remat", [None, True])
def test_the_body_is_traced_once_for_each_form(mode, remat):
    chunks = batches(4, 4, 2, 2, 4, 4, 4, 2, 5)
    body = Counted(body_of(jnp.arange(6.0).reshape(3, 2)))
    jax.make_jaxpr(lambda c: scan_chunks(body, 0.0, c, mode=mode, remat=remat))(chunks)
    assert body.traces == 3


@pytest.mark.quick
def test_groups_become_loops_and_singles_do_not():
    def program(chunks):
        return scan_chunks(body_of(jnp.arange(6.0).reshape(3, 2)), 0.0, chunks, mode="scan")

    assert scans(program, batches(4, 4, 2, 4, 4, 4, 3)) == [2, 3]
    assert scans(program, batches(4, 2, 4)) == []
    one = {"x": jnp.ones((1, 4, 3)), "scale": jnp.ones(1)}
    assert scans(program, one) == []


@pytest.mark.quick
def test_a_scan_is_of_one_size_whatever_its_length():
    def gradient(weights, stacked):
        return jax.grad(lambda w: scan_chunks(body_of(w), 0.0, stacked, mode="scan")[0])(weights)

    def sizes(n):
        args = jnp.ones((3, 2)), {"x": jnp.ones((n, 4, 3)), "scale": jnp.ones(n)}
        return count_equations(gradient, *args), count_hlo(gradient, *args)

    assert sizes(2) == sizes(32)


def test_separate_chunks_cost_a_scan_no_more_than_their_stacking():
    def gradient(weights, chunks):
        return jax.grad(lambda w: scan_chunks(body_of(w), 0.0, chunks, mode="scan")[0])(weights)

    weights = jnp.ones((3, 2))
    chunks = [{"x": jnp.ones((4, 3)), "scale": jnp.float32(i)} for i in range(32)]
    few, many = (count_equations(gradient, weights, chunks[:n]) for n in (2, 32))
    assert few == many
    few, many = (count_hlo(gradient, weights, chunks[:n], optimized=False) for n in (2, 32))
    assert many - few <= 30 * 2 * 2  # a parameter and a reshape for each array


def test_units_are_one_callee():
    if not unit_support():
        pytest.skip("this XLA has no compilation units")

    def gradient(weights, chunks):
        return jax.grad(lambda w: scan_chunks(body_of(w), 0.0, chunks, mode="unit")[0])(weights)

    def functions(n):
        text = jax.jit(gradient).lower(jnp.ones((3, 2)), batches(*[4] * n)).as_text()
        calls = [line for line in text.splitlines() if "call @" in line]
        return sum("compilation_unit" in line for line in calls), text.count("func.func")

    calls_4, functions_4 = functions(4)
    calls_16, functions_16 = functions(16)
    assert calls_4 == 2 * 4  # forward and backward
    assert calls_16 == 2 * 16
    assert functions_4 == functions_16


def test_only_the_blocks_are_tagged_even_with_jits_inside_and_derivatives():
    if not unit_support():
        pytest.skip("this XLA has no compilation units")

    @jax.jit
    def inner(x):
        return jax.nn.relu(x) * jnp.where(x > 0, x, 2.0)

    def loss(w, chunks):
        return scan_chunks(lambda c, x: (c + inner(x * w).sum(), None), 0.0, chunks, mode="unit")[0]

    text = jax.jit(jax.grad(loss)).lower(jnp.ones(3), [jnp.ones(3)] * 3).as_text()
    calls = [line for line in text.splitlines() if "call @" in line]
    # On jax 0.10 the tag would go into `relu`, whose rule has to stay: such a body is scanned.
    expected = 2 * 3 if _compat.xla_metadata_call is not None else 0
    assert sum("compilation_unit" in line for line in calls) == expected


def test_calls_in_a_derivative_rule_are_not_tagged():
    if not unit_support():
        pytest.skip("this XLA has no compilation units")

    def tags(rule):
        @jax.custom_jvp
        def sine(x):
            return jnp.sin(x)

        sine.defjvp(lambda primals, tangents: (sine(*primals), rule(*primals) * tangents[0]))

        def loss(w, chunks):
            def body(total, x):
                return total + sine(x * w).sum(), None

            return scan_chunks(body, 0.0, chunks, mode="unit")[0]

        text = jax.jit(jax.grad(loss)).lower(jnp.ones(3), [jnp.ones(3)] * 3).as_text()
        return sum("compilation_unit" in s and "call @" in s for s in text.splitlines())

    assert tags(jnp.cos) == 2 * 3
    inner = tags(lambda x: jnp.where(x > 0, jnp.cos(x), 1.0))
    assert inner == (2 * 3 if _compat.xla_metadata_call else 0)  # a scan on jax 0.10


def test_nothing_is_stacked_for_units():
    def program(chunks):
        return scan_chunks(lambda c, x: (c + x.sum(), None), 0.0, chunks, mode="unit")

    text = jax.jit(program).lower([jnp.ones(5)] * 3).as_text()
    assert "3x5" not in text
    assert "concatenate" not in text


def test_traced_inside_jit_numbers_do_not_trace_again():
    body = Counted(lambda c, x: (c + x, None))
    step = jax.jit(lambda numbers: scan_chunks(body, 0.0, numbers)[0])
    assert float(step([0.5, 1.0])) == 1.5
    assert float(step([2.0, 3.0])) == 5.0
    assert body.traces == 1


# --- random sequences of chunks


@pytest.mark.parametrize("mode", MODES)
@given(
    kinds=st.lists(
        st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(["sin", "cos"]), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    reverse=st.booleans(),
)
def test_any_sequence_equals_the_python_loop(mode, kinds, reverse):
    def body(carry, chunk):
        function = {"sin": jnp.sin, "cos": jnp.cos}[chunk["kind"]]
        y = function(chunk["x"]) * (chunk["scale"] if chunk["wide"] else 1.0)
        return (carry[0] * 0.5 + y.sum(), carry[1] + 1), y

    chunks = [
        {"x": jnp.arange(float(n)) * 0.25 + i, "kind": kind, "wide": wide, "scale": 0.5 + i}
        for i, (n, kind, wide) in enumerate(kinds)
    ]
    counted = Counted(body)
    carry, outs = scan_chunks(counted, (0.0, 0), chunks, mode=mode, reverse=reverse)
    expected, expected_outs = python_loop(body, (0.0, 0), chunks, reverse)
    assert carry[1] == expected[1]
    chex.assert_trees_all_close(carry[0], expected[0], rtol=1e-6)
    chex.assert_trees_all_close(outs, expected_outs, rtol=1e-6)
    assert counted.traces <= 2 * len(set(kinds))


@pytest.mark.parametrize("mode", MODES)
def test_an_integer_carry_meets_numbers_with_a_point(mode):
    total, _ = scan_chunks(lambda c, x: (c + x, None), 0, [1.0, 2.0], mode=mode)
    assert float(total) == 3.0


def test_outs_are_no_views_of_the_chunks():
    chunks = [np.ones((n, 2), np.float32) for n in (4, 4, 2)]
    _, outs = scan_chunks(lambda c, x: (c + jnp.sum(x), jnp.asarray(x)), 0.0, chunks)
    chunks[2][:] = 7
    assert all(isinstance(out, jax.Array) for out in outs)
    assert float(outs[2].sum()) == 4.0


# --- weak types


def add(carry, x):
    return carry + x, {"out": x * 2, "one": 1.0}


def add_array(carry, x):
    return carry + jnp.sum(x), {"out": carry + jnp.sum(x), "twice": 2 * jnp.sum(x)}


def restart(carry, x):
    return jnp.asarray(0.5) + 0 * x, jnp.sin(x)


def count(carry, x):
    return {"n": carry["n"] + 1, "sum": carry["sum"] + x}, carry["n"]


WEAK_CASES = {
    "numbers": (add, 0.0, [1.0, 2.0, 3.0]),
    "arrays": (add_array, 0.0, [jnp.ones(2)] * 3),
    "a weak result of a strong carry": (restart, jnp.zeros(()), [1.0, 2.0]),
    "a count": (count, {"n": 0, "sum": jnp.zeros(3)}, [1.0, 2.0, 3.0]),
    "a tail": (count, {"n": 0, "sum": 0.0}, [1.0, 2.0, jnp.asarray(3.0), np.float32(4)]),
}


@pytest.mark.quick
@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", WEAK_CASES)
def test_results_are_as_weak_as_those_of_the_python_loop(case, mode, jitted):
    body, carry, chunks = WEAK_CASES[case]
    wrap = jax.jit if jitted else lambda function: function
    loop = wrap(lambda: python_loop(body, carry, chunks))()
    mine = wrap(lambda: scan_chunks(body, carry, chunks, mode=mode))()

    def weak(tree):
        return jax.tree.map(lambda leaf: jax.typeof(leaf).weak_type, tree)

    assert weak(mine) == weak(loop)


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
def test_a_number_as_carry_is_of_the_bodys_type_from_the_first_chunk_on(mode):
    _, outs = scan_chunks(lambda c, x: (c + jnp.sum(x), c), 0.0, [jnp.ones(2)] * 3, mode=mode)
    assert [out.weak_type for out in outs] == [False] * 3

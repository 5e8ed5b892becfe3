"""Bits, ULP and first differences, against distances worked out by hand or by `np.nextafter`."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from compilecut import _bits
from compilecut._bits import Difference, bit_equal, differences, first_difference, ulp_distance

pytestmark = pytest.mark.quick

FLOATS = (np.float16, jnp.bfloat16, np.float32, np.float64)


def nan_with_payload(payload: int) -> np.ndarray:
    return np.array([0x7FC00000 + payload], np.uint32).view(np.float32)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("start", [1.0, -1.0, 0.5, -3.0, 100.0])
def test_neighbours_are_one_apart(dtype, start):
    x = np.asarray(start, dtype)
    up, down = (np.nextafter(x, np.asarray(to, dtype)) for to in (math.inf, -math.inf))
    assert ulp_distance(x, up) == ulp_distance(down, x) == 1
    assert ulp_distance(down, up) == 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype):
    zero, inf, nan = (np.asarray(x, dtype) for x in (0.0, math.inf, math.nan))
    tiny = np.nextafter(zero, np.asarray(1, dtype))
    assert ulp_distance(zero, -zero) == 1
    assert ulp_distance(zero, tiny) == 1
    assert ulp_distance(tiny, -tiny) == 3  # the two zeros lie between
    assert ulp_distance(np.asarray(jnp.finfo(dtype).max, dtype), inf) == 1
    assert ulp_distance(nan, nan) == 0
    assert ulp_distance(nan, inf) == ulp_distance(zero, nan) == math.inf
    assert isinstance(ulp_distance(inf, -inf), int)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.int32(-2), np.int32(5), 7),
        (np.int64(-(2**63)), np.int64(2**63 - 1), 2**64 - 1),
        (np.uint8(250), np.uint8(3), 247),
        (True, False, 1),
        (1 + 2j, 1 + np.nextafter(2.0, 3.0) * 1j, 1),
        (np.complex64(complex(1, -0.0)), np.complex64(1), 1),
        (jnp.int4(-8), jnp.int4(7), 15),
        (jnp.uint4(1), jnp.uint4(15), 14),
        (jnp.float8_e4m3fn(1.0), jnp.float8_e4m3fn(1.25), 2),
        (jnp.float8_e5m2(1.0), jnp.float8_e5m2(1.25), 1),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0),
        (
            np.array([1, 2], ">f4"),
            np.array([1, np.nextafter(np.float32(2), np.float32(3))], ">f4"),
            1,
        ),
    ],
)
def test_distances_by_hand(a, b, expected):
    assert ulp_distance(a, b) == ulp_distance(b, a) == expected
    assert bit_equal(a, b) == (expected == 0)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_distance_is_zero_exactly_for_equal_bits_or_two_nans(i, j):
    a, b = (np.array([k], np.uint32).view(np.float32) for k in (i, j))
    both_nan = bool(np.isnan(a) and np.isnan(b))
    assert (ulp_distance(a, b) == 0) == (i == j or both_nan)
    assert bit_equal(a, b) == (i == j)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3, unique=True))
def test_distances_add_up_in_order(values):
    a, b, c = np.sort(np.float32(values))
    assert ulp_distance(a, b) + ulp_distance(b, c) == ulp_distance(a, c)


def test_nan_payloads_differ_in_bits_not_in_ulp():
    a, b = nan_with_payload(0), nan_with_payload(1)
    assert ulp_distance(a, b) == 0
    assert not bit_equal(a, b)
    assert bit_equal(a, a)
    found = first_difference(a, b)
    assert found is not None
    assert "0x7fc00001" in str(found)  # the values print alike, so the bits are shown


def test_largest_distance_is_over_the_whole_tree():
    one = np.float32(1)
    near = np.nextafter(one, np.float32(2))
    far = np.nextafter(near, np.float32(2))
    assert (
        ulp_distance([one, {"x": np.stack([one, one])}], [near, {"x": np.stack([near, far])}]) == 2
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [(np.float32(1), np.float64(1)), (np.ones(2), np.ones(3)), ([1.0], (1.0,)), ("a", "b")],
)
def test_no_distance_between_things_of_different_kinds(a, b):
    with pytest.raises(ValueError, match="no ULP distance"):
        ulp_distance(a, b)


@pytest.mark.parametrize(
    ("a", "b", "kind", "path"),
    [
        ({"w": np.ones(2), "b": 0}, {"w": np.ones(2)}, "structure", "['b']"),
        ([1, None], [1, 2], "structure", "[1]"),
        ((1, 2), [1, 2], "structure", ""),
        ({"w": jnp.ones(2, jnp.bfloat16)}, {"w": jnp.ones(2)}, "dtype", "['w']"),
        ([[np.ones((2, 1))]], [[np.ones((1, 2))]], "shape", "[0][0]"),
        ({"a": {"b": "relu"}}, {"a": {"b": "gelu"}}, "value", "['a']['b']"),
        ([2**70], [2**71], "value", "[0]"),
    ],
)
def test_first_difference_says_where_and_what(a, b, kind, path):
    found = first_difference(a, b)
    assert isinstance(found, Difference)
    assert (found.kind, found.path) == (kind, path)
    assert first_difference(a, a) is first_difference(b, b) is None


def test_value_difference_has_the_evidence():
    a = np.zeros((3, 4), np.float32)
    b = a.copy()
    b[1, 2], b[2, 0] = -0.0, np.nan
    found = first_difference([a], [b])
    assert found is not None
    assert (found.index, found.ulp, found.max_ulp) == ((1, 2), 1, math.inf)
    assert (found.count, found.size) == (2, 12)
    assert (found.left, found.right) == (0.0, -0.0)
    for evidence in ("[0]", "(1, 2)", "0.0", "-0.0", "1 ULP", "2 of 12"):
        assert evidence in str(found)


def test_differences_has_one_entry_per_leaf():
    a = {"x": np.ones(3), "y": 1, "z": "same"}
    b = {"x": np.zeros(3), "y": 2, "z": "same"}
    assert [d.path for d in differences(a, b)] == ["['x']", "['y']"]


def test_typed_keys():
    a, b = jax.random.key(0), jax.random.key(1)
    assert bit_equal({"k": a}, {"k": jax.random.key(0)})
    found = first_difference({"k": a}, {"k": b})
    assert found is not None
    assert (found.path, found.kind, found.ulp) == ("['k']", "value", 1)
    other = first_difference(a, jax.random.key(0, impl="rbg"))
    assert other is not None
    assert other.kind == "dtype"


def test_weak_types_and_float0_are_not_looked_into():
    assert bit_equal(jnp.asarray(1.0), jnp.asarray(1.0, jnp.float32))
    empty = np.zeros((2,), jax.dtypes.float0)
    assert bit_equal(empty, empty)


def sharded(x: np.ndarray, spec: P) -> jax.Array:
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return jax.device_put(x, jax.NamedSharding(mesh, spec))


def test_sharded_arrays_compare_by_value():
    x = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    assert bit_equal(sharded(x, P("a", "b")), sharded(x, P(None, "b")))
    assert bit_equal(sharded(x, P("a")), x)


@pytest.mark.parametrize("other", [P("a", "b"), None])
def test_arrays_over_processes_compare_shard_by_shard(monkeypatch, other):
    """One process can only pretend: arrays over all devices are taken as not fully addressable."""

    def is_spread(x):
        return isinstance(x, jax.Array) and len(x.sharding.device_set) > 1

    monkeypatch.setattr(_bits, "_is_spread", is_spread)
    x = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    y = x.copy()
    y[3, 3] += 1
    y[6, 0] += 2
    a = sharded(x, P("a", "b"))
    b = y if other is None else sharded(y, other)
    for found in (first_difference(a, b), first_difference(b, a)):
        assert found is not None
        assert (found.index, found.count, found.size) == ((3, 3), 2, 32)
        assert {float(found.left), float(found.right)} == {15.0, 16.0}
    assert first_difference(a, sharded(x, P("a", "b"))) is None
    with pytest.raises(ValueError, match="out_shardings"):
        first_difference([a], [sharded(x, P("b", "a"))])

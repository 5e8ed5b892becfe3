"""`scan_chunks`: what it refuses, and that the message says what, where and what to do."""

import enum
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from compilecut._chunks import scan_chunks
from compilecut._errors import ChunkError, ChunkTypeError, CompilecutError, CompilecutWarning

pytestmark = pytest.mark.quick


def keep(carry, chunk):
    return carry, None


def refused(kind, parts: list[str], body, carry, chunks, **options) -> str:
    with pytest.raises(kind) as caught:
        scan_chunks(body, carry, chunks, **options)
    message = str(caught.value)
    assert isinstance(caught.value, CompilecutError)
    for part in parts:
        assert part in message, message
    return message


@pytest.mark.parametrize("mode", ["scan", "unit", "unroll"])
def test_a_carry_that_changes_its_dtype(mode):
    def widening(carry, chunk):
        return {"loss": carry["loss"].astype(jnp.float32), "n": carry["n"]}, None

    start = {"loss": jnp.zeros(3, jnp.bfloat16), "n": 0}
    parts = ["carry['loss']", "bfloat16[3]", "float32[3]", "chunk 0", "astype(bfloat16)", __file__]
    refused(ChunkTypeError, parts, widening, start, [1.0, 2.0], mode=mode)


def test_a_carry_that_changes_at_a_later_group():
    def body(carry, chunk):
        return jnp.concatenate([carry, carry]) if chunk == "grow" else carry, None

    parts = ["carry is", "float32[3]", "float32[6]", "chunk 2", "Begin with"]
    message = "carry: at chunk 2 it goes in as float32[3]"
    text = refused(ChunkTypeError, parts[1:4], body, jnp.ones(3), ["a", "a", "grow"])
    assert message in text


def test_a_carry_that_changes_its_structure():
    parts = ["changes the structure of the carry", "'a'", "'b'"]
    refused(ChunkTypeError, parts, lambda c, x: ({"b": c["a"]}, None), {"a": 1.0}, [1.0])


def test_a_weak_carry_that_can_not_become_what_the_body_returns():
    def body(carry, chunk):
        return jnp.zeros(3) + carry, None

    refused(ChunkTypeError, ["carry", "float32[]", "float32[3]"], body, 0.0, [1.0, 2.0])


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        (None, ["returned None", "`carry, None`"]),
        ([1, 2], ["a list of 2", "return a tuple"]),
        ((1,), ["a tuple of 1"]),
        ((1, np.ones(3), {"a": 1}), ["a tuple of 3", "float64[3]", "'a'", "`carry, (a, b)`"]),
        (jnp.ones(()), ["returned float32[]", "the carry alone"]),
    ],
)
def test_a_body_that_returns_no_pair(result, parts):
    parts = ["a pair (carry, out)", __file__, *parts]
    refused(ChunkTypeError, parts, lambda c, x: result, 0.0, [1.0])


def test_a_body_that_returns_only_a_carry_that_is_a_pair():
    parts = ["the carry alone", "a tuple of 2", "float32[3]"]
    refused(ChunkTypeError, parts, lambda c, x: (c[0], c[1] + x), (1.0, jnp.ones(3)), [1.0])


@pytest.mark.parametrize("ys", [jnp.zeros(4), jnp.zeros((4, 3), jnp.int32)])
def test_a_tuple_that_was_meant_as_stacked(ys):
    xs, seen = jnp.ones((4, 3)), []

    def body(carry, chunk):
        seen.append(chunk.shape)
        return carry, None

    with pytest.warns(CompilecutWarning, match=r"a tuple of 2 arrays \(float32\[4,3\]"):
        scan_chunks(body, 0.0, (xs, ys))
    assert seen == [xs.shape, ys.shape]
    scan_chunks(body, 0.0, [xs, ys])
    scan_chunks(body, 0.0, (xs, xs + 1))
    scan_chunks(body, 0.0, (xs, xs[:2]))


def test_a_body_that_returns_a_string():
    parts = ["out['name']", "str", "leave it out"]
    refused(ChunkTypeError, parts, lambda c, x: (c, {"name": "a"}), 0.0, [1.0])


@pytest.mark.parametrize("chunks", [[], (), {"x": np.zeros((0, 3))}])
def test_no_chunks(chunks):
    refused(ChunkError, ["empty", "skip the call"], keep, 0.0, chunks)


def test_stacked_leaves_of_different_lengths():
    chunks = {"x": np.zeros((4, 3)), "y": np.zeros(5)}
    parts = ["chunks['x']", "chunks['y']", "float32[4,3]", "float32[5]", "list"]
    refused(ChunkError, parts, keep, 0.0, chunks)


def test_a_stacked_leaf_without_an_axis():
    refused(ChunkError, ["chunks['y']", "float32[]"], keep, 0.0, {"x": np.zeros(4), "y": 1.0})


@pytest.mark.parametrize("chunks", [(i for i in range(3)), range(3), {"name": "a"}, None])
def test_neither_a_sequence_nor_stacked(chunks):
    parts = [type(chunks).__name__, "list(...)"]
    refused(ChunkTypeError, parts, keep, 0.0, chunks)


def test_an_array_of_strings():
    refused(ChunkTypeError, ["chunks[1]['x']", "<U1"], keep, 0.0, [1.0, {"x": np.array(["a"])}])


def test_an_integer_too_large():
    parts = ["chunks[0]['seed']", str(2**40), "np.uint32"]
    refused(ChunkError, parts, keep, 0.0, [{"seed": 2**40}])


def test_statics_that_can_not_be_compared():
    class Odd:
        def __eq__(self, other):  # pyright: ignore[reportIncompatibleMethodOverride]
            return np.array([True, False])

        __hash__ = None  # pyright: ignore[reportAssignmentType]

    parts = ["chunks[0][0]", "chunks[1][0]", "Odd", "__eq__"]
    refused(ChunkTypeError, parts, keep, 0.0, [[Odd()], [Odd()]])


def test_unhashable_statics_are_fine_when_they_compare():
    chunks = [[{1, 2}], [{1, 2}], [{3}]]
    seen: list[Any] = []

    def body(carry, chunk):
        seen.append(chunk[0])
        return carry + 1, None

    assert int(scan_chunks(body, 0, chunks)[0]) == 3
    assert seen == [{1, 2}, {3}]


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("mode", "scna", ChunkError),
        ("unroll", 0, ChunkError),
        ("unroll", 1.5, ChunkError),
        ("remat", "dots", ChunkTypeError),
        ("remat", False, ChunkTypeError),
        ("accum_dtype", jnp.int32, ChunkTypeError),
        ("accum_dtype", "float33", ChunkTypeError),
    ],
)
def test_options(option, value, kind):
    refused(kind, [f"`{option}`", repr(value)], keep, 0.0, [1.0], **{option: value})


def test_a_number_used_as_a_python_value():
    class Size(enum.IntEnum):
        TWO = 2

    def body(carry, n):
        return carry + jnp.zeros(n).sum(), None

    with pytest.raises(TypeError, match="concrete") as caught:
        scan_chunks(body, 0.0, [2, 2])
    assert re.search("make it static", "".join(caught.value.__notes__))
    assert float(scan_chunks(body, 0.0, [Size.TWO, Size.TWO])[0]) == 0.0

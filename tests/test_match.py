"""Matching, part by part: periodic stretches, alignments, blocks as functions."""

import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated_programs import folded

import compilecut as cc
from compilecut._jaxpr import flatten
from compilecut._match import Call, block_key, can_run
from compilecut._match._align import align
from compilecut._match._runs import find_runs
from compilecut._plan import Planner

small = st.lists(st.integers(0, 3), max_size=40)


# --- periodic stretches


@hypothesis.given(small)
@hypothesis.settings(max_examples=200)
def test_every_stretch_is_periodic(sequence):
    for run in find_runs(np.asarray(sequence, np.int64), 2):
        assert 0 <= run.start < run.stop <= len(sequence)
        assert run.blocks >= 2
        for i in range(run.start, run.stop - run.period):
            assert sequence[i] == sequence[i + run.period]


@hypothesis.given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
    st.integers(2, 9),
    st.lists(st.integers(10, 19), max_size=5, unique=True),
    st.lists(st.integers(20, 29), max_size=5, unique=True),
)
@hypothesis.settings(max_examples=200)
def test_a_planted_stretch_is_found_whole(block, count, before, after):
    sequence = [*before, *block * count, *after]
    runs = find_runs(np.asarray(sequence, np.int64), 2)
    planted = (len(before), len(before) + len(block) * count, len(block))
    assert planted in [(run.start, run.stop, run.period) for run in runs]


def test_both_loops_of_a_nest_are_found():
    inner, outer = 5, 6
    sequence = ([1, 2] * inner + [3]) * outer
    periods = {run.period for run in find_runs(np.asarray(sequence), 2)}
    assert {2, 2 * inner + 1} <= periods


@pytest.mark.parametrize("sequence", [[], [1], [1, 2, 3]])
def test_there_may_be_no_stretch(sequence):
    assert find_runs(np.asarray(sequence, np.int64), 2) == []


# --- alignments


def longest(a, b):
    """The length of a longest common subsequence, the slow way."""
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, j in itertools.product(range(len(a)), range(len(b))):
        if a[i] == b[j]:
            table[i + 1, j + 1] = table[i, j] + 1
        else:
            table[i + 1, j + 1] = max(table[i, j + 1], table[i + 1, j])
    return table[-1, -1]


@hypothesis.given(small, small)
@hypothesis.settings(max_examples=300)
def test_an_alignment_is_a_longest_common_subsequence(block, stretch):
    pairs = align(block, stretch)
    assert all(block[slot] == stretch[place] for slot, place in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))
    assert len(pairs) == longest(block, stretch)


@hypothesis.given(small)
def test_a_block_is_aligned_to_itself(block):
    assert align(block, block) == [(i, i) for i in range(len(block))]


# --- blocks as functions


X = jnp.ones((2, 3))
KEYS = [
    lambda x, y: jnp.sin(x) - y,
    lambda x, y: y - jnp.sin(x),
    lambda x, y: jnp.sin(y) - x,
    lambda x, y: jnp.cos(x) - y,
    lambda x, y: (jnp.sin(x) - y) * 2.0,
    lambda x, y: (jnp.sin(x) - y) * 3.0,
    lambda x, y: (jnp.sin(x) - y, x),
    lambda x, y: (x, jnp.sin(x) - y),
    lambda x, y: (jnp.sin(x) - y).sum(0),
    lambda x, y: (jnp.sin(x) - y).sum(1),
    lambda x, y: (jnp.sin(x) + 0.0) * y,
    lambda x, y: (jnp.sin(x) + -0.0) * y,
    lambda x, y: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, y),
    lambda x, y: jax.lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, y),
]


def key(f, *args):
    return block_key(flatten(jax.make_jaxpr(f)(*args), keep_calls=True))


def test_blocks_have_one_key_if_they_are_one_function():
    for f in KEYS:
        assert key(f, X, X) == key(lambda x, y, f=f: f(x, y), X, X)


def test_blocks_have_other_keys_if_they_are_other_functions():
    keys = [key(f, X, X) for f in KEYS]
    assert len(set(keys)) == len(keys)
    f = KEYS[0]
    assert key(f, X, X) != key(f, X[:1], X[:1])
    assert key(f, X, X) != key(f, X.astype(jnp.bfloat16), X.astype(jnp.bfloat16))
    assert key(f, X, X) != key(f, 1.0, 1.0)
    assert key(f, 1.0, 1.0) != key(f, jnp.float32(1), jnp.float32(1))


# --- the boundary blocks of differentiated loops


def mlp(ws, x):
    for w in ws:
        x = x + jnp.tanh(x @ w) * 0.5 - jnp.sin(x)
    return (x * x).sum()


@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
@pytest.mark.parametrize("n", [4, 8])
def test_all_blocks_of_a_differentiated_loop_fold(n, argnums):
    ws = list(jax.random.normal(jax.random.key(0), (n, 4, 4)))
    fold = folded(jax.value_and_grad(mlp, argnums), ws, ws[0])
    assert fold.blocks == [n, n]


def test_foreign_equations_between_blocks_do_not_hide_them():
    def program(ws, x):
        for i, w in enumerate(ws):
            x = x + jnp.tanh(x @ w) * 0.5 - jnp.sin(x)
            if i == 3:
                x = jnp.cumsum(x, 0)
        return x

    ws = list(jax.random.normal(jax.random.key(0), (8, 4, 4)))
    assert folded(program, ws, ws[0]).blocks == [8]


def test_what_is_the_same_in_every_block_is_computed_once():
    def program(ws, shared, x):
        for w in ws:
            x = x + jnp.tanh(x @ w) * jnp.exp(jnp.sin(shared)) - jnp.cos(x)
        return x

    ws = list(jax.random.normal(jax.random.key(0), (8, 4, 4)))
    fold = folded(program, ws, ws[0], ws[1])
    (repeat,) = fold.plan.repeats
    assert len(repeat.calls) == 8
    assert len(repeat.shared) == 7 * 2


def test_a_whole_call_may_not_run_between_the_parts_of_another():
    """Each has an order beside single equations; together they wait for each other."""

    def program(x):
        b1 = jnp.sin(x)
        a1 = jnp.cos(x)
        a2 = a1 * b1
        b2 = b1 + a1
        return a2, b2

    traced = flatten(jax.make_jaxpr(program)(X), keep_calls=True)
    (b1,), (a1,), (a2,), (b2,) = (eqn.outputs for eqn in traced.equations)
    x = traced.arguments[0]
    divided = Call(inputs=(x, a1), outputs=(b1, b2), positions=(0, 3))
    whole = Call(inputs=(x, b1), outputs=(a1, a2), positions=(1, 2))
    assert can_run(traced, {}, [(whole,)])
    assert can_run(traced, {}, [(divided,)])
    assert not can_run(traced, {}, [(divided,), (whole,)])


def test_a_later_call_is_neither_traced_nor_planned_again(monkeypatch):
    calls = []

    def program(ws, x):
        calls.append(1)
        return mlp(ws, x)

    ws = list(jax.random.normal(jax.random.key(0), (8, 4, 4)))
    fold = cc.fold(program)
    first = fold(ws, ws[0])
    monkeypatch.setattr(Planner, "plan", None)
    assert fold(ws, ws[0]) == first
    assert len(calls) == 1
    with jax.default_matmul_precision("highest"), pytest.raises(TypeError):
        fold(ws, ws[0])  # another setting is another trace and another plan
    assert len(calls) == 2

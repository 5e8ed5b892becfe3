"""Generated programs with planted repeats: all folded, all proven equal, a sample run.

Each program is planned, emitted and held against the original by the independent check. Running
one costs a hundred times as much as checking it, so only a sample is compiled.
"""

from typing import Any

import jax
import numpy as np
import pytest
from generated_programs import Generated, folded, generate, mutants
from jax.extend import core as jex_core
from jax.extend.core import primitives as prim

import compilecut as cc
from compilecut._check import first_difference
from compilecut.testing import assert_equivalent

FORMS = ("auto", "unit", "scan")
# 300 programs in the normal run, 20,000 in the slow one, in chunks that can run side by side.
CHUNK, FEW, MANY = 30, 10, 667


@pytest.fixture(autouse=True)
def _no_checks():
    """JAX's own checks double the time it takes to trace a program."""
    with jax.enable_checks(False):
        yield


def form_of(seed: int) -> Any:
    return FORMS[seed % len(FORMS)]


def prove(seed: int) -> tuple[Generated, int]:
    """Folds a program, asserts that the result is equal, and returns how many blocks were found."""
    program = generate(seed)
    fold = folded(program.function, *program.args, form=form_of(seed))
    difference = first_difference(fold.original, fold.emitted)
    assert difference is None, f"{difference}\n{program.story}"
    assert len(fold.emitted.eqns) <= len(fold.original.eqns) or fold.plan.folds, program.story
    return program, max(fold.blocks, default=0)


def prove_chunk(chunk: int) -> None:
    planted = found = 0
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        program, blocks = prove(seed)
        if program.plain:
            planted += 1
            found += blocks >= program.blocks
            # A block whose neighbours tell it apart (the first, say) may be lost, not more.
            missing = f"found {blocks} of {program.blocks} blocks\n{program.story}"
            assert blocks >= program.blocks - 1 or program.blocks <= 3, missing
    assert found >= 0.8 * planted, f"{found} of {planted}"


@pytest.mark.parametrize("chunk", range(FEW))
def test_planted_repeats_are_found_and_equal(chunk):
    prove_chunk(chunk)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(FEW, MANY))
def test_many_planted_repeats_are_found_and_equal(chunk):
    prove_chunk(chunk)


def run(seed: int) -> None:
    program = generate(seed)
    fold = cc.fold(program.function, form=form_of(seed))
    try:
        assert_equivalent(program.function, fold, *program.args)
    except AssertionError as error:
        raise AssertionError(program.story) from error


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
def test_a_sample_is_run(seed):
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 150))
def test_a_larger_sample_is_run(seed):
    run(seed)


# --- the check has teeth here too


def sharp(seed: int, most: int) -> None:
    """A mutant of a generated fold is caught, or computes the same."""
    program = generate(seed)
    fold = folded(program.function, *program.args, form=form_of(seed))
    every = list(mutants(fold.emitted))
    rng = np.random.default_rng(seed)
    arrays = jax.tree.leaves(program.args)
    expected = None
    for place in rng.permutation(len(every))[:most]:
        name, mutant = every[place]
        if first_difference(fold.original, mutant) is None:
            if expected is None:
                expected = jax.jit(jex_core.jaxpr_as_fun(fold.emitted))(*arrays)
            values = jax.jit(jex_core.jaxpr_as_fun(mutant))(*arrays)
            for a, b in zip(expected, values, strict=True):
                np.testing.assert_allclose(a, b, 1e-4, 1e-5, err_msg=f"{name}\n{program.story}")


@pytest.mark.parametrize("seed", [6, 7, 8])
def test_mutants_of_folds_are_caught_or_equal(seed):
    sharp(seed, most=20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9, 60))
def test_more_mutants_of_folds_are_caught_or_equal(seed):
    sharp(seed, most=60)


# --- shapes of programs that the generator doesn't draw


def test_a_jitted_block_is_the_block():
    @jax.jit
    def block(x, w):
        return jax.numpy.tanh(x @ w) * 0.5 + x

    def program(ws, x):
        for w in ws:
            x = block(x, w)
        return x

    ws = list(jax.random.normal(jax.random.key(0), (8, 4, 4)))
    fold = folded(program, ws, ws[0], form="scan")
    assert first_difference(fold.original, fold.emitted) is None
    assert len(fold.emitted.eqns) < len(fold.original.eqns) or not fold.plan.folds


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cycle", [2, 3, 6])
def test_cycles_of_different_layers(form, cycle):
    """Five local layers and one global one, say: one block is the whole cycle."""

    def layer(kind, x, w):
        if kind == cycle - 1:
            return x + jax.nn.softmax(x @ w) @ w.T
        return x - jax.numpy.tanh(x @ w) * 0.5

    def program(ws, x):
        for i, w in enumerate(ws):
            x = layer(i % cycle, x, w)
        return x

    ws = list(jax.random.normal(jax.random.key(0), (6 * cycle, 4, 4)) * 0.3)
    fold = folded(program, ws, ws[0], form=form)
    assert first_difference(fold.original, fold.emitted) is None
    assert max(fold.blocks) >= 6
    assert_equivalent(program, cc.fold(program, form=form), ws, ws[0])


@pytest.mark.parametrize("form", FORMS)
def test_nested_loops(form):
    def program(ws, x):
        for w in ws:
            for row in w:
                x = jax.numpy.sin(x * row) + jax.numpy.cos(x) * 0.5 - x * 0.1
            x = x / (1 + abs(x).max()) @ w
        return x

    ws = list(jax.random.normal(jax.random.key(0), (6, 4, 4)))
    fold = folded(program, ws, ws[0], form=form)
    assert first_difference(fold.original, fold.emitted) is None
    assert fold.blocks
    assert_equivalent(program, cc.fold(program, form=form), ws, ws[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inside", ["jit", "remat", "cond", "scan", "while"])
def test_repeats_inside_other_programs(form, inside):
    def stack(ws, x):
        for w in ws:
            x = jax.numpy.tanh(x @ w) * 0.5 + x - jax.numpy.sin(x)
        return x

    def program(ws, x):
        if inside == "jit":
            return jax.jit(stack)(ws, x)
        if inside == "remat":
            return jax.checkpoint(stack)(ws, x)
        if inside == "cond":
            return jax.lax.cond(x.sum() > 0, stack, lambda ws, x: x, ws, x)
        if inside == "scan":
            return jax.lax.scan(lambda x, _: (stack(ws, x), None), x, None, length=3)[0]
        return jax.lax.while_loop(lambda x: x.sum() < 0, lambda x: stack(ws, x) + 1, x)

    ws = list(jax.random.normal(jax.random.key(0), (8, 4, 4)) * 0.3)
    fold = folded(program, ws, ws[0], form=form)
    assert first_difference(fold.original, fold.emitted) is None
    assert fold.plan.folds
    assert_equivalent(program, cc.fold(program, form=form), ws, ws[0])


@pytest.mark.parametrize("form", FORMS)
def test_size_does_not_grow_with_depth(form):
    def program(ws, x):
        for w in ws:
            x = jax.numpy.tanh(x @ w) * 0.5 + x - jax.numpy.sin(x)
        return (x * x).sum()

    def size(n):
        ws = jax.random.normal(jax.random.key(0), (n, 4, 4))
        fold = folded(jax.value_and_grad(lambda W, x: program(list(W), x)), ws, ws[0], form="scan")
        assert first_difference(fold.original, fold.emitted) is None
        return sum(1 for eqn in fold.emitted.eqns if eqn.primitive is prim.scan_p)

    assert size(6) == size(12)


def test_many_calls_of_one_loss():
    """Losses that share a stack: shared equations, several consumers."""

    def program(ws, xs):
        total = 0.0
        for x in xs:
            for w in ws:
                x = jax.numpy.tanh(x @ w) * 0.5 + x - jax.numpy.sin(w) @ x
            total += (x * x).sum()
        return total

    ws = list(jax.random.normal(jax.random.key(0), (4, 4, 4)))
    for form in FORMS:
        fold = folded(jax.grad(program), ws, ws[:3], form=form)
        assert first_difference(fold.original, fold.emitted) is None
        assert fold.blocks

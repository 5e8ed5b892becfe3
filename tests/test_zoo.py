"""Every program of the zoo, folded: found, proven from outside, equal bit for bit.

The normal run plans and checks all programs and compares the bits of a few. The rest of the bits,
and the table of distances to the programs as written, are marked slow.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import zoo
from jax.extend import core as jex_core

import compilecut as cc
from compilecut._arguments import split
from compilecut._bits import differences
from compilecut._check import first_difference
from compilecut._jaxpr import sub_jaxprs
from compilecut._match import Loop
from compilecut._plan import Plan, UnitCall
from compilecut._testing import run_compiled
from compilecut.testing import STRICT_COMPILER_OPTIONS, assert_bit_identical, ulp_distance

pytestmark = pytest.mark.standard_promotion

FORMS = ("auto", "scan")
DISTANCES = Path(__file__).parent / "zoo" / "ulp.json"

# What doesn't hold yet, by test, program and form, with the reason. Each is a strict xfail.


def both(reason: str, *names: str) -> dict[str, str]:
    return {f"{name}/{form}": reason for name in names for form in FORMS}


PLANNED: dict[str, str] = {
    "rnn-linen-three-lstms-gradient/scan": "more equations than as written: stacks don't agree",
    **both("the call at the border has other results, and isn't completed", "marked-jit-gradient"),
    **both("n - 1 blocks: the last step, cut short, isn't completed", "cg", "cg-gradient"),
    **both("n - 1 blocks: the first step isn't completed", "diffrax-steps-gradient"),
    **both("slices inside a block that start elsewhere in each aren't lifted", "householder"),
    "albert-gradient/auto": "the forward loop is a scan of 4, its last block as written",
}
EQUAL: dict[str, str] = {}
ALIKE: dict[str, str] = {
    "runge-kutta/unit": "XLA compiles a small loop otherwise than its block as a unit",
    "optimizer-lion/unit": "as a scan it wouldn't pay, and stays as written",
}

PROGRAMS = list(zoo.PROGRAMS.values())


def over(programs: Iterable[zoo.Program], forms: tuple[str, ...], known: dict[str, str]) -> Any:
    """Parametrizes a test with programs and forms; those of `known` are expected to fail."""
    assert {name.rpartition("/")[0] for name in known} <= zoo.PROGRAMS.keys()
    return pytest.mark.parametrize(
        ("program", "form"),
        [
            pytest.param(
                program,
                form,
                id=(name := f"{program.name}/{form}"),
                marks=pytest.mark.xfail(strict=True, reason=known[name]) if name in known else (),
            )
            for program in programs
            for form in forms
        ],
    )


@functools.lru_cache(maxsize=2)
def traced(program: zoo.Program) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    """Returns a program, its arguments and its jaxpr; a program's tests follow each other."""
    fn, args = program.make()
    return fn, args, jax.make_jaxpr(fn)(*args)


def all_plans(plan: Plan) -> Iterator[Plan]:
    """Yields a plan, those of its blocks and of the jaxprs inside its equations, each once."""
    seen: set[int] = set()
    waiting: list[Any] = [plan]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, (list, tuple)):
            waiting += item
        elif isinstance(item, Plan) and id(item) not in seen:
            seen.add(id(item))
            waiting += [item.blocks, item.inner]
            yield item


def found(plan: Plan) -> Iterator[int]:
    """Yields the number of blocks of each repeat that was found and proven."""
    for each in all_plans(plan):
        yield from (len(repeat.calls) for repeat in each.repeats)


def folded(plan: Plan) -> Iterator[tuple[int, str]]:
    """Yields number of blocks and form of everything that is folded."""
    for each in all_plans(plan):
        units: Counter[Any] = Counter()
        for step in each.steps:
            if isinstance(step, UnitCall):
                units[step.repeat] += 1
            elif isinstance(step, Loop):
                yield len(step.calls), "batch" if step.at_once else "scan"
        yield from ((n, "unit") for n in units.values())


def compiled_equations(jaxpr: Any) -> int:
    """Counts equations as XLA sees them: inner jaxprs wherever they stand, but units once."""
    known: dict[int, int] = {}
    units: dict[int, int] = {}

    def count(jaxpr: Any) -> int:
        if id(jaxpr) not in known:
            known[id(jaxpr)] = sum(map(of_equation, jaxpr.eqns))
        return known[id(jaxpr)]

    def of_equation(eqn: Any) -> int:
        inner = list(sub_jaxprs(eqn.params))
        # A tagged call from jax 0.11 on, a jit with a tag in its context before.
        tags = dict(eqn.params.get("xla_metadata") or ())
        if "compilation_unit" in tags or str(eqn.params.get("name")).startswith("block_"):
            units.update((id(jaxpr), count(jaxpr)) for jaxpr in inner)
            return 1
        return 1 + sum(map(count, inner))

    return count(jaxpr.jaxpr) + sum(units.values())


def folding(program: zoo.Program, form: Any) -> Any:
    """Returns what `fold` made of a program; what was traced before isn't traced again."""
    _, args, jaxpr = traced(program)

    def as_traced(*arrays: Any) -> Any:
        return jex_core.jaxpr_as_fun(jaxpr)(*arrays)

    return cc.fold(as_traced, form=form).trace(*split((jax.tree.leaves(args), {})))


@over(PROGRAMS, FORMS, PLANNED)
def test_repeats_are_found_and_proven_from_outside(program: zoo.Program, form: str):
    run = folding(program, form)
    emitted = run.emitted()
    assert first_difference(run.closed, emitted) is None
    assert compiled_equations(emitted) <= compiled_equations(run.closed)
    if not program.blocks:
        assert not run.plan.folds
        return
    assert max(found(run.plan), default=0) >= program.blocks
    if form == "auto":  # a scan that wouldn't pay stays as written; a unit takes its place
        assert max((n for n, _ in folded(run.plan)), default=0) >= program.blocks


@functools.lru_cache(maxsize=1)
def strict_results(program: zoo.Program) -> Any:
    """Returns what a program as written gives under the strict options."""
    fn, args, _ = traced(program)
    return run_compiled(fn, args, (), STRICT_COMPILER_OPTIONS)


def assert_strictly_equal(program: zoo.Program, form: Any) -> None:
    """What `assert_equivalent` does, with one compilation of the program for all forms."""
    fn, args, _ = traced(program)
    folded = run_compiled(cc.fold(fn, form=form), args, (), STRICT_COMPILER_OPTIONS)
    assert next(differences(strict_results(program), folded), None) is None


@over([p for p in PROGRAMS if p.strict], FORMS, EQUAL)
def test_strict_bits_are_those_of_the_program_as_written(program: zoo.Program, form: str):
    assert_strictly_equal(program, form)


@pytest.mark.slow
@over([p for p in PROGRAMS if not p.strict], FORMS, EQUAL)
def test_strict_bits_of_the_rest(program: zoo.Program, form: str):
    assert_strictly_equal(program, form)


@pytest.mark.slow
@over(PROGRAMS, ("unit",), ALIKE)
def test_unit_and_scan_have_the_same_bits_under_default_options(program: zoo.Program, form: str):
    fn, args, _ = traced(program)
    unit, scan = cc.fold(fn, form="unit"), cc.fold(fn, form="scan")
    record(program.name, jax.jit(fn)(*args), jax.jit(unit)(*args))
    assert_bit_identical(unit, scan, *args)


def record(name: str, written: Any, folded: Any) -> None:
    """Writes the distance of a folded program to the one as written into the table.

    Two numbers a program: the largest distance of two floats in ULP, which is large where terms
    cancel, and the largest difference relative to the largest value of its leaf.
    """
    ulp, relative = 0.0, 0.0
    for a, b in zip(jax.tree.leaves(written), jax.tree.leaves(folded), strict=True):
        if not jax.numpy.issubdtype(a.dtype, np.inexact):
            continue
        ulp = max(ulp, ulp_distance(a, b))
        a, b = (np.asarray(x, np.complex128) for x in (a, b))
        if (largest := np.abs(a).max(initial=0)) > 0:
            relative = max(relative, float(np.abs(a - b).max() / largest))
    table = json.loads(DISTANCES.read_text()) if DISTANCES.exists() else {}
    version = f"jax {jax.__version__}"
    table.setdefault(version, {})[name] = {"ulp": ulp, "relative": float(f"{relative:.2g}")}
    table[version] = dict(sorted(table[version].items()))
    DISTANCES.write_text(json.dumps(table, indent=1) + "\n")

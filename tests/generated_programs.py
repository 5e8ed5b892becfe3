"""Programs with repeats planted in them, and folded programs with mistakes planted in them."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax.extend import core as jex_core

import compilecut as cc
from compilecut._arguments import split


@dataclasses.dataclass(frozen=True)
class Fold:
    """A program as written, its plan, and the folded program."""

    original: Any
    plan: Any
    emitted: Any

    @property
    def blocks(self) -> list[int]:
        """How many blocks each repeat has."""
        return [len(repeat.calls) for repeat in self.plan.repeats]


def folded(f, *args, form: Any = "auto", min_blocks=3) -> Fold:
    """Traces and plans a function, and emits what runs."""
    run = cc.fold(f, form=form, min_blocks=min_blocks).trace(*split((args, {})))
    return Fold(run.closed, run.plan, run.emitted() if run.plan.folds else run.closed)


# --- mutants


def mutants(closed: Any) -> Iterator[tuple[str, Any]]:
    """Yields programs with one mistake each, well typed all of them."""
    for name, jaxpr in _of_jaxpr(closed.jaxpr):
        yield name, closed.replace(jaxpr=jaxpr)


def _of_jaxpr(jaxpr: Any) -> Iterator[tuple[str, Any]]:
    scope = [*jaxpr.constvars, *jaxpr.invars]
    for place, eqn in enumerate(jaxpr.eqns):
        for name, new in _of_equation(eqn, scope):
            eqns = [*jaxpr.eqns[:place], new, *jaxpr.eqns[place + 1 :]]
            yield f"{eqn.primitive} {place}: {name}", jaxpr.replace(eqns=eqns)
        scope.extend(eqn.outvars)
    for name, outvars in _others(jaxpr.outvars, scope):
        yield f"output {name}", jaxpr.replace(outvars=outvars)


def _of_equation(eqn: Any, scope: list[Any]) -> Iterator[tuple[str, Any]]:
    for name, invars in _others(eqn.invars, scope):
        yield f"operand {name}", eqn.replace(invars=invars)
    for name, params in _other_params(eqn.params):
        yield name, eqn.replace(params=params)
    for i in range(len(eqn.outvars) - 1):
        if _type(eqn.outvars[i]) == _type(eqn.outvars[i + 1]):
            outvars = list(eqn.outvars)
            outvars[i : i + 2] = outvars[i : i + 2][::-1]
            yield f"results {i} and {i + 1}", eqn.replace(outvars=outvars)


def _others(atoms: Any, scope: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    for place, atom in enumerate(atoms):
        alike = [v for v in scope if v is not atom and _type(v) == _type(atom)]
        for other in (*alike[:1], *alike[-1:]):  # the first and the latest of that type
            yield f"{place} is another value", [*atoms[:place], other, *atoms[place + 1 :]]
        if isinstance(atom, jex_core.Literal) and np.shape(atom.val) == ():
            value: Any = np.asarray(atom.val, _type(atom)[1])
            value = ~value if value.dtype == bool else (value + 1).astype(value.dtype)
            other = jex_core.Literal(value[()], atom.aval)
            yield f"{place} is another number", [*atoms[:place], other, *atoms[place + 1 :]]
        if place and atom is not atoms[place - 1] and _type(atom) == _type(atoms[place - 1]):
            swapped = list(atoms)
            swapped[place - 1 : place + 1] = swapped[place - 1 : place + 1][::-1]
            yield f"{place} and the one before", swapped


def _other_params(params: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if "reverse" in params:
        yield "reverse", {**params, "reverse": not params["reverse"]}
    if "start_indices" in params and "limit_indices" in params:
        start, limit = params["start_indices"], params["limit_indices"]
        if start and start[0]:
            yield (
                "slice",
                {
                    **params,
                    "start_indices": (start[0] - 1, *start[1:]),
                    "limit_indices": (limit[0] - 1, *limit[1:]),
                },
            )
    for name, param in params.items():
        if isinstance(param, jex_core.ClosedJaxpr):
            for inner, mutant in mutants(param):
                yield f"in {name}: {inner}", {**params, name: mutant}
        elif isinstance(param, jex_core.Jaxpr):
            for inner, mutant in _of_jaxpr(param):
                yield f"in {name}: {inner}", {**params, name: mutant}


def _type(atom: Any) -> Any:
    return (atom.aval.shape, atom.aval.dtype)

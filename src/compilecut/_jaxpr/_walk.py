"""Questions about equations: which are needed, and what they do besides computing."""

from collections.abc import Iterable, Iterator
from typing import Any

from jax.extend import core as jex_core

from .. import _compat
from ._program import Equation, Operand, Program


def live_equations(program: Program) -> list[Equation]:
    """Returns the equations that some output needs, in order. Effects keep nothing alive."""
    needed: set[Operand] = set(program.outputs)
    kept = []
    for eqn in reversed(program.equations):
        if not needed.isdisjoint(eqn.outputs):
            kept.append(eqn)
            needed.update(eqn.inputs)
    kept.reverse()
    return kept


def call_effects(equations: Iterable[Equation]) -> Iterator[Equation]:
    """Yields the equations that talk to the host: effects, and callbacks declared pure."""
    for eqn in equations:
        if eqn.effects or _calls_host(eqn.primitive, eqn.params):
            yield eqn


def _calls_host(primitive: jex_core.Primitive, params: dict[str, Any]) -> bool:
    if primitive in _compat.HOST_CALLBACKS:
        return True
    return any(
        _calls_host(eqn.primitive, eqn.params) for jaxpr in sub_jaxprs(params) for eqn in jaxpr.eqns
    )


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yields the jaxprs among an equation's parameters, opened."""
    for param in params.values():
        for item in param if isinstance(param, (tuple, list)) else (param,):
            if isinstance(item, (jex_core.Jaxpr, jex_core.ClosedJaxpr)):
                yield getattr(item, "jaxpr", item)

"""Re-tracing equations: the way from data back to a function JAX can transform and compile."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.extend import source_info_util
from jax.extend.core import primitives as prim

from ._program import Equation, Literal, Operand, Passed, Scope, Value

Env = dict[Value, Any]


def evaluate(equations: Sequence[Equation], env: Env, wanted: Iterable[Operand]) -> list[Any]:
    """Binds equations in order and returns what was wanted.

    Inner calls that were opened are closed again, so that XLA sees the calls it would have seen.
    Source lines, name stacks and the trace context of each equation are kept, so errors and
    profiles point at the user's code.

    Args:
        equations: what to compute, in order.
        env: values known from outside; those that are traced become parameters of inner calls,
            the others constants in them.
        wanted: the results to return.
    """
    wanted = list(wanted)
    _run(equations, env, None, wanted)
    return [read(env, operand) for operand in wanted]


def _run(
    equations: Sequence[Equation], env: Env, scope: Scope | None, wanted: Iterable[Operand]
) -> None:
    """Runs equations that stand in `scope` or below it, adding results to `env`."""
    runs = [(child, list(run)) for child, run in _runs(equations, scope)]
    last_use = {
        operand: number
        for number, (_, run) in enumerate(runs)
        for eqn in run
        for operand in eqn.inputs
    }
    last_use.update(dict.fromkeys(wanted, len(runs)))
    for number, (child, run) in enumerate(runs):
        if child is None:
            for eqn in run:
                _bind(eqn, env)
        else:
            made = [value for eqn in run for value in eqn.outputs]
            _call(child, run, env, [v for v in made if last_use.get(v, -1) > number])


def _runs(equations: Iterable[Equation], scope: Scope | None):
    """Splits equations where they enter or leave an inner call."""
    return itertools.groupby(equations, key=lambda eqn: _child(eqn.scope, scope))


def _child(inner: Scope | None, scope: Scope | None) -> Scope | None:
    """Returns the call directly below `scope` on the way to `inner`; nothing if that is it."""
    child = None
    while inner is not scope:
        assert inner is not None
        child, inner = inner, inner.parent
    return child


def _bind(eqn: Equation, env: Env) -> None:
    operands = [read(env, operand) for operand in eqn.inputs]
    params = eqn.primitive.get_bind_params(eqn.params)
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with (
        source_info_util.user_context(eqn.source_info.traceback, name_stack=stack),
        eqn.ctx.manager,
    ):
        results = eqn.primitive.bind(*operands, **params)
    if not eqn.primitive.multiple_results:
        results = (results,)
    env.update(zip(eqn.outputs, results, strict=True))


def _call(scope: Scope, equations: Sequence[Equation], env: Env, results: list[Value]) -> None:
    taken = _parameters(equations, scope, env)

    def inner(*arrays: Any) -> list[Any]:
        local = {**env, **dict(zip(taken, arrays, strict=True))}
        _run(equations, local, scope, results)
        return [local[value] for value in results]

    inner.__name__ = inner.__qualname__ = scope.name
    arrays = (read(env, v.target if isinstance(v, Passed) else v) for v in taken)
    env.update(zip(results, jax.jit(inner)(*arrays), strict=True))


def _parameters(equations: Sequence[Equation], scope: Scope, env: Env) -> list[Value]:
    """Returns what a call takes: traced values from outside, and literals it was passed."""
    made = {value for eqn in equations for value in eqn.outputs}
    taken: dict[Value, None] = {}
    for eqn in equations:
        for operand in eqn.inputs:
            while isinstance(operand, Passed) and operand.scope is not scope:
                operand = operand.target
            if isinstance(operand, Literal) or operand in made:
                continue
            if isinstance(operand, Passed) or isinstance(env.get(operand), Tracer):
                taken[operand] = None
    return list(taken)


def read(env: Env, operand: Operand) -> Any:
    """Returns what an operand stands for."""
    while isinstance(operand, Passed) and operand not in env:
        operand = operand.target
    return operand.val if isinstance(operand, Literal) else env[operand]


def as_weak_as(result: Any, aval: Any) -> Any:
    """Restores a weak type that a result lost because its inputs came in strongly typed."""
    if aval.weak_type and not jax.typeof(result).weak_type:
        # `jax.lax.convert_element_type` takes a weak type away and never gives one.
        return prim.convert_element_type_p.bind(
            result, new_dtype=aval.dtype, weak_type=True, sharding=None
        )
    return result

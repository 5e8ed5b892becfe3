"""Runs a plan: equations are bound as they were, folded blocks are called or looped over."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax import lax

from .. import _units
from .._jaxpr import Equation, Literal, Operand, as_weak_as, evaluate
from .._match import Piece
from .._plan import Plan, UnitCall
from ._loop import run_loop
from ._stacks import Element, Stack, alone, as_array, fill

Function = Callable[..., list[Any]]


class Emitter:
    """Emits plans; blocks of one key become one function, so that JAX traces them once."""

    def __init__(self):
        self._units: dict[Hashable, Function] = {}

    def run(self, plan: Plan, arguments: Sequence[Any]) -> list[Any]:
        """Computes what a plan's program computes, as values that may be elements of stacks."""
        env = Env(plan)
        env.update(plan.program.constants.items())
        env.update(zip(plan.program.arguments, arguments, strict=True))
        for step in plan.steps:
            if isinstance(step, Equation):
                self._equation(plan, step, env)
            elif isinstance(step, UnitCall):
                self._call(plan, step, env)
            else:
                run_loop(step, env, plan.wanted, self._body(plan, step.repeat.key))
        return [env.read(operand) for operand in plan.program.outputs]

    def run_alone(self, plan: Plan, arguments: Sequence[Any]) -> list[Any]:
        """Computes what a plan's program computes, as arrays."""
        return [alone(value) for value in self.run(plan, arguments)]

    def _equation(self, plan: Plan, eqn: Equation, env: "Env") -> None:
        if any(value in plan.pieces for value in eqn.outputs):
            for value in eqn.outputs:
                piece = plan.pieces.get(value)
                if piece is not None:
                    env[value] = Element(env.stack_of(piece), piece.place)
            if all(value in plan.pieces for value in eqn.outputs):
                return
        inner = plan.inner.get(eqn)
        known = {v: alone(env.read(v)) for v in eqn.inputs if not isinstance(v, Literal)}
        bound = eqn if inner is None else self._replace(eqn, inner)
        results = evaluate([bound], known, eqn.outputs)
        for value, result in zip(eqn.outputs, results, strict=True):
            env.setdefault(value, result)

    def _replace(self, eqn: Equation, inner: dict[str, Any]) -> Equation:
        params = dict(eqn.params)
        for name, plans in inner.items():
            old = params[name]
            if isinstance(plans, list):
                pairs = zip(old, plans, strict=True)
                params[name] = tuple(j if p is None else self._rebuild(j, p) for j, p in pairs)
            else:
                params[name] = self._rebuild(old, plans)
        return dataclasses.replace(eqn, params=params)

    def _rebuild(self, jaxpr: Any, plan: Plan) -> Any:
        body = getattr(jaxpr, "jaxpr", jaxpr)
        avals = [v.aval for v in body.invars]
        made = jax.make_jaxpr(lambda *args: self.run_alone(plan, args))(*avals)
        if [v.aval for v in made.jaxpr.outvars] != [v.aval for v in body.outvars]:
            return jaxpr
        if jaxpr is not body or made is made.jaxpr:
            return made
        return jaxpr if made.consts else made.jaxpr

    def _call(self, plan: Plan, step: UnitCall, env: "Env") -> None:
        inputs = [
            fill(value.aval) if operand is None else as_array(alone(env.read(operand)), value.aval)
            for operand, value in zip(step.call.inputs, step.repeat.block.arguments, strict=True)
        ]
        env.update(zip(step.call.outputs, self._unit(plan, step.repeat.key)(*inputs), strict=True))

    def _unit(self, plan: Plan, key: Hashable) -> Function:
        if key not in self._units:
            name = f"block_{len(self._units)}"
            self._units[key] = _units.unit_call(self._body(plan, key), name)
        return self._units[key]

    def _body(self, plan: Plan, key: Hashable) -> Function:
        block = plan.blocks[key]

        def body(*args: Any) -> list[Any]:
            # A number that came in with a stack or as an argument has lost its weak type.
            pairs = zip(args, block.program.arguments, strict=True)
            return self.run_alone(block, [as_weak_as(arg, value.aval) for arg, value in pairs])

        return body


class Env(dict[Operand, Any]):
    """The values of a program that are known so far."""

    def __init__(self, plan: Plan):
        super().__init__()
        self._shared = plan.shared
        self._stacks: dict[tuple[Operand, int], Stack] = {}

    def stack_of(self, piece: Piece) -> Stack:
        """Returns the stack of the pieces of an array: the array itself, or a view of it."""
        key = (piece.whole, piece.size)
        if key not in self._stacks:
            whole = alone(self.read(piece.whole))
            if piece.size:
                pieces = (whole.shape[0] // piece.size, piece.size, *whole.shape[1:])
                whole = lax.reshape(whole, pieces)
            self._stacks[key] = Stack(whole)
        return self._stacks[key]

    def read(self, operand: Operand) -> Any:
        """Returns what an operand stands for."""
        while operand in self._shared:
            operand = self._shared[operand]
        return operand.val if isinstance(operand, Literal) else self[operand]

"""A traced function as flat data: values, equations, a program.

A jaxpr names its variables per (sub-)jaxpr and shares sub-jaxprs between calls. Finding structure
wants the opposite: one list of equations in which every value is its own object. These classes are
that list. They are never executed as such; `evaluate` re-traces the equations.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A result of an equation, an argument, or a captured constant. Equal only to itself.

    Attributes:
        aval: its abstract value (shape, dtype, weak type, sharding).
    """

    aval: Any


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A number written into the program.

    Attributes:
        val: the number, as JAX holds it.
        aval: its abstract value.
        key: type, dtype and bytes: `0.0`, `-0.0`, `0` and `False` all differ.
    """

    val: Any
    aval: Any
    key: Hashable


Operand = Value | Literal


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """One inner call that was opened; equations remember theirs, so that it can be closed again.

    Attributes:
        name: of the called function.
        parent: the call around it, if any.
        source_info: where the call stands; the equations inside don't know it.
    """

    name: str
    parent: "Scope | None"
    source_info: Any = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Passed(Value):
    """A literal or a captured constant as the callee of an inner call sees it: a parameter.

    Attributes:
        target: what the caller passed.
        scope: the call.
    """

    target: Operand
    scope: Scope


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """One primitive application.

    Attributes:
        primitive: the primitive object.
        params: its parameters.
        inputs: operands, in order.
        outputs: results, in order.
        key: hashable; equal keys mean the same primitive, parameters and trace context.
        ctx: JAX's trace context of the equation (partitionable threefry, mesh, metadata).
        source_info: where the user wrote it.
        effects: the equation's effects; empty for a pure one.
        scope: the inner call it stands in, if any.
    """

    primitive: jex_core.Primitive
    params: dict[str, Any]
    inputs: tuple[Operand, ...]
    outputs: tuple[Value, ...]
    key: Hashable
    ctx: Any
    source_info: Any
    effects: frozenset[Any]
    scope: Scope | None


def is_key(dtype: Any) -> bool:
    """Says whether a dtype is that of typed keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def resolve(operand: Operand) -> Operand:
    """Returns what an operand is outside all calls that were only passed it."""
    while isinstance(operand, Passed):
        operand = operand.target
    return operand


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A whole traced function, inner calls opened.

    Attributes:
        arguments: one value per flat argument.
        constants: captured arrays, by the value that stands for them.
        equations: in trace order.
        outputs: one operand per flat output.
    """

    arguments: tuple[Value, ...]
    constants: dict[Value, Any]
    equations: Sequence[Equation]
    outputs: tuple[Operand, ...]

"""Blocks that XLA compiles once and calls many times.

A call tagged `compilation_unit` is split off by XLA, whose passes over it run once per distinct
callee, and it stays a call: nothing is stacked and nothing fuses across its border. The tag is
undocumented and may change, so support is detected by looking at what XLA made of a tiny program,
once per process and backend. XLA shares the passes, not the machine code, so a block that is slow
in LLVM (random numbers) gains little.

The tag has to be on the call alone. A context sets it, which also tags every call inside, in
derivatives too: so a block's plain calls are opened. One that has other calls inside (a loop, say)
can be a unit only through `xla_metadata_call` (jax 0.11 on), which tags just the one call.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray, Tracer
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import primitives as prim

from . import _compat
from ._jaxpr import RULED, Equation, derivative, evaluate, flatten, sub_jaxprs

Function = Callable[..., list[Any]]


def unit_support() -> bool:
    """Says whether XLA keeps tagged calls on the default backend (not at import: it compiles)."""
    return _keeps_tagged_calls(jax.default_backend())


@functools.cache
def _keeps_tagged_calls(backend: str) -> bool:
    unit = unit_call(lambda x: [jnp.sin(x) * x], "probe")

    def twice(x):
        return unit(unit(x)[0])[0]

    # The surroundings of the first use (a mesh, an outer trace) must not decide for the process.
    with jax.ensure_compile_time_eval():
        spec = jax.ShapeDtypeStruct((8,), jnp.float32)
        hlo = jax.jit(twice, backend=None).lower(spec).compile().as_text() or ""
    return len(re.findall(r" call\(.*compilation_unit", hlo)) == 2


def can_be_unit(equations: Iterable[Any]) -> bool:
    """Says whether a block can be tagged on this JAX without tagging calls inside it.

    Args:
        equations: the block's, of a jaxpr or of a `Program`.
    """
    return _compat.xla_metadata_call is not None or opens(equations)


def opens(equations: Iterable[Any]) -> bool:
    """Says whether a block has no calls inside once its plain ones are opened.

    Only such a block is a unit under every transform: the primitive behind `xla_metadata_call`
    fails an assertion of JAX's own when a checkpoint around it is differentiated.
    """
    return all(map(_opens, equations))


def _opens(eqn: Any) -> bool:
    inner = list(sub_jaxprs(eqn.params))
    if eqn.primitive is prim.jit_p and _compat.jit_only_groups(eqn.params):
        return all(_opens(each) for jaxpr in inner for each in jaxpr.eqns)
    if eqn.primitive in RULED:
        return all(map(_is_flat, inner)) and _derivative_is_flat(eqn)
    return not inner  # a loop's body may lower to a call


def _is_flat(jaxpr: Any) -> bool:
    # A rule that calls its own function is fine: such a call is lowered in place.
    return all(
        eqn.primitive in RULED or not any(sub_jaxprs(eqn.params)) for eqn in jaxpr.eqns
    ) and all(_is_flat(inner) for eqn in jaxpr.eqns for inner in sub_jaxprs(eqn.params))


def _derivative_is_flat(eqn: Any) -> bool:
    """Says whether a function with its own rule is differentiated without calls.

    The rule is traced when the block is differentiated, hence under the tag: `jnp.where` in it
    would become a unit of its own. Only tracing it shows whether there is one.
    """
    closed = derivative(eqn, eqn.inputs if isinstance(eqn, Equation) else eqn.invars)
    return closed is not None and _is_flat(closed.jaxpr)


def unit_call(function: Function, name: str) -> Function:
    """Wraps a function of flat arrays so that XLA compiles all its calls as one unit.

    The function must be one of which `can_be_unit` says so.
    """
    made: dict[Any, Function] = {}

    def call(*args: Any) -> list[Any]:
        types = tuple(map(jax.typeof, args))
        if types not in made:
            made[types] = _make_unit(function, name, args)
        return made[types](*args)

    return call


def _make_unit(function: Function, name: str, args: tuple[Any, ...]) -> Function:
    closed = jax.make_jaxpr(function)(*args)
    if _compat.xla_metadata_call is not None and not opens(closed.jaxpr.eqns):
        return _compat.xla_metadata_call(function, compilation_unit=name)
    opened = _without_calls(closed, name)

    def call(*arrays: Any) -> list[Any]:
        with set_xla_metadata(compilation_unit=name):
            return opened(*arrays)

    return call


def _without_calls(closed: Any, name: str) -> Function:
    """Jits a block with the plain calls inside it opened."""
    program = flatten(closed, keep_rules=True)
    equations = [dataclasses.replace(eqn, scope=None) for eqn in program.equations]

    def opened(*arrays: Any) -> list[Any]:
        env = {**program.constants, **dict(zip(program.arguments, arrays, strict=True))}
        return evaluate(equations, env, program.outputs)

    opened.__name__ = opened.__qualname__ = name
    return jax.jit(opened)


def known_sharded(values: Iterable[Any]) -> bool:
    """Says whether some of `values` are known to be laid out over more than one device.

    Inside a unit the SPMD partitioner doesn't see its operands' shardings and gathers them. Under
    `jit` a value knows the mesh its argument came with; what `jit` was told by other means can't be
    seen from inside.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return (not mesh.empty and mesh.size > 1) or any(_is_sharded(value) for value in values)


def _is_sharded(value: Any) -> bool:
    if isinstance(value, jax.ShapeDtypeStruct):
        return value.sharding is not None and len(value.sharding.device_set) > 1
    if isinstance(value, jax.Array) and not isinstance(value, Tracer):
        return len(value.sharding.device_set) > 1
    aval = value if isinstance(value, ShapedArray) else jax.typeof(value)
    mesh = aval.sharding.mesh
    return (not mesh.empty and mesh.size > 1) or bool(_compat.varying_axes(aval))

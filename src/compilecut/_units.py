"""Blocks that XLA compiles once and calls many times.

A call tagged `compilation_unit` is split off by XLA, whose passes over it run once per distinct
callee, and it stays a call: nothing is stacked and nothing fuses across its border. The tag is
undocumented and may change, so support is detected by looking at what XLA made of a tiny program,
once per process and backend. XLA shares the passes, not the machine code, so a block that is slow
in LLVM (random numbers) gains little.

The calls themselves are tagged in `_compat.py`; what uses them is `_chunking/_emit.py`.
"""

import functools
import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from . import _compat


def unit_support() -> bool:
    """Says whether XLA keeps tagged calls on the default backend (not at import: it compiles)."""
    return _keeps_tagged_calls(jax.default_backend())


@functools.cache
def _keeps_tagged_calls(backend: str) -> bool:
    unit = _compat.unit_call(lambda x: [jnp.sin(x) * x], "probe")

    def twice(x):
        return unit(unit(x)[0])[0]

    # The surroundings of the first use (a mesh, an outer trace) must not decide for the process.
    with jax.ensure_compile_time_eval():
        spec = jax.ShapeDtypeStruct((8,), jnp.float32)
        hlo = jax.jit(twice, backend=None).lower(spec).compile().as_text() or ""
    return len(re.findall(r" call\(.*compilation_unit", hlo)) == 2


def known_sharded(values: Iterable[Any]) -> bool:
    """Says whether some of `values` are known to be laid out over more than one device.

    Inside a unit the SPMD partitioner doesn't see its operands' shardings and gathers them. Under
    `jit` a value knows the mesh its argument came with; what `jit` was told by other means can't be
    seen from inside.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return (not mesh.empty and mesh.size > 1) or any(_is_sharded(value) for value in values)


def _is_sharded(value: Any) -> bool:
    if isinstance(value, jax.Array) and not isinstance(value, Tracer):
        return len(value.sharding.device_set) > 1
    aval = jax.typeof(value)
    mesh = aval.sharding.mesh
    return (not mesh.empty and mesh.size > 1) or bool(_compat.varying_axes(aval))

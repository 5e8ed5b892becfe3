"""Fingerprints: one small integer per equation, equal where two equations may be the same slot.

A fingerprint covers the primitive, its parameters and the types of operands and results, never the
names of values nor the numbers of literals. It is looser than equality on purpose where a
difference can be lifted out of a block: two slices of one size at different starts look alike here,
and `_prove.py` looks again.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from jax.extend import core as jex_core
from jax.extend.core import primitives as prim

from .._jaxpr import Equation, sub_jaxprs

# Primitives some of whose parameters may differ between blocks, with what must agree in them.
_LOOSE: dict[jex_core.Primitive, Callable[[dict[str, Any]], Hashable]] = {
    # The sizes are in the types of operands and results.
    prim.slice_p: lambda params: set(params["strides"] or ()) <= {1} or params["strides"],
    prim.pad_p: lambda params: tuple(interior for _, _, interior in params["padding_config"]),
}


def fingerprints(equations: Sequence[Equation]) -> np.ndarray:
    """Returns one integer per equation."""
    numbers: dict[Hashable, int] = {}
    found = [numbers.setdefault(_loose_key(eqn), len(numbers)) for eqn in equations]
    return np.asarray(found, np.int64).reshape(len(equations))


def _loose_key(eqn: Equation) -> Hashable:
    loose = _LOOSE.get(eqn.primitive)
    if eqn.effects:  # never in a block; its parameters may be functions made anew
        key: Hashable = (eqn.primitive, eqn.ctx)
    else:
        key = eqn.key if loose is None else (eqn.primitive, loose(eqn.params), eqn.ctx)
    return (
        key,
        tuple(operand.aval for operand in eqn.inputs),
        tuple(result.aval for result in eqn.outputs),
        bool(eqn.effects),
    )


def weights(equations: Sequence[Equation]) -> np.ndarray:
    """Returns how many equations each equation stands for, counting those inside it."""
    seen: dict[int, int] = {}
    return np.asarray([_weight(eqn, seen) for eqn in equations], np.int64).reshape(len(equations))


def _weight(eqn: Any, seen: dict[int, int]) -> int:
    return 1 + sum(_size(jaxpr, seen) for jaxpr in sub_jaxprs(eqn.params))


def _size(jaxpr: jex_core.Jaxpr, seen: dict[int, int]) -> int:
    size = seen.get(id(jaxpr))
    if size is None:
        size = seen[id(jaxpr)] = sum(_weight(eqn, seen) for eqn in jaxpr.eqns)
    return size

"""How many equations the compiler gets."""

from typing import Any

from .. import _compat
from .._jaxpr import sub_jaxprs


def compiled_equations(jaxpr: Any) -> int:
    """Counts equations, those inside equations too; what is called as one unit counts once."""
    known: dict[int, int] = {}
    units: dict[int, int] = {}

    def count(jaxpr: Any) -> int:
        if id(jaxpr) not in known:
            known[id(jaxpr)] = sum(map(of_equation, jaxpr.eqns))
        return known[id(jaxpr)]

    def of_equation(eqn: Any) -> int:
        inner = list(sub_jaxprs(eqn.params))
        if _is_unit(eqn):
            units.update((id(jaxpr), count(jaxpr)) for jaxpr in inner)
            return 1
        return 1 + sum(map(count, inner))

    return count(jaxpr) + sum(units.values())


def _is_unit(eqn: Any) -> bool:
    if eqn.primitive is _compat.xla_metadata_call_p:
        return True
    return "compilation_unit" in (getattr(eqn.ctx, "xla_metadata", None) or {})

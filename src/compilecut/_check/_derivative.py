"""What a derivative rule given as a function does: it is traced, so that two can be compared."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import primitives as prim

# Calls with rules of their own, with the parameters that are made anew at each binding.
RULED = {
    prim.custom_jvp_call_p: frozenset({"jvp_jaxpr_fun"}),
    prim.custom_vjp_call_p: frozenset({"fwd_jaxpr_thunk", "bwd", "out_trees"}),
}


def derivative(eqn: Any) -> Any:
    """Returns the derivative of an equation as a closed jaxpr; where there is none, why."""
    avals = [atom.aval for atom in eqn.invars]
    places = [place for place, aval in enumerate(avals) if _is_inexact(aval)]
    params = eqn.primitive.get_bind_params(eqn.params)

    def rule(inputs: list[Any], tangents: list[Any]) -> Any:
        def function(*moving: Any) -> Any:
            arguments = list(inputs)
            for place, value in zip(places, moving, strict=True):
                arguments[place] = value
            outputs = eqn.primitive.bind(*arguments, **params)
            return [out for out in outputs if _is_inexact(out)]

        moving = [inputs[place] for place in places]
        if eqn.primitive is prim.custom_jvp_call_p:
            return jax.jvp(function, moving, tangents)[1]
        outputs, pullback = jax.vjp(function, *moving)
        return pullback([jnp.ones_like(out) for out in outputs])

    try:
        return jax.make_jaxpr(rule)(avals, [avals[place] for place in places])
    except Exception as error:  # a rule that can't be called is nobody's derivative
        return f"none: {type(error).__name__}"


def _is_inexact(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)

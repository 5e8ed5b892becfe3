"""Derivative rules as programs, so that two functions with rules of their own can be compared.

`jax.custom_jvp` and `jax.custom_vjp` leave a call whose rule is a Python function, made anew for
each call. What the rule does is known only once it is traced.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import primitives as prim

# Calls with a rule, and the parameters that are functions, made anew for each call.
RULED: dict[Any, frozenset[str]] = {
    prim.custom_jvp_call_p: frozenset({"jvp_jaxpr_fun"}),
    prim.custom_vjp_call_p: frozenset({"fwd_jaxpr_thunk", "bwd", "out_trees"}),
}


def derivative(eqn: Any, operands: Any) -> Any:
    """Returns the derivative of a call with a rule, as a closed jaxpr; `None` if it has none.

    Args:
        eqn: the call; anything with a primitive and parameters.
        operands: its operands; anything with an `aval`.
    """
    avals = [operand.aval for operand in operands]
    moving = [place for place, aval in enumerate(avals) if _is_inexact(aval)]
    params = eqn.primitive.get_bind_params(eqn.params)

    def differentiate(inputs: list[Any], tangents: list[Any]) -> Any:
        def function(*values: Any) -> list[Any]:
            arguments = list(inputs)
            for place, value in zip(moving, values, strict=True):
                arguments[place] = value
            return [out for out in eqn.primitive.bind(*arguments, **params) if _is_inexact(out)]

        values = [inputs[place] for place in moving]
        if eqn.primitive is prim.custom_jvp_call_p:
            return jax.jvp(function, values, tangents)[1]
        outputs, pullback = jax.vjp(function, *values)
        return pullback([jnp.ones_like(out) for out in outputs])

    try:
        return jax.make_jaxpr(differentiate)(avals, [avals[place] for place in moving])
    except Exception:
        # Nothing narrower will do: this runs the user's rule, which may raise anything, and a
        # program that is never differentiated must not fail for it.
        return None


def _is_inexact(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)

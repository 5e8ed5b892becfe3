"""Blocks that may run on whole stacks at once without changing a bit.

Each element of the result depends on the elements at its own place alone, so that it makes no
difference how many are computed at once. Sums and products don't qualify: how they are split
depends on the shape. Random bits don't: some generators draw others under `vmap`.
"""

from typing import Any

from jax.extend.core import primitives as prim

from .._jaxpr import sub_jaxprs

_ARITHMETIC = {
    prim.abs_p, prim.add_jaxvals_p, prim.add_p, prim.and_p, prim.ceil_p, prim.clamp_p,
    prim.convert_element_type_p, prim.copy_p, prim.cos_p, prim.div_p, prim.eq_p, prim.erf_p,
    prim.erfc_p, prim.exp2_p, prim.exp_p, prim.expm1_p, prim.floor_p, prim.ge_p, prim.gt_p,
    prim.integer_pow_p, prim.is_finite_p, prim.le_p, prim.log1p_p, prim.log_p, prim.logistic_p,
    prim.lt_p, prim.max_p, prim.min_p, prim.mul_p, prim.ne_p, prim.neg_p, prim.not_p, prim.or_p,
    prim.pow_p, prim.reduce_precision_p, prim.rem_p, prim.round_p, prim.rsqrt_p,
    prim.select_n_p, prim.sign_p, prim.sin_p, prim.sqrt_p, prim.square_p, prim.sub_p,
    prim.tanh_p, prim.xor_p,
}  # fmt: skip
_MOVES = {prim.broadcast_in_dim_p, prim.reshape_p, prim.squeeze_p, prim.transpose_p}
_CALLS = {prim.jit_p}


def is_elementwise(equations: Any) -> bool:
    """Says whether equations only compute element by element, or move whole arrays."""
    return all(
        eqn.primitive in _ARITHMETIC
        or eqn.primitive in _MOVES
        or (
            eqn.primitive in _CALLS
            and all(is_elementwise(jaxpr.eqns) for jaxpr in sub_jaxprs(eqn.params))
        )
        for eqn in equations
    )


def only_moves(equations: Any) -> bool:
    """Says whether equations compute nothing and only move whole arrays."""
    return all(eqn.primitive in _MOVES for eqn in equations)

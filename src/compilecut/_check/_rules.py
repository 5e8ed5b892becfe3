"""What primitives do to arrays of which the elements are known: stacks and slices cancel here."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import primitives as prim

from .. import _compat
from ._params import is_nowhere
from ._terms import RULES, Rows, Term, Terms

# Arrays of more elements than this are not looked into.
_MANY = 4096

Rule = Callable[[Terms, Any, Sequence[Term]], Sequence[Term] | None]


def _rule(*primitives: Any) -> Callable[[Rule], Rule]:
    """Registers what primitives do; `None` means nothing is known of this case."""

    def register(rule: Rule) -> Rule:
        for primitive in primitives:
            if primitive in RULES:
                raise ValueError(f"two rules for {primitive}")
            RULES[primitive] = rule
        return rule

    return register


# --- along the leading axis


@_rule(_compat.stack_p)
def _stack(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    return [terms.rows(inputs)] if eqn.params["axis"] == 0 else None


@_rule(_compat.unstack_p)
def _unstack(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    if eqn.params["axis"] != 0:
        return None
    return [terms.element(inputs[0], place) for place in range(len(eqn.outvars))]


@_rule(prim.concatenate_p)
def _concatenate(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    if eqn.params["dimension"] != 0 or not any(isinstance(term, Rows) for term in inputs):
        return None
    if not 0 < eqn.outvars[0].aval.shape[0] <= _MANY:
        return None
    return [terms.rows([e for term in inputs for e in _elements(terms, term)])]


def _elements(terms: Terms, term: Term) -> list[Term]:
    return [terms.element(term, place) for place in range(terms.shape(term)[0])]


@_rule(prim.slice_p)
def _slice(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    (whole,), params = inputs, eqn.params
    shape = terms.shape(whole)
    start, limit = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * len(shape)
    rest = all(a == 0 and b == n for a, b, n in zip(start[1:], limit[1:], shape[1:], strict=True))
    if not shape or not rest or any(s != 1 for s in strides):
        return None
    if (start[0], limit[0]) == (0, shape[0]):
        return [whole]
    if not 0 < limit[0] - start[0] <= _MANY:
        return None
    return [terms.rows([terms.element(whole, i) for i in range(start[0], limit[0])])]


@_rule(prim.rev_p)
def _rev(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    if tuple(eqn.params["dimensions"]) != (0,):
        return None
    if not 0 < terms.shape(inputs[0])[0] <= _MANY:
        return None
    return [terms.rows(_elements(terms, inputs[0])[::-1])]


@_rule(prim.gather_p)
def _gather(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    """Elements picked by constant places, as a stack in another order is taken."""
    whole, places = inputs
    numbers = eqn.params["dimension_numbers"]
    constant = terms.known[places].constant if isinstance(places, int) else None
    shape = terms.shape(whole)
    picks_rows = (
        constant is not None
        and tuple(numbers.collapsed_slice_dims) == (0,)
        and tuple(numbers.start_index_map) == (0,)
        and tuple(numbers.offset_dims) == tuple(range(1, len(shape)))
        and not numbers.operand_batching_dims
        and tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])
    )
    if not picks_rows:
        return None
    if isinstance(constant, Tracer):
        return None
    picked = np.asarray(constant)
    if picked.ndim != 2 or not 0 < len(picked) <= _MANY:
        return None
    if picked.min() < 0 or picked.max() >= shape[0]:
        return None
    return [terms.rows([terms.element(whole, int(i)) for i in picked[:, 0]])]


# --- inside each element


@_rule(prim.squeeze_p)
def _squeeze(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    (rows,), dimensions = inputs, tuple(eqn.params["dimensions"])
    if dimensions == (0,):
        return [terms.element(rows, 0)]
    if not isinstance(rows, Rows) or 0 in dimensions:
        return None
    return _each(terms, eqn, rows, dimensions=tuple(d - 1 for d in dimensions))


@_rule(prim.broadcast_in_dim_p)
def _broadcast(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    if len(inputs) != 1:
        return None
    (term,), shape = inputs, tuple(eqn.params["shape"])
    dimensions = tuple(int(d) for d in eqn.params["broadcast_dimensions"])
    if shape == terms.shape(term) and dimensions == tuple(range(len(shape))):
        return [term]
    if not shape or not 0 < shape[0] <= _MANY:
        return None
    if dimensions == tuple(range(1, len(shape))) and terms.shape(term) == shape[1:]:
        return [Rows((term,) * shape[0])]
    if isinstance(term, Rows):
        if not dimensions or dimensions[0] != 0 or len(term.elements) != shape[0]:
            return None
        inner = tuple(d - 1 for d in dimensions[1:])
        return _each(terms, eqn, term, shape=shape[1:], broadcast_dimensions=inner)
    return None


@_rule(prim.reshape_p)
def _reshape(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    rows, shape = inputs[0], tuple(eqn.params["new_sizes"])
    if len(inputs) != 1 or eqn.params["dimensions"] is not None:
        return None
    old = terms.shape(rows)
    if shape == old:
        return [rows]
    if old and len(shape) == len(old) + 1 and shape[2:] == old[1:] and 0 < old[0] <= _FEW:
        return [_parted(terms, rows, shape[0], shape[1])]
    if isinstance(rows, Rows):
        if (1, *shape) == terms.shape(rows):
            return [rows.elements[0]]
        if not shape or shape[0] != len(rows.elements):
            return None
        if shape[1:] == terms.shape(rows)[1:]:
            return [rows]
        return _each(terms, eqn, rows, new_sizes=shape[1:])
    return [Rows((rows,))] if shape == (1, *terms.shape(rows)) else None


# An array of more rows than this isn't taken apart: it is no stack of blocks.
_FEW = 4096


def _parted(terms: Terms, rows: Term, count: int, size: int) -> Rows:
    """An array cut into parts of one size along its leading axis, as a stack of them."""
    elements = _elements(terms, rows)
    return Rows(tuple(Rows(tuple(elements[i * size : (i + 1) * size])) for i in range(count)))


@_rule(prim.transpose_p)
def _transpose(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    (rows,), order = inputs, tuple(eqn.params["permutation"])
    if not isinstance(rows, Rows) or order[0] != 0:
        return None
    return _each(terms, eqn, rows, permutation=tuple(d - 1 for d in order[1:]))


def _each(terms: Terms, eqn: Any, rows: Rows, **changed: Any) -> Sequence[Term]:
    """Applies an equation to each element, with parameters as they are for one."""
    params = {**eqn.params, **changed}
    return [terms.rows([terms.apply_one(eqn, params, [e]) for e in rows.elements])]


# --- element by element


@_rule(
    prim.abs_p, prim.add_p, prim.add_jaxvals_p, prim.and_p, prim.ceil_p, prim.clamp_p,
    prim.copy_p, prim.cos_p, prim.div_p, prim.eq_p, prim.erf_p,
    prim.erfc_p, prim.exp2_p, prim.exp_p, prim.expm1_p, prim.floor_p, prim.ge_p, prim.gt_p,
    prim.integer_pow_p, prim.is_finite_p, prim.le_p, prim.log1p_p, prim.log_p, prim.logistic_p,
    prim.lt_p, prim.max_p, prim.min_p, prim.mul_p, prim.ne_p, prim.neg_p, prim.not_p, prim.or_p,
    prim.pow_p, prim.reduce_precision_p, prim.rem_p, prim.round_p, prim.rsqrt_p, prim.select_n_p,
    prim.sign_p, prim.sin_p, prim.sqrt_p, prim.square_p, prim.sub_p, prim.tanh_p, prim.xor_p,
)  # fmt: skip
def _elementwise(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    lengths = {len(term.elements) for term in inputs if isinstance(term, Rows)} - {1}
    whole = [term for term in inputs if not isinstance(term, Rows) and terms.shape(term)]
    if not any(isinstance(term, Rows) for term in inputs) or len(lengths) > 1:
        return None
    if whole:
        numbers = [_number(terms, term) for term in inputs]
        return None if numbers == list(inputs) else terms.apply(eqn, numbers)
    length = lengths.pop() if lengths else 1
    return [
        terms.rows(
            [
                terms.apply_one(eqn, eqn.params, [_at(term, place) for term in inputs])
                for place in range(length)
            ]
        )
    ]


@_rule(prim.convert_element_type_p)
def _convert(terms: Terms, eqn: Any, inputs: Sequence[Term]) -> Sequence[Term] | None:
    """JAX itself leaves out, or computes, some conversions while it traces."""
    (term,), dtype = inputs, eqn.params["new_dtype"]
    if is_nowhere(eqn.params["sharding"]):
        if eqn.invars[0].aval.dtype == dtype:
            return [term]
        constant = terms.known[term].constant if isinstance(term, int) else None
        if isinstance(constant, np.ndarray) and not constant.shape and _keeps(constant, dtype):
            return [terms.literal(constant.astype(dtype), eqn.outvars[0].aval)]
    return _elementwise(terms, eqn, inputs)


def _keeps(number: np.ndarray, dtype: Any) -> bool:
    """Says whether a number is the same number, or a plain rounding, in another type."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return False
    if np.iscomplexobj(number):
        return False
    floats = all(jnp.issubdtype(kind, jnp.floating) for kind in (number.dtype, dtype))
    if floats or not np.isfinite(number):
        return floats
    return bool(np.real(number.astype(dtype)).astype(number.dtype) == number)


def _number(terms: Terms, term: Term) -> Term:
    """An array of one element stands beside a larger one for that element."""
    inner = term
    while isinstance(inner, Rows) and len(inner.elements) == 1:
        inner = inner.elements[0]
    return term if terms.shape(inner) else inner


def _at(term: Term, place: int) -> Term:
    if not isinstance(term, Rows):
        return term
    return term.elements[place if len(term.elements) > 1 else 0]

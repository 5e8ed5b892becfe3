"""Key arithmetic on the host: splits, folds and the indexing around them, once per call.

Keys are integers, so their values don't depend on where they are computed. Indexing happens in
NumPy, in microseconds and without a compilation per index; what NumPy can't do (a split, a fold)
runs as one small compiled program per distinct operation, however often it occurs.

A key array is held as a NumPy array of opaque elements (`void`), one per key, so that slices and
reshapes mean the same for it as for the key array in the program.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.extend.core import primitives as prim

from .. import _compat
from .._jaxpr import Equation, Literal, Operand, Value, is_key, resolve
from .._stacking import put

Host = dict[Value, np.ndarray]


def to_host(array: Any, aval: Any) -> np.ndarray:
    """Returns an argument as a host array; typed keys become opaque elements."""
    if is_key(aval.dtype):
        return _as_keys(np.asarray(jax.device_get(jax.random.key_data(array))))
    return np.asarray(jax.device_get(array), dtype=aval.dtype)


def key_words(keys: np.ndarray) -> np.ndarray:
    """Returns the words behind opaque keys: `uint32[*shape, words]`."""
    words = keys.dtype.itemsize // 4
    return np.ascontiguousarray(keys).reshape(-1).view(np.uint32).reshape((*keys.shape, words))


def raw(value: np.ndarray) -> np.ndarray:
    """Returns what a program takes for a host value: key words, or the array as it is."""
    return key_words(value) if value.dtype.kind == "V" else value


def to_array(value: Any, aval: Any) -> Any:
    """Returns a traced or concrete array for raw data: keys are wrapped again.

    A key that is an argument of the init comes as what it is.
    """
    if is_key(aval.dtype) and not is_key(value.dtype):
        return jax.random.wrap_key_data(value, impl=_compat.key_impl(aval.dtype))
    return value


def evaluate_host(
    equations: Iterable[Equation],
    calls: dict[Hashable, Callable[..., Any]],
    host: Host,
    device: Any,
) -> None:
    """Computes key arithmetic in order, adding results to `host`.

    Args:
        equations: the key arithmetic.
        calls: compiled programs for what NumPy can't do, by `call_key`.
        host: values so far.
        device: the sharding those programs were lowered for, if any.
    """
    with np.errstate(over="ignore"):  # integers wrap around, as they do in XLA
        for eqn in equations:
            operands = [_read(host, operand) for operand in eqn.inputs]
            rule = _RULES.get(eqn.primitive)
            if rule is None:
                results = _on_device(eqn, operands, calls[call_key(eqn)], device)
            elif eqn.primitive.multiple_results:
                results = rule(eqn, *operands)
            else:
                results = (rule(eqn, *operands),)
            host.update(zip(eqn.outputs, results, strict=True))


def device_calls(equations: Iterable[Equation]) -> dict[Hashable, Equation]:
    """Returns one equation for each distinct operation that NumPy can't do."""
    return {call_key(eqn): eqn for eqn in equations if eqn.primitive not in _RULES}


def call_key(eqn: Equation) -> Hashable:
    """Returns what equations that can share a program have in common."""
    return (eqn.key, tuple(operand.aval for operand in eqn.inputs))


def lower_call(eqn: Equation, sharding: Any) -> Any:
    """Lowers the program of one operation: raw data in, raw data out."""
    avals = [operand.aval for operand in eqn.inputs]

    def key_arithmetic(*operands):
        arrays = [to_array(x, aval) for x, aval in zip(operands, avals, strict=True)]
        with eqn.ctx.manager:
            results = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(eqn.params))
        results = results if eqn.primitive.multiple_results else [results]
        return [jax.random.key_data(r) if is_key(r.dtype) else r for r in results]

    return jax.jit(key_arithmetic).lower(*(raw_struct(aval, sharding) for aval in avals))


def raw_struct(aval: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    """Returns the type of the raw data of a value."""
    if is_key(aval.dtype):
        words = _compat.key_impl(aval.dtype).key_shape
        return jax.ShapeDtypeStruct((*aval.shape, *words), np.uint32, sharding=sharding)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)


def _read(host: Host, operand: Operand) -> np.ndarray:
    operand = resolve(operand)
    if isinstance(operand, Literal):
        return np.asarray(operand.val, dtype=operand.aval.dtype)
    return host[operand]


def _on_device(
    eqn: Equation, operands: list[np.ndarray], call: Callable[..., Any], device: Any
) -> list[np.ndarray]:
    results = jax.device_get(call(*put(list(map(raw, operands)), device)))
    return [
        _as_keys(r) if is_key(v.aval.dtype) else r
        for r, v in zip(results, eqn.outputs, strict=True)
    ]


def _as_keys(words: np.ndarray) -> np.ndarray:
    opaque = np.dtype((np.void, 4 * words.shape[-1]))
    return np.ascontiguousarray(words).view(opaque).reshape(words.shape[:-1])


# --- what NumPy does: moving, and wrapping arithmetic of equal types

_RULES: dict[Primitive, Callable[..., Any]] = {}


def _rule(primitive: Primitive):
    def register(rule: Callable[..., Any]):
        if primitive in _RULES:
            raise ValueError(f"two host rules for {primitive}")
        _RULES[primitive] = rule
        return rule

    return register


@_rule(_compat.random_wrap_p)
def _wrap(eqn, words):
    return _as_keys(words)


@_rule(_compat.random_unwrap_p)
def _unwrap(eqn, keys):
    return key_words(keys)


@_rule(prim.slice_p)
def _slice(eqn, x):
    p = eqn.params
    strides = p["strides"] or (1,) * x.ndim
    bounds = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return x[tuple(slice(*b) for b in bounds)]


@_rule(prim.squeeze_p)
def _squeeze(eqn, x):
    return np.squeeze(x, axis=eqn.params["dimensions"])


@_rule(prim.reshape_p)
def _reshape(eqn, x, *dynamic):
    order = eqn.params["dimensions"]  # of `order="F"`
    return (x if order is None else x.transpose(order)).reshape(eqn.outputs[0].aval.shape)


@_rule(prim.transpose_p)
def _transpose(eqn, x):
    return np.transpose(x, eqn.params["permutation"])


@_rule(prim.concatenate_p)
def _concatenate(eqn, *xs):
    return np.concatenate(xs, axis=eqn.params["dimension"])


@_rule(_compat.unstack_p)
def _unstack(eqn, x):
    return list(np.moveaxis(x, eqn.params["axis"], 0))


@_rule(prim.broadcast_in_dim_p)
def _broadcast(eqn, x, *dynamic):
    shape = eqn.params["shape"]
    sizes = [1] * len(shape)
    for axis, size in zip(eqn.params["broadcast_dimensions"], x.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(x.reshape(sizes), shape)


@_rule(prim.dynamic_slice_p)
def _dynamic_slice(eqn, x, *starts):
    sizes = eqn.params["slice_sizes"]
    # XLA clamps the start so that the slice lies inside.
    begins = [
        min(max(int(s), 0), n - size) for s, n, size in zip(starts, x.shape, sizes, strict=True)
    ]
    return x[tuple(slice(b, b + size) for b, size in zip(begins, sizes, strict=True))]


@_rule(prim.convert_element_type_p)
def _convert(eqn, x):
    return x.astype(eqn.outputs[0].aval.dtype)


def _numpy(primitive: Primitive, ufunc: Callable[..., Any]) -> None:
    @_rule(primitive)
    def arithmetic(eqn, *operands):
        return np.asarray(ufunc(*operands), dtype=eqn.outputs[0].aval.dtype)


_numpy(prim.add_p, np.add)
_numpy(prim.sub_p, np.subtract)
_numpy(prim.mul_p, np.multiply)
_numpy(prim.lt_p, np.less)
_numpy(prim.le_p, np.less_equal)
_numpy(prim.gt_p, np.greater)
_numpy(prim.ge_p, np.greater_equal)

"""Keys of equation parameters and of constants, made here so that the check stands alone."""

import types
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

Jaxprs = Callable[[Any], Hashable]


def key_of(param: Any, jaxpr_key: Jaxprs) -> Hashable:
    """Returns a key: equal keys mean equal parameters. Rules given as functions don't count.

    A derivative rule is made anew whenever its call is bound, so that two can't be compared; the
    emitter takes both from the same equation.
    """
    if isinstance(param, (jex_core.Jaxpr, jex_core.ClosedJaxpr)):
        return jaxpr_key(param)
    if isinstance(param, (tuple, list)):
        return (type(param).__name__, *(key_of(item, jaxpr_key) for item in param))
    if isinstance(param, dict):
        items = sorted(param.items(), key=lambda item: str(item[0]))
        return ("dict", *((str(k), key_of(v, jaxpr_key)) for k, v in items))
    if isinstance(param, (np.ndarray, np.generic, jax.Array)):
        return constant_key(param)
    if isinstance(param, (types.FunctionType, types.MethodType)) or type(param).__name__ in _RULES:
        return "rule"
    if isinstance(param, float):
        return ("float", np.float64(param).tobytes())
    try:
        hash(param)
    except TypeError:
        return ("object", id(param))
    return (type(param).__name__, param)


_RULES = ("WrappedFun", "JaxprThunk", "Partial", "partial")


def constant_key(array: Any) -> Hashable:
    """Returns a key of an array by its contents; of one that can't be read, by its identity."""
    if isinstance(array, jax.core.Tracer) or not getattr(array, "is_fully_addressable", True):
        return ("object", id(array))
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return ("key", str(array.dtype), constant_key(jax.random.key_data(array)))
    host = np.asarray(array)
    return ("array", str(host.dtype), host.shape, host.tobytes())

"""Keys of equation parameters and of constants, made here so that the check stands alone."""

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core as jex_core
from jax.sharding import NamedSharding

Jaxprs = Callable[[Any], Hashable]


def key_of(param: Any, jaxpr_key: Jaxprs) -> Hashable:
    """Returns a key: equal keys mean equal parameters. Functions are equal only to themselves."""
    if isinstance(param, (jex_core.Jaxpr, jex_core.ClosedJaxpr)):
        return jaxpr_key(param)
    if is_nowhere(param):
        return "nowhere"
    if isinstance(param, (tuple, list)):
        return (type(param).__name__, *(key_of(item, jaxpr_key) for item in param))
    if isinstance(param, dict):
        items = sorted(param.items(), key=lambda item: str(item[0]))
        return ("dict", *((str(k), key_of(v, jaxpr_key)) for k, v in items))
    if isinstance(param, (np.ndarray, np.generic, jax.Array)):
        return constant_key(param)
    if isinstance(param, (float, complex)):  # 0.0 == -0.0
        return (type(param).__name__, np.complex128(param).tobytes())
    try:
        hash(param)
    except TypeError:
        return ("object", id(param))
    return (type(param).__name__, param)


def is_nowhere(sharding: Any) -> bool:
    """Says whether a sharding says nothing: there is none, or its mesh has no axes."""
    return sharding is None or (isinstance(sharding, NamedSharding) and sharding.mesh.empty)


def constant_key(array: Any) -> Hashable:
    """Returns a key of an array by its contents; of one that can't be read, by its identity."""
    if _is_keys(array):
        return ("key", str(array.dtype), constant_key(jax.random.key_data(array)))
    if not readable(array):
        return ("object", id(array))
    host = np.asarray(array)
    return ("array", str(host.dtype), host.shape, host.tobytes())


def readable(array: Any) -> bool:
    """Says whether an array's numbers can be read here and now."""
    if isinstance(array, Tracer) or not getattr(array, "is_fully_addressable", True):
        return False
    return not _is_keys(array)


def _is_keys(array: Any) -> bool:
    return (
        isinstance(array, jax.Array)
        and not isinstance(array, Tracer)
        and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    )

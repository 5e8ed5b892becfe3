"""Keys that are equal only where two things are the same for the compiler.

Python's `==` is too lax (`0.0 == -0.0`, `1 == True`, `nan != nan`) and JAX's parameters are not all
hashable. `freeze` maps a parameter to a hashable key; what it doesn't know is equal only to itself,
so that the unknown is never taken for the same.
"""

import contextvars
import hashlib
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from ._derivative import RULED, derivative
from ._program import is_key


def freeze(thing: Any) -> Hashable:
    """Returns a hashable key: equal keys mean equal to the last bit, or the same object."""
    kind = type(thing)
    rule = _RULES.get(kind)
    if rule is not None:
        return rule(thing)
    if isinstance(thing, (jex_core.Jaxpr, jex_core.ClosedJaxpr)):
        return freeze_jaxpr(thing)
    if isinstance(thing, (np.ndarray, np.generic, jax.Array)):
        return freeze_array(thing)
    if isinstance(thing, tuple):  # named tuples: GatherDimensionNumbers and the like
        return (kind, tuple(map(freeze, thing)))
    if isinstance(thing, float):  # JAX's typed scalars are subclasses of float and int
        return (kind, _scalar_dtype(thing), np.float64(thing).tobytes())
    if isinstance(thing, int):
        return (kind, _scalar_dtype(thing), int(thing))
    return _freeze_other(thing)


def freeze_array(array: Any) -> Hashable:
    """Returns a key of an array: dtype, shape and a digest of the bytes.

    An array that this process can't read whole is equal only to itself.
    """
    if isinstance(array, jax.Array) and is_key(array.dtype):
        return ("key", str(array.dtype), freeze_array(jax.random.key_data(array)))
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return _Same(array)
    host = np.asarray(array)
    if not host.shape:  # a number: no digest needed
        return ("number", str(host.dtype), bool(getattr(array, "weak_type", False)), host.tobytes())
    host = np.ascontiguousarray(host)
    digest = hashlib.blake2b(host.reshape(-1).view(np.uint8).data, digest_size=20).digest()
    weak = bool(getattr(array, "weak_type", False))
    return ("array", str(host.dtype), np.shape(array), weak, digest)


def freeze_jaxpr(jaxpr: Any) -> Hashable:
    """Returns a key of a (closed) jaxpr, blind to the names of its variables."""
    key = _JAXPRS.get(jaxpr)
    if key is None:
        key = _JAXPRS[jaxpr] = _freeze_jaxpr(jaxpr)
    return key


_JAXPRS: weakref.WeakKeyDictionary[Any, Hashable] = weakref.WeakKeyDictionary()


def _freeze_jaxpr(jaxpr: Any) -> Hashable:
    consts = tuple(freeze(c) for c in getattr(jaxpr, "consts", ()))
    body = getattr(jaxpr, "jaxpr", jaxpr)
    numbers: dict[Any, int] = {}

    def name(atom: Any) -> Hashable:
        if isinstance(atom, jex_core.Literal):
            return (atom.aval, freeze(atom.val))
        return numbers.setdefault(atom, len(numbers))

    heads = tuple((name(v), v.aval) for v in (*body.constvars, *body.invars))
    equations = tuple(
        (
            freeze_equation(eqn),
            tuple(map(name, eqn.invars)),
            tuple((name(v), v.aval) for v in eqn.outvars),
        )
        for eqn in body.eqns
    )
    return ("jaxpr", consts, heads, equations, tuple(map(name, body.outvars)))


def freeze_equation(eqn: Any) -> Hashable:
    """Returns a key of a jaxpr equation: primitive, parameters and trace context, not operands."""
    if eqn.primitive in RULED:
        rule = _freeze_rule(eqn)
        if rule is not None:
            return (eqn.primitive, rule, eqn.ctx)
    return (eqn.primitive, freeze(eqn.params), eqn.ctx)


# How deep rules are looked into that call functions with rules: their own function, often.
_DEEPEST = 2
_depth = contextvars.ContextVar("depth", default=0)


def _freeze_rule(eqn: Any) -> Hashable | None:
    """Returns a key of a call by what its rule does, not by the function that does it.

    `None` where that can't be told: then the function counts, and no other call is the same.
    """
    rest = {name: param for name, param in eqn.params.items() if name not in RULED[eqn.primitive]}
    if _depth.get() == _DEEPEST:
        return freeze(rest)
    if eqn.params.get("symbolic_zeros"):  # the rule may do something else where nothing moves
        return None
    token = _depth.set(_depth.get() + 1)
    try:
        rule = derivative(eqn, eqn.invars)
        return None if rule is None else (freeze(rest), freeze_jaxpr(rule))
    finally:
        _depth.reset(token)


def _freeze_mapping(mapping: Mapping[Any, Any]) -> Hashable:
    return ("mapping", tuple(sorted(((str(k), freeze(v)) for k, v in mapping.items()), key=_first)))


def _first(pair: tuple[str, Hashable]) -> str:
    return pair[0]


def _scalar_dtype(scalar: Any) -> str:
    return str(getattr(scalar, "dtype", None))


def _freeze_other(thing: Any) -> Hashable:
    try:
        hash(thing)
    except TypeError:
        return _Same(thing)
    return (type(thing), thing)


class _Same:
    """A key that is equal only for the very same object, and keeps that object alive."""

    __slots__ = ("_thing",)

    def __init__(self, thing: Any):
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._thing is other._thing

    def __hash__(self) -> int:
        return id(self._thing)


_RULES: dict[type, Callable[[Any], Hashable]] = {
    type(None): lambda _: None,
    bool: lambda x: (bool, x),
    int: lambda x: (int, x),
    float: lambda x: (float, np.float64(x).tobytes()),
    str: lambda x: (str, x),
    tuple: lambda x: (tuple, tuple(map(freeze, x))),
    list: lambda x: (list, tuple(map(freeze, x))),
    dict: _freeze_mapping,
}

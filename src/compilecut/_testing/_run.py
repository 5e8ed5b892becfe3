"""Runs a function as an assertion asks for it: as users call it, or under compiler options."""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax


def run(f: Callable[..., Any], args: tuple[Any, ...], static_argnums: tuple[int, ...]) -> Any:
    """Calls a function, jitted unless it lowers itself.

    What has its own `lower` (jitted functions, `stacked_init`) decides what it compiles. A `jit`
    around it would inline it into one program, and the test would be of something else.
    """
    if hasattr(f, "lower"):
        return f(*args)
    bound, dynamic = _bind(f, args, static_argnums)
    return jax.jit(bound)(*dynamic)


def run_compiled(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    static_argnums: tuple[int, ...],
    options: Mapping[str, Any],
) -> Any:
    """Compiles a function under compiler options, and calls it.

    Raises:
        TypeError: the function compiles programs of its own, which the options wouldn't reach.
    """
    if hasattr(f, "lower") and not isinstance(f, _JITTED):
        raise TypeError(
            f"{describe(f)} compiles its own programs, so the strict options can't reach them. "
            "Use `assert_bit_identical`, or pass the function inside."
        )
    bound, dynamic = _bind(f, args, static_argnums)
    compiled = jax.jit(bound).lower(*dynamic).compile(compiler_options=dict(options))
    return compiled(*dynamic)


_JITTED = type(jax.jit(lambda: None))


def _bind(
    f: Callable[..., Any], args: tuple[Any, ...], static_argnums: tuple[int, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Closes over the static arguments, so that lowering and calling take the same ones."""
    static = {range(len(args))[i] for i in static_argnums}  # negative numbers count from the end
    if not static:
        return f, args

    def bound(*dynamic: Any) -> Any:
        rest = iter(dynamic)
        return f(*(arg if i in static else next(rest) for i, arg in enumerate(args)))

    bound.__name__ = getattr(f, "__name__", "bound")
    return bound, tuple(arg for i, arg in enumerate(args) if i not in static)


def describe(f: Callable[..., Any]) -> str:
    """Names a function for a message: what it is called and where it is written."""
    inner = inspect.unwrap(f.func if isinstance(f, functools.partial) else f)
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__name__", None) or repr(inner)
    if code is None:
        return f"`{name}`"
    return f"`{name}` ({Path(code.co_filename).name}:{code.co_firstlineno})"

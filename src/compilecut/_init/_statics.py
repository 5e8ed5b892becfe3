"""Which arguments are static: the part of `jax.jit`'s signature that has no public face."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Statics:
    """Static arguments of a function, by position and by name.

    Attributes:
        positions: of arguments given by position.
        names: of arguments given by name.
    """

    positions: frozenset[int]
    names: frozenset[str]

    @classmethod
    def infer(
        cls,
        fn: Callable[..., Any],
        static_argnums: int | Sequence[int] | None,
        static_argnames: str | Sequence[str] | None,
    ) -> "Statics":
        """Completes positions by names and names by positions, as `jax.jit` does."""
        numbers = _as_tuple(static_argnums)
        names: tuple[str, ...] = _as_tuple(static_argnames)
        if not numbers and not names:
            return cls(frozenset(), frozenset())
        try:
            parameters = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):  # a builtin has no signature: take what was said
            return cls(frozenset(numbers), frozenset(names))
        positional = [p.name for p in parameters if p.kind in _BY_POSITION]
        given = {n % len(positional) if positional and n < 0 else n for n in numbers}
        if static_argnames is None:
            names = tuple(name for i, name in enumerate(positional) if i in given)
        elif static_argnums is None:
            given = {i for i, name in enumerate(positional) if name in names}
        return cls(frozenset(given), frozenset(names))

    def drop(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments without the static ones."""
        kept = tuple(a for i, a in enumerate(args) if i not in self.positions)
        return kept, {k: v for k, v in kwargs.items() if k not in self.names}


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _as_tuple(one_or_more: Any) -> tuple[Any, ...]:
    if one_or_more is None:
        return ()
    return (one_or_more,) if isinstance(one_or_more, (int, str)) else tuple(one_or_more)

"""Counts the instructions in HLO text, the one form of a compiled program that is public."""

import collections
import re
from collections.abc import Callable
from typing import Any

import jax

# An instruction is an indented line `name = type opcode(...)`, ROOT or not. A name may start with
# a percent sign. The type is a word, or a tuple in parentheses that nest (layouts have their own).
_ASSIGNMENT = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (?P<rest>.*)$", re.MULTILINE)
_OPCODE = re.compile(r"\s*(?P<opcode>[a-z][\w\-]*)\(")


def count_opcodes(text: str) -> collections.Counter[str]:
    """Counts the instructions of every computation in HLO text, by opcode."""
    counts: collections.Counter[str] = collections.Counter()
    for line in _ASSIGNMENT.finditer(text):
        rest = line["rest"]
        opcode = _OPCODE.match(rest, _end_of_type(rest))
        if opcode is not None:
            counts[opcode["opcode"]] += 1
    return counts


def _end_of_type(rest: str) -> int:
    if not rest.startswith("("):
        return rest.find(" ")
    depth = 0
    for position, character in enumerate(rest):
        depth += (character == "(") - (character == ")")
        if not depth:
            return position + 1
    return len(rest)


def hlo_text(
    f: Callable[..., Any] | jax.stages.Lowered | jax.stages.Compiled,
    args: tuple[Any, ...],
    *,
    optimized: bool,
) -> str:
    """Returns the HLO of a function, or of what `lower` or `compile` gave, as text."""
    stage = f
    if not isinstance(stage, (jax.stages.Lowered, jax.stages.Compiled)):
        stage = _lower(stage, args)
    if isinstance(stage, jax.stages.Compiled):
        if not optimized:
            raise ValueError(
                "a `Compiled` no longer has the program before optimisation. Pass the function, "
                "or the `Lowered` it was compiled from, for `optimized=False`."
            )
        text = stage.as_text()
    else:
        text = stage.compile().as_text() if optimized else stage.as_text(dialect="hlo")
    if not text:
        raise ValueError("this backend doesn't give its programs as text: nothing to count.")
    return text


def _lower(f: Callable[..., Any], args: tuple[Any, ...]) -> jax.stages.Lowered:
    own = getattr(f, "lower", None)
    lowered = own(*args) if own is not None else jax.jit(f).lower(*args)
    if not isinstance(lowered, jax.stages.Lowered):
        raise TypeError(
            f"`{f!r}` lowers to {type(lowered).__name__}, not to one `jax.stages.Lowered`. Count "
            "its programs one by one, or those of the function inside."
        )
    return lowered

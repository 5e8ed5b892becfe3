"""The comparison of two programs."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend import source_info_util
from jax.extend.core import primitives as prim

from . import _rules as _rules  # fills the table of rules
from ._terms import Term, Terms

# How a folded program's inputs follow from the original's, and the original's outputs from its.
Inputs = Callable[[list[Term]], Sequence[Term]]
Outputs = Callable[[Terms, list[Term]], Sequence[Term]]


def first_difference(
    original: Any, folded: Any, inputs: Inputs | None = None, outputs: Outputs | None = None
) -> str | None:
    """Says where a folded program departs from the original; nothing if it doesn't.

    Args:
        original: a closed jaxpr.
        folded: a closed jaxpr.
        inputs: what the folded program is given, where that is not what the original is.
        outputs: what of its results stands for those of the original, where it isn't they.
    """
    wrong = None if inputs is not None else _other_type("input", original.in_avals, folded.in_avals)
    if wrong is not None:
        return wrong
    difference = _difference(Terms(), original, folded, inputs, outputs)
    if difference is not None and _has_loops(original.jaxpr):
        # A loop that the fold made may be one that the program had elsewhere.
        terms = Terms(through_all=True)
        return _difference(terms, original, folded, inputs, outputs) and difference
    return difference


def _difference(
    terms: Terms, original: Any, folded: Any, inputs: Inputs | None, outputs: Outputs | None
) -> str | None:
    given: list[Term] = [
        terms.number(("argument", place), aval.shape)
        for place, aval in enumerate(original.in_avals)
    ]
    expected = terms.read(original, given)
    effects = list(terms.effects)
    terms.effects.clear()
    terms.now_the_folded()
    found = terms.read(folded, given if inputs is None else inputs(given))
    if outputs is None:
        other_type = _other_type("output", original.out_avals, folded.out_avals)
        if other_type is not None:
            return other_type
    else:
        found = list(outputs(terms, found))
    return _other_value(terms, expected, found) or _other_effects(effects, terms.effects)


def _other_type(what: str, expected: Sequence[Any], found: Sequence[Any]) -> str | None:
    if len(expected) != len(found):
        return f"it has {len(found)} {what}s, not {len(expected)}"
    for place, (old, new) in enumerate(zip(expected, found, strict=True)):
        if (old.shape, old.dtype, old.weak_type) != (new.shape, new.dtype, new.weak_type):
            return f"{what} {place} is {_type(new)}, not {_type(old)}"
    return None


def _type(aval: Any) -> str:
    return f"weak {aval.str_short()}" if aval.weak_type else aval.str_short()


def _other_value(terms: Terms, expected: Sequence[Term], found: Sequence[Term]) -> str | None:
    if len(expected) != len(found):
        return f"it has {len(found)} outputs, not {len(expected)}"
    for place, (old, new) in enumerate(zip(expected, found, strict=True)):
        if terms.whole(old) != terms.whole(new):
            return f"output {place} is another computation: {_departure(terms, old, new)}"
    return None


def _other_effects(expected: Sequence[Any], found: Sequence[Any]) -> str | None:
    return None if list(expected) == list(found) else "its effects are others, or in another order"


def _departure(terms: Terms, old: Term, new: Term) -> str:
    """Follows two terms down to the first application that differs."""
    a, b = terms.whole(old), terms.whole(new)
    inside = ""
    while True:
        first, second = terms.known[a].key, terms.known[b].key
        differing = [(x, y) for x, y in _children(first, second) if x != y]
        if not differing:
            return f"{_describe(terms, b)} where the original has {_describe(terms, a)}{inside}"
        inside = f", an operand of {_describe(terms, a)}"
        a, b = differing[0]


def _has_loops(jaxpr: Any) -> bool:
    return any(
        eqn.primitive is prim.scan_p
        or (eqn.primitive is prim.jit_p and _has_loops(eqn.params["jaxpr"].jaxpr))
        for eqn in jaxpr.eqns
    )


def _children(first: Any, second: Any) -> list[tuple[int, int]]:
    """Returns the arguments of two applications of one thing, side by side."""
    if first[0] == second[0] == "stack" and len(first[1]) == len(second[1]):
        return list(zip(first[1], second[1], strict=True))
    if not (isinstance(first[0], tuple) and isinstance(second[0], tuple)):
        return []
    (head, arguments), place = first[0], first[1]
    (other, others), other_place = second[0], second[1]
    if head != other or place != other_place or len(arguments) != len(others):
        return []
    return list(zip(arguments, others, strict=True))


def _describe(terms: Terms, number: int) -> str:
    known = terms.known[number]
    head = known.key[0]  # pyright: ignore[reportIndexIssue]
    name = head if isinstance(head, str) else str(head[0][0])
    if known.where is None:
        return f"`{name}`"
    return f"`{name}` ({source_info_util.summarize(known.where)})"

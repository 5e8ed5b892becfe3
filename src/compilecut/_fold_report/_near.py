"""Blocks that are almost like those of a repeat, and the first equation that tells them apart."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from .._jaxpr import Equation
from .._match import FoundRepeat, align, fingerprints, weights
from .._plan import Plan

# A stretch that shares less than this part of a block with it is something else.
_ALIKE = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Equations that are almost a block.

    Attributes:
        block: the first equation of the block that has no partner, if there is one.
        other: the first of the others that has none, if there is one.
        equations: those others.
        n: how many blocks they are.
        inside: whether the rest of the block is folded with the others.
    """

    block: Equation | None
    other: Equation | None
    equations: list[Equation]
    n: int
    inside: bool = False


def near_misses(plan: Plan, repeat: FoundRepeat) -> Iterator[Near]:
    """Yields stretches between and around the blocks of a repeat that are almost blocks."""
    equations = plan.program.equations
    taken = {p for each in plan.repeats for call in each.calls for p in call.positions}
    size = len(repeat.block.equations)
    first, last = repeat.calls[0].positions[0], repeat.calls[-1].positions[-1]
    bounds = [(c.positions[-1] + 1, d.positions[0]) for c, d in itertools.pairwise(repeat.calls)]
    bounds.append((max(0, first - 2 * size), first))
    bounds.append((last + 1, min(len(equations), last + 1 + 2 * size)))
    for start, stop in bounds:
        stretch = [equations[p] for p in range(start, stop) if p not in taken]
        near = compare(repeat.block.equations, stretch, n=1)
        if near is not None and near.other is not None:
            yield near
    yield from _odd_parts(plan, repeat, taken)


def _odd_parts(plan: Plan, repeat: FoundRepeat, taken: set[int]) -> Iterator[Near]:
    """Yields what stands in blocks between the others instead of some of their equations.

    The first and the last block of a differentiated loop lack some as a matter of course.
    """
    equations = plan.program.equations
    for call, following in itertools.pairwise(repeat.calls[1:]):
        if len(call.positions) == len(repeat.block.equations):
            continue
        mine = set(call.positions)
        span = range(call.positions[0], following.positions[0])
        stretch = [equations[p] for p in span if p not in taken or p in mine]
        odd = [equations[p] for p in span if p not in taken]
        near = compare(repeat.block.equations, stretch, n=1)
        if near is not None and odd:
            yield dataclasses.replace(near, equations=odd, inside=True)


def compare(block: Sequence[Equation], stretch: Sequence[Equation], n: int) -> Near | None:
    """Returns what tells equations from a block that they are almost like."""
    sizes = weights(block)
    if weights(stretch).sum() < _ALIKE * sizes.sum():
        return None
    names = fingerprints([*block, *stretch]).tolist()
    pairs = align(names[: len(block)], names[len(block) :])
    alike = sizes[np.asarray([slot for slot, _ in pairs], np.int64)].sum()
    if alike < _ALIKE * sizes.sum():
        return None
    slot, place = _telling_gap(pairs, len(block), len(stretch))
    if slot is None:
        return None
    return Near(
        block=block[slot],
        other=None if place is None else stretch[place],
        equations=list(stretch),
        n=n,
    )


def _telling_gap(
    pairs: Sequence[tuple[int, int]], size: int, length: int
) -> tuple[int | None, int | None]:
    """Returns a slot without a partner, and what stands there instead, if something does.

    The first one that something else stands for tells most; else the first of all.
    """
    first: int | None = None
    matched = dict(pairs)
    used = set(matched.values())
    place = 0
    for slot in range(size):
        if slot in matched:
            place = matched[slot] + 1
            continue
        if place < length and place not in used:
            return slot, place
        first = slot if first is None else first
    return first, None

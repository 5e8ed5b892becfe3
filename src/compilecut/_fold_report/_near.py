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
    """

    block: Equation | None
    other: Equation | None
    equations: list[Equation]
    n: int


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
        if near is not None:
            yield near


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
    slot, place = _first_gap(pairs, len(block))
    if slot is None:
        return None
    inner = place < len(stretch) and place not in {at for _, at in pairs}
    return Near(
        block=block[slot],
        other=stretch[place] if inner else None,
        equations=list(stretch),
        n=n,
    )


def _first_gap(pairs: Sequence[tuple[int, int]], size: int) -> tuple[int | None, int]:
    """Returns the first slot without a partner, and the place where its partner would stand."""
    place = 0
    for expected, (slot, at) in enumerate(pairs):
        if slot != expected:
            return expected, place
        place = at + 1
    return (len(pairs), place) if len(pairs) < size else (None, place)

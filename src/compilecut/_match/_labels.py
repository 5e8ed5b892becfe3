"""Which block of another loop an equation belongs to, as far as its operands tell.

An optimizer goes through leaves, sixteen to a layer; whether that is one loop over 16 n leaves,
or over n layers of 16, and where a layer starts, its own equations don't say. What they read does:
results of one call of a repeat found before, or arguments that come in one stack each. Loops that
agree on their blocks pass stacks from one to the next as they are.
"""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from .._jaxpr import Operand
from ._index import Index
from ._repeat import FoundRepeat
from ._runs import Run

# Values that come in stacks: the stack (its family, and which of that family), and the place.
Sources = dict[Operand, tuple[Any, int]]
Label = tuple[Hashable, int]  # a family of stacks, and a place in it


class Labels:
    """Labels of values: what they belong to, and to which block of it."""

    def __init__(self, sources: Sources):
        self._labels: dict[Operand, Label] = {
            value: (stack[0], place) for value, (stack, place) in sources.items()
        }

    def add(self, repeat: FoundRepeat) -> None:
        """Labels the results of a repeat."""
        for place, call in enumerate(repeat.calls):
            self._labels.update(dict.fromkeys(call.outputs, (repeat, place)))

    def edges(self, index: Index, run: Run) -> list[int]:
        """Returns the positions in a run where what is read changes from one block to another."""
        edges: list[int] = []
        here: dict[Hashable, int] = {}
        for position in range(run.start, run.stop):
            new = self._of(index.equations[position].inputs)
            if any(here.get(family, place) != place for family, place in new.items()):
                edges.append(position)
                here = {}
            here.update(new)
        return edges

    def _of(self, operands: Iterable[Operand]) -> dict[Hashable, int]:
        found: dict[Hashable, int] = {}
        for operand in operands:
            label = self._labels.get(operand)
            if label is not None:
                found[label[0]] = label[1]
        return found


def in_step(run: Run, edges: list[int]) -> tuple[Run, int | None]:
    """Returns a run in steps as long as the blocks it reads, and where one of these starts.

    The steps may be multiples of the run's period only; otherwise the run stays as it is.
    """
    lengths = Counter(b - a for a, b in itertools.pairwise(edges))
    if not lengths:
        return run, None
    length, count = lengths.most_common(1)[0]
    if count < 2 or length % run.period or length < run.period:
        return run, None
    starts = Counter(a % length for a, b in itertools.pairwise(edges) if b - a == length)
    start = starts.most_common(1)[0][0]
    if (run.stop - run.start) // length < 2:
        return run, None
    return Run(run.start, run.stop, length), start

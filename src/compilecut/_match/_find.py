"""Finding: the repeats of a program, the ones that save most first.

Greedy: the candidate with the most equations to save takes its equations, the next ones have to do
with what is left. Loops inside a block are found when the block itself is looked at as a program.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from .._jaxpr import Program
from ._index import Index
from ._labels import Labels, Sources
from ._order import ordered
from ._prove import prove
from ._repeat import FoundRepeat, Mismatch
from ._rows import arrange
from ._runs import Run, find_runs

# A periodic stretch holds at least this many whole blocks; the partial ones at its ends come later.
_WHOLE = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found in a program.

    Attributes:
        repeats: proven repeats that can stand in one program together.
        mismatches: blocks that look alike and are not.
    """

    repeats: list[FoundRepeat]
    mismatches: list[Mismatch]


def find(
    program: Program,
    min_blocks: int,
    worth: Callable[[FoundRepeat], bool],
    sources: Sources,
) -> Found:
    """Returns the repeats of a program.

    Args:
        program: the program; its equations are all needed.
        min_blocks: how many blocks make a repeat.
        worth: says of a proven repeat whether folding it pays.
        sources: where values stand that come in stacks: stack and place.
    """
    index = Index(program)
    free = np.ones(len(index.equations), bool)
    labels = Labels(sources)
    repeats: list[FoundRepeat] = []
    mismatches: list[Mismatch] = []
    for run in _promising(index):
        if not free[run.start : run.stop].any():
            continue
        rows = arrange(index, run, free, labels)
        if rows is None or len(rows.table) < min_blocks:
            continue
        found = prove(index, rows, min_blocks)
        if isinstance(found, Mismatch):
            mismatches.append(found)
        elif found is not None and worth(found) and ordered(program, [*repeats, found]):
            repeats.append(found)
            labels.add(found)
            free[[p for call in found.calls for p in call.positions]] = False
    return Found(repeats=repeats, mismatches=mismatches)


def _promising(index: Index) -> list[Run]:
    """Returns periodic stretches, those that could save most first.

    Those with the smallest blocks come last whatever they save: a sum over all leaves is a chain of
    single additions, and what the leaves belong to is known by then.
    """
    upto = np.concatenate([[0], np.cumsum(index.weights)])

    def block(run: Run) -> int:
        return int(upto[run.start + run.period] - upto[run.start])

    def saves(run: Run) -> int:
        return int(upto[run.stop] - upto[run.start]) - block(run)

    runs = [run for run in find_runs(index.names, _WHOLE) if saves(run) >= _WORTH_A_LOOK]
    return sorted(runs, key=lambda run: (block(run) < _WORTH_A_LOOK, -saves(run)))


# Fewer equations than this are not looked at: a call costs about as much.
_WORTH_A_LOOK = 8

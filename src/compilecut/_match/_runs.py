"""Periodic stretches of a sequence of integers.

Windows of length 1, 2, 4, ... are numbered by content (prefix doubling, as for suffix arrays).
Where neighbouring windows all find their next equal at one distance p, the sequence has period p.
Long windows see the outer loop, short ones the inner. Each doubling is one sort: O(N log^2 N).

References: Karp, Miller, Rosenberg, "Rapid identification of repeated patterns in strings, trees
and arrays" (1972); Kolpakov, Kucherov, "Finding maximal repetitions in a word in linear time"
(1999).
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A stretch of the sequence that has a period.

    Attributes:
        start: its first position.
        stop: one past its last.
        period: `sequence[i] == sequence[i + period]` for all i, i + period inside.
    """

    start: int
    stop: int
    period: int

    @property
    def blocks(self) -> int:
        """How many whole periods it holds."""
        return (self.stop - self.start) // self.period


def find_runs(sequence: np.ndarray, min_blocks: int) -> list[Run]:
    """Returns the stretches that hold at least `min_blocks` whole periods."""
    found: dict[tuple[int, int, int], None] = {}
    names, width = np.unique(sequence, return_inverse=True)[1].astype(np.int64), 1
    while len(names) > width:
        for run in _runs(names, width, min_blocks):
            found[run] = None
        names, width = _double(names, width), 2 * width
    return _maximal([Run(*run) for run in found])


def _runs(names: np.ndarray, width: int, min_blocks: int):
    """Yields stretches in which each window's next equal is at one distance."""
    order = np.argsort(names, kind="stable")
    gap = np.zeros(len(names), np.int64)
    same = names[order[1:]] == names[order[:-1]]
    gap[order[:-1][same]] = (order[1:] - order[:-1])[same]
    edges = np.flatnonzero(np.diff(gap)) + 1
    starts = np.concatenate([[0], edges])
    stops = np.concatenate([edges, [len(gap)]])
    periods = gap[starts]
    ends = stops - 1 + width + periods
    long = (periods > 0) & (ends - starts >= min_blocks * periods)
    yield from zip(*(x[long].tolist() for x in (starts, ends, periods)), strict=True)


def _double(names: np.ndarray, width: int) -> np.ndarray:
    """Numbers windows of twice the width."""
    pairs = names[:-width] * (names.max() + 1) + names[width:]
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def _maximal(runs: list[Run]) -> list[Run]:
    """Merges overlapping pieces of one periodic stretch, drops those inside another."""
    merged: list[Run] = []
    for run in sorted(runs, key=lambda r: (r.period, r.start, -r.stop)):
        last = merged[-1] if merged else None
        if last and last.period == run.period and run.start <= last.stop - run.period:
            merged[-1] = Run(last.start, max(last.stop, run.stop), run.period)
        else:
            merged.append(run)
    return merged

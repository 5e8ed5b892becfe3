"""From a periodic stretch to a table: one row per block, one column (slot) per equation of it.

A stretch says only that fingerprints repeat. Where a block starts is chosen so that as little as
possible crosses from one block to the next. Then the table grows at both ends: the first and the
last block of a differentiated loop lack the equations whose results nobody needs, and equations
of something else may stand between two blocks.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ._align import align
from ._index import Index
from ._labels import Labels, in_step
from ._runs import Run

MISSING = -1
# A stretch that shares less than this part of a block's equations is something else.
ENOUGH = 0.4
# And one that lacks some of it must be made of little else: a block at the border of a loop is.
_DENSE = 0.7
# How many starts that are equally good so far are tried.
_STARTS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Equations arranged as blocks.

    Attributes:
        table: positions of equations by block and slot, `MISSING` where a block lacks one.
        model: the number of a row that lacks nothing.
    """

    table: np.ndarray
    model: int

    @property
    def fit(self) -> int:
        """How many equations stand in the table, less those that are missing in it."""
        present = int((self.table != MISSING).sum())
        return 2 * present - self.table.size


def arrange(index: Index, run: Run, free: np.ndarray, labels: Labels) -> Rows | None:
    """Returns the best table for a run, made of free equations only."""
    run = _longest_free(run, free)
    if run.blocks < 2:
        return None
    run, edge = in_step(run, labels.edges(index, run))
    starts = _starts(run, index.last_users(run))
    if edge is not None:  # what it reads says where blocks start
        starts.sort(key=lambda start: (edge - start) % run.period)
    best: Rows | None = None
    for start in starts[:_STARTS]:
        rows = _grow(index, run, start, free)
        if best is None or rows.fit > best.fit:
            best = rows
        if best.fit >= run.blocks * run.period:  # whole blocks alone, and as many as there can be
            break
    return best


def _longest_free(run: Run, free: np.ndarray) -> Run:
    taken = np.flatnonzero(~free[run.start : run.stop]) + run.start
    edges = [run.start - 1, *taken.tolist(), run.stop]
    pieces = [Run(a + 1, b, run.period) for a, b in itertools.pairwise(edges)]
    return max(pieces, key=lambda piece: piece.stop - piece.start)


def _starts(run: Run, last_users: np.ndarray) -> list[int]:
    """Returns where the first whole block may start: where least crosses between blocks."""
    crossing = np.zeros(run.stop - run.start + 1, np.int64)
    made = np.arange(run.start, run.stop)
    used = np.minimum(last_users, run.stop - 1)
    np.add.at(crossing, made - run.start + 1, 1)
    np.add.at(crossing, used - run.start + 1, -1)
    at = np.cumsum(crossing)
    # Boundaries at both ends see one side only: look at those with a whole block on each side.
    whole = range(run.period, len(at) - run.period)
    by_start = [
        max(int(at[boundary]) for boundary in whole[offset :: run.period])
        for offset in range(min(run.period, len(whole)))
    ]
    least = min(by_start)
    offsets = [offset for offset, count in enumerate(by_start) if count == least]
    return [run.start + offset for offset in offsets]


def _grow(index: Index, run: Run, start: int, free: np.ndarray) -> Rows:
    period, count = run.period, (run.stop - start) // run.period
    whole = [np.arange(start + i * period, start + (i + 1) * period) for i in range(count)]
    block = whole[0]
    links = _links(index, whole[0], whole[1])
    before = list(_grow_backward(index, block, start, free, links))
    after = list(_grow_forward(index, block, whole[-1], free, links))
    table = np.stack([*before[::-1], *whole, *after])
    return Rows(table, len(before) + count // 2)


# What flows from one row to the next: (slot, result) to (slot, operand).
Links = frozenset[tuple[int, int, int, int]]


def _links(index: Index, first: np.ndarray, second: np.ndarray) -> Links:
    slot_of = {int(position): slot for slot, position in enumerate(first) if position != MISSING}
    found = set()
    for slot, position in enumerate(second):
        if position == MISSING:
            continue
        for number, operand in enumerate(index.equations[int(position)].inputs):
            made = index.producer.get(operand)
            if made is not None and made[0] in slot_of:
                found.add((slot_of[made[0]], made[1], slot, number))
    return frozenset(found)


def _belongs(
    index: Index, row: np.ndarray, neighbours: tuple[np.ndarray, np.ndarray], links: Links
) -> bool:
    """Says whether a row is one of the loop: whole, or linked to its neighbour as others are.

    Blocks that hand nothing on have no border blocks that lack something: what looks like one is
    part of something else.
    """
    return MISSING not in row or not links.isdisjoint(_links(index, *neighbours))


def _grow_forward(
    index: Index, block: np.ndarray, last: np.ndarray, free: np.ndarray, links: Links
) -> Iterator[np.ndarray]:
    names = index.names[block].tolist()
    while True:
        stop = int(last.max()) + 1
        window = _window(range(stop, len(index.equations)), 2 * len(block), free)
        row = _whole(index, block, window)
        if row is None:
            row = _match(index, block, window, align(names, index.names[window].tolist()))
        if row is None or not _belongs(index, row, (last, row), links):
            return
        yield row
        last = row


def _grow_backward(
    index: Index, block: np.ndarray, start: int, free: np.ndarray, links: Links
) -> Iterator[np.ndarray]:
    names = index.names[block].tolist()
    size, first = len(block), block
    while True:
        window = _window(range(start - 1, -1, -1), 2 * size, free)
        pairs = align(names[::-1], index.names[window].tolist())
        row = _match(index, block, window, [(size - 1 - slot, place) for slot, place in pairs])
        if row is None or not _belongs(index, row, (row, first), links):
            return
        yield row
        first = row
        start = int(row[row != MISSING].min())


def _window(positions: Sequence[int], size: int, free: np.ndarray) -> np.ndarray:
    """Returns the next free positions, up to the first taken one."""
    found: list[int] = []
    for position in positions:
        if not free[position] or len(found) == size:
            break
        found.append(position)
    return np.asarray(found, np.int64)


def _whole(index: Index, block: np.ndarray, window: np.ndarray) -> np.ndarray | None:
    """Returns the start of a window as a row if it is a whole block: the common case."""
    row = window[: len(block)]
    alike = len(row) == len(block) and np.array_equal(index.names[row], index.names[block])
    return row if alike else None


def _match(
    index: Index, block: np.ndarray, window: np.ndarray, pairs: list[tuple[int, int]]
) -> np.ndarray | None:
    row = np.full(len(block), MISSING, np.int64)
    for slot, place in pairs:
        row[slot] = window[place]
    _follow_operands(index, block, row, set(window.tolist()))
    present = row[row != MISSING]
    if not len(present):
        return None
    shared = index.weights[block[row != MISSING]].sum() / index.weights[block].sum()
    dense = len(present) / (present.max() - present.min() + 1)
    whole = len(present) == len(block)
    return row if whole or (shared >= ENOUGH and dense >= _DENSE) else None


def _follow_operands(index: Index, block: np.ndarray, row: np.ndarray, window: set[int]) -> None:
    """Corrects an alignment by dataflow: what feeds a matched equation fills the slot that feeds.

    Where a block holds several equations of one fingerprint and the row lacks one, the alignment
    can't know which; the operands of later equations do.
    """
    slot_of = {int(position): slot for slot, position in enumerate(block)}
    for slot in range(len(block) - 1, -1, -1):
        if row[slot] == MISSING:
            continue
        mine = index.equations[int(row[slot])].inputs
        for model, operand in zip(index.equations[int(block[slot])].inputs, mine, strict=True):
            feeds = slot_of.get(index.producer.get(model, (MISSING, 0))[0])
            fed_by = index.producer.get(operand, (MISSING, 0))[0]
            if feeds is None or fed_by not in window or row[feeds] == fed_by:
                continue
            if index.names[fed_by] == index.names[block[feeds]]:
                row[row == fed_by] = MISSING
                row[feeds] = fed_by


def spans(rows: Rows) -> Iterator[tuple[int, int]]:
    """Yields the first and last position of each row."""
    for row in rows.table:
        present = row[row != MISSING]
        yield int(present.min()), int(present.max())

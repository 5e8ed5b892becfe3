"""Aligning a stretch of equations to a block, when some of either are missing in the other."""

from collections.abc import Sequence


def align(block: Sequence[int], stretch: Sequence[int]) -> list[tuple[int, int]]:
    """Returns pairs (place in block, place in stretch) of a longest common subsequence.

    Among equally long ones, early places of the stretch win. Bit-parallel: each element of the
    stretch costs a few operations on one big integer.

    References: Hyyrö, "Bit-parallel LCS-length computation revisited" (2004).
    """
    places: dict[int, int] = {}
    for place, name in enumerate(block):
        places[name] = places.get(name, 0) | (1 << place)
    ones = (1 << len(block)) - 1
    state, states = ones, []
    for name in stretch:
        hits = state & places.get(name, 0)
        state = ((state + hits) | (state - hits)) & ones
        states.append(state)
    return _trace_back(states, len(block))


def _trace_back(states: list[int], size: int) -> list[tuple[int, int]]:
    """Walks from the last cell to the first; a zero bit means the row's match lies at or above."""
    pairs = []
    row, column = len(states), size
    while row and column:
        bit = 1 << (column - 1)
        if states[row - 1] & bit:
            column -= 1
            continue
        row -= 1
        if not (row and not states[row - 1] & bit):
            column -= 1
            pairs.append((column, row))
    return pairs[::-1]

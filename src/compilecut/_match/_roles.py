"""What each argument of a block is when its calls run as one loop: carry, xs or const.

A port that takes a result of the call before is a *carry*, one that takes the same everywhere a
*const*, any other is an *xs*, one element a call. Where this fails between two calls, the loop ends
there and another one may start.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from .._jaxpr import Literal, Operand
from ._elementwise import is_elementwise
from ._labels import Sources
from ._repeat import Call, FoundRepeat

# Where an element comes from: one stack, and which of it. Nothing for a value that stands alone.
Source = Callable[[Operand], tuple[Any, int] | None]


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Loop:
    """Consecutive calls of a block as one loop.

    Attributes:
        repeat: the repeat they are of.
        calls: the calls, in the order in which they run.
        consts: ports that take the same in every call.
        carries: ports that take what the call before gave, and which of its outputs that is.
        xs: ports that take something else in each call.
        at_once: the calls need nothing of each other and may run on whole stacks.
    """

    repeat: FoundRepeat
    calls: tuple[Call, ...]
    consts: tuple[int, ...]
    carries: tuple[tuple[int, int], ...]
    xs: tuple[int, ...]
    at_once: bool


def as_loops(repeat: FoundRepeat, source: Source, min_blocks: int) -> list[Loop]:
    """Returns the loops that the calls of a repeat make; calls in none of them stand alone."""
    carried = _carried(repeat)
    loops = []
    for calls in _pieces(repeat.calls, carried, source):
        if len(calls) >= min_blocks:
            loop = _loop(repeat, calls, carried)
            if loop is not None:
                loops.append(loop)
    return loops


def _carried(repeat: FoundRepeat) -> dict[int, int]:
    """Returns ports that mostly take an output of the call before, with that output."""
    calls = repeat.calls
    carried = {}
    for port in range(len(repeat.block.arguments)):
        votes: dict[int, int] = {}
        for before, call in itertools.pairwise(calls):
            for number, value in enumerate(before.outputs):
                if call.inputs[port] is value:
                    votes[number] = votes.get(number, 0) + 1
        if votes:
            number, count = max(votes.items(), key=lambda vote: vote[1])
            present = sum(call.inputs[port] is not None for call in calls[1:])
            if 2 * count > present:
                carried[port] = number
    return carried


def _pieces(
    calls: Sequence[Call], carried: dict[int, int], source: Source
) -> list[tuple[Call, ...]]:
    pieces = [[calls[0]]]
    for before, call in itertools.pairwise(calls):
        if _continues(before, call, carried, source):
            pieces[-1].append(call)
        else:
            pieces.append([call])
    return [tuple(piece) for piece in pieces]


def _continues(before: Call, call: Call, carried: dict[int, int], source: Source) -> bool:
    breaks = links = 0
    for port, (old, new) in enumerate(zip(before.inputs, call.inputs, strict=True)):
        if port in carried:
            if new is not None and new is not before.outputs[carried[port]]:
                return False
        elif old is not None and new is not None and not _same(old, new):
            links += 1
            breaks += _stack_of(source, old) != _stack_of(source, new)
    # One element out of place costs a copy of its stack; if most are, it's another loop.
    return 2 * breaks <= links


def _stack_of(source: Source, operand: Operand) -> object:
    found = source(operand)
    return None if found is None else found[0]


def _loop(repeat: FoundRepeat, calls: tuple[Call, ...], carried: dict[int, int]) -> Loop | None:
    made = {value for call in calls for value in call.outputs}
    consts, xs = [], []
    for port in range(len(repeat.block.arguments)):
        if port in carried:
            continue
        given = [call.inputs[port] for call in calls if call.inputs[port] is not None]
        if any(operand in made for operand in given):
            return None  # it looks back further than one call
        alike = all(_same(given[0], operand) for operand in given[1:]) if given else True
        (consts if alike else xs).append(port)
    if any(calls[0].inputs[port] in made for port in carried):
        return None
    return Loop(
        repeat=repeat,
        calls=calls,
        consts=tuple(consts),
        carries=tuple(carried.items()),
        xs=tuple(xs),
        at_once=not carried and bool(xs) and is_elementwise(repeat.block.equations),
    )


def _same(a: Operand | None, b: Operand | None) -> bool:
    if isinstance(a, Literal) and isinstance(b, Literal):
        return a.key == b.key
    return a is b


def element_sources(loop: Loop) -> Sources:
    """Returns where the results of a loop's calls are found once it has run."""
    return {
        value: ((loop, number), place)
        for place, call in enumerate(loop.calls)
        for number, value in enumerate(call.outputs)
    }

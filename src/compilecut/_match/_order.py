"""The order in which a program runs once some of its equations are calls of a block.

A call needs all its inputs at once and gives its outputs at once. Equations between two parts of a
block move before or behind it, where the data allow; if they don't, there is no order, and the
repeats at hand are not calls of a function.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from .._jaxpr import Operand, Program, Value
from ._repeat import Call, FoundRepeat

# An equation's position, or calls that run at once. Whoever asks says what a group is.
Step = int | tuple[Call, ...]


def order(
    program: Program, same: dict[Operand, Operand], groups: Sequence[tuple[Call, ...]]
) -> list[Step] | None:
    """Returns what to do, in order, leaving out what nobody needs; `None` if it goes in circles.

    Args:
        program: the program.
        same: values that are replaced by others.
        groups: calls that stand for some of its equations; those of a group run as one step.
    """
    return _Graph(program, same, groups).sort()


def undivided(calls: Sequence[Call]) -> bool:
    """Says whether nothing else stands between the equations of some calls.

    If that holds for all steps of a program, they have an order: that of the program. One that is
    divided may have to run between the equations of another, so then it doesn't go without saying.
    """
    first = min(call.positions[0] for call in calls)
    last = max(call.positions[-1] for call in calls)
    return last - first + 1 == sum(len(call.positions) for call in calls)


def ordered(program: Program, repeats: Sequence[FoundRepeat]) -> bool:
    """Says whether a program can be run with these repeats as calls, one by one."""
    same = {old: new for repeat in repeats for old, new in repeat.shared.items()}
    return can_run(program, same, [(call,) for repeat in repeats for call in repeat.calls])


def can_run(
    program: Program, same: dict[Operand, Operand], groups: Sequence[tuple[Call, ...]]
) -> bool:
    """Says whether there is an `order`."""
    return all(map(undivided, groups)) or order(program, same, groups) is not None


class _Graph:
    def __init__(
        self, program: Program, same: dict[Operand, Operand], groups: Sequence[tuple[Call, ...]]
    ):
        self._program = program
        self._same = same
        self._steps: list[Step] = []
        self._inputs: list[list[Operand]] = []
        self._places: list[int] = []
        self._maker: dict[Operand, int] = {}
        taken = {position for group in groups for call in group for position in call.positions}
        for group in groups:
            inputs = [v for call in group for v in call.inputs if v is not None]
            outputs = [value for call in group for value in call.outputs]
            self._add(group, inputs, outputs, max(call.positions[-1] for call in group))
        for position, eqn in enumerate(program.equations):
            if position not in taken:
                self._add(position, eqn.inputs, eqn.outputs, position)

    def _add(
        self, step: Step, inputs: Iterable[Operand], outputs: Iterable[Value], place: int
    ) -> None:
        for value in outputs:
            self._maker[value] = len(self._steps)
        self._steps.append(step)
        self._inputs.append(list(inputs))
        self._places.append(place)

    def _needs(self, operands: Iterable[Operand]) -> set[int]:
        makers = (self._maker.get(_follow(self._same, operand)) for operand in operands)
        return {maker for maker in makers if maker is not None}

    def sort(self) -> list[Step] | None:
        needs = [self._needs(inputs) for inputs in self._inputs]
        for step, group in enumerate(self._steps):
            if not isinstance(group, int) and len(group) > 1:
                needs[step].discard(step)  # one call of a loop feeds the next
        effects = self._effects()
        for before, after in itertools.pairwise(effects):
            needs[after].add(before)
        live = self._live(needs, effects)
        waiting = {step: len(needs[step]) for step in live}
        followers: dict[int, list[int]] = defaultdict(list)
        for step in live:
            for maker in needs[step]:
                followers[maker].append(step)
        ready = [(self._places[step], step) for step in live if not waiting[step]]
        heapq.heapify(ready)
        done: list[Step] = []
        while ready:
            _, step = heapq.heappop(ready)
            done.append(self._steps[step])
            for follower in followers[step]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready, (self._places[follower], follower))
        return done if len(done) == len(live) else None

    def _effects(self) -> list[int]:
        """Steps with effects, in the order of the program: that order is kept."""
        steps = [
            (step, number)
            for number, step in enumerate(self._steps)
            if isinstance(step, int) and self._program.equations[step].effects
        ]
        return [number for _, number in sorted(steps)]

    def _live(self, needs: list[set[int]], effects: list[int]) -> set[int]:
        live: set[int] = set()
        queue = [*self._needs(self._program.outputs), *effects]
        while queue:
            step = queue.pop()
            if step not in live:
                live.add(step)
                queue.extend(needs[step])
        return live


def _follow(same: dict[Operand, Operand], operand: Operand) -> Operand:
    while operand in same:
        operand = same[operand]
    return operand

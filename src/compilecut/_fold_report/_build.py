"""From a plan to a report."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._jaxpr import Equation, Operand
from .._match import FoundRepeat, Loop, as_loops, element_sources, pieces
from .._plan import Plan, UnitCall
from ._count import compiled_equations
from ._data import FoldedRepeat, FoldReport, FoldSkip, Setting
from ._lines import block_line, is_gradient
from ._near import compare, near_misses
from ._skips import cost_skip, effect_skip, mismatch_skip, near_skip


def report(name: str, plan: Plan, written: Any, folded: Any, setting: Setting) -> FoldReport:
    """Returns the report of a plan.

    Args:
        name: of the function.
        plan: its plan.
        written: the function as a closed jaxpr.
        folded: the folded function as a closed jaxpr.
        setting: what the plan was made under.
    """
    before = compiled_equations(written.jaxpr)
    after = compiled_equations(folded.jaxpr) if plan.folds else before
    tour = _Tour(setting)
    repeats = tuple(sorted(tour.repeats(plan, top=True), key=lambda r: -r.saved))
    skips = sorted(tour.skips, key=lambda skip: -skip.equations)
    return FoldReport(
        name=name,
        repeats=repeats,
        skips=tuple(skips),
        equations=before,
        equations_left=after,
        packed=bool(setting.packed),
        notes=tuple(_notes(setting)),
    )


def _notes(setting: Setting) -> Iterator[str]:
    if not setting.units and setting.form != "scan":
        yield (
            "Blocks are not called as units here: arrays lie on several devices, or this XLA "
            "doesn't keep calls apart. Loops are used where they pay."
        )


class _Tour:
    """Walks through a plan, the plans of its blocks, and those inside its equations, each once."""

    def __init__(self, setting: Setting):
        self._setting = setting
        self._seen: set[int] = set()
        self.skips: list[FoldSkip] = []

    def repeats(self, plan: Plan, top: bool = False) -> Iterator[FoldedRepeat]:
        """Yields what is folded in a plan, with what is folded inside."""
        self._seen.add(id(plan))
        view = _View(plan, self._setting if top else None)
        for repeat in plan.repeats:
            steps = view.steps_of(repeat)
            if steps:
                yield from self._forms(plan, repeat, steps, view)
            else:
                self.skips.append(cost_skip(repeat, self._setting))
        self._look_for_skips(plan, view)
        for inner in _inner_plans(plan):
            if id(inner) not in self._seen:
                yield from self.repeats(inner)

    def _forms(
        self, plan: Plan, repeat: FoundRepeat, steps: Sequence[UnitCall | Loop], view: "_View"
    ) -> Iterator[FoldedRepeat]:
        block = plan.blocks[repeat.key]
        inside = () if id(block) in self._seen else tuple(self.repeats(block))
        loops = [step for step in steps if isinstance(step, Loop)]
        calls = [step for step in steps if isinstance(step, UnitCall)]
        if calls:
            yield self._unit(repeat, len(calls), inside)
        for loop in loops:
            yield self._loop(loop, view, inside)

    def _unit(self, repeat: FoundRepeat, n: int, inside: Any) -> FoldedRepeat:
        loops = as_loops(repeat, lambda _: None, 2)
        carried = max((len(loop.carries) for loop in loops), default=0)
        shared = min((len(loop.consts) for loop in loops), default=0)
        asked = self._setting.form == "unit"
        return FoldedRepeat(
            **_common(repeat, inside),
            n=n,
            form="unit",
            why="as asked" if asked else "arrays live apart; a call copies none",
            carried=carried,
            stacked=len(repeat.block.arguments) - carried - shared,
            ready=0,
            shared=shared,
            bytes_stacked=0,
            cut=0,
        )

    def _loop(self, loop: Loop, view: "_View", inside: Any) -> FoldedRepeat:
        ready = [port for port in loop.xs if view.is_ready(loop, port)]
        apart = [loop.repeat.block.arguments[port] for port in loop.xs if port not in ready]
        return FoldedRepeat(
            **_common(loop.repeat, inside),
            n=len(loop.calls),
            form="batch" if loop.at_once else "scan",
            why=self._why(loop, len(ready)),
            carried=len(loop.carries),
            stacked=len(loop.xs),
            ready=len(ready),
            shared=len(loop.consts),
            bytes_stacked=len(loop.calls) * sum(_bytes(value.aval) for value in apart),
            cut=view.cut(loop),
        )

    def _why(self, loop: Loop, ready: int) -> str:
        if not loop.xs:
            return "nothing has to be stacked"
        if ready == len(loop.xs):
            return "all it reads stands in stacks"
        if 2 * ready >= len(loop.xs):
            return f"{ready} of {len(loop.xs)} inputs stand in stacks"
        if self._setting.form == "scan":
            return "as asked"
        return "it can't be a unit here, and it saves more than stacking costs"

    # --- what stays as written

    def _look_for_skips(self, plan: Plan, view: "_View") -> None:
        told: set[Equation] = set()
        for repeat in plan.repeats:
            for near in near_misses(plan, repeat):
                if not told.intersection(near.equations):
                    self._add(near_skip(repeat, near))
                    told.update(near.equations)
        for one, other in _at_one_place(plan.repeats):
            near = compare(one.block.equations, other.block.equations, len(other.calls))
            if near is not None:
                self._add(near_skip(one, near))
        for mismatch in plan.mismatches:
            if mismatch.other in view.written:
                self._add(mismatch_skip(mismatch))
        effects = [eqn for eqn in view.written if eqn.effects]
        if effects and plan.repeats:
            self._add(effect_skip(effects))

    def _add(self, skip: FoldSkip) -> None:
        same = (skip.reason, skip.detail, skip.lines)
        if all((old.reason, old.detail, old.lines) != same for old in self.skips):
            self.skips.append(skip)


def _inner_plans(plan: Plan) -> Iterator[Plan]:
    for inner in plan.inner.values():
        for item in inner.values():
            yield from (p for p in (item if isinstance(item, list) else [item]) if p is not None)


def _common(repeat: FoundRepeat, inside: tuple[FoldedRepeat, ...]) -> dict[str, Any]:
    return {
        "where": block_line(repeat.block.equations),
        "gradient": is_gradient(repeat.block.equations),
        "equations": repeat.weight,
        "completed": repeat.completed,
        "inside": inside,
    }


class _View:
    """A plan's steps, and which values stand in stacks.

    Attributes:
        written: the equations that stay as written.
    """

    def __init__(self, plan: Plan, setting: Setting | None):
        self._plan = plan
        self.written = {step for step in plan.steps if isinstance(step, Equation)}
        arguments = plan.program.arguments
        self._sources: dict[Any, tuple[object, int]] = {}
        for place, source in (setting.packed if setting else {}).items():
            self._sources[arguments[place]] = source
        for value, piece in pieces(plan.program.equations).items():
            self._sources[value] = ((piece.whole, piece.size), piece.place)
        for step in plan.steps:
            if isinstance(step, Loop):
                self._sources.update(self._results(step))
        kept = setting.kept if setting else frozenset()
        self._alone = set(_read_alone(plan, kept))

    def _results(self, loop: Loop) -> dict[Any, tuple[object, int]]:
        """Returns where the results of a loop stand: in the order in which its blocks run."""
        sources = element_sources(loop)
        if loop.carries:
            return sources
        runs_at = {call: place for place, call in enumerate(self._agreed(loop))}
        return {
            value: (stack, runs_at.get(place, place)) for value, (stack, place) in sources.items()
        }

    def steps_of(self, repeat: FoundRepeat) -> list[UnitCall | Loop]:
        """Returns the steps that a repeat became."""
        steps = (step for step in self._plan.steps if not isinstance(step, Equation))
        return [step for step in steps if step.repeat is repeat]

    def is_ready(self, loop: Loop, port: int) -> bool:
        """Says whether what a loop reads through a port stands in one stack, in its order."""
        sources = self._sources_of(loop, port)
        if not sources or None in sources or len({stack for stack, _ in sources}) > 1:
            return False
        order = [place for _, place in sources]
        if not loop.carries:  # it runs in the order in which most of its stacks stand
            order = [order[i] for i in self._agreed(loop) if i < len(order)]
        step = 1 if order[-1] >= order[0] else -1
        return order == list(range(order[0], order[0] + step * len(order), step))

    def _agreed(self, loop: Loop) -> list[int]:
        """Returns the order of independent blocks in which most of what they read rises."""
        votes: Counter[tuple[int, ...]] = Counter()
        for port in loop.xs:
            sources = self._sources_of(loop, port)
            if len(sources) == len(loop.calls) and None not in sources:
                places = [place for _, place in sources]
                votes[tuple(sorted(range(len(places)), key=places.__getitem__))] += 1
        return list(votes.most_common(1)[0][0]) if votes else list(range(len(loop.calls)))

    def _sources_of(self, loop: Loop, port: int) -> list[Any]:
        given = [self._resolve(call.inputs[port]) for call in loop.calls]
        return [self._sources.get(operand) for operand in given if operand is not None]

    def cut(self, loop: Loop) -> int:
        """Counts the results of a loop that something needs alone."""
        carried = {number for _, number in loop.carries}
        return sum(
            value in self._alone
            for call in loop.calls
            for number, value in enumerate(call.outputs)
            if not (call is loop.calls[-1] and number in carried)
        )

    def _resolve(self, operand: Operand | None) -> Operand | None:
        shared: Mapping[Any, Operand] = self._plan.shared
        while operand in shared:
            operand = shared[operand]
        return operand


def _read_alone(plan: Plan, kept: frozenset[int]) -> Iterator[Operand]:
    """Yields what is read as an array of its own, not as a part of a stack."""
    for place, operand in enumerate(plan.program.outputs):
        if place not in kept:
            yield operand
    for step in plan.steps:
        if isinstance(step, Equation):
            yield from step.inputs
        elif isinstance(step, UnitCall):
            yield from (operand for operand in step.call.inputs if operand is not None)
        else:
            ports = [*step.consts, *(port for port, _ in step.carries)]
            first = step.calls[0]
            yield from (v for port in ports if (v := first.inputs[port]) is not None)


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


def _at_one_place(
    repeats: Sequence[FoundRepeat],
) -> Iterator[tuple[FoundRepeat, FoundRepeat]]:
    """Yields pairs of repeats that stand at the same lines: more blocks first."""
    places: dict[Any, list[FoundRepeat]] = {}
    for repeat in sorted(repeats, key=lambda r: -len(r.calls)):
        equations = repeat.block.equations
        places.setdefault((block_line(equations), is_gradient(equations)), []).append(repeat)
    for (where, _), group in places.items():
        if where:
            yield from ((group[0], other) for other in group[1:])

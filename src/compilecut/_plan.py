"""Choosing: which of the repeats that were found are folded, and in which form.

The unit of cost is one equation as XLA compiles it. Calling a block instead of writing it out saves
its equations and costs a little for each thing passed in or out.
"""

import contextlib
import dataclasses
import gc
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal

from jax.extend import core as jex_core
from jax.extend.core import primitives as prim

from . import _compat
from ._jaxpr import (
    Equation,
    Operand,
    Program,
    call_effects,
    flatten,
    live_equations,
    sub_jaxprs,
)
from ._match import (
    Call,
    FoundRepeat,
    Loop,
    Mismatch,
    Piece,
    Source,
    Sources,
    as_loops,
    can_run,
    element_sources,
    find,
    only_moves,
    order,
    pieces,
)
from ._units import known_sharded, opens, unit_support

Form = Literal["auto", "unit", "scan", "batch"]

# What one argument or result of one call costs, in equations.
_PER_OPERAND = 0.25
# What one element costs that is put into a stack or cut out of one, in equations.
_PER_ELEMENT = 1
# Repeats that save fewer equations than this are left alone.
_WORTH_A_LOOK = 8


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class UnitCall:
    """One call of a block.

    Attributes:
        repeat: the repeat it is of.
        call: the call.
    """

    repeat: FoundRepeat
    call: Call


Step = Equation | UnitCall | Loop
Chosen = dict[tuple[Call, ...], UnitCall | Loop]


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Plan:
    """How a program runs, folded.

    Attributes:
        program: as written.
        steps: what to do, in order: equations, calls of folded blocks, loops.
        shared: values that are the same as another, by the value to be replaced.
        wanted: values that some step takes, other than from the call before in its loop.
        blocks: the plan of each block, by its key.
        repeats: what was folded in this program itself, most saved first.
        pieces: values that are pieces of an array over which a loop runs.
        inner: plans of programs inside equations, by equation and parameter.
        mismatches: blocks that look alike and are not.
    """

    program: Program
    steps: tuple[Step, ...]
    shared: dict[Operand, Operand]
    wanted: frozenset[Operand]
    blocks: dict[Hashable, "Plan"]
    repeats: tuple[FoundRepeat, ...]
    pieces: dict[Operand, Piece]
    inner: dict[Equation, dict[str, Any]]
    mismatches: tuple[Mismatch, ...]

    @property
    def folds(self) -> bool:
        """Whether anything is folded, here or deeper."""
        return bool(self.repeats or self.inner)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user chose.

    Attributes:
        form: "auto", "unit", "scan" or "batch".
        min_blocks: how many blocks make a repeat.
    """

    form: Form
    min_blocks: int


# Elements of stacks that come in as arguments: (stack, place) by position of the argument.
Stacked = dict[int, tuple[Any, int]]


class Planner:
    """Plans programs; jaxprs that occur many times are planned once."""

    def __init__(self, options: Options, units: bool = True):
        self._options = options
        self._units = units
        self._jaxprs: dict[int, tuple[Any, Plan | None]] = {}
        self._blocks: dict[Hashable, Plan] = {}

    def plan(self, closed: Any, stacked: Stacked | None = None) -> Plan:
        """Plans a closed jaxpr, some of whose arguments may come in stacks."""
        with _no_collection():
            program = flatten(closed, keep_calls=self._options.min_blocks)
            return self.plan_program(program, stacked or {})

    def plan_program(self, program: Program, stacked: Stacked) -> Plan:
        """Plans a program."""
        program = dataclasses.replace(program, equations=_needed(program))
        sources: Sources = {program.arguments[i]: place for i, place in stacked.items()}
        found = find(program, self._options.min_blocks, worth, sources)
        shared = {k: v for repeat in found.repeats for k, v in repeat.shared.items()}
        steps = self._choose(program, found.repeats, shared, sources)
        at_once = {s.repeat.key for s in steps if isinstance(s, Loop) and s.at_once}
        for repeat in found.repeats:
            if repeat.key not in self._blocks:
                # What runs on whole stacks gains nothing from loops in it.
                plan = as_written if repeat.key in at_once else self.plan_program
                self._blocks[repeat.key] = plan(repeat.block, {})
        equations = [step for step in steps if isinstance(step, Equation)]
        return Plan(
            program=program,
            steps=tuple(steps),
            shared=shared,
            wanted=_wanted(program, steps, shared),
            blocks=self._blocks,
            repeats=tuple(found.repeats),
            pieces=_walked(program, steps),
            inner={eqn: plans for eqn in equations if (plans := self._inner(eqn))},
            mismatches=tuple(found.mismatches),
        )

    # --- forms

    def _choose(
        self,
        program: Program,
        repeats: Sequence[FoundRepeat],
        shared: dict[Operand, Operand],
        sources: Sources,
    ) -> list[Step]:
        """Gives each repeat its form. Loops come in the order of the program, sources first."""
        chosen: Chosen = {}
        sources = dict(sources)
        for value, piece in pieces(program.equations).items():
            sources[value] = ((piece.whole, piece.size), piece.place)
        for repeat in sorted(repeats, key=lambda r: r.calls[0].positions[0]):
            for piece in self._forms(program, repeat, shared, chosen, sources.get):
                chosen[_calls_of(piece)] = piece
                if isinstance(piece, Loop):
                    sources.update(element_sources(piece))
        steps = order(program, shared, list(chosen))
        assert steps is not None, "each repeat was accepted only if there was an order"
        return [program.equations[s] if isinstance(s, int) else chosen[s] for s in steps]

    def _forms(
        self,
        program: Program,
        repeat: FoundRepeat,
        shared: dict[Operand, Operand],
        chosen: Chosen,
        source: Source,
    ) -> Sequence[UnitCall | Loop]:
        """Returns what the calls of a repeat become; calls that are left out stay as written."""
        form = self._options.form
        unit = form != "scan" and self._can_be_unit(repeat)
        loops = [] if form == "unit" and unit else self._loops(repeat, source, must=not unit)
        if loops and self._can_run(program, shared, chosen, loops):
            return loops
        units = [UnitCall(repeat=repeat, call=call) for call in repeat.calls]
        if unit and unit_pays(repeat) and self._can_run(program, shared, chosen, units):
            return units
        return []

    def _can_be_unit(self, repeat: FoundRepeat) -> bool:
        return self._units and opens(repeat.block.equations)

    def _loops(self, repeat: FoundRepeat, source: Source, *, must: bool) -> list[Loop]:
        """Returns the loops that pay; what isn't in stacks yet is stacked only if it must be."""
        form = self._options.form
        loops = as_loops(repeat, source, self._options.min_blocks)
        if form == "batch":
            loops = [loop for loop in loops if not loop.carries]
        elif form != "auto":  # a unit where there are none, or a scan: never on whole stacks
            loops = [dataclasses.replace(loop, at_once=False) for loop in loops]
        must = must or form == "batch"
        return [
            loop
            for loop in loops
            if reads_stacks(loop, source) or (must and stacking_pays(loop, source))
        ]

    def _can_run(
        self,
        program: Program,
        shared: dict[Operand, Operand],
        chosen: Chosen,
        pieces: Sequence[UnitCall | Loop],
    ) -> bool:
        """Says whether these steps can run beside those chosen before."""
        return can_run(program, shared, [*chosen, *map(_calls_of, pieces)])

    # --- programs inside equations

    def _inner(self, eqn: Equation) -> dict[str, Any]:
        """Returns the plans of the jaxprs inside an equation that can be replaced, if any fold."""
        plans: dict[str, Any] = {}
        for name in _INNER.get(eqn.primitive, ()):
            param = eqn.params[name]
            many = isinstance(param, tuple)
            planned = [self._jaxpr(jaxpr) for jaxpr in (param if many else (param,))]
            if any(planned):
                plans[name] = planned if many else planned[0]
        return plans

    def _jaxpr(self, jaxpr: Any) -> Plan | None:
        if id(jaxpr) not in self._jaxprs:
            plan = self.plan(jaxpr)
            self._jaxprs[id(jaxpr)] = (jaxpr, plan if plan.folds else None)
        return self._jaxprs[id(jaxpr)][1]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Holds the garbage collector back: planning makes many small objects and no cycles of note.

    On a program of 32,000 equations the collector would take a third of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# The parameters that hold programs which may be replaced by equal ones.
_INNER: dict[jex_core.Primitive, tuple[str, ...]] = {
    prim.jit_p: ("jaxpr",),
    prim.remat_p: ("jaxpr",),
    prim.scan_p: ("jaxpr",),
    prim.while_p: ("body_jaxpr",),
    prim.cond_p: ("branches",),
}


def _calls_of(piece: UnitCall | Loop) -> tuple[Call, ...]:
    return (piece.call,) if isinstance(piece, UnitCall) else piece.calls


def _wanted(
    program: Program, steps: Sequence[Step], shared: dict[Operand, Operand]
) -> frozenset[Operand]:
    wanted: set[Operand] = set(program.outputs)
    for step in steps:
        if isinstance(step, Equation):
            wanted.update(step.inputs)
        elif isinstance(step, UnitCall):
            wanted.update(v for v in step.call.inputs if v is not None)
        else:
            carried = {port for port, _ in step.carries}
            for place, call in enumerate(step.calls):
                for port, operand in enumerate(call.inputs):
                    if operand is not None and (place == 0 or port not in carried):
                        wanted.add(operand)
    wanted.update(shared.values())
    return frozenset(wanted)


def _walked(program: Program, steps: Sequence[Step]) -> dict[Operand, Piece]:
    """Returns the pieces of arrays that loops take as they are."""
    read = {operand for step in steps if isinstance(step, Loop) for operand in _elements(step)}
    found = pieces(program.equations)
    walked = {piece.whole for value, piece in found.items() if value in read}
    # Other pieces of these arrays too: a piece is cut out only if something wants it alone.
    return {value: piece for value, piece in found.items() if piece.whole in walked}


def _needed(program: Program) -> list[Equation]:
    effects = set(map(id, call_effects(program.equations)))
    if not effects:
        return live_equations(program)
    kept = [eqn for eqn in program.equations if id(eqn) in effects]
    inputs = [v for eqn in kept for v in eqn.inputs]
    wider = dataclasses.replace(program, outputs=(*program.outputs, *inputs))
    live = set(map(id, live_equations(wider))) | effects
    return [eqn for eqn in program.equations if id(eqn) in live]


def units_serve(closed: Any, arrays: Sequence[Any]) -> bool:
    """Says whether blocks of a program may be units on these arrays.

    Not where values are laid out over several devices: inside a unit the partitioner doesn't see
    how, and gathers them. Not where XLA doesn't know units.
    """
    return unit_support() and not known_sharded(arrays) and not _places(closed)


def _places(jaxpr: Any) -> bool:
    return any(
        eqn.primitive in _compat.PLACING or any(map(_places, sub_jaxprs(eqn.params)))
        for eqn in jaxpr.eqns
    )


def worth(repeat: FoundRepeat) -> bool:
    """Says whether a repeat could pay in some form."""
    return repeat.saved >= _WORTH_A_LOOK and not only_moves(repeat.block.equations)


def unit_pays(repeat: FoundRepeat) -> bool:
    """Says whether calling a block costs less than writing it out."""
    passed = len(repeat.block.arguments) + len(repeat.block.outputs)
    return repeat.saved > len(repeat.calls) * (1 + passed * _PER_OPERAND) + repeat.weight


def reads_stacks(loop: Loop, source: Source) -> bool:
    """Says whether most of what a loop reads already stands in stacks."""
    elements = _elements(loop)
    stacked = sum(source(operand) is not None for operand in elements)
    return 2 * stacked >= len(elements)


def stacking_pays(loop: Loop, source: Source) -> bool:
    """Says whether a loop saves more than it costs to stack what it reads and cut what it gives."""
    apart = sum(source(operand) is None for operand in _elements(loop))
    results = len(loop.calls) * len(loop.repeat.block.outputs)
    saved = (len(loop.calls) - 1) * loop.repeat.weight
    return saved > _PER_ELEMENT * (apart + results)


def _elements(loop: Loop) -> list[Operand]:
    given = (call.inputs[port] for port in loop.xs for call in loop.calls)
    return [operand for operand in given if operand is not None]


def as_written(program: Program, _: Stacked) -> Plan:
    """Returns the plan that folds nothing."""
    return Plan(
        program=program,
        steps=tuple(program.equations),
        shared={},
        wanted=frozenset(),
        blocks={},
        repeats=(),
        pieces={},
        inner={},
        mismatches=(),
    )

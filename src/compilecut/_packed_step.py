"""One planned step on a packed state."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from ._arguments import Layout
from ._check import Rows, Term, Terms, first_difference
from ._emit import Element, Emitter, Stack, alone, collect
from ._plan import Plan
from ._state_groups import Group

State = dict[str, Any]


@dataclasses.dataclass(eq=False)
class PackedStep:
    """A planned step.

    Attributes:
        plan: the plan.
        groups: the state's groups.
        singles: the other leaves of the state: names and positions.
        state_size: how many arrays the state has.
        others: the layout of the other results.
        more: whether the function returns more than its state.
        written: the function as a closed jaxpr.
        units: whether blocks may be units.
    """

    plan: Plan
    groups: tuple[Group, ...]
    singles: list[tuple[str, int]]
    state_size: int
    others: Layout
    more: bool
    written: Any
    units: bool

    @functools.cached_property
    def jit(self) -> Any:
        """The step, compiled, which takes over the state's buffers."""
        return jax.jit(self.run, donate_argnums=0)

    @functools.cached_property
    def _emitter(self) -> Emitter:
        return Emitter()

    def run(self, state: State, *rest: Any) -> tuple[State, list[Any]]:
        """Computes the next state and the other results."""
        stacks = {group.name: Stack(state[group.name]) for group in self.groups}
        new, others = self._run(stacks, state, rest)
        return {name: value.array for name, value in new.items()}, others

    def _run(self, stacks: dict[str, Stack], state: State, rest: Sequence[Any]):
        arguments: list[Any] = [None] * self.state_size
        for group in self.groups:
            for place, leaf in enumerate(group.leaves):
                arguments[leaf] = Element(stacks[group.name], place)
        for name, leaf in self.singles:
            arguments[leaf] = state[name]
        results = self._emitter.run(self.plan, [*arguments, *rest])
        avals = self.plan.program.arguments
        new = {
            group.name: collect([results[i] for i in group.leaves], avals[group.leaves[0]].aval)
            for group in self.groups
        }
        new |= {name: Stack(alone(results[leaf])) for name, leaf in self.singles}
        return new, [alone(value) for value in results[self.state_size :]]

    def difference(self, original: Any) -> str | None:
        """Says where the packed step departs from the function as written; nothing if nowhere."""
        names = sorted(self._examples()[0])

        def inputs(given: list[Term]) -> list[Term]:
            terms = {name: given[leaf] for name, leaf in self.singles}
            for group in self.groups:
                terms[group.name] = Rows(tuple(given[leaf] for leaf in group.leaves))
            return [*(terms[name] for name in names), *given[self.state_size :]]

        def outputs(terms: Terms, found: list[Term]) -> list[Term]:
            new = dict(zip(names, found, strict=False))
            leaves: list[Any] = [None] * self.state_size
            for group in self.groups:
                for place, leaf in enumerate(group.leaves):
                    leaves[leaf] = terms.element(new[group.name], place)
            for name, leaf in self.singles:
                leaves[leaf] = new[name]
            return [*leaves, *found[len(names) :]]

        return first_difference(original, self.folded(), inputs, outputs)

    def folded(self) -> Any:
        """Returns the packed step as a closed jaxpr, with the state's arrays in order of name."""
        state, rest = self._examples()
        return jax.make_jaxpr(self.run)(state, *rest)

    def _examples(self) -> tuple[State, list[Any]]:
        """Returns types of a packed state and of the other arguments."""
        arguments = self.plan.program.arguments
        state = {name: arguments[leaf].aval for name, leaf in self.singles}
        for group in self.groups:
            aval = arguments[group.leaves[0]].aval
            state[group.name] = jax.ShapeDtypeStruct((len(group.leaves), *aval.shape), aval.dtype)
        return state, [v.aval for v in arguments[self.state_size :]]

    def taken_apart(self, groups: Sequence[Group]) -> list[Group]:
        """Returns the groups that the step cuts into single arrays, or puts together from them."""
        apart: list[Group] = []

        def trial(state: State, *rest: Any) -> Any:
            stacks = {group.name: Stack(state[group.name]) for group in self.groups}
            new, others = self._run(stacks, state, rest)
            for group in groups:
                cuts = stacks[group.name].cuts
                joints = new[group.name].joints
                if 2 * max(cuts, joints) > len(group.leaves):
                    apart.append(group)
            return others

        state, rest = self._examples()
        jax.eval_shape(trial, state, *rest)
        return apart

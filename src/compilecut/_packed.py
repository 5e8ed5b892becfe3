"""Packed state: what a step is called with again and again stays stacked between the calls.

Stacking the leaves of a train state in each step, and cutting them out again, costs n copies and n
slices per leaf; a program with one output per leaf costs compile time for each. Here each group of
leaves is one array from call to call. What is one layer's is cut out when `unpack` is asked.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from . import _compat, _errors
from ._arguments import Layout, is_array, split
from ._check import Rows, Term, Terms, first_difference
from ._emit import Element, Emitter, Stack, alone, collect
from ._fold_report import FoldReport, Setting, report
from ._plan import Options, Plan, Planner, units_serve
from ._stacking import empty, stacked, take, write
from ._state_groups import Group, state_groups

State = dict[str, Any]


class Packed:
    """A folded step whose state is held in stacks. Made by `Folded.packed`.

    A packed state is a plain dict of arrays, by path: `"0/params/Block_*/kernel"` holds the kernels
    of all blocks along a new leading axis, `"0/params/Embed_0/embedding"` one leaf as it is. The
    number in front is that of the argument. Python numbers in a state become arrays.
    Checkpoint it as any dict.
    """

    def __init__(
        self,
        function: Any,
        name: str,
        options: Options,
        check: bool,
        args: Any,
        state: int,
    ):
        self._function = function  # (arrays, layout) -> (closed jaxpr, layout of the results)
        self._name = name
        self._options = options
        self._check = check
        self._count = state
        start = _as_arrays(args[:state])
        arrays, self._layout = split(start)
        self._avals = [jax.typeof(array) if not _is_spec(array) else array for array in arrays]
        self._paths = _paths(start)
        types = [(tuple(a.shape), a.dtype) for a in self._avals]
        self._groups = state_groups(self._paths, types, options.min_blocks)
        self._steps: dict[int, tuple[Any, _Step]] = {}
        rest, layout = split(tuple(args[state:]))
        self._rest = ([a if _is_spec(a) else jax.typeof(a) for a in rest], layout)
        self._settle(args)

    # --- the step

    def __call__(self, state: State, *rest: Any) -> Any:
        """Runs the step.

        Args:
            state: a packed state. Its buffers are donated: use the returned one from here on.
            rest: the function's other arguments.

        Returns:
            `(next state, *other results)`; the next state alone if the function returns no more.
        """
        state = self._checked(state)
        arrays, layout = split(rest)
        step = self._step(arrays, layout)
        traced = _compat.tracing() or any(
            isinstance(leaf, Tracer) for leaf in (*state.values(), *arrays)
        )
        new, others = (step.run if traced else step.jit)(state, *arrays)
        return self._results(new, others, step)

    def lower(self, state: State, *rest: Any) -> Any:
        """Lowers the step for a state and arguments, which may be `jax.ShapeDtypeStruct`s."""
        arrays, layout = split(rest)
        return self._step(arrays, layout).jit.lower(self._checked(state), *arrays)

    def report(self, *rest: Any) -> FoldReport:
        """Returns what is folded in the step, what isn't, and why.

        Args:
            rest: the function's other arguments; without any, those that `packed` was given.
        """
        arrays, layout = split(rest) if rest else self._rest
        step = self._step(arrays, layout)
        setting = Setting(
            form=self._options.form,
            units=step.units,
            packed=_places(step.groups),
            kept=frozenset(leaf for group in step.groups for leaf in group.leaves),
        )
        return report(self._name, step.plan, step.written, step.folded(), setting)

    def _results(self, new: State, others: list[Any], step: "_Step") -> Any:
        values = step.others.join(others)
        return (new, *values) if step.more else new

    # --- the layouts

    def pack(self, *state: Any) -> State:
        """Returns a packed state from the state's arguments as the function takes them.

        Args:
            state: the arguments. The `Stacks` of `stacked_init(..., fan_out="stacks")` may stand
                for one of them.

        Raises:
            InputError: another structure or type of leaf than the step was made for.
        """
        if len(state) != self._count:
            raise _errors.state_count(self._name, self._count, len(state))
        # `Stacks` lie higher up than this module: known by what they do.
        state = tuple(s.unstack() if hasattr(type(s), "unstack") else s for s in state)
        state = _as_arrays(state)
        arrays, layout = split(state)
        self._check_layout(layout, state)
        self._check_types(arrays)
        packed = {
            group.name: _stack([arrays[leaf] for leaf in group.leaves]) for group in self._groups
        }
        return packed | {self._paths[leaf]: _copy(arrays[leaf]) for leaf in self._singles}

    def unpack(self, state: State) -> Any:
        """Returns the state's arguments as the function takes them: a tuple, or the only one."""
        state = {name: _on_device(leaf) for name, leaf in self._checked(state).items()}
        arrays: list[Any] = [None] * len(self._avals)
        for group in self._groups:
            for place, leaf in enumerate(group.leaves):
                arrays[leaf] = take(state[group.name], place)
        for leaf in self._singles:
            arrays[leaf] = _copy(state[self._paths[leaf]])
        whole = self._layout.join(arrays)
        return whole[0] if self._count == 1 else whole

    @functools.cached_property
    def _grouped(self) -> frozenset[int]:
        return frozenset(leaf for group in self._groups for leaf in group.leaves)

    @property
    def _singles(self) -> list[int]:
        return [leaf for leaf in range(len(self._avals)) if leaf not in self._grouped]

    def _checked(self, state: State) -> State:
        expected = [group.name for group in self._groups]
        expected += [self._paths[leaf] for leaf in self._singles]
        if not isinstance(state, dict) or set(state) != set(expected):
            raise _errors.not_a_packed_state(self._name, expected, state)
        for name, (shape, dtype) in self._packed_types().items():
            given = state[name]
            if (tuple(given.shape), given.dtype) != (shape, dtype):
                wanted = jax.ShapeDtypeStruct(shape, dtype)
                raise _errors.other_state_type(self._name, name, wanted, given)
        return {name: state[name] for name in expected}

    def _packed_types(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        types = {self._paths[leaf]: ((), leaf) for leaf in self._singles}
        types |= {g.name: ((len(g.leaves),), g.leaves[0]) for g in self._groups}
        avals = self._avals
        return {
            name: ((*ahead, *avals[leaf].shape), avals[leaf].dtype)
            for name, (ahead, leaf) in types.items()
        }

    def _check_layout(self, layout: Layout, state: Any) -> None:
        if layout != self._layout:
            raise _errors.other_state_structure(
                self._name, _first_other_path(self._paths, _paths(state))
            )

    def _check_types(self, arrays: Sequence[Any]) -> None:
        for path, expected, given in zip(self._paths, self._avals, arrays, strict=True):
            if (tuple(given.shape), given.dtype) != (tuple(expected.shape), expected.dtype):
                raise _errors.other_state_type(self._name, path, expected, given)

    # --- planning

    def _settle(self, args: Sequence[Any]) -> None:
        """Drops the groups whose leaves the step needs one by one, until all that are left pay."""
        arrays, layout = split(tuple(args[self._count :]))
        while True:
            step = self._step(arrays, layout)
            apart = step.taken_apart(self._groups)
            if not apart:
                return
            self._groups = [group for group in self._groups if group not in apart]
            self._steps.clear()
            self.__dict__.pop("_grouped", None)

    def _step(self, arrays: list[Any], layout: Layout) -> "_Step":
        whole = _joined(self._layout, layout)
        closed, results = self._function([*self._avals, *arrays], whole)
        known = self._steps.get(id(closed))
        if known is None:
            known = (closed, self._make_step(closed, results, arrays))
            if not any(isinstance(const, Tracer) for const in closed.consts):
                self._steps[id(closed)] = known
        return known[1]

    def _make_step(self, closed: Any, results: Layout, arrays: list[Any]) -> "_Step":
        outputs, others, more = self._split_results(closed, results)
        units = units_serve(closed, arrays)
        plan = Planner(self._options, units=units).plan(closed, _places(self._groups))
        singles = [(self._paths[leaf], leaf) for leaf in self._singles]
        step = _Step(plan, tuple(self._groups), singles, outputs, others, more, closed, units)
        difference = step.difference(closed) if self._check else None
        if difference is not None:
            raise _errors.packed_did_not_check(self._name, difference)
        return step

    def _split_results(self, closed: Any, results: Layout) -> tuple[int, Layout, bool]:
        """Returns how many result arrays are state, and the layout of the others."""
        whole = results.join(closed.out_avals)
        if self._count == 1 and _split_avals((whole,))[1] == self._layout:
            state, others, more = (whole,), (), False
        elif isinstance(whole, (tuple, list)) and len(whole) >= self._count:
            state, others, more = tuple(whole[: self._count]), tuple(whole[self._count :]), True
        else:
            raise _errors.state_not_returned(self._name, self._count, whole)
        avals, layout = _split_avals(state)
        self._check_layout(layout, state)
        self._check_types(avals)
        return len(avals), _split_avals(others)[1], more


@dataclasses.dataclass(eq=False)
class _Step:
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


def _places(groups: Sequence[Group]) -> dict[int, tuple[Any, int]]:
    """Returns the stack of each leaf that stands in one, and its place there."""
    return {
        leaf: (group.stack, place) for group in groups for place, leaf in enumerate(group.leaves)
    }


def _split_avals(tree: Any) -> tuple[list[Any], Layout]:
    specs = jax.tree.map(_as_spec, tree)
    return split(specs)


def _as_spec(leaf: Any) -> Any:
    is_aval = hasattr(leaf, "weak_type") and hasattr(leaf, "shape")
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_aval else leaf


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _paths(state: Sequence[Any]) -> list[str]:
    """Returns the path of each array, no two alike: a key may hold the sign between keys."""
    leaves = jax.tree_util.tree_leaves_with_path(tuple(state))
    keystr = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    found: dict[str, None] = {}
    for path, leaf in leaves:
        if is_array(leaf) or hasattr(leaf, "weak_type"):
            name = keystr(path)
            while name in found:
                name += "'"
            found[name] = None
    return list(found)


def _first_other_path(expected: Sequence[str], given: Sequence[str]) -> str:
    missing = [path for path in expected if path not in set(given)]
    added = [path for path in given if path not in set(expected)]
    return next(iter([*missing, *added]), "")


def _as_arrays(state: Sequence[Any]) -> tuple[Any, ...]:
    """Numbers in a state change from step to step, so they are data: a step counter, say."""

    def convert(leaf: Any) -> Any:
        return jnp.asarray(leaf) if type(leaf) in (int, float, complex) else leaf

    return tuple(jax.tree.map(convert, tuple(state)))


def _joined(state: Layout, rest: Layout) -> Layout:
    """Returns the layout of `(args, kwargs)` from those of the state and the other arguments."""
    tree = jax.tree_util.treedef_tuple(
        [
            jax.tree_util.treedef_tuple([*state.tree.children(), *rest.tree.children()]),
            jax.tree.structure({}),
        ]
    )
    return Layout(tree, state.arrays + rest.arrays, state.statics + rest.statics)


def _on_device(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _copy(array: Any) -> Any:
    """The step takes over the buffers of its state: they must be nobody else's."""
    return jnp.copy(array) if isinstance(array, (jax.Array, np.ndarray)) else array


def _stack(arrays: Sequence[Any]) -> Any:
    if not all(isinstance(a, jax.Array) and not isinstance(a, Tracer) for a in arrays):
        return jnp.stack(arrays)
    first = arrays[0]
    places = {(array.sharding, array.committed) for array in arrays}
    if len(places) > 1:
        return jnp.stack(arrays)  # says itself what doesn't go together
    where = stacked(first.sharding) if first.committed else None
    stack = empty(jax.ShapeDtypeStruct((len(arrays), *first.shape), first.dtype, sharding=where))
    for place, array in enumerate(arrays):
        stack = write(stack, array, place)
    return stack

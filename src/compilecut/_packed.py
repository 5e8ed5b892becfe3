"""Packed state: what a step is called with again and again stays stacked between the calls.

Stacking the leaves of a train state in each step, and cutting them out again, costs n copies and n
slices per leaf; a program with one output per leaf costs compile time for each. Here each group of
leaves is one array from call to call. What is one layer's is cut out when `unpack` is asked.
"""

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from . import _compat, _errors
from ._arguments import Layout, is_array, split, type_of
from ._fold_report import FoldReport, Setting, report
from ._packed_step import PackedStep, State
from ._plan import Options, Planner, units_serve
from ._stacking import empty, stacked, take, write
from ._state_groups import places, state_groups
from ._units import known_sharded


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
        self._avals: list[Any] = list(map(type_of, arrays))
        self._paths = _paths(start)
        self._sharded = known_sharded(arrays)
        types = [(tuple(a.shape), a.dtype) for a in self._avals]
        self._groups = state_groups(self._paths, types, options.min_blocks)
        self._steps: dict[Hashable, PackedStep] = {}  # by all of a call that a trace depends on
        rest, layout = split(tuple(args[state:]))
        self._rest = (list(map(type_of, rest)), layout)
        self._settle(args)
        self._types = self._packed_types()

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
            packed=places(step.groups),
            kept=frozenset(leaf for group in step.groups for leaf in group.leaves),
        )
        return report(self._name, step.plan, step.written, step.folded(), setting)

    def _results(self, new: State, others: list[Any], step: PackedStep) -> Any:
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
        if not isinstance(state, dict) or state.keys() != self._types.keys():
            raise _errors.not_a_packed_state(self._name, list(self._types), state)
        for name, (shape, dtype) in self._types.items():
            given = state[name]
            if (tuple(given.shape), given.dtype) != (shape, dtype):
                wanted = jax.ShapeDtypeStruct(shape, dtype)
                raise _errors.other_state_type(self._name, name, wanted, given)
        return {name: state[name] for name in self._types}

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

    def _step(self, arrays: list[Any], layout: Layout) -> PackedStep:
        types = tuple(map(type_of, arrays))
        key = (layout, types, known_sharded(arrays), _compat.trace_context())
        if key not in self._steps:
            step = self._make_step(arrays, layout)
            if any(isinstance(const, Tracer) for const in step.written.consts):
                return step  # it closes over what another trace will not have
            self._steps[key] = step
        return self._steps[key]

    def _make_step(self, arrays: list[Any], layout: Layout) -> PackedStep:
        whole = _joined(self._layout, layout)
        closed, results = self._function([*self._avals, *arrays], whole)
        outputs, others, more = self._split_results(closed, results)
        units = units_serve(closed, arrays) and not self._sharded
        plan = Planner(self._options, units=units).plan(closed, places(self._groups))
        singles = [(self._paths[leaf], leaf) for leaf in self._singles]
        step = PackedStep(plan, tuple(self._groups), singles, outputs, others, more, closed, units)
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


def _split_avals(tree: Any) -> tuple[list[Any], Layout]:
    specs = jax.tree.map(_as_spec, tree)
    return split(specs)


def _as_spec(leaf: Any) -> Any:
    is_aval = hasattr(leaf, "weak_type") and hasattr(leaf, "shape")
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_aval else leaf


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

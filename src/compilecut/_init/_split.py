"""Cutting an init function into sites.

A site is a piece of the program that shares nothing random with the rest: usually one parameter,
or a few that come from one draw. Between the function's arguments and the sites lie the keys
(splits, `fold_in`s, slices of key arrays): integers, exact wherever they are computed, so they are
computed on the host (`_keys.py`) and never compiled n times.

Where a cut could change a bit it isn't made:

* Computations on constants alone (a scale, a mask, `sqrt(2)`) are repeated inside each site that
  uses them, because XLA folds them into the arithmetic around them. Tables of floats (a grid, an
  exponential of one) may not be folded; sites that share one stay together.
* Floating-point results are not cut: what shares one stays in one program, and so does what
  computes the same thing twice, because XLA makes it one thing. (A stack whose only use is to be
  sliced into outputs is the exception: moving data rounds nothing.)
* A draw of one element from a key written into the program may be folded while compiling; it
  stays where it is.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives as prim

from .. import _compat
from .._jaxpr import (
    Equation,
    Literal,
    Operand,
    Program,
    Value,
    is_key,
    live_equations,
    resolve,
    sub_jaxprs,
)
from ._views import View, find_views

# Key arithmetic is scalars and key arrays. Above this many elements it isn't "small".
_LARGEST_KEY_ARRAY = 1 << 22


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """Random bits that a site takes as an input.

    Attributes:
        key: the (host-computed) key or array of keys.
        shape: the shape drawn per key.
        width: bits per element.
        value: what the site's equations call the bits, of shape `(*keys, *shape)`.
        twins: other names for the same bits, where the site draws them more than once.
        equation: the draw as it was written.
    """

    key: Operand
    shape: tuple[int, ...]
    width: int
    value: Value
    equation: Equation
    twins: tuple[Value, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A piece of the init that can be computed by itself.

    Attributes:
        leaves: positions of its results among the split's `outputs`.
        equations: what computes them, in trace order.
        draws: the random bits it starts from.
        inputs: other run-time inputs: arguments, and keys or integers computed on the host.
        constants: captured arrays it uses.
        outputs: an operand per leaf.
    """

    leaves: tuple[int, ...]
    equations: tuple[Equation, ...]
    draws: tuple[Draw, ...]
    inputs: tuple[Value, ...]
    constants: tuple[Value, ...]
    outputs: tuple[Operand, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """An init function, cut.

    Attributes:
        program: the whole flattened function.
        outputs: what the sites compute: the function's flat outputs, and values behind them that
            outputs are cut from.
        views: by position in `outputs`, the function's outputs that are cut from it.
        host: the key arithmetic, in order.
        sites: the pieces.
        host_leaves: outputs that are themselves keys or counters: position and operand.
        argument_leaves: outputs that are arguments: position and argument index.
    """

    program: Program
    outputs: tuple[Operand, ...]
    views: dict[int, tuple[View, ...]]
    host: tuple[Equation, ...]
    sites: tuple[Site, ...]
    host_leaves: tuple[tuple[int, Value], ...]
    argument_leaves: tuple[tuple[int, int], ...]


def split(program: Program, may_cut: Callable[[Equation], bool], *, use_views: bool) -> Split:
    """Cuts a program into sites.

    Args:
        program: the flattened init function.
        may_cut: says of a `random_bits` equation whether its bits may be an input of the site.
        use_views: whether outputs may be cut from a larger value after it was computed.
    """
    equations = live_equations(program)
    facts = _Facts(program, equations, may_cut)
    roots = find_views(program.outputs, equations, facts.producer) if use_views else {}
    roots = {root: views for root, views in roots.items() if facts.producer[root] in facts.random}
    outputs = (*program.outputs, *roots)
    cut = {view.leaf for views in roots.values() for view in views}
    host_leaves, argument_leaves, owners = [], [], _Owners(facts)
    for position, operand in enumerate(outputs):
        if operand in facts.argument_index:
            argument_leaves.append((position, facts.argument_index[operand]))
        elif facts.is_host(operand) and not operand.aval.weak_type:
            host_leaves.append((position, operand))
        elif position not in cut:
            owners.add(position, operand)
    return Split(
        program=program,
        outputs=outputs,
        views={len(program.outputs) + i: tuple(views) for i, views in enumerate(roots.values())},
        host=tuple(equations[i] for i in sorted(facts.host)),
        sites=tuple(_site(facts, outputs, leaves) for leaves in owners.groups()),
        host_leaves=tuple(host_leaves),
        argument_leaves=tuple(argument_leaves),
    )


class _Facts:
    """What is known of each value: who makes it, whether it is key arithmetic, what it needs."""

    def __init__(self, program: Program, equations: list[Equation], may_cut):
        self.program = program
        self.equations = equations
        self.argument_index: dict[Operand, int] = {v: i for i, v in enumerate(program.arguments)}
        self.producer = {v: i for i, eqn in enumerate(equations) for v in eqn.outputs}
        self.varying = self._find_varying()
        self.host = self._find_host()
        self.cut = {
            i
            for i, eqn in enumerate(equations)
            if eqn.primitive is prim.random_bits_p and i not in self.host
            if self._key_at_hand(eqn.inputs[0]) and may_cut(eqn) and not self.folds(eqn)
        }
        self.random = self._find_random()
        self.twins = _first_of_each(equations)
        self.joining = self.random | self._find_tables()

    def is_host(self, operand: Operand) -> bool:
        return not isinstance(operand, Literal) and self.producer.get(operand) in self.host

    def _key_at_hand(self, operand: Operand) -> bool:
        return self.is_host(operand) or operand in self.argument_index

    def folds(self, eqn: Equation) -> bool:
        """Says whether XLA may compute a draw while compiling."""
        return eqn.inputs[0] not in self.varying and math.prod(eqn.outputs[0].aval.shape) <= 1

    def _find_varying(self) -> set[Operand]:
        """Values that depend on an argument."""
        varying: set[Operand] = set(self.program.arguments)
        for eqn in self.equations:
            if not varying.isdisjoint(eqn.inputs):
                varying.update(eqn.outputs)
        return varying

    def _find_host(self) -> set[int]:
        """Key arithmetic: integer equations that some key derives from, or that open a key."""
        eligible: set[Operand] = {
            v for v in (*self.program.arguments, *self.program.constants) if _is_small_integer(v)
        }
        able = []
        for index, eqn in enumerate(self.equations):
            if _is_key_arithmetic(eqn) and all(_eligible(o, eligible) for o in eqn.inputs):
                able.append(index)
                eligible.update(eqn.outputs)
        wanted: set[Operand] = set()
        host: set[int] = set()
        for index in reversed(able):
            eqn = self.equations[index]
            if _handles_keys(eqn) or not wanted.isdisjoint(eqn.outputs):
                host.add(index)
                wanted.update(eqn.inputs)
        return host

    def _find_random(self) -> set[int]:
        """Equations outside the host that depend on an argument, a key or a draw."""
        live: set[Operand] = set(self.varying)
        found = set()
        for index, eqn in enumerate(self.equations):
            if index in self.host:
                live.update(v for v in eqn.outputs if is_key(v.aval.dtype))
                continue
            if eqn.primitive is prim.random_bits_p or not live.isdisjoint(eqn.inputs):
                found.add(index)
                live.update(eqn.outputs)
        return found

    def _find_tables(self) -> set[int]:
        """Constant equations with float arrays that XLA may compute at run time."""
        uneven: set[Operand] = set(self.program.constants)  # values that aren't one number repeated
        tables = set()
        for index, eqn in enumerate(self.equations):
            if index in self.random or index in self.host:
                continue
            sources = uneven.intersection(map(resolve, eqn.inputs))
            if eqn.primitive is prim.iota_p or sources:
                uneven.update(eqn.outputs)
                # From integers to floats nothing is rounded: a mask as zeros and ones is no table.
                if any(_is_float_array(v.aval) for v in sources):
                    tables.add(index)
        return tables

    def crosses(self, operand: Operand, user: Equation | None) -> bool:
        """Says whether a host value enters a site from outside, rather than being repeated in it.

        A number that depends on no argument is a constant to XLA, which folds it: repeat it. Only
        a draw of more than one element is safe, because it hangs on a counter too.
        """
        if not self.is_host(operand) or operand in self.varying:
            return self.is_host(operand)
        return user is not None and user.primitive is prim.random_bits_p and not self.folds(user)


class _Owners:
    """Outputs grouped by what they share: a union-find over the equations."""

    def __init__(self, facts: _Facts):
        self._facts = facts
        self._parent: dict[int, int] = {i: i for i in facts.joining}
        self._leaves: dict[Any, list[int]] = {}
        for index in sorted(facts.joining):
            for operand in facts.equations[index].inputs:
                source = facts.producer.get(operand) if isinstance(operand, Value) else None
                if source in facts.joining:
                    self._parent[self._root(source)] = self._root(index)
            if facts.twins[index] in facts.joining:  # XLA makes equal equations one
                self._parent[self._root(facts.twins[index])] = self._root(index)

    def _root(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = self._parent[self._parent[index]]
            index = self._parent[index]
        return index

    def add(self, position: int, operand: Operand) -> None:
        source = self._facts.producer.get(operand) if isinstance(operand, Value) else None
        # A literal may stand for several outputs; each is a site of its own.
        owner: Any = operand if isinstance(operand, Value) else ("literal", position)
        if source in self._facts.joining:
            owner = self._root(source)
        self._leaves.setdefault(owner, []).append(position)

    def groups(self) -> Iterable[tuple[int, ...]]:
        return (tuple(leaves) for leaves in self._leaves.values())


def _first_of_each(equations: Sequence[Equation]) -> list[int]:
    """Returns for each equation the first that computes the same from the same operands."""
    numbers: dict[Operand, Hashable] = {}
    seen: dict[Hashable, int] = {}
    first = []
    for index, eqn in enumerate(equations):
        operands = tuple(_number(numbers, operand) for operand in eqn.inputs)
        # An equation without operands (an iota) is told apart by its key alone.
        first.append(seen.setdefault((eqn.key, operands), index))
        for place, value in enumerate(eqn.outputs):
            numbers[value] = (first[-1], place)
    return first


def _number(numbers: dict[Operand, Hashable], operand: Operand) -> Hashable:
    operand = resolve(operand)
    return operand.key if isinstance(operand, Literal) else numbers.get(operand, operand)


def _site(facts: _Facts, all_outputs: Sequence[Operand], leaves: tuple[int, ...]) -> Site:
    outputs = tuple(all_outputs[position] for position in leaves)
    members: set[int] = set()
    inputs: dict[Value, None] = {}
    constants: dict[Value, None] = {}
    stack: list[tuple[Operand, Equation | None]] = [(o, None) for o in reversed(outputs)]
    while stack:
        operand, user = stack.pop()
        operand = resolve(operand)
        if isinstance(operand, Literal):
            continue
        index = facts.producer.get(operand)
        if operand in facts.program.constants:
            constants[operand] = None
        elif index is None or facts.crosses(operand, user):
            inputs[operand] = None
        elif index not in members:
            members.add(index)
            if index not in facts.cut:
                eqn = facts.equations[index]
                stack.extend((o, eqn) for o in reversed(eqn.inputs))
    ordered = sorted(members)
    repeated = {value for i in ordered for value in facts.equations[i].outputs}
    return Site(
        leaves=leaves,
        equations=tuple(facts.equations[i] for i in ordered if i not in facts.cut),
        draws=_draws(facts, [i for i in ordered if i in facts.cut]),
        inputs=tuple(value for value in inputs if value not in repeated),
        constants=tuple(constants),
        outputs=outputs,
    )


def _draws(facts: _Facts, indices: list[int]) -> tuple[Draw, ...]:
    """Returns the draws of a site; the same bits drawn twice are one, as they are to XLA."""
    same: dict[int, list[Equation]] = {}
    for index in indices:
        same.setdefault(facts.twins[index], []).append(facts.equations[index])
    return tuple(
        Draw(
            key=resolve(eqn.inputs[0]),
            shape=tuple(eqn.params["shape"]),
            width=eqn.params["bit_width"],
            value=eqn.outputs[0],
            equation=eqn,
            twins=tuple(twin.outputs[0] for twin in twins),
        )
        for eqn, *twins in same.values()
    )


def _is_float_array(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact) and math.prod(aval.shape) > 1


def _is_small_integer(operand: Operand) -> bool:
    aval = operand.aval
    if not hasattr(aval, "shape") or math.prod(aval.shape) > _LARGEST_KEY_ARRAY:
        return False
    return is_key(aval.dtype) or np.dtype(aval.dtype).kind in "iub"


def _eligible(operand: Operand, eligible: set[Operand]) -> bool:
    operand = resolve(operand)
    return _is_small_integer(operand) if isinstance(operand, Literal) else operand in eligible


def _is_key_arithmetic(eqn: Equation) -> bool:
    return all(map(_is_small_integer, eqn.outputs)) and not any(sub_jaxprs(eqn.params))


def _handles_keys(eqn: Equation) -> bool:
    return eqn.primitive is _compat.random_unwrap_p or any(
        is_key(v.aval.dtype) for v in eqn.outputs
    )

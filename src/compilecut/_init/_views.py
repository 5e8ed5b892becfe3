"""Outputs that are pieces of one larger result: a stack drawn at once and sliced into sites.

A program with one output per slice costs time for each of them. So the larger result is computed,
and the slices are taken by one small program per shape, with the start as an argument. Only
movement of data is taken apart like this, so no value can change.
"""

import collections
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.extend.core import primitives as prim

from .. import _compat
from .._jaxpr import Equation, Literal, Operand, Value, evaluate

# Fewer pieces than this are outputs of the program that computes them.
_MANY = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """One output as a piece of a larger value.

    Attributes:
        leaf: position of the output.
        root: the larger value.
        cut: index of the equation that cuts the piece.
        start: where the piece begins, an index per axis of the root.
        sizes: its size along each axis of the root.
        rest: what is done to the piece: squeezes and reshapes.
        key: equal for views that one program can take.
    """

    leaf: int
    root: Value
    cut: int
    start: tuple[int, ...]
    sizes: tuple[int, ...]
    rest: tuple[Equation, ...]
    key: Hashable


def find_views(
    outputs: Sequence[Operand], equations: Sequence[Equation], producer: dict[Value, int]
) -> dict[Value, list[View]]:
    """Returns, for each value that many outputs are cut from, those outputs."""
    uses = collections.Counter(operand for eqn in equations for operand in eqn.inputs)
    uses.update(outputs)
    roots: dict[Value, list[View]] = {}
    cuts: dict[Value, set[int]] = {}
    for leaf, operand in enumerate(outputs):
        view = _view(leaf, operand, equations, producer, uses)
        if view is not None:
            roots.setdefault(view.root, []).append(view)
            cuts.setdefault(view.root, set()).add(view.cut)
    # A root with other uses has to stay in one program with them: XLA rounds what it fuses.
    return {
        root: views
        for root, views in roots.items()
        if len(views) > _MANY and uses[root] == len(cuts[root]) and root in producer
        # One equation cuts many pieces when it unstacks: all that are used must be views.
        if len(views) == sum(uses[v] > 0 for cut in cuts[root] for v in equations[cut].outputs)
    }


def _view(leaf: int, operand: Operand, equations, producer, uses) -> View | None:
    rest: list[Equation] = []
    while not isinstance(operand, Literal) and operand in producer and uses[operand] == 1:
        eqn = equations[producer[operand]]
        cut = _CUTS.get(eqn.primitive)
        if cut is None and eqn.primitive not in _RESHAPES:
            return None
        if cut is None:
            rest.insert(0, eqn)
            operand = eqn.inputs[0]
            continue
        piece = cut(eqn, eqn.outputs.index(operand))
        if piece is None or not isinstance(eqn.inputs[0], Value):
            return None
        start, sizes = piece
        if eqn.primitive is _compat.unstack_p:
            rest.insert(0, eqn)
        root = eqn.inputs[0]
        shapes = tuple((e.key, e.outputs[0].aval) for e in rest)
        key = (root.aval, sizes, shapes)
        return View(
            leaf=leaf,
            root=root,
            cut=producer[operand],
            start=start,
            sizes=sizes,
            rest=tuple(rest),
            key=key,
        )
    return None


def lower_view(view: View, sharding: Any) -> Any:
    """Lowers the program that takes a view: `(root, start) -> piece`."""

    def take(root: jax.Array, start: jax.Array) -> jax.Array:
        piece = jax.lax.dynamic_slice(root, list(start), view.sizes)
        for eqn in view.rest:
            if eqn.primitive is _compat.unstack_p:
                piece = jax.lax.squeeze(piece, (eqn.params["axis"],))
            else:
                env: dict[Any, Any] = {eqn.inputs[0]: piece}
                (piece,) = evaluate([dataclasses.replace(eqn, scope=None)], env, eqn.outputs)
        return piece

    aval = view.root.aval
    root = jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
    start = jax.ShapeDtypeStruct((len(view.start),), np.int32, sharding=sharding)
    return jax.jit(take).lower(root, start)


# --- movements

_Cut = Callable[[Equation, int], "tuple[tuple[int, ...], tuple[int, ...]] | None"]


def _slice(eqn: Equation, _: int):
    p = eqn.params
    if p["strides"] is not None and any(stride != 1 for stride in p["strides"]):
        return None
    start = tuple(p["start_indices"])
    return start, tuple(b - a for a, b in zip(start, p["limit_indices"], strict=True))


def _unstack(eqn: Equation, index: int):
    axis, shape = eqn.params["axis"], eqn.inputs[0].aval.shape
    start = tuple(index if i == axis else 0 for i in range(len(shape)))
    return start, tuple(1 if i == axis else n for i, n in enumerate(shape))


_CUTS: dict[Primitive, _Cut] = {prim.slice_p: _slice, _compat.unstack_p: _unstack}
_RESHAPES = frozenset({prim.squeeze_p, prim.reshape_p})

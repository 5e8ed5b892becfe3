"""What will be compiled for an init function, decided before anything is lowered."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _compat
from .._jaxpr import Equation, call_effects, flatten
from .._report import Skip, SkipReason, source_line
from ._draw import Layout, can_share, largest_block, lay_out
from ._draw_probe import draws_as_expected
from ._group import Group, group_sites
from ._places import Places
from ._split import Split, split


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """How an init function is computed.

    Attributes:
        split: the function, cut into sites; `None` where it stays as written.
        groups: sites by computation.
        layout: where the bits of each site are drawn.
        places: where each leaf goes.
        skips: what stays as written, and why.
        equations: how many equations the function has, dead ones included.
    """

    split: Split | None
    groups: tuple[Group, ...]
    layout: Layout
    places: Places
    skips: tuple[Skip, ...]
    equations: int


def make_plan(closed_jaxpr: Any, places: Places) -> Plan:
    """Plans an init function from its jaxpr and the places of its leaves."""
    program = flatten(closed_jaxpr)
    refusal = _refusal(program.equations, places)
    if refusal is not None:
        return Plan(
            split=None,
            groups=(),
            layout=lay_out(()),
            places=places,
            skips=(refusal,),
            equations=len(program.equations),
        )
    rule = _draw_rule(program.outputs, places)
    pieces = split(program, rule, use_views=not places.spread)
    kinds = [places.of(leaf) for leaf in range(len(pieces.outputs))]
    groups = group_sites(program, pieces.sites, kinds)
    return Plan(
        split=pieces,
        groups=tuple(groups),
        layout=lay_out([group.members for group in groups]),
        places=places,
        skips=tuple(_entangled(groups)),
        equations=len(program.equations),
    )


def _refusal(equations: Sequence[Equation], places: Places) -> Skip | None:
    for eqn in call_effects(equations):
        detail = f"`{eqn.primitive}` talks to the host, and how often it does so is part of it"
        return Skip(reason=SkipReason.EFFECT, detail=detail, where=source_line(eqn))
    for eqn in equations:
        if not places.asked and eqn.primitive in _compat.PLACING:
            detail = f"`{eqn.primitive}` places values and `out_shardings` isn't given: JAX chooses"
            return Skip(reason=SkipReason.PLACES, detail=detail, where=source_line(eqn))
    if places.unclear:
        detail = (
            "the arguments are sharded or on several devices, and `out_shardings` isn't given: "
            "JAX chooses"
        )
        return Skip(reason=SkipReason.PLACES, detail=detail, where="")
    return None


def _draw_rule(outputs: Sequence[Any], places: Places):
    """Shares draws unless leaves are spread: there each site draws its own shards in place."""
    if places.spread or not draws_as_expected():
        return lambda eqn: False
    total = sum(_bytes(operand.aval) for operand in outputs)
    largest = largest_block(total)
    return lambda eqn: can_share(eqn, largest)


def _bytes(aval: Any) -> int:
    itemsize = getattr(aval.dtype, "itemsize", np.dtype(np.uint32).itemsize)
    return math.prod(aval.shape) * itemsize


# As many results of one piece are no accident of a layer (query, key, value): they are sites.
_ENTANGLED = 8


def _entangled(groups: Sequence[Group]):
    for group in groups:
        site = group.pattern
        if len(site.leaves) > _ENTANGLED:
            detail = f"{len(site.leaves)} leaves share one draw or result, so one program makes all"
            where = source_line(site.equations[-1]) if site.equations else ""
            yield Skip(reason=SkipReason.SHARED, detail=detail, where=where)

"""A plan, told to the user."""

import math
from typing import Any

from .._jaxpr import is_key
from .._report import Repeat, Report, source_line
from ._group import Group
from ._keys import device_calls
from ._places import leaf_paths
from ._plan import Plan
from ._programs import distinct_views


def explain_plan(name: str, plan: Plan, tree: Any) -> Report:
    """Returns the report of a plan.

    Args:
        name: of the init function.
        plan: its plan.
        tree: structure of its results.
    """
    paths = leaf_paths(tree)
    if plan.split is not None:
        for cut in plan.split.views.values():
            paths.append(f"{paths[cut[0].leaf]} and {len(cut) - 1} more slices")
    repeats = sorted((_repeat(group, paths) for group in plan.groups), key=lambda r: -r.n)
    return Report(
        name=name,
        repeats=tuple(repeats),
        skips=plan.skips,
        equations=plan.equations,
        programs=_count_programs(plan),
        on_host=len(plan.split.host) if plan.split is not None else 0,
    )


def _count_programs(plan: Plan) -> int:
    if plan.split is None:
        return 1
    small = len(device_calls(plan.split.host)) + len(distinct_views(plan.split))
    return small + len(plan.layout.rows) + len(plan.groups)


def _repeat(group: Group, paths: list[str]) -> Repeat:
    site = group.pattern
    avals = [operand.aval for operand in site.outputs]
    return Repeat(
        n=len(group.members),
        where=_where(group),
        equations=len(site.equations) + len(site.draws),
        result=", ".join(aval.str_short() for aval in avals),
        leaves=tuple(tuple(paths[leaf] for leaf in s.leaves) for s in group.members),
        bits="shared block" if site.draws else "own draw" if _draws(group) else "none",
        bytes=len(group.members) * sum(math.prod(a.shape) * a.dtype.itemsize for a in avals),
    )


def _where(group: Group) -> str:
    site = group.pattern
    equations = site.equations or tuple(draw.equation for draw in site.draws)
    return source_line(equations[-1]) if equations else ""


def _draws(group: Group) -> bool:
    return any(is_key(value.aval.dtype) for value in group.pattern.inputs)

"""Running a plan: block after block of random bits, and each site's program on its rows."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from .._jaxpr import Value, resolve
from .._stacking import put
from ._draw import Block, row_table
from ._keys import Host, evaluate_host, raw, to_array, to_host
from ._plan import Plan
from ._programs import Programs


class Sink(Protocol):
    """Takes results as they come, so that no more than necessary is held at once."""

    def put(self, group: int, member: int, leaves: Sequence[tuple[int, Any]]) -> None:
        """Takes the results of one site, each with its position."""
        ...

    def put_leaf(self, leaf: int, array: Any) -> None:
        """Takes a leaf that no program had to compute."""
        ...


def run(plan: Plan, programs: Programs, arguments: Sequence[Any], sink: Sink) -> None:
    """Computes every leaf of a planned init and hands it to `sink`.

    Args:
        plan: the plan.
        programs: its compiled programs.
        arguments: flat concrete arguments.
        sink: takes the results.
    """
    assert plan.split is not None
    host = _host_values(plan, programs, arguments)
    previous: Any = ()
    for block in plan.layout.blocks:
        # JAX runs ahead of the device: without waiting, every block would be alive at once.
        jax.block_until_ready(previous)
        previous = _run_block(plan, programs, block, host, arguments, sink)
    for leaf, value in plan.split.host_leaves:
        array = jax.device_put(raw(host[value]), plan.places.leaves[leaf], may_alias=False)
        sink.put_leaf(leaf, to_array(array, value.aval))
    for leaf, index in plan.split.argument_leaves:
        place = plan.places.leaves[leaf]
        sink.put_leaf(leaf, jax.device_put(arguments[index], place, may_alias=False))


def _host_values(plan: Plan, programs: Programs, arguments: Sequence[Any]) -> Host:
    split = plan.split
    assert split is not None
    wanted = {resolve(operand) for eqn in split.host for operand in eqn.inputs}
    wanted.update(draw.key for group in plan.groups for s in group.members for draw in s.draws)
    host: Host = {
        value: to_host(argument, value.aval)
        for value, argument in zip(split.program.arguments, arguments, strict=True)
        if value in wanted
    }
    constants = split.program.constants
    host.update((v, to_host(constants[v], v.aval)) for v in constants if v in wanted)
    evaluate_host(split.host, programs.keys, host, plan.places.device)
    return host


def _run_block(plan: Plan, programs: Programs, block: Block, host: Host, arguments, sink: Sink):
    assert plan.split is not None
    index = {value: i for i, value in enumerate(plan.split.program.arguments)}

    tables = {w: row_table(s, plan.layout.rows[w], host) for w, s in block.spans.items()}
    tables = put(tables, plan.places.device)
    bits = {w: programs.draws[w](table) for w, table in tables.items()}
    sites = [plan.groups[group].members[member] for group, member in block.sites]
    given = [
        [np.asarray(starts, np.int32), *(raw(host[v]) for v in site.inputs if v not in index)]
        for site, starts in zip(sites, block.starts, strict=True)
    ]
    given = _put(given, plan, programs, block, index)
    results: Any = ()
    for (group, member), site, (starts, *values) in zip(block.sites, sites, given, strict=True):
        blocks = {w: bits[w] for w in sorted({draw.width for draw in site.draws})}
        rest = iter(values)
        inputs = [arguments[index[v]] if v in index else next(rest) for v in site.inputs]
        results = programs.sites[group](blocks, starts, inputs)
        _hand_out(plan, programs, group, member, results, sink)
    return results


def _put(given: list[Any], plan: Plan, programs: Programs, block: Block, index: dict[Value, int]):
    """Puts each site's first rows and host values where its program wants them, if need be.

    Over several processes it is left to the call: to put them is to compare them between all.
    """
    if not plan.places.spread:
        return put(given, plan.places.device)
    wanted: dict[int, list[Any]] = {}
    for group, _ in block.sites:
        if group not in wanted:
            inputs = plan.groups[group].pattern.inputs
            (_, starts, places), _ = programs.sites[group].input_shardings
            wanted[group] = [starts]
            wanted[group] += [p for v, p in zip(inputs, places, strict=True) if v not in index]
    places = [wanted[group] for group, _ in block.sites]
    here = all(place.is_fully_addressable for place in jax.tree.leaves(places))
    return put(given, places) if here else given


def _hand_out(plan: Plan, programs: Programs, group: int, member: int, results, sink: Sink):
    """Gives the results of a site to the sink, cutting those that outputs are cut from."""
    assert plan.split is not None
    leaves = []
    for leaf, array in zip(plan.groups[group].members[member].leaves, results, strict=True):
        if leaf not in plan.split.views:
            leaves.append((leaf, array))
        for view in plan.split.views.get(leaf, ()):
            start = put(np.asarray(view.start, np.int32), plan.places.device)
            sink.put_leaf(view.leaf, programs.views[view.key](array, start))
    sink.put(group, member, leaves)

"""Runs a group of chunks: as a scan, as calls of one compilation unit, or written out."""

from typing import Any

import jax
import jax.numpy as jnp

from .. import _units
from ._block import Block, Step
from ._carry import Carry, conform
from ._groups import Group, stack_leaves
from ._shared import Shared


def make_step(block: Block, shared: Shared, name: str) -> Step:
    """Makes the step of a block. All its unit calls are of one function, which JAX traces once."""
    operands = tuple(shared.flat())
    n_operands, n_carry = len(operands), len(block.carry_in)

    def run(*leaves: Any) -> list[Any]:
        captured = shared.unflat(leaves[:n_operands])
        carry, data = leaves[n_operands:][:n_carry], leaves[n_operands:][n_carry:]
        results = block.evaluate(captured, carry, data)
        after = [conform(*pair) for pair in zip(results[:n_carry], carry, strict=True)]
        return [*after, *results[n_carry:]]

    return Step(block=block, operands=operands, run=run, unit=_units.unit_call(run, name))


def run_scan(
    step: Step, carry: Carry, group: Group, unroll: int | bool, reverse: bool
) -> tuple[Carry, Any]:
    """Runs the chunks in a `lax.scan`; returns the outs stacked."""
    n = len(carry.leaves)

    def body(leaves: list[Any], data: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        results = step.run(*step.operands, *leaves, *data)
        return results[:n], results[n:]

    leaves, outs = jax.lax.scan(
        body, list(carry.leaves), group.stacks(), group.length, reverse=reverse, unroll=unroll
    )
    return carry.replace(leaves), jax.tree.unflatten(step.block.out_tree, outs)


def run_calls(
    step: Step, carry: Carry, group: Group, as_units: bool, reverse: bool
) -> tuple[Carry, list[Any]]:
    """Runs the chunks one by one; returns a list of outs in the chunks' order."""
    call = step.unit if as_units else step.run
    rows = group.rows()
    n = len(carry.leaves)
    outs: list[Any] = [None] * len(rows)
    for i in reversed(range(len(rows))) if reverse else range(len(rows)):
        results = call(*step.operands, *carry.leaves, *rows[i])
        # A chunk that the body passes through is the caller's own buffer when nothing is traced.
        results = [r if isinstance(r, jax.Array) else jnp.array(r) for r in results]
        carry = carry.replace(results[:n])
        outs[i] = jax.tree.unflatten(step.block.out_tree, results[n:])
    return carry, outs


def as_list(outs: Any, length: int) -> list[Any]:
    """Takes stacked outs apart."""
    leaves, tree = jax.tree.flatten(outs)
    columns = [jnp.unstack(leaf) for leaf in leaves]
    return [jax.tree.unflatten(tree, [column[i] for column in columns]) for i in range(length)]


def as_stack(outs: list[Any]) -> Any:
    """Stacks outs that came one by one."""
    return jax.tree.map(lambda *leaves: stack_leaves(leaves), *outs)

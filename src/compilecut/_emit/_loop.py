"""A loop: calls of one block as `jax.lax.scan`, over stacks."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from .._jaxpr import Operand
from .._match import Call, Loop
from ._stacks import Element, Stack, agreed_order, alone, as_array, collect, falls, fill


def run_loop(
    loop: Loop, env: Any, wanted: frozenset[Operand], body: Callable[..., list[Any]]
) -> None:
    """Runs a loop and adds its results to the values known, as elements of stacks.

    Args:
        loop: the loop.
        env: the values known so far.
        wanted: the results that somebody needs outside of the loop.
        body: the block.
    """
    calls, block = loop.calls, loop.repeat.block
    lists = [[_read(env, call.inputs[port]) for call in calls] for port in loop.xs]
    if not loop.carries:
        calls, lists = _reorder(calls, lists)
    reverse = falls(lists)
    if reverse:
        lists = [values[::-1] for values in lists]
    avals = [block.arguments[port].aval for port in loop.xs]
    xs = [
        collect([as_array(value, aval) for value in values], aval).array
        for values, aval in zip(lists, avals, strict=True)
    ]
    consts = [_alone(env, _given(calls, port), block.arguments[port].aval) for port in loop.consts]
    init = [
        _alone(env, calls[0].inputs[port], block.arguments[port].aval) for port, _ in loop.carries
    ]
    carried = {number for _, number in loop.carries}
    ys = [n for n in range(len(block.outputs)) if _wanted(calls, n, n in carried, wanted)]

    def step(carry: Sequence[Any], elements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        inputs: dict[int, Any] = dict(zip(loop.xs, elements, strict=True))
        inputs.update(zip(loop.consts, consts, strict=True))
        inputs.update(zip((port for port, _ in loop.carries), carry, strict=True))
        outputs = body(*(inputs[port] for port in range(len(inputs))))
        return [outputs[number] for _, number in loop.carries], [outputs[n] for n in ys]

    if loop.at_once:
        last, stacked = [], jax.vmap(lambda elements: step([], elements)[1])(xs)
    else:
        last, stacked = lax.scan(step, init, xs, length=len(calls), reverse=reverse)
    for number, array in zip(ys, stacked, strict=True):
        stack = Stack(array)
        for place, call in enumerate(calls):
            at = len(calls) - 1 - place if reverse else place
            env[call.outputs[number]] = Element(stack, at)
    for (_, number), value in zip(loop.carries, last, strict=True):
        env[loop.calls[-1].outputs[number]] = value


def _read(env: Any, operand: Operand | None) -> Any:
    return None if operand is None else env.read(operand)


def _reorder(calls: Sequence[Call], lists: list[list[Any]]) -> tuple[Sequence[Call], Any]:
    """Independent calls run in the order in which the stacks they read already stand."""
    order = agreed_order(lists)
    if order is None:
        return calls, lists
    return [calls[i] for i in order], [[values[i] for i in order] for values in lists]


def _alone(env: Any, operand: Operand | None, aval: Any) -> Any:
    return fill(aval) if operand is None else as_array(alone(env.read(operand)), aval)


def _given(calls: Sequence[Call], port: int) -> Operand | None:
    """Returns what calls take through a port that takes the same in all that use it."""
    return next((v for call in calls if (v := call.inputs[port]) is not None), None)


def _wanted(calls: Sequence[Call], number: int, carried: bool, wanted: frozenset[Operand]) -> bool:
    """Says whether an output of the block is needed of some call; the last carry is at hand."""
    return any(call.outputs[number] in wanted for call in (calls[:-1] if carried else calls))

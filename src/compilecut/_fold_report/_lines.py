"""Where a block stands in the user's files."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .._jaxpr import Equation
from .._report import Frame, source_line, user_frames

# So many of a block's equations must agree on a call for it to be where the block is. The rest may
# come from anywhere: a gradient adds up what another line computed.
_MOST = 0.85
# A block of more equations is looked at here and there.
_ENOUGH = 200


def block_line(equations: Sequence[Equation]) -> str:
    """Returns the line or lines of the user's that a block comes from.

    All its equations share the calls from the outside up to some point: the line in a loop, say,
    that calls a layer. Where they part inside one function, its lines are the answer.
    """
    equations = equations[:: max(1, len(equations) // _ENOUGH)]
    stacks = [frames[::-1] for eqn in equations if (frames := user_frames(eqn))]
    if not stacks:
        return source_line(equations[len(equations) // 2]) if equations else ""
    needed = _MOST * len(stacks)
    deepest: Frame | None = None
    for level in range(max(map(len, stacks))):
        frames = [stack[level] for stack in stacks if len(stack) > level]
        frame, count = Counter(frames).most_common(1)[0]
        if count < needed:
            return _span(frames, needed) or (_line(deepest) if deepest else _line(frame))
        deepest = frame
        stacks = [stack for stack in stacks if len(stack) > level and stack[level] == frame]
    return _line(deepest) if deepest else ""


def _span(frames: Sequence[Frame], needed: float) -> str:
    """Returns the lines of the function that most frames are in, if it is one."""
    function, count = Counter((file, name) for file, name, _ in frames).most_common(1)[0]
    if count < needed:
        return ""
    lines = [line for file, name, line in frames if (file, name) == function]
    first, last = min(lines), max(lines)
    return f"{Path(function[0]).name}:{first}" + (f"-{last}" if last > first else "")


def _line(frame: Frame) -> str:
    return f"{Path(frame[0]).name}:{frame[2]}"


def is_gradient(equations: Sequence[Equation]) -> bool:
    """Says whether most equations are of a backward pass."""
    backward = sum("transpose(" in str(eqn.source_info.name_stack) for eqn in equations)
    return 2 * backward > len(equations)


def describe(eqn: Equation) -> str:
    """Returns an equation in words: `mul` of float32[4,4] and float32[]."""
    operands = " and ".join(operand.aval.str_short() for operand in eqn.inputs)
    return f"`{eqn.primitive}` of {operands}" if operands else f"`{eqn.primitive}`"

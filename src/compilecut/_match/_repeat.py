"""What a proven repeat is: one block, and its calls."""

import dataclasses
from collections.abc import Hashable

from .._jaxpr import Equation, Operand, Program, Value


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Call:
    """One occurrence of a block.

    Attributes:
        inputs: what the block's arguments are here; `None` where this occurrence lacks every
            equation that would use it, so that anything of the type will do.
        outputs: the values that the block's outputs are here; fresh ones where nobody uses them.
        positions: of the equations it stands for, in order.
    """

    inputs: tuple[Operand | None, ...]
    outputs: tuple[Value, ...]
    positions: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FoundRepeat:
    """Isomorphic blocks of a program, proven.

    Attributes:
        block: the block as a program of its own, without constants.
        key: equal keys mean the same block, in whatever program.
        calls: its occurrences, in trace order.
        shared: values that are the same in every block, by the value of the block that keeps it.
        weight: equations of one block, counting those inside its equations.
        completed: how many equations occurrences lack in all; they are computed and dropped.
    """

    block: Program
    key: Hashable
    calls: tuple[Call, ...]
    shared: dict[Operand, Operand]
    weight: int
    completed: int

    @property
    def saved(self) -> int:
        """How many equations the compiler need not see."""
        return (len(self.calls) - 1) * self.weight


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Why blocks that look alike are not the same.

    Attributes:
        model: an equation of the block they were compared with.
        other: the equation that differs.
        detail: what differs, in words.
    """

    model: Equation
    other: Equation
    detail: str

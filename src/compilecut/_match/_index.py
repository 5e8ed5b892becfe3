"""Who produces and who uses each value of a program."""

from collections.abc import Iterable, Sequence

import numpy as np

from .._jaxpr import Equation, Operand, Program, Value
from ._fingerprint import fingerprints, weights


class Index:
    """A program, with the look-ups that matching needs.

    Attributes:
        program: the program.
        equations: its equations.
        names: the fingerprint of each equation.
        weights: how many equations each stands for, counting those inside it.
        producer: for each value made by an equation, that equation's position and which result.
        users: for each value made by an equation, the positions of those that use it; the number
            of equations stands for the outputs of the program.
    """

    def __init__(self, program: Program):
        self.program = program
        self.equations: Sequence[Equation] = program.equations
        self.names: np.ndarray = fingerprints(self.equations)
        self.weights: np.ndarray = weights(self.equations)
        self.producer: dict[Value, tuple[int, int]] = {
            value: (position, number)
            for position, eqn in enumerate(self.equations)
            for number, value in enumerate(eqn.outputs)
        }
        self.users: dict[Value, list[int]] = {value: [] for value in self.producer}
        for position, eqn in enumerate(self.equations):
            self._use(eqn.inputs, position)
        self._use(program.outputs, len(self.equations))

    def _use(self, operands: Iterable[Operand], position: int) -> None:
        for operand in operands:
            if operand in self.producer:
                self.users[operand].append(position)  # pyright: ignore[reportArgumentType]

    def last_users(self, period: int) -> np.ndarray:
        """Returns each equation's last user less than `period` away; itself where there is none."""
        last = np.arange(len(self.equations))
        for value, (position, _) in self.producer.items():
            for user in reversed(self.users[value]):  # in order: the first that is near is the last
                if user - position < period:
                    last[position] = max(last[position], user)
                    break
        return last

"""Who produces and who uses each value of a program."""

from collections.abc import Iterable, Sequence

import numpy as np

from .._jaxpr import Equation, Operand, Program
from ._fingerprint import fingerprints, weights
from ._runs import Run


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
        self.producer: dict[Operand, tuple[int, int]] = {
            value: (position, number)
            for position, eqn in enumerate(self.equations)
            for number, value in enumerate(eqn.outputs)
        }
        self.users: dict[Operand, list[int]] = {value: [] for value in self.producer}
        for position, eqn in enumerate(self.equations):
            self._use(eqn.inputs, position)
        self._use(program.outputs, len(self.equations))

    def _use(self, operands: Iterable[Operand], position: int) -> None:
        for operand in operands:
            if operand in self.producer:
                self.users[operand].append(position)

    def last_users(self, run: Run) -> np.ndarray:
        """Returns, for each equation of a run, its last user less than a period away.

        Itself where there is none.
        """
        last = []
        for position in range(run.start, run.stop):
            here = position
            for value in self.equations[position].outputs:
                for user in reversed(self.users[value]):  # in order: the first near one is the last
                    if user - position < run.period:
                        here = max(here, user)
                        break
            last.append(here)
        return np.asarray(last, np.int64)

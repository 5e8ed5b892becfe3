"""What there is to run: workloads, their arms, and the sizes of each preset.

A workload's program lives in a file of its own (`Workload.source`) that only the sample's process
loads, so that this table can be read without importing JAX. That file defines
`ARMS: dict[str, Callable[[int], Call]]`, from an arm's name and a size to something to measure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One thing to measure: `function(*args)`, from the call to values ready.

    Attributes:
        function: What a user would call. Everything it needs beforehand (modules, arguments on the
            device) is made before the clock starts; nothing of it is compiled.
        args: Its arguments.
        runs: Whether it returns values. `False` for arms that only compile, at sizes that no
            machine at hand could run.
        compare: Whether its values are written down for comparison.
        pick: Takes from what the function returns what other arms return too, where arms lay out
            their results differently.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    runs: bool = True
    compare: bool = True
    pick: Callable[[Any], Any] | None = None


ArmTable = Mapping[str, Callable[[int], Call]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way of writing a workload.

    Attributes:
        name: How it is called in a terminal and on the command line.
        quick: Its sizes in the quick preset; an arm that is too slow there has fewer.
        full: Its sizes in the full preset.
        hint: Seconds a sample takes per unit of size, plus a fixed part, for the progress bar only.
        label: What it is in plain words, for pages and pictures; its name if that says it.
    """

    name: str
    quick: tuple[int, ...]
    full: tuple[int, ...]
    hint: tuple[float, float] = (0.2, 5.0)
    label: str = ""

    @property
    def words(self) -> str:
        """What it is, for those who don't know the bench."""
        return self.label or self.name

    def expected_seconds(self, n: int) -> float:
        """A guess that the progress bar starts from and corrects as samples finish."""
        per_unit, fixed = self.hint
        return per_unit * n + fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program, the ways of writing it, and which of them must agree.

    Attributes:
        name: How it is called in tables and on the command line.
        summary: One line, above its table.
        unit: What n counts.
        source: The Python file that defines `ARMS`.
        arms: In the order they are shown and run.
        reference: The arm that values and seconds are compared with.
        equal: Groups of arms whose values must agree bit for bit; else the bench fails.
        may_match: Groups of arms that may well compile to the same programs. Any other two arms
            that do are an error: a comparison of a thing with itself.
    """

    name: str
    summary: str
    unit: str
    source: Path
    arms: tuple[Arm, ...]
    reference: str
    equal: tuple[tuple[str, ...], ...] = ()
    may_match: tuple[tuple[str, ...], ...] = ()

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One square of the grid: an arm at a size, sampled `repeat` times."""

    workload: Workload
    arm: Arm
    n: int
    repeat: int
    timeout: float = 600.0

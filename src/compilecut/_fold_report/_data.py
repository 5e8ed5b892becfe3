"""The report as data."""

import dataclasses
import io
from collections.abc import Mapping
from typing import Any, Literal

import rich.console

from .._plan import Form
from .._report import SkipReason

# Seconds that XLA takes for a thousand equations of a program written out, on a CPU with two cores:
# in `bench/results/depth.json` the train step of 48 blocks took 0.4 of them, that of 96 blocks 0.7.
# What an equation costs varies tenfold with what it computes and on what, so this tells a minute
# from a second and no more.
SECONDS_PER_THOUSAND = 0.6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a plan was made under.

    Attributes:
        form: as the user asked.
        units: whether blocks may be called as units on these arguments.
        packed: by argument, the stack it stands in and its place there, if the state is packed.
        kept: results that go back into a packed state, by position.
    """

    form: Form
    units: bool
    packed: Mapping[int, tuple[object, int]] = dataclasses.field(default_factory=dict)
    kept: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FoldedRepeat:
    """Blocks that are compiled as one.

    Attributes:
        n: how many blocks.
        where: the user's line or lines, `model.py:31` or `model.py:31-38`.
        gradient: whether it is the backward pass of what stands there.
        equations: equations of one block, with those inside its equations.
        form: "unit" (one compiled block, called), "scan" (one loop) or "batch" (all at once).
        why: why it has this form, in words.
        carried: values that one block hands to the next.
        stacked: values of which each block has its own.
        ready: how many of those stand in a stack already when the loop starts; for a unit, 0.
        shared: values that all blocks read.
        bytes_stacked: bytes that a call copies to put the others into stacks.
        cut: results that are cut out of stacks one by one, because something needs them alone.
        completed: equations that some blocks lack; they are computed there and dropped.
        inside: repeats inside one block.
    """

    n: int
    where: str
    gradient: bool
    equations: int
    form: Literal["unit", "scan", "batch"]
    why: str
    carried: int
    stacked: int
    ready: int
    shared: int
    bytes_stacked: int
    cut: int
    completed: int
    inside: tuple["FoldedRepeat", ...]

    @property
    def saved(self) -> int:
        """How many equations the compiler need not see."""
        return (self.n - 1) * self.equations

    @property
    def place(self) -> str:
        """The user's line, said with what stands there; a library's where there is none."""
        return f"gradient of {self.where}" if self.gradient else self.where


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FoldSkip:
    """Something that looks repeated and stays as written.

    Attributes:
        reason: why, as a kind.
        detail: why, in a sentence that names the equations.
        lines: the user's lines: of the blocks, and of what differs from them if that is elsewhere.
        equations: how many equations stay as written for it.
        remedy: what would make it fold.
    """

    reason: SkipReason
    detail: str
    lines: tuple[str, ...]
    equations: int
    remedy: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FoldReport:
    """What `fold` does to a function, and why.

    Attributes:
        name: the function's name.
        repeats: what is folded, most equations saved first.
        skips: what looks repeated and stays as written, most equations first.
        equations: equations of the function as written, with those inside its equations.
        equations_left: equations that the compiler gets after folding; a block counts once.
        packed: whether the state is held in stacks between the calls.
        notes: what holds for the whole program, in sentences.
    """

    name: str
    repeats: tuple[FoldedRepeat, ...]
    skips: tuple[FoldSkip, ...]
    equations: int
    equations_left: int
    packed: bool
    notes: tuple[str, ...]

    @property
    def left(self) -> float:
        """The part of the program that is left to compile, from 0 to 1."""
        return self.equations_left / max(1, self.equations)

    @property
    def bytes_stacked(self) -> int:
        """Bytes that a call copies to put arrays into stacks, inner repeats once."""
        return sum(repeat.bytes_stacked for repeat in self.repeats)

    @property
    def seconds(self) -> float:
        """About how long XLA takes for the function as written: a guess by equations alone."""
        return self.equations / 1000 * SECONDS_PER_THOUSAND

    @property
    def seconds_left(self) -> float:
        """About how long XLA takes after folding: a guess by equations alone."""
        return self.equations_left / 1000 * SECONDS_PER_THOUSAND

    def __rich_console__(self, console: Any, options: Any):
        from ._print import parts  # it needs this module

        yield from parts(self)

    def __str__(self) -> str:
        console = rich.console.Console(file=io.StringIO(), width=80, markup=False)
        console.print(self)
        return console.file.getvalue().rstrip()  # pyright: ignore[reportAttributeAccessIssue]

    def _repr_html_(self) -> str:
        console = rich.console.Console(file=io.StringIO(), record=True, width=100, markup=False)
        console.print(self)
        return console.export_html(inline_styles=True)

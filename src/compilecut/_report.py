"""What was found in a program, what became of it and why: `Report`, `Repeat`, `Skip`."""

import dataclasses
import enum
import io
import re
from typing import Any

import rich.box
import rich.console
import rich.table
from jax.extend import source_info_util


class SkipReason(enum.Enum):
    """Why something stays as it was written."""

    EFFECT = "has effects"
    PLACES = "places unknown"
    SHARED = "results shared"
    TRACED = "inside a trace"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Something that stays as written.

    Attributes:
        reason: why, as a kind.
        detail: why, in a sentence.
        where: the user's `file:line`, or empty.
    """

    reason: SkipReason
    detail: str
    where: str

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.reason.value}{place}: {self.detail}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One computation that occurs n times and is compiled once.

    Attributes:
        n: how often it occurs.
        where: the user's `file:line`, or empty.
        equations: equations of one occurrence.
        result: types of its results.
        leaves: paths of all results, by occurrence.
        bits: how it gets its random bits: "shared block", "own draw" or "none".
        bytes: bytes of all its results.
    """

    n: int
    where: str
    equations: int
    result: str
    leaves: tuple[tuple[str, ...], ...]
    bits: str
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `explain` found.

    Attributes:
        name: the function's name.
        repeats: each distinct computation, largest count first.
        skips: what stays as written, with reasons.
        equations: equations of the function as written.
        programs: how many programs will be compiled.
        on_host: equations of key arithmetic, computed without compiling each.
    """

    name: str
    repeats: tuple[Repeat, ...]
    skips: tuple[Skip, ...]
    equations: int
    programs: int
    on_host: int

    @property
    def sites(self) -> int:
        """How many sites there are, repeated or not."""
        return sum(repeat.n for repeat in self.repeats)

    def __rich_console__(self, console: Any, options: Any):
        yield self._headline()
        if self.repeats:
            yield self._table()
        for skip in self.skips:
            yield f"as written: {skip}"

    def _headline(self) -> str:
        if not self.repeats:
            return f"{self.name}: {self.equations} equations"
        return (
            f"{self.name}: {self.sites} sites of {len(self.repeats)} kinds in {self.equations} "
            f"equations, {self.on_host} of them key arithmetic; {self.programs} programs compiled"
        )

    def _table(self) -> rich.table.Table:
        table = rich.table.Table(box=rich.box.SIMPLE)
        for heading in ("sites", "equations", "bytes"):
            table.add_column(heading, justify="right")
        for heading in ("result", "random bits", "where", "first leaf"):
            table.add_column(heading)
        for r in self.repeats:
            cells = (str(r.n), str(r.equations), f"{r.bytes:,}", r.result, r.bits, r.where)
            table.add_row(*cells, r.leaves[0][0])
        return table

    def __str__(self) -> str:
        console = rich.console.Console(file=io.StringIO(), width=120, markup=False)
        console.print(self)
        return console.file.getvalue().rstrip()  # pyright: ignore[reportAttributeAccessIssue]

    def _repr_html_(self) -> str:
        console = rich.console.Console(file=io.StringIO(), record=True, width=120, markup=False)
        console.print(self)
        return console.export_html(inline_styles=True)


def source_line(eqn: Any) -> str:
    """Returns the user's `file:line` of an equation, or nothing where JAX kept none."""
    summary = source_info_util.summarize(eqn.source_info)
    # "path:line (function)" or "path:line:column (function)", depending on the Python version.
    found = re.match(r"(?:.*[/\\])?([^/\\:]+:\d+)", summary)
    return found.group(1) if found else ""

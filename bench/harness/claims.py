"""Runs a bench that checks claims: what `bench/init.py` and `bench/chunks.py` share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import figures, records, session, table
from harness.registry import Cell
from workloads import WORKLOADS

MISSED = 1
TIMEOUT = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cells of one arm: `repeat` samples at each size."""

    workload: str
    arm: str
    sizes: tuple[int, ...]
    repeat: int

    def cells(self) -> list[Cell]:
        """The cells it stands for."""
        workload = WORKLOADS[self.workload]
        return [
            Cell(
                workload=workload,
                arm=workload.arm(self.arm),
                n=n,
                repeat=self.repeat,
                timeout=TIMEOUT,
            )
            for n in self.sizes
        ]


def check(
    rows: Sequence[Row],
    claims: Callable[[records.Record], list[figures.Figure]],
    out: Path,
    judge: bool = True,
) -> int:
    """Runs the rows, writes the record with its figures, prints both, and returns the exit code.

    Args:
        rows: What to run.
        claims: From the record to its figures.
        out: Where the record goes.
        judge: Whether a missed figure is a failure; not at toy sizes.
    """
    console = session.make_console()
    record = session.take(console, [cell for row in rows for cell in row.cells()])
    found = claims(record)
    record = replace(record, figures=tuple(figure.as_data() for figure in found))
    records.save(out, record)
    table.print_record(console, record, WORKLOADS)
    figures.print_figures(console, found)
    console.print(session.describe(record), style="dim", highlight=False, soft_wrap=True)
    if record.interrupted:
        return session.INTERRUPTED
    missed = judge and any(figure.holds is False for figure in found)
    return MISSED if missed or record.problems else 0

"""Checks every figure promised for `scan_chunks`, in one run.

    python bench/chunks.py               # writes bench/results/chunks.json; about ten minutes

Every arm gets the same number of samples, the slow ones too; those run at one size only. Exit code
1 when a figure is missed or values differ where they must agree. `--tiny` runs toy sizes that prove
nothing but that the bench itself works.
"""

from pathlib import Path
from typing import Annotated

import typer

from harness import claims, figures
from harness.claims import Row
from harness.figures import Figure
from harness.records import Record

RESULTS = Path(__file__).resolve().parent / "results" / "chunks.json"


def rows(n: int, flat: tuple[int, ...], repeat: int) -> list[Row]:
    """What has to run: each arm at `n`, the default mode over `flat`.

    `mode="scan"` is left out because it is what the default chooses here; a test holds that.
    """
    sizes = tuple(sorted({n, *flat}))
    return [
        Row(workload="chunks", arm="loop", sizes=(n,), repeat=repeat),
        Row(workload="chunks", arm="scan-by-hand", sizes=(n,), repeat=repeat),
        Row(workload="chunks", arm="scan_chunks:unit", sizes=(n,), repeat=repeat),
        Row(workload="chunks", arm="scan_chunks", sizes=sizes, repeat=repeat),
    ]


def figures_of(record: Record, n: int, flat: tuple[int, ...]) -> list[Figure]:
    """The promises are made for the default mode; the others are measured beside it."""
    ends = (flat[0], flat[-1])
    step = ("chunks", n)
    return [
        figures.less(record, *step, "loop", "scan_chunks", "compile", 4),
        figures.growth(record, "chunks", "scan_chunks", ends, "compile", 1.15),
        figures.growth(record, "chunks", "scan_chunks", ends, "cold_cpu"),
        figures.less(record, *step, "loop", "scan_chunks", "cold"),
        figures.less(record, *step, "loop", "scan_chunks", "cold_cpu"),
        figures.less(record, *step, "loop", "scan_chunks", "steady"),
        figures.less(record, *step, "scan-by-hand", "scan_chunks", "compile"),
        figures.less(record, *step, "scan-by-hand", "scan_chunks", "steady"),
        figures.less(record, *step, "loop", "scan_chunks:unit", "compile"),
    ]


def main(
    out: Annotated[Path, typer.Option(help="where the record goes")] = RESULTS,
    repeat: Annotated[int, typer.Option(min=3, help="samples of every arm and size")] = 3,
    tiny: Annotated[bool, typer.Option(help="toy sizes, nothing judged")] = False,
) -> None:
    """Check the figures promised for scan_chunks."""
    n, flat = (2, (2, 3)) if tiny else (8, (2, 8, 32))
    planned = rows(n, flat, 1 if tiny else repeat)
    code = claims.check(planned, lambda record: figures_of(record, n, flat), out, judge=not tiny)
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)

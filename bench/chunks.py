"""Checks every figure promised for `scan_chunks`, in one run.

    python bench/chunks.py               # writes bench/results/chunks.json; about half an hour

Exit code 1 when a figure is missed or values differ where they must agree. `--tiny` runs toy sizes
that prove nothing but that the bench itself works.
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

    The mode `scan` is left out because it is what `auto` chooses here; a test holds that.
    """
    slow = max(repeat // 2, 1)
    sizes = tuple(sorted({n, *flat}))
    return [
        Row(workload="chunks", arm="loop", sizes=(n,), repeat=slow),
        Row(workload="chunks", arm="lax.scan", sizes=(n,), repeat=slow),
        Row(workload="chunks", arm="unit", sizes=tuple(sorted({flat[0], n})), repeat=slow),
        Row(workload="chunks", arm="auto", sizes=sizes, repeat=repeat),
    ]


def figures_of(record: Record, n: int, flat: tuple[int, ...]) -> list[Figure]:
    """The promises are made for the default mode; the others are measured beside it."""
    ends = (flat[0], flat[-1])
    return [
        figures.less(record, "chunks", n, "loop", "auto", "compile", 4),
        figures.growth(record, "chunks", "auto", ends, "compile", 1.15),
        figures.less(record, "chunks", n, "loop", "auto", "cold"),
        figures.less(record, "chunks", n, "loop", "lax.scan", "compile"),
        figures.less(record, "chunks", n, "loop", "auto", "steady"),
        figures.less(record, "chunks", n, "loop", "unit", "compile"),
    ]


def main(
    out: Annotated[Path, typer.Option(help="where the record goes")] = RESULTS,
    repeat: Annotated[
        int, typer.Option(min=1, help="samples of the default mode; others half")
    ] = 5,
    tiny: Annotated[bool, typer.Option(help="toy sizes, nothing judged")] = False,
) -> None:
    """Check the figures promised for scan_chunks."""
    n, flat = (2, (2, 3)) if tiny else (8, (2, 8, 32))
    planned = rows(n, flat, 1 if tiny else repeat)
    code = claims.check(planned, lambda record: figures_of(record, n, flat), out, judge=not tiny)
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)

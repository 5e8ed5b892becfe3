"""Checks every figure promised for `fold`, in one run.

    python bench/depth.py                # writes bench/results/depth.json; about an hour

How compile and run time of a train step grow with its depth: as written, folded, folded with its
state packed, as a scan by hand, with marked blocks. Every arm gets the same number of samples. Exit
code 1 when a figure is missed. `--tiny` runs toy sizes that prove nothing but that the bench works.
"""

from pathlib import Path
from typing import Annotated

import typer

from harness import claims, figures
from harness.claims import Row
from harness.figures import Figure
from harness.records import Record

RESULTS = Path(__file__).resolve().parent / "results" / "depth.json"


def rows(deep: tuple[int, int], stack: int, mixture: int, repeat: int) -> list[Row]:
    """What has to run: W5 at two depths and at one layer, a residual stack, a mixture."""
    return [
        Row(workload="layers", arm="jit", sizes=(1, *deep), repeat=repeat),
        Row(workload="layers", arm="fold", sizes=deep[:1], repeat=repeat),
        Row(workload="layers", arm="packed", sizes=deep, repeat=repeat),
        Row(workload="layers", arm="nn.scan", sizes=deep, repeat=repeat),
        Row(workload="layers", arm="marked", sizes=deep[:1], repeat=repeat),
        Row(workload="layers", arm="marked+packed", sizes=deep[:1], repeat=repeat),
        Row(workload="layers-wide", arm="jit", sizes=(stack,), repeat=repeat),
        Row(workload="layers-wide", arm="packed", sizes=(stack,), repeat=repeat),
        Row(workload="layers-wide", arm="nn.scan", sizes=(stack,), repeat=repeat),
        Row(workload="residual", arm="jit", sizes=(stack,), repeat=repeat),
        Row(workload="residual", arm="fold", sizes=(stack,), repeat=repeat),
        Row(workload="residual", arm="lax.scan", sizes=(stack,), repeat=repeat),
        Row(workload="gaussians", arm="jit", sizes=(mixture,), repeat=repeat),
        Row(workload="gaussians", arm="fold", sizes=(mixture,), repeat=repeat),
        Row(workload="gaussians", arm="fold-first", sizes=(mixture,), repeat=repeat),
    ]


def figures_of(record: Record, deep: tuple[int, int], stack: int, mixture: int) -> list[Figure]:
    """The promises, in the order they were made; those for XLA's compile alone first."""
    n, deepest = deep
    step, wide = ("layers", n), ("layers-wide", stack)
    mlp, lens = ("residual", stack), ("gaussians", mixture)
    return [
        figures.less(record, *step, "jit", "packed", "compile", 6),
        figures.less(record, "layers", deepest, "jit", "packed", "compile", 12),
        figures.more(record, *step, "packed", "nn.scan", "compile", 1.15),
        figures.more(record, "layers", deepest, "packed", "nn.scan", "compile", 1.15),
        figures.other_size(record, "layers", ("packed", deepest), ("jit", 1), "compile", 2),
        figures.less(record, *step, "jit", "fold", "compile"),
        figures.less(record, *step, "jit", "packed", "cold", 2.5),
        figures.less(record, *step, "jit", "marked+packed", "cold", 4),
        figures.less(record, *step, "jit", "marked", "cold"),
        figures.more(record, *step, "packed", "jit", "steady", 1.0),
        figures.more(record, *wide, "packed", "jit", "steady", 1.1),
        figures.more(record, *wide, "packed", "nn.scan", "steady"),
        figures.less(record, *mlp, "jit", "fold", "compile", 5),
        figures.more(record, *mlp, "fold", "lax.scan", "compile"),
        figures.more(record, *mlp, "fold", "jit", "steady"),
        figures.less(record, *lens, "jit", "fold", "compile", 5),
        figures.less(record, *lens, "jit", "fold", "cold"),
        figures.less(record, *lens, "jit", "fold-first", "cold"),
        figures.more(record, *lens, "fold", "jit", "steady"),
    ]


def main(
    out: Annotated[Path, typer.Option(help="where the record goes")] = RESULTS,
    repeat: Annotated[int, typer.Option(min=3, help="samples of every arm and size")] = 3,
    tiny: Annotated[bool, typer.Option(help="toy sizes, nothing judged")] = False,
) -> None:
    """Check the figures promised for fold."""
    deep, stack, mixture = ((3, 4), 3, 3) if tiny else ((48, 96), 24, 40)
    planned = rows(deep, stack, mixture, 1 if tiny else repeat)
    code = claims.check(
        planned, lambda record: figures_of(record, deep, stack, mixture), out, judge=not tiny
    )
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)

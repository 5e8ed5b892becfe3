"""Checks every figure promised for `stacked_init`, in one run.

    python bench/init.py                 # writes bench/results/init.json; about ten minutes

Every arm gets the same number of samples, the slow ones too: a ratio is no better than its worse
side. Exit code 1 when a figure is missed or values differ. `--tiny` runs toy sizes that prove
nothing but that the bench itself works.
"""

from pathlib import Path
from typing import Annotated

import typer

from harness import claims, figures
from harness.claims import Row
from harness.figures import Figure
from harness.records import Record

RESULTS = Path(__file__).resolve().parent / "results" / "init.json"
LIBRARIES = ("linen", "nnx", "equinox", "haiku")
# `largest_group_bytes` over the bytes of all outputs, the same at every size: the 64 gate and up
# sites hold 53 % (workloads.md, W1). A test compares it with the workload's own sum.
LARGEST_GROUP = 64 * (4096 + 14336) * 8192 / 18_320_719_872
SLACK = 1.10


def rows(layers: int, depth: int, flat: tuple[int, ...], repeat: int) -> list[Row]:
    """What has to run: W1 at `layers`, the libraries at `depth`, flatness over `flat`."""
    planned = [
        Row(workload="init", arm="jit", sizes=(layers,), repeat=repeat),
        Row(workload="init", arm="vmap+slice", sizes=(layers,), repeat=repeat),
        Row(workload="init", arm="per-kind", sizes=(layers,), repeat=repeat),
        Row(workload="init", arm="stacked_init", sizes=flat, repeat=repeat),
    ]
    for library in LIBRARIES:
        planned += [
            Row(workload=library, arm="jit", sizes=(depth,), repeat=repeat),
            Row(workload=library, arm="stacked_init", sizes=(depth,), repeat=repeat),
        ]
    return [
        *planned,
        Row(workload="init-large", arm="stacked_init", sizes=(layers,), repeat=repeat),
        Row(workload="init-full", arm="stacked_init", sizes=(layers,), repeat=repeat),
    ]


def figures_of(record: Record, layers: int, depth: int, flat: tuple[int, ...]) -> list[Figure]:
    """The promises of the first cut, in the order they were made."""
    ends = (flat[0], flat[-1])
    large = ("init-large", "stacked_init", layers)
    init = ("init", layers)
    found = [
        figures.less(record, *init, "jit", "stacked_init", "cold", 20),
        figures.less(record, *init, "vmap+slice", "stacked_init", "cold", 3),
        figures.less(record, *init, "per-kind", "stacked_init", "cold"),
        figures.less(record, *init, "jit", "stacked_init", "steady"),
        figures.less(record, *init, "jit", "stacked_init", "cold_cpu"),
        figures.less(record, *init, "vmap+slice", "stacked_init", "cold_cpu"),
        figures.growth(record, "init", "stacked_init", ends, "compile", 1.15),
        figures.growth(record, "init", "stacked_init", ends, "compile_sum"),
    ]
    for library in LIBRARIES:
        pair = (library, depth, "jit", "stacked_init")
        found.append(figures.less(record, *pair, "compile", 5))
        found += [figures.less(record, *pair, measure) for measure in ("cold", "steady")]
    allowed = (1 + LARGEST_GROUP) * SLACK
    return [
        *found,
        figures.share(record, large, "run_peak_growth", lambda outputs: outputs * allowed),
        figures.finishes(record, ("init-full", "stacked_init", layers), "cold", claims.TIMEOUT),
    ]


def main(
    out: Annotated[Path, typer.Option(help="where the record goes")] = RESULTS,
    repeat: Annotated[int, typer.Option(min=3, help="samples of every arm and size")] = 3,
    tiny: Annotated[bool, typer.Option(help="toy sizes, nothing judged")] = False,
) -> None:
    """Check the figures promised for stacked_init."""
    layers, depth, flat = (2, 2, (1, 2)) if tiny else (32, 24, (8, 16, 32, 64))
    planned = rows(layers, depth, flat, 1 if tiny else repeat)
    code = claims.check(
        planned, lambda record: figures_of(record, layers, depth, flat), out, judge=not tiny
    )
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)

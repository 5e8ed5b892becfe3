"""Arms against workloads: what compilecut does to compile time, beside the usual ways.

    python bench/compare.py                                  # the quick preset
    python bench/compare.py --workload chunks --repeat 5 --json out.json --plot out.png
    python bench/compare.py --baseline out.json              # what changed since

Each sample is a fresh process with caches off. Exit codes: 0 fine; 1 values differ where they must
not, or something else that `harness.checks` looks for; 2 a wrong option; 3 slower or larger than
the baseline; 130 interrupted: what had finished is still shown, and written to a file even if none
was asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness import baseline, environment, plot, records, session, table
from harness.registry import Cell, Workload
from workloads import PRESETS, WORKLOADS

WRONG, WORSE = 1, 3
KEPT = environment.ROOT / "bench" / "out"
REPEAT = {"quick": 1, "full": 3}
TIMEOUT = {"quick": 150.0, "full": 900.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to run, as asked for on the command line; `None` leaves it to the preset."""

    preset: str
    workloads: tuple[str, ...] | None = None
    arms: tuple[str, ...] | None = None
    sizes: tuple[int, ...] | None = None
    repeat: int | None = None
    timeout: float | None = None


def plan(choice: Choice, known: Mapping[str, Workload]) -> list[Cell]:
    """The cells of a choice.

    Raises:
        ValueError: If a name is unknown or nothing is left to run.
    """
    names = choice.workloads or PRESETS[choice.preset]
    cells = []
    for name in names:
        if name not in known:
            raise ValueError(f"no workload {name!r}; there are {', '.join(known)}")
        for arm in known[name].arms:
            if choice.arms and arm.name not in choice.arms:
                continue
            for n in choice.sizes or getattr(arm, choice.preset):
                cells.append(
                    Cell(
                        workload=known[name],
                        arm=arm,
                        n=n,
                        repeat=choice.repeat or REPEAT[choice.preset],
                        timeout=choice.timeout or TIMEOUT[choice.preset],
                    )
                )
    unknown = set(choice.arms or ()) - {arm.name for name in names for arm in known[name].arms}
    if unknown or not cells:
        raise ValueError(f"no arm {', '.join(sorted(unknown)) or 'is left'} in {', '.join(names)}")
    return cells


def names(text: str | None) -> tuple[str, ...] | None:
    """`"a,b"` as `("a", "b")`."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else None


def main(
    preset: Annotated[str, typer.Option(help="quick (minutes) or full (an hour)")] = "quick",
    workload: Annotated[str | None, typer.Option(help="names, with commas")] = None,
    arm: Annotated[str | None, typer.Option(help="only these arms, with commas")] = None,
    size: Annotated[str | None, typer.Option(help="these n instead of the preset's")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="samples per arm and size")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="seconds per sample")] = None,
    json: Annotated[Path | None, typer.Option(help="write the record here")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="write a PNG here")] = None,
    baseline_file: Annotated[
        Path | None, typer.Option("--baseline", help="compare with this record")
    ] = None,
    extra: Annotated[Path | None, typer.Option(help="a file with more WORKLOADS")] = None,
    keep: Annotated[
        Path,
        typer.Option(help="the folder for what an interrupted run without --json had measured"),
    ] = KEPT,
) -> None:
    """Compare ways of writing a program by what they cost to compile and to run."""
    if preset not in REPEAT:
        raise typer.BadParameter(f"--preset is one of {', '.join(REPEAT)}")
    try:
        known = WORKLOADS | (dict(session.load_extra(extra)) if extra else {})
        sizes = tuple(int(n) for n in names(size) or ()) or None
        choice = Choice(
            preset=preset,
            workloads=names(workload),
            arms=names(arm),
            sizes=sizes,
            repeat=repeat,
            timeout=timeout,
        )
        cells = plan(choice, known)
        old = records.load(baseline_file) if baseline_file else None
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    console = session.make_console()
    record = session.take(console, cells)
    if record.interrupted and record.samples and not json:
        json = keep / f"compare-{record.machine['date'][:19].replace(':', '-')}.json"
    report(console, record, known, json, plot_file)
    raise typer.Exit(verdict(console, record, old))


def report(
    console: Console,
    record: records.Record,
    known: Mapping[str, Workload],
    json: Path | None,
    picture: Path | None,
) -> None:
    """Writes files first, so that a broken terminal loses nothing; then prints the table."""
    if json:
        records.save(json, record)
    if picture:
        plot.save(picture, record, known)
    table.print_record(console, record, known)
    console.print(session.describe(record), style="dim", highlight=False)
    if json:
        console.print(f"The record is in {json}", highlight=False, markup=False, soft_wrap=True)


def verdict(console: Console, record: records.Record, old: records.Record | None) -> int:
    """Prints what changed since the baseline, and the exit code."""
    changes = baseline.compare(old, record) if old else []
    for change in changes:
        style = "bold red" if change.worse else ""
        console.print(str(change), style=style, highlight=False, markup=False, soft_wrap=True)
    if old and not changes:
        console.print("Nothing changed since the baseline.")
    if record.interrupted:
        return session.INTERRUPTED
    if record.problems:
        return WRONG
    return WORSE if any(change.worse for change in changes) else 0


if __name__ == "__main__":
    typer.run(main)

"""The table of a run, one per workload, for a terminal.

Losses are shown like wins: the same column, the same weight, the same number of digits.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.records import Record, Sample, numbers
from harness.registry import Workload

WIDE = 130
NOTE = (
    "Seconds, medians over samples; each sample is a fresh process without caches. cold = call to "
    "values ready = trace + lower + compile + first run (the rest, compilecut's planning included)."
    "\nΣ compile adds up threads; cpu is processor seconds of the cold call; peak is growth over "
    "before the call; HLO counts optimised instructions of all programs; ± is half the "
    "interquartile range."
)

Row = tuple[str | Text, ...]
SECONDS = ("cold", "against", "trace", "lower", "compile", "Σ compile", "first run", "cpu")
SIZES = ("steady ms", "peak MB", "programs", "HLO", "values")


def render(record: Record, workloads: Mapping[str, Workload], width: int) -> RenderableType:
    """Every workload's table; in two halves where the terminal is narrow."""
    parts: list[RenderableType] = []
    for name, workload in workloads.items():
        cells = [(key, samples) for key, samples in record.cells() if key[0] == name]
        if not cells:
            continue
        halves = (SECONDS + SIZES,) if width >= WIDE else (SECONDS, SIZES)
        for columns in halves:
            parts.append(_table(workload, cells, record, columns))
    return Group(*parts, Text(NOTE, style="dim"), *_problem_lines(record))


def print_record(console: Console, record: Record, workloads: Mapping[str, Workload]) -> None:
    """Prints the tables."""
    console.print(render(record, workloads, console.width))


def _table(workload: Workload, cells, record: Record, columns: Sequence[str]) -> Table:
    title = f"{workload.name}: {workload.summary} (n = {workload.unit})"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("arm")
    table.add_column("n", justify="right")
    for column in columns:
        heading = f"vs {workload.reference}" if column == "against" else column
        table.add_column(heading, justify="left" if column == "values" else "right")
    order = {arm.name: place for place, arm in enumerate(workload.arms)}
    cells = sorted(cells, key=lambda cell: (cell[0][2], order.get(cell[0][1], len(order))))
    for place, ((_, arm, n), samples) in enumerate(cells):
        ends = place + 1 == len(cells) or cells[place + 1][0][2] != n
        table.add_row(arm, str(n), *_row(workload, samples, record, columns), end_section=ends)
    return table


def _row(workload: Workload, samples: Sequence[Sample], record: Record, columns) -> Iterator:
    if not any(s.ok for s in samples):
        yield Text(samples[0].status.upper(), style="bold red")
        yield from ("-" for _ in columns[1:])
        return
    for column in columns:
        yield _cell(column, workload, samples, record)


def _cell(column: str, workload: Workload, samples: Sequence[Sample], record: Record):
    match column:
        case "against":
            return against(record, workload, samples[0])
        case "steady ms":
            return steady(samples)
        case "peak MB":
            return _median(samples, "peak_growth", 1e-6, ".0f")
        case "programs":
            return _median(samples, "programs", 1, ".0f")
        case "HLO":
            return _median(samples, "hlo_instructions", 1, ",.0f")
        case "values":
            return _values(workload, samples)
        case "cpu":
            return _median(samples, "cold_cpu", 1, ".2f")
        case "Σ compile":
            return _median(samples, "compile_sum", 1, ".2f")
        case _:
            return _median(samples, column.replace(" ", "_"), 1, ".2f")


def _median(samples: Sequence[Sample], measure: str, unit: float, form: str) -> str:
    found = numbers(samples, measure)
    return format(statistics.median(found) * unit, form) if found else "-"


def against(record: Record, workload: Workload, sample: Sample) -> Text:
    """How this arm's cold call compares with the reference's, either way in bold."""
    mine = record.median(sample.workload, sample.arm, sample.n, "cold")
    reference = record.median(sample.workload, workload.reference, sample.n, "cold")
    if mine is None or reference is None:
        return Text("-")
    if sample.arm == workload.reference:
        return Text("1")
    if mine <= reference:
        return Text(f"{reference / mine:.1f}x faster", style="bold green")
    return Text(f"{mine / reference:.1f}x SLOWER", style="bold red")


def steady(samples: Iterable[Sample]) -> str:
    """Median and half the interquartile range of all warm runs, in milliseconds."""
    runs = [1e3 * run for s in samples if s.ok for run in s.measures.get("steady", ())]
    if not runs:
        return "-"
    middle = statistics.median(runs)
    if len(runs) < 4:
        return f"{middle:.3g}"
    low, _, high = statistics.quantiles(runs, n=4)
    return f"{middle:.3g} ±{(high - low) / 2:.2g}"


def _values(workload: Workload, samples: Sequence[Sample]) -> Text:
    if samples[0].arm == workload.reference:
        return Text("reference")
    shown = next((s.distance for s in samples if s.distance), "-")
    return Text(shown, style="green" if shown == "equal bits" else "")


def _problem_lines(record: Record) -> Iterator[Text]:
    for (workload, arm, n), samples in record.cells():
        failed = [s for s in samples if not s.ok]
        if failed:
            counts = f"{len(failed)} of {len(samples)} samples"
            yield Text(f"{workload}, {arm}, n={n}: {counts} failed: {failed[0].reason}", "red")
    for problem in record.problems:
        yield Text(f"WRONG: {problem}", style="bold red")
    if record.interrupted:
        yield Text("Interrupted: these are the samples that had finished.", style="bold yellow")

"""The tables of a run, for a terminal of any width.

Losses are shown like wins: the same column, the same weight, the same number of digits.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.records import Key, Record, Sample, numbers
from harness.registry import Workload

NOTE = (
    "{samples}, each a fresh process without caches. Seconds: cold = call to values ready = "
    "trace + lower + compile + first run (the rest, compilecut's planning included). A steady run "
    "is a later call, ± half the interquartile range. peak: growth over before the call; HLO: "
    "optimised instructions of all programs."
)
NOTE_OF_DETAILS = " Σ compile: threads added up; cpu: processor seconds of the cold call."

Cell = tuple[Key, list[Sample]]
SPREAD = ("samples", "lowest", "highest")
COLUMNS = (
    *("cold", *SPREAD, "against", "trace", "lower", "compile", "first run"),
    *("steady ms", "peak MB", "programs", "HLO", "values"),
)
DETAILS = ("Σ compile", "cpu")
WIDE = 100  # narrower terminals go without the details; the record has them
BESIDE = 2  # what a column takes beyond its text
EDGES = 1


def render(record: Record, workloads: Mapping[str, Workload], width: int) -> RenderableType:
    """Every workload's table; in as many parts, one below the other, as the width asks for."""
    parts: list[RenderableType] = []
    for name, workload in workloads.items():
        cells = [(key, samples) for key, samples in record.cells() if key[0] == name]
        if cells:
            title = f"{workload.name}: {workload.summary} (n = {workload.unit})"
            parts += [Text(title, style="bold"), *_tables(workload, cells, record, width)]
    note = NOTE.format(samples=samples_of(record.samples))
    note += NOTE_OF_DETAILS if width >= WIDE else ""
    return Group(*parts, Text(note, style="dim"), *_problem_lines(record))


def samples_of(samples: Iterable[Sample]) -> str:
    """What a number in the tables is made of."""
    counts = Counter(sample.key for sample in samples).values()
    low, high = min(counts, default=0), max(counts, default=0)
    if high <= 1:
        return "One sample for each arm and size"
    return f"Medians of {low if low == high else f'{low} to {high}'} samples"


def print_record(console: Console, record: Record, workloads: Mapping[str, Workload]) -> None:
    """Prints the tables."""
    console.print(render(record, workloads, console.width))


def _tables(
    workload: Workload, cells: list[Cell], record: Record, width: int
) -> Iterator[RenderableType]:
    order = {arm.name: place for place, arm in enumerate(workload.arms)}
    cells = sorted(cells, key=lambda cell: (cell[0][2], order.get(cell[0][1], len(order))))
    single = max(len(samples) for _, samples in cells) == 1
    columns = [c for c in COLUMNS if not (single and c in SPREAD)]
    columns += DETAILS if width >= WIDE else ()
    headings = [f"vs {workload.reference}" if c == "against" else c for c in columns]
    rows = [list(_row(workload, samples, record, columns)) for _, samples in cells]
    names = [max(len("arm"), *(len(key[1]) for key, _ in cells)), 2]
    widths = [
        max(len(heading), *(len(row[place]) for row in rows)) + BESIDE
        for place, heading in enumerate(headings)
    ]
    room = width - sum(names) - len(names) * BESIDE - EDGES
    for part in _packed(widths, room):
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("arm", no_wrap=True)
        table.add_column("n", justify="right")
        for place in part:
            left = columns[place] == "values"
            table.add_column(headings[place], justify="left" if left else "right")
        for index, ((_, arm, n), _) in enumerate(cells):
            ends = index + 1 < len(cells) and cells[index + 1][0][2] != n
            table.add_row(arm, str(n), *(rows[index][p] for p in part), end_section=ends)
        yield table


def _packed(widths: Sequence[int], room: int) -> list[list[int]]:
    """Places of columns by table, as many side by side as there is room for.

    >>> _packed([5, 5, 5], 12)
    [[0, 1], [2]]
    """
    parts: list[list[int]] = [[]]
    for place, width in enumerate(widths):
        if parts[-1] and sum(widths[p] for p in parts[-1]) + width > room:
            parts.append([])
        parts[-1].append(place)
    return parts


def _row(
    workload: Workload, samples: Sequence[Sample], record: Record, columns
) -> Iterator[str | Text]:
    if not any(s.ok for s in samples):
        yield Text(samples[0].status.upper(), style="bold red")
        yield from ("-" for _ in columns[1:])
        return
    for column in columns:
        yield _cell(column, workload, samples, record)


def _cell(column: str, workload: Workload, samples: Sequence[Sample], record: Record) -> str | Text:
    match column:
        case "against":
            return against(record, workload, samples[0])
        case "samples":
            return str(sum(s.ok for s in samples))
        case "lowest":
            return format(min(numbers(samples, "cold")), ".2f")
        case "highest":
            return format(max(numbers(samples, "cold")), ".2f")
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
    if parity(record, sample.key, (sample.workload, workload.reference, sample.n), "cold"):
        return Text("parity")
    if mine <= reference:
        return Text(f"{reference / mine:.1f}x faster", style="bold green")
    return Text(f"{mine / reference:.1f}x SLOWER", style="bold red")


def parity(record: Record, one: Key, other: Key, measure: str) -> bool:
    """Whether the ranges of two cells overlap, each of several samples: nothing to tell apart."""
    a, b = (numbers(record.cell(*key), measure) for key in (one, other))
    return min(len(a), len(b)) > 1 and min(a) <= max(b) and min(b) <= max(a)


def steady(samples: Iterable[Sample]) -> str:
    """Median and half the interquartile range of all steady runs, in milliseconds."""
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

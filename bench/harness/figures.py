"""Claims about a record: what was promised, what was measured, and whether it holds."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.records import Key, Record, numbers
from workloads import WORKLOADS, words

MARK = {True: "[green]holds", False: "[bold red]MISSED", None: "measured only"}
MEASURES = {
    "cold": "cold call",
    "compile": "compile",
    "compile_sum": "compile (threads added up)",
    "cold_cpu": "processor seconds of the cold call",
    "steady": "steady run",
    "run_peak_growth": "peak memory of a steady run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number and what it was promised to be.

    Attributes:
        name: What it is, in a few words; unique in its bench.
        measured: The number, or `None` if samples for it are missing.
        at_least: The promise from below, if there is one.
        at_most: The promise from above, if there is one.
        detail: The numbers it was made of.
        low: What the samples that speak most against it make of it; `None` unless a ratio.
        high: What those that speak most for it make of it.
        samples: How many samples each side has, the fewer of the two.
    """

    name: str
    measured: float | None
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""
    low: float | None = None
    high: float | None = None
    samples: int = 0

    @property
    def holds(self) -> bool | None:
        """Whether the promise is kept; `None` where nothing was promised."""
        if self.at_least is None and self.at_most is None:
            return None
        if self.measured is None:
            return False
        low = self.at_least is None or self.measured >= self.at_least
        return low and (self.at_most is None or self.measured <= self.at_most)

    def as_data(self) -> dict[str, Any]:
        """As the record keeps it."""
        return asdict(self) | {"holds": self.holds}


def less(
    record: Record,
    workload: str,
    n: int,
    slow: str,
    fast: str,
    measure: str,
    at_least: float | None = None,
) -> Figure:
    """How many times less of a measure `fast` takes than `slow`."""
    sides = (workload, slow, n), (workload, fast, n)
    return _ratio(
        record,
        *sides,
        measure,
        name=(
            f"{at(workload, n)}: {MEASURES[measure]} of {words(workload, fast)}, "
            f"times less than {words(workload, slow)}"
        ),
        at_least=at_least,
    )


def more(
    record: Record,
    workload: str,
    n: int,
    contender: str,
    baseline: str,
    measure: str,
    at_most: float | None = None,
) -> Figure:
    """A measure of one arm as a multiple of that of another at the same size."""
    return _ratio(
        record,
        (workload, contender, n),
        (workload, baseline, n),
        measure,
        name=(
            f"{at(workload, n)}: {MEASURES[measure]} of {words(workload, contender)}, "
            f"as a multiple of that of {words(workload, baseline)}"
        ),
        at_most=at_most,
    )


def other_size(
    record: Record,
    workload: str,
    contender: tuple[str, int],
    baseline: tuple[str, int],
    measure: str,
    at_most: float | None = None,
) -> Figure:
    """A measure of one arm as a multiple of that of another arm at another size."""
    (arm, n), (other, small) = contender, baseline
    return _ratio(
        record,
        (workload, arm, n),
        (workload, other, small),
        measure,
        name=(
            f"{at(workload, n)}: {MEASURES[measure]} of {words(workload, arm)}, "
            f"as a multiple of that of {words(workload, other)} at {small}"
        ),
        at_most=at_most,
    )


def growth(
    record: Record,
    workload: str,
    arm: str,
    sizes: tuple[int, int],
    measure: str,
    at_most: float | None = None,
) -> Figure:
    """A measure at the larger size, as a multiple of that at the smaller one."""
    small, large = sizes
    return _ratio(
        record,
        (workload, arm, large),
        (workload, arm, small),
        measure,
        name=(
            f"{at(workload, large)}: {MEASURES[measure]} of {words(workload, arm)}, "
            f"as a multiple of that at {small}"
        ),
        at_most=at_most,
    )


def at(workload: str, n: int) -> str:
    """A workload at a size, in words: `init, 32 layers`."""
    return f"{workload}, {n} {WORKLOADS[workload].unit if workload in WORKLOADS else ''}".rstrip()


def _ratio(record: Record, above: Key, below: Key, measure: str, **rest: Any) -> Figure:
    """The ratio of two medians, and of the samples furthest apart either way."""
    a, b = (sorted(numbers(record.cell(*key), measure)) for key in (above, below))
    detail = f"{_spread(a)} against {_spread(b)}"
    if not a or not b or not b[0]:
        return Figure(measured=None, detail=detail, **rest)
    return Figure(
        measured=statistics.median(a) / statistics.median(b),
        detail=detail,
        low=a[0] / b[-1],
        high=a[-1] / b[0],
        samples=min(len(a), len(b)),
        **rest,
    )


def share(record: Record, key: Key, measure: str, allowed: Callable[[float], float]) -> Figure:
    """Memory as a share of what is allowed, which depends on the bytes of the outputs."""
    used, outputs = (record.median(*key, name) for name in (measure, "output_bytes"))
    limit = None if outputs is None else allowed(outputs)
    workload, arm, n = key
    detail = "" if used is None or limit is None else f"{used / 1e6:.0f} of {limit / 1e6:.0f} MB"
    return Figure(
        name=(
            f"{at(workload, n)}: {MEASURES[measure]} of {words(workload, arm)}, "
            "as a share of what is allowed"
        ),
        measured=used / limit if used is not None and limit else None,
        at_most=1.0,
        detail=detail,
        samples=len(record.cell(*key)),
    )


def finishes(record: Record, key: Key, measure: str, at_most: float) -> Figure:
    """A measure of something that has to finish at all."""
    seconds = record.median(*key, measure)
    workload, arm, n = key
    return Figure(
        name=f"{at(workload, n)}: {MEASURES[measure]} of {words(workload, arm)}, seconds",
        measured=seconds,
        at_most=at_most,
        samples=len(record.cell(*key)),
    )


def print_figures(console: Console, figures: Iterable[Figure]) -> None:
    """One row a figure."""
    table = Table(title="Figures", title_justify="left", title_style="bold")
    for column in ("figure", "measured", "lowest to highest", "samples", "promised", "", "from"):
        table.add_column(column, justify="left" if column in ("figure", "", "from") else "right")
    for figure in figures:
        low, high = figure.at_least, figure.at_most
        promised = f">= {low:g}" if low is not None else f"<= {high:g}" if high is not None else ""
        measured = "missing" if figure.measured is None else f"{figure.measured:.3g}"
        table.add_row(
            figure.name,
            measured,
            span(figure.low, figure.high),
            str(figure.samples),
            promised,
            MARK[figure.holds],
            figure.detail,
        )
    console.print(table)


def span(low: float | None, high: float | None) -> str:
    """Two ends of a range, or nothing."""
    return "" if low is None or high is None else f"{low:.3g} to {high:.3g}"


def _spread(seconds: Sequence[float]) -> str:
    """A median with the lowest and highest, `seconds` being in order."""
    if not seconds:
        return "missing"
    return f"{statistics.median(seconds):.3g} s ({span(seconds[0], seconds[-1])})"

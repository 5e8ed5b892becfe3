"""Claims about a record: what was promised, what was measured, and whether it holds."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.records import Record

MARK = {True: "[green]holds", False: "[bold red]MISSED", None: "measured only"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number and what it was promised to be.

    Attributes:
        name: What it is, in a few words; unique in its bench.
        measured: The number, or `None` if samples for it are missing.
        at_least: The promise from below, if there is one.
        at_most: The promise from above, if there is one.
        detail: The numbers it was made of.
    """

    name: str
    measured: float | None
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

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
    a = record.median(workload, slow, n, measure)
    b = record.median(workload, fast, n, measure)
    return Figure(
        name=f"{workload}, n={n}: {measure} of {fast}, times less than {slow}",
        measured=a / b if a is not None and b else None,
        at_least=at_least,
        detail=f"{_seconds(a)} against {_seconds(b)}",
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
    a, b = (record.median(workload, arm, n, measure) for n in sizes)
    return Figure(
        name=f"{workload}: {measure} of {arm}, n={sizes[1]} as a multiple of n={sizes[0]}",
        measured=b / a if a and b is not None else None,
        at_most=at_most,
        detail=f"{_seconds(b)} against {_seconds(a)}",
    )


def share(
    record: Record, key: tuple[str, str, int], measure: str, allowed: Callable[[float], float]
) -> Figure:
    """Memory as a share of what is allowed, which depends on the bytes of the outputs."""
    used, outputs = (record.median(*key, name) for name in (measure, "output_bytes"))
    limit = None if outputs is None else allowed(outputs)
    workload, arm, n = key
    detail = "" if used is None or limit is None else f"{used / 1e6:.0f} of {limit / 1e6:.0f} MB"
    return Figure(
        name=f"{workload}, n={n}: {measure} of {arm}, as a share of what is allowed",
        measured=used / limit if used is not None and limit else None,
        at_most=1.0,
        detail=detail,
    )


def finishes(record: Record, key: tuple[str, str, int], measure: str, at_most: float) -> Figure:
    """A measure of something that has to finish at all."""
    seconds = record.median(*key, measure)
    workload, arm, n = key
    return Figure(
        name=f"{workload}, n={n}: {measure} of {arm}, seconds", measured=seconds, at_most=at_most
    )


def print_figures(console: Console, figures: Iterable[Figure]) -> None:
    """One row a figure."""
    table = Table(title="Figures", title_justify="left", title_style="bold")
    for column in ("figure", "measured", "promised", "", "from"):
        table.add_column(column, justify="right" if column in ("measured", "promised") else "left")
    for figure in figures:
        low, high = figure.at_least, figure.at_most
        promised = f">= {low:g}" if low is not None else f"<= {high:g}" if high is not None else ""
        measured = "missing" if figure.measured is None else f"{figure.measured:.3g}"
        table.add_row(figure.name, measured, promised, MARK[figure.holds], figure.detail)
    console.print(table)


def _seconds(value: float | None) -> str:
    return "missing" if value is None else f"{value:.2f} s"

"""The progress bar: what runs, what is done, and an estimate that learns from what it saw."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from harness.records import Sample
from harness.registry import Cell

# A running sample fills no more than this much of its share of the bar.
ALMOST = 0.97


class Bar:
    """Shows a run in a terminal, and one line per finished sample everywhere else too.

    The estimate starts from each arm's hint. The ratio of what finished samples took to what their
    hints said then scales what is left, so a slow machine is found out after a sample or two.
    """

    def __init__(self, console: Console, cells: Sequence[Cell]):
        self.expected = sum(cell.arm.expected_seconds(cell.n) * cell.repeat for cell in cells)
        self.count = sum(cell.repeat for cell in cells)
        self.done, self.done_count, self.spent, self.share = 0.0, 0, 0.0, 0.0
        self.started = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self.task = self.progress.add_task("starting", total=self.expected, left="")

    def __enter__(self) -> "Bar":
        runs = "1 sample" if self.count == 1 else f"{self.count} samples in turn"
        takes = duration(self.expected)
        self.progress.console.print(
            f"{runs}, each in a fresh process: {takes} on two idle cores.", highlight=False
        )
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def start(self, cell: Cell, index: int) -> None:
        """A sample begins."""
        self.share = cell.arm.expected_seconds(cell.n)
        again = f" #{index + 1}" if cell.repeat > 1 else ""
        what = f"{cell.workload.name} {cell.arm.name} n={cell.n}{again}"
        self.progress.update(self.task, description=f"{self.done_count + 1}/{self.count} {what}")
        self.tick(0.0)

    def tick(self, seconds: float) -> None:
        """The sample has been running for so long."""
        pace = self.spent / self.done if self.done else 1.0
        pace = max(pace, seconds / max(self.share, 1e-6))  # a sample that is late says so too
        part = min(seconds / max(pace, 1e-6), ALMOST * self.share)
        left = max((self.expected - self.done - part) * pace, 0.0)
        text = f"~{left:.0f} s left"
        self.progress.update(self.task, completed=self.done + part, left=text)

    def finish(self, cell: Cell, sample: Sample) -> None:
        """The sample is over."""
        self.done += self.share
        self.done_count += 1
        self.spent += sample.wall
        self.progress.update(self.task, completed=self.done)
        took = f"cold {sample.measures['cold']:.2f} s" if sample.ok else sample.reason
        style = "dim" if sample.ok else "red"
        name = f"{cell.workload.name:8} {cell.arm.name:16} n={cell.n:<3}"
        self.progress.console.print(f"{name} {took}", style=style, highlight=False, markup=False)


def duration(seconds: float) -> str:
    """A guess of so many seconds, in words."""
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} s"
    return f"about {seconds / 60:.1f} minutes"

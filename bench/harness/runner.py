"""Runs a grid of cells, sample by sample, and compares what they returned.

Arms are interleaved: every cell's first sample comes before any cell's second, so that a slow
minute of the machine falls on all of them.
"""

import itertools
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from harness import process, values
from harness.records import Key, Sample
from harness.registry import Cell, Workload


class Progress(Protocol):
    """What the runner tells whoever watches."""

    def start(self, cell: Cell, index: int) -> None: ...

    def tick(self, seconds: float) -> None: ...

    def finish(self, cell: Cell, sample: Sample) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a grid came to.

    Attributes:
        samples: Those that finished, with distances where values could be compared.
        interrupted: Whether Ctrl-C (or SIGTERM) ended it early.
    """

    samples: tuple[Sample, ...]
    interrupted: bool


def run(cells: Sequence[Cell], progress: Progress) -> Outcome:
    """Runs every sample of `cells`; stops early, keeping what is finished, on Ctrl-C."""
    samples: list[Sample] = []
    interrupted = False
    root = Path(tempfile.mkdtemp(prefix="compilecut-bench-"))
    try:
        with _terminable():
            for number, (index, cell) in enumerate(schedule(cells)):
                folder = root / str(number)
                progress.start(cell, index)
                sample = process.run(cell, folder, progress.tick)
                _keep_first_values(folder, root, sample)
                samples.append(sample)
                progress.finish(cell, sample)
    except KeyboardInterrupt:
        interrupted = True
    workloads = {cell.workload.name: cell.workload for cell in cells}
    compared = tuple(_with_distances(samples, workloads, root))
    shutil.rmtree(root, ignore_errors=True)
    return Outcome(samples=compared, interrupted=interrupted)


def schedule(cells: Sequence[Cell]) -> Iterator[tuple[int, Cell]]:
    """All first samples, then all second ones, and so on; with the sample's number."""
    for index in itertools.count():
        due = [cell for cell in cells if index < cell.repeat]
        if not due:
            return
        yield from ((index, cell) for cell in due)


@contextmanager
def _terminable() -> Iterator[None]:
    """Makes SIGTERM end the run as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _values_file(root: Path, key: Key) -> Path:
    workload, arm, n = key
    return root / f"{workload}-{arm.replace('/', '_')}-{n}.npz"


def _keep_first_values(folder: Path, root: Path, sample: Sample) -> None:
    """Keeps one result per cell, and drops the rest of the sample's folder."""
    written, kept = folder / "values.npz", _values_file(root, sample.key)
    if sample.ok and written.exists() and not kept.exists():
        written.rename(kept)
    shutil.rmtree(folder)


def _with_distances(
    samples: Sequence[Sample], workloads: dict[str, Workload], root: Path
) -> Iterator[Sample]:
    """Adds to each sample how far it is from the reference arm at its size."""
    first = {}
    for sample in samples:
        if sample.ok:
            first.setdefault(sample.key, sample)
    known: dict[Key, str] = {}
    for sample in samples:
        reference = (sample.workload, workloads[sample.workload].reference, sample.n)
        if not sample.ok or reference not in first or "digest" not in sample.measures:
            yield sample
        elif sample.measures["digest"] == first[reference].measures.get("digest"):
            yield replace(sample, distance=str(values.Distance()))
        else:
            if sample.key not in known:
                known[sample.key] = compare_files(
                    _values_file(root, sample.key), _values_file(root, reference)
                )
            yield replace(sample, distance=known[sample.key])


def compare_files(left: Path, right: Path) -> str:
    """The distance of two results, as text."""
    return str(values.distance(values.load(left), values.load(right)))

"""The benches that check promises: their rows measure every figure, and they run at toy size."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import chunks as bench_chunks
import depth as bench_depth
import init as bench_init
import pytest

from harness import records
from harness.claims import Row
from harness.figures import Figure
from harness.records import Record, Sample

ROOT = Path(__file__).parents[1]
MEASURES = (
    *("cold", "cold_cpu", "compile", "compile_sum", "steady"),
    *("run_peak_growth", "output_bytes"),
)


def as_if_run(rows: list[Row]) -> Record:
    """A record with a sample for each row and size, all measures 1."""
    cells = [(row.workload, row.arm, n) for row in rows for n in row.sizes]
    measures: dict[str, Any] = dict.fromkeys(MEASURES, 1.0)
    samples = [
        Sample(workload=w, arm=arm, n=n, status="ok", measures=measures) for w, arm, n in cells
    ]
    return Record(machine={}, samples=tuple(samples))


def init_figures() -> list[Figure]:
    """The figures of `bench/init.py` on such a record."""
    flat = (8, 16, 32, 64)
    return bench_init.figures_of(as_if_run(bench_init.rows(32, 24, flat, 1)), 32, 24, flat)


def chunks_figures() -> list[Figure]:
    """The figures of `bench/chunks.py` on such a record."""
    flat = (2, 8, 32)
    return bench_chunks.figures_of(as_if_run(bench_chunks.rows(8, flat, 1)), 8, flat)


def depth_figures() -> list[Figure]:
    """The figures of `bench/depth.py` on such a record."""
    sizes = ((48, 96), 24, 40)
    return bench_depth.figures_of(as_if_run(bench_depth.rows(*sizes, 1)), *sizes)


@pytest.mark.parametrize("make", [init_figures, chunks_figures, depth_figures])
def test_rows_measure_every_figure(make):
    found = make()
    assert all(figure.measured is not None for figure in found)
    assert len({figure.name for figure in found}) == len(found)


def test_equal_times_hold_no_promise_of_less_time():
    figures = init_figures() + chunks_figures() + depth_figures()
    promised = [f for f in figures if f.at_least is not None]
    assert [f.at_least for f in promised] == [20, 3, 5, 5, 5, 5, 4, 6, 12, 2.5, 4, 5, 5]
    assert not any(figure.holds for figure in promised)


def test_rows_name_arms_that_exist():
    rows = [*bench_init.rows(32, 24, (8, 64), 3), *bench_chunks.rows(8, (2, 32), 3)]
    for row in [*rows, *bench_depth.rows((48, 96), 24, 40, 3)]:
        assert [cell.n for cell in row.cells()] == list(row.sizes)


@pytest.mark.parametrize(
    "rows",
    [
        bench_init.rows(32, 24, (8, 64), 3),
        bench_chunks.rows(8, (2, 32), 3),
        bench_depth.rows((48, 96), 24, 40, 3),
    ],
)
def test_slow_arms_get_as_many_samples_as_ours(rows):
    assert {row.repeat for row in rows} == {3}


@pytest.mark.slow
@pytest.mark.parametrize("bench", ["init", "chunks", "depth"])
def test_tiny_bench_runs_from_end_to_end(tmp_path: Path, bench: str):
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "bench" / f"{bench}.py"), "--tiny", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    record = records.load(out)
    assert not record.problems
    assert all(figure["measured"] is not None for figure in record.figures)
    assert "Figures" in done.stdout

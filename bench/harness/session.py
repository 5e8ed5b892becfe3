"""One run from cells to a record: what `compare.py`, `init.py` and `chunks.py` share."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import checks, environment, runner
from harness.records import Record
from harness.registry import Cell, Workload
from harness.view import Bar

INTERRUPTED = 130
WITHOUT_TERMINAL = 170


def make_console() -> Console:
    """A console that does not squeeze its tables where no terminal sets the width (a CI log)."""
    console = Console()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(width=WITHOUT_TERMINAL)


def take(console: Console, cells: Sequence[Cell]) -> Record:
    """Runs the cells with a progress bar; the record holds whatever finished."""
    machine = environment.machine()
    with Bar(console, cells) as bar:
        outcome = runner.run(cells, bar)
    machine["load_after"] = environment.load()
    workloads = {cell.workload.name: cell.workload for cell in cells}
    return Record(
        machine=machine,
        samples=outcome.samples,
        problems=tuple(checks.problems(outcome.samples, workloads)),
        interrupted=outcome.interrupted,
    )


def load_extra(file: Path) -> Mapping[str, Workload]:
    """The `WORKLOADS` of a file outside this repository: a user's own program on the same bench."""
    spec = importlib.util.spec_from_file_location("extra_workloads", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WORKLOADS


def describe(record: Record) -> str:
    """One line that says where the numbers come from."""
    machine = record.machine
    versions = machine["versions"]
    return (
        f"jax {versions['jax']}, jaxlib {versions['jaxlib']}, Python {machine['python']}; "
        f"{machine['processor']}, {machine['cores']} cores, "
        f"load {_loads(machine)}; commit {machine['commit']}, {machine['date']}"
    )


def _loads(machine: Mapping[str, Any]) -> str:
    before = f"{machine['load_before'][0]} before"
    return f"{before}, {machine['load_after'][0]} after" if "load_after" in machine else before

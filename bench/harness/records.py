"""What a run leaves behind: its samples, and how they are kept in a JSON file.

The file carries the version of its schema; a reader refuses others instead of guessing.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1

Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One process's measurements, or why there are none.

    Attributes:
        workload: The workload's name.
        arm: The arm's name.
        n: The size.
        status: `"ok"`, `"timeout"`, `"crash"` or `"killed"`.
        reason: Why a sample that isn't ok isn't.
        wall: Seconds the process lived.
        measures: What `bench/sample.py` measured; empty unless ok.
        distance: How far its values are from the reference's, as text; empty if not compared.
    """

    workload: str
    arm: str
    n: int
    status: str
    reason: str = ""
    wall: float = 0.0
    measures: dict[str, Any] = field(default_factory=dict)
    distance: str = ""

    @property
    def key(self) -> Key:
        """The cell it belongs to."""
        return self.workload, self.arm, self.n

    @property
    def ok(self) -> bool:
        """Whether it has measurements."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run of a bench.

    Attributes:
        machine: Where it was taken (`environment.machine`).
        samples: In the order they finished.
        problems: What must not be and was: differing values, identical arms, odd settings.
        figures: Claims checked on these samples, for benches that check any.
        interrupted: Whether it was stopped before its last sample.
        schema: The version of this layout.
    """

    machine: dict[str, Any]
    samples: tuple[Sample, ...]
    problems: tuple[str, ...] = ()
    figures: tuple[dict[str, Any], ...] = ()
    interrupted: bool = False
    schema: int = SCHEMA

    def cells(self) -> Iterator[tuple[Key, list[Sample]]]:
        """Samples by cell, cells in the order they were first sampled."""
        groups: dict[Key, list[Sample]] = {}
        for sample in self.samples:
            groups.setdefault(sample.key, []).append(sample)
        yield from groups.items()

    def cell(self, workload: str, arm: str, n: int) -> list[Sample]:
        """The ok samples of one cell."""
        return [s for s in self.samples if s.key == (workload, arm, n) and s.ok]

    def median(self, workload: str, arm: str, n: int, measure: str) -> float | None:
        """The median of a measure over a cell's ok samples, `None` without any."""
        found = numbers(self.cell(workload, arm, n), measure)
        return statistics.median(found) if found else None


def numbers(samples: Iterable[Sample], measure: str) -> list[float]:
    """A measure of each ok sample that has it; of a list (steady runs), its median."""
    found = [s.measures[measure] for s in samples if s.ok and measure in s.measures]
    return [statistics.median(x) if isinstance(x, list) else float(x) for x in found]


def save(file: Path, record: Record) -> None:
    """Writes a record whole or not at all: a reader never sees half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(_as_text(asdict(record)))
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise


def _as_text(data: dict[str, Any]) -> str:
    """JSON with one sample or figure a line, so that a diff shows which one changed."""
    entries = []
    for name, value in data.items():
        text = json.dumps(value)
        if isinstance(value, tuple | list) and value:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        entries.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def load(file: Path) -> Record:
    """Reads what `save` wrote.

    Raises:
        ValueError: If the file isn't a record, or one of another schema.
    """
    try:
        data = json.loads(file.read_text())
        schema = data["schema"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is not a record of this bench: {error!r}") from None
    if schema != SCHEMA:
        raise ValueError(f"{file} has schema {schema}; this version reads {SCHEMA}. Take it again.")
    samples = tuple(Sample(**sample) for sample in data.pop("samples"))
    problems, figures = tuple(data.pop("problems")), tuple(data.pop("figures"))
    return Record(samples=samples, problems=problems, figures=figures, **data)

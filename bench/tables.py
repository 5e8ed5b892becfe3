"""Writes the measured tables of README.md and the docs from `bench/results/*.json`.

    python bench/tables.py            # after a bench has written new results; `make tables`

A page holds `<!-- measured:NAME -->` and `<!-- /measured -->`; what stands between them is this
script's, and a test fails when it is stale. No number on a page is typed by hand.
"""

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import records, session, table
from harness.figures import span
from harness.records import Key, Record, Sample
from workloads import words

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
BLOCK = re.compile(r"(<!-- measured:([\w-]+) -->\n).*?(<!-- /measured -->)", re.DOTALL)
NOT_YET = "*Not measured yet: `make bench` takes the numbers, `make tables` writes them here.*"
LIBRARIES = {"linen": "Flax linen", "nnx": "Flax nnx", "equinox": "Equinox", "haiku": "Haiku"}

HEADINGS = (
    *("program", "written as", "cold call", "compile", "steady run"),
    *("cold, times compilecut's", "its processor seconds", "compile, times compilecut's"),
    "values",
)
ARM_MEASURES = (
    *("cold", "cold_cpu", "compile", "steady"),
    *("peak_growth", "programs", "hlo_instructions"),
)
RATIOS = ("cold", "cold_cpu", "compile")
RANGES = "in brackets the lowest and the highest. Each sample is a fresh process with caches off."
PARITY = '"Parity": the two ranges overlap, and nothing can be told apart.'

Line = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A program of the front page: its usual ways, and ours.

    Attributes:
        what: The program, in words.
        workload: Its name in the bench.
        n: Its size.
        ours: The arm that is compilecut.
        usual: The arms that are not.
    """

    what: str
    workload: str
    n: int
    ours: str
    usual: tuple[str, ...]


ENTRIES = {
    "depth": (
        Entry(
            what="train step of 48 blocks",
            workload="layers",
            n=48,
            ours="packed",
            usual=("jit", "nn.scan"),
        ),
        Entry(
            what="gradient of 24 residual MLPs",
            workload="residual",
            n=24,
            ours="fold",
            usual=("jit", "lax.scan"),
        ),
        Entry(
            what="likelihood of 40 Gaussians, with gradient",
            workload="gaussians",
            n=40,
            ours="fold",
            usual=("jit",),
        ),
    ),
    "init": (
        Entry(
            what="init of 224 sites",
            workload="init",
            n=32,
            ours="stacked_init",
            usual=("jit", "vmap+slice", "per-kind"),
        ),
        *(
            Entry(
                what=f"{name} init, 24 layers",
                workload=library,
                n=24,
                ours="stacked_init",
                usual=("jit",),
            )
            for library, name in LIBRARIES.items()
        ),
    ),
    "chunks": (
        Entry(
            what="train step of 8 chunks",
            workload="chunks",
            n=8,
            ours="scan_chunks",
            usual=("loop", "scan-by-hand"),
        ),
    ),
}


def pages() -> list[Path]:
    """Every page that may hold a measured block."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rewrite(text: str, results: Path = RESULTS) -> str:
    """A page's text with its measured blocks made from the results.

    Raises:
        KeyError: If a block's name is not one of `BLOCKS`.
    """
    return BLOCK.sub(lambda m: f"{m[1]}\n{BLOCKS[m[2]](results)}\n\n{m[3]}", text)


def summary(results: Path) -> str:
    """The table of the front pages: every way of writing each program that was measured."""
    found = _results(results)
    lines = [
        line
        for name, record in found.items()
        for entry in ENTRIES[name]
        for line in _entry_lines(record, entry)
    ]
    if not lines:
        return NOT_YET
    notes = (_note(found.values()) + " " + PARITY, *map(_source, found.values()))
    return "\n\n".join([_markdown(HEADINGS, lines), *map(_small, notes)])


def steady(results: Path) -> str:
    """What a later call of an init takes, in a sentence: compilecut loses there."""
    record = _load(results / "init.json")
    if not record:
        return NOT_YET
    (ours, jitted), *others = [
        [_numbers(record, entry, arm, "steady") for arm in (entry.ours, "jit")]
        for entry in ENTRIES["init"]
    ]
    names = zip(LIBRARIES.values(), others, strict=True)
    libraries = ", ".join(f"{_longer(*pair)} for {name}" for name, pair in names)
    return (
        f"A later call of an init compiles nothing. Such a steady run of the 224 sites takes "
        f"{_milliseconds(ours)} with `stacked_init` and {_milliseconds(jitted)} with "
        f"`jax.jit(init)`: {_longer(ours, jitted)} times as long ({libraries})."
    )


def init_arms(results: Path) -> str:
    """Every arm of the W1 initialiser at 32 layers."""
    record = _load(results / "init.json")
    return _arms(record, "init", 32) if record else NOT_YET


def chunks_arms(results: Path) -> str:
    """Every arm of the chunked step at 8 chunks."""
    record = _load(results / "chunks.json")
    return _arms(record, "chunks", 8) if record else NOT_YET


def figures(results: Path) -> str:
    """Every promised figure, and what was measured."""
    found = _results(results).values()
    lines = [
        (
            figure["name"],
            _promise(figure),
            "missing" if figure["measured"] is None else f"{figure['measured']:.3g}",
            span(figure["low"], figure["high"]),
            str(figure["samples"]),
            {True: "yes", False: "**no**", None: ""}[figure["holds"]],
        )
        for record in found
        for figure in record.figures
    ]
    headings = ("figure", "promised", "measured", "lowest to highest", "samples", "holds")
    return _markdown(headings, lines) if lines else NOT_YET


BLOCKS: dict[str, Callable[[Path], str]] = {
    "summary": summary,
    "steady": steady,
    "init": init_arms,
    "chunks": chunks_arms,
    "figures": figures,
}


def _entry_lines(record: Record, entry: Entry) -> Iterator[Line]:
    for arm in (*entry.usual, entry.ours):
        key = (entry.workload, arm, entry.n)
        cold, compiled = (_numbers(record, entry, arm, m) for m in ("cold", "compile"))
        mine = arm == entry.ours
        label = words(entry.workload, arm)
        ours = f"**compilecut: {f'`{arm}`' if label == arm else label}**"
        name = ours if mine else label
        what = "" if arm != entry.usual[0] else entry.what
        if not cold:
            yield what, name, _failure(record, key), *("-" for _ in HEADINGS[3:])
            continue
        yield (
            what,
            name,
            _seconds(cold),
            _seconds(compiled),
            _milliseconds(_numbers(record, entry, arm, "steady")),
            *("" if mine else _times(record, entry, arm, m) for m in RATIOS),
            _bits(record, *key),
        )


def _numbers(record: Record, entry: Entry, arm: str, measure: str) -> list[float]:
    return records.numbers(record.cell(entry.workload, arm, entry.n), measure)


def _times(record: Record, entry: Entry, arm: str, measure: str) -> str:
    """How many times as much as ours an arm takes, from the medians."""
    theirs, ours = (_numbers(record, entry, a, measure) for a in (arm, entry.ours))
    if not theirs or not ours:
        return "-"
    mine, other = ((entry.workload, a, entry.n) for a in (entry.ours, arm))
    if table.parity(record, mine, other, measure):
        return "parity"
    return _short(statistics.median(theirs) / statistics.median(ours))


def _longer(ours: list[float], theirs: list[float]) -> str:
    return _short(statistics.median(ours) / statistics.median(theirs)) if ours and theirs else "-"


def _failure(record: Record, key: Key) -> str:
    return next((s.reason for s in record.samples if s.key == key), "-")


def _arms(record: Record, workload: str, n: int) -> str:
    headings = ("arm", "samples", "cold call", "processor", "compile", "steady run", "peak memory")
    lines = [
        _arm_line(key, samples)
        for key, samples in record.cells()
        if (key[0], key[2]) == (workload, n)
    ]
    rows = _markdown((*headings, "programs", "HLO", "values"), lines)
    return f"{rows}\n\n{_small(_source(record))}"


def _arm_line(key: Key, samples: list[Sample]) -> Line:
    name = words(key[0], key[1])
    cold, processor, compiled, steady, peak, programs, hlo = (
        records.numbers(samples, measure) for measure in ARM_MEASURES
    )
    if not cold:
        return name, "0", samples[0].reason, *("-" for _ in range(7))
    return (
        name,
        str(len(cold)),
        _seconds(cold),
        _seconds(processor),
        _seconds(compiled),
        _milliseconds(steady),
        f"{statistics.median(peak or [0]) / 1e6:.0f} MB",
        f"{statistics.median(programs):.0f}",
        f"{statistics.median(hlo):,.0f}",
        next((s.distance for s in samples if s.distance), "-"),
    )


def _bits(record: Record, workload: str, arm: str, n: int) -> str:
    found = [s.distance for s in record.cell(workload, arm, n) if s.distance]
    return found[0] if found else "-"


def _promise(figure: dict) -> str:
    if figure["at_least"] is not None:
        return f"at least {figure['at_least']:g}"
    return "" if figure["at_most"] is None else f"at most {figure['at_most']:g}"


def _seconds(found: Sequence[float]) -> str:
    return _middle(found, 1, "s")


def _milliseconds(found: Sequence[float]) -> str:
    return _middle(found, 1e3, "ms")


def _middle(found: Sequence[float], unit: float, name: str) -> str:
    """A median, with the lowest and highest where there are several."""
    if not found:
        return "-"
    low, middle, high = (_short(unit * f(found)) for f in (min, statistics.median, max))
    return f"{middle} {name} ({low} to {high})" if len(found) > 1 else f"{middle} {name}"


def _short(value: float) -> str:
    """Three digits: `0.970`, `1.55`, `48.4`, `1,244`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _note(found: Iterable[Record]) -> str:
    samples = [sample for record in found for sample in record.samples]
    return f"{table.samples_of(samples)}; {RANGES}"


def _small(text: str) -> str:
    return f"<small>{text}</small>"


def _source(record: Record) -> str:
    return f"`{record.machine['command']}`: {session.describe(record)}"


def _results(results: Path) -> dict[str, Record]:
    """The results there are, by name."""
    found = {name: _load(results / f"{name}.json") for name in ENTRIES}
    return {name: record for name, record in found.items() if record}


def _markdown(headings: Line, lines: Sequence[Line]) -> str:
    rows = [headings, tuple("---" for _ in headings), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _load(file: Path) -> Record | None:
    return records.load(file) if file.exists() else None


def main() -> None:
    """Rewrites every page in place."""
    for page in pages():
        text = page.read_text()
        if (new := rewrite(text)) != text:
            page.write_text(new)
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

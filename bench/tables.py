"""Writes the measured tables of README.md and the docs from `bench/results/*.json`.

    python bench/tables.py            # after a bench has written new results; `make tables`

A page holds `<!-- measured:NAME -->` and `<!-- /measured -->`; what stands between them is this
script's, and a test fails when it is stale. No number on a page is typed by hand.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness import records, session
from harness.records import Key, Record, Sample

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
BLOCK = re.compile(r"(<!-- measured:([\w-]+) -->\n).*?(<!-- /measured -->)", re.DOTALL)
NOT_YET = "*Not measured yet: `make bench` takes the numbers, `make tables` writes them here.*"
LIBRARIES = {"linen": "Flax linen", "nnx": "Flax nnx", "equinox": "Equinox", "haiku": "Haiku"}

Line = tuple[str, str, str, str, str, str]
HEADINGS: Line = ("what", "usual way", "seconds", "compilecut", "times less", "values")


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
    """The table of the front pages: one line for each thing measured."""
    init, chunks = _load(results / "init.json"), _load(results / "chunks.json")
    parts = []
    lines = [*(_init_lines(init) if init else ()), *(_chunks_lines(chunks) if chunks else ())]
    if lines:
        parts.append(_markdown(HEADINGS, lines))
    parts += [f"<small>{_source(r)}</small>" for r in (init, chunks) if r]
    return "\n\n".join(parts) or NOT_YET


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
    found = [r for name in ("init", "chunks") if (r := _load(results / f"{name}.json"))]
    lines = [
        (
            figure["name"],
            _promise(figure),
            "missing" if figure["measured"] is None else f"{figure['measured']:.3g}",
            {True: "yes", False: "**no**", None: ""}[figure["holds"]],
        )
        for record in found
        for figure in record.figures
    ]
    return _markdown(("figure", "promised", "measured", "holds"), lines) if lines else NOT_YET


BLOCKS: dict[str, Callable[[Path], str]] = {
    "summary": summary,
    "init": init_arms,
    "chunks": chunks_arms,
    "figures": figures,
}


def _init_lines(record: Record) -> Iterator[Line]:
    sites = "init of 224 sites, first call"
    for arm, usual in (
        ("jit", "`jax.jit(init)`"),
        ("vmap+slice", "vmap per shape, slicing jit"),
        ("per-kind", "one program per kind, a call per site"),
    ):
        yield _line(record, sites, usual, ("init", 32), arm, "stacked_init", "cold")
    for library, name in LIBRARIES.items():
        what = f"{name}, 24 layers: init, compile"
        cell = (library, 24)
        yield _line(record, what, "`jax.jit(init)`", cell, "jit", "stacked_init", "compile")


def _chunks_lines(record: Record) -> Iterator[Line]:
    for arm, usual in (("loop", "Python loop"), ("scan-by-hand", "`lax.scan` by hand")):
        what = "train step of 8 chunks, compile"
        yield _line(record, what, usual, ("chunks", 8), arm, "scan_chunks", "compile")


def _line(
    record: Record, what: str, usual: str, cell: tuple[str, int], slow: str, fast: str, measure: str
) -> Line:
    workload, n = cell
    a, b = (record.median(workload, arm, n, measure) for arm in (slow, fast))
    ratio = f"{a / b:.1f}" if a and b else "-"
    return (
        what,
        usual,
        _outcome(record, workload, slow, n, a),
        _seconds(b),
        ratio,
        _bits(record, workload, fast, n),
    )


def _outcome(record: Record, workload: str, arm: str, n: int, seconds: float | None) -> str:
    if seconds is not None:
        return _seconds(seconds)
    failed = [s for s in record.samples if s.key == (workload, arm, n)]
    return failed[0].reason if failed else "-"


def _arms(record: Record, workload: str, n: int) -> str:
    headings = ("arm", "first call", "compile", "warm call", "peak memory", "programs", "HLO")
    lines = [
        _arm_line(record, key, samples)
        for key, samples in record.cells()
        if (key[0], key[2]) == (workload, n)
    ]
    return f"{_markdown((*headings, 'values'), lines)}\n\n<small>{_source(record)}</small>"


def _arm_line(record: Record, key: Key, samples: list[Sample]) -> tuple[str, ...]:
    name = f"`{key[1]}`"
    measures = ("cold", "compile", "steady", "peak_growth", "programs", "hlo_instructions")
    first, compiled, warm, peak, programs, hlo = (record.median(*key, m) for m in measures)
    if first is None:
        return name, samples[0].reason, "-", "-", "-", "-", "-", "-"
    return (
        name,
        _seconds(first),
        _seconds(compiled),
        "-" if warm is None else f"{warm * 1e3:.3g} ms",
        f"{(peak or 0) / 1e6:.0f} MB",
        f"{programs:.0f}",
        f"{hlo:,.0f}",
        _bits(record, *key),
    )


def _bits(record: Record, workload: str, arm: str, n: int) -> str:
    found = [s.distance for s in record.cell(workload, arm, n) if s.distance]
    return found[0] if found else "-"


def _promise(figure: dict) -> str:
    if figure["at_least"] is not None:
        return f"at least {figure['at_least']:g}"
    return "" if figure["at_most"] is None else f"at most {figure['at_most']:g}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def _source(record: Record) -> str:
    return f"`{record.machine['command']}`: {session.describe(record)}"


def _markdown(headings: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
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

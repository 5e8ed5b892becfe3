"""The report as a page: a headline, a table, what stays as written, what to do."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import rich.box
import rich.padding
import rich.table

from ._data import FoldedRepeat, FoldReport, FoldSkip

_MEANING = {
    "unit": "unit: one compiled block, called n times",
    "scan": "scan: one loop over the blocks",
    "batch": "batch: all blocks at once, on whole stacks",
}
_MOVES = {"handed on": "carried", "per block": "stacked", "shared": "shared"}
# So many rows, and skips for one reason, are shown; the report's data have all of them.
_ROWS, _SKIPS = 12, 3
# Under so many seconds a guess by equations alone says nothing.
_FEW_SECONDS = 5
# More than this is most of a program.
_SMALL = 0.5
# Blocks with so many arrays of their own are layers, and what they are of has a state.
_MANY = 8


def parts(report: FoldReport) -> Iterator[Any]:
    """Yields what is printed, from the answer to the details."""
    yield from _headline(report)
    if report.repeats:
        yield _table(report)
        yield from _legend(report)
    yield from _skips(report)
    yield from report.notes
    yield from _advice(report)


def _headline(report: FoldReport) -> Iterator[str]:
    if not report.repeats:
        yield f"{report.name}: nothing is folded of {_count(report.equations, 'equation')}."
        yield f"XLA takes {_seconds(report.seconds)} for as many, guessed by their number alone."
        return
    first, *others = report.repeats
    more = f", and {_count(len(others), 'other repeat')}," if others else ""
    verb = "are each" if others else "are"
    place = f" in the {first.place}" if first.gradient else f" at {first.place}"
    yield (
        f"{report.name}: {first.n} blocks of {_count(first.equations, 'equation')}"
        f"{place if first.where else ''}{more} {verb} compiled once; "
        f"{report.left:.0%} of the program is left."
    )
    yield (
        f"{report.equations:,} equations before, {report.equations_left:,} after. "
        f"{_times(report)}, guessed by their number alone."
    )


def _times(report: FoldReport) -> str:
    before, after = _seconds(report.seconds), _seconds(report.seconds_left)
    if before == after:
        return f"XLA takes {before} either way"
    return f"XLA takes {before} before, {after} after"


def _seconds(seconds: float) -> str:
    return "a few seconds at most" if seconds < _FEW_SECONDS else f"about {seconds:,.0f} s"


# --- what is folded


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """Repeats that are told in one line: as many blocks, at one place, in one form.

    Attributes:
        depth: how deep they stand inside others.
        repeats: the repeats.
    """

    depth: int
    repeats: tuple[FoldedRepeat, ...]

    @property
    def saved(self) -> int:
        """How many equations they save."""
        return sum(repeat.saved for repeat in self.repeats)


def _rows(repeats: tuple[FoldedRepeat, ...], depth: int = 0) -> Iterator[_Row]:
    groups: dict[Any, list[FoldedRepeat]] = {}
    for repeat in repeats:
        groups.setdefault((repeat.n, repeat.place, repeat.form), []).append(repeat)
    for row in sorted((_Row(depth, tuple(g)) for g in groups.values()), key=lambda r: -r.saved):
        yield row
        inside = tuple(inner for repeat in row.repeats for inner in repeat.inside)
        yield from _rows(inside, depth + 1)


def _table(report: FoldReport) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("blocks", "equations"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold", max_width=32)
    table.add_column("form", no_wrap=True)
    table.add_column("why, and what moves")
    for row in list(_rows(report.repeats))[:_ROWS]:
        first = row.repeats[0]
        table.add_row(
            "> " * row.depth + str(first.n),
            f"{sum(repeat.equations for repeat in row.repeats):,}",
            first.place,
            first.form,
            _why(row.repeats),
        )
    return table


def _why(repeats: tuple[FoldedRepeat, ...]) -> str:
    if len(repeats) == 1:
        return f"{repeats[0].why}; {_traffic(repeats)}"
    whys = list(dict.fromkeys(repeat.why for repeat in repeats))
    return f"{len(repeats)} repeats: {' or '.join(whys[:2])}; {_traffic(repeats)}"


def _traffic(repeats: tuple[FoldedRepeat, ...]) -> str:
    def total(field: str) -> int:
        return sum(getattr(repeat, field) for repeat in repeats)

    parts = [f"{count} {what}" for what, field in _MOVES.items() if (count := total(field))]
    if total("bytes_stacked"):
        parts.append(f"copies {_size(total('bytes_stacked'))} into stacks")
    if total("cut"):
        parts.append(f"cuts {total('cut')} out of stacks")
    return ", ".join(parts) or "nothing moves"


def _legend(report: FoldReport) -> Iterator[str]:
    rows = list(_rows(report.repeats))
    if len(rows) > _ROWS:
        yield f"... and {len(rows) - _ROWS} smaller ones"
    forms = {repeat.form for row in rows for repeat in row.repeats}
    for form, meaning in _MEANING.items():
        if form in forms:
            yield meaning
    if any(row.depth for row in rows):
        yield "> stands inside the block above it"


# --- what isn't


def _skips(report: FoldReport) -> Iterator[Any]:
    groups: dict[tuple[str, str], list[FoldSkip]] = {}
    for skip in report.skips:
        groups.setdefault((skip.reason.value, skip.remedy), []).append(skip)
    if groups:
        yield ""
        yield "Stays as written:"
    for (reason, remedy), skips in groups.items():
        yield _indented(f"{reason}. {remedy}", 2)
        for skip in skips[:_SKIPS]:
            yield _indented(_skip(skip), 4)
        if len(skips) > _SKIPS:
            yield _indented(f"... and {len(skips) - _SKIPS} smaller ones", 4)


def _indented(text: str, by: int) -> rich.padding.Padding:
    return rich.padding.Padding(text, (0, 0, 0, by))


def _skip(skip: FoldSkip) -> str:
    where = f"{' and '.join(skip.lines)}: " if skip.lines else ""
    return where + skip.detail


def _advice(report: FoldReport) -> Iterator[str]:
    yield ""
    if not report.repeats and not report.skips:
        yield "What to do: nothing repeats, so folding can't help; `jax.jit` is right for it."
    elif not report.repeats:
        yield "What to do: see what keeps the blocks apart, above."
    elif report.left > _SMALL and report.skips:
        yield "What to do: most of the program is left; see what keeps it from folding, above."
    elif report.packed:
        yield "What to do: nothing; this is the step with its state in stacks."
    elif any(repeat.stacked >= _MANY for repeat in report.repeats):
        yield (
            "What to do: fold it. If it is a step whose results go into its next call, "
            "`fold(step).packed(...)` holds its state in stacks; its `report()` says what is left."
        )
    else:
        yield "What to do: fold it; nothing else is needed."


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _size(n: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"

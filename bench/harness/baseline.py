"""What changed since another run, and whether it got worse.

Times are noisy, so a time is worse only when it is so in three ways: by more than `TIME_RATIO`, by
more than `TIME_FLOOR` seconds, and beyond the spread (the fastest new sample is slower than the
slowest old one). With fewer than three samples on a side the spread says little and the ratio must
be `TIME_RATIO_ALONE`. Times from another processor, JAX or XLA setting are shown and never judged.
Counts (programs, HLO instructions) don't depend on the weather: more programs is worse, and so is
more than `COUNT_RATIO` of instructions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.records import Key, Record, Sample, numbers

TIME_RATIO = 1.25
TIME_RATIO_ALONE = 1.6
TIME_FLOOR = 0.1
STEADY_FLOOR = 0.002
MEMORY_RATIO = 1.25
MEMORY_FLOOR = 32e6
COUNT_RATIO = 1.05
NOTABLE = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that differs from the baseline.

    Attributes:
        key: Workload, arm and size.
        text: What, from what to what.
        worse: Whether it is a regression.
    """

    key: Key
    text: str
    worse: bool

    def __str__(self) -> str:
        workload, arm, n = self.key
        return f"{'WORSE' if self.worse else 'changed'}: {workload}, {arm}, n={n}: {self.text}"


def compare(old: Record, new: Record) -> list[Change]:
    """Everything notable that changed from `old` to `new`, regressions first."""
    before = dict(old.cells())
    judged = comparable(old, new)
    changes: list[Change] = []
    for key, samples in new.cells():
        if key in before:
            changes += _cell_changes(key, before[key], samples, judged)
    return sorted(changes, key=lambda change: not change.worse)


def comparable(old: Record, new: Record) -> bool:
    """Whether times of the two may be judged against each other."""
    return _circumstances(old) == _circumstances(new)


def _circumstances(record: Record) -> tuple:
    machine = record.machine
    versions = machine.get("versions", {})
    settings = next((s.measures.get("settings") for s in record.samples if s.ok), {}) or {}
    return (
        machine.get("processor"),
        machine.get("cores"),
        versions.get("jaxlib"),
        tuple(sorted((name, repr(value)) for name, value in settings.items())),
    )


def _cell_changes(
    key: Key, old: Sequence[Sample], new: Sequence[Sample], judged: bool
) -> Iterator[Change]:
    was_ok, is_ok = any(s.ok for s in old), any(s.ok for s in new)
    if was_ok != is_ok:
        text = f"now {new[0].status}: {new[0].reason}" if was_ok else "finishes now"
        yield Change(key=key, text=text, worse=was_ok)
        return
    for measure, floor in (("cold", TIME_FLOOR), ("compile", TIME_FLOOR), ("steady", STEADY_FLOOR)):
        yield from _time(key, measure, floor, numbers(old, measure), numbers(new, measure), judged)
    yield from _count(key, "programs", 1.0, old, new)
    yield from _count(key, "hlo_instructions", COUNT_RATIO, old, new)
    yield from _memory(key, old, new, judged)
    yield from _values(key, old, new)


def _time(key: Key, name: str, floor: float, old: list, new: list, judged: bool):
    if not old or not new:
        return
    a, b = _middle(old), _middle(new)
    ratio = TIME_RATIO if min(len(old), len(new)) >= 3 else TIME_RATIO_ALONE
    worse = b > a * ratio and b > a + floor and min(new) > max(old)
    if worse or max(a, b) > NOTABLE * min(a, b):
        text = f"{name} {a:.4g} s -> {b:.4g} s"
        note = "" if judged or not worse else " (not judged: other machine, jaxlib or settings)"
        yield Change(key=key, text=text + note, worse=worse and judged)


def _memory(key: Key, old: Sequence[Sample], new: Sequence[Sample], judged: bool):
    a, b = numbers(old, "peak_growth"), numbers(new, "peak_growth")
    if not a or not b:
        return
    was, now = _middle(a), _middle(b)
    worse = now > was * MEMORY_RATIO and now > was + MEMORY_FLOOR and min(b) > max(a)
    if worse or max(was, now) > MEMORY_RATIO * min(was, now):
        text = f"peak memory {was / 1e6:.0f} MB -> {now / 1e6:.0f} MB"
        yield Change(key=key, text=text, worse=worse and judged)


def _count(key: Key, name: str, ratio: float, old: Sequence[Sample], new: Sequence[Sample]):
    a, b = numbers(old, name), numbers(new, name)
    if a and b and (was := _middle(a)) != (now := _middle(b)):
        text = f"{name.replace('_', ' ')} {was:.0f} -> {now:.0f}"
        yield Change(key=key, text=text, worse=now > was * ratio)


def _values(key: Key, old: Sequence[Sample], new: Sequence[Sample]):
    was = next((s.distance for s in old if s.distance), "")
    now = next((s.distance for s in new if s.distance), "")
    if was and now and was != now:
        yield Change(key=key, text=f"values: {was} -> {now}", worse=was == "equal bits")


def _middle(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]

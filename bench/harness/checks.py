"""What must not be in a run, however fast it was.

Values that differ where they must agree, an arm that returns other values each time, two arms that
compiled the very same programs (a comparison of a thing with itself), and a compilation cache that
was written to although it was off.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from harness.records import Sample
from harness.registry import Workload


def problems(samples: Sequence[Sample], workloads: Mapping[str, Workload]) -> list[str]:
    """One sentence for everything that is wrong; an empty list if nothing is."""
    found = []
    for name, workload in workloads.items():
        mine = [s for s in samples if s.workload == name and s.ok]
        found += _missing(workload, samples)
        for n in sorted({s.n for s in mine}):
            at_n = [s for s in mine if s.n == n]
            found += _unequal(workload, at_n)
            found += _identical(workload, at_n)
    found += _cached(samples)
    found += _settings_differ(samples)
    return found


def _unequal(workload: Workload, samples: Sequence[Sample]) -> Iterator[str]:
    digests = _by_arm(samples, "digest")
    for arm, seen in digests.items():
        if len(seen) > 1:
            yield f"{workload.name}, n={samples[0].n}: {arm} returned other values each time"
    for group in workload.equal:
        present = [arm for arm in group if arm in digests]
        for a, b in combinations(present, 2):
            if digests[a] != digests[b]:
                by = f" by {_distance(samples, b)}" if a == workload.reference else ""
                yield (
                    f"{workload.name}, n={samples[0].n}: {a} and {b} must agree bit for bit and "
                    f"differ{by}"
                )


def _missing(workload: Workload, samples: Sequence[Sample]) -> Iterator[str]:
    """Crashes that leave a demanded equality unchecked; a timeout is an honest result."""
    bound = {arm for group in workload.equal for arm in group}
    for sample in samples:
        broken = sample.status in ("crash", "killed")
        if sample.workload == workload.name and sample.arm in bound and broken:
            yield (
                f"{workload.name}, n={sample.n}: {sample.arm} could not be compared: "
                f"{sample.reason}"
            )


def _identical(workload: Workload, samples: Sequence[Sample]) -> Iterator[str]:
    prints = _by_arm(samples, "fingerprint")
    counts = _by_arm(samples, "programs")
    for a, b in combinations(prints, 2):
        allowed = any(a in group and b in group for group in workload.may_match)
        # Two arms that kept no program alive have the hash of nothing in common.
        if not allowed and prints[a] & prints[b] and counts[a] != {0}:
            yield f"{workload.name}, n={samples[0].n}: {a} and {b} compiled the same programs"


def _cached(samples: Sequence[Sample]) -> Iterator[str]:
    for sample in samples:
        if sample.measures.get("cache_files"):
            yield f"{sample.workload}, {sample.arm}, n={sample.n}: the compilation cache was in use"


def _settings_differ(samples: Sequence[Sample]) -> Iterator[str]:
    seen = [s.measures["settings"] for s in samples if s.ok and "settings" in s.measures]
    for name in sorted({name for settings in seen for name in settings}):
        values = {repr(settings.get(name)) for settings in seen}
        if len(values) > 1:
            were = " and ".join(sorted(values))
            yield f"the samples ran under different settings: {name} was {were}"


def _by_arm(samples: Sequence[Sample], measure: str) -> dict[str, set]:
    found: dict[str, set] = {}
    for sample in samples:
        if measure in sample.measures:
            found.setdefault(sample.arm, set()).add(sample.measures[measure])
    return found


def _distance(samples: Sequence[Sample], arm: str) -> str:
    return next((s.distance for s in samples if s.arm == arm and s.distance), "")

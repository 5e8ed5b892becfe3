"""Report of a fold (interim)."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FoldReport:
    """What `fold` found."""

    name: str
    repeats: tuple


def report(name, plan):
    """Report."""
    return FoldReport(name=name, repeats=plan.repeats)

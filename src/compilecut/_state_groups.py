"""Which leaves of a state stand in one stack: those whose paths differ in one number.

`params/Block_0/Dense_0/kernel`, `params/Block_1/Dense_0/kernel`, ... of one type are a group. Where
a path holds several numbers, the one that makes the largest group counts.
"""

import dataclasses
import re
from collections.abc import Hashable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Leaves of one type that are held as one stack.

    Attributes:
        name: their path with `*` for the number that differs.
        stack: the parts of the path before and after that number.
        leaves: positions of the leaves, in the order of their numbers.
    """

    name: str
    stack: tuple[str, str]
    leaves: tuple[int, ...]


def state_groups(paths: Sequence[str], types: Sequence[Hashable], least: int) -> list[Group]:
    """Returns the groups of at least `least` leaves; no leaf is in two."""
    candidates: dict[Any, dict[int, int]] = {}
    for leaf, (path, kind) in enumerate(zip(paths, types, strict=True)):
        for found in re.finditer(r"\d+", path):
            stack = (path[: found.start()], path[found.end() :])
            candidates.setdefault((stack, kind), {}).setdefault(int(found.group()), leaf)
    groups, taken = [], set()
    for (stack, _), members in sorted(candidates.items(), key=_largest_first):
        leaves = [leaf for _, leaf in sorted(members.items()) if leaf not in taken]
        if len(leaves) >= least and len(leaves) == len(members):
            taken.update(leaves)
            groups.append(Group(name="*".join(stack), stack=stack, leaves=tuple(leaves)))
    return sorted(groups, key=lambda group: min(group.leaves))


def _largest_first(item: tuple[Any, dict[int, int]]) -> tuple[int, int]:
    return -len(item[1]), min(item[1].values())

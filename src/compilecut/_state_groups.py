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
        name: their path with `*` for the number that differs; with their type where another group
            or a leaf has that name. No two groups share a name.
        stack: the path before that number, and what tells the group from others that share it.
        leaves: positions of the leaves, in the order of their numbers.
    """

    name: str
    stack: tuple[str, Hashable]
    leaves: tuple[int, ...]


def state_groups(
    paths: Sequence[str], types: Sequence[tuple[tuple[int, ...], Any]], least: int
) -> list[Group]:
    """Returns the groups of at least `least` leaves; no leaf is in two."""
    candidates: dict[Any, dict[int, int]] = {}
    for leaf, (path, kind) in enumerate(zip(paths, types, strict=True)):
        for found in re.finditer(r"\d+", path):
            around = (path[: found.start()], path[found.end() :])
            candidates.setdefault((around, kind), {}).setdefault(int(found.group()), leaf)
    groups, taken, names = [], set(), set(paths)
    for ((before, after), kind), members in sorted(candidates.items(), key=_largest_first):
        leaves = [leaf for _, leaf in sorted(members.items()) if leaf not in taken]
        if len(leaves) >= least and len(leaves) == len(members):
            taken.update(leaves)
            name = _free_name(f"{before}*{after}", kind, names)
            groups.append(Group(name=name, stack=(before, (after, kind)), leaves=tuple(leaves)))
    return sorted(groups, key=lambda group: min(group.leaves))


def _free_name(name: str, kind: tuple[tuple[int, ...], Any], names: set[str]) -> str:
    """Returns a name that nothing has yet, and notes it."""
    if name in names:
        shape, dtype = kind
        name = f"{name} {dtype}[{','.join(map(str, shape))}]"
    while name in names:
        name += "'"
    names.add(name)
    return name


def _largest_first(item: tuple[Any, dict[int, int]]) -> tuple[int, int]:
    return -len(item[1]), min(item[1].values())


def places(groups: Sequence[Group]) -> dict[int, tuple[Any, int]]:
    """Returns the stack of each leaf that stands in one, and its place there."""
    return {
        leaf: (group.stack, place) for group in groups for place, leaf in enumerate(group.leaves)
    }

"""Which sites are the same computation.

Two sites are one group when their equations agree one by one: primitive, parameters, trace context,
operands up to renaming, literals and captured arrays to the last bit, types of inputs and outputs.
The comparison is of whole keys, not of hashes, so equality is proof. Where the keys come from, and
which leaves the results go to, is free.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

from .._jaxpr import Literal, Operand, Passed, Program, Scope, Value, freeze
from ._split import Site


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Sites with one computation.

    Attributes:
        members: the sites; any of them can stand for all.
    """

    members: tuple[Site, ...]

    @property
    def pattern(self) -> Site:
        """The site whose equations are compiled for all."""
        return self.members[0]


def group_sites(program: Program, sites: Iterable[Site], kinds: Sequence[Hashable]) -> list[Group]:
    """Groups sites by computation, in order of first appearance.

    Args:
        program: the program they come from.
        sites: the sites.
        kinds: per output of a site, what else must agree (its sharding).
    """
    digests: dict[Value, Hashable] = {}
    groups: dict[Hashable, list[Site]] = {}
    for site in sites:
        for value in site.constants:
            if value not in digests:
                digests[value] = freeze(program.constants[value])
        key = (_computation(site, digests), tuple(kinds[leaf] for leaf in site.leaves))
        groups.setdefault(key, []).append(site)
    return [Group(members=tuple(members)) for members in groups.values()]


def _computation(site: Site, digests: dict[Value, Hashable]) -> Hashable:
    numbers: dict[Operand | Scope | None, int] = {}

    def name(operand: Operand) -> Hashable:
        if isinstance(operand, Literal):
            return operand.key
        if isinstance(operand, Passed):
            return ("passed", name(operand.target), call(operand.scope))
        return numbers.setdefault(operand, len(numbers))

    def typed(values: Iterable[Operand]) -> tuple[Hashable, ...]:
        return tuple((name(value), value.aval) for value in values)

    def call(scope: Scope | None) -> Hashable:
        if scope is None or scope in numbers:
            return numbers.get(scope)
        parent = call(scope.parent)
        return (numbers.setdefault(scope, len(numbers)), scope.name, parent)

    for d in site.draws:
        numbers.update(dict.fromkeys(d.twins, numbers.setdefault(d.value, len(numbers))))
    draws = tuple((name(d.value), d.value.aval, d.key.aval, d.shape, d.width) for d in site.draws)
    constants = tuple((name(value), digests[value]) for value in site.constants)
    heads = (draws, typed(site.inputs), constants)
    equations = tuple(
        (eqn.key, call(eqn.scope), tuple(map(name, eqn.inputs)), typed(eqn.outputs))
        for eqn in site.equations
    )
    return (heads, equations, typed(site.outputs))

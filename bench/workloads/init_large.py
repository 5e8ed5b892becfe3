"""W1 at an eighth of the published sizes, where arrays outweigh everything else in memory."""

from dataclasses import replace

from harness.registry import ArmTable, Call
from workloads import init

DIVIDE = 8


def largest_group_bytes(n: int) -> int:
    """The bytes of the stacks that hold most: all V and U of one set of dimensions."""
    groups: dict[init.Spec, int] = {}
    for d_in, d_out, c in init.sites(n, DIVIDE).values():
        groups[d_in, d_out, c] = groups.get((d_in, d_out, c), 0) + 4 * c * (d_in + d_out)
    return max(groups.values())


def stacked_init(n: int) -> Call:
    """As in `init.py`."""
    return replace(init.stacked_init(n, DIVIDE), compare=False)


ARMS: ArmTable = {"stacked_init": stacked_init}

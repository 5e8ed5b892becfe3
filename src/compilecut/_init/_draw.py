"""Random bits for all sites from one compiled program.

With partitionable threefry (JAX's default) element i of a draw depends on the key and i alone.
So draws of any shapes can be computed as rows of one block: each row has a key and the index of
its first element. One program fills blocks of one size; each site then reads its rows. Bits are
integers, so the values can't depend on how the work is cut up.

A block is filled, read by its sites and dropped before the next: the extra memory is one block.

References:
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (threefry).
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from .. import _compat
from .._jaxpr import Equation, Operand
from ._keys import Host, key_words
from ._split import Draw, Site

ROW = 256  # elements a row: little waste for small sites, long enough to vectorise
_ROWS_A_BLOCK = 4096  # where the sites are smaller: 4 MB of 32-bit draws
_SMALL = 1 << 24  # elements: a block of 64 MB is always acceptable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """Rows of a block that hold one draw.

    Attributes:
        key: the key or keys drawn from.
        rows: rows a key.
        start: the first row.
    """

    key: Operand
    rows: int
    start: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """What is drawn together, and the sites that are computed from it.

    Attributes:
        spans: per bit width, the rows in use.
        sites: pairs of group index and member index.
        starts: per site, the first row of each of its draws.
    """

    spans: dict[int, list[Span]]
    sites: list[tuple[int, int]]
    starts: list[tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Where each site's bits are.

    Attributes:
        rows: per bit width, the rows of every block of that width.
        blocks: in the order of computation.
    """

    rows: dict[int, int]
    blocks: tuple[Block, ...]


def can_share(eqn: Equation, largest: int) -> bool:
    """Says whether a `random_bits` equation can be drawn in a block of at most `largest` elements.

    Only threefry keys under `jax_threefry_partitionable`; other generators' draws depend on the
    shape, so they stay in the site's own program.
    """
    if eqn.inputs[0].aval.dtype != _threefry() or not _compat.draws_partitionable(eqn.ctx):
        return False
    return 0 < math.prod(eqn.outputs[0].aval.shape) <= largest


def largest_block(total_bytes: int) -> int:
    """Returns how many elements a block may hold: a tenth of the outputs' bytes, or 64 MB."""
    return max(_SMALL, total_bytes // 10 // 4)


def rows_of(draw: Draw) -> int:
    """Returns how many rows one key's draw takes."""
    return -(-math.prod(draw.shape) // ROW)


def rows_in_all(draw: Draw) -> int:
    """Returns how many rows a draw takes for all its keys."""
    return rows_of(draw) * math.prod(draw.key.aval.shape)


def lay_out(groups: Sequence[Sequence[Site]]) -> Layout:
    """Assigns every draw of every site its rows. A site never straddles two blocks."""
    rows = _rows_a_block([site for members in groups for site in members])
    return Layout(rows=rows, blocks=tuple(_fill(groups, rows)))


def _rows_a_block(sites: list[Site]) -> dict[int, int]:
    largest: dict[int, int] = {}
    total: dict[int, int] = {}
    for site in sites:
        for width, n in _rows_by_width(site).items():
            largest[width] = max(largest.get(width, 0), n)
            total[width] = total.get(width, 0) + n
    return {w: max(n, min(total[w], _ROWS_A_BLOCK)) for w, n in largest.items()}


def _rows_by_width(site: Site) -> dict[int, int]:
    rows: dict[int, int] = {}
    for draw in site.draws:
        rows[draw.width] = rows.get(draw.width, 0) + rows_in_all(draw)
    return rows


def _fill(groups: Sequence[Sequence[Site]], rows: dict[int, int]) -> Iterator[Block]:
    block = Block(spans={}, sites=[], starts=[])
    used = dict.fromkeys(rows, 0)
    for index, members in enumerate(groups):
        for number, site in enumerate(members):
            if any(used[w] + n > rows[w] for w, n in _rows_by_width(site).items()):
                yield block
                block = Block(spans={}, sites=[], starts=[])
                used = dict.fromkeys(rows, 0)
            starts = []
            for draw in site.draws:
                span = Span(key=draw.key, rows=rows_of(draw), start=used[draw.width])
                block.spans.setdefault(draw.width, []).append(span)
                starts.append(used[draw.width])
                used[draw.width] += rows_in_all(draw)
            block.sites.append((index, number))
            block.starts.append(tuple(starts))
    if block.sites:
        yield block


def row_table(spans: Iterable[Span], rows: int, host: Host) -> np.ndarray:
    """Returns what the draw program takes: `uint32[rows, 4]`, key words and first index a row."""
    table = np.zeros((rows, 4), np.uint32)
    for span in spans:
        words = key_words(host[span.key]).reshape(-1, 2)  # pyright: ignore[reportArgumentType]
        stop = span.start + span.rows * len(words)
        first = np.arange(span.rows, dtype=np.uint64) * ROW
        table[span.start : stop, :2] = np.repeat(words, span.rows, axis=0)
        table[span.start : stop, 2] = np.tile((first >> 32).astype(np.uint32), len(words))
        table[span.start : stop, 3] = np.tile(first.astype(np.uint32), len(words))
    return table


def draw_bits(table: jax.Array, width: int) -> jax.Array:
    """Draws a block: `uint32[rows, 4]` to `uint{width}[rows, ROW]`.

    Bit for bit what `jax.random.bits` draws for the key of each row, from the row's first index on.
    """
    shape = (table.shape[0], ROW)
    key0, key1, high, low = (jnp.broadcast_to(table[:, i : i + 1], shape) for i in range(4))
    # A row never crosses a multiple of 2**32, so the high word is the same all along it.
    low = low + jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
    first, second = threefry2x32_p.bind(key0, key1, high, low)
    dtype = jnp.dtype(f"uint{width}")
    if width == 64:
        shift = jnp.asarray(32, dtype)
        return (jax.lax.convert_element_type(first, dtype) << shift) | second.astype(dtype)
    return jax.lax.convert_element_type(first ^ second, dtype)


def read_bits(block: jax.Array, start: Any, draw: Draw) -> jax.Array:
    """Reads a draw out of a block, starting at a row that may be traced."""
    keys = draw.key.aval.shape
    size = math.prod(draw.shape)
    rows = jax.lax.dynamic_slice_in_dim(block, start, rows_in_all(draw))
    flat = rows.reshape(math.prod(keys), rows_of(draw) * ROW)[:, :size]
    return flat.reshape((*keys, *draw.shape))


@functools.cache
def _threefry() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype

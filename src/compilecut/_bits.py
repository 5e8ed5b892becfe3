"""Equality of values down to the bit, and how far apart they are when it fails.

Everything here runs on the host in numpy: nothing is compiled, so a comparison can neither change
the values it looks at nor be counted as one more compiled program.

Two measures, on purpose. `bit_equal` knows only bits: `-0.0` is not `0.0`, and two NaNs are equal
only with the same payload. `ulp_distance` measures *values* by mapping floats, in order, to
integers: neighbours are 1 apart whatever their size, and two NaNs are 0 apart. What it doesn't do
is judge: tolerances belong to the caller.

Read `first_difference` first; the rest is in its service. The assertions that users see are in
`compilecut.testing`.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

Kind = Literal["structure", "dtype", "shape", "value"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where two pytrees differ.

    Attributes:
        path: the leaf, as `jax.tree_util.keystr` spells it; empty for a tree that is one leaf.
        kind: what differs there; the fields from `index` on are set for `"value"` alone.
        left: the first tree's side of it: a value, a dtype, a shape, or what stands at the path.
        right: the second tree's side of it.
        index: of the first differing element, in C order; into `key_data` when the leaf holds
            typed keys, and `None` when it is no array.
        ulp: distance at that element; `inf` between a NaN and a number.
        max_ulp: largest distance in this leaf.
        count: how many elements of this leaf differ.
        size: how many elements this leaf has.
    """

    path: str
    kind: Kind
    left: Any
    right: Any
    index: tuple[int, ...] | None = None
    ulp: int | float | None = None
    max_ulp: int | float | None = None
    count: int | None = None
    size: int | None = None

    def __str__(self) -> str:
        where = f"leaf `{self.path or '(the only one)'}`"
        if self.kind != "value":
            sides = f"{self.left} on the left, {self.right} on the right"
            return f"{where} differs in {self.kind}: {sides}"
        if self.index is None:
            return f"{where} is {self.left!r} on the left, {self.right!r} on the right"
        left, right = _show(self.left, self.right)
        return (
            f"{where}, element {self.index}: {left} on the left, {right} on the right, "
            f"{self.ulp} ULP apart; {self.count} of {self.size} elements differ, "
            f"by at most {self.max_ulp} ULP"
        )


def first_difference(tree_a: Any, tree_b: Any) -> Difference | None:
    """Finds the first leaf of two pytrees that isn't the same bit for bit.

    Structure comes first, then leaf by leaf dtype, shape and value. Weak types are not looked at.
    Leaves that are no arrays (strings, callables) are compared with `==`.

    Args:
        tree_a: a pytree of arrays, typed keys, Python scalars or anything else.
        tree_b: the pytree to hold against it.

    Returns:
        `None` where everything agrees, else the first difference in the order of the leaves.

    Raises:
        ValueError: two arrays spread over several processes are laid out differently, so that
            no process could compare them.

    Example:
        ```python
        import numpy as np
        from compilecut._bits import first_difference

        a = {"w": np.float32([1, 2]), "b": np.float32([0.0])}
        assert first_difference(a, a) is None
        found = first_difference(a, {"w": np.float32([1, 2]), "b": np.float32([-0.0])})
        assert (found.path, found.kind, found.index, found.ulp) == ("['b']", "value", (0,), 1)
        ```
    """
    return next(differences(tree_a, tree_b), None)


def differences(tree_a: Any, tree_b: Any) -> Iterator[Difference]:
    """Yields one difference per leaf that isn't the same, in the order of the leaves.

    Structures that differ are one difference, and the only one.

    Args:
        tree_a: as for `first_difference`.
        tree_b: as for `first_difference`.
    """
    leaves_a, structure_a = tree_flatten_with_path(tree_a)
    leaves_b, structure_b = tree_flatten_with_path(tree_b)
    if structure_a != structure_b:
        yield _structure_difference(leaves_a, leaves_b, structure_a, structure_b)
        return
    for (path, a), (_, b) in zip(leaves_a, leaves_b, strict=True):
        found = _leaf_difference(keystr(path), a, b)
        if found is not None:
            yield found


def bit_equal(a: Any, b: Any) -> bool:
    """Says whether two pytrees (or arrays) agree in structure, dtype, shape and every bit.

    Args:
        a: an array, a typed key, a scalar, or a pytree of them.
        b: what to hold against it.

    Example:
        ```python
        import jax.numpy as jnp
        from compilecut._bits import bit_equal

        assert bit_equal(jnp.float32(jnp.nan), jnp.float32(jnp.nan))
        assert not bit_equal(jnp.float32(0.0), jnp.float32(-0.0))
        assert not bit_equal(jnp.int32(1), jnp.float32(1))
        ```
    """
    return first_difference(a, b) is None


def ulp_distance(a: Any, b: Any) -> int | float:
    """Measures the largest distance between two arrays, in units in the last place.

    Values are mapped in order to consecutive integers and the integers subtracted. So `-0.0` and
    `0.0` are 1 apart, infinity is 1 beyond the largest finite number, and integers and booleans
    are apart by their difference. A complex number is as far as the farther of its two parts; a
    typed key as far as its `key_data`.

    Args:
        a: an array, a typed key, a scalar, or a pytree of them.
        b: the same structure, dtypes and shapes.

    Returns:
        0 where no value differs, and `math.inf` where a NaN meets a number. Two NaNs are 0 apart,
        even with different payloads: `bit_equal` tells these apart.

    Raises:
        ValueError: structures, dtypes or shapes differ, or a leaf that is no array does: there is
            no distance then.

    Example:
        ```python
        import math
        import numpy as np
        from compilecut._bits import ulp_distance

        assert ulp_distance(np.float32(1), np.nextafter(np.float32(1), np.float32(2))) == 1
        assert ulp_distance(np.float32([1, np.nan]), np.float32([1, np.nan])) == 0
        assert ulp_distance(np.float32(1), np.float32(np.nan)) == math.inf
        ```
    """
    largest: int | float = 0
    for found in differences(a, b):
        if found.max_ulp is None:
            raise ValueError(f"no ULP distance exists between these: {found}")
        largest = max(largest, found.max_ulp)
    return largest


def _structure_difference(leaves_a, leaves_b, structure_a, structure_b) -> Difference:
    paths_a = [keystr(path) for path, _ in leaves_a]
    paths_b = [keystr(path) for path, _ in leaves_b]
    # The first path that only one tree has is the place to look at. Nodes that differ in type or
    # in static data alone have the same paths; the whole structures are the evidence then.
    alone_a, alone_b = set(paths_a) - set(paths_b), set(paths_b) - set(paths_a)
    for path in [*paths_a, *paths_b]:
        if path in alone_a:
            return Difference(path=path, kind="structure", left="a leaf", right="nothing")
        if path in alone_b:
            return Difference(path=path, kind="structure", left="nothing", right="a leaf")
    return Difference(path="", kind="structure", left=structure_a, right=structure_b)


def _leaf_difference(path: str, a: Any, b: Any) -> Difference | None:
    if not (_is_numeric(a) and _is_numeric(b)):
        same = a is b or (type(a) is type(b) and bool(np.all(a == b)))
        return None if same else Difference(path=path, kind="value", left=a, right=b)
    a, b = (x if hasattr(x, "dtype") else np.asarray(x) for x in (a, b))
    if a.dtype != b.dtype:
        return Difference(path=path, kind="dtype", left=a.dtype, right=b.dtype)
    if a.shape != b.shape:
        return Difference(path=path, kind="shape", left=a.shape, right=b.shape)
    if _is_key(a):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    found = None
    for offset, part_a, part_b in _pieces(path, a, b):
        found = _merge(found, _value_difference(path, part_a, part_b, offset))
    return None if found is None else dataclasses.replace(found, size=math.prod(a.shape))


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def _is_numeric(x: Any) -> bool:
    if isinstance(x, jax.Array):
        return True
    if isinstance(x, bool | int | float | complex):
        return np.asarray(x).dtype != object  # an int beyond 64 bits has no fixed bit pattern
    if not isinstance(x, np.ndarray | np.generic):
        return False
    if x.dtype == jax.dtypes.float0:
        return True
    # jnp.issubdtype knows bfloat16 and its kin. longdouble has padding bits, which are no value.
    known = jnp.issubdtype(x.dtype, np.number) or x.dtype == np.bool_
    return bool(known) and x.dtype.itemsize <= (16 if x.dtype.kind == "c" else 8)


def _pieces(path: str, a: Any, b: Any) -> Iterator[tuple[tuple[int, ...], np.ndarray, np.ndarray]]:
    """Yields (offset, part of a, part of b) for every part that this process can see."""
    spread_a, spread_b = _is_spread(a), _is_spread(b)
    if not spread_a and not spread_b:
        yield (0,) * a.ndim, np.asarray(a), np.asarray(b)
        return
    if not spread_a:  # the spread one decides the parts
        for offset, part_b, part_a in _pieces(path, b, a):
            yield offset, part_a, part_b
        return
    shards_b = {_bounds(s.index, b.shape): s.data for s in b.addressable_shards} if spread_b else {}
    for bounds, part in {_bounds(s.index, a.shape): s.data for s in a.addressable_shards}.items():
        offset = tuple(start for start, _ in bounds)
        if not spread_b:
            yield offset, np.asarray(part), np.asarray(b)[tuple(slice(*x) for x in bounds)]
        elif bounds in shards_b:
            yield offset, np.asarray(part), np.asarray(shards_b[bounds])
        else:
            raise ValueError(
                f"leaf `{path}` is spread over several processes as {a.sharding} on the left and "
                f"as {b.sharding} on the right, so no process holds both sides of its part "
                f"{bounds}. Give both functions the same out_shardings."
            )


def _is_spread(x: Any) -> bool:
    return isinstance(x, jax.Array) and not x.is_fully_addressable


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _value_difference(
    path: str, a: np.ndarray, b: np.ndarray, offset: tuple[int, ...]
) -> Difference | None:
    bits_a, bits_b = _bits(a), _bits(b)
    differs = (bits_a != bits_b).any(axis=-1)
    where = np.flatnonzero(differs)
    if not where.size:
        return None
    flat_a, flat_b = a.reshape(-1)[where], b.reshape(-1)[where]
    ulp, max_ulp = _distances(flat_a, flat_b)
    local = np.unravel_index(where[0], a.shape)
    return Difference(
        path=path,
        kind="value",
        left=flat_a[0],
        right=flat_b[0],
        index=tuple(int(i) + o for i, o in zip(local, offset, strict=True)),
        ulp=ulp,
        max_ulp=max_ulp,
        count=int(where.size),
    )


def _merge(first: Difference | None, second: Difference | None) -> Difference | None:
    if first is None or second is None:
        return first or second
    early = min(first, second, key=lambda d: d.index or ())
    largest = max(first.max_ulp or 0, second.max_ulp or 0)
    total = (first.count or 0) + (second.count or 0)
    return dataclasses.replace(early, max_ulp=largest, count=total)


def _components(x: np.ndarray) -> np.ndarray:
    """Flattens to (elements, parts), native byte order; a complex number has two parts."""
    flat = np.ascontiguousarray(x.reshape(-1))
    if not flat.dtype.isnative:
        flat = flat.astype(flat.dtype.newbyteorder("="))
    if flat.dtype.kind == "c":
        return flat.view(np.dtype(f"f{flat.itemsize // 2}")).reshape(-1, 2)
    return flat.reshape(-1, 1)


def _bits(x: np.ndarray) -> np.ndarray:
    """Gives the bit patterns as unsigned integers, (elements, parts)."""
    parts = _components(x)
    if parts.dtype.itemsize == 0:  # float0: a value without bits
        return np.zeros(parts.shape, np.uint8)
    bits = parts.view(np.dtype(f"u{parts.dtype.itemsize}"))
    width = _width(parts.dtype)
    # int4 and the like sit in a byte whose upper bits mean nothing.
    return bits & bits.dtype.type((1 << width) - 1) if width < 8 else bits


def _width(dtype: np.dtype) -> int:
    if dtype.kind != "V":
        return 8 * dtype.itemsize
    return jnp.finfo(dtype).bits if _is_float(dtype) else jnp.iinfo(dtype).bits


def _is_float(dtype: np.dtype) -> bool:
    return bool(jnp.issubdtype(dtype, np.floating))


def _distances(a: np.ndarray, b: np.ndarray) -> tuple[int | float, int | float]:
    """Measures 1-D arrays: the distance of the first elements, and the largest."""
    rank_a, rank_b = _ranks(a), _ranks(b)
    apart = np.maximum(rank_a, rank_b) - np.minimum(rank_a, rank_b)
    parts_a, parts_b = _components(a), _components(b)
    lost = np.zeros(len(apart), bool)
    if _is_float(parts_a.dtype):
        nan_a, nan_b = np.isnan(parts_a), np.isnan(parts_b)
        apart[nan_a & nan_b] = 0
        lost = (nan_a != nan_b).any(axis=-1)
    first = math.inf if lost[0] else int(apart[0].max())
    return first, math.inf if lost.any() else int(apart.max())


def _ranks(x: np.ndarray) -> np.ndarray:
    """Maps values to unsigned integers in their order; neighbours map to neighbours."""
    parts = _components(x)
    bits = _bits(x)
    dtype = parts.dtype
    one = bits.dtype.type
    sign = one(1 << (_width(dtype) - 1))
    ones = one((1 << _width(dtype)) - 1)
    if _is_float(dtype):
        if dtype == jnp.float8_e8m0fnu:  # exponents alone, no sign
            return bits
        # Sign and magnitude: turn the negative half round, then put it below the positive one.
        return np.where(bits & sign, bits ^ ones, bits | sign)
    is_signed = dtype.kind == "i" or (dtype.kind == "V" and jnp.iinfo(dtype).min < 0)
    return bits ^ sign if is_signed else bits


def _show(left: Any, right: Any) -> tuple[str, str]:
    """Prints two values so that they look different: shortest digits, else their bits."""
    shown = str(left), str(right)
    if shown[0] != shown[1]:
        return shown
    hexes = [_bits(np.asarray(x)).reshape(-1) for x in (left, right)]
    left_bits, right_bits = (" ".join(f"{int(h):#x}" for h in bits) for bits in hexes)
    return f"{shown[0]} (bits {left_bits})", f"{shown[1]} (bits {right_bits})"

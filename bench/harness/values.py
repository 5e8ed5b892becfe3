"""What an arm returned, kept so that another process can compare it bit for bit.

A sample writes its leaves to a file, in order and by path, and their digest into its record. Equal
digests are equal bits; only where they differ are the files read and the distance measured, in ULP
(how many representable numbers lie between two floats).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

Leaves = Sequence[tuple[str, np.ndarray]]

_INTEGER_OF_SIZE = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far two results are apart.

    Attributes:
        ulp: The largest number of representable floats between two elements. Huge where a number
            near zero changes its sign, so read it beside `scaled_ulp`.
        scaled_ulp: The largest difference, in ULP of the largest element of its leaf.
        path: The leaf that is furthest by `ulp` (empty for a result that is a single array);
            `None` if every bit agrees.
        reason: Why the results can't be compared at all, or an empty string.
    """

    ulp: float = 0.0
    scaled_ulp: float = 0.0
    path: str | None = None
    reason: str = ""

    @property
    def equal(self) -> bool:
        """Whether every bit agrees."""
        return self.path is None

    def __str__(self) -> str:
        """As the tables show it."""
        if self.equal:
            return "equal bits"
        if self.reason:
            return self.reason
        return f"{self.ulp:.3g} ULP ({self.scaled_ulp:.2g} of max)"


def digest(leaves: Leaves) -> str:
    """A hash of paths, dtypes, shapes and bits; equal for equal results only."""
    hasher = hashlib.sha256()
    for path, leaf in leaves:
        hasher.update(f"{path} {leaf.dtype} {leaf.shape}\n".encode())
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    return hasher.hexdigest()


def save(file: Path, leaves: Leaves) -> None:
    """Writes leaves to a file; dtypes that NumPy doesn't know, as the bytes they are."""
    arrays = {}
    for path, leaf in leaves:
        raw = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        arrays[f"{path}|{leaf.dtype}|{','.join(map(str, leaf.shape))}"] = raw
    np.savez(file, **arrays)


def load(file: Path) -> dict[str, np.ndarray]:
    """Reads what `save` wrote, by path."""
    import ml_dtypes  # noqa: F401  (makes NumPy know bfloat16 and its kin by name)

    leaves = {}
    with np.load(file) as stored:
        for name in stored.files:
            path, dtype, shape = name.rsplit("|", 2)
            dims = tuple(int(d) for d in shape.split(",") if d)
            leaves[path] = stored[name].view(np.dtype(dtype)).reshape(dims)
    return leaves


def distance(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> Distance:
    """The largest distance between two results."""
    if left.keys() != right.keys():
        odd = sorted(left.keys() ^ right.keys())
        return Distance(path=odd[0], reason=f"other leaves: {odd[0]}")
    worst = Distance()
    for path, a in left.items():
        b = right[path]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return Distance(path=path, reason=f"other type: {path}")
        here = _leaf_distance(path, a, b)
        if not here.equal:
            scaled = max(here.scaled_ulp, worst.scaled_ulp)
            furthest = max(here, worst, key=lambda distance: distance.ulp)
            worst = replace(furthest, scaled_ulp=scaled)
    return worst


def _leaf_distance(path: str, a: np.ndarray, b: np.ndarray) -> Distance:
    integer = _INTEGER_OF_SIZE.get(a.dtype.itemsize)
    if a.tobytes() == b.tobytes():
        return Distance()
    # ml_dtypes registers bfloat16 and its kin with kind "V".
    if integer is None or a.dtype.kind not in "fV":
        return Distance(ulp=np.inf, scaled_ulp=np.inf, path=path)
    steps = _steps(_ordered(a, integer), _ordered(b, integer))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    largest = np.max(np.abs(wide_a), initial=0.0).astype(a.dtype)
    unit = float(np.spacing(largest))
    scaled = np.max(np.abs(wide_a - wide_b), initial=0.0) / unit if unit > 0 else np.inf
    return Distance(ulp=float(np.max(steps)), scaled_ulp=float(scaled), path=path)


def _ordered(array: np.ndarray, integer: type[np.signedinteger]) -> np.ndarray:
    """Floats as numbers that count representable values: neighbours differ by one."""
    bits = array.view(integer).astype(np.int64)
    return np.where(bits < 0, int(np.iinfo(integer).min) - bits, bits)


def _steps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`abs(a - b)` of 64-bit integers, where the signed difference could overflow."""
    a, b, swap = a.view(np.uint64), b.view(np.uint64), a < b
    return np.where(swap, b - a, a - b)

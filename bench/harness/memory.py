"""How much memory a call took, beyond what the process held before it.

On Linux the kernel's high-water mark is reset before the call and read after it, so that nothing
that came before (imports, arguments) counts. Elsewhere a thread looks every few milliseconds, which
misses short peaks; the record says which it was.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_HIGH_WATER_MARK = "5"


@dataclass(slots=True)
class Peak:
    """Bytes of resident memory, filled when the `watching` block ends.

    Attributes:
        before: Held when the block began.
        peak: The most held at once while it ran.
        exact: Whether the kernel kept count, rather than a thread that looks now and then.
    """

    before: int = 0
    peak: int = 0
    exact: bool = False

    @property
    def growth(self) -> int:
        """The peak beyond what was held before."""
        return max(self.peak - self.before, 0)


@contextmanager
def watching() -> Iterator[Peak]:
    """Measures the block's peak of resident memory."""
    process = psutil.Process()
    result = Peak(exact=_reset_high_water_mark())
    result.before = process.memory_info().rss
    stop = threading.Event()
    watcher = threading.Thread(target=_look, args=(process, result, stop), daemon=True)
    if not result.exact:
        watcher.start()
    try:
        yield result
    finally:
        stop.set()
        if result.exact:
            result.peak = _high_water_mark()
        else:
            watcher.join()


def _reset_high_water_mark() -> bool:
    try:
        _CLEAR_REFS.write_text(_RESET_HIGH_WATER_MARK)
        return _high_water_mark() > 0
    except (OSError, ValueError):
        return False


def _high_water_mark() -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("the kernel keeps no high-water mark")


def _look(process: psutil.Process, result: Peak, stop: threading.Event) -> None:
    while not stop.wait(0.002):
        result.peak = max(result.peak, process.memory_info().rss)

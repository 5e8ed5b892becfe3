"""What is timed inside one call, and how it is split into stages.

The clock runs from the call to values ready: `cold`, the number a user waits for. JAX reports the
end and the duration of each trace, lowering and compile it does; here those become intervals on the
same clock, and every moment of the cold call is given to exactly one stage:

* `compile`: while at least one program was being compiled by XLA;
* `lower`: else, while a jaxpr was being lowered;
* `trace`: else, while a function was being traced;
* `first_run`: the rest: dispatch, execution and whatever Python did in between (for compilecut that
  includes finding the sites).

So the four stages add up to `cold`, for one program or two hundred. Programs may compile on several
threads at once, and then the intervals overlap: `compile_sum` is the sum of their lengths, what one
core would have waited. (Inner jits are traced inside outer ones; adding up JAX's durations, the
rejected alternative, counts such time twice.)
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from jax import monitoring

TRACE = "/jax/core/compile/jaxpr_trace_duration"
LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILE = "/jax/core/compile/backend_compile_duration"
CACHE_HIT = "/jax/compilation_cache/cache_hits"

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """One cold call, in seconds; the module docstring defines each.

    Attributes:
        programs: How many were compiled: requests to the compiler, less cache hits.
    """

    cold: float
    trace: float
    lower: float
    compile: float
    first_run: float
    compile_sum: float
    programs: int


@dataclass(slots=True)
class Log:
    """What JAX reported while a `listening` block ran, from whichever thread."""

    intervals: dict[str, list[Interval]] = field(default_factory=dict)
    cache_hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def on_duration(self, event: str, duration_secs: float, **_: object) -> None:
        """Keeps the interval that ends now."""
        end = time.perf_counter()
        with self.lock:
            self.intervals.setdefault(event, []).append((end - duration_secs, end))

    def on_event(self, event: str, **_: object) -> None:
        """Counts cache hits: they too are reported as compiles."""
        if event == CACHE_HIT:
            with self.lock:
                self.cache_hits += 1

    def stages(self, start: float, end: float) -> Stages:
        """Splits the call that ran from `start` to `end`."""
        compiles = self.intervals.get(COMPILE, [])
        lowers = self.intervals.get(LOWER, [])
        traces = self.intervals.get(TRACE, [])
        compiling = covered(compiles, start, end)
        lowering = covered([*compiles, *lowers], start, end)
        tracing = covered([*compiles, *lowers, *traces], start, end)
        return Stages(
            cold=end - start,
            trace=tracing - lowering,
            lower=lowering - compiling,
            compile=compiling,
            first_run=end - start - tracing,
            compile_sum=sum(stop - begin for begin, stop in compiles),
            programs=len(compiles) - self.cache_hits,
        )


@contextmanager
def listening() -> Iterator[Log]:
    """Collects JAX's reports while the block runs."""
    log = Log()
    monitoring.register_event_duration_secs_listener(log.on_duration)
    monitoring.register_event_listener(log.on_event)
    try:
        yield log
    finally:
        monitoring.unregister_event_duration_listener(log.on_duration)
        monitoring.unregister_event_listener(log.on_event)


def covered(intervals: Sequence[Interval], start: float, end: float) -> float:
    """How much of `start` to `end` lies in at least one interval.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 9.0)], 0.0, 6.0)
    4.0
    """
    total, reached = 0.0, start
    for begin, stop in sorted(intervals):
        begin, stop = max(begin, reached), min(stop, end)
        if stop > begin:
            total += stop - begin
            reached = stop
    return total

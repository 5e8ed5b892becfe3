"""Counts what JAX traces, lowers and compiles, from the events it reports about itself."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

import jax

from .. import _compat


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class CompileCounts:
    """What was traced, lowered and compiled in a block; not frozen, as it counts on.

    Attributes:
        programs: XLA programs compiled. What the persistent cache had isn't one.
        cache_hits: programs that came from the persistent cache.
        traces: outermost functions traced; a `jit` inside another is part of its trace.
        lowerings: programs lowered to StableHLO.
        names: of the compiled programs, as JAX names them (`"jit(step)"`), in the order in which
            they were done.
        seconds: spent on compiling `programs`, added up over threads.
    """

    programs: int = 0
    cache_hits: int = 0
    traces: int = 0
    lowerings: int = 0
    names: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


@contextlib.contextmanager
def listen() -> Iterator[CompileCounts]:
    """Counts until the block ends."""
    listener = _Listener(counts=CompileCounts())
    jax.monitoring.register_event_listener(listener.on_event)
    jax.monitoring.register_event_duration_secs_listener(listener.on_duration)
    try:
        yield listener.counts
    finally:
        # JAX asserts that a listener is still there; it isn't if the block cleared them all.
        with contextlib.suppress(AssertionError):
            jax.monitoring.unregister_event_listener(listener.on_event)
        with contextlib.suppress(AssertionError):
            jax.monitoring.unregister_event_duration_listener(listener.on_duration)


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class _Listener:
    """Turns JAX's events into counts.

    A compile event says that a program is there, not where from. If it came from the cache, a hit
    was reported just before by the same thread: that is what `hit` remembers.
    """

    counts: CompileCounts
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    hit: set[int] = dataclasses.field(default_factory=set)

    def on_event(self, event: str, **kwargs: str | int) -> None:
        """Notes a hit of the persistent cache."""
        if event == _compat.CACHE_HIT_EVENT:
            with self.lock:
                self.hit.add(threading.get_ident())

    def on_duration(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """Counts a trace, a lowering or a program."""
        with self.lock:
            if event == _compat.TRACE_EVENT:
                self.counts.traces += 1
            elif event == _compat.LOWER_EVENT:
                self.counts.lowerings += 1
            elif event == _compat.COMPILE_EVENT:
                self._on_program(duration_secs, str(kwargs.get("fun_name", "")))

    def _on_program(self, duration: float, name: str) -> None:
        thread = threading.get_ident()
        if thread in self.hit:
            self.hit.remove(thread)
            self.counts.cache_hits += 1
            return
        self.counts.programs += 1
        self.counts.seconds += duration
        self.counts.names.append(name)

"""What was found in a program, what became of it and why: `Report`, `Repeat`, `Skip`."""

import dataclasses
import enum
import functools
import io
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import rich.box
import rich.console
import rich.table
from jax.extend import source_info_util

from . import _compat


class SkipReason(enum.Enum):
    """Why something stays as it was written."""

    EFFECT = "has effects"
    PLACES = "places unknown"
    SHARED = "results shared"
    TRACED = "inside a trace"
    DIFFERS = "blocks differ"
    COST = "would not pay"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Something that stays as written.

    Attributes:
        reason: why, as a kind.
        detail: why, in a sentence.
        where: the user's `file:line`, or empty.
    """

    reason: SkipReason
    detail: str
    where: str

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.reason.value}{place}: {self.detail}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One computation that occurs n times and is compiled once.

    Attributes:
        n: how often it occurs.
        where: the user's `file:line`, or empty where nothing is computed.
        equations: equations of one occurrence.
        result: types of its results.
        leaves: paths of all results, by occurrence.
        bits: how it gets its random bits: "shared block", "own draw" or "none".
        bytes: bytes of all its results.
    """

    n: int
    where: str
    equations: int
    result: str
    leaves: tuple[tuple[str, ...], ...]
    bits: str
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `explain` found.

    Attributes:
        name: the function's name.
        repeats: each distinct computation, largest count first.
        skips: what stays as written, with reasons.
        equations: equations of the function as written.
        programs: how many programs will be compiled.
        on_host: equations of key arithmetic, computed without compiling each.
    """

    name: str
    repeats: tuple[Repeat, ...]
    skips: tuple[Skip, ...]
    equations: int
    programs: int
    on_host: int

    @property
    def sites(self) -> int:
        """How many sites there are, repeated or not."""
        return sum(repeat.n for repeat in self.repeats)

    def __rich_console__(self, console: Any, options: Any):
        yield self._headline()
        if self.repeats:
            yield self._table()
        for skip in self.skips:
            yield f"as written: {skip}"
        yield from self._nothing_gained()

    def _headline(self) -> str:
        equations = _count(self.equations, "equation")
        if not self.repeats:
            return f"{self.name}: {equations}"
        return (
            f"{self.name}: {_count(self.sites, 'site')} of {_count(len(self.repeats), 'kind')} in "
            f"{equations}, {self.on_host} of them key arithmetic; "
            f"{_count(self.programs, 'program')} compiled"
        )

    def _nothing_gained(self) -> Iterable[str]:
        if not self.repeats:
            yield "nothing gained: jax.jit compiles it as it is"
        elif self.sites == 1:
            yield "nothing gained: one site is compiled once by jax.jit as well"
        elif self.sites == len(self.repeats):
            yield "nothing gained: no two sites are the same computation"

    def _table(self) -> rich.table.Table:
        table = rich.table.Table(box=rich.box.SIMPLE)
        for heading in ("sites", "equations", "bytes"):
            table.add_column(heading, justify="right")
        for heading in ("result", "random bits", "where", "first leaf"):
            table.add_column(heading)
        for r in self.repeats:
            where = r.where or "(nothing computed)"
            cells = (str(r.n), str(r.equations), f"{r.bytes:,}", r.result, r.bits, where)
            table.add_row(*cells, r.leaves[0][0] or "(the result)")
        return table

    def __str__(self) -> str:
        console = rich.console.Console(file=io.StringIO(), width=120, markup=False)
        console.print(self)
        return console.file.getvalue().rstrip()  # pyright: ignore[reportAttributeAccessIssue]

    def _repr_html_(self) -> str:
        console = rich.console.Console(file=io.StringIO(), record=True, width=120, markup=False)
        console.print(self)
        return console.export_html(inline_styles=True)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


# --- lines of the user's file

Frame = tuple[str, str, int]  # file, function, line

# JAX and what stands on it, wherever it is installed: a user's line is none of theirs.
_FRAMEWORKS = ("jax", "jaxlib", "flax", "haiku", "equinox", "optax", "compilecut")
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD = Path(sysconfig.get_path("stdlib"))


def source_line(eqn: Any) -> str:
    """Returns the user's `file:line` of an equation.

    That is the innermost call in a file that is neither of a library nor of Python. Where an init
    is a library's own, it is the library's line; and nothing, where JAX kept none.

    Args:
        eqn: anything with `source_info` and `scope`. JAX traces what is inside an inner call once
            and keeps no line outside it: those of the call itself are looked at then.
    """
    source_info, frames = _frames(eqn)
    return (
        _first_line(frames, _is_users)
        or _first_line(frames, lambda file: not _is_in(file, _FRAMEWORKS))
        or _line_of_a_library(source_info)
        # An init of JAX's own: a line in it, if not of the wrapper that filters tracebacks.
        or _first_line(reversed(frames), lambda file: Path(file).name != "traceback_util.py")
    )


def user_frames(eqn: Any) -> list[Frame]:
    """Returns the calls in the user's files that an equation was traced in, innermost first.

    Args:
        eqn: as for `source_line`.
    """
    frames = _frames(eqn)[1]
    return [frame for frame in frames if not _is_generated(*frame[:2]) and _is_users(frame[0])]


def _frames(eqn: Any) -> tuple[Any, list[Frame]]:
    """Returns the outermost source info of an equation, and all its frames, innermost first."""
    source_info, scope = eqn.source_info, eqn.scope
    frames = _compat.stack_of(source_info)
    while scope is not None:
        source_info, scope = scope.source_info, scope.parent
        frames += _compat.stack_of(source_info)
    return source_info, frames


def _first_line(frames: Iterable[Frame], wanted: Callable[[str], bool]) -> str:
    lines = (
        f"{Path(file).name}:{line}"
        for file, function, line in frames
        if not _is_generated(file, function) and wanted(file)
    )
    return next(lines, "")


def _line_of_a_library(source_info: Any) -> str:
    """Returns the line JAX shows: libraries may tell it which of their files are machinery."""
    summary = source_info_util.summarize(source_info)
    # "path:line (function)" or "path:line:column (function)", depending on the Python version.
    found = re.match(r"(.*[/\\])?([^/\\:]+:\d+)", summary)
    return found[2] if found and not _is_in(found[0], ("compilecut",)) else ""


@functools.lru_cache(maxsize=4096)
def _is_users(file: str) -> bool:
    # Kept by file: a library that a frame is of is imported by then.
    return not _is_in(file, _FRAMEWORKS) and _INSTALLED.isdisjoint(Path(file).parts)


def _is_in(file: str, packages: Iterable[str]) -> bool:
    """Says whether a file is of Python itself or of a package, going by what was imported."""
    path = Path(file)
    modules = (sys.modules.get(name) for name in packages)
    folders = [Path(m.__file__).parent for m in modules if m is not None and m.__file__]
    standard = path.is_relative_to(_STANDARD) and _INSTALLED.isdisjoint(path.parts)
    return standard or any(map(path.is_relative_to, folders))


def _is_generated(file: str, function: str) -> bool:
    """Says whether a frame is of no file: a dataclass's `__init__`, an import."""
    return file.startswith("<frozen") or (file == "<string>" and function.endswith("__"))

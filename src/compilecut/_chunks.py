"""`scan_chunks`: the explicit form, for a trainer's loop over chunks.

The chunks are grouped by form, the body is traced once for each form, and each group is emitted as
a scan, as calls of one compilation unit, or as written. Finding a loop in a program that was
written without one is not done here. The pieces are in `_chunking/`; read on with `_emit.py` there.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np

from . import _errors, _units
from ._chunking._block import Body, Step, trace_block
from ._chunking._carry import Carry, settle, take_carry
from ._chunking._emit import as_list, as_stack, make_step, run_calls, run_scan
from ._chunking._groups import Group, Stacked, along_leading_axis, consecutive
from ._chunking._leaves import take_apart
from ._chunking._shared import Sharer
from ._jaxpr import as_weak_as

Mode = Literal["auto", "scan", "unit", "unroll"]

C = TypeVar("C")


def scan_chunks(
    body: Callable[[C, Any], tuple[C, Any]],
    carry: C,
    chunks: Any,
    *,
    mode: Mode = "auto",
    remat: Any = None,
    unroll: int | bool = 1,
    accum_dtype: Any = None,
    reverse: bool = False,
) -> tuple[C, Any]:
    """Runs `body` over `chunks` one after the other and compiles it once for all that are alike.

    It is `jax.lax.scan` for chunks as trainers have them: a Python list of batches, the last one
    shorter, with numbers and switches among the arrays. Consecutive chunks of the same structure,
    shapes, dtypes and statics form a group. A group of two or more becomes a loop; a single chunk
    runs inline; the order is the chunks' own. The body is traced once for each kind of group,
    wherever its groups stand.

    `mode="auto"` is `"scan"` for every group. A loop's compile time doesn't grow with the number of
    chunks, it keeps the operands' shardings, and stacking costs one copy of the chunks' data. Units
    copy nothing, but XLA shares only its passes between them and not the machine code, which for a
    body of many layers, or one that draws random numbers, is most of the time. They pay for a few
    chunks of large data with a small body: measure before you choose `"unit"`.

    Values: under strict compile options
    ([`STRICT_COMPILER_OPTIONS`][compilecut.testing.STRICT_COMPILER_OPTIONS]) the carry and the outs
    equal those of a plain Python loop bit for bit. Under the default ones XLA fuses across the
    chunks of a plain loop, so the last bits can differ.

    Args:
        body: `body(carry, chunk) -> (carry, out)`, as in `jax.lax.scan`. What it captures (the
            parameters, say) goes into the loop as an operand and is differentiated as usual.
        carry: the initial carry. A weakly typed leaf such as `0.0` takes the type that `body` gives
            it, from the first chunk on; every other leaf has to keep its type.
        chunks: a list or tuple with one pytree per chunk; or anything else as *one* pytree whose
            arrays have the chunks along their leading axis, `(n, ...)`. In a chunk, arrays, keys
            and numbers are data. Bools, strings, enum members, callables and everything else are
            static: `body` gets them as they are, and chunks that differ in them (by type or by
            `==`) are of different groups. `None` is `None`.
        mode: how a group of two or more runs. `"scan"`: its data are stacked and run in one
            `jax.lax.scan`. `"unit"`: every chunk calls one block that XLA compiles once, and
            nothing is stacked; where XLA has no such blocks, or operands are known to be sharded,
            that is `"scan"`, and so it is on jax 0.10 for a body with loops or a `remat` in it.
            `"unroll"`: as written, so that an A/B is one flag. `"auto"`: above.
        remat: `None`, `True`, or a policy of `jax.checkpoint_policies`: checkpoints each chunk, so
            that the backward pass computes its intermediate values again instead of keeping them.
        unroll: as in `jax.lax.scan`; only `"scan"` looks at it.
        accum_dtype: a floating type for sums over chunks. The carry's floats are cast to it before
            the first chunk and come back in it. Gradients of captured operands are summed over the
            chunks in it, and cast back to the operand's dtype once. Nothing is ever narrowed.
        reverse: run from the last chunk to the first.

    Returns:
        The last carry, and the outs in the order of `chunks` whatever `reverse` says: a list if
        `chunks` was a list or tuple, else stacked along a new leading axis, `(n, ...)`. What a
        plain loop would return weakly typed is weakly typed.

    Raises:
        ChunkError: `chunks` is empty, leading axes differ, an integer is too large for JAX's
            default type, or an option has no such value. Also a `ValueError`.
        ChunkTypeError: `body` changes the structure or the type of the carry or returns no pair, or
            a leaf is nothing that JAX or `==` can work with. Also a `TypeError`.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        import compilecut as cc

        batches = [
            {"x": jnp.full((n, 3), 0.5), "y": jnp.zeros(n), "scale": 1.0 / (i + 1)}
            for i, n in enumerate([4, 4, 4, 2])
        ]

        @jax.jit
        def total(w, batches):
            def body(loss, batch):
                errors = batch["scale"] * (batch["x"] @ w - batch["y"])
                return loss + jnp.sum(errors**2), errors

            return cc.scan_chunks(body, 0.0, batches)

        loss, errors = total(jnp.arange(3.0), batches)
        assert [e.shape for e in errors] == [(4,), (4,), (4,), (2,)]
        ```

    Sharp edges:
        - A tuple is a sequence of chunks, never one stacked `(x, y)`: give a dict or a NamedTuple.
          Unlike arrays of one leading size in a tuple are run as chunks, with a warning.
        - A number in a chunk is an array inside `body`, weakly typed as the number was, in JAX's
          default precision: `x * (1 - p)` subtracts in float32 where Python would in float64, and
          a float16 can get another last bit than from a literal. It can be no shape and no index
          into a Python list; put such a number in a static field of a pytree.
        - `1` and `1.0` are of different types and make different groups. So do two lambdas.
        - Where `body` uses a captured operand several times, the loop sums its cotangents within
          each chunk first and a plain Python loop in one long sum: gradients can round otherwise.
          Over several groups a scan sums within each group first; units keep the plain order.
        - With sharded operands a loop communicates once per chunk. XLA can combine the reduces of
          chunks that are written out.
        - Called outside `jit`, each call traces and compiles anew. Call it from jitted code.
        - JAX makes a constant of a *concrete* array that jitted code closes over. The loop gets
          that constant as an operand, but it stands in the program; pass the array to the jitted
          function instead.
    """
    settings = _Settings(
        mode=mode,
        remat=remat,
        unroll=unroll,
        accum_dtype=None if accum_dtype is None else _floating(accum_dtype),
        reverse=bool(reverse),
    )
    groups = _split(chunks) if _is_sequence(chunks) else [along_leading_axis(chunks)]
    run = _Run(body, settings)
    state = take_carry(carry, settings.accum_dtype)
    outs: list[Any] = [None] * len(groups)
    for i in reversed(range(len(groups))) if settings.reverse else range(len(groups)):
        state, outs[i] = run.group(state, groups[i])
    last = run.as_weak_as_the_body_gives(state)
    if isinstance(groups[0], Stacked):
        return last.whole(), outs[0]
    return last.whole(), [out for group in outs for out in group]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The options of one call, checked. The attributes are the arguments of `scan_chunks`."""

    mode: Mode
    remat: Any
    unroll: int | bool
    accum_dtype: Any
    reverse: bool

    def __post_init__(self):
        modes = get_args(Mode)
        if self.mode not in modes:
            raise _errors.not_one_of(_errors.ChunkError, "mode", modes, self.mode)
        if not isinstance(self.unroll, int) or (self.unroll < 1 and self.unroll is not False):
            raise _errors.bad_unroll(self.unroll)
        if not (self.remat is None or self.remat is True or callable(self.remat)):
            raise _errors.bad_remat(self.remat)


class _Run:
    """One call of `scan_chunks`: its options, and the bodies it has traced so far."""

    def __init__(self, body: Body, settings: _Settings):
        self._body = body
        self._settings = settings
        self._sharer = Sharer(settings.accum_dtype)
        self._steps: list[Step] = []
        self._last: Step | None = None

    def group(self, carry: Carry, group: Group) -> tuple[Carry, Any]:
        """Runs one group; returns its outs stacked if it came stacked, else as a list."""
        settings, stacked = self._settings, isinstance(group, Stacked)
        first = group.start + (group.length - 1 if settings.reverse else 0)
        carry, step = settle(
            carry, lambda c: self._step(c, group), self._body, first, settings.accum_dtype
        )
        self._last = step
        form = self._choose(step, carry, group)
        if form == "scan":
            carry, outs = run_scan(step, carry, group, settings.unroll, settings.reverse)
            return carry, outs if stacked else as_list(outs, group.length)
        carry, outs = run_calls(step, carry, group, form == "unit", settings.reverse)
        return carry, as_stack(outs) if stacked else outs

    def as_weak_as_the_body_gives(self, carry: Carry) -> Carry:
        """Returns the last carry as the last chunk's body gives it: a loop may need it strong."""
        assert self._last is not None
        pairs = zip(carry.leaves, self._last.block.carry_out, strict=True)
        return carry.replace([v if v.dtype != t.dtype else as_weak_as(v, t) for v, t in pairs])

    def _step(self, carry: Carry, group: Group) -> Step:
        """Returns the traced body for a carry and a group, tracing it if it is a new kind."""
        for step in self._steps:
            if step.block.accepts(group.form, carry.leaves):
                return step
        block = trace_block(
            self._body, carry.tree, carry.leaves, group.form, group.example(), self._settings.remat
        )
        step = make_step(block, self._sharer.share(block.captured), _name(self._body))
        self._steps.append(step)
        return step

    def _choose(self, step: Step, carry: Carry, group: Group) -> Literal["scan", "unit", "unroll"]:
        """Says how a group runs; the rule is in the docstring of `scan_chunks`."""
        mode = self._settings.mode
        if group.length == 1 or mode == "unroll":
            return "unroll"
        if mode != "unit":
            return "scan"
        operands = (*step.block.captured, *carry.leaves, *group.operands())
        if _units.known_sharded(operands) or not _units.unit_support():
            return "scan"
        if not _units.can_be_unit(step.block.jaxpr.eqns):
            return "scan"
        return "unit"


def _is_sequence(chunks: Any) -> bool:
    # A NamedTuple is a pytree with names, so it is one stacked pytree.
    return isinstance(chunks, (list, tuple)) and not hasattr(chunks, "_fields")


def _split(chunks: Any) -> list[Group]:
    if not chunks:
        raise _errors.no_chunks()
    if isinstance(chunks, tuple) and _may_be_stacked(chunks):
        warnings.warn(_errors.looks_stacked(chunks), _errors.CompilecutWarning, stacklevel=3)
    return consecutive([take_apart(chunk, f"chunks[{i}]") for i, chunk in enumerate(chunks)])


def _may_be_stacked(chunks: tuple[Any, ...]) -> bool:
    """Says whether a tuple is rather `(xs, ys)` than chunks: unlike arrays of one leading axis."""
    if not all(isinstance(chunk, (jax.Array, np.ndarray)) and chunk.ndim for chunk in chunks):
        return False
    unlike = {(chunk.shape, chunk.dtype) for chunk in chunks}
    return len(unlike) > 1 and len({chunk.shape[0] for chunk in chunks}) == 1


def _floating(accum_dtype: Any) -> Any:
    try:
        dtype = jnp.dtype(accum_dtype)
    except TypeError as error:
        raise _errors.bad_accum_dtype(accum_dtype) from error
    if not jnp.issubdtype(dtype, jnp.floating):
        raise _errors.bad_accum_dtype(accum_dtype)
    return dtype


def _name(body: Body) -> str:
    return f"chunk_{getattr(body, '__name__', type(body).__name__)}".replace("<lambda>", "lambda")

"""`fold`: a function as written, its repeated structure compiled once.

    trace ──► find ──► prove ──► choose ──► emit
    _fold.py  _match/  _match/   _plan.py   _emit/

The function is traced once per types of its arrays and values of everything else; the plan is
remembered. Nothing here knows how any of it works: read `_match/_find.py` next.
"""

import functools
import types
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import jax
from jax.core import Tracer
from jax.extend import core as jex_core

from . import _compat, _errors
from ._arguments import Layout, split, type_of
from ._check import first_difference
from ._emit import Emitter
from ._fold_report import FoldReport, Setting, report
from ._packed import Packed
from ._plan import Form, Options, Plan, Planner, units_serve
from ._units import known_sharded


def fold(
    fn: Callable[..., Any] | None = None,
    *,
    form: Form = "auto",
    min_blocks: int = 3,
    check: bool = False,
) -> Any:
    """Wraps a function so that each block it repeats is compiled once.

    The function stays as it is written: a loss, a forward pass, a whole train step with its
    optimizer. Its repeated blocks are found in what it computes, proven to be the same, and handed
    to XLA as one block that is called, or as a loop. What can't be proven stays as written.

        >>> import jax, jax.numpy as jnp, compilecut as cc
        >>> def model(weights, x):
        ...     for w in weights:
        ...         x = x + jnp.tanh(x @ w)
        ...     return x.sum()
        >>> weights = list(jax.random.normal(jax.random.key(0), (12, 8, 8)))
        >>> value = jax.jit(cc.fold(model))(weights, jnp.ones(8))

    Args:
        fn: the function. Arrays in its arguments are data; everything else (numbers, strings,
            functions) is static, and a new value means a new trace, as with `eqx.filter_jit`.
        form: how repeats are emitted. "unit" calls one compiled block, "scan" loops over stacks,
            "batch" runs independent blocks on whole stacks or loops over them; "auto" takes what
            pays for each repeat, and leaves those that don't pay as written. Where XLA can't
            compile a block as a unit, "unit" means "scan".
        min_blocks: how many blocks make a repeat.
        check: compare each folded program with the original, equation by equation, before it is
            used. One that doesn't check is not used, with a warning.

    Returns:
        A callable with the same signature and results. Called directly it compiles, as `jax.jit`
        does; under `jit`, `grad`, `vmap` and other transforms it is a plain function.

    Raises:
        InputError: an option that doesn't exist.

    Sharp edges:
        - Under compile options as they are, the bits may differ from those of the program as
          written, because XLA fuses and reassociates across blocks that it no longer sees as one
          piece. `compilecut.testing.assert_equivalent` compares without these.
        - A Python number among the arguments is static, where `jax.jit` traces it: each new value
          is a new trace and a new compile. Pass a step counter or a learning rate as an array.
        - Blocks at the ends of a differentiated loop lack some equations. These are computed there
          too, on zeros, and dropped; `jax_debug_nans` may see them.
    """
    if fn is None:
        return functools.partial(fold, form=form, min_blocks=min_blocks, check=check)
    if isinstance(fn, Folded):
        return fn
    if not callable(fn):
        raise _errors.not_a_function("fold", fn)
    return Folded(fn, Options(form=_form(form), min_blocks=_blocks(min_blocks)), check)


FORMS = ("auto", "unit", "scan", "batch")


def _form(form: Any) -> Form:
    if form not in FORMS:
        raise _errors.not_one_of(_errors.InputError, "form", FORMS, form)
    return form


def _blocks(min_blocks: Any) -> int:
    if not isinstance(min_blocks, int) or min_blocks < 2:
        raise _errors.bad_min_blocks(min_blocks)
    return min_blocks


class Folded:
    """A function wrapped by `fold`. Call it as the function itself."""

    def __init__(self, fn: Callable[..., Any], options: Options, check: bool):
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._options = options
        self._check = check
        self._flat: dict[Layout, _Flat] = {}
        self._runs: dict[Hashable, _Run] = {}  # by all of a call that a trace depends on

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the function returns."""
        if _debugging():
            return self._fn(*args, **kwargs)
        arrays, layout = split((args, kwargs))
        run = self.trace(arrays, layout)
        return run.layout.join(run(arrays))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds to an instance, so that methods can be decorated."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<fold({self._name})>"

    def report(self, *args: Any, **kwargs: Any) -> FoldReport:
        """Returns what is folded for these arguments, what isn't, and why.

        Arguments may be `jax.ShapeDtypeStruct`s; nothing is computed.
        """
        arrays, layout = split((args, kwargs))
        run = self.trace(arrays, layout)
        units = units_serve(run.closed, arrays)
        setting = Setting(form=self._options.form, units=units)
        return report(self._name, run.plan, run.closed, run.emitted(), setting)

    def packed(self, *args: Any, state: int) -> Packed:
        """Returns the function with its first arguments held in stacks from call to call.

            step = cc.fold(train_step).packed(params, opt_state, batch, state=2)
            s = step.pack(params, opt_state)
            s, loss = step(s, batch)
            params, opt_state = step.unpack(s)

        Args:
            args: example arguments; `jax.ShapeDtypeStruct`s will do.
            state: how many of the first arguments are the state. The function returns as many
                first: the next state, of the same structure and types.

        Raises:
            InputError: the function returns another state than it takes; the leaf is named.
        """
        if type(state) is not int or not 0 < state <= len(args):
            raise _errors.bad_state_count(self._name, state, len(args))
        return Packed(self._jaxpr, self._name, self._options, self._check, args, state)

    def _jaxpr(self, arrays: list[Any], layout: Layout) -> tuple[Any, Layout]:
        flat = self._flat.get(layout)
        if flat is None:
            flat = self._flat[layout] = _Flat(self._fn, layout)
        return flat.trace(arrays)

    def trace(self, arrays: list[Any], layout: Layout) -> "_Run":
        """Traces and plans, or remembers: one `_Run` per types of arrays and static values."""
        types = tuple(map(type_of, arrays))
        key = (layout, types, known_sharded(arrays), _compat.trace_context())
        if key not in self._runs:
            run = self._make_run(arrays, layout)
            if any(isinstance(const, Tracer) for const in run.closed.consts):
                return run  # it closes over what another trace will not have
            self._runs[key] = run
        return self._runs[key]

    def _make_run(self, arrays: list[Any], layout: Layout) -> "_Run":
        closed, results = self._jaxpr(arrays, layout)
        plan = Planner(self._options, units=units_serve(closed, arrays)).plan(closed)
        run = _Run(closed, plan, results)
        if self._check and plan.folds:
            difference = first_difference(closed, run.emitted())
            if difference is not None:
                message = _errors.fold_did_not_check(self._name, difference)
                warnings.warn(message, _errors.CompilecutWarning, stacklevel=5)
                run.give_up()
        return run


class _Flat:
    """A function of arrays alone: one per structure and static values."""

    def __init__(self, fn: Callable[..., Any], layout: Layout):
        # By traced jaxpr, which is kept so that its id stays its own.
        self._results: dict[int, tuple[Any, Layout]] = {}
        self._last: Layout | None = None

        def flat(*arrays: Any) -> list[Any]:
            args, kwargs = layout.join(arrays)
            data, self._last = split(fn(*args, **kwargs))
            return data

        flat.__name__ = flat.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
        self._jit = jax.jit(flat)
        self._function = flat

    def trace(self, arrays: list[Any]) -> tuple[Any, Layout]:
        """Returns the closed jaxpr, the same for the same types and settings, and the results."""
        self._last = None
        closed: Any = self._jit.trace(*arrays).jaxpr
        if id(closed) not in self._results:
            if self._last is None:  # JAX had the trace; what came beside the arrays, it hadn't
                jax.eval_shape(lambda *given: self._function(*given), *arrays)
            assert self._last is not None
            self._results[id(closed)] = (closed, self._last)
        layout = self._results[id(closed)][1]
        if len(closed.in_avals) != len(arrays):  # it closes over tracers: they become constants
            closed = jax.make_jaxpr(self._function)(*arrays)
        return closed, layout


class _Run:
    """A traced function, its plan, and how to run it."""

    def __init__(self, closed: Any, plan: Plan, layout: Layout):
        self.closed = closed
        self.plan = plan
        self.layout = layout
        self._inline: Callable[..., list[Any]] = functools.partial(_emit, Emitter(), plan)
        if not plan.folds:
            self.give_up()
        self._jit = jax.jit(lambda *arrays: self._inline(*arrays))

    def give_up(self) -> None:
        """Runs the function as it was written from now on."""
        self._inline = jex_core.jaxpr_as_fun(self.closed)

    def emitted(self) -> Any:
        """Returns the folded program, as a closed jaxpr."""
        return jax.make_jaxpr(self._inline)(*self.closed.in_avals)

    def __call__(self, arrays: list[Any]) -> list[Any]:
        traced = _compat.tracing() or any(isinstance(array, Tracer) for array in arrays)
        return list((self._inline if traced else self._jit)(*arrays))


def _emit(emitter: Emitter, plan: Plan, *arrays: Any) -> list[Any]:
    return emitter.run_alone(plan, arrays)


def _debugging() -> bool:
    """Says whether a debugging mode wants to see the user's own program run."""
    return bool(jax.config.jax_disable_jit)  # pyright: ignore[reportAttributeAccessIssue]


def explain(fn: Callable[..., Any]) -> Callable[..., FoldReport]:
    """Returns a function that says what `fold` would do to a call of `fn`, and why.

        >>> import jax.numpy as jnp, compilecut as cc
        >>> report = cc.explain(lambda x: x + 1)(jnp.ones(3))
        >>> len(report.repeats)
        0

    Args:
        fn: a function, folded or not.
    """
    folded = fn if isinstance(fn, Folded) else fold(fn)
    return folded.report

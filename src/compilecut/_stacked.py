"""`stacked_init`: an init function whose distinct parts are compiled once each.

What the parts are is decided in `_init/`; start with its `__init__.py`. Here is what the user
holds: the wrapped function, its lowered and its compiled form.
"""

import contextlib
import dataclasses
import functools
import types
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import jax
from jax.core import Tracer

from . import _compat, _errors
from ._bits import first_difference
from ._init import _programs, _run
from ._init._explain import explain_plan
from ._init._places import Places, leaf_paths, resolve
from ._init._plan import Plan, make_plan
from ._init._stacks import ArraySink, Stacks, StackSink, stack_leaves
from ._init._statics import Statics
from ._report import Report

FanOut = Literal["arrays", "stacks"]


@overload
def stacked_init(
    init_fn: Callable[..., Any],
    *,
    out_shardings: Any = ...,
    fan_out: FanOut = ...,
    check: bool = ...,
    static_argnums: int | Sequence[int] | None = ...,
    static_argnames: str | Sequence[str] | None = ...,
) -> "StackedInit": ...
@overload
def stacked_init(
    init_fn: None = None,
    *,
    out_shardings: Any = ...,
    fan_out: FanOut = ...,
    check: bool = ...,
    static_argnums: int | Sequence[int] | None = ...,
    static_argnames: str | Sequence[str] | None = ...,
) -> Callable[[Callable[..., Any]], "StackedInit"]: ...
def stacked_init(
    init_fn: Callable[..., Any] | None = None,
    *,
    out_shardings: Any = None,
    fan_out: FanOut = "arrays",
    check: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Any:
    """Wraps an init function so that each distinct initialiser in it is compiled once.

    The function is traced as it stands. Pieces of it that are the same computation, whatever their
    keys, are found, compiled once and run once per site. The results are bit for bit those of
    `jax.jit(init_fn)`.

    ```python
    import jax
    import compilecut as cc

    @cc.stacked_init
    def init(key):
        keys = jax.random.split(key, 12)
        return [{"w": jax.random.normal(k, (64, 64)) / 8} for k in keys]

    params = init(jax.random.key(0))
    assert params[0]["w"].shape == (64, 64)
    print(init.explain(jax.random.key(0)))
    ```

    It serves as a decorator, with options too: `@cc.stacked_init(check=True)`.

    Args:
        init_fn: any function of arrays that `jax.jit` can trace: a loop over sites,
            `model.init` of Flax linen, an nnx constructor, an Equinox one filtered to its arrays,
            a Haiku `init`.
        out_shardings: where the results go: a pytree, or a prefix of one, of shardings, as
            `jax.jit` takes it. Each site is generated sharded, nothing is gathered.
        fan_out: `"arrays"` returns what `init_fn` returns. `"stacks"` returns `Stacks`: sites of
            one computation in one array `[sites, ...]`.
        check: also run `jax.jit(init_fn)` and compare every leaf, bit for bit.
        static_argnums: positions of static arguments, as in `jax.jit`.
        static_argnames: names of static arguments, as in `jax.jit`.

    Returns:
        A callable with the signature of `init_fn`, and with `lower`, `explain`.

    Raises:
        ShardingError: when called, if a sharding doesn't fit; nothing is compiled before.
        CheckError: when called with `check=True`, if a leaf differs; names its path.

    Sharp edges:
        * The reference is the jitted init. An init that runs eagerly gives floats that differ in
          the last place from any jitted one.
        * What shares a random draw, or a floating-point result computed from one, is one site.
        * An init with effects (prints, callbacks) stays as written, with a warning.
        * Inside another trace (`jit`, `vmap`, `eval_shape`) it is `init_fn` itself.
        * What was compiled is kept as long as JAX keeps the trace: `jax.clear_caches()` drops it.
    """
    if fan_out not in ("arrays", "stacks"):
        raise _errors.not_one_of(_errors.InputError, "fan_out", ("arrays", "stacks"), fan_out)

    def wrap(fn: Callable[..., Any]) -> StackedInit:
        statics = {"static_argnums": static_argnums, "static_argnames": static_argnames}
        return StackedInit(fn, out_shardings, fan_out, check, statics)

    return wrap if init_fn is None else wrap(init_fn)


def stacked_sites(
    init_site: Callable[[Any, Any], Any],
    sites: Mapping[str, Hashable],
    *,
    out_shardings: Any = None,
    fan_out: FanOut = "arrays",
) -> "StackedInit":
    """The explicit form: one init per site, called with keys that the caller split.

    ```python
    import jax
    import compilecut as cc

    def site(key, width):
        return jax.random.normal(key, (8, width))

    init = cc.stacked_sites(site, {"up": 32, "gate": 32, "down": 8})
    params = init(jax.random.split(jax.random.key(0), 3))
    assert params["down"].shape == (8, 8)
    ```

    Args:
        init_site: `init_site(key, spec)`, the init of one site. Traced once per distinct spec.
        sites: from name to a static spec (anything hashable).
        out_shardings: as for `stacked_init`; the results are a dict by name.
        fan_out: as for `stacked_init`.

    Returns:
        `init(keys)`, where `keys` is a pytree of arrays `[sites, ...]` in the order of `sites`. It
        returns a dict from name to what `init_site` returned.

    Raises:
        InputError: `sites` is no mapping; when called, keys without an entry per site.
    """
    if not isinstance(sites, Mapping):
        raise _errors.sites_not_a_mapping(sites)
    # An inner jit is traced once per distinct spec, and opened like any other.
    init_one = jax.jit(init_site, static_argnums=1)

    def init(keys: Any) -> dict[str, Any]:
        _check_site_axis(keys, len(sites))
        return {
            name: init_one(jax.tree.map(lambda k: k[i], keys), spec)  # noqa: B023
            for i, (name, spec) in enumerate(sites.items())
        }

    init.__name__ = getattr(init_site, "__name__", "init_site")
    return stacked_init(init, out_shardings=out_shardings, fan_out=fan_out)


def _check_site_axis(keys: Any, count: int) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(keys):
        if jax.numpy.ndim(leaf) == 0 or leaf.shape[0] != count:
            raise _errors.site_axis_missing(
                jax.tree_util.keystr(path), jax.numpy.shape(leaf), count
            )


class StackedInit:
    """An init function wrapped by `stacked_init`. Call it as the function itself."""

    def __init__(self, fn, out_shardings, fan_out: FanOut, check: bool, statics: dict[str, Any]):
        functools.update_wrapper(self, fn)
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._out_shardings = out_shardings
        self._fan_out: FanOut = fan_out
        self._check = check
        self._statics = Statics.infer(fn, **statics)
        self._jit = jax.jit(fn, **statics)
        self._make_reference = functools.partial(
            jax.jit, fn, out_shardings=out_shardings, **statics
        )
        # By the traced jaxpr and the places. A plan lives as long as JAX keeps the trace, hence not
        # beyond `jax.clear_caches()`.
        self._made: weakref.WeakKeyDictionary[Any, dict[Places, _Made]] = (
            weakref.WeakKeyDictionary()
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what `jax.jit(init_fn)` returns, or its `Stacks`."""
        traced = _compat.tracing() or any(map(_is_tracer, jax.tree.leaves((args, kwargs))))
        if traced or _debugging():
            return self._inline(args, kwargs)
        call = self._trace(args, kwargs)
        if call.made.compiled is None:
            call.made.compiled = self._lower(call).compile()
        result = call.made.compiled(*args, **kwargs)
        if self._check:
            self._compare(result, args, kwargs)
        return result

    def __repr__(self) -> str:
        options = {"fan_out": self._fan_out, "check": self._check}
        plain = {"fan_out": "arrays", "check": False}
        given = [f"{name}={value!r}" for name, value in options.items() if value != plain[name]]
        if self._out_shardings is not None:
            given.append("out_shardings=...")
        return f"stacked_init({', '.join([self._name, *given])})"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds to an instance, so that methods can be decorated."""
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> "LoweredInit":
        """Lowers for arguments, which may be `jax.ShapeDtypeStruct`s; nothing is computed."""
        return self._lower(self._trace(args, kwargs))

    def explain(self, *args: Any, **kwargs: Any) -> Report:
        """Returns what would be compiled once, what stays as written, and why."""
        call = self._trace(args, kwargs)
        return explain_plan(self._name, call.plan, call.traced.out_tree)

    @functools.cached_property
    def _reference(self) -> Callable[..., Any]:
        """The init as `jax.jit` compiles it, made late: jit has its own words for bad shardings."""
        return self._make_reference()

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, placed: bool = True):
        with _advice():
            traced = self._jit.trace(*args, **kwargs)
        dynamic = self._statics.drop(args, kwargs)
        arguments = jax.tree.leaves(dynamic)
        places = resolve(
            self._out_shardings if placed else None,
            traced.out_tree,
            traced.jaxpr.out_avals,
            arguments if placed else (),
        )
        made = self._made.setdefault(traced.jaxpr, {})
        if places not in made:
            made[places] = _Made(make_plan(traced.jaxpr, places))
        return _Call(traced, made[places], dynamic, arguments)

    def _lower(self, call: "_Call") -> "LoweredInit":
        if call.plan.split is not None:
            return LoweredInit(self, call, _programs.lower(call.plan, call.arguments))
        reason = call.plan.skips[0]
        message = f"stacked_init left {self._name} as written: {reason}"
        warnings.warn(message, _errors.CompilecutWarning, stacklevel=4)
        return LoweredInit(self, call, None)

    def _inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _advice():
            result = self._reference(*args, **kwargs)
        if self._fan_out == "arrays":
            return result
        return stack_leaves(self._trace(args, kwargs, placed=False).plan, result)

    def _compare(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mine = result.unstack() if isinstance(result, Stacks) else result
        difference = first_difference(mine, self._reference(*args, **kwargs))
        if difference is not None:
            raise _errors.values_differ(self._name, difference)


@dataclasses.dataclass(slots=True)
class _Made:
    """A plan, and what was compiled of it. Neither may hold the traced jaxpr, their weak key."""

    plan: Plan
    compiled: "CompiledInit | None" = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A traced init, its plan, and the dynamic arguments it was traced with."""

    traced: Any
    made: _Made
    dynamic: tuple[tuple[Any, ...], dict[str, Any]]
    arguments: list[Any]

    @property
    def plan(self) -> Plan:
        """How the init is computed."""
        return self.made.plan


class LoweredInit:
    """An init function lowered, not compiled yet. See `StackedInit.lower`.

    Attributes:
        programs: the lowered programs (`jax.stages.Lowered`).
    """

    def __init__(self, owner: StackedInit, call: _Call, lowered: _programs.Programs | None):
        self._owner = owner
        self._call = call
        self._lowered = lowered
        self.programs: tuple[Any, ...] = ()
        if lowered is None:
            self.programs = (call.traced.lower(),)
        else:
            self.programs = lowered.all()

    def compile(self) -> "CompiledInit":
        """Compiles every program, several at a time."""
        compiled = None if self._lowered is None else _programs.compile_in_threads(self._lowered)
        return CompiledInit(self._owner, self._call, compiled)


class CompiledInit:
    """An init function compiled. Call it with arguments of the types it was lowered for.

    Attributes:
        programs: the compiled programs (`jax.stages.Compiled`); none where the function stays as
            written, because then `jax.jit` compiles it when it is called.
    """

    def __init__(self, owner: StackedInit, call: _Call, programs: _programs.Programs | None):
        self._owner = owner
        self._plan = call.plan
        self._tree = call.traced.out_tree
        self._in_tree = jax.tree.structure(call.dynamic)
        split = call.plan.split
        self._avals = [] if split is None else [v.aval for v in split.program.arguments]
        self._programs = programs
        self.programs: tuple[Any, ...] = () if programs is None else programs.all()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the init function returns, or its `Stacks`."""
        stacks = self._owner._fan_out == "stacks"
        if self._programs is None:
            result = self._owner._reference(*args, **kwargs)
            return stack_leaves(self._plan, result) if stacks else result
        arguments = self._arguments(args, kwargs)
        sink = StackSink(self._plan, self._tree) if stacks else ArraySink(self._tree)
        _run.run(self._plan, self._programs, arguments, sink)
        return sink.finish()

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        arguments, tree = jax.tree.flatten(self._owner._statics.drop(args, kwargs))
        if tree != self._in_tree:
            raise _errors.compiled_for_other_structure(self._in_tree, tree)
        for i, (aval, argument) in enumerate(zip(self._avals, arguments, strict=True)):
            given = jax.typeof(argument)
            if (given.shape, given.dtype) != (aval.shape, aval.dtype):
                path = leaf_paths(self._in_tree)[i]
                raise _errors.compiled_for_other_type(path, aval, given)
        return arguments


@contextlib.contextmanager
def _advice() -> Iterator[None]:
    """Adds a remedy to JAX's error for results that are no arrays."""
    try:
        yield
    except TypeError as error:
        if "not a valid JAX type" in str(error):
            error.add_note(_errors.ADVICE_ABOUT_LEAVES)
        raise


def _debugging() -> bool:
    """Says whether a debugging mode wants to see the user's own program run."""
    modes = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs")
    return any(getattr(jax.config, mode) for mode in modes)


def _is_tracer(leaf: Any) -> bool:
    return isinstance(leaf, Tracer)

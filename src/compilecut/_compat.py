"""The only file that touches non-public JAX or asks for its version.

Each name says what it stands for, why the public interface doesn't serve, and what else would.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax._src import ad_util, api_util, callback, core, debugging, dispatch
from jax._src import linear_util as lu
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lax import lax as lax_internal
from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]
from jax._src.lib.mlir.dialects import func as func_dialect
from jax._src.random import prng
from jax._src.shard_map import shard_map_p
from jax._src.sharding_impls import UnspecifiedValue
from jax._src.util import weakref_lru_cache
from jax.experimental import xla_metadata
from jax.extend.core import primitives as prim

# --- primitives that jax.extend.core.primitives doesn't list

random_wrap_p = prng.random_wrap_p
random_unwrap_p = prng.random_unwrap_p
unstack_p = lax_internal.unstack_p

HOST_CALLBACKS = frozenset(
    {
        callback.pure_callback_p,
        callback.io_callback_p,
        debugging.debug_callback_p,
        debugging.debug_print_p,
    }
)

# Primitives that decide where values live, beyond what an output's type says.
PLACING = frozenset({prim.sharding_constraint_p, shard_map_p})

# --- equations

_CALL_SETTINGS = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")


def jit_only_groups(params: dict[str, Any]) -> bool:
    """Says whether an inner jit does nothing but group: no shardings, layouts or options.

    Unspecified shardings have no public name.
    """
    if params["compiler_options_kvs"]:
        return False
    settings = (setting for name in _CALL_SETTINGS for setting in params[name])
    return all(s is None or isinstance(s, UnspecifiedValue) for s in settings)


def draws_partitionable(ctx: Any) -> bool:
    """Says whether an equation was traced with `jax_threefry_partitionable`.

    Then element i of a draw depends on the key and i alone, whatever the shape.
    """
    return ctx.threefry_partitionable


# --- what `jax.monitoring` reports; the listeners are public, the names of the events are not

TRACE_EVENT = dispatch.JAXPR_TRACE_EVENT
LOWER_EVENT = dispatch.JAXPR_TO_MLIR_MODULE_EVENT
COMPILE_EVENT = dispatch.BACKEND_COMPILE_EVENT  # also when the persistent cache had the program
CACHE_HIT_EVENT = "/jax/compilation_cache/cache_hits"  # same thread, before its COMPILE_EVENT

# --- keys


def key_impl(dtype: Any) -> Any:
    """Returns the implementation behind a key dtype, as `jax.random.wrap_key_data` takes it.

    `jax.random.key_impl` wants an array; a plan has only avals.
    """
    return dtype._impl


def known_draws() -> bool:
    """Says whether this JAX is one whose partitionable threefry draws were compared with ours.

    `_init/_draw.py` computes draws by the scheme JAX has used since 0.4.16. On a version newer
    than those in CI it makes sure with a small draw of JAX's own before it is trusted.
    """
    return jax.__version_info__ < (0, 13)


# --- tracing


def tracing() -> bool:
    """Says whether a trace is under way (`jit`, `grad`, `vmap`, ...), even with concrete inputs.

    An outer `jit` of a function without arguments gives no tracer to look at.
    """
    return not core.trace_state_clean()


def outside_traces() -> Any:
    """A context in which operations run at once, although a trace is under way."""
    return core.eval_context()


# --- types of values


def same_type(a: Any, b: Any) -> bool:
    """Says whether a loop may carry a value of type `a` into one of type `b`, or back.

    This is `lax.scan`'s own test: weak types don't matter, nor meshes one of the two doesn't know.
    """
    return core.typematch(a, b)


def varying_axes(aval: Any) -> frozenset[str]:
    """Returns the mesh axes a value varies over inside `shard_map`.

    The attribute was called `vma` before jax 0.10.
    """
    return aval.mat.varying


# --- compilation units
#
# XLA compiles a call tagged `compilation_unit` once per callee (see `_units.py`). The tag has to be
# on the call alone and to survive vmap, jvp and transposition. `set_xla_metadata` as a context also
# tags the inner calls of whatever is traced under it, derivatives included, so it won't do.
# `xla_metadata_call` (jax 0.11 on) does; for jax 0.10 the primitive below is its counterpart, with
# the rules of that version's `jax/_src/compute_on.py`. Delete it when 0.11 is the oldest supported.


def unit_call(function: Callable[..., list[Any]], name: str) -> Callable[..., list[Any]]:
    """Wraps a function of flat arrays so that XLA compiles all its calls as one unit."""
    tagged = getattr(xla_metadata, "xla_metadata_call", None)
    if tagged is not None:
        return tagged(function, compilation_unit=name)

    def call(*args: Any) -> list[Any]:
        avals = tuple(core.shaped_abstractify(x) for x in args)
        return _unit_p.bind(*args, jaxpr=_trace_unit(function, avals), name=name)

    return call


@weakref_lru_cache
def _trace_unit(function, avals):
    debug_info = api_util.debug_info("compilation_unit", function, avals, {})
    wrapped = lu.wrap_init(lambda *args: list(function(*args)), debug_info=debug_info)
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(wrapped, avals)
    return core.ClosedJaxpr(jaxpr, consts)


_unit_p = core.Primitive("compilation_unit")
_unit_p.multiple_results = True


@_unit_p.def_effectful_abstract_eval
def _unit_abstract_eval(*_, jaxpr, name):
    return jaxpr.out_avals, core.positional_effects(jaxpr)


def _unit_lowering(ctx, *args, jaxpr, name):
    func, types, effects = mlir.lower_called_computation(
        name, jaxpr, ctx.module_context, 0, ctx.avals_in, ctx.avals_out, ctx.tokens_in
    )
    flat_types, tree = mlir.ir_tree_registry.flatten(types)
    tokens = [ctx.tokens_in.get(effect) for effect in effects]
    operands, _ = mlir.ir_tree_registry.flatten((*ctx.dim_var_values, *tokens, *args))
    call = func_dialect.CallOp(flat_types, ir.FlatSymbolRefAttr.get(func.name.value), operands)
    tag = ir.DictAttr.get({"compilation_unit": ir.StringAttr.get(name)})
    call.operation.attributes["mhlo.frontend_attributes"] = tag
    results = tree.unflatten(call.results)
    after = dict(zip(effects, results[: len(effects)], strict=True))
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet(after)))
    return results[len(effects) :]


def _unit_batcher(axis_data, args, dims, *, jaxpr, name):
    batched, dims_out = batching.batch_jaxpr2(jaxpr, axis_data, dims)
    return _unit_p.bind(*args, jaxpr=batched, name=name), dims_out


def _nonzero(flags, values):
    return tuple(value for flag, value in zip(flags, values, strict=True) if flag)


def _fill_zeros(flags, values, avals):
    values = iter(values)
    return [
        next(values) if flag else ad_util.Zero(aval.to_tangent_aval())
        for flag, aval in zip(flags, avals, strict=True)
    ]


def _unit_jvp(primals, tangents, *, jaxpr, name):
    flags = [not isinstance(t, ad_util.Zero) for t in tangents]
    jvp, flags_out = ad.jvp_jaxpr(jaxpr, flags, False)
    outs = _unit_p.bind(*primals, *_nonzero(flags, tangents), jaxpr=jvp, name=name)
    n = len(flags_out)
    return outs[:n], _fill_zeros(flags_out, outs[n:], jaxpr.out_avals)


def _unit_linearize(is_vjp, flags, *primals, jaxpr, name):
    primal, n_residuals, flags_out, forwarded, tangent = ad.linearize_jaxpr(
        jaxpr, flags, is_vjp=is_vjp
    )

    def tangent_function(residuals, *tangents):
        outs = _unit_p.bind(*residuals, *_nonzero(flags, tangents), jaxpr=tangent, name=name)
        return _fill_zeros(flags_out, outs, jaxpr.out_avals)

    outs = _unit_p.bind(*primals, jaxpr=primal, name=name)
    n = len(outs) - n_residuals
    residuals = iter(outs[n:])
    inputs = [*jaxpr.consts, *primals]
    residuals = [next(residuals) if i is None else inputs[i] for i in forwarded]
    return outs[:n], flags_out, residuals, tangent_function


@weakref_lru_cache
def _transpose_unit(jaxpr, avals, tree):
    out_tree = None

    def transposed(*flat):
        nonlocal out_tree
        primals, cotangents = jax.tree.unflatten(tree, flat)
        outs = ad.backward_pass(jaxpr.jaxpr, False, jaxpr.consts, primals, cotangents)
        outs = [None if isinstance(out, ad_util.Zero) else out for out in outs]
        flat_outs, out_tree = jax.tree.flatten(outs)
        return flat_outs

    wrapped = lu.wrap_init(transposed, debug_info=jaxpr.jaxpr.debug_info.with_unknown_names())
    transposed_jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(wrapped, avals)
    return core.ClosedJaxpr(transposed_jaxpr, consts), out_tree


def _unit_transpose(cotangents, *primals, jaxpr, name):
    flat, tree = jax.tree.flatten((primals, cotangents))
    avals = tuple(core.typeof(x) for x in flat)
    transposed, out_tree = _transpose_unit(jaxpr, avals, tree)
    return jax.tree.unflatten(out_tree, _unit_p.bind(*flat, jaxpr=transposed, name=name))


def _unit_dce(used, eqn):
    if not any(used) and not pe.has_effects(eqn):
        return [False] * len(eqn.invars), None
    jaxpr, used_inputs = pe._cached_closed_call_dce(eqn.params["jaxpr"], tuple(used))
    inputs = _nonzero(used_inputs, eqn.invars)
    kept = core.new_jaxpr_eqn(
        inputs,
        _nonzero(used, eqn.outvars),
        eqn.primitive,
        dict(eqn.params, jaxpr=jaxpr),
        core.eqn_effects(jaxpr, inputs),
        eqn.source_info,
        eqn.ctx,
    )
    return used_inputs, kept


def _unit_partial_eval(*args):
    # The calls that remat splits a call into need no parameters but their jaxprs.
    return pe.closed_call_partial_eval_custom_rule("jaxpr", lambda *params: params[-2:], *args)


_unit_p.def_impl(functools.partial(dispatch.apply_primitive, _unit_p))
mlir.register_lowering(_unit_p, _unit_lowering)
batching.fancy_primitive_batchers[_unit_p] = _unit_batcher
ad.primitive_jvps[_unit_p] = _unit_jvp
ad.primitive_linearizations[_unit_p] = _unit_linearize
ad.primitive_transposes[_unit_p] = _unit_transpose
pe.dce_rules[_unit_p] = _unit_dce
pe.partial_eval_jaxpr_custom_rules[_unit_p] = _unit_partial_eval

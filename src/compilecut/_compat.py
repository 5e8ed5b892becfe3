"""The only file that touches non-public JAX or asks for its version.

Each name says what it stands for, why the public interface doesn't serve, and what else would.
"""

from typing import Any

import jax
from jax._src import callback, config, core, debugging, dispatch, tree_util
from jax._src import xla_metadata as xla_metadata_internal
from jax._src.lax import lax as lax_internal
from jax._src.named_sharding import UnspecifiedValue
from jax._src.random import prng
from jax._src.shard_map import shard_map_p
from jax.experimental import xla_metadata
from jax.extend.core import primitives as prim

# --- primitives that jax.extend.core.primitives doesn't list

random_wrap_p = prng.random_wrap_p
random_unwrap_p = prng.random_unwrap_p
stack_p = lax_internal.stack_p
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


def stack_of(source_info: Any) -> list[tuple[str, str, int]]:
    """Returns file, function and line of each call an equation was traced in, innermost first.

    It ends at the function that was traced. Public JAX summarises such a stack, and tells only
    JAX's own files from the user's.
    """
    frames = [] if source_info.traceback is None else source_info.traceback.frames
    return [(f.file_name, f.function_name, f.line_num) for f in frames]


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


def trace_context() -> Any:
    """Returns a key of all settings that a trace depends on (precision, x64, the mesh, ...).

    What was traced under one is not what a trace under another would give.
    """
    return config.trace_context()


def outside_traces() -> Any:
    """A context in which operations run at once, although a trace is under way."""
    return core.eval_context()


# --- trees


def departure(prefix: Any, tree: Any, is_leaf: Any) -> str:
    """Says where a tree first fails to be a prefix of another, or nothing if it is one.

    `jax.tree.broadcast` raises without a path.
    """
    found = tree_util.prefix_errors(prefix, tree, is_leaf=is_leaf)
    return str(found[0]("`out_shardings`")) if found else ""


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


# --- loops


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Returns how many constants and how many carries a scan equation has.

    The parameters that say so changed in jax 0.11; the equation's meaning did not.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


# --- compilation units

# Tags a call for XLA, and nothing in it. New in jax 0.11; `_units.py` does without before.
xla_metadata_call = getattr(xla_metadata, "xla_metadata_call", None)
xla_metadata_call_p = getattr(xla_metadata_internal, "xla_metadata_call_p", None)

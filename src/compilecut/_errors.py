"""Exceptions and their messages, one function per message.

A message says what happened, to what, where, and what to do about it.
"""

from collections.abc import Sequence
from typing import Any, TypeVar


class CompilecutError(Exception):
    """Base of the errors that compilecut raises itself."""


E = TypeVar("E", bound=CompilecutError)


class ShardingError(CompilecutError, ValueError):
    """`out_shardings` can't be met."""


class CheckError(CompilecutError, AssertionError):
    """A comparison asked for with `check=True` found different values."""


class InputError(CompilecutError, TypeError):
    """An argument that can't be used."""


class SiteError(CompilecutError, KeyError):
    """A leaf that isn't there."""

    def __str__(self) -> str:
        # A `KeyError` shows the `repr` of its message.
        return self.args[0]


class CompilecutWarning(UserWarning):
    """Something stayed as it was written, so nothing was gained."""


def not_one_of(kind: type[E], option: str, choices: Sequence[str], given: Any) -> E:
    """A typo in an option."""
    *most, last = (f'"{choice}"' for choice in choices)
    return kind(f"`{option}` must be {', '.join(most)} or {last}, not {given!r}.")


# --- stacked_init


def shardings_do_not_fit(departure: str) -> ShardingError:
    """`out_shardings` is no prefix of the results."""
    return ShardingError(
        f"`out_shardings` is not a prefix of what the init function returns: {departure}\n"
        "Give one sharding for all, or a tree with the same containers."
    )


def spec_without_mesh(spec: Any) -> ShardingError:
    """A partition spec needs a mesh to mean anything."""
    return ShardingError(
        f"`out_shardings` holds {spec} but no mesh is set. Use `NamedSharding(mesh, spec)`, or "
        "call inside `with jax.set_mesh(mesh):`."
    )


def not_a_sharding(thing: Any) -> ShardingError:
    """Something else where a sharding belongs."""
    return ShardingError(
        f"`out_shardings` holds {thing!r} of type {type(thing).__name__}. Its leaves must be "
        "shardings, partition specs or None."
    )


def does_not_tile(path: str, aval: Any, sharding: Any, cause: Exception) -> ShardingError:
    """A dimension of a site isn't a multiple of its mesh axes."""
    return ShardingError(
        f"leaf {path or 'result'} of shape {aval.shape} can't be laid out as {sharding}: {cause}\n"
        "Nothing was compiled. Choose a mesh axis that divides the dimension, or leave that "
        "dimension unsharded (None in its PartitionSpec)."
    )


def compiled_for_other_structure(expected: Any, given: Any) -> InputError:
    """A compiled init called with other arguments than it was lowered for."""
    return InputError(
        f"this init was compiled for arguments of structure {expected}, and was called with "
        f"{given}. Call it as it was lowered, or call the wrapped function itself."
    )


def compiled_for_other_type(path: str, expected: Any, given: Any) -> InputError:
    """A compiled init called with an argument of another type."""
    return InputError(
        f"this init was compiled for {expected.str_short()} at argument {path}, and was called "
        f"with {given.str_short()}. Lower it for that type, or call the wrapped function itself."
    )


def unknown_site(path: Any, near: Sequence[str], count: int) -> SiteError:
    """A path that `Stacks.sites` doesn't have."""
    hint = f"near it: {', '.join(near)}" if near else "see `list(stacks.sites)`"
    return SiteError(f"no leaf {path!r} among the {count} of these stacks; {hint}.")


ADVICE_ABOUT_LEAVES = (
    "An init under `stacked_init` returns arrays, as under `jax.jit`. Of an Equinox module return "
    "the arrays, `eqx.filter(model, eqx.is_array)`, and put the model together with `eqx.combine`: "
    "the tutorial on `stacked_init` shows how. Elsewhere what is no array belongs into a static "
    "field."
)


def values_differ(name: str, difference: Any) -> CheckError:
    """`check=True` found a leaf that isn't what jit gives."""
    return CheckError(
        f"stacked_init({name}) and jax.jit({name}) differ: {difference}\n"
        "This is a defect of compilecut: please report it. Use jax.jit for this function until "
        "it is mended."
    )


def site_axis_missing(path: str, shape: Any, count: int) -> InputError:
    """The keys of `stacked_sites` don't have one entry per site."""
    return InputError(
        f"keys{path} has shape {shape}, but there are {count} sites: its first axis must have one "
        "entry per site, in the order of `sites`. Split them with "
        f"`jax.random.split(key, {count})`."
    )


def sites_not_a_mapping(sites: Any) -> InputError:
    """`sites` isn't a mapping."""
    return InputError(f"`sites` must be a mapping from name to spec, not {type(sites).__name__}.")


# --- scan_chunks

ADVICE_ABOUT_NUMBERS = (
    "In `scan_chunks` a number in a chunk is data, so that chunks which differ in it share one "
    "compiled body: inside the body it is a traced array. Where the body needs the number itself "
    "(a shape, an `if`, an index into a Python list), make it static: put it in a static field of "
    "a pytree (`equinox.field(static=True)`), or pass a bool, a string or an enum member."
)


class ChunkError(CompilecutError, ValueError):
    """Chunks that can't be run as they are."""


class ChunkTypeError(CompilecutError, TypeError):
    """A chunk, a carry or a result of a type that can't be."""


def bad_unroll(unroll: Any) -> ChunkError:
    """`unroll` isn't what `lax.scan` takes."""
    return ChunkError(f"`unroll` must be True, False or a positive integer, not {unroll!r}.")


def bad_remat(remat: Any) -> ChunkTypeError:
    """`remat` is neither a switch nor a policy."""
    return ChunkTypeError(
        f"`remat` must be None, True or a checkpoint policy, not {remat!r}. Policies are in "
        "`jax.checkpoint_policies`."
    )


def bad_accum_dtype(accum_dtype: Any) -> ChunkTypeError:
    """`accum_dtype` isn't a floating type."""
    return ChunkTypeError(
        f"`accum_dtype` must be a floating type such as `jnp.float32`, not {accum_dtype!r}."
    )


def no_chunks() -> ChunkError:
    """There is nothing to run."""
    return ChunkError(
        "`chunks` is empty. Without a chunk the types of the results are not known: skip the call, "
        "and use the initial carry, when there may be none."
    )


def chunks_hold_no_arrays(chunks: Any) -> ChunkTypeError:
    """Neither a sequence nor a stacked pytree."""
    return ChunkTypeError(
        f"`chunks` is a {type(chunks).__name__} without arrays. Give a list or tuple with one "
        "pytree per chunk (`list(...)` of an iterator), or one pytree of arrays that are stacked "
        "along their leading axis."
    )


def no_leading_axis(path: str, aval: Any) -> ChunkError:
    """A leaf of a stacked pytree is a scalar."""
    return ChunkError(
        f"{path} is {_short(aval)}, which has no leading axis. `chunks` is not a list or tuple, so "
        "it is taken as one pytree with the chunks stacked along the leading axis of every leaf. "
        "Give every leaf that axis, or a list with one pytree per chunk."
    )


def leading_axes_differ(path: str, aval: Any, other_path: str, other: Any) -> ChunkError:
    """Two leaves of a stacked pytree count the chunks differently."""
    return ChunkError(
        f"{path} is {_short(aval)} but {other_path} is {_short(other)}: stacked chunks need the "
        "same leading axis, the number of chunks, in every leaf. For chunks of different shapes "
        "give a list with one pytree per chunk."
    )


def not_jax_data(path: str, leaf: Any) -> ChunkTypeError:
    """An array of strings or objects, or something else JAX doesn't know."""
    kind = f"{leaf.dtype} array" if hasattr(leaf, "dtype") else type(leaf).__name__
    return ChunkTypeError(
        f"{path} is a {kind}, which JAX can't compute with. Give an array of numbers or a number."
    )


def integer_too_large(path: str, value: int) -> ChunkError:
    """A Python int that doesn't fit JAX's default integer."""
    return ChunkError(
        f"{path} is the Python int {value}, which doesn't fit JAX's default integer type. Numbers "
        "in chunks are data: give it a type (`np.uint32(...)` for a seed, `float(...)` for a "
        "scale), or enable x64."
    )


def static_not_comparable(path: str, value: Any, other_path: str) -> ChunkTypeError:
    """`==` of two static leaves gives no bool."""
    return ChunkTypeError(
        f"{path} and {other_path} are of type {type(value).__name__}, which is no data, so chunks "
        "are told apart by `==`; but comparing them gave no bool. Register the type as a pytree if "
        "it holds arrays, or give it an `__eq__` that returns a bool."
    )


def body_result_no_pair(body: Any, result: Any, *, carry_alone: bool) -> ChunkTypeError:
    """The body doesn't return `(carry, out)`."""
    remedy = "Return `carry, None` if there is nothing to collect."
    if carry_alone:
        remedy = "That is the carry alone: return `carry, None` if there is nothing to collect."
    elif isinstance(result, tuple) and len(result) > 2:
        remedy = "Collect several things in one: return `carry, (a, b)`."
    elif isinstance(result, list) and len(result) == 2:
        remedy = "A list is no pair: return a tuple."
    return ChunkTypeError(
        f"{_where(body)} must return a pair (carry, out), but returned {_outline(result)}. {remedy}"
    )


def looks_stacked(arrays: Any) -> str:
    """A tuple of arrays that may have been meant as one stacked pytree."""
    outline = ", ".join(map(_outline, arrays))
    return (
        f"`chunks` is a tuple of {len(arrays)} arrays ({outline}), so each array is one chunk. If "
        "it was meant as one pytree with the chunks along the leading axis, give a dict or a "
        "NamedTuple. If these are the chunks, give a list: that is never taken for anything else."
    )


def body_returned_no_array(body: Any, path: str, leaf: Any) -> ChunkTypeError:
    """A leaf of the body's result isn't an array."""
    return ChunkTypeError(
        f"{_where(body)} returned {path} of type {type(leaf).__name__}, which is not an array. "
        "What is the same for every chunk doesn't need to come out of the body: leave it out."
    )


def carry_structure_changed(body: Any, before: Any, after: Any) -> ChunkTypeError:
    """The carry comes out with other containers."""
    return ChunkTypeError(
        f"{_where(body)} changes the structure of the carry: it goes in as\n  {before}\nand comes "
        f"out as\n  {after}\nReturn a carry of the same containers and keys."
    )


def carry_type_changed(body: Any, path: str, before: Any, after: Any, chunk: int) -> ChunkTypeError:
    """A leaf of the carry comes out with another type."""
    remedy = f"Return `{path}.astype({before.dtype})`, or begin with a carry of type {after.dtype}"
    if before.dtype == after.dtype:
        remedy = "Begin with a carry of the type it is to have"
    return ChunkTypeError(
        f"{_where(body)} changes the type of {path}: at chunk {chunk} it goes in as "
        f"{_short(before)} and comes out as {_short(after)}. Every chunk must hand on the same "
        f"type. {remedy}."
    )


def _outline(thing: Any) -> str:
    """Says in a few words what a value is."""
    if isinstance(thing, (tuple, list)) and not hasattr(thing, "_fields"):
        items = ", ".join(map(_outline, thing[:4])) + (", ..." if len(thing) > 4 else "")
        return f"a {type(thing).__name__} of {len(thing)} ({items})"
    if isinstance(thing, dict):
        return f"a dict with the keys {', '.join(map(repr, list(thing)[:4]))}"
    shape, dtype = getattr(thing, "shape", None), getattr(thing, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{dtype}[{','.join(map(str, shape))}]"
    return "None" if thing is None else f"a {type(thing).__name__}"


def _short(aval: Any) -> str:
    return aval.str_short(short_dtypes=False)


def _where(body: Any) -> str:
    code = getattr(body, "__code__", None)
    name = getattr(body, "__qualname__", type(body).__name__)
    return f"`{name}` ({code.co_filename}:{code.co_firstlineno})" if code else f"`{name}`"


# --- fold


def not_a_function(wrapper: str, fn: Any) -> InputError:
    """Something else than a function to wrap."""
    return InputError(f"`{wrapper}` wraps a function, not {fn!r} of type {type(fn).__name__}.")


def bad_min_blocks(min_blocks: Any) -> InputError:
    """Fewer than two blocks don't repeat."""
    return InputError(f"`min_blocks` must be an integer of at least 2, not {min_blocks!r}.")


def fold_did_not_check(name: str, difference: Any) -> str:
    """`check=True` found that a folded program isn't the original."""
    return (
        f"fold({name}) stays as written: its folded program is not the original one: {difference}\n"
        "This is a defect of compilecut: please report it with the function."
    )


# --- packed state


def bad_state_count(name: str, state: Any, given: int) -> InputError:
    """`state` doesn't count arguments."""
    return InputError(
        f"`state` says how many of the first arguments of {name} are its state: an integer from 1 "
        f"to {given} here, not {state!r}."
    )


def state_count(name: str, expected: int, given: int) -> InputError:
    """`pack` called with another number of arguments."""
    return InputError(f"the state of {name} is {expected} arguments; `pack` was given {given}.")


def state_not_returned(name: str, count: int, results: Any) -> InputError:
    """The function doesn't return its state first."""
    return InputError(
        f"{name} has a state of {count} arguments, so it must return the next state as its first "
        f"{count} results; it returns {type(results).__name__}. Return `(*state, *others)`."
    )


def other_state_structure(name: str, path: str) -> InputError:
    """A state of another structure than the one the step was made for."""
    return InputError(
        f"this is no state of {name}: it differs at leaf {path or '(no array)'}. The "
        "first arguments of a step and its first results must be alike: the same containers, and "
        "arrays where there were arrays. `state` says how many of them there are."
    )


def other_state_type(name: str, path: str, expected: Any, given: Any) -> InputError:
    """A leaf of another type than the step was made for, or returns."""
    return InputError(
        f"leaf {path} of the state of {name} is {given.dtype}{list(given.shape)} where the step "
        f"takes {expected.dtype}{list(expected.shape)}. Make the step return the type it takes."
    )


def not_a_packed_state(name: str, expected: Any, given: Any) -> InputError:
    """Something else than a packed state."""
    names = set(given) if isinstance(given, dict) else set()
    missing = sorted(set(expected) - names)
    extra = sorted(names - set(expected), key=str)
    return InputError(
        f"this is no packed state of {name}: it is a {type(given).__name__}"
        + (f" without {missing[0]!r}" if missing and isinstance(given, dict) else "")
        + (f" with {extra[0]!r}" if extra else "")
        + ". Make one with `pack`, or read a checkpoint of one."
    )


def packed_did_not_check(name: str, difference: Any) -> CheckError:
    """`check=True` found that a packed step isn't the original."""
    return CheckError(
        f"the packed step of {name} is not the function as written: {difference}\n"
        "This is a defect of compilecut: please report it with the function."
    )

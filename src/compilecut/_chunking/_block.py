"""The body of `scan_chunks`, traced once for chunks of one form.

Arrays the body captured come out of the trace as operands, so the block can be put into a loop or a
compilation unit without any of them becoming a constant there.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import eval_jaxpr
from jax.extend.core import primitives as prim

from .. import _compat, _errors
from .._jaxpr import as_weak_as, sub_jaxprs
from ._leaves import Form

Body = Callable[[Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A traced body: captured, carry and data leaves to carry and out leaves.

    Attributes:
        form: the chunks it is for.
        jaxpr: the trace.
        captured: what the body closed over: arrays and outer tracers.
        carry_in: the types of the carry's leaves that it was traced with.
        carry_out: the types they come out with.
        indifferent: the carry leaves that may as well be strongly typed: the trace would be equal.
        out_types: the types of the leaves of `out`.
        out_tree: the structure of `out`.
    """

    form: Form
    jaxpr: Any
    captured: tuple[Any, ...]
    carry_in: tuple[Any, ...]
    carry_out: tuple[Any, ...]
    indifferent: frozenset[int]
    out_types: tuple[Any, ...]
    out_tree: Any

    def accepts(self, form: Form, carry: Sequence[Any]) -> bool:
        """Says whether the block is what tracing for `form` and this carry would give."""
        return self.form.matches(form) and self.accepts_carry(carry)

    def accepts_carry(self, carry: Sequence[Any]) -> bool:
        """Says whether the block is what tracing with these carry leaves would give."""
        for i, (mine, value) in enumerate(zip(self.carry_in, carry, strict=True)):
            theirs = jax.typeof(value)
            weak = mine.weak_type == theirs.weak_type or (i in self.indifferent and mine.weak_type)
            if not (weak and _compat.same_type(mine, theirs)):
                return False
        return True

    def evaluate(
        self, captured: Sequence[Any], carry: Sequence[Any], data: Sequence[Any]
    ) -> list[Any]:
        """Returns the leaves of the next carry and of `out`, as weakly typed as they were traced.

        Numbers in a chunk come in strongly typed here (stacked, they are an array).
        """
        results = eval_jaxpr(self.jaxpr, captured, *carry, *data)
        types = (*self.carry_out, *self.out_types)
        return [as_weak_as(*pair) for pair in zip(results, types, strict=True)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """A block with all it needs to run on a chunk.

    Attributes:
        block: the traced body.
        operands: what it captured, as it is passed.
        run: operands, carry and data leaves to carry and out leaves.
        unit: the same, as a call that XLA compiles once.
    """

    block: Block
    operands: tuple[Any, ...]
    run: Callable[..., list[Any]]
    unit: Callable[..., list[Any]]


def trace_block(
    body: Body, carry_tree: Any, carry: Sequence[Any], form: Form, data: Sequence[Any], remat: Any
) -> Block:
    """Traces `body` for carries and data of the given types."""
    n = len(carry)
    trees: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        try:
            result = body(jax.tree.unflatten(carry_tree, leaves[:n]), form.rebuild(leaves[n:]))
        except TypeError as error:
            # A tracer where a Python value was needed. JAX has a class for it, and doesn't always
            # use it (not for shapes).
            if isinstance(error, jax.errors.JAXTypeError) or "Tracer" in str(error):
                error.add_note(_errors.ADVICE_ABOUT_NUMBERS)
            raise
        carry_leaves, out_leaves, out_tree = _take_result(body, result, carry_tree)
        trees.append(out_tree)
        return [*carry_leaves, *out_leaves]

    if remat is not None:
        flat = jax.checkpoint(flat, policy=None if remat is True else remat)
    closed = jax.make_jaxpr(flat)(*carry, *data)
    jaxpr = closed.jaxpr
    weak = [i for i, v in enumerate(jaxpr.invars[:n]) if v.aval.weak_type]
    return Block(
        form=form,
        jaxpr=jaxpr,
        captured=tuple(closed.consts),
        carry_in=tuple(v.aval for v in jaxpr.invars[:n]),
        carry_out=tuple(v.aval for v in jaxpr.outvars[:n]),
        indifferent=frozenset(i for i in weak if _weakness_unused(jaxpr, jaxpr.invars[i])),
        out_types=tuple(_out_type(jaxpr, v, n) for v in jaxpr.outvars[n:]),
        out_tree=trees[-1],
    )


def _out_type(jaxpr: Any, var: Any, n_carry: int) -> Any:
    """Returns an out's type; a carry that is handed out is weak only if it stays so."""
    carries = zip(jaxpr.invars[:n_carry], jaxpr.outvars[:n_carry], strict=True)
    after = next((after for before, after in carries if before is var), var)
    return var.aval.update(weak_type=False) if not after.aval.weak_type else var.aval


def _take_result(body: Body, result: Any, carry_tree: Any) -> tuple[list[Any], list[Any], Any]:
    alone = jax.tree.structure(result) == carry_tree
    if not isinstance(result, tuple) or len(result) != 2:
        raise _errors.body_result_no_pair(body, result, carry_alone=alone)
    carry, out = result
    carry_leaves, tree = jax.tree.flatten(carry)
    if tree != carry_tree:
        if alone:  # the carry is itself a pair
            raise _errors.body_result_no_pair(body, result, carry_alone=True)
        raise _errors.carry_structure_changed(body, carry_tree, tree)
    flat_out, out_tree = jax.tree_util.tree_flatten_with_path(out)
    for name, leaves in (
        ("carry", jax.tree_util.tree_flatten_with_path(carry)[0]),
        ("out", flat_out),
    ):
        for key, leaf in leaves:
            try:
                jax.typeof(leaf)
            except TypeError as error:
                path = name + jax.tree_util.keystr(key)
                raise _errors.body_returned_no_array(body, path, leaf) from error
    return carry_leaves, [leaf for _, leaf in flat_out], out_tree


def _weakness_unused(jaxpr: Any, var: Any) -> bool:
    """Says whether a weakly typed input is used only where a strong one would give the same trace.

    That is the usual `loss = 0.0` with `loss + term`: the only use is a cast to the dtype it has.
    Tracing a second time with the strong type, as `lax.scan` does, isn't needed then. A body that
    asks for the carry's type without using its value is not seen here.
    """
    for eqn in jaxpr.eqns:
        for position, atom in enumerate(eqn.invars):
            if atom is var and not _strong_would_do(eqn, position):
                return False
    return True


def _strong_would_do(eqn: Any, position: int) -> bool:
    if eqn.primitive is prim.convert_element_type_p:
        params = eqn.params
        return params["new_dtype"] == eqn.invars[0].aval.dtype and not params["weak_type"]
    if eqn.primitive in (prim.jit_p, prim.remat_p):
        inner = eqn.params["jaxpr"]
        inner = getattr(inner, "jaxpr", inner)
        return _weakness_unused(inner, inner.invars[position]) and not _any_weak(eqn.outvars)
    return not any(sub_jaxprs(eqn.params)) and not _any_weak(eqn.outvars)


def _any_weak(variables: Sequence[Any]) -> bool:
    return any(getattr(v.aval, "weak_type", False) for v in variables)

"""From a closed jaxpr to one flat list of equations: inner calls that only group are opened.

`jax.random.normal` is a `jit` in a `jit` in a `jit`. To find what is alike one has to look inside.
Calls that mean more than their body stay closed: a `jit` with shardings or compiler options of its
own, a `remat` that was differentiated, control flow.

Opening is for looking only. Some of XLA's passes run before it inlines calls, so a literal that was
passed to a call and the same literal inside it can end in other bits (`jax.random.gamma` does).
Hence each equation keeps its `Scope`, what a call was passed stays a parameter (`Passed`), and
`evaluate` closes the calls again.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from jax.extend import core as jex_core
from jax.extend.core import primitives as prim

from .. import _compat
from ._freeze import freeze, freeze_equation
from ._program import Equation, Literal, Operand, Passed, Program, Scope, Value


def flatten(
    closed: jex_core.ClosedJaxpr, *, keep_rules: bool = False, keep_calls: int | None = None
) -> Program:
    """Returns the program of a closed jaxpr, with plain inner calls opened.

    Args:
        closed: the jaxpr.
        keep_rules: leave calls with derivative rules of their own closed (`custom_jvp`,
            `custom_vjp`, `remat`), so that the program can still be differentiated.
        keep_calls: leave calls closed, but for plain ones that occur fewer times than this where
            they stand: those are opened for good, and `evaluate` doesn't close them again.
    """
    body, consts = _open(closed)
    arguments = tuple(Value(v.aval) for v in body.invars)
    if keep_calls is None:
        flattener = _Flattener(_RULED if keep_rules else frozenset())
    else:
        flattener = _Flattener(frozenset(_OPENERS) - {prim.jit_p}, keep_calls)
    outputs = flattener.call(body, consts, arguments, None)
    return Program(arguments, flattener.constants, flattener.equations, tuple(outputs))


_Body = tuple[Any, Iterable[Any]]
# These become calls in the lowered program; the other openers lower to their bodies in place.
_CALLS = frozenset({prim.jit_p, prim.closed_call_p})
_RULED = frozenset({prim.custom_jvp_call_p, prim.custom_vjp_call_p, prim.remat_p})
_OPENERS: dict[jex_core.Primitive, Callable[[dict[str, Any]], _Body | None]] = {}


def _opens(*primitives: jex_core.Primitive):
    """Registers how to look into calls of some primitives; `None` keeps a call closed."""

    def register(rule: Callable[[dict[str, Any]], _Body | None]):
        for primitive in primitives:
            if primitive in _OPENERS:
                raise ValueError(f"two rules open {primitive}")
            _OPENERS[primitive] = rule
        return rule

    return register


@_opens(prim.jit_p)
def _open_jit(params: dict[str, Any]) -> _Body | None:
    return _open(params["jaxpr"]) if _compat.jit_only_groups(params) else None


@_opens(prim.closed_call_p, prim.custom_jvp_call_p, prim.custom_vjp_call_p)
def _open_closed(params: dict[str, Any]) -> _Body | None:
    call = params.get("call_jaxpr")
    return None if call is None else _open(call)


@_opens(prim.remat_p)
def _open_remat(params: dict[str, Any]) -> _Body | None:
    # Before differentiation a checkpoint is a plain call; afterwards it stands behind a barrier.
    return None if params["differentiated"] else _open(params["jaxpr"])


def _open(jaxpr: Any) -> _Body:
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


class _Flattener:
    """Collects equations and constants while it walks into calls."""

    def __init__(self, closed: frozenset[jex_core.Primitive], often: int | None = None):
        self._closed = closed
        self._often = often  # calls that occur this many times stay calls
        self.equations: list[Equation] = []
        self.constants: dict[Value, Any] = {}
        self._const_values: dict[int, Value] = {}
        self._keys: dict[int, Hashable] = {}
        self._literals: dict[int, Literal] = {}

    def call(
        self, body: Any, consts: Iterable[Any], operands: Iterable[Operand], scope: Scope | None
    ) -> list[Operand]:
        env: dict[Any, Operand] = dict(zip(body.invars, operands, strict=True))
        for var, const in zip(body.constvars, consts, strict=True):
            env[var] = self._constant(const, var.aval)

        def read(atom: Any) -> Operand:
            return self._literal(atom) if isinstance(atom, jex_core.Literal) else env[atom]

        kept = self._occurring_often(body)
        for eqn in body.eqns:
            operands = [read(atom) for atom in eqn.invars]
            inner = None if kept and self._key(eqn) in kept else self._inner(eqn)
            # A tag on the call (compilation_unit, say) would be lost with the call: keep it closed.
            if inner is None or eqn.ctx.xla_metadata or len(inner[0].invars) != len(operands):
                results: Iterable[Operand] = self._append(eqn, tuple(operands), scope)
            elif eqn.primitive in _CALLS and self._often is None:
                inside = Scope(eqn.params.get("name", "call"), scope, eqn.source_info)
                results = self.call(inner[0], inner[1], self._pass(operands, inside), inside)
            else:
                results = self.call(inner[0], inner[1], operands, scope)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in body.outvars]

    def _occurring_often(self, body: Any) -> frozenset[Hashable]:
        if self._often is None:
            return frozenset()
        counts = Counter(self._key(eqn) for eqn in body.eqns if eqn.primitive is prim.jit_p)
        return frozenset(key for key, count in counts.items() if count >= self._often)

    def _key(self, eqn: Any) -> Hashable:
        key = self._keys.get(id(eqn))  # jaxprs shared between calls are frozen once
        if key is None:
            key = self._keys[id(eqn)] = freeze_equation(eqn)
        return key

    def _inner(self, eqn: Any) -> _Body | None:
        opener = None if eqn.primitive in self._closed else _OPENERS.get(eqn.primitive)
        return None if opener is None else opener(eqn.params)

    def _pass(self, operands: Iterable[Operand], scope: Scope) -> list[Operand]:
        return [
            Passed(operand.aval, operand, scope)
            if isinstance(operand, (Literal, Passed)) or operand in self.constants
            else operand
            for operand in operands
        ]

    def _append(
        self, eqn: Any, operands: tuple[Operand, ...], scope: Scope | None
    ) -> tuple[Value, ...]:
        outputs = tuple(Value(v.aval) for v in eqn.outvars)
        self.equations.append(
            Equation(
                primitive=eqn.primitive,
                params=eqn.params,
                inputs=operands,
                outputs=outputs,
                key=self._key(eqn),
                ctx=eqn.ctx,
                source_info=eqn.source_info,
                effects=frozenset(eqn.effects),
                scope=scope,
            )
        )
        return outputs

    def _constant(self, const: Any, aval: Any) -> Value:
        value = self._const_values.get(id(const))
        if value is None:
            value = self._const_values[id(const)] = Value(aval)
            self.constants[value] = const
        return value

    def _literal(self, atom: Any) -> Literal:
        literal = self._literals.get(id(atom))
        if literal is None:
            literal = Literal(atom.val, atom.aval, (atom.aval, freeze(atom.val)))
            self._literals[id(atom)] = literal
        return literal
